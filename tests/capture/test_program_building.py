"""What stands for each value of a recorded call, in which steps, and what a person is asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from attrs import evolve

from minions.capture.alignment import LeftOut
from minions.capture.captured_program import JudgedNode, Program, ToolNode
from minions.capture.program_building import build_program
from minions.capture.traces import Trace, TracedCall, TracedText
from minions.contracts.tools import Effect, Reads, ToolSpec
from minions.data.json_values import JsonValue


def spec(name: str, effect: Effect, reads: Reads, **properties: JsonValue) -> ToolSpec:
    """A tool with these parameters."""
    parameters: dict[str, JsonValue] = {"type": "object", "properties": properties}
    return ToolSpec(name=name, effect=effect, reads=reads, parameters=parameters)


ONLY: JsonValue = {"const": "one of these words here"}
MODES: JsonValue = {"type": "string", "enum": ["fast", "slow"]}
LIMIT: JsonValue = {"type": "string", "default": "everything that there is to be had"}
SPECS = {
    each.name: each
    for each in (
        spec("look", Effect.PURE, Reads.TRUSTED, mode=MODES, limit=LIMIT),
        spec("list", Effect.PURE, Reads.TRUSTED),
        spec("browse", Effect.PURE, Reads.UNTRUSTED),
        spec("send", Effect.ONCE, Reads.TRUSTED, mode=MODES, limit=LIMIT, only=ONLY),
    )
}
"""`look` and `list` read what is our own, `browse` what strangers wrote, `send` changes something.
"""


def call(
    tool: str, result: JsonValue = None, *, answer: int = 0, **arguments: JsonValue
) -> TracedCall:
    """A recorded call; `answer` is the model's answer that asked for it, else one of its own."""
    return TracedCall(
        tool=tool, arguments=arguments, result=result, place="work", key="", answer=answer
    )


def trace(*calls: TracedCall, task: str = "Do it", output: JsonValue = None) -> Trace:
    """A run that made the calls."""
    return Trace(
        runs=("run_1",),
        task=(TracedText(text=task, before=0, place="message 1"),),
        inputs={},
        goal="",
        calls=tuple(
            evolve(each, key=str(at), answer=each.answer or at)
            for at, each in enumerate(calls, start=1)
        ),
        output=output,
    )


def built(
    *traces: Trace,
    accepts: bool = False,
    answers: Mapping[str, str] | None = None,
    before: Mapping[str, str] | None = None,
) -> Program:
    """The program of the traces."""
    return build_program(traces, SPECS, accepts=accepts, answers=answers, before=before)


def how(program: Program, place: str) -> tuple[str, str]:
    """Where the value of a place comes from, and its template."""
    return next((each.how, each.source) for each in program.evidence if each.place == place)


def why(program: Program, place: str) -> str:
    """Why the value of a place stands there."""
    return next(each.because for each in program.evidence if each.place == place)


def step(program: Program, name: str) -> ToolNode:
    """The step of this name that calls a tool."""
    return next(each for each in program.steps if isinstance(each, ToolNode) and each.id == name)


def names(program: Program) -> list[str]:
    """The steps, in their order."""
    return [each.id for each in program.steps]


def reasons(left: Sequence[LeftOut]) -> list[tuple[str, str]]:
    """The calls that are left out, each with its reason."""
    return [(each.call.tool, each.reason) for each in left]


PAGE: JsonValue = {"text": "Cheap lamps for you and all the others! Mail Eva at once"}
"""What a stranger wrote."""


