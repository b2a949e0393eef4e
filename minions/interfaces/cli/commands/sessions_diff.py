"""`minions sessions diff A B`: compares two runs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Final

import click

from minions.data.codec import encode
from minions.data.json_values import JsonValue
from minions.data.texts import spoken
from minions.engine.views.lookup import find_run
from minions.engine.views.run_detail import show_run
from minions.engine.views.run_diff import RunDiff, StepDiff, StepSide, ValueDiff, compare_runs
from minions.engine.views.run_summary import RunSummary
from minions.interfaces.cli.console.console import hanging, json_text, say
from minions.interfaces.cli.options import (
    CommandContext,
    DatabaseOption,
    command_context,
    naming_the_journal,
    takes_options,
)

_LONGEST_VALUE: Final = 160
"""How many characters of a value are shown; `--json` has all."""
_BEFORE: Final = 40
"""How many of these are before the first difference."""


@click.command("diff")
@click.argument("a", metavar="A")
@click.argument("b", metavar="B")
@takes_options(DatabaseOption)
def diff(options: DatabaseOption, a: str, b: str) -> int:
    """Compare two runs: inputs, every step, the result.

    A and B are ids of runs, or of sessions, which means their last run; unique starts are enough.
    """
    context = command_context(options)
    found = asyncio.run(_diff(context, a, b))
    if context.settings.json:
        say(json_text(encode(found)))
        return 0
    for line in _lines(found):
        say(hanging(line))
    return 0


async def _diff(context: CommandContext, a: str, b: str) -> RunDiff:
    journal = context.known_journal()
    try:
        with naming_the_journal(context):
            runs = [await find_run(journal, name) for name in (a, b)]
        left, right = [await show_run(journal, run) for run in runs]
        return compare_runs(left, right)
    finally:
        await journal.aclose()


def _lines(found: RunDiff) -> Iterator[str]:
    yield f"A  {_run_line(found.a)}"
    yield f"B  {_run_line(found.b)}"
    if found.first is None:
        yield "The same inputs, steps and result."
    elif found.first in ("inputs", "result"):
        yield f"They differ first in the {found.first}."
    else:
        yield f"They differ first in step {found.first}."
    if found.inputs:
        yield "inputs:"
        for value in found.inputs:
            yield from _value_lines(value.name, value, "  ")
    yield "steps:"
    for step in found.steps:
        yield from _step_lines(step)
    if found.result:
        yield "result:"
        for value in found.result:
            yield from _value_lines(value.name, value, "  ")


def _run_line(run: RunSummary) -> str:
    parts = [run.run_id, run.recipe, run.status, f"{run.started_at:%Y-%m-%d %H:%M:%S}Z"]
    if run.finished_at is not None:
        parts.append(spoken((run.finished_at - run.started_at).total_seconds() * 1000))
    if tokens := run.usage.get("total_tokens"):
        parts.append(f"{tokens:,} tokens")
    return " · ".join(parts)


def _step_lines(step: StepDiff) -> Iterator[str]:
    name = step.step_id if step.visit == 1 else f"{step.step_id} (time {step.visit})"
    if step.a is None or step.b is None:
        side, which = (step.a, "A") if step.a is not None else (step.b, "B")
        yield f"  {'-' if which == 'A' else '+'} {name}: {side and side.status}, only in {which}"
        return
    yield f"  {'~' if step.differs else '='} {name}: {' · '.join(_facts(step.a, step.b))}"
    for what in step.differs:
        if what != "status":
            value = ValueDiff(name=what, a=_side(step.a, what), b=_side(step.b, what))
            yield from _value_lines(what, value, "      ")


def _side(side: StepSide, what: str) -> JsonValue:
    return side.output if what == "output" else side.error


def _facts(a: StepSide, b: StepSide) -> Iterator[str]:
    yield _change(_status(a), _status(b))
    if a.duration_ms is not None and b.duration_ms is not None:
        yield _change(spoken(a.duration_ms), spoken(b.duration_ms))
    tokens = [side.usage.get("total_tokens") or 0 for side in (a, b)]
    if any(tokens):
        yield f"{_change(*[f'{count:,}' for count in tokens])} tokens"


def _status(side: StepSide) -> str:
    return f"{side.status} ({side.reason})" if side.reason else side.status


def _change(a: str, b: str) -> str:
    return a if a == b else f"{a} → {b}"


def _value_lines(name: str, value: ValueDiff, indent: str) -> Iterator[str]:
    a, b = _shown(value.a), _shown(value.b)
    same = next((at for at, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), 0)
    yield f"{indent}{name}:"
    yield f"{indent}  A {_part(a, same)}"
    yield f"{indent}  B {_part(b, same)}"


def _shown(value: JsonValue) -> str:
    return "nothing" if value is None else json.dumps(value, ensure_ascii=False)


def _part(text: str, place: int) -> str:
    """The part of a long text around the first difference."""
    if len(text) <= _LONGEST_VALUE:
        return text
    start = max(0, place - _BEFORE)
    end = start + _LONGEST_VALUE
    return f"{'… ' if start else ''}{text[start:end]}{' …' if end < len(text) else ''}"
