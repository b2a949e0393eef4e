"""Graphs, the choice of the next step, and how a run of several steps ends: A-01 to A-11."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import cast

import pytest
from attrs import evolve, frozen

from builders import (
    deterministic_services,
    executor_of,
    fake_tool,
    python_step,
    recipe_of,
    run_of,
    run_recipe,
    signal_step,
    text_step,
)
from minions import Minions, guide
from minions.adapters.models.script_items import tool_request
from minions.adapters.models.scripted import ScriptedModel
from minions.contracts.executions import AgentExecutionError, RunStatus, StepExecution, StepStatus
from minions.contracts.messages import MessageBundle, ToolCallRequest
from minions.contracts.steps import DefaultStep, Step, StepGraph, StepScope
from minions.data.errors import FailureInfo, GraphError, NotFoundError, UsageError
from minions.data.json_values import JsonValue
from minions.engine.compile.selection import DefaultStepGraph, DependencyStepGraph
from minions.engine.context.agent_context import Agent, AgentContext
from minions.engine.context.scope import RunScope
from minions.engine.history.memory import ConversationMemory
from minions.engine.run.agent_executor import AgentExecutor
from minions.engine.run.run_factory import tool_call_executors
from minions.engine.step.next_step import NextStepChain, NextStepLink, StepManager, Transition
from minions.recipe.kinds.recipe_kind import RecipeSpec
from minions.recipe.model import AgentRecipe


def steps_of(ids: str) -> list[Step[object]]:
    return [text_step(step_id) for step_id in ids]


def manager_of(
    ids: str, edges: Mapping[str, Sequence[str]] | None = None, **parts: ToolCallRequest
) -> StepManager:
    """`parts`: a decision tool for the step of that id."""
    steps = [text_step(step_id, decision_tool=parts.get(step_id)) for step_id in ids]
    return StepManager(DefaultStepGraph(steps, edges))


def ended(step_id: str) -> StepExecution[object]:
    return StepExecution(id="exe_1", step_id=step_id, status=StepStatus.COMPLETED)


async def advance(manager: StepManager) -> str | None:
    """The id of the next step, as an agent executor would choose it."""
    agent = Agent(recipe_of(list(manager.graph.steps)))
    scope = RunScope.of_run(agent.recipe, deterministic_services())
    context = AgentContext(
        agent,
        manager,
        ConversationMemory(),
        scope=scope,
    )
    step = await manager.advance_to_next_step(context, tool_call_executors())
    return step.id if step else None


# --- order -----------------------------------------------------------------------------------


async def test_each_step_of_a_chain_runs_once_and_in_order() -> None:
    """A-01."""
    recipe = recipe_of(steps_of("abc"), graph={"a": ["b"], "b": ["c"]})
    ran = await run_of(recipe, ["one", "two", "three"])
    assert ran.ids == ["a", "b", "c"]
    assert [each.output for each in ran.result.executions] == ["one", "two", "three"]
    assert set(ran.statuses.values()) == {"completed"}
    assert ran.result.status is RunStatus.COMPLETED
    assert ran.result.output == ran.result.unwrap() == "three"


async def test_edges_and_not_the_list_say_what_follows() -> None:
    """A-01: the first step of the list starts, edges lead on."""
    recipe = recipe_of(steps_of("abc"), graph={"a": ["c"], "c": ["b"]})
    assert (await run_of(recipe, ["1", "2", "3"])).ids == ["a", "c", "b"]


async def test_without_edges_the_list_is_the_chain() -> None:
    """A-02: the guide's example of two steps."""
    ran = await run_recipe(steps_of("ab"), ["one", "two"])
    assert ran.ids == ["a", "b"]


async def test_an_empty_mapping_of_edges_runs_the_first_step_only() -> None:
    """A-02: leaving the edges out is not the same as saying there are none."""
    ran = await run_of(recipe_of(steps_of("ab"), graph={}), ["one"])
    assert ran.ids == ["a"]


