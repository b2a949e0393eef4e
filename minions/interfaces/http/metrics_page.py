"""The page of metrics of a server or worker, as Prometheus text."""

from __future__ import annotations

import contextlib
from collections import Counter

from minions.adapters.daemon_thread import import_in_daemon_thread
from minions.adapters.stores.memory_stores import StateStore
from minions.adapters.telemetry.open_telemetry import OpenTelemetryMetrics
from minions.adapters.telemetry.prometheus import Counter as CounterFamily
from minions.adapters.telemetry.prometheus import Family, Gauge, PrometheusMetrics, require_client
from minions.app.evaluating.background_scores import stored_watches, watch_gauges
from minions.app.runs.paused_queues import queue_pauses
from minions.app.runs.schedule_store import ScheduleStore
from minions.app.runs.work_lists import WorkLists
from minions.app.wiring.configured_runtime import Runtime
from minions.contracts.metrics import JointMetrics, Metrics
from minions.data.errors import EnvironmentRefusedError, JournalError
from minions.engine.services.run_services import Services


def with_counts(runtime: Runtime) -> Runtime:
    """The runtime with metrics for the page, unless an application has its own."""
    told = runtime.services.metrics
    if isinstance(told, OpenTelemetryMetrics):
        return runtime.evolve(metrics=JointMetrics((PrometheusMetrics(), told)))
    return runtime.evolve(metrics=PrometheusMetrics()) if type(told) is Metrics else runtime


async def metrics_page(services: Services, state: StateStore, work: WorkLists) -> bytes:
    """What was counted since the process began, and what the journal says of runs now.

    Args:
        state: The texts beside the journal.
        work: Of workers and queues of that journal.
    Raises:
        EnvironmentRefusedError: `missing-extra`.
    """
    told = services.metrics
    parts = told.all if isinstance(told, JointMetrics) else (told,)
    counted = next((each for each in parts if isinstance(each, PrometheusMetrics)), None)
    counted = counted or PrometheusMetrics()  # an application counts in its own way
    budgets = services.budgets
    day = budgets.day(services.clock.now()) if budgets is not None else None
    await import_in_daemon_thread(require_client)
    left, gauges = Counter[str](), list[Family]()
    # What was counted here is told all the same.
    with contextlib.suppress(JournalError, EnvironmentRefusedError):
        left.update(run.queue for run in (await work.left()).runs)
        left.update(await work.unserved())
        watches = await stored_watches(state, services.clock.now(), services.project)
        gauges += watch_gauges(
            [(each.project, each.report) for each in watches if each.report is not None]
        )
        paused: dict[tuple[str, ...], float] = {
            (queue,): 1.0 for queue in await queue_pauses(state)
        }
        words = "1 where no worker takes runs of the queue; `*` stands for all queues."
        gauges += [Gauge("minions_queue_paused", words, paused, ["queue"])] if paused else []
        gauges += await _schedule_families(ScheduleStore(state))
    return counted.text(services.flow, services.blocking, day, left, gauges).encode()


async def _schedule_families(store: ScheduleStore) -> list[Family]:
    """The due times for which no run was started, and the schedules that no worker can carry out;
    nothing where there is no schedule.

    Raises:
        JournalError: The database cannot be used.
    """
    skipped = CounterFamily(
        "minions_schedule_skipped_total",
        "Due times of schedules for which no run was started, by cause.",
        ["schedule", "cause"],
    )
    problems: dict[tuple[str, ...], float] = {}
    for name in await store.names():
        problems[(name,)] = float(await store.problem(name) is not None)
        for cause, count in (await store.progress(name)).skip_counts.items():
            skipped.add(name, cause.value, amount=float(count))
    words = "1 where a worker could not carry out the schedule."
    return (
        [skipped, Gauge("minions_schedule_problem", words, problems, ["schedule"])]
        if problems
        else []
    )