# --- constants -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tool", "argument", "value", "because"),
    [
        ("send", "on", True, "a choice of few, the same in each run"),
        ("send", "on", None, "a choice of few, the same in each run"),
        ("send", "mode", "fast", "a choice of few, the same in each run"),
        ("send", "limit", "everything that there is to be had", "it is the default"),
        ("send", "only", "one of these words here", "a choice of few, the same in each run"),
        ("send", "count", 9, "a number that nothing known gives"),
        ("look", "count", 250, "a number that nothing known gives"),
        ("send", "text", "lamps", "the task or the recipe says it"),
        ("send", "text", "one two three", "nothing known has it"),
        ("send", "text", "one-two-three-four-five", "nothing known has it"),
        ("look", "text", "one two three four five six seven eight", "nothing known has it"),
        ("look", "tags", ["red", "blue"], "nothing known has it"),
    ],
)
def test_a_value_that_nothing_known_gives_is_a_constant_with_its_reason(
    tool: str, argument: str, value: JsonValue, because: str
) -> None:
    task = "Order lamps"
    made = evolve(call(tool, "ok"), arguments={argument: value})
    program = built(trace(made, call("send", "ok"), task=task))
    place = f"{tool}.{argument}.0" if isinstance(value, list) else f"{tool}.{argument}"
    assert (how(program, place)[0], why(program, place)) == ("constant", because)
    assert step(program, tool).params == {argument: value}


@pytest.mark.parametrize(
    ("tool", "value"),
    [
        ("send", 250),
        ("send", 2.5),
        ("send", "one two three four"),
        ("look", "one two three four five six seven eight nine"),
    ],
)
def test_what_a_model_made_up_is_a_judgement(tool: str, value: JsonValue) -> None:
    program = built(trace(call(tool, "ok", text=value), call("send", "ok")))
    assert how(program, f"{tool}.text") == ("judgement", f"decide_{tool}.text")


def test_words_after_something_was_read_are_a_judgement_and_one_word_is_none() -> None:
    program = built(trace(call("look", "fine"), call("send", "ok", text="All well", kind="note")))
    assert how(program, "send.text")[0] == "judgement"
    assert how(program, "send.kind") == ("constant", '"note"')


def test_truth_values_and_empty_ones_have_no_origin() -> None:
    held: dict[str, JsonValue] = {"on": True, "at": None, "text": ""}
    program = built(trace(call("look", held), evolve(call("send", "ok"), arguments=held)))
    assert [how(program, f"send.{name}")[0] for name in held] == ["constant"] * 3
    assert why(program, "send.text") == "nothing known has it"


def test_a_long_list_of_numbers_is_a_constant_as_a_whole() -> None:
    numbers: JsonValue = list(range(100, 121))
    program = built(trace(call("send", "ok", rows=numbers)))
    assert why(program, "send.rows") == "nothing known has it"
    assert step(program, "send").params == {"rows": numbers}
    few: JsonValue = [2] * 20
    assert how(built(trace(call("send", "ok", rows=few))), "send.rows.19") == ("constant", "2")


def test_what_one_run_repeats_or_one_of_several_did_is_not_the_same_in_several_runs() -> None:
    rows: JsonValue = [{"id": "A-17"}, {"id": "B-31"}]
    text = "some words that are the same"
    sent = [call("send", "ok", id=each, text=text) for each in ("A-17", "B-31")]
    assert how(built(trace(call("list", rows), *sent)), "send.text")[0] == "judgement"
    one = [trace(call("look", {"open": True}), call("send", "ok", text=text))]
    other = trace(call("look", {"open": False}))
    assert how(built(*one, other), "send.text")[0] == "judgement"


def test_words_that_one_of_two_tasks_says_are_no_constant() -> None:
    words = "all of it please"
    said = trace(call("look", {"open": True}), call("send", "ok", text=words), task=f"Note {words}")
    other = trace(call("look", {"open": False}))
    assert how(built(said, other), "send.text")[0] == "judgement"


def test_a_small_number_that_a_model_step_gave_is_a_constant() -> None:
    run = evolve(trace(call("send", "ok", count=3)), judged=({"count": 3},))
    assert how(built(run), "send.count") == ("constant", "3")


def test_the_same_value_in_several_runs_is_a_constant_and_another_is_none() -> None:
    runs = [
        trace(call("send", "ok", sum=250, text=text), output=text)
        for text in ("a word or two more", "others than these there")
    ]
    program = built(*runs)
    assert (how(program, "send.sum"), why(program, "send.sum")) == (
        ("constant", "250"),
        "the same in 2 runs",
    )
    assert how(program, "send.text")[0] == "judgement"


def test_what_a_model_step_gave_before_is_a_judgement_again() -> None:
    run = evolve(trace(call("send", "ok", kind="urgent")), judged=({"kind": "urgent"},))
    assert how(built(run), "send.kind")[0] == "judgement"
    assert how(built(run, evolve(run, judged=())), "send.kind")[0] == "constant"


