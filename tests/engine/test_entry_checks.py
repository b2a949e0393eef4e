"""What each kind of journal entry must hold before anything is made of it."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from builders import entry_of
from minions.contracts.journal.facts import UnreadableFact, fact_of
from minions.contracts.journal.journal import JournalEntry, refuse_damaged
from minions.contracts.journal.run_row_folds import list_problem
from minions.data.errors import JournalError
from minions.data.json_values import JsonValue

Body = dict[str, JsonValue]


def problem_of(kind: str, state: str, body: Body) -> str | None:
    fact = fact_of(kind, state, body)
    return fact.problem if isinstance(fact, UnreadableFact) else None


STEP: Body = {"step_id": "a"}
END: Body = {**STEP, "status": "completed"}
FAILED: Body = {**END, "error": {}}
CALL: Body = {**STEP, "tool": "write"}
BEGUN: Body = {**CALL, "arguments": "{}"}
DECIDED: Body = {**STEP, "what": "approval", "word": "approve:1"}
RUN: Body = {"recipe": "r"}

NEEDED: Mapping[tuple[str, str], Body] = {
    ("run", "started"): RUN,
    ("run", "resumed"): RUN,
    ("run", "rejected"): {**RUN, "faults": []},
    ("run", "finished"): {"status": "completed"},
    ("run", "limit_reached"): {"limit": "max_steps", "message": "m"},
    ("step", "started"): STEP,
    ("step", "finished"): END,
    ("step", "failed"): FAILED,
    ("step", "skipped"): END,
    ("step", "interrupted"): FAILED,
    ("step", "withdrawn"): END,
    ("conversation", "started"): {**STEP, "conversation": "c", "messages": []},
    ("model_call", "finished"): {**STEP, "message": {"role": "assistant"}},
    ("model_call", "failed"): STEP,
    ("model_call", "interrupted"): STEP,
    ("tool_call", "started"): BEGUN,
    ("tool_call", "in_doubt"): BEGUN,
    ("tool_call", "finished"): CALL,
    ("tool_call", "failed"): CALL,
    ("tool_call", "interrupted"): CALL,
    ("message", "recorded"): {},
    ("decision", "waiting"): {**STEP, "what": "answer"},
    ("decision", "recorded"): DECIDED,
    ("decision", "imported"): DECIDED,
    ("goto", "recorded"): {**STEP, "to": "a", "attempt": 1},
    ("route", "finished"): {**STEP, "output": "b"},
    ("route", "failed"): STEP,
    ("rollback", "recorded"): {"conversation": "c", "position": 3},
    ("warning", "recorded"): {"code": "c", "message": "m"},
    ("session", "opened"): {},
    ("session", "forked"): {"parent": "s", "sequence": 1, "position": 1},
    ("session", "cut"): {"sequence": 1},
}
"""Kind and state to a body that holds just what is needed."""

OTHERWISE: Mapping[tuple[str, str], Body] = {
    ("run", "started"): {"document": "id: r"},
    ("run", "resumed"): {"document": "id: r"},
    ("message", "recorded"): {"call": "a/1/0/tool/1/0"},
}
"""Needed as well, where one of several serves."""


def whole(kind: str, state: str) -> Body:
    return {**NEEDED[kind, state], **OTHERWISE.get((kind, state), {})}


ALL = [(kind, state) for kind, state in NEEDED]
FIELDS = [(kind, state, name) for (kind, state), body in NEEDED.items() for name in body]


@pytest.mark.parametrize(("kind", "state"), ALL)
def test_what_is_needed_is_enough(kind: str, state: str) -> None:
    assert problem_of(kind, state, whole(kind, state)) is None


@pytest.mark.parametrize(("kind", "state", "name"), FIELDS)
def test_what_is_missing_or_of_another_kind_is_named(kind: str, state: str, name: str) -> None:
    body = whole(kind, state)
    del body[name]
    assert problem_of(kind, state, body) == f"Object missing required field `{name}`"
    for wrong in (True, 1.5):
        said = problem_of(kind, state, {**body, name: wrong})
        assert f"at `$.{name}`" in str(said)


def test_a_kind_or_state_that_is_not_known_is_named() -> None:
    assert str(problem_of("dream", "started", {})).startswith("the kind 'dream' is not")
    said = str(problem_of("goto", "started", {}))
    assert said == "goto has no state 'started'; its states are: recorded"


@pytest.mark.parametrize("state", ["started", "resumed"])
def test_a_run_says_its_steps_or_its_document(state: str) -> None:
    assert problem_of("run", state, {**RUN, "steps": {}}) is None
    for body in (RUN, {**RUN, "steps": None, "document": None}):
        said = problem_of("run", state, body)
        assert said == "neither `document` nor `steps` defines the steps of the run"


@pytest.mark.parametrize(
    ("body", "is_right"),
    [
        ({"message": {"role": "user"}}, True),
        ({"call": "k"}, True),
        ({"call": 1}, False),
        ({"message": "hello"}, False),
        ({"message": {}}, False),
        ({}, False),
    ],
)
def test_a_message_is_there_or_is_that_of_a_call(body: Body, is_right: bool) -> None:
    assert (problem_of("message", "recorded", body) is None) == is_right


def test_the_first_entry_that_cannot_be_read_is_refused() -> None:
    right = entry_of("session", "opened", {})
    refuse_damaged([right])
    with pytest.raises(JournalError, match="sequence") as caught:
        refuse_damaged(
            [right, entry_of("session", "cut", {"sequence": "1"}), entry_of("dream", "x", {})]
        )
    assert caught.value.error_code == "corrupt-entry"


@pytest.mark.parametrize(
    ("row", "is_readable"),
    [
        (entry_of("run", "finished", {"status": "completed"}), True),
        (entry_of("run", "finished", {}), False),
        (entry_of("run", "finished", {"status": 1}), False),
        (entry_of("run", "finished", {"status": "done"}), False),
        (entry_of("run", "finished", {"status": "completed", "usage": 1}), False),
        (entry_of("run", "started", {**RUN, "steps": {}, "model": 1}), False),
        (entry_of("run", "finished", {"status": "completed"}, damage="gone"), False),
        (entry_of("run", "started", {**RUN, "steps": {}}), True),
        (entry_of("run", "started", {"steps": []}), False),
        (entry_of("run", "started", {"recipe": 1, "steps": {}}), False),
        (entry_of("run", "started", {**RUN, "steps": {}}, damage="gone"), False),
        (entry_of("session", "opened", {}), True),
        (entry_of("session", "opened", {}, damage="gone"), False),
    ],
)
def test_a_list_needs_of_its_rows_what_it_shows(row: JournalEntry, is_readable: bool) -> None:
    problem = list_problem(row)
    assert (problem is None) == is_readable
    if problem is not None:
        assert problem.startswith(f"Entry {row.position} of session '{row.session_id}' (")
