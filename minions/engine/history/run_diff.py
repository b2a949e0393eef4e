"""Two runs side by side: what they were given, what each step came to, where they part."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from typing import TypeAlias, cast

from attrs import frozen

from minions.contracts.json_values import JsonValue
from minions.engine.history.lookup import RunDetail, StepSummary
from minions.engine.history.run_summary import RunSummary

__all__ = ["RunDiff", "StepDiff", "StepSide", "ValueDiff", "compare_runs"]

_Name: TypeAlias = tuple[str, int]
"""A step, and which time the run came to it."""


@frozen(kw_only=True)
class ValueDiff:
    """A value that is not the same in both; None also where one has none."""

    name: str
    a: JsonValue
    b: JsonValue


@frozen(kw_only=True)
class StepSide:
    """A step of one of the runs."""

    status: str
    reason: str | None
    output: JsonValue
    error: JsonValue
    usage: Mapping[str, JsonValue]
    duration_ms: float | None

    @classmethod
    def of(cls, step: StepSummary) -> StepSide:
        """Of its recorded facts."""
        return cls(
            status=step.kept_as or step.status,
            reason=step.reason,
            output=step.output,
            error=step.facts.get("error"),
            usage=cast("Mapping[str, JsonValue]", step.facts.get("usage") or {}),
            duration_ms=cast("float | None", step.facts.get("duration_ms")),
        )


@frozen(kw_only=True)
class StepDiff:
    """One step of both runs, or of one."""

    step_id: str
    visit: int
    """From 1: which time the run came to it."""
    a: StepSide | None
    """None: this run did not come to it."""
    b: StepSide | None
    differs: tuple[str, ...]
    """Of `status`, `output`, `error`; `step` where only one run came to it. What a step used and
    how long it took is never the same, and counts as no difference."""


@frozen(kw_only=True)
class RunDiff:
    """All of it."""

    a: RunSummary
    b: RunSummary
    inputs: tuple[ValueDiff, ...]
    steps: tuple[StepDiff, ...]
    """In the order of the first run; what only the second came to stands where it was there."""
    result: tuple[ValueDiff, ...]
    """Of `recipe`, `model`, `status`, `output` and `error` those that differ."""
    first: str | None
    """`inputs`, the id of the first step that differs, or `result`; None: they are the same."""


def compare_runs(a: RunDetail, b: RunDetail) -> RunDiff:
    """Both runs, step by step."""
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
    left, right = _named(a), _named(b)
    for name in _merged(list(left), list(right)):
        one, other = left.get(name), right.get(name)
        yield StepDiff(
            step_id=name[0],
            visit=name[1],
            a=one,
            b=other,
            differs=tuple(_differences(one, other)),
        )


def _named(steps: Sequence[StepSummary]) -> Mapping[_Name, StepSide]:
    visits: Counter[str] = Counter()
    named: dict[_Name, StepSide] = {}
    for step in steps:
        visits[step.step_id] += 1
        named[step.step_id, visits[step.step_id]] = StepSide.of(step)
    return named


def _merged(a: list[_Name], b: list[_Name]) -> list[_Name]:
    """Each name once, in an order that keeps that of both as far as it can be."""
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