def test_words_of_the_recipe_are_constants_only_where_each_trace_has_them() -> None:
    words = "please send all of it"
    run = trace(call("send", "ok", text=words))
    said = evolve(run, goal=f"Then {words} now")
    system = evolve(run, system=f"Always {words}!")
    for each in (said, system):
        assert how(built(each), "send.text")[0] == "constant"
    assert how(built(run), "send.text")[0] == "judgement"


# --- strangers -----------------------------------------------------------------------------------


def test_after_a_strangers_words_nothing_that_a_model_wrote_is_constant_in_an_effect() -> None:
    page = call("browse", PAGE)
    program = built(trace(page, call("send", "ok", to="Eva", text="Mail Eva", count=3)))
    assert how(program, "send.to")[0] == "judgement"
    assert how(program, "send.text")[0] == "judgement"
    assert how(program, "send.count") == ("constant", "3")
    own = built(trace(call("look", PAGE), call("send", "ok", to="Max")))
    assert how(own, "send.to") == ("constant", '"Max"')


def test_what_a_stranger_wrote_later_or_into_a_question_of_our_own_exposes_nothing() -> None:
    later = built(trace(call("send", "ok", to="Eva"), call("browse", PAGE), call("send", "ok")))
    assert how(later, "send.to") == ("constant", '"Eva"')
    question = built(trace(call("browse", PAGE), call("look", "x", at="Eva"), call("send", "ok")))
    assert how(question, "look.at") == ("constant", '"Eva"')
    together = [call("browse", PAGE, answer=1), call("send", "ok", answer=1, to="Eva")]
    assert how(built(trace(*together)), "send.to") == ("constant", '"Eva"')


def test_a_question_to_others_is_exposed_as_an_effect_is() -> None:
    program = built(trace(call("browse", PAGE), call("browse", "x", at="Eva"), call("send", "ok")))
    assert how(program, "browse_2.at")[0] == "judgement"


def test_a_stranger_who_says_the_same_in_each_run_makes_no_constant() -> None:
    def run(number: str, text: str) -> Trace:
        calls = [call("browse", PAGE), call("send", "ok", to="Eva", text=text, kind="note")]
        return trace(*calls, task=f"Look at {number}")

    program = built(run("A-17", "Mail A-17"), run("B-31", "Mail B-31"))
    assert how(program, "send.to")[0] == "judgement"
    assert how(program, "send.text")[0] == "judgement"
    assert how(program, "send.kind") == ("constant", '"note"')
    assert why(program, "send.kind") == "the same in 2 runs"


def test_a_stranger_who_was_read_in_one_run_alone_exposes_the_calls_of_that_run() -> None:
    calls = [call("look", "x"), call("browse", PAGE), call("send", "ok", to="Eva")]
    program = built(trace(call("look", "x"), call("send", "ok", to="Eva")), trace(*calls))
    assert how(program, "send.to")[0] == "judgement"
    moved = [call("send", "ok", to="Eva"), call("look", "y")]
    program = built(trace(*calls[1:], call("look", "y")), trace(*moved))
    assert how(program, "send.to")[0] == "judgement"


def test_our_own_words_and_those_of_later_are_no_strangers() -> None:
    def run(*calls: TracedCall) -> Trace:
        return trace(*calls, task="Look at A-17")

    sent = call("send", "ok", to="A-17", text="Mail A-17")
    other: JsonValue = {"text": "Nothing that anybody would want to read at all, be sure of it"}
    program = built(run(call("look", PAGE), call("browse", other), sent, call("browse", PAGE)))
    assert how(program, "send.text") == ("text", "Mail {{ inputs.to }}")


def test_a_tool_that_nobody_knows_says_a_strangers_words() -> None:
    program = built(trace(call("other", PAGE), call("send", "ok", to="Eva")))
    assert how(program, "send.to")[0] == "judgement"


