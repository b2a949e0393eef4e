"""The commands in files to deploy have options that there are, and alerts ask for metrics."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, cast

import click
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from minions.adapters.stores.memory_stores import MemoryState
from minions.adapters.telemetry.prometheus import PrometheusMetrics
from minions.app.evaluating.background_scores import watch_gauges
from minions.app.evaluating.live_scores import WatchedScorer, WatchReport
from minions.app.runs.paused_queues import QueuePause, put_pause
from minions.app.runs.schedule_store import Progress, ScheduleStore, SkipCause, SkippedTime
from minions.app.runs.work_lists import WorkLists
from minions.contracts.budgets import DayBudget
from minions.contracts.flow import CallAsk, CircuitState, EndpointState, FlowControl
from minions.contracts.runtime import SystemClock
from minions.engine.services.memory_journal import MemoryJournal
from minions.engine.services.run_services import Services
from minions.interfaces.cli.main import command as minions
from minions.interfaces.http.metrics_page import metrics_page

DEPLOY: Final = Path(__file__).parents[2] / "docs" / "deploy"


def _commands() -> Iterator[tuple[str, list[str]]]:
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))
    for name, service in compose["services"].items():
        if "build" in service and "command" in service:
            yield f"compose.yaml {name}", cast("list[str]", service["command"])
    docker = (DEPLOY / "Dockerfile").read_text("utf-8")
    for found in re.findall(r"^CMD (\[.*\])$", docker, re.MULTILINE):
        yield "Dockerfile", json.loads(found)
    unit = (DEPLOY / "minions-worker.service").read_text("utf-8")
    for found in re.findall(r"^ExecStart=\S+/minions (.*)$", unit, re.MULTILINE):
        yield "minions-worker.service", shlex.split(found)


@pytest.mark.parametrize(("place", "words"), list(_commands()))
def test_a_command_of_a_file_to_deploy_can_be_parsed(place: str, words: list[str]) -> None:
    command = minions.get_command(click.Context(minions), words[0])
    assert command is not None, place
    # A command keeps the help option of its first context, whose names it has.
    with command.make_context(words[0], words[1:], **minions.context_settings) as context:
        assert not context.args, place


def test_a_stopped_container_or_unit_has_the_time_that_a_worker_takes_to_drain() -> None:
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))["services"]["worker"]
    unit = (DEPLOY / "minions-worker.service").read_text("utf-8")
    drains = [
        *(word for word in compose["command"] if word.endswith("s") and word[:-1].isdigit()),
        *re.findall(r"--drain (\d+s)", unit),
    ]
    waits = [compose["stop_grace_period"], *re.findall(r"TimeoutStopSec=(\d+)", unit)]
    for drain, wait in zip(drains, waits, strict=True):
        assert int(wait.rstrip("s")) >= int(drain.rstrip("s")) + 15


class _OneServer(FlowControl):
    async def admit(self, ask: CallAsk) -> object:  # type: ignore[override]  # is not asked
        raise AssertionError

    def states(self) -> tuple[EndpointState, ...]:
        return (
            EndpointState(
                origin="http://m", in_flight=1, waiting=1, circuit=CircuitState.OPEN, held_s=1
            ),
        )


async def _written_series() -> Mapping[str, set[str]]:
    """The names of what `/metrics` writes, each with its labels."""
    state, now = MemoryState(), datetime(2026, 5, 4, tzinfo=UTC)
    counted = PrometheusMetrics()
    counted.run_ended("failed", 1.0)
    counted.model_attempt_ended("m", None, 1.0)
    counted.model_call_waited("m", 1.0)
    await put_pause(state, QueuePause(queue="slow", reason="moved", since=now))
    await state.put("minions:schedule:s", "{}")
    late = SkippedTime(due=now, cause=SkipCause.PAUSED, reason="it was paused")
    await ScheduleStore(state).put_progress("s", Progress().skip(late))
    services = Services(journal=MemoryJournal(SystemClock()))
    scorer = WatchedScorer(scorer="exact", scored=1, failed=0)
    watches = watch_gauges([(None, WatchReport(recipe="r", sampled=1, scorers=(scorer,)))])
    day = DayBudget(tokens=1, most_tokens=2, cost_usd=1.0, most_cost_usd=2.0)
    work = WorkLists(services.journal, state, None, lambda _: False)
    pages = (
        counted.text(_OneServer(), None, day, {"slow": 1}, list(watches)),
        (await metrics_page(services, state, work)).decode(),
    )
    return {
        sample.name: set(sample.labels)
        for page in pages
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def _alerts() -> list[dict[str, Any]]:
    rules = yaml.safe_load((DEPLOY / "alerts.yaml").read_text("utf-8"))
    return [rule for group in rules["groups"] for rule in group["rules"]]


async def test_alerts_ask_for_what_the_page_of_metrics_writes() -> None:
    """Names, labels, and the values of those that have a fixed set."""
    written, rules = await _written_series(), _alerts()
    assert len({rule["alert"] for rule in rules}) == len(rules) > 5
    fixed = {"state": {each.value for each in CircuitState}, "cause": {*map(str, SkipCause)}}
    for rule in rules:
        asked = re.findall(r"(minions_\w+)(?:\{([^}]*)\})?", rule["expr"])
        assert asked, rule["alert"]
        known = set[str]()
        for name, conditions in asked:
            assert name in written, f"{rule['alert']}: {name}"
            known |= written[name]
            for label, wanted in re.findall(r'(\w+)!?="([^"]*)"', conditions):
                assert label in written[name], f"{rule['alert']}: {label}"
                assert wanted in fixed.get(label, {wanted}), f"{rule['alert']}: {wanted}"
        for names in re.findall(r"by \(([^)]*)\)", rule["expr"]):
            assert known >= {each.strip() for each in names.split(",")}, rule["alert"]
        told = set(re.findall(r"\$labels\.(\w+)", str(rule["annotations"])))
        assert known >= told, rule["alert"]


@pytest.mark.parametrize("rule", _alerts(), ids=lambda rule: rule["alert"])
def test_an_alert_names_a_page_and_a_heading_that_there_are(rule: Mapping[str, Any]) -> None:
    file, _, anchor = rule["annotations"]["docs"].partition("#")
    text = (DEPLOY.parents[1] / file).read_text("utf-8")
    headings = {
        re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-")
        for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    }
    assert not anchor or anchor in headings
