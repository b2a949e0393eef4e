"""What the recorded rows of a run say: what stands, what is begun anew, and what waits."""

from __future__ import annotations

import pytest

from builders import draft_of, entry_of
from minions.contracts.decision_types import Redo
from minions.contracts.executions import RunWarning
from minions.contracts.journal.facts import Fact
from minions.contracts.journal.journal import JournalEntry
from minions.data.errors import JournalError
from minions.data.json_values import JsonValue
from minions.engine.history.current_rows import visible
from minions.engine.history.replay import Replay
from minions.engine.history.step_rows import EXHAUSTED, STUCK, StepRows

Row = tuple[str, str, str, dict[str, JsonValue]]


def step(key: str, state: str, **body: JsonValue) -> Row:
    return ("step", key, state, {"step_id": key.partition("/")[0], **body})


def call(key: str, state: str) -> Row:
    body: dict[str, JsonValue] = {"step_id": "a", "tool": "write"}
    return ("tool_call", key, state, body | ({"arguments": "{}"} if state == "started" else {}))


def decision(key: str, state: str) -> Row:
    return ("decision", key, state, {"step_id": "a", "what": "approval"})


def resumed(**body: JsonValue) -> Row:
    return ("run", "run", "resumed", dict(body))


def rows_of(*rows: Row) -> list[JournalEntry]:
    """At positions 1, 2, …"""
    return [
        entry_of(kind, state, body, key=key, position=position)
        for position, (kind, key, state, body) in enumerate(rows, 1)
    ]


def replay_of(*rows: Row, generation: int = 2) -> Replay:
    return Replay(rows_of(*rows), generation)


def standing(replay: Replay, base: str) -> StepRows:
    found = replay.execution(base)
    assert found is not None
    return found


DONE = (step("a/1/0", "started"), step("a/1/0", "finished", output=1))
FAILED = (step("a/1/0", "started"), step("a/1/0", "failed", error={"code": "bad"}))
GOTO: Row = ("goto", "a/1/0/goto", "recorded", {"to": "b", "attempt": 1})


def failed_with(code: str, key: str = "a/1/0") -> tuple[Row, Row]:
    return step(key, "started"), step(key, "failed", error={"code": code})


# --- one execution -------------------------------------------------------------------------------


def test_a_run_without_rows_has_nothing_to_tell() -> None:
    replay = Replay((), 3)
    assert (replay.generation, replay.position, replay.retried_at) == (3, 0, 0)
    assert (replay.checks_inputs, replay.is_over) == (False, False)
    assert (replay.warnings, replay.decisions) == ([], {})
    assert replay.execution("a/1/0") is None
    assert replay.key_of("a/1/0") == "a/1/0"


@pytest.mark.parametrize(
    ("kind", "state"),
    [
        ("tool_call", "finished"),
        ("tool_call", "failed"),
        ("step", "skipped"),
        ("decision", "recorded"),
        ("step", "withdrawn"),
    ],
)
def test_work_that_needs_no_more_is_found(kind: str, state: str) -> None:
    replay = replay_of((kind, "a/1/0/tool/1/0", state, {}))
    found = replay.find(kind, "a/1/0/tool/1/0")
    assert found is not None
    assert found.state == state
    assert replay.find("model_call", "a/1/0/tool/1/0") is None


@pytest.mark.parametrize(
    ("kind", "state"),
    [
        ("tool_call", "started"),
        ("tool_call", "interrupted"),
        ("tool_call", "in_doubt"),
        ("decision", "waiting"),
        ("decision", "imported"),
    ],
)
def test_work_that_was_cut_off_or_waits_is_not(kind: str, state: str) -> None:
    replay = replay_of((kind, "a/1/0/tool/1/0", state, {}))
    assert replay.find(kind, "a/1/0/tool/1/0") is None
    assert replay.newest(kind, "a/1/0/tool/1/0") is not None


def test_a_run_with_a_row_that_is_no_fact_is_refused() -> None:
    """A-123."""
    with pytest.raises(JournalError, match="Expected `int`") as caught:
        replay_of(*DONE, ("goto", "a/1/0/goto", "recorded", {"attempt": "twice"}))
    assert caught.value.error_code == "corrupt-entry"


