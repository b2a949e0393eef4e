"""A recipe that is a step of another: its own values and memory, one run, one journal."""

from __future__ import annotations

import asyncio

import pytest

from builders import Ran, answer_of, executor_of, fake_tool, python_step, run_of
from minions.adapters.models.script_items import Answer
from minions.adapters.models.scripted import ScriptedModel
from minions.contracts.calls import ModelFailure, Prompt
from minions.contracts.executions import RunStatus, StepStatus
from minions.contracts.messages import TokenUsage
from minions.contracts.steps import StepScope
from minions.contracts.tools import Effect, Tool
from minions.data.errors import RecipeError, StepFailedError
from minions.data.json_values import JsonValue
from minions.engine.compile.extensions import Extensions
from minions.engine.views.lookup import list_runs
from minions.engine.views.run_detail import show_run
from minions.recipe.catalog import Catalog
from minions.recipe.model import AgentRecipe
from minions.recipe.reading.load import recipe_from_document
from mortal import World, outline
from nested import Document, loaded


async def ran(document: Document, tools: list[Tool] | None = None, **recipes: Document) -> Ran:
    return await run_of(loaded(document, recipes, tools), echo, tools=tools or [])


def echo(prompt: Prompt) -> Answer:
    """The last words of the prompt."""
    return f"re: {prompt.messages[-1].content}"


GREET: Document = {
    "id": "greet",
    "inputs": {"name": {"type": "string"}, "mark": "!"},
    "steps": [{"id": "say", "set": {"text": "Hello {{ inputs.name }}{{ inputs.mark }}"}}],
    "output": "{{ say.text }}",
}


async def test_its_output_is_the_output_of_the_step() -> None:
    done = await ran(
        {
            "inputs": {"who": "Ada"},
            "steps": [
                {"id": "hello", "recipe": "greet", "with": {"name": "{{ inputs.who }}"}},
                {"id": "twice", "set": {"it": "{{ hello }} {{ hello }}"}},
            ],
        },
        greet=GREET,
    )
    assert done.result.output == {"it": "Hello Ada! Hello Ada!"}
    (inner,) = done.result.step("hello").steps
    assert (inner.step_id, inner.output) == ("say", {"text": "Hello Ada!"})


async def test_neither_sees_the_values_of_the_other() -> None:
    inner: Document = {"id": "inner", "steps": [{"id": "own", "set": {"x": 1}}], "output": 7}
    done = await ran(
        {"steps": [{"id": "own", "set": {"x": 2}}, {"id": "call", "recipe": "inner"}]},
        inner=inner,
    )
    assert done.context.values["own"] == {"x": 2}
    assert done.context.values["call"] == 7
    with pytest.raises(RecipeError, match="unknown name 'outer'"):
        loaded(
            {"steps": [{"id": "outer", "set": {"x": 2}}, {"id": "call", "recipe": "inner"}]},
            {"inner": {"id": "inner", "steps": [{"id": "a", "set": {"x": "{{ outer.x }}"}}]}},
        )


async def test_its_prompts_hold_nothing_of_the_run_around_it() -> None:
    ask: Document = {"id": "ask", "steps": [{"id": "q", "goal": "What is two?"}]}
    done = await ran(
        {
            "system_prompt": "Be outer.",
            "steps": [{"id": "first", "goal": "One?"}, {"id": "call", "recipe": "ask"}],
        },
        ask=ask,
    )
    prompts = [[m.content for m in each] for each in done.prompts]
    assert prompts == [["Be outer.", "One?"], ["What is two?"]]
    step = done.result.step("call")
    assert (step.output, len(step.model_calls)) == ("re: What is two?", 1)


async def test_what_it_uses_counts_once_and_in_the_whole_run() -> None:
    ask: Document = {"id": "ask", "steps": [{"id": "q", "goal": "What is two?"}]}

    def answer(_: Prompt) -> Answer:
        return answer_of("yes", input_tokens=3, output_tokens=2)

    recipe = loaded({"steps": [{"id": "call", "recipe": "ask"}]}, {"ask": ask})
    done = await run_of(recipe, answer)
    used = TokenUsage(input_tokens=3, output_tokens=2)
    assert done.result.usage == done.result.step("call").usage == used


