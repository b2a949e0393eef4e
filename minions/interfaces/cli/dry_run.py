"""A dry run on paper: one line for each planned step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TextIO

from minions.contracts.codec import encode
from minions.contracts.json_values import JsonValue, dumps
from minions.engine.dry_run import PlannedStep
from minions.interfaces.cli.voice import json_text, say, tell

__all__ = ["show_plan"]

_MOST_SHOWN = 160
"""Characters of arguments in a line; `--json` shows all."""


def show_plan(plan: Sequence[PlannedStep], recipe_id: str, out: TextIO, *, json: bool) -> None:
    """To standard output: lines for people, one object for programs."""
    if json:
        say(json_text({"recipe": recipe_id, "planned": [encode(step) for step in plan]}), out)
        return
    tell(f"dry run of {recipe_id}: no tool and no model is called, nothing is written")
    for number, step in enumerate(plan, 1):
        say(f"{number:>3} {step.step_id}: {_what(step)}", out)


def _what(step: PlannedStep) -> str:
    return " · ".join(_parts(step))


def _parts(step: PlannedStep) -> Iterator[str]:
    target = f" {step.target}" if step.target else ""
    write = " (writes)" if step.writes else ""
    yield f"{step.kind}{target}{write}{_short(step.shown)}"
    if step.tools:
        yield f"may call {', '.join(step.tools)}"
    if step.asks_for:
        yield f"a model call fills in {', '.join(step.asks_for)}"
    if step.loop is not None:
        yield f"for {step.loop}"
    if step.when is not None:
        yield f"when {step.when}"
    if step.next is not None:
        by = f", by {_short(step.next_by).strip()}" if step.next_by is not None else ""
        yield f"next: {' or '.join(step.next) or 'the end'}{by}"


def _short(value: JsonValue) -> str:
    if value is None:
        return ""
    text = value if isinstance(value, str) else dumps(value)
    text = " ".join(text.split())
    return f" {text}" if len(text) <= _MOST_SHOWN else f" {text[:_MOST_SHOWN]}…"