def test_an_execution_that_was_cut_off_has_no_end() -> None:
    rows = standing(replay_of(step("a/1/0", "started"), step("a/1/0", "interrupted")), "a/1/0")
    assert (rows.ended, rows.has_failed, rows.is_withdrawn) == (None, False, False)
    assert rows.until_end == rows.unsettled == rows.rows


def test_what_comes_after_the_end_of_an_execution_is_not_its_own() -> None:
    rows = standing(replay_of(*DONE, call("a/1/0/decide/1/0", "started")), "a/1/0")
    assert [row.position for row in rows.until_end] == [1, 2]
    assert [row.position for row in rows.unsettled] == [3]


@pytest.mark.parametrize(
    ("rows", "has_failed", "was_not_enough"),
    [
        (DONE, False, False),
        (FAILED, True, False),
        ((step("a/1/0", "started"), step("a/1/0", "failed")), True, False),
        (failed_with(EXHAUSTED), True, True),
        (failed_with(STUCK), True, True),
        ((*failed_with(STUCK), GOTO), False, False),
        ((step("a/1/0", "started"),), False, False),
    ],
)
def test_a_failure_counts_unless_the_run_went_back_because_of_it(
    rows: tuple[Row, ...], has_failed: bool, was_not_enough: bool
) -> None:
    found = standing(replay_of(*rows), "a/1/0")
    assert (found.has_failed, found.was_not_enough) == (has_failed, was_not_enough)


def test_a_step_that_is_passed_over_leaves_what_is_under_way_in_it() -> None:
    replay = replay_of(step("a/1/0", "started"), step("a/1/0", "skipped"))
    rows = standing(replay, "a/1/0")
    assert (len(rows.rows), rows.ended) == (1, None)


def test_warnings_are_known_and_are_no_executions() -> None:
    warning: Row = ("warning", "warning/1", "recorded", {"code": "odd", "message": "Odd."})
    replay = replay_of(warning)
    assert replay.warnings == [RunWarning(code="odd", message="Odd.")]
    assert replay.execution("warning/1") is None


def test_the_way_back_is_found_by_the_visit() -> None:
    replay = replay_of(*FAILED, GOTO)
    back = replay.back_edges("a/1/0")
    assert back is not None
    assert (back.position, back.attempt) == (3, 1)
    assert replay.back_edges("a/2/0") is None


def test_of_several_ways_back_of_one_visit_the_first_says_when_it_was() -> None:
    again: Row = ("goto", "a/1/0@2/goto", "recorded", {"to": "b", "attempt": 1})
    rows = (*FAILED, GOTO, *failed_with("bad", "a/1/0@2"), again)
    back = replay_of(*rows, generation=3).back_edges("a/1/0")
    assert back is not None
    assert back.position == 3


# --- decisions -----------------------------------------------------------------------------------


def test_what_was_decided_holds_until_the_call_is_begun_again() -> None:
    key = "a/1/0/tool/1/0"
    decided = resumed(decisions={key: "redo"})
    others = (step(key, "started"), call(key, "interrupted"), call("a/1/0/tool/1/1", "started"))
    assert replay_of(decided, *others).decisions == {key: Redo()}
    assert replay_of(decided, call(key, "started")).decisions == {}
    assert replay_of(resumed(), resumed(decisions=None)).decisions == {}


@pytest.mark.parametrize("state", ["started", "finished"])
def test_only_a_resume_decides_and_retries(state: str) -> None:
    said: dict[str, JsonValue] = {"decisions": {"k": "done"}, "retries": True, "anew": ["a"]}
    row: Row = ("run", "run", state, {"status": "failed", **said})
    replay = replay_of(*DONE, row)
    assert (replay.decisions, replay.checks_inputs) == ({}, False)
    assert replay.execution("a/1/0") is not None


def test_what_waits_is_what_nobody_decided_in_executions_that_stand() -> None:
    key = "a/1/0/tool/1/0/approval"
    begun = (step("a/1/0", "started"), call("a/1/0/tool/1/0", "started"))
    waiting = (*begun, decision(key, "waiting"))
    assert [found for found, _ in replay_of(*waiting).waiting()] == [key]
    for after in (
        decision(key, "recorded"),
        resumed(decisions={key: "approve:1"}),
        step("a/1/0", "withdrawn"),
    ):
        assert list(replay_of(*waiting, after).waiting()) == []
    forgotten = replay_of(*waiting)
    forgotten.forget("a/1/0")
    assert list(forgotten.waiting()) == []