async def test_a_graph_of_ones_own_is_taken_as_it_is() -> None:
    @frozen
    class Backwards(StepGraph):
        steps: tuple[Step[object], ...]

        def find(self, step_id: str) -> Step[object] | None:
            return next((step for step in self.steps if step.id == step_id), None)

        def possible_next_steps(self, step: Step[object]) -> tuple[Step[object], ...]:
            follows = {"a": "c", "c": "b"}.get(step.id)
            return tuple(each for each in self.steps if each.id == follows)

    steps = steps_of("abc")
    ran = await run_of(recipe_of(steps, graph=Backwards(tuple(steps))), ["1", "2", "3"])
    assert ran.ids == ["a", "c", "b"]


# --- the choice --------------------------------------------------------------------------------


async def test_a_single_successor_is_chosen_without_asking_the_decision_tool() -> None:
    """A-03."""
    decide = fake_tool("decide", lambda _: "nowhere")
    steps = [text_step("a", decision_tool=tool_request("decide")), text_step("b")]
    ran = await run_recipe(steps, ["one", "two"], tools=[decide])
    assert (ran.ids, decide.asked, ran.result.warnings) == (["a", "b"], [], ())


FORK = {"a": ["b", "c"]}


async def test_the_decision_tool_names_the_successor() -> None:
    """A-04."""
    decide = fake_tool("decide", lambda _: "c")
    steps = [text_step("a", decision_tool=tool_request("decide", {"by": "x"})), *steps_of("bc")]
    ran = await run_of(recipe_of(steps, graph=FORK), ["one", "two"], tools=[decide])
    assert (ran.ids, decide.asked) == (["a", "c"], [{"by": "x"}])


async def test_a_decision_is_no_part_of_any_conversation() -> None:
    decide = fake_tool("decide", lambda _: "c")
    steps = [text_step("a", decision_tool=tool_request("decide")), *steps_of("bc")]
    ran = await run_of(recipe_of(steps, graph=FORK), ["one", "two"], tools=[decide])
    calls = [(key, state) for kind, key, state in ran.facts if kind == "tool_call"]
    assert calls == [("a/1/0/decide/1/0", "started"), ("a/1/0/decide/1/0", "finished")]
    assert not [key for kind, key, _ in ran.facts if kind == "message" and "decide" in key]


async def test_a_decision_tool_that_fails_is_told_as_such() -> None:
    decide = fake_tool("decide", lambda _: 1 / 0)
    steps = [text_step("a", decision_tool=tool_request("decide")), *steps_of("bc")]
    ran = await run_of(recipe_of(steps, graph=FORK), ["one", "two"], tools=[decide])
    assert [warning.code for warning in ran.result.warnings] == ["decision-tool-failed"]
    assert ("tool_call", "a/1/0/decide/1/0", "failed") in ran.facts


async def test_an_unknown_decision_means_the_first_in_edge_order_and_a_warning() -> None:
    """A-04: edge order, not list order."""
    decide = fake_tool("decide", lambda _: "elsewhere")
    steps = [text_step("a", decision_tool=tool_request("decide")), *steps_of("bc")]
    recipe = recipe_of(steps, graph={"a": ["c", "b"]})
    ran = await run_of(recipe, ["one", "two"], tools=[decide])
    (warning,) = ran.result.warnings
    assert (ran.ids, warning.code) == (["a", "c"], "unknown-decision")
    assert "decide said 'elsewhere'" in warning.message
    assert "legal next steps are: c, b" in warning.message
    assert ("warning", "warning/1", "recorded") in ran.facts


@pytest.mark.parametrize(
    "work",
    [lambda _: 1 / 0, lambda _: None, lambda _: {"next": "c"}, lambda _: ""],
    ids=["raises", "none", "mapping", "empty"],
)
async def test_a_decision_tool_without_an_answer_is_a_warning_too(
    work: Callable[[Mapping[str, JsonValue]], object],
) -> None:
    """A-04."""
    steps = [text_step("a", decision_tool=tool_request("decide")), *steps_of("bc")]
    recipe = recipe_of(steps, graph=FORK)
    ran = await run_of(recipe, ["one", "two"], tools=[fake_tool("decide", work)])
    assert (ran.ids, len(ran.result.warnings)) == (["a", "b"], 1)