async def test_a_failure_inside_fails_the_step_and_says_where() -> None:
    inner: Document = {"id": "inner", "steps": [{"id": "no", "assert": "1 == 2"}]}
    done = await ran({"steps": [{"id": "call", "recipe": "inner"}]}, inner=inner)
    step = done.result.step("call")
    assert step.status is StepStatus.FAILED
    assert step.error is not None
    assert (step.error.code, step.error.where) == ("assertion-failed", "call/no")
    assert step.error.message == "In the recipe 'inner': The condition '1 == 2' does not hold."


async def test_inputs_that_do_not_fit_fail_the_step_before_anything_runs() -> None:
    done = await ran(
        {
            "steps": [
                {"id": "n", "set": {"name": 7}},
                {"id": "call", "recipe": "greet", "with": {"name": "{{ n['name'] | int }}"}},
            ]
        },
        greet=GREET,
    )
    error = done.result.step("call").error
    assert error is not None
    assert error.code == "bad-input"
    assert done.result.step("call").steps == ()


async def test_it_may_write_only_where_both_say_so() -> None:
    writer = fake_tool("write", lambda _: "written", effect=Effect.ONCE)
    inner: Document = {
        "id": "inner",
        "permissions": {"allow_write": True},
        "steps": [{"id": "w", "tool": "write"}],
    }
    steps: list[JsonValue] = [{"id": "call", "recipe": "inner"}]
    denied = await ran({"steps": steps}, [writer], inner=inner)
    assert denied.result.error is not None
    assert denied.result.error.code == "permission-denied"
    allowed = await ran(
        {"steps": steps, "permissions": {"allow_write": True}}, [writer], inner=inner
    )
    assert allowed.result.status is RunStatus.COMPLETED


async def test_a_limit_of_its_own_fails_it_and_one_of_the_run_stops_the_run() -> None:
    inner: Document = {
        "id": "inner",
        "limits": {"max_steps": 1},
        "steps": [{"id": "a", "set": {"x": 1}}, {"id": "b", "set": {"x": 2}}],
    }
    steps: list[JsonValue] = [{"id": "call", "recipe": "inner"}, {"id": "c", "set": {"x": 3}}]
    own = await ran({"steps": steps}, inner=inner)
    assert own.result.error is not None
    assert (own.result.status, own.result.error.code) == (RunStatus.FAILED, "recipe-limit-reached")
    whole = await ran({"steps": steps, "limits": {"max_steps": 2}}, inner={**inner, "limits": {}})
    assert whole.result.status is RunStatus.LIMIT_REACHED
    assert whole.result.step("call").error is not None


async def test_time_of_its_own_that_is_over_fails_it() -> None:
    async def forever(_: object) -> None:
        await asyncio.Event().wait()

    inner: Document = {
        "id": "inner",
        "limits": {"timeout_s": 0.02},
        "steps": [{"id": "w", "tool": "wait"}],
    }
    tool = fake_tool("wait", forever, effect=Effect.PURE)
    done = await ran({"steps": [{"id": "call", "recipe": "inner"}]}, [tool], inner=inner)
    assert done.result.error is not None
    assert done.result.error.code == "recipe-limit-reached"
    assert "did not end within 0.02 s" in done.result.error.message


async def test_one_that_ran_out_of_time_stays_failed_when_the_run_is_resumed() -> None:
    """Its end is recorded, and what was cut off in it is not continued: later steps read it."""

    async def waits_at_first(prompt: Prompt) -> Answer:
        if prompt.messages[-1].content == "Slow?":
            asked.append("slow")
            if len(asked) == 1:
                await asyncio.Event().wait()
        return echo(prompt)

    inner: Document = {
        "id": "inner",
        "limits": {"timeout_s": 0.02},
        "on_failure": "continue",
        "steps": [{"id": "slow", "goal": "Slow?"}, {"id": "more", "goal": "More?"}],
    }
    outer: Document = {
        "steps": [
            {"id": "call", "recipe": "inner", "optional": True},
            {"id": "last", "goal": "{{ call | default('nothing') }}?"},
        ]
    }
    recipe = loaded(outer, {"inner": inner})
    deaths = range(4, 30)
    for at in deaths:
        asked: list[str] = []
        world = World()
        model = ScriptedModel(waits_at_first)
        is_over = not await world.killed(world.executor(model), recipe, at)
        has_failed = any(
            (each.key, each.state) == ("call/1/0", "failed")
            for each in await world.journal.entries()
        )
        result = await world.executor(model).resume("run_1")
        if has_failed:
            assert asked == ["slow"], at
            call = result.step("call")
            assert call.error is not None
            assert (call.status, call.error.code) == (StepStatus.FAILED, "recipe-limit-reached")
            assert result.output == "re: nothing?"
        if is_over:
            break
    assert is_over
    retried = await world.executor(model).retry("run_1")
    assert asked == ["slow", "slow"]
    assert retried.step("call").status is StepStatus.COMPLETED


