"""Recipes with a `graph`: what comes next, who says so, and how such a run goes on."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping

import pytest
from attrs import evolve
from hypothesis import assume, given
from hypothesis import strategies as st

from builders import (
    ConstrainedModel,
    ConstrainingParser,
    Ran,
    answer_of,
    border_in,
    deterministic_services,
    executor_of,
    fake_tool,
    run_of,
)
from minions.adapters.models.script_items import Answer, tool_request
from minions.adapters.models.scripted import ScriptedModel
from minions.analysis.explanation import explain
from minions.analysis.pictures.picture import picture_of
from minions.analysis.pictures.svg import svg
from minions.analysis.pictures.text_pictures import mermaid, picture_to_json
from minions.analysis.pictures.text_pictures import outline as drawn
from minions.contracts.calls import ModelFailure, Prompt
from minions.contracts.decision_types import ApprovalRequest, Decider, NoAnswer, Question, Verdict
from minions.contracts.executions import AgentExecutionError, RunStatus
from minions.contracts.instructions import OutputMode
from minions.contracts.messages import TokenUsage
from minions.contracts.tools import Effect, Tool, Toolbox
from minions.data.errors import GraphError, RecipeError
from minions.data.json_values import JsonValue, dumps
from minions.engine.compile.build import build_recipe
from minions.engine.compile.dry_run import planned_steps
from minions.engine.compile.extensions import Extensions
from minions.engine.compile.selection import DefaultStepGraph
from minions.engine.run.recipe_changes import steps_from
from minions.engine.views.lookup import list_runs
from minions.engine.views.run_detail import show_run
from minions.recipe.catalog import Catalog, FoundRecipe
from minions.recipe.kinds.set_kind import SetSpec
from minions.recipe.model import AgentRecipe
from minions.recipe.reading.load import recipe_from_document
from mortal import KilledError, World, outline

Document = dict[str, JsonValue]


def loaded(document: Document, tools: list[Tool] | None = None, **recipes: Document) -> AgentRecipe:
    def find(name: str, directory: str | None) -> FoundRecipe:
        return FoundRecipe(identity=name, file=f"{name}.yaml", document=recipes[name])

    names = [tool.spec.name for tool in tools or []]
    catalog = Catalog(tools={tool.spec.name: tool.spec for tool in tools or []}, find_recipe=find)
    return recipe_from_document({"id": "recipe", "tools": names, **document}, catalog)


def echo(prompt: Prompt) -> Answer:
    return f"re: {prompt.messages[-1].content}"


async def ran(document: Document, tools: list[Tool] | None = None) -> Ran:
    return await run_of(loaded(document, tools), echo, tools=tools or [])


AGAIN: JsonValue = {"allow_repeated_steps": True, "max_steps": 12}


def fork(**parts: JsonValue) -> Document:
    """`a`, then `left` or `right`; `parts` are those of `a`."""
    first: Document = {"id": "a", "set": {"to": "right"}, **parts}
    if "goal" in parts:
        del first["set"]
    return {
        "graph": {"a": ["left", "right"]},
        "steps": [
            first,
            {"id": "left", "description": "The way of the heart.", "set": {"x": "L"}},
            {"id": "right", "set": {"x": "R"}},
        ],
    }


# --- a template says it ---------------------------------------------------------------------------


async def test_the_value_of_a_template_names_the_next_step() -> None:
    done = await ran(fork(route="{{ a.to }}"))
    assert (done.ids, done.result.output) == (["a", "right"], {"x": "R"})
    assert done.prompts == []


COUNT: Document = {
    "graph": {"count": ["count", "end"]},
    "limits": AGAIN,
    "steps": [
        {
            "id": "count",
            "set": {"n": "{{ (count.n | default(0)) + 1 }}"},
            "route": "{{ 'end' if count.n == 3 else 'count' }}",
        },
        {"id": "end", "set": {"all": "{{ count.n }}", "same": "{{ steps.count.output.n }}"}},
    ],
}


async def test_a_step_that_comes_again_leaves_its_newest_output() -> None:
    done = await ran(COUNT)
    assert done.ids == ["count", "count", "count", "end"]
    assert done.result.output == {"all": 3, "same": 3}
    assert [e.id for e in done.result.executions][1:3] == ["run_1/count/2/0", "run_1/count/3/0"]


async def test_a_circle_ends_at_the_limit_of_the_run() -> None:
    done = await ran({**COUNT, "limits": {"allow_repeated_steps": True, "max_steps": 2}})
    assert (done.ids, done.result.status) == (["count", "count"], RunStatus.LIMIT_REACHED)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("rihgt", "gave 'rihgt', which is no step that may come next. Did you mean"),
        ("a", "gave 'a', which"),
        (1, "gave '1', which"),
        (None, "gave 'null', which"),
    ],
)
async def test_any_other_value_fails_the_run_and_names_the_legal_ones(
    value: JsonValue, words: str
) -> None:
    recipe = loaded(fork(route="{{ inputs.to }}") | {"inputs": {"to": {}}})
    done = await run_of(recipe, inputs={"to": value})
    error = done.result.error
    assert error is not None
    assert (done.result.status, error.code, error.where) == (RunStatus.FAILED, "bad-route", "a")
    assert words in error.message
    assert error.message.endswith("It has to give one of: left, right.")
    assert done.statuses == {"a": "completed"}
    with pytest.raises(AgentExecutionError):
        done.result.unwrap()


async def test_a_value_that_is_not_there_fails_the_run() -> None:
    recipe = loaded(
        fork(set={"to": "{{ inputs.to }}"}, route="{{ a.to.x }}") | {"inputs": {"to": {}}}
    )
    done = await run_of(recipe, inputs={"to": {}})
    assert done.result.error is not None
    assert done.result.error.code == "missing-value"
    assert done.result.error.message.startswith("The route of step 'a': 'a.to.x' has no value")


async def test_what_led_nowhere_is_mended_and_goes_on_without_repeating_the_step() -> None:
    world = World()
    executor = world.executor(world.model(echo))
    inputs: dict[str, JsonValue] = {"inputs": {"to": "nowhere"}}
    wrong = loaded(fork(goal="Work.", route="{{ inputs.to }}") | inputs)
    assert (await executor.execute(wrong)).status is RunStatus.FAILED
    again = world.executor(world.model(echo))
    assert (await again.retry("run_1")).status is RunStatus.FAILED
    mended = loaded(fork(goal="Work.", route="{{ 'right' }}") | inputs)
    result = await again.retry("run_1", recipe=mended)
    assert (result.status, result.output) == (RunStatus.COMPLETED, {"x": "R"})
    assert sum(world.asked.values()) == 1


# --- a model says it ------------------------------------------------------------------------------


def to(step_id: str) -> str:
    return dumps({"next": step_id, "reason": "so it is"})


async def test_a_question_is_put_to_the_model_once() -> None:
    recipe = loaded(fork(route="Is {{ a.to }} right?"))
    done = await run_of(recipe, [answer_of(to("right"), input_tokens=7, output_tokens=2)])
    assert (done.ids, done.result.output) == (["a", "right"], {"x": "R"})
    (prompt,) = done.prompts
    border = border_in(prompt)
    assert prompt[-1].content == (
        "Question: Is right right?\n\n"
        f'<{border} step="a">\n'
        '{"to":"right"}\n'
        f"</{border}>\n\n"
        "Steps that may come next:\n"
        "- left: The way of the heart.\n"
        "- right"
    )
    assert '"next": "left" | "right"' in str(prompt[1].content)
    assert done.result.usage == TokenUsage(input_tokens=7, output_tokens=2)
    kinds = [(kind, key.partition("#")[0], state) for kind, key, state in done.facts]
    assert kinds == [
        ("run", "run", "started"),
        ("step", "a/1/0", "finished"),
        ("conversation", "a/1/0/route", "started"),
        ("model_call", "a/1/0/route", "finished"),
        ("route", "a/1/0/route", "finished"),
        ("step", "right/1/0", "finished"),
        ("run", "run", "finished"),
    ]
    assert done.entries[4].body == {"step_id": "a", "output": "right", "reason": "so it is"}


async def test_the_result_in_the_question_is_bounded() -> None:
    recipe = loaded(fork(goal="Work.", route="Where?"))
    done = await run_of(recipe, ["x" * 9_000, to("left")])
    assert "x" * 3_999 + "\n… (5002 more characters left out)" in str(done.prompts[1][-1].content)
    assert done.ids == ["a", "left"]


async def test_an_answer_that_names_no_next_step_is_repaired_once() -> None:
    done = await run_of(loaded(fork(route="Where?")), [to("up"), to("left")])
    assert (done.ids, len(done.prompts)) == (["a", "left"], 2)


async def test_after_that_the_run_fails() -> None:
    done = await run_of(loaded(fork(route="Where?")), [to("up"), to("down")])
    assert (done.result.status, done.statuses) == (RunStatus.FAILED, {"a": "completed"})
    assert done.result.error is not None
    assert done.result.error.where == "a"
    assert done.result.error.message.startswith("The route of step 'a':")
    (row,) = [entry for entry in done.entries if entry.kind == "route"]
    assert (row.state, row.body["reason"]) == ("failed", done.result.error.message)
    assert row.body["error"] == dict(done.result.error.to_json())


async def test_an_answer_that_says_more_than_was_asked_is_repaired() -> None:
    more = dumps({"next": "left", "reason": "so", "also": "this"})
    done = await run_of(loaded(fork(route="Where?")), [more, to("right")])
    assert (done.ids, len(done.prompts)) == (["a", "right"], 2)


async def test_a_choice_that_failed_is_made_again_by_a_retry() -> None:
    """The step before it is not done again: it may have sent something."""
    world = World()
    is_broken = True

    def answer(prompt: Prompt) -> Answer:
        if str(prompt.messages[-1].content).startswith("Question"):
            return ModelFailure(code="refused", message="not now") if is_broken else to("right")
        return echo(prompt)

    recipe = loaded(fork(goal="Work.", route="Where?"))
    result = await world.executor(world.model(answer)).execute(recipe)
    assert result.error is not None
    assert (result.status, result.error.code) == (RunStatus.FAILED, "refused")
    assert sum(world.asked.values()) == 2
    is_broken = False
    result = await world.executor(world.model(answer)).retry("run_1")
    assert (result.status, sum(world.asked.values())) == (RunStatus.COMPLETED, 3)
    keys = [entry.key for entry in await world.journal.entries() if entry.kind == "route"]
    assert keys == ["a/1/0/route", "a/1/0/route@2"]
    told = await world.executor(world.model(answer)).resume("run_1")
    assert (told.output, sum(world.asked.values())) == ({"x": "R"}, 3)


async def test_a_retry_of_a_choice_that_is_killed_goes_on_with_it() -> None:
    recipe = loaded(fork(goal="Work.", route="Where?"))

    def broken(prompt: Prompt) -> Answer:
        words = str(prompt.messages[-1].content)
        failure = ModelFailure(code="refused", message="not now")
        return failure if words.startswith("Question") else echo(prompt)

    def mended(prompt: Prompt) -> Answer:
        return to("right")

    first = len(["run", "step", "model", "step", "conversation", "model", "route", "run"])
    facts = ["resumed", "conversation", "model", "route", "right", "run"]
    for at in range(1, len(facts)):
        world = World()
        await world.executor(world.model(broken)).execute(recipe)
        assert world.journal.count == first
        world.journal.dies_at = first + at
        with pytest.raises(KilledError):
            await world.executor(world.model(mended)).retry("run_1")
        world.journal.revive()
        result = await world.executor(world.model(mended)).resume("run_1")
        assert (result.status, result.output) == (RunStatus.COMPLETED, {"x": "R"})
        assert sum(world.asked.values()) == 3


async def test_a_choice_that_failed_within_a_recipe_is_made_again_there() -> None:
    world = World()
    is_broken = True

    def answer(prompt: Prompt) -> Answer:
        if str(prompt.messages[-1].content).startswith("Question"):
            return ModelFailure(code="refused", message="not now") if is_broken else to("right")
        return echo(prompt)

    inner: Document = {"id": "inner", **fork(goal="Work.", route="Where?")}
    recipe = loaded({"steps": [{"id": "call", "recipe": "inner"}]}, inner=inner)
    assert (await world.executor(world.model(answer)).execute(recipe)).status is RunStatus.FAILED
    is_broken = False
    result = await world.executor(world.model(answer)).retry("run_1")
    assert (result.status, result.output) == (RunStatus.COMPLETED, {"x": "R"})
    assert sum(world.asked.values()) == 3


async def test_the_limit_of_the_run_holds_for_the_choice() -> None:
    recipe = loaded(fork(goal="Work.", route="Where?") | {"limits": {"max_tokens": 10}})
    done = await run_of(recipe, [answer_of("done"), to("left")])
    assert (done.result.status, len(done.prompts)) == (RunStatus.LIMIT_REACHED, 1)
    assert "route" not in [kind for kind, _, _ in done.facts]


async def test_the_budget_of_the_step_is_not_that_of_the_choice() -> None:
    recipe = loaded(fork(goal="Work.", route="Where?", limits={"max_model_calls_per_step": 1}))
    done = await run_of(recipe, ["done", to("left")])
    assert (done.ids, done.result.status) == (["a", "left"], RunStatus.COMPLETED)


async def test_what_a_choice_needs_for_its_form_is_loaded_before_the_model_is_asked() -> None:
    """Also where the step itself declares no output."""
    loaded_for: list[OutputMode] = []

    class Loading(ConstrainingParser):
        async def warm_up(self, mode: OutputMode) -> None:
            loaded_for.append(mode)

    recipe = loaded(fork(goal="Work.", route="Where?"))
    services = evolve(deterministic_services(), parser=Loading())
    done = await run_of(recipe, ConstrainedModel(["done", to("left")]), services=services)
    assert (done.ids, loaded_for) == (["a", "left"], [OutputMode.JSON_SCHEMA])


def test_a_model_is_looked_for_before_the_run_also_for_a_choice_alone() -> None:
    def asking(document: Document) -> tuple[str, ...]:
        built = build_recipe(loaded(document), Toolbox(), Extensions())
        return tuple(step_id for step_id, _ in built.asking)

    assert asking(fork(route="Where?")) == ("a",)
    assert asking(fork(route="{{ a.to }}")) == ()


# --- steps that leave nothing ---------------------------------------------------------------------


async def test_after_a_step_that_is_skipped_the_walk_goes_on() -> None:
    done = await ran(
        {
            "graph": {"a": "b", "b": "c"},
            "steps": [
                {"id": "a", "set": {"go": False}},
                {"id": "b", "when": "a.go", "set": {"x": 1}},
                {"id": "c", "set": {"x": "{{ b.x | default(2) }}", "b": "{{ steps.b.status }}"}},
            ],
        }
    )
    assert done.statuses == {"a": "completed", "b": "skipped", "c": "completed"}
    assert (done.result.status, done.result.output) == (
        RunStatus.COMPLETED,
        {"x": 2, "b": "skipped"},
    )


async def test_a_template_decides_also_after_a_skip_and_a_model_does_not() -> None:
    route = "{{ 'left' if steps.a.status == 'completed' else 'right' }}"
    assert (await ran(fork(when="false", route=route))).ids == ["a", "right"]
    asked = await ran(fork(when="false", route="Where?"))
    assert (asked.ids, asked.prompts) == (["a", "left"], [])


async def test_after_an_optional_failure_the_walk_goes_on() -> None:
    def broken(arguments: Mapping[str, JsonValue]) -> object:
        raise RuntimeError("no")

    document = fork(
        tool="look", optional=True, route="{{ 'right' if steps.a.status == 'failed' else 'left' }}"
    )
    steps = document["steps"]
    assert isinstance(steps, list)
    first = steps[0]
    assert isinstance(first, dict)
    del first["set"]
    done = await ran(document, [fake_tool("look", broken)])
    assert (done.ids, done.result.status) == (["a", "right"], RunStatus.PARTIAL)


async def test_a_step_that_is_skipped_when_it_comes_again_keeps_what_it_left() -> None:
    done = await ran(
        {
            "graph": {"count": "once", "once": ["count", "end"]},
            "limits": AGAIN,
            "steps": [
                {"id": "count", "set": {"n": "{{ (count.n | default(0)) + 1 }}"}},
                {
                    "id": "once",
                    "when": "count.n == 1",
                    "set": {"at": "{{ count.n }}"},
                    "route": "{{ 'count' if count.n < 3 else 'end' }}",
                },
                {
                    "id": "end",
                    "set": {
                        "at": "{{ once.at | default(0) }}",
                        "same": "{{ steps.once.output.at | default(0) }}",
                        "now": "{{ steps.once.status }}",
                    },
                },
            ],
        }
    )
    assert done.result.output == {"at": 1, "same": 1, "now": "skipped"}


async def test_a_circle_of_skipped_steps_ends_at_the_limit_too() -> None:
    never: Document = {"when": "false", "set": {"x": 1}}
    done = await ran(
        {
            "graph": {"a": "b", "b": ["a", "c"]},
            "limits": AGAIN,
            "steps": [{"id": "a", **never}, {"id": "b", **never}, {"id": "c", "set": {"x": 1}}],
        }
    )
    assert (done.result.status, len(done.ids)) == (RunStatus.LIMIT_REACHED, 12)


async def test_a_required_failure_stops_the_run() -> None:
    done = await ran(
        {
            "graph": {"a": "b"},
            "steps": [
                {"id": "a", "assert": "1 == 2"},
                {"id": "b", "set": {"x": 1}},
            ],
        }
    )
    assert (done.result.status, done.statuses) == (RunStatus.FAILED, {"a": "failed"})


async def test_a_failure_that_is_no_matter_does_not_end_the_walk() -> None:
    steps: list[JsonValue] = [
        {"id": "a", "assert": "1 == 2", "on_error": "continue"},
        {"id": "b", "set": {"x": "{{ steps.a.status }}"}},
    ]
    done = await ran({"graph": {"a": "b"}, "steps": steps})
    assert (done.result.status, done.result.output) == (RunStatus.PARTIAL, {"x": "failed"})


async def test_a_failure_may_lead_back() -> None:
    """A step that is gone back to is told what went wrong."""
    done = await ran(
        {
            "graph": {"make": "check", "check": "end"},
            "steps": [
                {"id": "make", "set": {"n": "{{ feedback.attempt | default(0) }}"}},
                {"id": "check", "assert": "make.n > 0", "on_error": {"goto": "make"}},
                {"id": "end", "set": {"n": "{{ make.n }}"}},
            ],
        }
    )
    assert (done.ids, done.result.output) == (["make", "check", "make", "check", "end"], {"n": 1})


# --- kinds of steps -------------------------------------------------------------------------------


async def test_loops_saved_names_and_goals_work_as_elsewhere() -> None:
    done = await ran(
        {
            "graph": {"list": "each", "each": ["sum", "other"]},
            "steps": [
                {"id": "list", "set": {"of": [1, 2]}},
                {
                    "id": "each",
                    "loop": "{{ list.of }}",
                    "aggregate": True,
                    "goal": "Do {{ loop.item }}.",
                    "save_as": "all",
                    "route": "{{ 'sum' if all | length == 2 else 'other' }}",
                },
                {"id": "sum", "goal": "Add {{ all }}."},
                {"id": "other", "set": {"x": 1}},
            ],
        }
    )
    assert done.ids == ["list", "each", "sum"]
    assert [len(prompt) for prompt in done.prompts] == [1, 1, 1]
    assert done.result.output == 're: Add ["re: Do 1.","re: Do 2."].'


async def test_a_recipe_with_a_graph_may_be_a_step_of_a_graph() -> None:
    outer: Document = {
        "graph": {"call": ["call", "end"]},
        "limits": AGAIN,
        "steps": [
            {
                "id": "call",
                "recipe": "count",
                "route": "Once more?",
            },
            {"id": "end", "set": {"n": "{{ call }}"}},
        ],
    }
    inner: Document = {**COUNT, "id": "count", "output": "{{ end.all }}"}
    world = World()

    def answer(prompt: Prompt) -> Answer:
        return to("end")

    recipe = loaded(outer, count=inner)
    result = await world.executor(world.model(answer)).execute(recipe)
    assert (result.status, result.output) == (RunStatus.COMPLETED, {"n": 3})
    assert [step.step_id for step in result.step("call").steps] == ["count"] * 3 + ["end"]


async def test_a_choice_within_a_recipe_that_is_a_step_is_recorded_at_its_place() -> None:
    outer: Document = {"steps": [{"id": "call", "recipe": "inner"}]}
    inner: Document = {"id": "inner", **fork(route="Where?")}
    world = World()
    recipe = loaded(outer, inner=inner)
    result = await world.executor(world.model(lambda prompt: to("right"))).execute(recipe)
    assert result.output == {"x": "R"}
    (row,) = [entry for entry in await world.journal.entries() if entry.kind == "route"]
    assert (row.key, row.body["step_id"]) == ("call~1~0~a/1/0/route", "call/a")


async def test_specs_made_by_code_may_have_a_graph_of_ids_only() -> None:
    steps = [SetSpec(id="a", set={"x": 1}), SetSpec(id="b", set={"x": 2})]
    recipe = AgentRecipe(id="recipe", steps=steps, graph={"a": ["b"]})
    assert (await run_of(recipe)).ids == ["a", "b"]
    built = build_recipe(recipe, Toolbox(), Extensions())
    assert isinstance(built.graph, DefaultStepGraph)
    with pytest.raises(GraphError, match="cannot be mixed"):
        executor_of(ScriptedModel([])).prepare(
            AgentRecipe(id="recipe", steps=steps, graph=built.graph)
        )


async def test_where_one_step_may_come_next_nobody_is_asked_which() -> None:
    """A recipe made by code may say so; a file is refused."""
    steps = [SetSpec(id="a", set={"x": 1}, route="{{ 'c' }}"), SetSpec(id="b", set={"x": 2})]
    recipe = AgentRecipe(id="recipe", steps=steps, graph={"a": ["b"]})
    done = await run_of(recipe)
    assert (done.result.status, done.ids) == (RunStatus.COMPLETED, ["a", "b"])


# --- a tool says it -------------------------------------------------------------------------------


async def test_a_decision_tool_is_given_what_its_templates_say() -> None:
    decide = fake_tool("decide", lambda arguments: arguments["where"])
    done = await ran(
        fork(decision_tool={"tool": "decide", "params": {"where": "{{ a.to }}"}}), [decide]
    )
    assert (done.ids, decide.asked) == (["a", "right"], [{"where": "right"}])
    by_name = await ran(fork(decision_tool="decide"), [fake_tool("decide", lambda _: "right")])
    assert by_name.ids == ["a", "right"]


async def test_a_decision_tool_without_an_answer_means_the_first_and_a_warning() -> None:
    call: JsonValue = {"tool": "decide", "params": {"where": "{{ a.to.x.y }}"}}
    for decision in ("decide", call):
        decide = fake_tool("decide", lambda _: "up")
        recipe = loaded(
            fork(goal="Work.", output={"to": "object"}, decision_tool=decision), [decide]
        )
        done = await run_of(recipe, ['{"to": {}}'], tools=[decide])
        assert (done.ids, len(done.result.warnings)) == (["a", "left"], 1)


async def test_the_models_own_wish_counts_less_than_a_route_and_more_than_a_tool() -> None:
    wish = '{"is_complete": true, "next_step_id": "right"}'
    decide = fake_tool("decide", lambda _: "left")

    async def where(**parts: JsonValue) -> list[str]:
        recipe = loaded(fork(goal="Work.", completion="signal", **parts), [decide])
        return (await run_of(recipe, [wish], tools=[decide])).ids

    assert await where() == ["a", "right"]
    assert await where(decision_tool="decide") == ["a", "right"]
    assert await where(route="{{ 'left' }}") == ["a", "left"]


# --- going on -------------------------------------------------------------------------------------

ROUNDS: Document = {
    "permissions": {"allow_write": True},
    "graph": {"count": "draft", "draft": "review", "review": ["count", "publish"]},
    "limits": AGAIN,
    "steps": [
        {"id": "count", "set": {"n": "{{ (count.n | default(0)) + 1 }}"}},
        {"id": "draft", "goal": "Draft {{ count.n }}."},
        {
            "id": "review",
            "tool": "look",
            "params": {"at": "{{ draft }}"},
            "route": "Is draft {{ count.n }} good?",
        },
        {"id": "publish", "set": {"text": "{{ draft }}"}},
    ],
}


def reviewer(prompt: Prompt) -> Answer:
    """The second draft is good."""
    words = str(prompt.messages[-1].content)
    if not words.startswith("Question"):
        return echo(prompt)
    return to("count" if "draft 1" in words else "publish")


WITHIN: Document = {
    "permissions": {"allow_write": True},
    "graph": {"story": ["again", "end"], "again": "story"},
    "limits": {"allow_repeated_steps": True, "max_steps": 40},
    "steps": [
        {"id": "story", "recipe": "rounds", "decision_tool": "look"},
        {"id": "again", "when": "story.text == 'x'", "set": {"x": 1}},
        {"id": "end", "set": {"text": "{{ story.text }}"}},
    ],
}


@pytest.mark.parametrize("document", [ROUNDS, WITHIN], ids=["alone", "within another"])
async def test_killed_at_any_fact_it_goes_on_without_asking_twice(document: Document) -> None:
    quiet = World()

    def tools(world: World) -> list[Tool]:
        return [world.tool("look", Effect.IDEMPOTENT, "end")]

    recipe = loaded(document, tools(quiet), rounds={"id": "rounds", "tools": ["look"], **ROUNDS})
    expected = await quiet.executor(quiet.model(reviewer), tools(quiet)).execute(recipe)
    ids = [each.step_id for each in expected.executions]
    whole = [*["count", "draft", "review"] * 2, "publish"]
    assert ids == (whole if document is ROUNDS else ["story", "end"])
    assert expected.output == {"text": "re: Draft 2."}
    for loses_last in (False, True):
        for at in range(2, len(await quiet.journal.entries()) + 1):
            world = World()
            executor = world.executor(world.model(reviewer), tools(world))
            assert await world.killed(executor, recipe, at, loses_last=loses_last)
            again = world.executor(world.model(reviewer), tools(world))
            result = await again.resume("run_1")
            assert outline(result) == outline(expected), at
            assert [each.step_id for each in result.executions] == ids
            # Only what was under way when the process died is asked again.
            assert sum(world.asked.values()) <= sum(quiet.asked.values()) + loses_last, at
            assert set(world.done) == set(quiet.done), at


async def test_a_failure_in_the_second_round_is_retried_there() -> None:
    world = World()
    is_broken = True

    def answer(prompt: Prompt) -> Answer:
        if is_broken and str(prompt.messages[-1].content) == "Draft 2.":
            return ModelFailure(code="refused", message="not now")
        return reviewer(prompt)

    tools: list[Tool] = [world.tool("look", Effect.PURE, "seen")]
    recipe = loaded(ROUNDS, tools)
    result = await world.executor(world.model(answer), tools).execute(recipe)
    assert (result.status, result.step("draft").id) == (RunStatus.FAILED, "run_1/draft/2/0")
    asked = sum(world.asked.values())
    is_broken = False
    result = await world.executor(world.model(answer), tools).retry("run_1")
    assert (result.status, result.output) == (RunStatus.COMPLETED, {"text": "re: Draft 2."})
    assert sum(world.asked.values()) == asked + 2  # the draft, and where to go


async def test_another_question_is_asked_by_a_retry_the_step_before_it_is_kept() -> None:
    world = World()
    recipe = loaded(fork(goal="Work.", route="Where?"))

    def answer(prompt: Prompt) -> Answer:
        words = str(prompt.messages[-1].content)
        if not words.startswith("Question"):
            return echo(prompt)
        return to("left" if "Where?" in words else "right")

    executor = world.executor(world.model(answer))
    assert (await executor.execute(recipe)).output == {"x": "L"}
    edited = loaded(fork(goal="Work.", route="Where then?"))
    result = await world.executor(world.model(answer)).retry("run_1", recipe=edited)
    assert result.output == {"x": "R"}
    assert sum(world.asked.values()) == 3


async def test_a_choice_of_a_tool_that_may_not_be_made_twice_waits_for_a_decision() -> None:
    world = World()
    recipe = loaded(
        fork(decision_tool="choose") | {"permissions": {"allow_write": True}},
        [world.tool("choose", Effect.ONCE)],
    )
    tools = [world.tool("choose", Effect.ONCE, "right")]
    rows = ["run", "step", "call started", "call ended"]
    executor = world.executor(world.model(echo), tools)
    assert await world.killed(executor, recipe, len(rows), loses_last=True)
    again = world.executor(world.model(echo), tools)
    assert (await again.resume("run_1")).status is RunStatus.NEEDS_DECISION
    result = await again.resume("run_1", decisions={"choose": 'done:"right"'})
    assert (result.status, result.output) == (RunStatus.COMPLETED, {"x": "R"})
    assert sum(world.done.values()) == 1


class Later(Decider):
    """Nobody is there to say anything."""

    async def approve(self, request: ApprovalRequest) -> Verdict:
        return Verdict.LATER

    async def answer(self, question: Question) -> NoAnswer:
        return NoAnswer.LATER


async def test_a_choice_of_a_tool_that_needs_consent_waits_for_it() -> None:
    choose, services = fake_tool("choose", lambda _: "right"), deterministic_services()
    executor = executor_of(
        ScriptedModel([]), tools=[choose], services=evolve(services, decider=Later())
    )
    permissions: JsonValue = {"requires_approval": ["choose"]}
    recipe = loaded(fork(decision_tool="choose") | {"permissions": permissions}, [choose])
    result = await executor.execute(recipe)
    assert (result.status, choose.asked) == (RunStatus.NEEDS_DECISION, [])
    assert [each.step_id for each in result.executions] == ["a"]
    result = await executor.resume("run_1", decisions={"a": "approve"})
    assert (result.status, result.output) == (RunStatus.COMPLETED, {"x": "R"})


async def test_a_recorded_run_tells_where_a_model_led_it_and_why() -> None:
    world = World()
    recipe = loaded(fork(route="Where?"))
    await world.executor(world.model(lambda prompt: to("right"))).execute(recipe)
    (summary,) = await list_runs(world.journal)
    detail = await show_run(world.journal, summary)
    assert [(step.step_id, step.facts.get("next")) for step in detail.steps] == [
        ("a", "right"),
        ("right", None),
    ]
    assert detail.steps[0].facts["next_because"] == "so it is"


async def test_goals_of_one_conversation_follow_each_other_along_the_edges() -> None:
    done = await ran(
        {
            "graph": {"a": "c", "c": []},
            "steps": [
                {"id": "a", "goal": "One.", "memory": "conversation"},
                {"id": "c", "goal": "Two.", "memory": "conversation"},
            ],
        }
    )
    assert [message.content for message in done.prompts[1]] == ["One.", "re: One.", "Two."]


def test_what_comes_after_a_step_is_what_the_graph_leads_to() -> None:
    recipe = loaded(ROUNDS, [fake_tool("look")])
    assert steps_from(recipe, "publish") == {"publish"}
    assert steps_from(recipe, "draft") == {"draft", "review", "count", "publish"}
    assert steps_from(loaded(fork(route="Where?")), "left") == {"left"}


# --- before the run -------------------------------------------------------------------------------


def test_a_plan_lists_each_step_once_and_what_may_come_next() -> None:
    recipe = loaded(COUNT)
    plan = planned_steps(recipe, {}, Toolbox(), Extensions())
    assert [(each.step_id, each.next, each.next_by) for each in plan] == [
        ("count", ("count", "end"), "{{ 'end' if count.n == 3 else 'count' }}"),
        ("end", (), None),
    ]
    assert plan[1].shown == {"all": "<count.n>", "same": "<steps.count.output.n>"}


def test_the_bound_counts_how_often_a_step_may_come_and_what_its_choice_asks() -> None:
    look = fake_tool("look")
    found = explain(loaded(ROUNDS, [look]), {"look": look.spec})
    # 12 steps: each of the circle's three comes at most 4 times; the tool has 3 attempts.
    bounds = {each.id: (each.model_calls.known, each.tool_calls.known) for each in found.steps}
    assert bounds == {"count": (0, 0), "draft": (40, 0), "review": (8, 12), "publish": (0, 0)}
    assert [(use.steps, use.fills_in) for use in found.models] == [(("draft", "review"), {})]
    decide = fake_tool("decide")
    found = explain(loaded(fork(decision_tool="decide"), [decide]), {"decide": decide.spec})
    assert (found.tool_calls.known, [use.steps for use in found.tools]) == (3, [("a",)])


def test_pictures_show_the_transitions() -> None:
    picture = picture_of(loaded(ROUNDS, [fake_tool("look")]), {})
    data = picture_to_json(picture)
    assert data["edges"] == [
        {"from": "review", "to": "count", "dashed": False, "back": None},
        {"from": "count", "to": "draft", "dashed": False, "back": None},
        {"from": "draft", "to": "review", "dashed": False, "back": None},
        {"from": "review", "to": "publish", "dashed": False, "back": None},
    ]
    assert drawn(picture) == (
        "1 count: set n; after 3\n"
        " v\n"
        "2 draft: goal Draft {{ count.n }}.\n"
        " v\n"
        "3 review: tool look; then by Is draft {{ count.n }} good?\n"
        " v\n"
        "4 publish: set text\n"
    )
    assert "n3 --> n1" in mermaid(picture)
    assert "<svg" in svg(picture)


def test_where_a_request_is_a_call_the_model_is_not_asked() -> None:
    """A decision tool of a recipe is the same request as of a Step object."""
    decide = fake_tool("decide")
    built = build_recipe(
        loaded(fork(decision_tool="decide"), [decide]), Toolbox((decide,)), Extensions()
    )
    assert built.graph.steps[0].decision_tool == tool_request("decide", id="decide")


# --- at random ------------------------------------------------------------------------------------


@st.composite
def readable_recipes(draw: st.DrawFn) -> AgentRecipe:
    """Steps that read each other, as far as the checks allow it; which way to go is an input."""
    ids = [f"s{n}" for n in range(draw(st.integers(2, 6)))]
    some = st.lists(st.sampled_from(ids), max_size=3, unique=True)
    graph = {step_id: draw(some) for step_id in ids}
    steps: list[dict[str, JsonValue]] = []
    for step_id in ids:
        step: dict[str, JsonValue] = {"id": step_id, "set": {"x": step_id}}
        if len(graph[step_id]) > 1:
            step["route"] = f"{{{{ inputs.to.{step_id} }}}}"
        steps.append(step)
    document: Document = {
        "inputs": {"to": {"type": "object"}},
        "graph": {name: list(others) for name, others in graph.items()},
        "limits": {"allow_repeated_steps": True, "max_steps": 12},
        "steps": [*steps],
    }
    recipe = loaded_or_none(document)
    assume(recipe is not None)
    for step in steps:
        before = step["set"]
        step["set"] = {"x": f"{{{{ {draw(st.sampled_from(ids))}.x }}}}"}
        if (more := loaded_or_none({**document, "steps": [*steps]})) is None:
            step["set"] = before
        else:
            recipe = more
    assert recipe is not None
    return recipe


def loaded_or_none(document: Document) -> AgentRecipe | None:
    try:
        return loaded(document)
    except RecipeError:
        return None


@given(readable_recipes(), st.data())
def test_whatever_way_a_run_takes_it_finds_what_the_checks_let_it_read(
    recipe: AgentRecipe, data: st.DataObject
) -> None:
    assert isinstance(recipe.graph, Mapping)
    to = {
        step_id: data.draw(st.sampled_from(list(others)))
        for step_id, others in recipe.graph.items()
        if others
    }
    done = asyncio.run(run_of(recipe, inputs={"to": to}))
    assert done.result.status in (RunStatus.COMPLETED, RunStatus.LIMIT_REACHED), done.result.error
    for before, after in itertools.pairwise(done.ids):
        assert after in recipe.graph[before]