async def test_a_decision_tool_that_is_not_there_is_a_warning() -> None:
    """A-04."""
    steps = [text_step("a", decision_tool=tool_request("decide")), *steps_of("bc")]
    ran = await run_of(recipe_of(steps, graph=FORK), ["one", "two"])
    assert ran.ids == ["a", "b"]
    assert "There is no tool 'decide' here" in ran.result.warnings[0].message


async def test_the_models_wish_for_a_legal_successor_is_honoured() -> None:
    """A-05: before any other rule, in either spelling."""
    decide = fake_tool("decide", lambda _: "b")
    steps = [signal_step("a", decision_tool=tool_request("decide")), *steps_of("bc")]
    answers = ['{"isComplete": true, "nextStepId": "c"}', "two"]
    ran = await run_of(recipe_of(steps, graph=FORK), answers, tools=[decide])
    assert (ran.ids, decide.asked, ran.result.warnings) == (["a", "c"], [], ())


async def test_an_illegal_wish_is_ignored_with_a_warning() -> None:
    """A-05: then the normal rule, here the decision tool."""
    decide = fake_tool("decide", lambda _: "c")
    steps = [signal_step("a", decision_tool=tool_request("decide")), *steps_of("bc")]
    answers = ['{"is_complete": true, "next_step_id": "a"}', "two"]
    ran = await run_of(recipe_of(steps, graph=FORK), answers, tools=[decide])
    assert ran.ids == ["a", "c"]
    assert [warning.code for warning in ran.result.warnings] == ["illegal-next-step"]


async def test_an_illegal_wish_does_not_keep_from_the_only_successor() -> None:
    """A-05."""
    answers = ['{"is_complete": true, "next_step_id": "nowhere"}', "two"]
    ran = await run_recipe([signal_step("a"), text_step("b")], answers)
    assert (ran.ids, len(ran.result.warnings)) == (["a", "b"], 1)


async def test_a_link_of_ones_own_may_choose() -> None:
    class LastInOrder(NextStepLink):
        async def select(self, transition: Transition) -> Step[object] | None:
            return transition.candidates[-1]

    manager = StepManager(
        DefaultStepGraph(steps_of("abc"), FORK),
        next_step_chain=NextStepChain((LastInOrder(),)),
    )
    assert await advance(manager) == "c"


class Longest(guide.NextStepLink):
    """The step with the longest id."""

    async def select(self, transition: guide.Transition) -> Step[object] | None:
        return max(transition.candidates, key=lambda step: len(step.id))


@pytest.mark.parametrize("is_nested", [False, True])
async def test_a_chain_of_ones_own_chooses_in_whole_runs(is_nested: bool) -> None:
    """Also in the recipes within them, and after what the model wished for where it is put so."""
    steps = [text_step("a"), text_step("b"), text_step("longer")]
    recipe = recipe_of(steps, graph={"a": ["b", "longer"]})
    if is_nested:
        recipe = recipe_of([RecipeSpec(id="inner", name="recipe", recipe=evolve(recipe, id="r"))])
    chain = guide.NextStepChain((Longest(),))
    executor = AgentExecutor(
        ScriptedModel(["one", "two"]), services=deterministic_services(), next_step_chain=chain
    )
    result = await executor.execute(recipe)
    executions = result.executions[0].steps if is_nested else result.executions
    assert [each.step_id.rpartition("/")[2] for each in executions] == ["a", "longer"]