async def test_it_runs_for_each_item_of_a_list() -> None:
    done = await ran(
        {
            "steps": [
                {
                    "id": "all",
                    "recipe": "greet",
                    "with": {"name": "{{ loop.item }}"},
                    "loop": ["Ada", "Bob", "Cy"],
                    "aggregate": True,
                    "max_parallel": 2,
                }
            ]
        },
        greet=GREET,
    )
    assert done.result.output == ["Hello Ada!", "Hello Bob!", "Hello Cy!"]


async def test_its_steps_are_shown_under_the_name_of_the_step_they_belong_to() -> None:
    world = World()
    recipe = loaded(
        {
            "steps": [
                {"id": "one", "recipe": "greet", "with": {"name": "Ada"}},
                {"id": "all", "recipe": "greet", "with": {"name": "x"}, "loop": [1, 2]},
            ]
        },
        {"greet": GREET},
    )
    await world.executor(world.model(echo)).execute(recipe)
    (run,) = await list_runs(world.journal)
    shown = await show_run(world.journal, run)
    ids = [step.step_id for step in shown.steps]
    assert ids == ["one", "one/say", "all", "all[0]/say", "all[1]/say"]


# --- going on ---------------------------------------------------------------------------------

NESTED: Document = {
    "steps": [
        {"id": "start", "goal": "Begin."},
        {
            "id": "each",
            "recipe": "middle",
            "with": {"n": "{{ loop.item }}"},
            "loop": [1, 2],
            "max_parallel": 2,
            "aggregate": True,
        },
        {"id": "end", "goal": "{{ each }} {{ start }}"},
    ],
    "permissions": {"allow_write": True},
}
MIDDLE: Document = {
    "id": "middle",
    "inputs": {"n": {"type": "integer"}},
    "permissions": {"allow_write": True},
    "execution_mode": "parallel",
    "steps": [
        {"id": "ask", "goal": "Number {{ inputs.n }}?"},
        {"id": "note", "tool": "note", "params": {"n": "{{ inputs.n }}"}},
        {"id": "deep", "recipe": "inner", "with": {"text": "{{ ask }}"}},
    ],
    "output": "{{ deep }} {{ note }}",
}
INNER: Document = {
    "id": "inner",
    "inputs": {"text": {"type": "string"}},
    "steps": [{"id": "again", "goal": "Say {{ inputs.text }}"}, {"id": "s", "set": {"t": 1}}],
    "output": "{{ again }}",
}


async def test_killed_anywhere_it_goes_on_without_doing_anything_twice() -> None:
    """Loop × parallel × recipe × recipe, killed at every single fact."""
    quiet = World()

    def tools(world: World) -> list[Tool]:
        return [world.tool("note", Effect.IDEMPOTENT, "noted")]

    recipe = loaded(NESTED, {"middle": MIDDLE, "inner": INNER}, tools(quiet))
    expected = await quiet.executor(quiet.model(echo), tools(quiet)).execute(recipe)
    assert expected.status is RunStatus.COMPLETED
    for at in range(2, len(await quiet.journal.entries()) + 1):
        world = World()
        assert await world.killed(world.executor(world.model(echo), tools(world)), recipe, at)
        again = world.executor(world.model(echo), tools(world))
        result = await again.resume("run_1")
        assert outline(result) == outline(expected), at
        assert sum(world.asked.values()) <= sum(quiet.asked.values()) + 2, at
        assert set(world.done) == set(quiet.done), at


async def test_a_retry_keeps_what_ended_well_inside() -> None:
    world = World()
    is_broken = True

    def answer(prompt: Prompt) -> Answer:
        if is_broken and str(prompt.messages[-1].content).startswith("Say"):
            return ModelFailure(code="refused", message="not now")
        return echo(prompt)

    tools: list[Tool] = [world.tool("note", Effect.IDEMPOTENT, "noted")]
    recipe = loaded(NESTED, {"middle": MIDDLE, "inner": INNER}, tools)
    first = await world.executor(world.model(answer), tools).execute(recipe)
    assert first.status is RunStatus.FAILED
    asked, done = sum(world.asked.values()), sum(world.done.values())
    is_broken = False
    result = await world.executor(world.model(answer), tools).retry("run_1")
    assert result.status is RunStatus.COMPLETED
    assert sum(world.asked.values()) - asked == 3  # "Say" twice, "end" once
    assert sum(world.done.values()) == done


