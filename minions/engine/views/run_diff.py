"""The comparison of two runs: their inputs, the steps one by one, and the first difference."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from typing import TypeAlias, cast

from attrs import frozen

from minions.data.json_values import JsonValue, as_object
from minions.engine.views.run_detail import RunDetail, StepSummary
from minions.engine.views.run_summary import RunSummary

_Name: TypeAlias = tuple[str, int]
"""A step id, and the number of the visit, from 1."""


@frozen(kw_only=True)
class ValueDiff:
    """A value that differs between the runs; None also where a run has no such value."""

    name: str
    a: JsonValue
    b: JsonValue


@frozen(kw_only=True)
class StepSide:
    """A step as it went in one of the two runs."""

    status: str
    reason: str | None
    output: JsonValue
    error: JsonValue
    usage: Mapping[str, JsonValue]
    duration_ms: float | None

    @classmethod
    def of(cls, step: StepSummary) -> StepSide:
        """The side of a step, made of its recorded facts."""
        return cls(
            status=step.kept_as or step.status,
            reason=step.reason,
            output=step.output,
            error=step.facts.get("error"),
            usage=as_object(step.facts.get("usage") or {}),
            duration_ms=cast("float | None", step.facts.get("duration_ms")),
        )


@frozen(kw_only=True)
class StepDiff:
    """A visit of a step in both runs, or in one of them."""

    step_id: str
    visit: int
    """Counted from 1: which time the run visited the step."""
    a: StepSide | None
    """None: this run did not visit the step."""
    b: StepSide | None
    differs: tuple[str, ...]
    """Which of `status`, `output` and `error` differ; `step` where only one run visited it. Usage
    and duration always differ, and are not compared."""


@frozen(kw_only=True)
class RunDiff:
    """The comparison of two runs."""

    a: RunSummary
    b: RunSummary
    inputs: tuple[ValueDiff, ...]
    steps: tuple[StepDiff, ...]
    """In the order of the first run, with the steps of the second one in between."""
    result: tuple[ValueDiff, ...]
    """The entries of `recipe`, `model`, `status`, `output` and `error` that differ."""
    first: str | None
    """Where the runs differ first: `inputs`, the id of a step, or `result`; None: nowhere."""


def compare_runs(a: RunDetail, b: RunDetail) -> RunDiff:
    """Compare two runs, step by step."""
    inputs = tuple(_inputs(a.inputs, b.inputs))
    steps = tuple(_steps(a.steps, b.steps))
    result = tuple(_result(a, b))
    different = [step.step_id for step in steps if step.differs]
    places = [*(["inputs"] if inputs else []), *different, *(["result"] if result else [])]
    return RunDiff(
        a=a.summary,
        b=b.summary,
        inputs=inputs,
        steps=steps,
        result=result,
        first=places[0] if places else None,
    )


def _inputs(a: JsonValue, b: JsonValue) -> Iterator[ValueDiff]:
    left = a if isinstance(a, Mapping) else {}
    right = b if isinstance(b, Mapping) else {}
    for name in dict.fromkeys([*left, *right]):
        if (name in left, left.get(name)) != (name in right, right.get(name)):
            yield ValueDiff(name=name, a=left.get(name), b=right.get(name))


def _result(a: RunDetail, b: RunDetail) -> Iterator[ValueDiff]:
    sides: Mapping[str, tuple[JsonValue, JsonValue]] = {
        "recipe": (a.summary.recipe, b.summary.recipe),
        "model": (a.summary.model, b.summary.model),
        "status": (a.summary.status, b.summary.status),
        "output": (a.output, b.output),
        "error": (a.error, b.error),
    }
    for name, (left, right) in sides.items():
        if left != right:
            yield ValueDiff(name=name, a=left, b=right)


def _steps(a: Sequence[StepSummary], b: Sequence[StepSummary]) -> Iterator[StepDiff]:
    left, right = _name_sides(a), _name_sides(b)
    for name in _merge_names(list(left), list(right)):
        one, other = left.get(name), right.get(name)
        yield StepDiff(
            step_id=name[0],
            visit=name[1],
            a=one,
            b=other,
            differs=tuple(_differences(one, other)),
        )


def _name_sides(steps: Sequence[StepSummary]) -> Mapping[_Name, StepSide]:
    visits: Counter[str] = Counter()
    named: dict[_Name, StepSide] = {}
    for step in steps:
        visits[step.step_id] += 1
        named[step.step_id, visits[step.step_id]] = StepSide.of(step)
    return named


def _merge_names(a: list[_Name], b: list[_Name]) -> list[_Name]:
    """Each name once, in an order that follows both lists as far as possible."""
    merged: dict[_Name, None] = {}
    for _, a_start, a_end, b_start, b_end in SequenceMatcher(
        None, a, b, autojunk=False
    ).get_opcodes():
        merged |= dict.fromkeys([*a[a_start:a_end], *b[b_start:b_end]])
    return list(merged)


def _differences(a: StepSide | None, b: StepSide | None) -> Iterator[str]:
    if a is None or b is None:
        yield "step"
        return
    if (a.status, a.reason) != (b.status, b.reason):
        yield "status"
    if a.output != b.output:
        yield "output"
    if a.error != b.error:
        yield "error"