async def test_an_application_gives_its_chain() -> None:
    steps = [signal_step("a"), text_step("b"), text_step("longer")]
    recipe = recipe_of(steps, graph={"a": ["b", "longer"]})
    wish = '{"is_complete": true, "next_step_id": "b"}'
    for chain, second in (
        (guide.NextStepChain().prepend(Longest()), "longer"),
        (guide.NextStepChain((guide.InstructedStepLink(), Longest())), "b"),
    ):
        model = ScriptedModel([wish, "two"])
        async with Minions(model=model, next_step_chain=chain) as m:
            result = await m.arun(recipe)
        assert [each.step_id for each in result.executions] == ["a", second]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ("b", "chose 'b' after step 'a'; legal next steps are: b, c."),
        (text_step("b"), "chose 'b' after step 'a'; legal next steps are: b, c."),
        (text_step("z"), "chose 'z' after step 'a'"),
        (LookupError("lost"), "raised after step 'a': LookupError: lost"),
    ],
)
async def test_a_link_that_chooses_no_candidate_fails_the_run(answer: object, words: str) -> None:
    class Wrong(guide.NextStepLink):
        async def select(self, transition: guide.Transition) -> Step[object] | None:
            if isinstance(answer, Exception):
                raise answer
            return cast("Step[object]", answer)

    recipe = recipe_of(steps_of("abc"), graph={"a": ["b", "c"]})
    executor = AgentExecutor(
        ScriptedModel(["one", "two"]),
        services=deterministic_services(),
        next_step_chain=guide.NextStepChain((Wrong(),)),
    )
    result = await executor.execute(recipe)
    assert result.error is not None
    assert (result.error.code, result.error.where) == ("bad-next-step", "a")
    assert words in result.error.message
    assert [each.step_id for each in result.executions] == ["a"]


def test_what_is_no_link_is_refused() -> None:
    with pytest.raises(UsageError, match="NextStepLink"):
        guide.NextStepChain((Longest,))  # type: ignore[arg-type]  # what is wrong


# --- the manager -------------------------------------------------------------------------------


async def test_without_successor_the_workflow_is_complete() -> None:
    """A-06."""
    manager = manager_of("a")
    assert (await advance(manager), manager.current_step) == (None, None)
    assert manager.is_workflow_complete
    assert await advance(manager) is None


def test_the_current_step_is_set_by_object_id_none_or_an_unknown_id() -> None:
    """A-07."""
    manager = manager_of("abc")
    first, second, third = manager.graph.steps

    def state() -> tuple[Step[object] | None, bool]:
        return manager.current_step, manager.is_workflow_complete

    assert state() == (first, False)
    manager.set_current_step(third)
    assert state() == (third, False)
    manager.set_current_step("b")
    assert state() == (second, False)
    manager.set_current_step(None)
    assert state() == (None, True)
    manager.set_current_step("b")
    manager.set_current_step("nobody")
    assert state() == (None, True)


def test_the_manager_keeps_every_execution_of_a_repeated_step() -> None:
    manager = manager_of("ab")
    again = StepExecution[object](id="exe_3", step_id="a", status=StepStatus.FAILED)
    for execution in (ended("a"), ended("b"), again):
        manager.record(execution)
    assert manager.step_executions == (ended("a"), ended("b"), again)
    assert (manager.latest("a"), manager.visits("a")) == (again, 2)
    assert (manager.latest("c"), manager.visits("c")) == (None, 0)
    assert (manager.has_failed("a"), manager.has_failed("b")) == (True, False)


# --- what is no graph --------------------------------------------------------------------------


def no_steps() -> object:
    return DefaultStepGraph([])


def twins() -> object:
    return DefaultStepGraph(steps_of("aba"))


def edge_to_nowhere() -> object:
    return DefaultStepGraph(steps_of("ab"), {"a": ["bb"]})


def edge_from_nowhere() -> object:
    return DefaultStepGraph(steps_of("ab"), {"x": ["b"]})


def unknown_dependency() -> object:
    return DependencyStepGraph(steps_of("ab"), {"b": ["x"]})


