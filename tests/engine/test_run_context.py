"""What a run knows of itself: its rights and limits, what may be read, and a recipe within it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence

import pytest
from attrs import evolve, field, frozen

from builders import deterministic_services, fake_tool, python_step, text_step
from minions.contracts.executions import StepStatus
from minions.contracts.steps import StepScope
from minions.contracts.tools import Effect, Toolbox
from minions.data.errors import FailureInfo
from minions.data.json_values import JsonValue
from minions.engine.compile.selection import DefaultStepGraph
from minions.engine.context.agent_context import Agent, AgentContext
from minions.engine.context.run_progress import Feedback, RunProgress
from minions.engine.context.scope import RunScope
from minions.engine.history.memory import ConversationMemory
from minions.engine.history.open_calls import OpenCall
from minions.engine.history.replay import Replay
from minions.engine.services.memory_journal import MemoryJournal
from minions.engine.services.run_services import Services
from minions.engine.step.next_step import StepManager
from minions.recipe.expressions.template import compile_template
from minions.recipe.model import AgentRecipe, Permissions
from minions.recipe.model_config import ModelConfig
from minions.testing.virtual_time import FakeClock
from patience import leap

STEP = text_step("a")
RECIPE = AgentRecipe(id="recipe", steps=(STEP,), system_prompt="Be brief.", goal="Win.")
TOOLS = Toolbox((fake_tool("write", effect=Effect.ONCE), fake_tool("read", effect=Effect.PURE)))
OPEN = OpenCall(key="k", step_id="a", tool="write", arguments="{}")


@frozen
class Lines:
    """A log that keeps its warnings."""

    warnings: list[str] = field(factory=list)

    def info(self, event: str, /, **facts: object) -> None:
        pass

    def warning(self, event: str, /, **facts: object) -> None:
        self.warnings.append(event)


def context_of(
    recipe: AgentRecipe = RECIPE,
    services: Services | None = None,
    *,
    inputs: Mapping[str, JsonValue] | None = None,
    replay: Replay | None = None,
    open_calls: Sequence[OpenCall] = (),
) -> AgentContext:
    return AgentContext(
        Agent(recipe),
        StepManager(DefaultStepGraph((STEP,))),
        ConversationMemory(),
        tools=TOOLS,
        inputs=inputs,
        scope=RunScope.of_run(recipe, services or deterministic_services(), replay=replay),
        progress=RunProgress(
            recipe.limits, open_calls=open_calls, warnings=replay.warnings if replay else ()
        ),
    )


def within(context: AgentContext, recipe: AgentRecipe = RECIPE) -> AgentContext:
    return context.nested(
        Agent(recipe),
        StepManager(DefaultStepGraph((STEP,))),
        ConversationMemory(),
        tools=TOOLS,
        inputs={},
        scope=context.scope.within(recipe, keys="outer~1~0~", path="outer/"),
    )


def allowing(**permissions: object) -> AgentRecipe:
    return evolve(RECIPE, permissions=Permissions(**permissions))  # type: ignore[arg-type]  # names that exist


@pytest.mark.parametrize("has_large", [True, None])
def test_a_run_knows_that_a_value_was_large_whatever_comes_after_it(has_large: bool | None) -> None:
    values = context_of().run_values
    large = compile_template("{{ a }}").references
    assert not values.reads_much(large)
    values.publish(STEP, StepStatus.COMPLETED, "x" * 1_000_000, has_large=has_large)
    values.publish(text_step("b"), StepStatus.COMPLETED, "y")
    values.publish(text_step("c"), StepStatus.COMPLETED, "z", has_large=False)
    assert values.has_large
    assert values.reads_much(large)
    assert not values.reads_much(compile_template("{{ b }}").references)


# --- what is given and what is the recipe's ------------------------------------------------------


def test_what_is_given_counts_over_the_recipe() -> None:
    agent = Agent(RECIPE, system_prompt="Be long.", goal="Lose.")
    scope = RunScope.of_run(RECIPE, run_id="run_7", session_id="ses_7")
    manager = StepManager(DefaultStepGraph((STEP,)))
    context = AgentContext(agent, manager, ConversationMemory(), scope=scope)
    assert (context.agent.system_prompt, context.agent.goal) == ("Be long.", "Lose.")
    assert (context.run_id, context.session_id) == ("run_7", "ses_7")
    assert context.values["run"] == {"id": "run_7", "session_id": "ses_7"}


def test_a_prompt_that_renders_to_nothing_is_none_of_the_recipes() -> None:
    agent = Agent(RECIPE, system_prompt="", goal="")
    assert (agent.system_prompt, agent.goal) == ("", "")


def test_what_is_not_given_is_the_recipes_or_made() -> None:
    context = context_of()
    assert (context.agent.system_prompt, context.agent.goal) == ("Be brief.", "Win.")
    assert (context.run_id, context.session_id) == ("run_1", "ses_1")
    bare = AgentContext(Agent(RECIPE), StepManager(DefaultStepGraph((STEP,))), ConversationMemory())
    assert bare.run_id.startswith("run_")
    assert bare.tools.find("write") is None


def test_a_recipe_within_belongs_to_the_run() -> None:
    run = context_of(replay=Replay((), 2))
    inner = within(run)
    assert (inner.run_id, inner.session_id) == (run.run_id, run.session_id)
    assert inner.scope.recorder is run.scope.recorder
    assert inner.scope.events is run.scope.events
    assert inner.scope.replay is run.scope.replay
    assert inner.progress.warnings is run.progress.warnings
    inner.progress.budget.count_step()
    assert run.progress.budget.steps == 1
    assert (inner.scope.path_of("a"), inner.scope.execution_key("a", 1)) == (
        "outer/a",
        "outer~1~0~a/1/0",
    )


def test_the_model_of_a_recipe_within_is_its_own_over_that_of_the_run() -> None:
    def of(name: str | None) -> AgentRecipe:
        return evolve(RECIPE, model=ModelConfig(name=name))

    run = context_of(of("outer"))
    assert run.scope.base_model.name == "outer"
    assert within(run, of(None)).scope.base_model.name == "outer"
    assert within(run, of("inner")).scope.base_model.name == "inner"


def test_calls_in_doubt_are_the_whole_runs() -> None:
    run = context_of(open_calls=(OPEN,))
    assert run.progress.open_calls == within(run).progress.open_calls == (OPEN,)
    assert context_of().progress.open_calls == ()


# --- time and limits -----------------------------------------------------------------------------


async def test_the_runs_time_is_that_of_all_within_it() -> None:
    run = context_of(evolve(RECIPE, limits={"timeout_s": 5.0}))
    inner = within(run)
    assert (run.progress.is_out_of_time, inner.progress.is_out_of_time) == (False, False)
    run.progress.check_time()
    deadline = run.progress.start_time()
    assert deadline is not None
    with contextlib.suppress(TimeoutError):
        async with deadline:
            assert inner.progress.deadline is deadline
            assert (run.progress.is_out_of_time, inner.progress.is_out_of_time) == (False, False)
            inner.progress.check_time()
            assert run.progress.budget.reached is None
            leap(6)
            await asyncio.Event().wait()
    assert (run.progress.is_out_of_time, inner.progress.is_out_of_time) == (True, True)
    inner.progress.check_time()
    assert (run.progress.budget.reached, inner.progress.budget.reached) == (
        "timeout_s",
        "timeout_s",
    )


def test_limits_are_read_again_only_when_they_were_changed() -> None:
    context = context_of(evolve(RECIPE, limits={"max_steps": 3}))
    before = context.limits
    assert (before.max_steps, context.limits is before) == (3, True)
    context.metadata["max_steps"] = 4
    after = context.limits
    assert (after.max_steps, context.limits is after) == (4, True)
    context.metadata["max_steps"] = 3
    assert context.limits.max_steps == 3


# --- rights --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("recipe", "tool", "refusal"),
    [
        (RECIPE, "read", None),
        (RECIPE, "write", "The tool 'write' writes (once) and the recipe does not allow it."),
        (allowing(allow_write=True), "write", None),
        (allowing(tools={"write": True}), "write", None),
        (
            allowing(allow_write=True, tools={"write": False}),
            "write",
            "The recipe does not allow the tool 'write' (permissions: allow_write).",
        ),
        (
            allowing(tools={"read": False}),
            "read",
            "The recipe does not allow the tool 'read' (permissions: allow_read).",
        ),
    ],
)
def test_a_refusal_says_what_the_recipe_does_not_give(
    recipe: AgentRecipe, tool: str, refusal: str | None
) -> None:
    found = TOOLS.find(tool)
    assert found is not None
    said = context_of(recipe).refusal(found.spec)
    assert (said is None) == (refusal is None)
    assert (said or "").startswith(refusal or "")


def test_a_recipe_within_may_write_only_where_the_run_may() -> None:
    writer = allowing(allow_write=True)
    assert context_of(writer).may_write
    assert within(context_of(writer), writer).may_write
    assert not within(context_of(), writer).may_write
    assert not within(context_of(writer), RECIPE).may_write


def test_consent_is_needed_to_tools_that_there_are() -> None:
    context = context_of(allowing(requires_approval=("write", "gone")))
    asked = {name: context.needs_approval(name, "{}") for name in ("write", "read", "gone")}
    assert asked == {"write": True, "read": False, "gone": False}


# --- what was recorded, and what is odd ----------------------------------------------------------


def test_a_new_run_has_no_recorded_work() -> None:
    context = context_of()
    assert context.scope.recorded("tool_call", "k") is None
    assert context.scope.execution_key("a", 1) == "a/1/0"


async def test_something_odd_is_told_and_recorded_once() -> None:
    journal, log = MemoryJournal(FakeClock()), Lines()
    context = context_of(services=evolve(deterministic_services(journal), log=log))
    for code in ("no-cache", "no-cache", "other-thing"):
        await context.warn(code, f"Of {code}.")
    entries = await journal.entries()
    assert [(each.kind, each.key, each.state, each.body) for each in entries] == [
        ("warning", "warning/1", "recorded", {"code": "no-cache", "message": "Of no-cache."}),
        ("warning", "warning/2", "recorded", {"code": "other-thing", "message": "Of other-thing."}),
    ]
    assert log.warnings == ["no_cache", "other_thing"]
    assert [each.code for each in context.progress.warnings] == ["no-cache", "other-thing"]


async def test_a_warning_within_a_recipe_is_one_of_the_run() -> None:
    run = context_of()
    for context in (within(run), run, within(run)):
        await context.warn("odd", "Odd.")
    assert [each.code for each in run.progress.warnings] == ["odd"]
    assert len(await run.scope.services.journal.entries()) == 1


async def test_a_context_sleeps_and_knows_the_time_by_the_services_of_its_run() -> None:
    clock = FakeClock()
    context = context_of(services=evolve(deterministic_services(), clock=clock, sleep=clock.sleep))
    before = context.now()
    await context.sleep(90)
    assert (context.now() - before).total_seconds() == 90


async def test_warnings_of_an_earlier_execution_are_not_told_again() -> None:
    journal = MemoryJournal(FakeClock())
    first = context_of(services=deterministic_services(journal))
    await first.warn("odd", "Odd.")
    await first.scope.recorder.close()
    replay = Replay(await journal.entries(), 2)
    again = context_of(services=deterministic_services(journal), replay=replay)
    await again.warn("odd", "Odd.")
    assert len(await journal.entries()) == 1
    assert len(again.progress.warnings) == 1
    assert len(replay.warnings) == 1


# --- what later steps read -----------------------------------------------------------------------


def of_steps(context: AgentContext, step_id: str = "a") -> JsonValue:
    steps = context.values["steps"]
    assert isinstance(steps, dict)
    return steps.get(step_id)


def test_what_a_step_left_is_read_by_its_id_and_by_the_name_it_was_saved_as() -> None:
    context = context_of()
    context.run_values.publish(STEP, StepStatus.COMPLETED, 1, "saved")
    assert (context.values["a"], context.values["saved"]) == (1, 1)
    assert of_steps(context) == {"status": "completed", "output": 1, "error": None}
    context.run_values.withdraw("a", "saved")
    assert {"a", "saved"}.isdisjoint(context.values)
    assert of_steps(context) is None


@pytest.mark.parametrize("name", ["inputs", "steps", "run", "feedback"])
def test_a_step_of_a_reserved_name_hides_nothing(name: str) -> None:
    context = context_of(inputs={"x": 1})
    before = context.values[name]
    step = text_step(name)
    for status in (StepStatus.COMPLETED, StepStatus.FAILED):
        context.run_values.publish(step, status, "out")
        assert context.values[name] is before
    context.run_values.publish(step, StepStatus.COMPLETED, "out")
    assert of_steps(context, name) == {"status": "completed", "output": "out", "error": None}
    context.run_values.withdraw(name)
    assert context.values[name] is before


def test_after_a_failure_the_earlier_output_is_not_read_any_more() -> None:
    context = context_of()
    failure = FailureInfo(code="bad", message="It was.")
    context.run_values.publish(STEP, StepStatus.COMPLETED, 1)
    context.run_values.publish(STEP, StepStatus.FAILED, None, error=failure)
    assert "a" not in context.values
    assert of_steps(context) == {"status": "failed", "error": failure.to_document()}


def test_a_step_that_is_passed_over_later_keeps_its_newest_output() -> None:
    context = context_of()
    context.run_values.publish(STEP, StepStatus.COMPLETED, 1)
    context.run_values.publish(STEP, StepStatus.SKIPPED, None)
    assert context.values["a"] == 1
    assert of_steps(context) == {"status": "skipped", "output": 1, "error": None}


def test_a_step_that_was_only_passed_over_has_no_output() -> None:
    context = context_of()
    context.run_values.publish(STEP, StepStatus.SKIPPED, None)
    assert "a" not in context.values
    assert of_steps(context) == {"status": "skipped", "error": None}


def test_the_output_of_code_is_read_like_any_other() -> None:
    async def work(scope: StepScope) -> object:
        return 1

    context = context_of()
    context.run_values.publish(python_step(work, "a"), StepStatus.COMPLETED, {"x": 1})
    assert context.values["a"] == {"x": 1}


def test_feedback_is_read_while_it_is_there() -> None:
    context = context_of()
    feedback = Feedback(step_id="check", to="a", code="bad", message="No.", attempt=1)
    context.run_values.give_feedback(feedback)
    assert (context.run_values.feedback, context.values["feedback"]) == (
        feedback,
        feedback.to_json(),
    )
    context.run_values.end_feedback("other")
    assert context.run_values.feedback == feedback
    context.run_values.end_feedback("check")
    assert context.values["feedback"] is None
