"""The text that a chat client is told of a run, from the run's events."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from minions import load
from minions.data.json_values import JsonValue
from minions.interfaces.server.live.openai_answers import AnswerText, answering_step

Event = Mapping[str, JsonValue]


def piece(text: str, address: str = "answer") -> Event:
    return {"type": "step_delta", "address": address, "delta": {"content": text}}


def recorded(text: str | None, role: str = "assistant") -> Event:
    snapshot: dict[str, JsonValue] = {"role": role, "content": text}
    return {"type": "step_completed", "address": "answer", "snapshot": snapshot}


RETRYING: Event = {"type": "retrying", "address": "answer", "what": "model"}


def completed(response: JsonValue) -> Event:
    data: dict[str, JsonValue] = {"response": response, "metrics": {"input_tokens": 1}}
    return {"type": "run_completed", "status": "completed", "data": data}


def told(*events: Event, step: str | None = "answer") -> list[str]:
    """The pieces; empty ones left out."""
    text = AnswerText("run_1", step, None)
    return [said for event in events if (said := text.take(event))]


def test_pieces_are_told_as_they_come_and_the_rest_at_the_end() -> None:
    assert told(piece("Good "), piece("day"), recorded("Good day"), completed("Good day")) == [
        "Good ",
        "day",
    ]
    assert told(piece("Good "), completed("Good day")) == ["Good ", "day"]


def test_without_an_answering_step_the_answer_comes_at_the_end() -> None:
    assert told(piece("x"), recorded("x"), completed("done"), step=None) == ["done"]
    assert told(piece("x", "another"), completed("done")) == ["done"]


def test_what_a_model_says_before_a_tool_call_stands_apart() -> None:
    events = (piece("I look."), recorded("I look."), recorded("it", "tool"))
    answer = (piece("It "), piece("is."), recorded("It is."), completed("It is."))
    assert told(*events, *answer) == ["I look.", "\n\nIt ", "is."]
    without_pieces = (recorded("It is."), completed("It is."))
    assert told(*events, *without_pieces) == ["I look.", "\n\nIt is."]
    assert told(recorded(None), recorded("it", "tool"), *answer) == ["It ", "is."]


def test_a_call_that_is_repeated_is_told_whole_once_it_is_recorded() -> None:
    begun = (piece("Good mor"), RETRYING)
    same = (piece("Good mor"), piece("ning"), recorded("Good morning"), completed("Good morning"))
    assert told(*begun, *same) == ["Good mor", "ning"]
    other = (piece("Hello"), recorded("Hello"), completed("Hello"))
    assert told(*begun, *other) == ["Good mor", "\n\nHello"]
    assert told(RETRYING, *other) == ["Hello"]


def test_where_pieces_were_lost_the_whole_text_follows() -> None:
    assert told(piece("day"), recorded("Good day"), completed("Good day")) == [
        "day",
        "\n\nGood day",
    ]


def test_an_output_that_is_no_text_is_json_and_none_is_empty() -> None:
    assert told(completed({"total": 3})) == ['{"total":3}']
    assert told(completed(None)) == []


def test_a_failed_run_has_its_code_and_no_answer() -> None:
    text = AnswerText("run_1", None, None)
    error: dict[str, JsonValue] = {"code": "auth-rejected", "message": "No."}
    event: Event = {"type": "run_failed", "status": "failed", "data": {"error": error}}
    assert text.take(event) == ""
    assert text.end is not None
    assert (text.end.code, text.end.problem) == ("auth-rejected", "No.")


def test_a_run_that_waits_says_what_for_each_decision() -> None:
    pending: list[JsonValue] = [
        {"what": "answer", "step_id": "who", "question": "How many?"},
        {"what": "approval", "step_id": "sign", "tool": "pen"},
        {"what": "doubt", "step_id": "send", "tool": "mail"},
    ]
    elsewhere = (
        "with `minions inbox`, or with POST /api/v1/runs/run_1/decisions; then it continues."
    )
    text = AnswerText("run_1", None, "http://board/")
    event: Event = {
        "type": "run_waiting",
        "status": "needs_decision",
        "data": {"decisions": pending},
    }
    assert text.take(event).split("\n\n") == [
        "How many?",
        "The call of 'pen' in step 'sign' waits for approval.",
        "Step 'send' waits: whether 'mail' was called is in doubt.",
        f"This run waits for a person. Decide under http://board/#/runs/run_1, {elsewhere}",
    ]


@pytest.mark.parametrize(
    ("steps", "step"),
    [
        ("[{id: a, goal: Say it.}]", "a"),
        ("[{id: a, goal: Say it.}, {id: b, set: {n: 1}}]", None),
        ('[{id: a, goal: Say it.}, {id: b, set: {n: 1}}]\noutput: "{{ a }}"', "a"),
        ('[{id: a, goal: Say it.}]\noutput: "It is {{ a }}"', None),
        ("[{id: a, goal: Say it., output: {n: integer}}]", None),
        ("[{id: a, goal: Say it., loop: [1, 2]}]", None),
    ],
)
def test_the_answering_step_gives_its_text_as_the_output(
    tmp_path: Path, steps: str, step: str | None
) -> None:
    path = tmp_path / "says.yaml"
    path.write_text(f"id: says\nsteps: {steps}\n")
    assert answering_step(load(path)) == step