def test_words_around_values_are_constant_unless_a_stranger_said_them() -> None:
    fine = trace(call("browse", PAGE), call("send", "ok", text="Re: A-17"), task="Look at A-17")
    assert how(built(fine), "send.text") == ("text", "Re: {{ inputs.text }}")
    told = trace(call("browse", PAGE), call("send", "ok", text="Mail A-17"), task="Look at A-17")
    assert how(built(told), "send.text")[0] == "judgement"
    both = trace(
        call("browse", PAGE), call("send", "ok", text="Re: Mail A-17"), task="Look at A-17"
    )
    assert how(built(both), "send.text")[0] == "judgement"
    task = "Mail what is known of A-17"
    said = trace(call("browse", PAGE), call("send", "ok", text="Mail A-17"), task=task)
    assert how(built(said), "send.text") == ("text", "Mail {{ inputs.text }}")
    later = trace(call("send", "ok", text="Mail A-17"), call("browse", PAGE), task="Look at A-17")
    assert how(built(later), "send.text") == ("text", "Mail {{ inputs.text }}")
    own = trace(call("look", PAGE), call("send", "ok", text="Mail A-17"), task="Look at A-17")
    assert how(built(own), "send.text") == ("text", "Mail {{ inputs.text }}")


def test_three_words_around_a_value_are_a_text_after_one_run() -> None:
    def sent(text: str) -> tuple[str, str]:
        return how(built(trace(call("send", "ok", text=text), task="Look at A-17")), "send.text")

    assert sent("It is for A-17") == ("text", "It is for {{ inputs.text }}")
    assert sent("It is now for A-17")[0] == "judgement"
    outputs = [
        trace(task="Look at A-17", output=each) for each in ("It is A-17", "So it is now A-17")
    ]
    assert how(built(outputs[0]), "output")[0] == "judgement"
    looked = [evolve(each, inputs={"id": "A-17"}) for each in outputs]
    assert [how(built(each), "output")[0] for each in looked] == ["text", "judgement"]


def test_many_words_around_a_value_are_a_judgement_after_one_run_and_a_text_after_two() -> None:
    def run(number: str) -> Trace:
        text = f"We have sent {number} to you"
        return trace(call("send", "ok", text=text), task=f"Look at {number}")

    assert how(built(run("A-17")), "send.text")[0] == "judgement"
    template = "We have sent {{ inputs.text }} to you"
    assert how(built(run("A-17"), run("B-31")), "send.text") == ("text", template)


def test_words_of_an_address_around_a_value_are_constant() -> None:
    url = "https://shop.example/all/of/the/orders/A-17"
    program = built(trace(call("send", "ok", url=url), task="Look at A-17"))
    assert how(program, "send.url") == (
        "text",
        "https://shop.example/all/of/the/orders/{{ inputs.url }}",
    )


# --- origins -------------------------------------------------------------------------------------

TWICE: JsonValue = {"first": "A-17", "newest": "A-17"}


def test_two_places_are_a_question_unless_one_is_accepted_or_answered() -> None:
    run = trace(call("look", TWICE), call("send", "ok", id="A-17"))
    program = built(run)
    (question,) = program.questions
    choices = ("{{ look.first }}", "{{ look.newest }}")
    assert (question.place, question.value, question.choices) == ("send.id", "A-17", choices)
    assert how(program, "send.id") == ("asked", "{{ look.first }}")
    assert why(program, "send.id") == "it may also be {{ look.newest }}"
    accepted = built(run, accepts=True)
    assert (accepted.questions, how(accepted, "send.id")[0]) == ((), "asked")
    answered = built(run, answers={"send.id": "{{ look.newest }}"})
    assert answered.questions == ()
    assert how(answered, "send.id") == ("chosen", "{{ look.newest }}")


def test_an_extended_recipe_keeps_its_choice_while_it_holds() -> None:
    run = trace(call("look", TWICE), call("send", "ok", id="A-17"))
    kept = built(run, before={"send.id": "{{ look.newest }}"})
    assert (kept.questions, how(kept, "send.id")) == ((), ("path", "{{ look.newest }}"))
    other = built(run, before={"send.id": "{{ look.oldest }}"})
    assert len(other.questions) == 1


def test_another_run_decides_between_two_places() -> None:
    other = trace(call("look", {"first": "B-31", "newest": "C-44"}), call("send", "ok", id="C-44"))
    program = built(trace(call("look", TWICE), call("send", "ok", id="A-17")), other)
    assert (program.questions, how(program, "send.id")) == ((), ("path", "{{ look.newest }}"))


