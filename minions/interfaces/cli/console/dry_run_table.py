"""Prints a dry run: one line for each planned step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TextIO

from attrs import evolve

from minions.contracts.tool_search import FIND_TOOLS
from minions.data.codec import encode
from minions.data.json_values import JsonValue, as_object, dumps
from minions.data.texts import spoken
from minions.engine.compile.planned_step import PlannedStep
from minions.engine.compile.prompt_sections import section_words
from minions.interfaces.cli.console.console import json_text, say, tell

_MOST_SHOWN = 160
"""How many characters of arguments a line has; `--json` has all."""


def show_plan(plan: Sequence[PlannedStep], recipe_id: str, out: TextIO, *, json: bool) -> None:
    """Print the plan to standard output: lines for people, or one object for programs."""
    if json:
        say(json_text({"recipe": recipe_id, "planned": [_to_json(step) for step in plan]}), out)
        return
    tell(f"dry run of {recipe_id}: no tool and no model is called, nothing is written")
    for number, step in enumerate(plan, 1):
        say(f"{number:>3} {'  ' * step.depth}{step.step_id}: {_what(step)}", out)


def _to_json(step: PlannedStep) -> JsonValue:
    """The step, of its prompt the tokens by section."""
    document = dict(as_object(encode(evolve(step, prompt=None))))
    if step.prompt is not None:
        document["prompt"] = dict(step.prompt.sections)
    return document


def _what(step: PlannedStep) -> str:
    return " · ".join(_parts(step))


def _parts(step: PlannedStep) -> Iterator[str]:
    yield from _work_parts(step)
    yield from _right_parts(step)
    yield from _iteration_parts(step)
    if step.when is not None:
        yield f"when {step.when}"
    if step.goto is not None:
        yield f"back to {step.goto} on failure, at most {_times(step.max_returns)}"
    elif step.on_error != "fail":
        yield "the run continues if it fails"
    if step.next is not None:
        by = f", by {_short(step.next_by).strip()}" if step.next_by is not None else ""
        yield f"next: {' or '.join(step.next) or 'the end'}{by}"


def _work_parts(step: PlannedStep) -> Iterator[str]:
    """What the step does."""
    target = f" {step.target}" if step.target else ""
    write = " (writes)" if step.writes else ""
    if step.kind == "ask":
        yield from _question_parts(as_object(step.shown))
    else:
        yield f"{step.kind}{target}{write}{_short(step.shown)}"
    if step.refused is not None:
        yield step.refused
    if step.model is not None:
        yield f"asks {step.model}"
    if step.tools:
        yield f"may call {', '.join(step.tools)}"
    if step.asks_for:
        yield f"a model call fills in {', '.join(step.asks_for)}"
    if step.prompt is not None:
        yield f"prompt of {section_words(step.prompt.sections)}{hidden_tool_words(step)}"
    if step.memory is not None:
        yield "sees the conversation so far"


def hidden_tool_words(step: PlannedStep) -> str:
    """`; 60 tools are found by find_tools (all offered: 9120 tokens more)`; empty: all are."""
    hidden = step.hidden_tools
    if hidden is None:
        return ""
    tools = "1 tool is" if hidden.count == 1 else f"{hidden.count} tools are"
    return f"; {tools} found by {FIND_TOOLS} (all offered: {hidden.tokens} tokens more)"


def _iteration_parts(step: PlannedStep) -> Iterator[str]:
    """How often the step is done."""
    if step.loop is not None:
        yield f"for {step.loop}"
    if step.repeats_while is not None:
        condition = _short(step.repeats_while).strip()
        yield f"again while {condition}, at most {_times(step.max_iterations)}"


def _question_parts(question: Mapping[str, JsonValue]) -> Iterator[str]:
    yield f"ask{_short(question['question'])}"
    form = question.get("form")
    yield f"answer:{_short(form)}" if form is not None else "answer: any text"
    if "default" in question:
        yield f"default{_short(dumps(question['default']))}"
    waits = question.get("timeout_s")
    if isinstance(waits, int | float):
        yield f"waits {spoken(waits * 1000)}"


def _right_parts(step: PlannedStep) -> Iterator[str]:
    for word, names in (("needs approval", step.needs_approval), ("denied", step.denied)):
        if names:
            yield word if names == (step.target,) else f"{word}: {', '.join(names)}"


def _times(count: int | None) -> str:
    return "once" if count == 1 else f"{count} times"


def _short(value: JsonValue) -> str:
    if value is None:
        return ""
    text = value if isinstance(value, str) else dumps(value)
    text = " ".join(text.split())
    return f" {text}" if len(text) <= _MOST_SHOWN else f" {text[:_MOST_SHOWN]}…"
