"""Nobody is asked about what cannot be, and no answer counts that does not fit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import pytest
from attrs import evolve, field, frozen

from builders import (
    FakeTool,
    Ran,
    deterministic_services,
    executor_of,
    fake_tool,
    python_step,
    run_of,
)
from minions.adapters.models.script_items import Answer, tool_request
from minions.adapters.models.scripted import ScriptedModel
from minions.contracts.decision_types import ApprovalRequest, Decider, NoAnswer, Question, Verdict
from minions.contracts.executions import RunStatus
from minions.contracts.messages import MessageRole
from minions.contracts.steps import StepScope
from minions.contracts.tools import Effect
from minions.data.errors import StepFailedError, UsageError
from minions.data.json_values import JsonValue
from minions.engine.services.memory_journal import MemoryJournal
from minions.recipe.kinds.ask_kind import AskSpec
from minions.recipe.kinds.goal_kind import GoalSpec
from minions.recipe.model import AgentRecipe, Permissions
from minions.testing.virtual_time import FakeClock

PERMISSIONS = Permissions(allow_write=True, requires_approval=("write",))
PARAMETERS: dict[str, JsonValue] = {
    "type": "object",
    "properties": {"x": {"type": "integer"}},
    "required": ["x"],
    "additionalProperties": False,
}


@frozen
class Says(Decider):
    """Always the same; keeps what it was asked."""

    verdict: object = Verdict.APPROVED
    word: object = NoAnswer.LATER
    asked: list[str] = field(factory=list)

    async def approve(self, request: ApprovalRequest) -> Verdict:
        self.asked.append(request.arguments)
        return cast("Verdict", self.verdict)

    async def answer(self, question: Question) -> JsonValue | NoAnswer:
        self.asked.append(question.text)
        return cast("JsonValue | NoAnswer", self.word)


OPEN: dict[str, JsonValue] = {
    "type": "object",
    "properties": {"x": {"type": "integer"}},
    "required": ["x"],
}


def writer() -> FakeTool:
    return fake_tool("write", dict, effect=Effect.ONCE, parameters=PARAMETERS)


async def ran(
    recipe: AgentRecipe, decider: Decider, tool: FakeTool, answers: tuple[Answer, ...] = ()
) -> Ran:
    services = evolve(deterministic_services(), decider=decider)
    return await run_of(recipe, answers, tools=[tool], services=services)


# --- calls that cannot be made -----------------------------------------------------------------


@pytest.mark.parametrize("wrong", ['{"x": "one"}', "{}", '{"x": 1, "y": 2}', "[1]", "{"])
async def test_a_model_is_told_of_arguments_that_do_not_fit_before_anybody_is_asked(
    wrong: str,
) -> None:
    tool, decider = writer(), Says()
    recipe = AgentRecipe(
        id="recipe",
        permissions=PERMISSIONS,
        steps=(GoalSpec(id="work", goal="Work.", tools=("write",)),),
    )
    bad = evolve(tool_request("write"), arguments=wrong)
    done = await ran(recipe, decider, tool, ([bad], [tool_request("write", {"x": 1})], "done"))
    assert done.result.status is RunStatus.COMPLETED
    assert (decider.asked, tool.asked) == (['{"x":1}'], [{"x": 1}])
    told = [m.content for m in done.prompts[1] if m.role is MessageRole.TOOL]
    assert len(told) == 1
    assert str(told[0]).startswith("Error: The arguments")
    failures = [call.failure.code for call in done.result.step("work").tool_calls if call.failure]
    assert failures == ["bad-arguments"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ('{"xx": 1}', "It has no parameter 'xx'. Did you mean 'x'? Its parameters are: "),
        ('{"x": "one", "town": 1}', "It has no parameter 'town'. Its parameters are: "),
    ],
)
async def test_whoever_calls_a_tool_wrongly_is_told_of_names_that_it_does_not_have(
    arguments: str, words: str
) -> None:
    """A-45: although the schema takes any name."""
    tool = fake_tool("write", dict, effect=Effect.ONCE, parameters=OPEN)
    step = GoalSpec(id="work", goal="Work.", tools=("write",))
    recipe = AgentRecipe(id="recipe", permissions=Permissions(allow_write=True), steps=(step,))
    bad = evolve(tool_request("write"), arguments=arguments)
    done = await ran(recipe, Says(), tool, ([bad], "done"))
    [call] = done.result.step("work").tool_calls
    assert call.failure is not None
    assert (words in call.failure.message, tool.asked) == (True, []), call.failure


async def test_a_step_is_told_of_arguments_that_do_not_fit_before_anybody_is_asked() -> None:
    async def work(scope: StepScope) -> object:
        with pytest.raises(StepFailedError) as caught:
            await scope.call_tool("write", {"x": "one"})
        return caught.value.failure.code

    tool, decider = writer(), Says()
    recipe = AgentRecipe(id="recipe", permissions=PERMISSIONS, steps=(python_step(work),))
    done = await ran(recipe, decider, tool)
    assert (done.result.output, decider.asked, tool.asked) == ("bad-arguments", [], [])
    rows = [entry.state for entry in done.entries if entry.kind == "tool_call"]
    assert rows == ["started", "finished"]


# --- what a decider says -----------------------------------------------------------------------


@pytest.mark.parametrize("verdict", [True, "yes", None])
async def test_what_is_no_verdict_is_an_error_and_no_rejection(verdict: object) -> None:
    async def work(scope: StepScope) -> object:
        return await scope.call_tool("write", {"x": 1})

    tool = writer()
    recipe = AgentRecipe(id="recipe", permissions=PERMISSIONS, steps=(python_step(work),))
    done = await ran(recipe, Says(verdict), tool)
    error = done.result.error
    assert error is not None
    assert (error.code, tool.asked) == ("bad-verdict", [])
    assert f"{verdict!r}" in error.message
    assert "Verdict" in error.message
    assert not [entry for entry in done.entries if entry.kind == "decision"]


@pytest.mark.parametrize("answer", ["many", 2.5, None, {1, 2}, object()])
async def test_an_answer_that_does_not_fit_the_form_is_not_taken(answer: object) -> None:
    ask = AskSpec(id="ask", ask="How many?", form={"type": "integer"})
    done = await ran(AgentRecipe(id="recipe", steps=(ask,)), Says(word=answer), writer())
    error = done.result.error
    assert error is not None
    assert (error.code, done.result.status) == ("bad-answer", RunStatus.FAILED)
    assert not [entry for entry in done.entries if entry.kind == "decision"]


@pytest.mark.parametrize("word", [True, None, 3])
async def test_a_decision_that_is_no_text_is_refused(word: object) -> None:
    async def work(scope: StepScope) -> object:
        return await scope.call_tool("write", {"x": 1})

    tool, journal = writer(), MemoryJournal(FakeClock())
    services = evolve(deterministic_services(journal), decider=Says(Verdict.LATER))
    executor = executor_of(ScriptedModel(()), tools=[tool], services=services)
    recipe = AgentRecipe(id="recipe", permissions=PERMISSIONS, steps=(python_step(work),))
    first = await executor.execute(recipe)
    given = cast("Mapping[str, str]", {"write": word})
    with pytest.raises(UsageError, match="Say approve or reject") as caught:
        await executor.resume(first.run_id, recipe=recipe, decisions=given)
    assert caught.value.error_code == "bad-decision"
