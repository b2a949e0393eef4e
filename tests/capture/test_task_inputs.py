"""Inputs that stand for words of a task, and a task as a template over them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from minions.capture.alignment import Column, Group
from minions.capture.captured_program import InputMade
from minions.capture.known_runs import KnownRun, KnownRuns
from minions.capture.known_values import Values
from minions.capture.task_inputs import TaskInputs, inputs_of_task, templated_task
from minions.capture.traces import Trace, TracedAnswer, TracedCall, TracedText
from minions.data.json_values import JsonValue
from minions.data.schema import JsonSchema


def trace(
    task: str,
    *arguments: Mapping[str, JsonValue],
    inputs: Mapping[str, JsonValue] | None = None,
    answers: Sequence[TracedAnswer] = (),
    output: JsonValue = None,
    result: JsonValue = None,
) -> Trace:
    """A run with this task that called a tool once with each of the arguments."""
    return Trace(
        runs=("run_1",),
        task=(TracedText(text=task, before=0, place="message 1"),),
        inputs=inputs or {},
        goal="",
        calls=tuple(
            TracedCall(
                tool="act", arguments=each, result=result, place="work", key=str(at), answer=at + 1
            )
            for at, each in enumerate(arguments)
        ),
        answers=tuple(answers),
        output=output,
    )


def inputs_of(*traces: Trace) -> list[InputMade]:
    """The inputs that are made of the traces, call by call."""
    made = TaskInputs(KnownRuns(traces, {}), ())
    made.find(
        [
            Column(tool="act", groups=tuple(Group(tool="act", calls=(each,)) for each in together))
            for together in zip(*(each.calls for each in traces), strict=True)
        ]
    )
    return made.inputs


def values_of(*traces: Trace) -> dict[str, tuple[JsonValue, ...]]:
    """By name of an input its values."""
    return {each.name: each.values for each in inputs_of(*traces)}


@pytest.mark.parametrize(
    ("task", "value", "inputs"),
    [
        ("Look at A-17", "A-17", {"order": ("A-17",)}),
        ("Pay 21.5 back", 21.5, {"order": (21.5,)}),
        ("Pay 20 back", 20.0, {"order": (20.0,)}),
        ("Write to Eva Ost", "Eva Ost", {"order": ("Eva Ost",)}),
        ("Read in/may.txt", "in/may.txt", {"order": ("in/may.txt",)}),
        ("Look at A-17", "orders/A-17.txt", {"order": ("A-17",)}),
        ("Look at the orders", "orders", {}),
        ("Orders are late", "Orders", {}),
        ("Take 1 of them", 1, {}),
        ("Look at A-177", "A-17", {}),
        ("Look at it", "A-17", {}),
        ("Is it true?", True, {}),
        ("Pay  now", "  ", {}),
        ("Look at A-17", ["A-17", "B-31"], {"order": ("A-17",)}),
        ("Look at A-17 and B-31", ["A-17", "B-31"], {"order": ("A-17",), "order_2": ("B-31",)}),
    ],
)
def test_a_word_of_the_task_that_may_be_another_is_an_input(
    task: str, value: JsonValue, inputs: dict[str, tuple[JsonValue, ...]]
) -> None:
    found = values_of(trace(task, {"order": value}))
    found.pop("order_3", None)  # the list as a whole
    assert found == inputs


def test_a_list_of_words_of_the_task_is_an_input_of_its_own() -> None:
    found = values_of(trace("Look at A-17 and B-31", {"order": ["A-17", "B-31"]}))
    assert found["order_3"] == (["A-17", "B-31"],)


def test_words_that_differ_between_the_tasks_are_inputs() -> None:
    found = values_of(
        trace("Count the lamps", {"what": "lamps"}), trace("Count the chairs", {"what": "chairs"})
    )
    assert found == {"what": ("lamps", "chairs")}


def test_a_word_that_one_task_alone_says_is_no_input() -> None:
    found = values_of(
        trace("Count the lamps", {"what": "lamps"}), trace("Count them", {"what": "chairs"})
    )
    assert found == {}


def test_what_an_input_of_the_recipe_holds_is_no_other_input() -> None:
    one = trace("Look at A-17", {"order": "A-17"}, inputs={"given": "A-17"})
    assert values_of(one) == {}


def test_a_run_says_what_any_of_its_texts_says_in_words() -> None:
    run = KnownRun(trace("Look at A-17 for 20"), {}, {})
    more = TracedText(text="And at B-31", before=1, place="message 2")
    run = KnownRun(evolve(run.trace, task=(*run.trace.task, more)), {}, {})
    for said in ("A-17", "B-31", 20, 20.0):
        assert run.says(said)
    others: tuple[JsonValue, ...] = ("C-44", 2, 20.5, True, None, "", " ", ["A-17"], {"a": "A-17"})
    for other in others:
        assert not run.says(other)
    assert not KnownRun(trace("It is true, false, null, [] and {}"), {}, {}).says(True)
    assert not KnownRun(trace("It is [] here"), {}, {}).says([])


def test_one_word_is_one_input_in_whichever_calls_it_is() -> None:
    assert values_of(trace("Look at A-17", {"order": "A-17"}, {"key": "A-17"})) == {
        "order": ("A-17",)
    }


def test_inputs_have_names_that_neither_another_nor_the_recipe_has() -> None:
    words = ("B-31", "C-44", "D-58")
    one = trace(
        "Look at B-31, C-44 and D-58",
        *({"order": each} for each in words),
        inputs={"order": "X-1", "order_3": "X-3"},
    )
    assert values_of(one) == {"order_2": ("B-31",), "order_4": ("C-44",), "order_5": ("D-58",)}


def test_a_part_of_an_argument_has_the_name_of_the_field_that_has_it() -> None:
    one = trace("Look at A-17", {"url": "orders/A-17.txt"}, result={"orderId": "A-17"})
    assert values_of(one) == {"order_id": ("A-17",)}


def test_a_percentage_is_an_input_where_a_number_is_neither_said_nor_known() -> None:
    task = "Take 15 % off"
    assert values_of(trace(task, {"amount": 85.5})) == {"percent": (15,)}
    assert values_of(trace(task, {"amount": 85})) == {}
    assert values_of(trace(task, {"amount": 85.5}, result={"amount": 85.5})) == {}


def test_what_a_person_answered_is_an_input_with_the_name_of_the_step() -> None:
    answer = TracedAnswer(step_id="place", question="Where?", value="Zug", before=0)
    (made,) = inputs_of(trace("Go", {"to": "Zug"}, answers=[answer]))
    assert (made.name, made.values, made.is_answer) == ("place", ("Zug",), True)


def test_answers_are_no_inputs_where_other_questions_were_asked() -> None:
    answer = TracedAnswer(step_id="place", question="Where?", value="Zug", before=0)
    assert values_of(trace("Go", {"to": "Zug"}, answers=[answer]), trace("Go", {"to": "Zug"})) == {}


# --- the task as a template ----------------------------------------------------------------------


def test_longer_values_are_filled_in_before_those_within_them() -> None:
    template = templated_task("From Bern West to Bern", [("from", "Bern"), ("at", "Bern West")])
    assert template == "From {{ inputs.at }} to {{ inputs.from }}"


def test_a_value_within_a_word_is_no_value() -> None:
    assert templated_task("A-17 and A-177", [("id", "A-17")]) == "{{ inputs.id }} and A-177"


@pytest.mark.parametrize(
    ("template", "text", "inputs"),
    [
        ("Pay {{ inputs.id }} back", "Pay A-17 back", {"id": "A-17"}),
        ("Pay {{ inputs.id }}", "Pay A-17 at once ", {"id": "A-17 at once"}),
        ("Pay {{ inputs.sum }} now", "Pay 3.5 now", {"sum": 3.5}),
        ("Pay {{ inputs.count }} now", "Pay 3 now", {"count": 3}),
        ("Set it {{ inputs.on }}", "Set it true", {"on": True}),
        ("{{ inputs.id }} and {{ inputs.id }}", "A and A", {"id": "A"}),
        ("Look", "Look", {}),
        ("{{ '{{' }}{{ inputs.id }}", "{{A", {"id": "A"}),
        ("Pay {{ inputs.id }} back", "Pay A-17", None),
        ("Pay {{ inputs.id }} back", "Take A-17 back", None),
        ("Pay {{ inputs.id }} back", "Pay  back", None),
        ("Pay {{ inputs.id }} back", "Pay A-17 back, please", None),
        ("{{ inputs.id }} and {{ inputs.id }}", "A and B", None),
        ("{{ inputs.id }}{{ inputs.sum }}", "A3", None),
        ("{{ inputs.id | upper }} it", "A it", None),
        ("{{ inputs.id }} {{ run.id }}", "A run_1", None),
        ("Pay {{ inputs.sum }} now", "Pay much now", None),
        ("Pay {{ inputs.sum }} now", "Pay true now", None),
        ("Pay {{ inputs.sum }} now", 'Pay "3" now', None),
        ("Pay {{ inputs.sum }} now", "Pay [3] now", None),
        ("Pay {{ inputs.count }} now", "Pay 3.5 now", None),
        ("Pay {{ inputs.count }} now", "Pay 03 now", None),
        ("Pay {{ inputs.ids }} now", 'Pay ["A"] now', {"ids": ["A"]}),
        ("Pay {{ inputs.ids }} now", "Pay A now", None),
        ("Set it {{ inputs.on }}", "Set it 1", None),
        ("Look", "Look at it", None),
    ],
)
def test_the_inputs_of_a_task_are_read_by_its_template(
    template: str, text: str, inputs: dict[str, JsonValue] | None
) -> None:
    schemas: dict[str, JsonSchema] = {
        "id": {"type": "string"},
        "sum": {"type": "number"},
        "count": {"type": "integer"},
        "on": {"type": "boolean"},
        "ids": {"type": "array"},
    }
    assert inputs_of_task(template, text, schemas) == inputs


WORDS = st.text("ab1 .{}%'\n", max_size=6)
PAIRS: st.SearchStrategy[tuple[JsonValue, JsonValue]] = st.one_of(
    [
        st.tuples(each, each)
        for each in (
            st.text("abAB1.-/ {}'", min_size=1, max_size=5),
            st.integers(-99, 999),
            st.floats(-99, 99, allow_nan=False),
            st.booleans(),
        )
    ]
)
"""Values of one type: of a recorded run, and of another one."""


def schema_for(value: JsonValue) -> JsonSchema:
    kinds = {bool: "boolean", int: "integer", float: "number"}
    return {"type": kinds.get(type(value), "string")}


@given(
    task=st.lists(st.tuples(WORDS, st.sampled_from(["one", "two"])), max_size=3),
    end=WORDS,
    pairs=st.fixed_dictionaries({"one": PAIRS, "two": PAIRS}),
)
def test_inputs_that_are_read_from_a_task_give_the_task_again(
    task: list[tuple[str, str]], end: str, pairs: dict[str, tuple[JsonValue, JsonValue]]
) -> None:
    def fill(template: str, inputs: dict[str, JsonValue]) -> str:
        return str(Values().give(f"{template}!", {"inputs": inputs}))[:-1]

    recorded, others = ({name: each[at] for name, each in pairs.items()} for at in (0, 1))
    text = "".join(f"{words}{fill(f'{{{{ inputs.{name} }}}}', recorded)}" for words, name in task)
    template = templated_task(f"{text}{end}", list(recorded.items()))
    assert fill(template, recorded) == f"{text}{end}"
    schemas = {name: schema_for(value) for name, value in recorded.items()}
    for inputs in (recorded, others):
        told = fill(template, inputs)
        found = inputs_of_task(template, told, schemas)
        if found is not None:
            assert fill(template.strip(), found) == told.strip()
