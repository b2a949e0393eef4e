"""`at_limit: answer`: one more call, without tools, when calls, tokens or dollars are used up."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import evolve

from builders import answer_of, deterministic_services, executor_of, fake_tool
from minions.adapters.models.script_items import Answer, tool_request
from minions.adapters.models.scripted import ScriptedModel
from minions.contracts.calls import Confidence, ModelCallResponse
from minions.contracts.executions import AgentResult, RunStatus, StepStatus
from minions.contracts.messages import assistant
from minions.contracts.tools import Tool
from minions.data.json_values import JsonValue
from minions.recipe.catalog import Catalog
from minions.recipe.reading.load import recipe_from_document
from mortal import World
from prices import FlatPrices

Step = dict[str, JsonValue]
STEP: Step = {"id": "asks", "goal": "Look it up.", "tools": ["look"], "at_limit": "answer"}
OUTPUT: JsonValue = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def looking() -> Tool:
    return fake_tool("look", lambda _: "seen")


async def run(
    model: ScriptedModel, steps: Sequence[JsonValue], **limits: JsonValue
) -> AgentResult[object]:
    tool = looking()
    recipe = recipe_from_document(
        {"id": "recipe", "tools": ["look"], "limits": limits, "steps": list(steps)},
        Catalog(tools={"look": tool.spec}),
    )
    services = evolve(deterministic_services(), prices=FlatPrices({"scripted/answers": 1.0}))
    return await executor_of(model, tools=[tool], services=services).execute(recipe)


def asking(answer: Answer, calls: int = 2) -> ScriptedModel:
    return ScriptedModel([*[[tool_request("look")]] * calls, answer])


async def test_a_step_out_of_calls_answers_from_what_it_has_and_is_partial() -> None:
    model = asking("all I know")
    result = await run(model, [{**STEP, "limits": {"max_model_calls_per_step": 2}}])
    assert (result.status, result.output) == (RunStatus.PARTIAL, "all I know")
    (execution,) = result.executions
    assert (execution.status, execution.is_partial) == (StepStatus.COMPLETED, True)
    assert execution.completion is not None
    assert execution.completion.decided_by == "AtLimit"
    last = model.prompts[-1]
    assert last.tools == ()
    assert (last.messages[-1].content or "").startswith("A limit is reached")
    assert any(message.content == "seen" for message in last.messages)


async def test_without_it_the_step_fails() -> None:
    step = {**STEP, "limits": {"max_model_calls_per_step": 2}, "at_limit": "fail"}
    model = asking("never asked")
    result = await run(model, [step])
    assert result.status is RunStatus.FAILED
    assert len(model.prompts) == 2


async def test_a_run_out_of_tokens_or_dollars_answers_and_starts_nothing_else() -> None:
    for limits in ({"max_tokens": 20}, {"max_cost_usd": 20}, {"max_model_calls": 2}):
        model = ScriptedModel([asked(), asked(), answer_of("all I know"), answer_of("never")])
        result = await run(model, [STEP], **limits)
        assert (result.status, result.output) == (RunStatus.PARTIAL, "all I know"), limits
        model = ScriptedModel([asked(), asked(), answer_of("all I know"), answer_of("never")])
        result = await run(model, [STEP, {"id": "next", "goal": "Go on."}], **limits)
        assert result.status is RunStatus.LIMIT_REACHED
        assert len(model.prompts) == 3


def asked() -> Answer:
    return answer_of("", tool_calls=[tool_request("look")])


async def test_a_last_answer_that_exceeds_a_limit_says_so() -> None:
    model = ScriptedModel([asked(), answer_of("all I know")])
    result = await run(model, [STEP], max_tokens=15)
    assert (result.status, result.usage.total_tokens) == (RunStatus.PARTIAL, 30)
    (warned,) = result.warnings
    assert warned.code == "limit-exceeded"
    assert "30 tokens were used, and max_tokens=15" in warned.message


async def test_the_last_answer_has_to_fit_the_declared_output() -> None:
    step = {**STEP, "output": OUTPUT, "limits": {"max_model_calls_per_step": 2}}
    fitting = await run(asking('{"n": 1}'), [step])
    assert (fitting.status, fitting.output) == (RunStatus.PARTIAL, {"n": 1})
    wrong = await run(asking("no JSON"), [step])
    assert (wrong.status, wrong.error and wrong.error.code) == (RunStatus.FAILED, "max-model-calls")
    assert wrong.error is not None
    assert "The last call gave no output either" in wrong.error.message


async def test_a_run_whose_last_answer_does_not_fit_has_reached_its_limit() -> None:
    step = {**STEP, "output": OUTPUT}
    model = ScriptedModel([asked(), asked(), answer_of("no JSON")])
    result = await run(model, [step], max_tokens=20)
    assert (result.status, result.error and result.error.code) == (
        RunStatus.LIMIT_REACHED,
        "limit-reached",
    )


async def test_a_run_that_dies_after_the_last_answer_comes_to_the_same_end() -> None:
    recipe = recipe_from_document(
        {
            "id": "recipe",
            "limits": {"max_tokens": 20},
            "steps": [{"id": "asks", "goal": "Go.", "completion": "signal", "at_limit": "answer"}],
        },
        Catalog(),
    )

    def model(world: World) -> ScriptedModel:
        return world.model(lambda _: answer_of("so far"))

    quiet_world = World()
    quiet = await quiet_world.executor(model(quiet_world)).execute(recipe)
    assert quiet.status is RunStatus.PARTIAL
    asked_times = quiet_world.asked.total()
    for at in range(2, 30):
        world = World()
        if not await world.killed(world.executor(model(world)), recipe, at):
            break
        result = await world.executor(model(world)).resume("run_1")
        assert (result.status, result.output) == (quiet.status, quiet.output)
        assert world.asked.total() <= asked_times + 1


async def test_a_doubtful_answer_is_not_taken_at_a_limit_either() -> None:
    """A-180: `min_confidence` holds for the last call as well."""
    step = {**STEP, "output": OUTPUT, "model": {"min_confidence": 0.5}}
    for probability, status in ((0.1, RunStatus.LIMIT_REACHED), (0.5, RunStatus.PARTIAL)):
        last = ModelCallResponse(
            message=assistant('{"n": 1}'), confidence=Confidence(probability, "$.n")
        )
        result = await run(ScriptedModel([asked(), asked(), last]), [step], max_model_calls=2)
        assert result.status is status, probability
        assert result.output == ({"n": 1} if status is RunStatus.PARTIAL else None)