def test_a_place_of_another_name_or_result_does_not_settle_a_question() -> None:
    other: JsonValue = {"first": "A-17", "newest": "A-17", "order": "B-31"}
    assert built(trace(call("look", other), call("send", "ok", order="A-17"))).questions
    two = [call("look", {"other": "A-17"}), call("list", {"order": "A-17"})]
    program = built(trace(*two, call("send", "ok", order="A-17")))
    (question,) = program.questions
    assert question.choices == ("{{ list.order }}", "{{ look.other }}")


def test_the_one_place_of_a_result_with_the_parameters_name_is_no_question() -> None:
    held: JsonValue = {"other": "A-17", "orderId": "A-17"}
    program = built(trace(call("look", held), call("send", "ok", order_id="A-17")))
    assert (program.questions, how(program, "send.order_id")[1]) == ((), "{{ look.orderId }}")
    both: JsonValue = {"order": "A-17", "orderId": "A-17"}
    assert built(trace(call("look", both), call("send", "ok", order_id="A-17"))).questions
    two = [call("look", {"orderId": "A-17"}), call("list", {"id": "A-17"})]
    assert built(trace(*two, call("send", "ok", order_id="A-17"))).questions


def test_an_item_of_the_loop_is_no_question_beside_another_value() -> None:
    rows: JsonValue = [{"id": "A-17"}, {"id": "B-31"}]
    calls = [call("send", "ok", id=each) for each in ("A-17", "B-31")]
    program = built(trace(call("list", rows), *calls))
    assert (program.questions, how(program, "send.id")) == ((), ("path", "{{ loop.item.id }}"))


def test_what_was_asked_for_in_the_same_answer_was_not_known() -> None:
    calls = [call("look", {"id": "A-17"}, answer=1), call("send", "ok", answer=1, id="A-17")]
    assert how(built(trace(*calls)), "send.id") == ("constant", '"A-17"')


def test_what_a_call_repeats_of_its_arguments_is_no_origin() -> None:
    echo = [call("look", {"id": "A-17", "size": "wide"}, id="A-17"), call("send", "ok", id="A-17")]
    program = built(trace(*echo))
    assert how(program, "send.id") == ("constant", '"A-17"')
    assert how(built(trace(*echo, task="Look at A-17")), "send.id")[1] == "{{ inputs.id }}"


def test_an_item_of_the_loop_beside_a_value_with_a_longer_path_is_no_question() -> None:
    rows: JsonValue = [{"id": each, "kind": "urgent"} for each in ("A-17", "B-31")]
    sent = [call("send", "ok", id=each, kind="urgent") for each in ("A-17", "B-31")]
    deep = call("look", {"first": {"kind": "urgent"}})
    program = built(trace(deep, call("list", rows), *sent))
    assert (program.questions, how(program, "send.kind")[1]) == ((), "{{ loop.item.kind }}")
    near = built(trace(call("look", {"kind": "urgent"}), call("list", rows), *sent))
    (question,) = near.questions
    assert question.choices == ("{{ look.kind }}", "{{ loop.item.kind }}")
    twice: JsonValue = [{"id": each, "a": "urgent", "b": "urgent"} for each in ("A-17", "B-31")]
    assert built(trace(call("list", twice), *sent)).questions


def test_the_evidence_says_whether_the_task_or_a_result_has_a_value_and_how_often() -> None:
    rows: JsonValue = [{"id": "A-17"}, {"id": "B-31"}]
    sent = [call("send", "ok", id=each, to="Z-9") for each in ("A-17", "B-31")]
    program = built(trace(call("list", rows), *sent, task="Tell Z-9"))
    assert why(program, "send.id") == "it has that value in 2 places"
    assert why(program, "send.to") == "the task says it in 2 places"
    one = built(trace(call("look", {"id": "A-17"}), call("send", "ok", id="A-17")))
    assert why(one, "send.id") == "it has that value"