@pytest.mark.parametrize("outer", ["outer/1/0", "outer/1/2"])
def test_nothing_waits_within_what_was_withdrawn(outer: str) -> None:
    inner = f"{outer.replace('/', '~')}~a/1/0"
    rows = (
        step("other/1/0", "started"),
        step(outer, "started"),
        step(inner, "started"),
        decision(f"{inner}/ask", "waiting"),
    )
    assert len(list(replay_of(*rows).waiting())) == 1
    assert list(replay_of(*rows, step("outer/1/0", "withdrawn")).waiting()) == []
    assert len(list(replay_of(*rows, step("outer/2/0", "withdrawn")).waiting())) == 1


def test_calls_that_have_no_end_are_open_oldest_first() -> None:
    replay = replay_of(
        step("a/1/0", "started"),
        call("a/1/0/tool/1/0", "started"),
        call("a/1/0/tool/1/1", "started"),
        call("a/1/0/tool/1/2", "started"),
        call("a/1/0/tool/1/1", "finished"),
    )
    assert [each.key for each in replay.opened()] == ["a/1/0/tool/1/0", "a/1/0/tool/1/2"]


def test_a_call_that_was_begun_twice_is_open_once() -> None:
    key = "a/1/0/tool/1/0"
    started = step("a/1/0", "started")
    rows = (started, call(key, "started"), call(key, "interrupted"), call(key, "started"))
    assert [each.key for each in replay_of(*rows).opened()] == [key]
    assert [each.key for each in replay_of(*rows[:3]).opened()] == [key]


def test_calls_of_an_execution_that_ended_are_settled_and_those_after_it_are_not() -> None:
    late = call("a/1/0/decide/1/0", "started")
    replay = replay_of(DONE[0], call("a/1/0/tool/1/0", "started"), DONE[1], late)
    assert [each.key for each in replay.opened()] == ["a/1/0/decide/1/0"]
    replay.forget("a/1/0")
    assert list(replay.opened()) == []


# --- retries -------------------------------------------------------------------------------------


def test_a_retry_forgets_failures_and_keeps_what_went_well() -> None:
    replay = replay_of(*FAILED, step("b/1/0", "started"), step("b/1/0", "finished"))
    replay.retry(())
    assert replay.checks_inputs
    assert replay.execution("a/1/0") is None
    assert replay.execution("b/1/0") is not None
    assert replay.key_of("a/1/0") == "a/1/0@2"
    assert replay.key_of("b/1/0") == "b/1/0"
    assert replay.key_of("c/1/0") == "c/1/0"


def test_a_retry_forgets_what_waited_when_the_run_went_back() -> None:
    replay = replay_of(step("a/1/0", "started"), step("a/1/0", "withdrawn"))
    replay.retry(())
    assert replay.execution("a/1/0") is None


def test_a_retry_keeps_a_failure_that_the_run_went_back_for() -> None:
    replay = replay_of(*FAILED, GOTO)
    replay.retry(())
    assert replay.execution("a/1/0") is not None
    assert replay.retried_at == 4


def test_a_second_retry_passes_over_what_is_forgotten() -> None:
    replay = replay_of(*FAILED)
    replay.retry(())
    replay.retry(("a",))
    assert replay.execution("a/1/0") is None


@pytest.mark.parametrize("code", [EXHAUSTED, STUCK])
def test_iterations_that_were_not_enough_all_begin_anew(code: str) -> None:
    """Each went well; also what is within them is asked for again."""
    replay = replay_of(
        step("a/1/1", "started"),
        step("a~1~1~in/1/0", "finished"),
        step("a/1/1", "finished"),
        *failed_with(code),
        step("b/1/1", "finished"),
    )
    replay.retry(())
    gone = [
        base
        for base in ("a/1/0", "a/1/1", "a~1~1~in/1/0", "b/1/1")
        if replay.execution(base) is None
    ]
    assert gone == ["a/1/0", "a/1/1", "a~1~1~in/1/0"]


