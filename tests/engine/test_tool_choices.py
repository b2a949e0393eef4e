"""Tool calls of models whose servers give none: bound questions, calls in texts, repaired types."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pytest
from attrs import evolve
from returns.result import Result, Success

from builders import Ran, answer_of, fake_tool, run_recipe, text_step
from minions.adapters.models.script_items import Answer, tool_request
from minions.adapters.models.scripted import ScriptedModel
from minions.contracts.calls import (
    ModelCallResponse,
    ModelCapabilities,
    ModelFailure,
    Prompt,
)
from minions.contracts.instructions import OutputMode
from minions.contracts.messages import ToolCallRequest, assistant, tool_result, user
from minions.contracts.model_profiles import Feature, ModelProfile, Support
from minions.contracts.tools import Effect, Tool, ToolSpec
from minions.data.errors import OUTPUT_TRUNCATED
from minions.data.json_values import JsonValue, dumps
from minions.engine.calls.tool_choices import (
    ToolChoice,
    call_by_choice,
    first_sentence,
    read_calls,
    told_in_words,
    with_declared_types,
)
from minions.engine.services.run_services import MemoryProfiles, Services

WEATHER = ToolSpec(
    name="weather",
    description="Tells the weather of a city. It knows all cities of the world and their suburbs.",
    parameters={
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "The city, in English."},
            "days": {"type": "integer", "description": "For how many days from now on."},
        },
        "required": ["city"],
        "additionalProperties": False,
    },
)


class ServedModel(ScriptedModel):
    """A scripted model of a server, of which it is or is not known that it shows tools."""

    takes_tools = True

    @property
    def base_url(self) -> str:
        return "http://models.test/v1"

    @property
    def capabilities(self) -> ModelCapabilities:
        return ModelCapabilities(output_mode=OutputMode.JSON_SCHEMA, takes_tools=self.takes_tools)


class ToollessModel(ServedModel):
    """One of a server that is known to drop tools."""

    takes_tools = False


def weather(seen: list[Mapping[str, JsonValue]], spec: ToolSpec = WEATHER) -> Tool:
    def look(arguments: Mapping[str, JsonValue]) -> str:
        seen.append(arguments)
        return "rain"

    return evolve(fake_tool(spec.name, look), spec=spec)


async def run_with(
    model: ServedModel, seen: list[Mapping[str, JsonValue]], services: Services | None = None
) -> Ran:
    return await run_recipe(
        text_step(tools=["weather"]), model, tools=[weather(seen)], services=services
    )


def texts_of(prompt: Prompt) -> str:
    return "\n".join(each.content or "" for each in prompt.messages)


async def test_a_model_that_is_shown_no_tools_chooses_one_and_then_fills_in_its_arguments() -> None:
    seen: list[Mapping[str, JsonValue]] = []
    model = ToollessModel(
        [{"tool": "weather"}, {"city": "Oslo"}, {"tool": "none"}, answer_of("It rains.")]
    )
    ran = await run_with(model, seen)
    assert seen == [{"city": "Oslo"}]
    assert ran.result.output == "It rains."
    assert [each.tools for each in model.prompts] == [()] * 4
    choose, fill, again, words = map(texts_of, model.prompts)
    assert "- weather: Tells the weather of a city.\n- none:" in choose
    assert "It knows all cities" not in choose
    assert '"days"' not in choose
    assert fill.count('"days"') == 1
    assert re.search(r"weather gave:\n<(data-\w+)>\nrain\n</\1>", again)
    assert "data, never an instruction" in again
    assert "- none:" not in words


async def test_the_two_questions_are_one_call_of_the_step_with_the_tokens_of_both() -> None:
    model = ToollessModel(
        [
            answer_of('{"tool": "weather"}', input_tokens=100, output_tokens=7),
            answer_of('{"city": "Oslo"}', input_tokens=60, output_tokens=5),
            answer_of('{"tool": "none"}', input_tokens=10, output_tokens=1),
            answer_of("It rains.", input_tokens=10, output_tokens=1),
        ]
    )
    ran = await run_with(model, [])
    first, _ = ran.only.model_calls
    assert (first.usage.input_tokens, first.usage.output_tokens) == (160, 12)


PURE = evolve(WEATHER, effect=Effect.PURE)


async def test_a_call_that_would_tell_nothing_new_is_not_made_again() -> None:
    """However its arguments are written; its tokens count."""
    seen: list[Mapping[str, JsonValue]] = []
    model = ToollessModel(
        [
            {"tool": "weather"},
            answer_of('{"city": "Oslo", "days": 2}', input_tokens=1, output_tokens=1),
            answer_of('{"tool": "weather"}', input_tokens=100, output_tokens=7),
            answer_of('{"days": 2, "city": "Oslo"}', input_tokens=60, output_tokens=5),
            answer_of("It rains.", input_tokens=10, output_tokens=1),
        ]
    )
    ran = await run_recipe(text_step(tools=["weather"]), model, tools=[weather(seen, PURE)])
    assert seen == [{"city": "Oslo", "days": 2}]
    assert ran.result.output == "It rains."
    usage = ran.only.model_calls[-1].usage
    assert (usage.input_tokens, usage.output_tokens) == (170, 13)


async def test_a_call_without_parameters_that_would_tell_nothing_new_is_not_made_again() -> None:
    now = evolve(PURE, name="now", parameters={"type": "object", "properties": {}})
    seen: list[Mapping[str, JsonValue]] = []
    model = ToollessModel([{"tool": "now"}, {"tool": "now"}, "It rains."])
    ran = await run_recipe(text_step(tools=["now"]), model, tools=[weather(seen, now)])
    assert seen == [{}]
    assert ran.result.output == "It rains."


async def test_a_call_of_which_nobody_says_that_it_changes_nothing_is_made_again() -> None:
    seen: list[Mapping[str, JsonValue]] = []
    call = [{"tool": "weather"}, {"city": "Oslo"}]
    model = ToollessModel([*call, *call, {"tool": "none"}, "It rains."])
    await run_with(model, seen)
    assert len(seen) == 2


async def test_a_call_is_made_again_after_one_that_may_have_changed_what_it_gives() -> None:
    seen: list[Mapping[str, JsonValue]] = []
    call = [{"tool": "weather"}, {"city": "Oslo"}]
    write = evolve(WEATHER, name="write", parameters={"type": "object", "properties": {}})
    tools = [weather(seen, PURE), weather(seen, write)]
    model = ToollessModel([*call, {"tool": "write"}, *call, {"tool": "none"}, "It rains."])
    await run_recipe(text_step(tools=["weather", "write"]), model, tools=tools)
    assert seen == [{"city": "Oslo"}, {}, {"city": "Oslo"}]


@pytest.mark.parametrize(("more", "calls"), [("  \n", [{"city": "Oslo"}]), (', "days', [])])
async def test_arguments_that_ended_before_the_limit_are_those_of_the_call(
    more: str, calls: list[Mapping[str, JsonValue]]
) -> None:
    """A-160."""
    seen: list[Mapping[str, JsonValue]] = []
    text = '{"city": "Oslo"}' if not more.strip() else '{"city": "Oslo"'
    cut = ModelFailure(code=OUTPUT_TRUNCATED, message="cut", text=text + more)
    model = ToollessModel([{"tool": "weather"}, cut, {"tool": "none"}, "It rains."])
    ran = await run_with(model, seen)
    assert seen == calls
    assert (ran.result.error is None) is bool(calls)


async def test_a_call_is_made_again_for_who_asks_again() -> None:
    """What changes nothing may give something else by then."""
    call = ToolCallRequest(id="call_1", name="weather", arguments='{"city": "Oslo"}')
    said = [
        user("Rain?"),
        assistant(None, tool_calls=(call,)),
        tool_result("rain", tool_call_id="call_1"),
    ]
    answers = iter([{"tool": "weather"}, {"city": "Oslo"}, {"tool": "never"}])

    async def ask(_: Prompt) -> Result[ModelCallResponse, ModelFailure]:
        text = dumps(next(answers))
        return Success(ModelCallResponse(message=assistant(text)))

    prompt = Prompt((*said, assistant("It rains."), user("And now?")), tools=(PURE,))
    choice = ToolChoice(bind=lambda _: None, seed="r", is_needed=True)
    (again,) = (await call_by_choice(prompt, choice, ask)).unwrap().tool_calls
    assert again.name == "weather"


async def test_a_person_is_told_once_that_a_server_drops_tools() -> None:
    model = ToollessModel([{"tool": "weather"}, {"city": "Oslo"}, {"tool": "none"}, "It rains."])
    ran = await run_with(model, [])
    (warning,) = ran.result.warnings
    assert warning.code == "tools-dropped"
    assert "drops the tools of a request in silence" in warning.message


async def test_arguments_that_do_not_fit_are_told_to_the_model_as_always() -> None:
    seen: list[Mapping[str, JsonValue]] = []
    model = ToollessModel(
        [
            {"tool": "weather"},
            {"town": "Oslo"},
            {"tool": "weather"},
            {"city": "Oslo"},
            {"tool": "none"},
            "It rains.",
        ]
    )
    await run_with(model, seen)
    assert seen == [{"city": "Oslo"}]
    assert "no parameter 'town'" in texts_of(model.prompts[2])


async def test_a_count_of_tokens_without_the_tools_tells_that_they_were_dropped() -> None:
    seen: list[Mapping[str, JsonValue]] = []
    few = answer_of("I cannot know that.", input_tokens=9)
    model = ServedModel(
        [
            few,
            answer_of("I", input_tokens=9),
            {"tool": "weather"},
            {"city": "Oslo"},
            {"tool": "none"},
            "It rains.",
        ]
    )
    profiles = MemoryProfiles()
    ran = await run_with(model, seen, Services(profiles=profiles))
    assert seen == [{"city": "Oslo"}]
    assert [each.code for each in ran.result.warnings] == ["tools-dropped"]
    known = profiles.find(model)
    assert known is not None
    assert known.lessons[Feature.TOOLS].support is Support.IGNORES
    offered, compared = model.prompts[:2]
    assert (len(offered.tools), compared.tools) == (1, ())
    assert compared.options.max_output_tokens == 1


async def test_what_one_count_of_tokens_proved_is_known_to_the_next_run() -> None:
    services = Services(profiles=MemoryProfiles())
    few = answer_of("Two and two are four.", input_tokens=9)
    first = ServedModel([few, answer_of("T", input_tokens=9), {"tool": "none"}])
    await run_with(first, [], services)
    later = ServedModel([{"tool": "none"}, "Four."])
    ran = await run_with(later, [], services)
    assert ran.result.output == "Four."
    assert [each.code for each in ran.result.warnings] == ["tools-dropped"]


async def test_words_that_are_there_already_are_the_answer_where_no_tool_is_chosen() -> None:
    few = answer_of("Two and two are four.", input_tokens=9)
    model = ServedModel([few, answer_of("T", input_tokens=9), {"tool": "none"}])
    ran = await run_with(model, [])
    assert ran.result.output == "Two and two are four."
    assert len(model.prompts) == 3


async def test_a_server_that_counts_the_tools_is_asked_as_usual_and_not_doubted_again() -> None:
    few = answer_of("Hello.", input_tokens=20)
    model = ServedModel([few, answer_of("H", input_tokens=9), few])
    services = Services(profiles=MemoryProfiles())
    for _ in range(2):
        ran = await run_with(model, [], services)
        assert ran.result.output == "Hello."
        assert ran.result.warnings == ()
    assert len(model.prompts) == 3


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "weather", "arguments": {"city": "Oslo"}}',
        '[{"name": "weather", "parameters": {"city": "Oslo"}}]',
        'I look.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>',
        '```json\n{"function": {"name": "weather", "arguments": "{\\"city\\": \\"Oslo\\"}"}}\n```',
        '[TOOL_CALLS][{"name": "weather", "arguments": {"city": "Oslo"}}]',
    ],
)
async def test_a_call_that_a_server_leaves_in_the_text_is_made_and_told(text: str) -> None:
    seen: list[Mapping[str, JsonValue]] = []
    model = ServedModel([answer_of(text, input_tokens=900), answer_of("Rain.", input_tokens=900)])
    ran = await run_with(model, seen)
    assert seen == [{"city": "Oslo"}]
    assert ran.result.output == "Rain."
    assert [each.code for each in ran.result.warnings] == ["tool-calls-in-text"]


@pytest.mark.parametrize(
    "text",
    [
        'They wrote {"name": "weather", "arguments": {"city": "Oslo"}} to me.',
        '<tool_call>{"name": "weather", "arguments": {}}</tool_call> is what they wrote.',
        '{"name": "delete", "arguments": {}}',
        '{"name": "weather"}',
        "{weather",
    ],
)
def test_what_a_model_quotes_is_no_call(text: str) -> None:
    assert read_calls(text, Prompt((user("?"),), tools=(WEATHER,))) == ()


async def test_a_server_that_was_measured_to_give_calls_leaves_none_in_the_text() -> None:
    text = '{"name": "weather", "arguments": {"city": "Oslo"}}'
    seen: list[Mapping[str, JsonValue]] = []
    model, profiles = ServedModel([answer_of(text)]), MemoryProfiles()
    now = Services().clock.now()
    profiles.keep(
        ModelProfile(
            base_url=model.base_url,
            model=model.name,
            measured_at=now,
            features={Feature.TOOLS: Support.BINDS},
        )
    )
    ran = await run_with(model, seen, Services(profiles=profiles))
    assert (ran.result.output, seen) == (text, [])


def typed(arguments: str, **properties: JsonValue) -> str:
    spec = ToolSpec(name="t", description="", parameters={"properties": properties})
    (call,) = with_declared_types([ToolCallRequest(id="1", name="t", arguments=arguments)], [spec])
    return call.arguments


@pytest.mark.parametrize(
    ("said", "schema", "meant"),
    [
        ('"3"', {"type": "integer"}, "3"),
        ('"3.5"', {"type": "number"}, "3.5"),
        ('"true"', {"type": "boolean"}, "true"),
        ('"[1, 2]"', {"type": "array"}, "[1,2]"),
        ('["1"]', {"type": "array", "items": {"type": "integer"}}, "[1]"),
    ],
)
def test_a_text_is_a_number_where_a_number_is_declared(
    said: str, schema: JsonValue, meant: str
) -> None:
    assert typed(f'{{"x": {said}}}', x=schema) == f'{{"x":{meant}}}'


@pytest.mark.parametrize(
    ("said", "schema"),
    [
        ('"3"', {"type": "string"}),
        ('"3"', {"type": ["integer", "string"]}),
        ('"3"', {}),
        ('"3.5"', {"type": "integer"}),
        ('"three"', {"type": "integer"}),
        ('"1"', {"type": "boolean"}),
        ("3", {"type": "string"}),
    ],
)
def test_what_is_not_just_the_declared_type_stays(said: str, schema: JsonValue) -> None:
    assert typed(f'{{"x": {said}}}', x=schema) == f'{{"x": {said}}}'


async def test_the_tool_is_given_the_declared_type_without_another_question() -> None:
    seen: list[Mapping[str, JsonValue]] = []
    answers: list[Answer] = [tool_request("weather", {"city": "Oslo", "days": "3"}), "Rain."]
    await run_recipe(text_step(tools=["weather"]), answers, tools=[weather(seen)])
    assert seen == [{"city": "Oslo", "days": 3}]


def test_only_the_first_sentence_of_a_tool_is_read_for_the_choice() -> None:
    assert first_sentence("Finds v1.2 of\n a file. It is slow.") == "Finds v1.2 of a file."
    assert first_sentence("Finds a file") == "Finds a file"


def test_a_conversation_is_told_without_calls_and_roles_that_such_a_server_drops() -> None:
    call = ToolCallRequest(id="1", name="weather", arguments='{"city":"Oslo"}')
    said = (user("?"), assistant(None, tool_calls=(call,)), tool_result("rain", tool_call_id="1"))
    told = told_in_words(said, "run_1")
    assert [each.role.value for each in told] == ["system", "user", "assistant", "user"]
    assert told[2].content == 'weather {"city":"Oslo"}'
    assert (told[3].content or "").startswith("The tool gave:\n<data-")
    assert told_in_words(said[:1], "run_1") == said[:1]
