"""Runs that wait for a server: their job ends, and they are queued until it may be asked again."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from attrs import evolve

from minions.contracts.dispatch import Job, JobEnd
from minions.contracts.errors import MinionsError
from minions.contracts.queue_places import QueuePlace
from minions.contracts.runtime import Log
from minions.engine.run.agent_run import AgentRun
from minions.engine.run.recorded_run import RecordedRun
from minions.engine.services.run_pause import RunPause
from minions.interfaces.run_policy import QUEUE, RunPolicy
from minions.interfaces.run_queue import job_of
from minions.interfaces.unattended_runtime import UnattendedRuntime

__all__ = ["MOST_PAUSES", "pause_of", "queued_until"]

MOST_PAUSES: Final = 10
"""Of a run in a row without an answer in between; then it waits in its place, with its retries, so
that it comes to an end."""
_FINISHED: Final = frozenset(("finished", "failed"))


def pause_of(recorded: RecordedRun) -> RunPause | None:
    """Where the next execution of the run notes a pause; None: it makes no more of them."""
    place = RunPolicy.recorded(recorded.note).queue
    return None if place is None or place.pauses >= MOST_PAUSES else RunPause()


async def queued_until(runtime: UnattendedRuntime, log: Log, job: Job, run: AgentRun) -> JobEnd:
    """The end of the job of a run that has paused. The run is recorded as queued until then.

    Where that cannot be recorded now, its job is put back until then.
    """
    services = runtime.services
    pause = run.context.scope.services.pause
    now = services.clock.now()
    until = now if pause is None or pause.until is None else pause.until
    log.info("run_paused", run_id=job.run_id, until=until.isoformat())
    try:
        return await _recorded(runtime, job, until)
    except MinionsError as error:
        log.warning("pause_not_recorded", run_id=job.run_id, reason=error.message)
        delay_s = max(0.0, (until - now).total_seconds())
        return JobEnd(again=job.put_back(delay_s, is_failed_try=False))


async def _recorded(runtime: UnattendedRuntime, job: Job, until: datetime) -> JobEnd:
    recorded = await runtime.recorded(job.run_id)
    before = RunPolicy.recorded(recorded.note).queue or QueuePlace()
    pauses = 1 if _has_progress(recorded) else before.pauses + 1
    place = evolve(before, not_before=until, pauses=pauses)
    recipe = runtime.own_recipe(recorded)
    run = runtime.executor_of(recipe, note=recorded.note).prepare_resume(recorded, recipe=recipe)
    entry = await run.record_queued({QUEUE: place.to_note()})
    return JobEnd(again=job_of(entry, place, runtime.services.clock.now()))


def _has_progress(recorded: RecordedRun) -> bool:
    """Whether its last execution ended a call."""
    return any(
        entry.generation == recorded.generation
        and entry.kind in ("model_call", "tool_call")
        and entry.state in _FINISHED
        for entry in recorded.entries
    )
