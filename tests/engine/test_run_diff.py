"""Two runs side by side."""

from __future__ import annotations

from datetime import UTC, datetime

from minions.data.json_values import JsonValue
from minions.engine.views.run_detail import RunDetail, StepSummary
from minions.engine.views.run_diff import StepDiff, ValueDiff, compare_runs
from minions.engine.views.run_summary import RunSummary


def run(
    run_id: str,
    *steps: StepSummary,
    inputs: JsonValue = None,
    output: JsonValue = "done",
    status: str = "completed",
) -> RunDetail:
    summary = RunSummary(
        run_id=run_id,
        session_id="ses",
        recipe="news",
        status=status,
        started_at=datetime(2026, 1, 1, tzinfo=UTC),
    )
    return RunDetail(
        summary=summary, inputs=inputs, output=output, error=None, steps=steps, messages=()
    )


def step(
    step_id: str, output: JsonValue = "x", status: str = "completed", ms: float = 1
) -> StepSummary:
    facts: dict[str, JsonValue] = {"duration_ms": ms, "usage": {"total_tokens": ms}}
    return StepSummary(step_id=step_id, status=status, output=output, facts=facts)


def outline(steps: tuple[StepDiff, ...]) -> list[tuple[str, int, tuple[str, ...]]]:
    return [(each.step_id, each.visit, each.differs) for each in steps]


def test_time_and_tokens_are_told_and_are_no_difference() -> None:
    found = compare_runs(run("a", step("fetch", ms=1)), run("b", step("fetch", ms=2)))
    assert (found.first, found.inputs, found.result) == (None, (), ())
    (only,) = found.steps
    assert only.a is not None
    assert only.b is not None
    assert (only.a.duration_ms, only.b.duration_ms) == (1, 2)
    assert (only.a.usage, only.b.usage) == ({"total_tokens": 1}, {"total_tokens": 2})


def test_what_differs_first_is_named() -> None:
    a = run("a", step("fetch"), step("write", "one"), step("post", "sent"))
    b = run("b", step("fetch"), step("write", "two"), step("post", None, "failed"), status="failed")
    found = compare_runs(a, b)
    assert found.first == "write"
    assert outline(found.steps) == [
        ("fetch", 1, ()),
        ("write", 1, ("output",)),
        ("post", 1, ("status", "output")),
    ]
    assert found.result == (ValueDiff(name="status", a="completed", b="failed"),)


def test_inputs_come_before_steps() -> None:
    a = run("a", step("write", "one"), inputs={"topic": "cats", "n": 1, "old": None})
    b = run("b", step("write", "two"), inputs={"topic": "dogs", "n": 1})
    found = compare_runs(a, b)
    assert found.first == "inputs"
    assert found.inputs == (
        ValueDiff(name="topic", a="cats", b="dogs"),
        ValueDiff(name="old", a=None, b=None),
    )


def test_steps_of_one_run_alone_stand_where_they_were() -> None:
    a = run("a", step("fetch"), step("check"), step("post"))
    b = run("b", step("fetch"), step("translate"), step("check"), step("check"), step("post"))
    assert outline(compare_runs(a, b).steps) == [
        ("fetch", 1, ()),
        ("translate", 1, ("step",)),
        ("check", 1, ()),
        ("check", 2, ("step",)),
        ("post", 1, ()),
    ]


def test_steps_in_another_order_are_compared_with_each_other() -> None:
    a = run("a", step("x", 1), step("y", 2))
    b = run("b", step("y", 2), step("x", 3))
    assert sorted(outline(compare_runs(a, b).steps)) == [("x", 1, ("output",)), ("y", 1, ())]


def test_a_result_that_differs_alone_is_named() -> None:
    assert compare_runs(run("a", output=1), run("b", output=2)).first == "result"