@pytest.mark.parametrize(
    ("anew", "gone"),
    [
        ([], []),
        (["a"], ["a/1/0"]),
        (["a/"], ["a/1/0", "a~1~0~in/1/0"]),
        (["a/in"], ["a~1~0~in/1/0"]),
        (["in"], []),
    ],
)
def test_a_recorded_retry_forgets_the_steps_that_it_names(
    anew: list[JsonValue], gone: list[str]
) -> None:
    rows = (step("a/1/0", "finished"), step("a~1~0~in/1/0", "finished"), step("ab/1/0", "finished"))
    replay = replay_of(*rows, resumed(retries=True, anew=anew))
    bases = [key for _, key, _, _ in rows]
    assert [base for base in bases if replay.execution(base) is None] == gone
    assert replay_of(*rows, resumed(retries=True)).execution("a/1/0") is not None
    assert replay_of(*rows, resumed(anew=["a"])).execution("a/1/0") is not None


def test_a_choice_that_failed_has_a_key_of_its_own_at_each_retry() -> None:
    base = "a/1/0/route"
    failed: Row = ("route", base, "failed", {"step_id": "a"})
    again: Row = ("route", f"{base}@2", "failed", {"step_id": "a"})
    replay = replay_of(*DONE, failed)
    assert replay.key_of_choice(base) == base
    replay.retry(())
    assert replay.key_of_choice(base) == f"{base}@2"
    twice = replay_of(*DONE, failed, resumed(retries=True), again)
    assert twice.key_of_choice(base) == f"{base}@2"
    twice.retry(())
    assert twice.key_of_choice(base) == f"{base}@3"


@pytest.mark.parametrize(("kind", "state"), [("route", "finished"), ("tool_call", "failed")])
def test_only_a_choice_that_failed_is_made_under_another_key(kind: str, state: str) -> None:
    replay = replay_of(*DONE, (kind, "a/1/0/route", state, {"step_id": "a"}))
    replay.retry(())
    assert replay.key_of_choice("a/1/0/route") == "a/1/0/route"


# --- looking up ----------------------------------------------------------------------------------


def test_the_outputs_of_a_step_are_those_of_executions_that_ended_well_and_stand() -> None:
    replay = replay_of(
        *DONE,
        step("a/2/0", "started"),
        step("a/3/0", "failed", output=3),
        step("a/4/0", "finished", output=4),
        step("b/1/0", "finished", output=5),
        step("a/5/0", "finished", output=6),
    )
    replay.forget("a/4/0")
    assert list(replay.outputs_of("a")) == [1, 6]
    assert list(replay.outputs_of("c")) == []


def test_calls_that_steps_began_are_told_once_the_steps_begin_anew() -> None:
    rows = (
        step("a/1/0", "started"),
        call("a/1/0/tool/1/0", "started"),
        call("a/1/0/tool/1/0", "finished"),
        call("a/1/0/tool/1/1", "started"),
        step("a/1/0", "finished"),
        step("b/1/0", "started"),
        call("b/1/0/tool/1/0", "started"),
    )
    replay = replay_of(*rows)
    assert list(replay.begun_calls(["a", "b"])) == []
    replay.forget("a/1/0")
    replay.forget("b/1/0")
    assert list(replay.begun_calls(["a"])) == [
        ("a/1/0/tool/1/0", "write"),
        ("a/1/0/tool/1/1", "write"),
    ]


@pytest.mark.parametrize(
    ("code", "was_made"),
    [
        ("unknown-tool", False),
        ("permission-denied", False),
        ("bad-arguments", False),
        ("tool-failed", True),
    ],
)
def test_a_call_that_was_refused_before_its_tool_was_called_is_no_begun_call(
    code: str, *, was_made: bool
) -> None:
    kind, key, state, body = call("a/1/0/tool/1/0", "failed")
    failed = (kind, key, state, {**body, "error": {"code": code}})
    replay = replay_of(step("a/1/0", "started"), call(key, "started"), failed)
    replay.forget("a/1/0")
    assert list(replay.begun_calls(["a"])) == ([(key, "write")] if was_made else [])