def cycle() -> object:
    return DependencyStepGraph(steps_of("abcd"), {"b": ["c"], "c": ["d"], "d": ["b"]})


def cycle_through_after() -> object:
    return DependencyStepGraph(steps_of("ab"), {"b": ["a"]}, {"a": ["b"]})


def slash() -> object:
    return DefaultStepGraph([text_step("a/b")])


def blank() -> object:
    return DefaultStepGraph([text_step("a"), text_step(" ")])


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (no_steps, "at least one step"),
        (twins, "Two steps have the id 'a'"),
        (edge_to_nowhere, "The edge from 'a' leads nowhere: 'bb' is no step"),
        (edge_from_nowhere, "'x' is no step of this graph"),
        (unknown_dependency, "Step 'b' depends on what is not there: 'x'"),
        (cycle, "wait for each other in a cycle: b → c → d → b."),
        (cycle_through_after, "in a cycle: a → b → a."),
        (slash, "'a/b' holds a '/'"),
        (blank, "Step 2 has the id ' '"),
    ],
)
def test_what_is_no_graph_is_refused_by_name(build: Callable[[], object], words: str) -> None:
    """A-08."""
    with pytest.raises(GraphError, match=re.escape(words)):
        build()


def test_an_unknown_id_comes_with_the_near_one() -> None:
    """A-08."""
    with pytest.raises(GraphError) as caught:
        DefaultStepGraph([text_step("fetch"), text_step("report")], {"fetch": ["reprot"]})
    assert caught.value.suggestions == ("report",)


async def test_a_broken_graph_is_refused_before_anything_runs() -> None:
    """A-08: for a recipe, too."""
    model = ScriptedModel(["never"])
    with pytest.raises(GraphError, match="Two steps have the id 'a'"):
        await executor_of(model).execute(recipe_of(steps_of("aa")))
    with pytest.raises(GraphError, match="at least one step"):
        await executor_of(model).execute(recipe_of([]))
    assert model.prompts == []


# --- cycles --------------------------------------------------------------------------------------


async def test_a_step_that_would_run_twice_fails_the_run() -> None:
    """A-09: the first round is kept."""
    recipe = recipe_of(steps_of("ab"), graph={"a": ["b"], "b": ["a"]})
    ran = await run_of(recipe, ["one", "two", "three"])
    assert ran.result.status is RunStatus.FAILED
    assert ran.result.error is not None
    assert (ran.result.error.code, ran.result.error.where) == ("repeated-step", "a")
    assert ran.statuses == {"a": "completed", "b": "completed"}
    with pytest.raises(AgentExecutionError, match="Step 'a' would run a second time") as caught:
        ran.result.unwrap()
    assert (caught.value.error_code, caught.value.result) == ("repeated-step", ran.result)


async def test_allowed_repetition_is_bounded_by_the_step_budget() -> None:
    """A-09."""
    recipe = recipe_of(
        steps_of("ab"),
        graph={"a": ["b"], "b": ["a"]},
        limits={"allow_repeated_steps": True, "max_steps": 5},
    )
    ran = await run_of(recipe, lambda prompt: "again")
    assert ran.ids == ["a", "b", "a", "b", "a"]
    assert ran.result.status is RunStatus.LIMIT_REACHED
    assert ran.result.error is not None
    assert "max_steps=5" in ran.result.error.message


async def test_allowed_repetition_without_a_budget_of_ones_own_still_ends() -> None:
    """A-09."""
    recipe = recipe_of(steps_of("a"), graph={"a": ["a"]}, limits={"allowRepeatedSteps": True})
    ran = await run_of(recipe, lambda prompt: "again")
    assert (len(ran.ids), ran.result.status) == (100, RunStatus.LIMIT_REACHED)
    assert ran.result.error is not None
    assert "max_steps=100" in ran.result.error.message


