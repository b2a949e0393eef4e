"""`make quality`: its questions are sound, what is right is counted, and the page says it."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import pytest
from aiohttp import web
from attrs import evolve

from benchmarks.counting_proxy import counting_proxy
from benchmarks.quality.__main__ import (
    Measured,
    Options,
    Tasks,
    chosen_tasks,
    measure,
    measure_levers,
    read_options,
)
from benchmarks.quality.arms import arms_at
from benchmarks.quality.function_calls import Call, CallQuestion, changed_calls, right_calls
from benchmarks.quality.levers import LEVERS
from benchmarks.quality.page import (
    Row,
    Setting,
    levers_section,
    page,
    read_rows,
    with_sections,
    write_rows,
)
from benchmarks.quality.tasks import (
    FieldTask,
    field_tasks,
    loops,
    same,
    schema_tasks,
    templated_texts,
    word_problems,
)
from minions.contracts.model_profiles import Feature, ModelProfile, Support
from minions.data.errors import ToolError
from minions.data.json_values import JsonValue
from minions.data.schema import SchemaValidator

TEXTS = field_tasks()
NUMBERS = {
    "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8,
    "nine": 9, "ten": 10, "eleven": 11, "twelve": 12, "fifteen": 15, "sixteen": 16, "twenty": 20,
    "alone": 1, "dozen": 12, "sixty": 60,
}  # fmt: skip


# --- the questions ------------------------------------------------------------------------------


def test_there_are_twenty_texts_of_each_of_ten_kinds_half_of_them_held_out() -> None:
    counts = Counter((each.question.group, each.part) for each in TEXTS)
    assert len(TEXTS) == 200
    assert len(counts) == 20
    assert set(counts.values()) == {10}


def test_no_text_stands_twice_so_that_none_that_is_held_out_is_known() -> None:
    words = [" ".join(re.findall(r"\w+", each.question.text.lower())) for each in TEXTS]
    assert len(set(words)) == len(words)
    for at, one in enumerate(words):
        for other in words[:at]:
            common = set(one.split()) & set(other.split())
            assert len(common) < 0.6 * len(set(one.split())), (one, other)


@pytest.mark.parametrize("task", TEXTS, ids=lambda task: task.question.id)
def test_every_value_stands_in_its_text_or_has_evidence_there(task: FieldTask) -> None:
    question, text = task.question, task.question.text
    assert question.right is not None
    assert question.is_valid(dict(question.right))
    evidence = iter(task.evidence)
    for name, value in question.right.items():
        schema = properties_of(question.schema)[name]
        if isinstance(value, bool) or "enum" in schema:
            words = next(evidence)
            assert words in text or (words == "-" and value is False), words
        elif isinstance(value, int):
            said = re.findall(r"\d+|[a-z]+", text.lower())
            assert str(value) in said or value in [NUMBERS.get(each) for each in said], value
        else:
            for part in value if isinstance(value, list) else [value]:
                assert str(part) in text, part
    assert next(evidence, None) is None


def properties_of(schema: Mapping[str, JsonValue]) -> Mapping[str, Mapping[str, JsonValue]]:
    properties = schema["properties"]
    assert isinstance(properties, dict)
    return properties


def test_every_value_of_an_enumeration_is_right_somewhere_in_both_halves() -> None:
    for part in ("development", "held-out"):
        tasks = [each.question for each in TEXTS if each.part == part]
        for each in tasks:
            for name, schema in properties_of(each.schema).items():
                listed = schema.get("enum", [True, False] if schema["type"] == "boolean" else [])
                right = {
                    str((other.right or {}).get(name))
                    for other in tasks
                    if other.group == each.group
                }
                assert isinstance(listed, list)
                assert {*map(str, listed)} - right == set(), (each.group, name)


def test_schemas_are_valid_and_hold_something_back() -> None:
    tasks = schema_tasks()
    assert len({each.id for each in tasks}) == len(tasks) == 36
    for each in tasks:
        assert SchemaValidator(each.schema).errors("text"), each.id
        assert each.score(None).right == 0


def test_templated_texts_hold_the_values_of_their_fields_and_fit_their_schemas() -> None:
    """A-180."""
    texts = templated_texts()
    assert texts == templated_texts()
    assert len({each.text for each in texts}) == len({each.id for each in texts}) == 100
    for each in texts:
        assert each.right is not None
        assert each.is_valid({**each.right}), each.id
        assert each.score({**each.right}).right == len(each.right)
        for value in each.right.values():
            for word in value if isinstance(value, list) else [value]:
                assert (
                    isinstance(word, bool)
                    or f"{word}" in each.text.lower()
                    or (f"{word}" in each.text)
                ), (each.text, word)


def test_word_problems_are_made_by_a_seed_and_have_no_negative_answer() -> None:
    problems = word_problems("held-out")
    assert problems == word_problems("held-out")
    both = [*problems, *word_problems("development")]
    assert len({each.text for each in both}) == len({each.id for each in both}) == 112
    assert len(problems) == 56
    assert problems[0].text.startswith("4 crates hold 68 bottles each. 6 bottles break")
    assert problems[0].right == {"answer": 4 * 68 - 6}
    assert all(int(str((each.right or {})["answer"])) > 0 for each in both)


def test_each_loop_leads_from_the_place_of_its_question_to_its_word() -> None:
    """A-180."""
    halves = Counter(each.part for each in loops())
    assert halves == {"development": 24, "held-out": 24}
    for loop in loops():
        (name,) = [each for each in loop.places if f" {each} " in loop.text.replace(",", " ")]
        steps = 1
        while named := [each for each in loop.places if f" {each}." in loop.places[name]]:
            (name,), steps = named, steps + 1
        assert (steps, loop.word in loop.places[name]) == (loop.hops, True)


def test_what_the_other_tools_of_a_loop_give_leads_nowhere() -> None:
    loop = loops()[3]
    (needed, _, parameter), (other, _, _), *_ = loop.tools
    first = next(iter(loop.places))
    assert loop.told(needed, {parameter: first.upper()}) == loop.places[first]
    assert loop.told(other, {parameter: first}) == "It has nothing to do with it."
    with pytest.raises(ToolError, match="There is no room 'nowhere'"):
        loop.told(needed, {parameter: "nowhere"})


def test_case_articles_marks_and_the_order_of_a_list_do_not_count_but_types_do() -> None:
    assert same("The  lamp.", "lamp")
    assert same(["b", "A"], ["a", "b"])
    assert not same(["a", "a"], ["a"])
    assert not same("3", 3)
    assert not same(1, True)
    assert not same(None, "lamp")


# --- calls ----------------------------------------------------------------------------------------

PARAMETERS = {
    "type": "dict",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "share": {"type": "float"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "place": {"type": "dict", "properties": {"x": {"type": "integer"}}},
    },
    "required": ["city"],
}
QUESTION = CallQuestion(
    id="one",
    group="simple_python",
    text="How is the weather in New York?",
    functions=[{"name": "weather.get", "description": "Weather.", "parameters": PARAMETERS}],
    truth=[
        {
            "weather.get": {
                "city": ["New York", "NYC"],
                "days": [3, ""],
                "share": [2.0, ""],
                "tags": [["a b"], ""],
                "place": [{"x": [1, 2]}, ""],
            }
        }
    ],
)
NOTHING = CallQuestion(
    id="none", group="irrelevance", text="Sing!", functions=QUESTION.functions, truth=[]
)


@pytest.mark.parametrize(
    ("arguments", "is_right"),
    [
        ({"city": "new york"}, True),
        ({"city": "New-York.", "days": 3}, True),
        ({"city": "NYC", "share": 2}, True),
        ({"city": "NYC", "tags": ["A b"]}, True),
        ({"city": "NYC", "place": {"x": 2}}, True),
        ({}, False),
        ({"city": "Boston"}, False),
        ({"city": "NYC", "days": "3"}, False),
        ({"city": "NYC", "days": 4}, False),
        ({"city": "NYC", "days": True}, False),
        ({"city": "NYC", "tags": ["a b", "c"]}, False),
        ({"city": "NYC", "place": {"x": 3}}, False),
        ({"city": "NYC", "place": {}}, False),
        ({"city": "NYC", "more": 1}, False),
    ],
)
def test_a_call_is_right_by_its_types_and_values(
    arguments: dict[str, JsonValue], is_right: bool
) -> None:
    assert QUESTION.is_right([Call("weather_get", arguments)]) is is_right


def test_calls_are_right_in_any_order_each_once_and_none_where_none_is() -> None:
    two = CallQuestion(
        id="two",
        group="parallel",
        text="",
        functions=QUESTION.functions,
        truth=[{"weather.get": {"city": ["Rome"]}}, {"weather.get": {"city": ["Oslo"]}}],
    )
    rome, oslo = Call("weather_get", {"city": "Rome"}), Call("weather_get", {"city": "Oslo"})
    assert right_calls(two) == [rome, oslo]
    assert two.is_right([oslo, rome])
    assert not two.is_right([rome, rome])
    assert not two.is_right([rome])
    assert not two.is_right([rome, oslo, rome])
    twice = evolve(two, truth=[two.truth[0], two.truth[0]])
    assert twice.is_right([rome, rome])
    assert not twice.is_right([rome, oslo])
    assert NOTHING.is_right([])
    assert not NOTHING.is_right([rome])
    assert not QUESTION.is_right([Call("weather.get", {"city": "NYC"})])  # no server takes a dot


def test_of_the_changed_calls_some_are_right_and_most_are_not() -> None:
    verdicts = Counter(QUESTION.is_right(each) for each in changed_calls(QUESTION))
    assert verdicts[True] >= 5
    assert verdicts[False] >= 30


# --- the harness ----------------------------------------------------------------------------------

Reply = Callable[[Mapping[str, object]], dict[str, object]]


@asynccontextmanager
async def model_server(reply: Reply) -> AsyncIterator[str]:
    """A server whose messages are those of `reply`; `logprobs` stand beside them."""

    async def answer(request: web.Request) -> web.Response:
        message = {"role": "assistant", "content": None, **reply(json.loads(await request.read()))}
        usage = {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12}
        told = message.pop("logprobs", None)
        choice = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": told}
        body = {"id": "1", "object": "chat.completion", "created": 0, "model": "m", "usage": usage}
        return web.json_response({**body, "choices": [choice]})

    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    finally:
        await runner.cleanup()


async def measured(
    reply: Reply,
    tasks: Tasks,
    tools: Support = Support.BINDS,
    ask: Callable[..., Awaitable[Measured]] = measure,
) -> Measured:
    features = {Feature.JSON_SCHEMA: Support.BINDS, Feature.TOOLS: tools}
    now = datetime(2026, 1, 1, tzinfo=UTC)
    profile = ModelProfile(base_url="", model="m", measured_at=now, features=features)
    async with (
        model_server(reply) as base_url,
        counting_proxy(base_url) as counted,
        arms_at(counted.base_url, "m", profile, None) as arms,
    ):
        return await ask(tasks, arms, counted, lambda _: None)


def rights(found: Measured) -> dict[str, int]:
    counted: Counter[str] = Counter()
    for each in found.rows:
        counted[each.arm] += each.right
    return dict(counted)


def tool_call(name: str, arguments: Mapping[str, object]) -> dict[str, object]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"tool_calls": [{"id": "c", "type": "function", "function": function}]}


async def test_each_arm_gets_what_the_model_knows_and_no_more() -> None:
    """A-180."""
    asked = [each.question for each in TEXTS if each.question.id in ("mail-1", "trip-2")]
    known = {**(asked[0].right or {}), "wants": "payment"}

    def reply(request: Mapping[str, object]) -> dict[str, object]:
        said = json.dumps(request)
        answer = known if "Marek" in said else dict(asked[1].right or {})
        return (
            tool_call("answer", answer) if "tools" in request else {"content": json.dumps(answer)}
        )

    found = await measured(reply, Tasks(questions={"fields": asked}, calls=[], loops=[]))
    of = sum(len(each.right or {}) for each in asked)
    assert set(rights(found).values()) == {of - 1}
    assert rights(found).keys() == {
        "Minions",
        "SDK, schema",
        "SDK, tools=",
        "SDK, read out of text",
    }
    assert {(each.requests, each.input_tokens, each.failure) for each in found.rows} == {
        (1, 10, None)
    }


async def test_an_arm_without_an_answer_says_so_and_has_nothing_right() -> None:
    asked = [TEXTS[0].question]
    found = await measured(
        lambda _: {"content": "I do not know."},
        Tasks(questions={"fields": asked}, calls=[], loops=[]),
    )
    assert set(rights(found).values()) == {0}
    assert all(each.failure for each in found.rows)
    assert {each.of for each in found.rows} == {3}


async def test_examples_are_of_the_other_half_and_the_same_by_hand() -> None:
    """A-180: four of them, as turns before the question."""
    (asked,) = [each.question for each in TEXTS if each.question.id == "mail-11"]
    known = [each.question for each in TEXTS if each.question.group == "mail"][:10]
    seen: list[list[str]] = []

    def reply(request: Mapping[str, Any]) -> dict[str, object]:
        seen.append([each["content"] for each in request["messages"] if each["role"] == "user"])
        forms.append(json.dumps(request["response_format"]))
        return {"content": json.dumps(asked.right)}

    forms: list[str] = []
    tasks = Tasks(questions={}, calls=[], loops=[], alike=[(asked, known)])
    found = await measured(reply, tasks)
    assert [each.right for each in found.rows] == [3, 3, 3, 3]
    first = [*(each.text for each in known[:4]), asked.text]
    assert seen == [first, first, seen[2], first]
    assert len(seen[2]) == 5
    assert set(seen[2][:-1]) <= {each.text for each in known}
    assert ["Nadia" in each for each in forms] == [False, True, False, False]


async def test_answers_are_counted_by_how_sure_the_model_was_of_them() -> None:
    """A-180: the page has them in fifths, and what is right of the surer ones."""
    asked = [each.question for each in TEXTS if each.question.group == "mail"][:10]

    def reply(request: Mapping[str, object]) -> dict[str, object]:
        said = json.dumps(request, ensure_ascii=False)
        at = next(
            n
            for n, each in enumerate(asked)
            if json.dumps(each.text, ensure_ascii=False)[1:-1] in said
        )
        right = dict(asked[at].right or {})
        text = json.dumps(right if at >= 6 else {**right, "person": "Nobody"})
        tokens = [{"token": text, "logprob": math.log((at + 1) / 10)}]
        return {"content": text, "logprobs": {"content": tokens} if at else None}

    found = await measured(reply, Tasks(questions={}, calls=[], loops=[], judged=asked))
    told = [each.confidence for each in found.rows]
    assert told[0] is None
    assert [round(each or 0, 6) for each in told[1:]] == [n / 10 for n in range(2, 11)]
    table = page(read_rows(write_rows(found.rows)), SETTING)
    assert "| fifth 1, the least sure | 0.20 to 0.20 | 67%" in table
    assert "| fifth 5, the most sure | 0.90 to 1.00 | 100%" in table
    assert "Without an answer whose confidence is known: 1." in table


async def test_calls_are_counted_by_each_way_to_ask_for_them() -> None:
    """A-180."""
    call = {"name": "weather_get", "arguments": {"city": "NYC"}}

    def reply(request: Mapping[str, object]) -> dict[str, object]:
        said = json.dumps(request)
        if "Sing!" in said:
            return {"content": '{"calls": []}'}
        if '"calls"' in said or '\\"calls\\"' in said:
            return {"content": json.dumps({"calls": [call]})}
        return tool_call("weather_get", {"city": "NYC"})

    found = await measured(reply, Tasks(questions={}, calls=[QUESTION, NOTHING], loops=[]))
    assert rights(found) == {
        "Minions": 2,
        "SDK, tools=": 2,
        "SDK, schema of calls": 2,
        "SDK, read out of text": 2,
    }
    assert {each for each, _ in found.calls} == {"one", "none"}


async def test_a_model_that_is_shown_no_tools_is_asked_for_calls_in_bound_questions() -> None:
    def reply(request: Mapping[str, object]) -> dict[str, object]:
        assert "tools" not in request or "Which tool" not in json.dumps(request)
        if "response_format" not in request:
            return {"content": "I do not know."}
        if "Which tool answers" in json.dumps(request):
            is_about = "Sing!" not in json.dumps(request)
            return {"content": json.dumps({"tool": "weather_get" if is_about else "none"})}
        return {"content": '{"city": "NYC"}'}

    tasks = Tasks(questions={}, calls=[QUESTION, NOTHING], loops=[])
    found = await measured(reply, tasks, Support.IGNORES)
    assert rights(found)["Minions"] == 2
    assert rights(found)["SDK, tools="] == 1


def asks_for_word(request: Mapping[str, object]) -> bool:
    form = json.dumps(request.get("response_format"))
    return '"word"' in form and '"tool"' not in form


async def test_a_loop_is_walked_to_its_end_and_one_that_is_guessed_is_wrong() -> None:
    loop = next(each for each in loops() if each.hops == 4 and len(each.tools) > 1)

    def reply(request: Mapping[str, object]) -> dict[str, object]:
        said = json.dumps(request["messages"])
        is_step = asks_for_word(request)
        if is_step and loop.word not in said:
            told = re.findall(r"next room is (\w+)", said) or re.findall(r"the room (\w+),", said)
            return {"content": json.dumps({"word": told[-1]})}
        if is_step:
            return {"content": json.dumps({"word": loop.word})}
        if loop.word in said:
            answer = f"It is {loop.word}."
            is_bound = "response_format" in request
            return {"content": json.dumps({"answer": answer}) if is_bound else answer}
        named = re.findall(r"next room is (\w+)", said) or re.findall(r"the room (\w+),", said)
        if "response_format" in request:
            call = {"tool": "look", "arguments": {"room": named[-1]}}
            return {"content": json.dumps(call)}
        return tool_call("look", {"room": named[-1]})

    def guess(request: Mapping[str, object]) -> dict[str, object]:
        text = "It is amber."
        if asks_for_word(request):
            said = json.dumps(request["messages"])
            text = "Answer" if "Answer with" in said else "room"
            return {"content": json.dumps({"word": text})}
        return {"content": json.dumps({"answer": text}) if "response_format" in request else text}

    tasks = Tasks(questions={}, calls=[], loops=[loop])
    arms = ("Minions", "SDK, tools=", "SDK, schema of a call", "Minions, in steps")
    assert rights(await measured(reply, tasks)) == dict.fromkeys(arms, 1)
    assert rights(await measured(guess, tasks)) == dict.fromkeys(arms, 0)


async def test_a_loop_without_an_end_is_told_and_is_no_answer() -> None:
    loop = next(each for each in loops() if each.hops == 4)

    def stay(request: Mapping[str, object]) -> dict[str, object]:
        call = {"tool": "look", "arguments": {"room": "nowhere"}}
        if "response_format" in request:
            return {"content": json.dumps(call)}
        return tool_call("look", {"room": "nowhere"})

    found = await measured(stay, Tasks(questions={}, calls=[], loops=[loop]))
    assert all(each.failure for each in found.rows)


async def test_a_recipe_computes_what_a_model_reads() -> None:
    """A-180."""
    problem = word_problems("held-out")[0]  # 4 * 68 - 6

    def reply(request: Mapping[str, object]) -> dict[str, object]:
        if "operation" in json.dumps(request):
            read = {"first": 4, "operation": "*", "second": 68, "then": "-", "third": 6}
            return {"content": json.dumps(read)}
        if '"lines"' in json.dumps(request["response_format"]):
            return {"content": json.dumps({"lines": ["4 * 68 = 272", "272 - 6 = 266"]})}
        is_worked_out = "272 - 6 = 266" in json.dumps(request["messages"])
        return {"content": json.dumps({"answer": 266 if is_worked_out else 0})}

    async with model_server(reply) as base_url, counting_proxy(base_url) as counted:
        now = datetime(2026, 1, 1, tzinfo=UTC)
        features = {Feature.JSON_SCHEMA: Support.BINDS}
        profile = ModelProfile(base_url="", model="m", measured_at=now, features=features)
        async with arms_at(counted.base_url, "m", profile, None) as arms:
            found = {name: await way(problem) for name, way in arms.problems.items()}
    right = {"answer": 266}
    assert found == {"Minions, in steps": right, "Minions, computed": right}


async def test_levers_are_asked_about_one_by_one_none_and_all() -> None:
    asked: list[str] = []

    def reply(request: Mapping[str, object]) -> dict[str, object]:
        said = json.dumps(request)
        if "response_format" not in request:
            return {"content": "I do not know."}
        if "Which tool answers" not in said:
            return {"content": '{"city": "NYC"}'}
        asked.append(said)
        return {"content": '{"tool": "weather_get"}'}

    tasks = Tasks(questions={}, calls=[QUESTION], loops=[])
    found = await measured(reply, tasks, Support.IGNORES, ask=measure_levers)
    first, *others = [each.name for each in LEVERS["calls"]]
    assert rights(found) == {
        "none": 0,
        first: 1,
        **{f"the first, and {name}": 1 for name in others},
        "all": 1,
    }
    assert ['"none"]' in each for each in asked] == [False, True, False, False, True]
    assert ['\\"city\\"' in each for each in asked] == [True, True, False, True, False]


# --- options and page -----------------------------------------------------------------------------


def test_a_sample_is_the_same_each_time_and_takes_as_many_of_each_group() -> None:
    """A-180."""
    options = Options(parts=("fields", "problems"), tasks=3)
    tasks = chosen_tasks(options, None)
    assert tasks == chosen_tasks(options, None)
    assert len(tasks.questions["fields"]) == 30
    assert len(tasks.questions["problems"]) == 3
    assert tasks.loops == []
    held_out = {each.question.id for each in TEXTS if each.part == "held-out"}
    assert {each.id for each in tasks.questions["fields"]} <= held_out


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"QUALITY_TASK": "3"}, "QUALITY_TASK is no setting"),
        ({"QUALITY_TASKS": "0"}, "not a whole number from 1"),
        ({"QUALITY_ONLY": "fields,x"}, "parts are fields, templated"),
        ({"QUALITY_PART": "all"}, "neither 'held-out' nor"),
        ({"QUALITY_MODEL": "m"}, "go together"),
        ({"QUALITY_ABLATION": "yes"}, "not '1'"),
        ({"QUALITY_ABLATION": "1", "QUALITY_ONLY": "loops"}, "levers for calls and fields"),
        ({"QUALITY_ABLATION": "1", "QUALITY_PART": "held-out"}, "not held out"),
    ],
)
def test_a_wrong_setting_ends_the_command_with_what_it_may_be(
    environ: dict[str, str], words: str
) -> None:
    with pytest.raises(SystemExit, match=words):
        read_options(environ)


def test_the_command_on_the_page_repeats_the_settings_without_the_key() -> None:
    options = read_options(
        {
            "QUALITY_MODEL": "m",
            "QUALITY_BASE_URL": "http://127.0.0.1:1/v1",
            "QUALITY_API_KEY": "k",
            "QUALITY_TASKS": "5",
        }
    )
    assert options.api_key == "k"
    assert options.command == (
        "make quality QUALITY_MODEL=m QUALITY_BASE_URL=http://127.0.0.1:1/v1 QUALITY_TASKS=5"
    )


SETTING = Setting(command="make quality", model="m", peers="others 1.0", cross_check="Checked.")


def rows(arm: str, right: Sequence[int], part: str = "schemas") -> list[Row]:
    return [
        Row(
            part=part,
            group="g",
            question=f"q{at}",
            arm=arm,
            right=each,
            of=1,
            failure=None if each else "none",
            requests=1,
            input_tokens=10,
            output_tokens=2,
            seconds=0.5,
        )
        for at, each in enumerate(right)
    ]


def test_the_page_has_intervals_of_shares_and_of_pairs() -> None:
    """A-180."""
    ours, theirs = [1] * 8 + [0] * 2, [1] * 5 + [0] * 5
    text = page([*rows("Minions", ours), *rows("SDK, schema", theirs)], SETTING)
    # Wilson's interval of 8 of 10 is 0.490 to 0.943, that of 5 of 10 is 0.237 to 0.763
    assert "| Minions | 80% (49% to 94%) | 8 of 10 |  | 2 | 1.0 | 10 | 2 | 15 | 0.50 |" in text
    # of pairs with three of one kind and none of the other, by Newcombe's tenth method
    assert "| SDK, schema | 50% (24% to 76%) | 5 of 10 | +30 (-5 to +57) | 5 |" in text
    assert "Minions: 1.60 × the best of the others (SDK, schema); level, +30 (-5 to +57)" in text
    assert "`make quality QUALITY_ONLY=schemas`" in text


def test_a_lead_whose_interval_holds_nought_is_none() -> None:
    many = page([*rows("Minions", [1] * 90 + [0] * 10), *rows("SDK", [1] * 60 + [0] * 40)], SETTING)
    few = page([*rows("Minions", [1, 1, 0]), *rows("SDK", [1, 0, 0])], SETTING)
    behind = page([*rows("Minions", [0] * 40), *rows("SDK", [1] * 20 + [0] * 20)], SETTING)
    assert "(SDK); ahead, +30" in many
    assert "(SDK); level, +33" in few
    assert "(SDK); behind, -50" in behind
    neither = page([*rows("Minions", [0]), *rows("SDK", [0])], SETTING)
    assert "Minions: +0 (-79 to +79) points; the others have nothing right." in neither


def test_arms_that_were_asked_other_questions_are_not_compared() -> None:
    with pytest.raises(ValueError, match="not asked the same questions"):
        page([*rows("Minions", [1, 0]), *rows("SDK", [1])], SETTING)


def test_calling_nothing_is_counted_apart_from_right_calls() -> None:
    nothing = [evolve(each, group="irrelevance") for each in rows("Minions", [1], "calls")]
    text = page([*rows("Minions", [0], "calls"), *nothing], SETTING)
    right, _, none = text.partition("Where no call is right:")
    assert "| Minions | 0% (0% to 79%) | 0 of 1 |" in right
    assert "| Minions | 100% (21% to 100%) | 1 of 1 |" in none
    assert "Checked." in none


def test_rows_are_read_as_they_were_written() -> None:
    written = rows("Minions", [1, 0])
    assert read_rows(write_rows(written)) == written


def test_a_page_that_is_written_again_keeps_its_section_about_levers() -> None:
    section = levers_section(
        [*rows("none", [0, 1], "fields"), *rows("all", [1, 1], "fields")], "make quality X=1"
    )
    assert "| all | 100% (34% to 100%) | +50 (" in section
    assert "`make quality X=1` asks again" in section
    bare = page(rows("Minions", [1]), SETTING)
    whole = with_sections(bare, section)
    assert section in whole
    assert whole.index("## Schemas") < whole.index("## Levers") < whole.index("## Injections")
    assert with_sections(whole, bare) == with_sections(whole, section) == whole


def test_each_goal_stands_beside_what_was_measured_last() -> None:
    def asked(ours: list[int], part: str = "calls") -> str:
        return page([*rows("Minions", ours, part), *rows("SDK", [0, 1], part)], SETTING)

    whole = with_sections("", asked([1, 1]))
    row = "| Function calls | ≥ 1.25 × | "
    assert re.search(re.escape(f"{row}2.00 ×; level, +50 (") + ".*yes, but level", whole)
    assert whole.index("## Goals") < whole.index("## Function calls")
    again = with_sections(whole, asked([0, 1]))
    assert f"{row}1.00 ×; level, +0 (" in again
    assert again.count("| **no** |") == again.count("## Goals") == 1
    assert "## Goals" not in with_sections("", page(rows("Minions", [1], "calls"), SETTING))


@pytest.mark.parametrize(
    ("part", "row"),
    [
        (
            "fields",
            "| Both, whole intervals | > 0 points on ≥ 200 texts that decided nothing | +50 (",
        ),
        ("fields", "| Valid outputs | ≥ 99.5 % | 3 of 4 | **no** |"),
        ("fields", "| Tokens per right field | fewest | 16, 48 by the thriftiest of the others |"),
        ("examples", "| The same, share | ≥ 85 % | 75% ("),
        ("examples", "| Valid outputs with examples | ≥ 99.5 % | 3 of 4 | **no** |"),
        ("examples", "| The same with examples | fewest | 16, 48 by"),
        (
            "schemas",
            "| Checked outputs that do not fit | 0 | 3 of 3 that were passed on fit | yes |",
        ),
    ],
)
def test_goals_are_read_out_of_the_tables(part: str, row: str) -> None:
    """A-180."""
    ours, theirs = rows("Minions", [1, 1, 1, 0], part), rows("SDK", [1, 0, 0, 0], part)
    assert row in with_sections("", page([*ours, *theirs], SETTING))


@pytest.mark.parametrize(
    ("count", "templated", "met"), [(50, 30, "yes"), (49, 30, "**no**"), (50, 50, "**no**")]
)
def test_a_lead_is_one_on_texts_of_both_kinds_if_they_are_enough(
    count: int, templated: int, met: str
) -> None:
    """A-180."""
    of_both = [
        *(*rows("Minions", [1] * 2 * count, "fields"), *rows("SDK", [0, 1] * count, "fields")),
        *rows("Minions", [1] * 100, "templated"),
        *rows("SDK", [0] * (50 - templated) * 2 + [1] * templated * 2, "templated"),
    ]
    text = with_sections("", page(of_both, SETTING))
    (line,) = [each for each in text.splitlines() if "Both, whole intervals" in each]
    assert f"{2 * count}; " in line
    assert f" on 100 | {met} |" in line


def test_a_wrong_output_that_is_passed_on_misses_its_goal() -> None:
    passed = [evolve(each, failure=None) for each in rows("Minions", [1, 1, 1, 0])]
    text = with_sections("", page([*passed, *rows("SDK", [1, 0, 0, 0])], SETTING))
    assert "| 3 of 4 that were passed on fit | **no** |" in text


def test_parts_that_are_asked_again_take_the_place_of_themselves_alone() -> None:
    first = page([*rows("Minions", [1], "fields"), *rows("Minions", [0], "calls")], SETTING)
    again = page(rows("Minions", [0, 0], "fields"), evolve(SETTING, command="make quality X=2"))
    whole = with_sections(first, again)
    assert "0 of 2" in whole
    assert "1 of 1" not in whole
    assert "## Function calls" in whole
    assert "Checked." in whole
    assert "`make quality` asks again" in whole
    assert "`make quality QUALITY_ONLY=fields X=2`" in whole
    assert "`make quality QUALITY_ONLY=calls`" in whole
    assert with_sections("", first) == first