async def test_it_goes_on_after_its_file_was_changed() -> None:
    """The recipes travel with the run."""
    world = World()
    inner = dict(INNER)
    recipe = loaded(NESTED, {"middle": MIDDLE, "inner": inner}, [world.tool("note", Effect.PURE)])
    tools: list[Tool] = [world.tool("note", Effect.PURE)]
    assert await world.killed(world.executor(world.model(echo), tools), recipe, 5)
    inner["output"] = "changed"
    result = await world.executor(world.model(echo), tools).resume("run_1")
    assert "changed" not in str(result.output)


# --- from Python --------------------------------------------------------------------------------


async def test_a_step_in_python_may_call_one_by_name() -> None:
    async def work(scope: StepScope) -> object:
        one = await scope.call_recipe("greet", {"name": "Ada"})
        two = await scope.call_recipe("greet", {"name": "Bob"})
        return [one, two]

    greet = recipe_from_document(GREET, Catalog())
    executor = executor_of(ScriptedModel(echo), recipes={"greet": greet})
    result = await executor.execute(AgentRecipe(id="outer", steps=[python_step(work)]))
    assert result.output == ["Hello Ada!", "Hello Bob!"]
    assert len(result.step("code").steps) == 2


async def test_a_failure_reaches_the_code_that_called_it() -> None:
    async def work(scope: StepScope) -> object:
        try:
            await scope.call_recipe("broken", {})
        except StepFailedError as error:
            return error.failure.code
        return None

    document: Document = {"id": "broken", "steps": [{"id": "no", "assert": "1 == 2"}]}
    executor = executor_of(
        ScriptedModel(echo), recipes={"broken": recipe_from_document(document, Catalog())}
    )
    result = await executor.execute(AgentRecipe(id="outer", steps=[python_step(work)]))
    assert result.output == "assertion-failed"


async def test_a_recipe_may_name_one_that_was_made_by_code() -> None:
    async def work(scope: StepScope) -> object:
        return scope.context.values["inputs"]

    made = AgentRecipe(id="made", steps=[python_step(work)])
    extensions = Extensions(recipes={"made": made})
    recipe = recipe_from_document(
        {"id": "outer", "steps": [{"id": "call", "recipe": "made"}]}, extensions.catalog()
    )
    result = await executor_of(ScriptedModel(echo)).execute(recipe)
    assert result.output == {}


# --- what is refused before the run --------------------------------------------------------------


def faults(document: Document, **recipes: Document) -> list[str]:
    with pytest.raises(RecipeError) as caught:
        loaded(document, recipes)
    return [f"{fault.code}: {fault.message}" for fault in caught.value.faults]


def test_wrong_names_and_inputs_are_faults() -> None:
    steps: list[JsonValue] = [
        {"id": "a", "recipe": "greet", "with": {"nam": "x", "mark": 7}},
        {"id": "b", "recipe": "gret"},
        {"id": "c", "recipe": "greet", "with": {"mark": "!"}},
    ]
    assert faults({"steps": steps}, greet=GREET) == [
        "unknown-key: the recipe 'greet' does not know 'nam'",
        "wrong-type: 'mark' does not fit the recipe 'greet': 7 is not of type 'string'",
        "unknown-recipe: There is no recipe 'gret'",
        "missing-input: the recipe 'greet' needs 'name'",
    ]


def test_recipes_that_run_each_other_in_a_circle_are_refused() -> None:
    a: Document = {"id": "a", "steps": [{"id": "x", "recipe": "b"}]}
    b: Document = {"id": "b", "steps": [{"id": "x", "recipe": "a"}]}
    (fault,) = faults({"steps": [{"id": "x", "recipe": "a"}]}, a=a, b=b)
    assert fault.startswith("bad-recipe: the recipe 'a' has a fault: the recipe 'b' has a fault: ")
    assert fault.endswith("recipes run each other in a cycle: 'a' → 'b' → 'a'")


def test_a_fault_inside_is_told_at_the_step_that_names_it() -> None:
    broken: Document = {"id": "broken", "steps": [{"id": "x", "sett": {}}]}
    (fault,) = faults({"steps": [{"id": "x", "recipe": "broken"}]}, broken=broken)
    assert fault.startswith("bad-recipe: the recipe 'broken' has 2 faults: ")