async def test_a_cycle_may_end_by_itself() -> None:
    """A-09: the model's wish leads out of it."""
    steps = [signal_step("a"), signal_step("b"), signal_step("c")]
    recipe = recipe_of(
        steps, graph={"a": ["b"], "b": ["a", "c"]}, limits={"allow_repeated_steps": True}
    )
    out = '{"is_complete": true, "next_step_id": "c"}'
    done = "status: done"
    ran = await run_of(recipe, [done, done, done, out, done])
    assert (ran.ids, ran.result.status) == (["a", "b", "a", "b", "c"], RunStatus.COMPLETED)
    assert [each.id for each in ran.result.executions] == [
        "run_1/a/1/0", "run_1/b/1/0", "run_1/a/2/0", "run_1/b/2/0", "run_1/c/1/0",
    ]  # fmt: skip


# --- failures --------------------------------------------------------------------------------


async def test_after_a_failed_required_step_nothing_later_runs() -> None:
    """A-10."""

    async def fail(scope: StepScope) -> object:
        raise ValueError("no luck")

    steps = [text_step("a"), python_step(fail, "b"), text_step("c")]
    ran = await run_recipe(steps, ["one", "never"])
    assert ran.statuses == {"a": "completed", "b": "failed"}
    assert ran.result.status is RunStatus.FAILED
    error = FailureInfo(
        code="step-raised", message="Step 'b' raised ValueError: no luck", where="b"
    )
    assert ran.result.step("b").error == ran.result.error == error
    assert (ran.result.output, len(ran.prompts)) == (None, 1)


async def test_an_optional_step_may_fail() -> None:
    """A-10: only a required one stops the run."""

    async def fail(scope: StepScope) -> object:
        raise ValueError("no luck")

    ran = await run_recipe([python_step(fail, "a", optional=True), text_step("b")], ["two"])
    assert ran.statuses == {"a": "failed", "b": "completed"}
    assert (ran.result.status, ran.result.unwrap()) == (RunStatus.PARTIAL, "two")


async def test_a_graph_that_raises_while_it_is_walked_fails_the_run() -> None:
    """A-10: every end is a result; what ran is in it."""

    class BrokenGraph(DefaultStepGraph):
        def possible_next_steps(self, step: Step[object]) -> tuple[Step[object], ...]:
            raise LookupError("no way on")

    steps = steps_of("ab")
    ran = await run_of(recipe_of(steps, graph=BrokenGraph(steps)), ["one"])
    assert (ran.statuses, ran.result.status) == ({"a": "completed"}, RunStatus.FAILED)
    assert ran.result.error == FailureInfo(
        code="run-raised",
        message="The run raised LookupError: no way on. What was done is kept.",
    )


# --- recipes by id -----------------------------------------------------------------------------


async def test_an_unknown_recipe_id_is_not_found() -> None:
    """A-11."""
    with pytest.raises(NotFoundError, match="No recipe 'ghost'") as caught:
        await executor_of(ScriptedModel([])).execute("ghost")
    assert caught.value.error_code == "recipe-not-found"


async def test_a_recipe_is_found_by_its_id() -> None:
    """A-11: and runs without a message bundle."""
    recipe = AgentRecipe(id="bare", steps=[DefaultStep(id="a", messages=MessageBundle())])

    def find(recipe_id: str) -> AgentRecipe:
        return {"bare": recipe}[recipe_id]

    executor = AgentExecutor(ScriptedModel(["status: done"]), recipes=find)
    result = await executor.execute("bare")
    assert (result.recipe_id, result.status) == ("bare", RunStatus.COMPLETED)


def test_a_result_knows_the_near_names_of_its_steps() -> None:
    """A-11: the same courtesy for steps."""
    from minions.contracts.executions import AgentResult

    result = AgentResult[object](
        run_id="r",
        session_id="s",
        recipe_id="x",
        status=RunStatus.COMPLETED,
        executions=(ended("fetch"),),
        step_ids={"fetch": 0},
    )
    with pytest.raises(NotFoundError, match="no step 'fetsh'") as caught:
        result.step("fetsh")
    assert caught.value.suggestions == ("fetch",)
