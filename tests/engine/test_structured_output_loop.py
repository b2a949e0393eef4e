"""From a declared output to a typed value, or to a failed step: A-36 to A-38, A-104."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest
from attrs import evolve, frozen

from builders import (
    ConstrainedModel,
    answer_of,
    executor_of,
    fake_tool,
    python_step,
    recipe_of,
    run_of,
    run_recipe,
    signal_step,
    text_step,
)
from minions.adapters.models.script_items import Answer, tool_request
from minions.adapters.models.scripted import ScriptedModel
from minions.contracts.completion import CompletionLink
from minions.contracts.executions import Completion, RunStatus, StepExecution, StepStatus
from minions.contracts.instructions import OutputInstructions, OutputMode
from minions.contracts.messages import Message, MessageRole, assistant, goal
from minions.contracts.steps import Step, StepScope
from minions.data.errors import SchemaError
from minions.data.json_values import JsonValue
from minions.data.schema_words import schema_words
from minions.engine.compile.completion_links import DefaultStepCompletionChain


@frozen
class Report:
    """What a report is."""

    title: str
    pages: int


REPORT = OutputInstructions[object](
    instructions=["You must output a JSON object."], output_class=Report
)
GOOD = '{"title": "Tides", "pages": 3}'
SCHEMA: Mapping[str, JsonValue] = {"type": "object", "required": ["n"]}
NUMBER = OutputInstructions[object](schema=SCHEMA)


def texts(messages: tuple[Message, ...], role: MessageRole) -> list[str]:
    return [message.content or "" for message in messages if message.role is role]


@pytest.mark.parametrize("answer", ["just words", '{"title": "Tides"}', "[1]", GOOD])
async def test_an_output_that_takes_text_is_the_text_of_the_first_answer(answer: str) -> None:
    step = text_step(output=OutputInstructions[object](schema=SCHEMA, takes_text=True))
    ran = await run_recipe(step, [answer])
    assert (len(ran.prompts), ran.statuses) == (1, {"work": "completed"})
    assert ran.only.output == answer


async def test_an_output_that_takes_text_is_the_value_where_it_fits() -> None:
    step = text_step(output=OutputInstructions[object](schema=SCHEMA, takes_text=True))
    ran = await run_recipe(step, ['so: {"n": 1}'])
    assert ran.only.output == {"n": 1}


async def test_a_class_that_refuses_the_text_is_repaired() -> None:
    step = text_step(output=evolve(REPORT, takes_text=True))
    ran = await run_recipe(step, ["just words", GOOD])
    assert (ran.only.output, len(ran.prompts)) == (Report(title="Tides", pages=3), 2)


async def test_a_model_that_binds_is_not_asked_twice_for_an_output_that_takes_text() -> None:
    output = OutputInstructions[object](schema=SCHEMA, takes_text=True)
    step = text_step(tools=["look"], output=output)
    model = ConstrainedModel(["just words"])
    result = await executor_of(model, tools=[fake_tool()]).execute(recipe_of([step]))
    assert result.output == "just words"


# --- told, and read ----------------------------------------------------------------------------


async def test_schema_and_words_are_in_the_prompt_and_the_reply_is_the_typed_object() -> None:
    """A-36, A-109: as a list of fields."""
    ran = await run_recipe(text_step(output=REPORT), [GOOD])
    (words,) = texts(ran.prompts[0], MessageRole.SYSTEM)
    assert words.startswith("You must output a JSON object.\n")
    assert words.splitlines()[-1] == schema_words(REPORT.json_schema())
    assert ran.only.output == ran.result.output == Report("Tides", 3)
    assert isinstance(ran.model, ScriptedModel)
    assert ran.model.prompts[0].instructions is REPORT


async def test_a_schema_as_text_with_a_class_is_the_guides_form() -> None:
    """A-36."""
    schema = '{"type": "object", "properties": {"title": {"type": "string", "minLength": 3}}}'
    output = OutputInstructions[object](
        instructions=["Match the schema."], schema=schema, output_class=Report
    )
    answers = ['{"title": "", "pages": 1}', GOOD]
    ran = await run_recipe(text_step(output=output), answers)
    assert ran.only.output == Report("Tides", 3)
    assert "$.title: '' is too short" in texts(ran.prompts[1], MessageRole.USER)[-1]


async def test_without_a_class_the_output_is_the_json_itself() -> None:
    """A-36."""
    ran = await run_recipe(text_step(output=NUMBER), ['{"n": null}'])
    assert ran.only.output == {"n": None}


@pytest.mark.parametrize("text", ["0", "false", "null", '""', "[]", "{}"])
async def test_a_falsy_value_is_a_value(text: str) -> None:
    """A-36."""
    ran = await run_recipe(text_step(output=OutputInstructions[object](schema={})), [text])
    assert (ran.only.status, ran.result.output) == (StepStatus.COMPLETED, json.loads(text))


async def test_the_run_gives_the_class_that_was_asked_for() -> None:
    """A-36: also from the plain JSON of a step."""
    recipe = recipe_of([text_step(output=NUMBER)])
    ran = await run_of(recipe, ['{"n": 1}'], output_class=dict[str, int])
    assert ran.result.unwrap() == {"n": 1}
    wrong = await run_of(recipe, ['{"n": "one"}'], output_class=dict[str, int])
    assert wrong.result.status is RunStatus.FAILED
    assert wrong.result.error is not None
    assert wrong.result.error.code == "invalid-output"
    assert "$.n: 'one' is not of type 'integer'" in wrong.result.error.message
    assert wrong.statuses == {"work": "completed"}


@pytest.mark.parametrize(
    "text",
    [
        GOOD,
        f"```json\n{GOOD}\n```",
        f"Here it is:\n```\n{GOOD}\n```\nAnything else?",
        f"Sure! {GOOD} Hope that helps {{smile}}.",
        f"{{}} no, rather {GOOD}",
        f"  \n{GOOD}\n",
    ],
)
async def test_json_in_a_fence_or_in_prose_is_read(text: str) -> None:
    """A-37."""
    ran = await run_recipe(text_step(output=REPORT), [text])
    assert (ran.only.output, len(ran.prompts)) == (Report("Tides", 3), 1)


async def test_braces_inside_strings_and_arrays_are_read() -> None:
    """A-37."""
    output = OutputInstructions[object](schema={"type": "array"})
    answer = 'The list is ["a } b", {"c": "{[\\""}] as asked.'
    ran = await run_recipe(text_step(output=output), [answer])
    assert ran.only.output == ["a } b", {"c": '{["'}]


# --- repair ------------------------------------------------------------------------------------


async def test_an_invalid_answer_is_repaired_once_with_the_validators_words() -> None:
    """A-38."""
    ran = await run_recipe(text_step(output=REPORT), ['{"title": "Tides"}', GOOD])
    assert (ran.only.status, ran.only.output) == (StepStatus.COMPLETED, Report("Tides", 3))
    assert [call.phase for call in ran.only.model_calls] == ["model", "repair"]
    *before, invalid, words = ran.prompts[1]
    assert before == list(ran.prompts[0])
    assert invalid == assistant('{"title": "Tides"}')
    assert words.role is MessageRole.USER
    assert "$: 'pages' is a required property" in (words.content or "")


async def test_still_invalid_after_the_repair_the_step_fails_with_the_validators_message() -> None:
    """A-38: after exactly one repair."""
    answers = ["no JSON", '{"title": "Tides", "pages": "three"}', GOOD]
    ran = await run_recipe(text_step(output=REPORT), answers)
    assert len(ran.prompts) == 2
    assert ran.only.error is not None
    assert ran.only.error.code == "invalid-output"
    assert "$.pages: 'three' is not of type 'integer'" in ran.only.error.message
    assert ran.only.output is None
    assert ran.result.status is RunStatus.FAILED


@pytest.mark.parametrize(
    "answer", ["", "no JSON", "{", '{"title": NaN}', '{"title": "a", "pages": 1e999}', "[" * 5000]
)
async def test_whatever_is_wrong_with_the_answer_one_repair_is_asked(answer: str) -> None:
    """A-38."""
    ran = await run_recipe(text_step(output=REPORT), [answer, GOOD])
    assert (ran.only.output, len(ran.prompts)) == (Report("Tides", 3), 2)


async def test_the_repair_counts_against_the_budget() -> None:
    """A-38: with no call left the step fails at once."""
    answers = ['{"title": "Tides"}', GOOD]
    ran = await run_recipe(text_step(output=REPORT), answers, max_model_calls_per_step=1)
    assert len(ran.prompts) == 1
    assert ran.only.error is not None
    assert "no model call is left to repair it" in ran.only.error.message
    assert "'pages' is a required property" in ran.only.error.message


async def test_a_class_that_refuses_the_value_has_it_repaired() -> None:
    """A-38: what a schema cannot say."""

    class Short(OutputInstructions[object]):
        def convert(self, value: JsonValue) -> object:
            report = super().convert(value)
            if isinstance(report, Report) and report.pages > 10:
                raise ValueError(f"at most 10 pages, not {report.pages}")
            return report

    output = Short(output_class=Report)
    ran = await run_recipe(text_step(output=output), ['{"title": "Tides", "pages": 300}', GOOD])
    assert ran.only.output == Report("Tides", 3)
    assert "at most 10 pages, not 300" in texts(ran.prompts[1], MessageRole.USER)[-1]


async def test_a_class_that_raises_anything_at_all_fails_the_step_not_the_engine() -> None:
    """A-38."""

    class Broken(OutputInstructions[object]):
        def convert(self, value: JsonValue) -> object:
            raise KeyError("weather")

    ran = await run_recipe(text_step(output=Broken(output_class=Report)), [GOOD, GOOD])
    assert (ran.only.error and ran.only.error.code, len(ran.prompts)) == ("invalid-output", 2)


@pytest.mark.parametrize(
    "output",
    [
        OutputInstructions[object](),
        OutputInstructions[object](schema="{broken"),
        OutputInstructions[object](schema="[1]"),
        OutputInstructions[object](schema={"$ref": "https://example.invalid/schema"}),
        OutputInstructions[object](schema={"type": "strnig"}),
    ],
)
async def test_a_schema_that_is_none_is_refused_before_the_run(
    output: OutputInstructions[object],
) -> None:
    model = ScriptedModel([GOOD, GOOD])
    with pytest.raises(SchemaError):
        await executor_of(model).execute(recipe_of([text_step(output=output)]))
    assert model.prompts == []


# --- constrained answers -----------------------------------------------------------------------


async def test_without_tools_the_first_call_is_constrained_already() -> None:
    """A-36: one request."""
    ran = await run_recipe(text_step(output=REPORT), ConstrainedModel([GOOD]))
    (call,) = ran.only.model_calls
    assert call.prompt.output_request is not None
    assert call.prompt.output_request.mode is OutputMode.JSON_SCHEMA
    assert (call.phase, ran.only.output) == ("model", Report("Tides", 3))


async def test_with_tools_the_free_answer_counts_when_it_fits() -> None:
    """A-36: still one request."""
    model = ConstrainedModel([GOOD])
    ran = await run_recipe(text_step(output=REPORT, tools=["look"]), model, tools=[fake_tool()])
    (call,) = ran.only.model_calls
    assert (call.prompt.output_request, len(call.prompt.tools)) == (None, 1)
    assert ran.only.output == Report("Tides", 3)


async def test_else_it_is_forgotten_and_asked_again_under_the_schema() -> None:
    """A-38: then one repair at the most; three requests in all."""
    model = ConstrainedModel([tool_request("look"), "I think so", '{"title": 1}', GOOD])
    ran = await run_recipe(text_step(output=REPORT, tools=["look"]), model, tools=[fake_tool()])
    first, free, final, repair = ran.only.model_calls
    assert [call.phase for call in ran.only.model_calls] == ["model", "model", "final", "repair"]
    assert final.prompt.messages == free.prompt.messages
    assert (final.prompt.tools, first.prompt.output_request) == ((), None)
    assert final.prompt.output_request is not None
    assert repair.prompt.messages[:-2] == final.prompt.messages
    assert repair.prompt.messages[-2] == assistant('{"title": 1}')
    assert ran.only.output == Report("Tides", 3)
    assert "I think so" not in [m.content for m in ran.conversation("work/1/0")]


async def test_a_server_that_takes_tools_with_a_schema_gets_both() -> None:
    """A-36."""
    model = ConstrainedModel([tool_request("look"), GOOD], tools_with_schema=True)
    ran = await run_recipe(text_step(output=REPORT, tools=["look"]), model, tools=[fake_tool()])
    assert [
        (call.prompt.output_request is not None, len(call.prompt.tools))
        for call in ran.only.model_calls
    ] == [(True, 1), (True, 1)]


async def test_a_schema_put_as_a_tool_leaves_no_unanswered_call_behind() -> None:
    """A-36: mode TOOLS; the arguments stand in the conversation as text."""
    model = ConstrainedModel(
        [tool_request("output", '{"title": 1}'), tool_request("output", GOOD)],
        output_mode=OutputMode.TOOLS,
    )
    ran = await run_recipe(text_step(output=REPORT), model)
    assert ran.only.output == Report("Tides", 3)
    assert ran.only.tool_calls == ()
    conversation = ran.conversation("work/1/0")
    assert all(not message.tool_calls for message in conversation)
    assert conversation[-1] == assistant(GOOD)


async def test_a_constrained_call_that_fails_fails_the_step() -> None:
    """A-38."""
    model = ConstrainedModel(["free words", ConnectionRefusedError("gone"), *[OSError("gone")] * 3])
    ran = await run_recipe(text_step(output=REPORT, tools=["look"]), model, tools=[fake_tool()])
    assert ran.only.status is StepStatus.FAILED
    assert "gone" in (ran.only.reason or "")


# --- nothing completes without its output ------------------------------------------------------


class Hasty(CompletionLink):
    """Says complete to anything."""

    def check(self, execution: StepExecution[object]) -> Completion:
        return Completion.complete("looks fine")


def hasty() -> Step[object]:
    return signal_step(output=REPORT, chain=DefaultStepCompletionChain().prepend(Hasty()))


def said() -> Step[object]:
    return signal_step(output=REPORT)


def with_tool() -> Step[object]:
    return signal_step(output=REPORT, tools=["finish"])


FINISH = fake_tool("finish", lambda _: {"step_complete": True})


@pytest.mark.parametrize(
    ("step", "answer"),
    [
        (said(), "status: done"),
        (said(), '{"is_complete": true}'),
        (said(), tool_request("final_Answer", {"answer": "it is done"})),
        (said(), answer_of("status: done", tool_calls=[tool_request("nothing")])),
        (with_tool(), tool_request("finish")),
        (hasty(), "whatever"),
    ],
)
async def test_a_word_for_done_does_not_complete_a_step_without_its_output(
    step: Step[object], answer: Answer
) -> None:
    """A-104: it only opens the door to validation, repair and failure."""
    failed = await run_recipe(step, [answer, "still no JSON"], tools=[FINISH])
    assert (failed.only.status, failed.only.output) == (StepStatus.FAILED, None)
    assert failed.only.error is not None
    assert failed.only.error.code == "invalid-output"
    assert failed.only.completion is not None
    mended = await run_recipe(step, [answer, GOOD], tools=[FINISH])
    assert (mended.only.status, mended.only.output) == (StepStatus.COMPLETED, Report("Tides", 3))


async def test_what_final_answer_was_given_may_be_the_output() -> None:
    """A-104: where it fits."""
    ran = await run_recipe(said(), [tool_request("final_Answer", GOOD)])
    assert (ran.only.output, len(ran.prompts)) == (Report("Tides", 3), 1)
    nested = await run_recipe(said(), [tool_request("final_Answer", {"answer": GOOD})])
    assert nested.only.output == Report("Tides", 3)


async def test_a_done_beside_the_output_is_the_output() -> None:
    """A-104."""
    ran = await run_recipe(said(), [f"status: done\n{GOOD}"])
    assert ran.only.output == Report("Tides", 3)


async def test_in_mode_signal_a_fitting_answer_alone_does_not_complete() -> None:
    """A-104: the guide's loop waits for a link."""
    ran = await run_recipe(said(), [GOOD, f"status: done {GOOD}"])
    assert (ran.only.output, len(ran.prompts)) == (Report("Tides", 3), 2)


async def test_a_schema_with_a_field_of_an_instructions_name_still_wins() -> None:
    """A-104."""
    schema: Mapping[str, JsonValue] = {"properties": {"is_complete": {"type": "boolean"}}}
    output = OutputInstructions[object](schema=schema)
    ran = await run_recipe(text_step(output=output), ['{"is_complete": false}'])
    assert ran.only.output == {"is_complete": False}


# --- code --------------------------------------------------------------------------------------


async def test_code_asks_for_a_typed_answer() -> None:
    """A-36, A-38: repaired once, then refused."""

    async def ask(scope: StepScope) -> object:
        return await scope.ask_model([goal("Report.")], OutputInstructions(output_class=Report))

    mended = await run_recipe(python_step(ask), ["no", GOOD])
    assert mended.only.output == Report("Tides", 3)
    refused = await run_recipe(python_step(ask), ["no", "no", GOOD])
    assert (refused.only.error and refused.only.error.code, len(refused.prompts)) == (
        "invalid-output",
        2,
    )