def test_small_values_are_no_echo_and_words_within_an_address_are_one() -> None:
    small = [call("look", {"count": 3}, number=3), call("send", "ok", count=3)]
    assert how(built(trace(*small)), "send.count")[1] == "{{ look.count }}"
    url = "https://shop.example/orders/A-17"
    address = [call("list", {"id": "A-17"}), call("look", {"key": "A-17"}, url=url)]
    program = built(trace(*address, call("send", "ok", id="A-17")))
    assert (program.questions, how(program, "send.id")[1]) == ((), "{{ list.id }}")
    new = built(trace(call("look", {"key": "A-17"}, url=url), call("send", "ok", id="A-17")))
    assert how(new, "send.id")[1] == "{{ look.key }}"


def test_a_number_of_results_of_a_loop_is_that_of_its_items() -> None:
    rows: JsonValue = [{"id": "A-17"}, {"id": "B-31"}, {"id": "C-44"}]
    calls = [call("send", "ok", id=each) for each in ("A-17", "B-31", "C-44")]
    program = built(trace(call("list", rows), *calls, output={"count": 3}))
    assert (program.questions, how(program, "output.count")) == (
        (),
        ("computed", "{{ list | length }}"),
    )


# --- repetitions ---------------------------------------------------------------------------------


def test_asking_until_a_state_within_a_list_is_reached_reads_that_place() -> None:
    states = [call("look", {"jobs": [{"status": each}]}, id=5) for each in ("runs", "done")]
    program = built(trace(*states, call("send", "ok")))
    found = step(program, "look")
    assert (found.until, found.polls) == ("loop.last.jobs[0].status != 'done'", 2)


def test_calls_for_some_items_of_a_list_are_chosen_by_a_field() -> None:
    rows: JsonValue = [{"id": f"K-{n}", "open": n != 1, "at": f"2026-0{n + 1}"} for n in range(4)]
    calls = [call("send", "ok", id=f"K-{n}") for n in (0, 2, 3)]
    loop = step(built(trace(call("list", rows), *calls)), "send").loop
    assert loop is not None
    assert loop.source == "{{ list | selectattr('open', 'eq', true) | list }}"
    others = [call("send", "ok", id="K-1"), call("send", "ok", id="K-1x")]
    assert step(built(trace(call("list", rows), *others)), "send").loop is None


def test_pages_without_a_sign_of_the_last_one_are_a_problem() -> None:
    pages = [call("list", {"rows": [each]}, page=each) for each in (1, 2)]
    program = built(trace(*pages, call("send", "ok")))
    assert program.problems == ("nothing tells when the last page of 'list' is reached",)
    more = [call("list", {"rows": [1], "more": each < 2}, page=each) for each in (1, 2)]
    program = built(trace(*more, call("send", "ok")))
    found = step(program, "list")
    assert (program.problems, found.until) == ((), "loop.last.more")
    assert found.params == {"page": "{{ loop.index + 1 }}"}


# --- ways ----------------------------------------------------------------------------------------


def ways(*results: JsonValue, with_effect: Sequence[int] = (0,)) -> Program:
    """A program of traces with these results, of which some sent something."""
    return built(
        *(
            trace(
                call("look", result),
                *([call("send", "ok")] if at in with_effect else []),
                task=f"Look at N-{at}",
            )
            for at, result in enumerate(results)
        )
    )


def test_a_truth_value_or_a_state_tells_ways_apart() -> None:
    assert step(ways({"open": True}, {"open": False}), "send").when == "look.open"
    assert step(ways({"open": False}, {"open": True}), "send").when == "not look.open"
    states = ways({"status": "late"}, {"status": "fine"})
    assert step(states, "send").when == "look.status == 'late'"
    assert states.decisive == {"status"}
    several = ways({"kind": "a"}, {"kind": "b"}, {"kind": "c"}, with_effect=(0, 2))
    assert step(several, "send").when == "look.kind in ['a', 'c']"


def test_a_name_of_each_trace_tells_no_ways_apart_and_a_word_of_several_does() -> None:
    program = ways({"city": "Bern"}, {"city": "Zug"})
    assert step(program, "send").when == "decide_whether_send.needed"
    cities = ways({"city": "Bern"}, {"city": "Zug"}, {"city": "Bern"}, with_effect=(0, 2))
    assert step(cities, "send").when == "look.city == 'Bern'"


