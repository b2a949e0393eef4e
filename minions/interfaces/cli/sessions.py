"""`minions sessions list` and `show`: what ran."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from typing import cast

import click

from minions.contracts.codec import encode
from minions.contracts.durations import spoken
from minions.contracts.json_values import JsonValue
from minions.engine.sessions import (
    RunDetail,
    RunSummary,
    StepSummary,
    find_run,
    list_runs,
    show_run,
)
from minions.interfaces.cli.setup import (
    Surroundings,
    naming_the_journal,
    output_options,
    surroundings,
)
from minions.interfaces.cli.voice import json_text, say, tell
from minions.interfaces.render import faults_lines, painter
from minions.interfaces.results import output_text

__all__ = ["command"]


@click.group("sessions")
def command() -> None:
    """List and show what ran."""


@command.command("list")
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True)
@click.option("--db", metavar="PATH", help="SQLite file of the journal.")
@output_options
def list_(*, limit: int, **flags: object) -> int:
    """List runs, the newest first."""
    around = surroundings(flags)
    runs = asyncio.run(_list(around))[:limit]
    if around.settings.json:
        say(json_text([encode(run) for run in runs]))
        return 0
    if not runs:
        tell("No runs yet. `minions run RECIPE` makes the first.")
    for run in runs:
        say(
            f"{run.run_id}  {run.session_id}  {run.started_at:%Y-%m-%d %H:%M:%S}Z  "
            f"{run.status:<13} {run.recipe}"
        )
    return 0


async def _list(around: Surroundings) -> tuple[RunSummary, ...]:
    journal = around.journal()
    try:
        return await list_runs(journal)
    finally:
        await journal.aclose()


@command.command("show")
@click.argument("name", metavar="ID")
@click.option("--messages", is_flag=True, help="Show every message, too.")
@click.option("--db", metavar="PATH", help="SQLite file of the journal.")
@output_options
def show(name: str, *, messages: bool, **flags: object) -> int:
    """Show one run: ID is a run's or a session's, or a unique start of one."""
    around = surroundings(flags)
    detail = asyncio.run(_show(around, name))
    if around.settings.json:
        say(json_text(encode(detail)))
        return 0
    for line in _lines(detail, messages=messages):
        say(line)
    return 0


async def _show(around: Surroundings, name: str) -> RunDetail:
    journal = around.journal()
    try:
        with naming_the_journal(around):
            run = await find_run(journal, name)
        return await show_run(journal, run)
    finally:
        await journal.aclose()


def _lines(detail: RunDetail, *, messages: bool) -> Iterator[str]:
    run = detail.summary
    yield f"{run.run_id} · session {run.session_id}"
    yield f"recipe {run.recipe} · model {run.model or 'none'} · {run.status}"
    yield f"started {run.started_at:%Y-%m-%d %H:%M:%S}Z"
    if detail.inputs:
        yield f"inputs {json.dumps(detail.inputs, ensure_ascii=False)}"
    for step in detail.steps:
        yield f"  {_step_line(step)}"
    if messages:
        for step_id, message in detail.messages:
            yield from _message_lines(step_id, message)
    if detail.faults:
        yield from faults_lines(detail.faults, painter(is_on=False))
    elif detail.error is not None:
        error = cast("Mapping[str, JsonValue]", detail.error)
        yield f"error[{error.get('code')}]: {error.get('message')}"
    if detail.output is not None:
        yield "output:"
        yield output_text(detail.output)


def _step_line(step: StepSummary) -> str:
    duration = step.facts.get("duration_ms")
    pinned, cached = step.facts.get("pinned_from"), step.facts.get("cached_from")
    parts = [f"{step.step_id}: {'pinned' if pinned else 'cached' if cached else step.status}"]
    if pinned or cached:
        parts.append(f"from {pinned or cached}")
    elif isinstance(duration, int | float):
        parts.append(spoken(duration))
    if step.reason:
        parts.append(step.reason)
    if "next" in step.facts:
        parts.append(f"then {step.facts['next']}: {step.facts['next_because']}")
    return " · ".join(parts)


def _message_lines(step_id: str, message: Mapping[str, JsonValue]) -> Iterator[str]:
    yield f"[{step_id}] {message.get('role')}:"
    if message.get("content"):
        yield f"  {message['content']}"
    for call in cast("list[Mapping[str, JsonValue]]", message.get("tool_calls") or []):
        yield f"  calls {json.dumps(call.get('function', call), ensure_ascii=False)}"