def test_a_begun_call_is_found_by_its_key_until_its_end_or_the_execution_is_forgotten() -> None:
    rows = (step("a/1/0", "started"), call("a/1/0/tool/1/0", "started"))
    replay = replay_of(*rows)
    begun = replay.begun_call("a/1/0/tool/1/0")
    assert begun is not None
    assert (begun.key, begun.tool) == ("a/1/0/tool/1/0", "write")
    assert replay.begun_call("a/1/0/tool/1/1") is None
    assert replay.begun_call("b/1/0/tool/1/0") is None
    assert replay_of(*rows, call("a/1/0/tool/1/0", "finished")).begun_call(begun.key) is None


def test_the_newest_visit_is_the_last_of_those_in_a_row() -> None:
    replay = replay_of(*DONE, step("a/2/0", "started"), step("a/4/0", "started"))
    found = replay.newest_visit("a")
    assert found is not None
    assert found.key == "a/2/0"
    replay.forget("a/2/0")
    assert replay.newest_visit("a") is None
    assert replay.newest_visit("b") is None


def known(kind: str, state: str, body: dict[str, JsonValue]) -> Fact:
    return draft_of(kind, state, body).fact


# --- facts that stand ----------------------------------------------------------------------------


def test_a_fact_that_stands_is_the_same_when_it_says_the_same() -> None:
    replay = replay_of(*DONE)
    stands = replay.same("a/1/0", known("step", "finished", {"output": 1}))
    assert stands is not None
    assert stands.position == 2
    assert replay.same("a/1/0", known("step", "finished", {"output": 2})) is None
    assert replay.same("a/1/0", known("step", "failed", {"output": 1})) is None
    assert replay.same("b/1/0", known("step", "finished", {"output": 1})) is None
    assert replay.same("a/1/0", known("model_call", "finished", {"output": 1})) is None


def test_an_execution_that_was_cut_off_for_another_reason_is_another_fact() -> None:
    replay = replay_of(step("a/1/0", "started"), step("a/1/0", "interrupted", reason="killed"))
    assert replay.same("a/1/0", known("step", "interrupted", {"reason": "killed"})) is not None
    assert replay.same("a/1/0", known("step", "interrupted", {"reason": "limit"})) is None


def test_the_begin_of_a_step_stands_also_after_its_end() -> None:
    begin = replay_of(*DONE).same("a/1/0", known("step", "started", {}))
    assert begin is not None
    assert begin.position == 1
    assert replay_of(*DONE).same("b/1/0", known("step", "started", {})) is None
    assert replay_of(*DONE).same("a/1/0", known("conversation", "started", {})) is None


def test_a_call_that_begins_and_a_step_that_is_passed_over_are_facts_of_their_own() -> None:
    rows = (*DONE, call("a/1/0/tool/1/0", "started"), step("b/1/0", "skipped"))
    replay = replay_of(*rows)
    replay.is_over = False
    assert replay.same("a/1/0/tool/1/0", known("tool_call", "started", {})) is None
    assert replay.same("b/1/0", known("step", "skipped", {})) is None


def test_of_a_run_that_is_over_every_fact_stands_but_those_of_calls() -> None:
    replay = replay_of(*DONE, call("a/1/0/tool/1/0", "started"), step("b/1/0", "skipped"))
    replay.is_over = True
    assert replay.same("a/1/0", known("step", "finished", {"output": 2})) is not None
    assert replay.same("b/1/0", known("step", "skipped", {})) is not None
    assert replay.same("a/1/0/tool/1/0", known("tool_call", "started", {})) is None


# --- what is shown -------------------------------------------------------------------------------


def test_rows_of_executions_that_were_begun_anew_are_not_shown() -> None:
    rows = rows_of(
        step("a/1/0", "started"),
        call("a/1/0/tool/1/0", "started"),
        step("a/1/0@2", "started"),
        call("a/1/0@2/tool/1/0", "started"),
        ("run", "run", "finished", {}),
        step("b/1/0", "skipped"),
        step("b/1/0", "started"),
    )
    assert [row.position for row in visible(rows)] == [3, 4, 5, 6, 7]


def test_a_step_that_is_passed_over_later_hides_nothing() -> None:
    rows = rows_of(*DONE, step("a/1/0@2", "skipped"))
    assert [row.position for row in visible(rows)] == [1, 2, 3]