def test_what_does_not_tell_them_apart_in_each_trace_is_no_condition() -> None:
    program = ways({"open": True}, {"open": False}, {"open": True})
    assert step(program, "send").when == "decide_whether_send.needed"
    missing = ways({"open": True}, {"closed": True})
    assert step(missing, "send").when == "decide_whether_send.needed"
    (judged,) = (each for each in program.steps if isinstance(each, JudgedNode) and each.is_way)
    assert [each for (each,) in judged.answers] == [
        {"needed": True},
        {"needed": False},
        {"needed": False},
    ]


def test_two_conditions_are_a_question_and_the_better_kind_is_none() -> None:
    both = ways({"open": True, "late": True}, {"open": False, "late": False})
    (question,) = both.questions
    assert (question.place, question.choices) == ("send.when", ("look.open", "look.late"))
    mixed = ways({"status": "a", "open": True}, {"status": "b", "open": False})
    assert (mixed.questions, step(mixed, "send").when) == ((), "look.open")


def test_outputs_that_differ_by_way_are_a_choice() -> None:
    def run(*, is_open: bool, output: str) -> Trace:
        sent = [call("send", {"id": "R-1"})] if is_open else []
        return trace(call("look", {"open": is_open}), *sent, output=output)

    runs = [
        run(is_open=True, output="Sent."),
        run(is_open=False, output="Nothing."),
        run(is_open=True, output="Sent."),
        run(is_open=False, output="Nothing."),
    ]
    program = built(*runs)
    assert program.output == "{{ 'Sent.' if look.open else 'Nothing.' }}"


# --- steps ---------------------------------------------------------------------------------------


def test_a_question_that_nothing_reads_is_left_out_unless_it_may_have_decided() -> None:
    run = trace(call("look", "x"), call("send", "ok"), call("list", "y"))
    program = built(run, run)
    assert names(program) == ["look", "send"]
    assert reasons(program.left_out) == [("list", "nothing reads its result")] * 2


def test_an_argument_that_not_every_run_gave_is_a_problem() -> None:
    program = built(trace(call("send", "ok", a=1)), trace(call("send", "ok")))
    assert program.problems == ("send.a was given in some calls only: it is left out",)
    assert step(program, "send").params == {}


def test_a_model_judges_by_no_task_of_another_form() -> None:
    runs = [
        trace(call("send", "ok", text=f"{number} words of its own"), task=task)
        for number, task in (("two", "Do this"), ("ten", "Do that"))
    ]
    (problem,) = built(*runs).problems
    assert problem.startswith("the tasks differ in more than their inputs: 'Do this' and 'Do that'")
    assert built(runs[0]).problems == ()


def test_values_within_an_argument_have_fields_of_their_own_in_the_model_step() -> None:
    mail = {"b": "some words to be judged", "c": "and more of them here"}
    program = built(trace(call("send", "ok", a=dict(mail), a_b="words that are others again")))
    (judged,) = (each for each in program.steps if isinstance(each, JudgedNode))
    fields = [each.name for each in judged.fields]
    assert len(set(fields)) == 3
    assert judged.answers == (
        ({fields[0]: mail["b"], fields[1]: mail["c"], fields[2]: "words that are others again"},),
    )
    assert step(program, "send").params == {
        "a": {
            "b": f"{{{{ decide_send.{fields[0]} }}}}",
            "c": f"{{{{ decide_send.{fields[1]} }}}}",
        },
        "a_b": f"{{{{ decide_send.{fields[2]} }}}}",
    }


def test_a_model_step_reads_what_has_words_of_it_and_what_nothing_else_reads() -> None:
    program = built(
        trace(
            call("look", {"id": "A-17", "text": "The printer burns"}),
            call("list", {"rows": "none"}, id="A-17"),
            call("send", "ok", text="It burns since the early morning"),
        )
    )
    (judged,) = (each for each in program.steps if isinstance(each, JudgedNode))
    assert judged.reads == ("look", "list")
    late = built(trace(call("send", "ok", text="the first word of them"), call("look", "x")))
    (judged,) = (each for each in late.steps if isinstance(each, JudgedNode))
    assert judged.reads == ()
    assert why(late, "send.text") == "made of the task alone"
