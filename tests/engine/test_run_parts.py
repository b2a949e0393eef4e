"""Parts of a run: what is asked for runs, what it needs is pinned, the rest is left out."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from attrs import evolve

from builders import recipe_of, text_step
from minions.adapters.models.script_items import Answer
from minions.contracts.calls import ModelFailure, Prompt
from minions.contracts.executions import AgentResult, RunStatus
from minions.contracts.tools import Effect, Tool, Toolbox
from minions.data.errors import MinionsError, NotFoundError, UsageError
from minions.data.json_values import JsonValue
from minions.engine.compile.extensions import Extensions
from minions.engine.compile.selection import RunPart
from minions.engine.run.agent_executor import AgentExecutor
from minions.engine.run.agent_run import AgentRun
from minions.engine.views.lookup import list_runs
from minions.engine.views.run_detail import show_run
from minions.recipe.catalog import Catalog
from minions.recipe.model import AgentRecipe
from minions.recipe.reading.load import recipe_from_document
from minions.testing.virtual_time import FakeClock
from mortal import KilledError, World, outline

Document = dict[str, JsonValue]


def loaded(document: Document, tools: list[Tool] | None = None) -> AgentRecipe:
    catalog = Catalog(tools={tool.spec.name: tool.spec for tool in tools or []})
    names = [tool.spec.name for tool in tools or []]
    return recipe_from_document({"id": "news", "tools": names, **document}, catalog)


def echo(prompt: Prompt) -> Answer:
    """The last words of the prompt."""
    return f"re: {prompt.messages[-1].content}"


STEPS: list[Document] = [
    {"id": "fetch", "goal": "Fetch {{ inputs.topic }}"},
    {"id": "clean", "set": {"text": "{{ fetch }}!"}, "save_as": "cleaned"},
    {"id": "sum", "goal": "Sum {{ cleaned.text }}"},
    {"id": "post", "goal": "Post {{ sum }}"},
    {"id": "other", "goal": "Other"},
]
NEWS: Document = {"inputs": {"topic": "tea"}, "steps": STEPS}


def shown(result: AgentResult[object]) -> Mapping[str, str]:
    """Each step in a word."""
    return {
        each.step_id: "pinned" if each.pinned_from else each.reason or each.status.value
        for each in result.executions
    }


def executor(world: World, tools: list[Tool] | None = None) -> AgentExecutor:
    return world.executor(world.model(echo), tools or [])


async def after_a_whole_run(document: Document = NEWS) -> World:
    world = World()
    first = await executor(world).execute(loaded(document))
    assert first.status is RunStatus.COMPLETED
    world.asked.clear()
    return world


def second(world: World, number: int = 2, tools: list[Tool] | None = None) -> AgentExecutor:
    """An executor, somewhat later, whose next run is the one of that number."""
    clock = world.journal._clock
    assert isinstance(clock, FakeClock)
    clock.advance(1)
    made = executor(world, tools)
    for _ in range(1, number):
        made._services.ids("run")
        made._services.ids("ses")
    return made


# --- what runs ----------------------------------------------------------------------------------


async def test_until_runs_what_the_step_needs_and_nothing_else() -> None:
    world = World()
    result = await executor(world).execute(loaded(NEWS), part=RunPart(until="sum"))
    assert shown(result) == {
        "fetch": "completed",
        "clean": "completed",
        "sum": "completed",
        "post": "not asked for",
        "other": "not asked for",
    }
    assert (result.status, result.output) == (RunStatus.COMPLETED, "re: Sum re: Fetch tea!")
    assert world.asked == {"Fetch tea": 1, "Sum re: Fetch tea!": 1}


async def test_from_runs_what_depends_on_the_step_with_what_it_needs_pinned() -> None:
    world = await after_a_whole_run()
    result = await second(world).execute(loaded(NEWS), part=RunPart(first="sum"))
    assert shown(result) == {
        "fetch": "not asked for",
        "clean": "pinned",
        "sum": "completed",
        "post": "completed",
        "other": "not asked for",
    }
    assert result.step("clean").pinned_from == "run_1"
    assert result.output == "re: Post re: Sum re: Fetch tea!"
    assert world.asked == {"Sum re: Fetch tea!": 1, "Post re: Sum re: Fetch tea!": 1}


async def test_only_runs_one_step() -> None:
    world = await after_a_whole_run()
    result = await second(world).execute(loaded(NEWS), part=RunPart(only="post"))
    assert [name for name, word in shown(result).items() if word == "completed"] == ["post"]
    assert shown(result)["sum"] == "pinned"
    assert sum(world.asked.values()) == 1


async def test_from_and_until_run_what_is_between() -> None:
    world = await after_a_whole_run()
    part = RunPart(first="clean", until="sum")
    result = await second(world).execute(loaded(NEWS), part=part)
    assert [n for n, word in shown(result).items() if word == "completed"] == ["clean", "sum"]


async def test_in_parallel_it_is_the_same() -> None:
    document: Document = {**NEWS, "execution_mode": "parallel"}
    world = await after_a_whole_run(document)
    result = await second(world).execute(loaded(document), part=RunPart(first="sum"))
    assert shown(result)["post"] == "completed"
    assert shown(result)["clean"] == "pinned"
    assert sum(world.asked.values()) == 2


async def test_a_step_that_is_pinned_is_not_held_up_by_what_was_left_out() -> None:
    """`clean` needs `fetch`, which is not asked for."""
    world = await after_a_whole_run()
    result = await second(world).execute(loaded(NEWS), part=RunPart(only="sum"))
    assert result.output == "re: Sum re: Fetch tea!"


async def test_loops_and_conditions_of_pinned_steps_are_not_looked_at_again() -> None:
    document: Document = {
        "steps": [
            {"id": "each", "goal": "Item {{ loop.item }}", "loop": [1, 2], "aggregate": True},
            {"id": "never", "goal": "Never", "when": "each | length > 5"},
            {
                "id": "end",
                "goal": "End {{ each | length }} {{ never | default('none') }}",
                "depends_on": ["each", "never"],
            },
        ]
    }
    world = await after_a_whole_run(document)
    result = await second(world).execute(loaded(document), part=RunPart(only="end"))
    assert shown(result) == {
        "each": "pinned",
        "never": "its condition `when` was false in run_1",
        "end": "completed",
    }
    assert result.output == "re: End 2 none"


async def test_a_recipe_that_is_a_step_is_pinned_as_a_whole() -> None:
    inner = recipe_from_document(
        {"id": "inner", "steps": [{"id": "q", "goal": "Inner?"}]}, Catalog()
    )
    recipe = recipe_from_document(
        {
            "id": "news",
            "steps": [{"id": "call", "recipe": "inner"}, {"id": "end", "goal": "{{ call }}"}],
        },
        Catalog(recipes={"inner": inner}),
    )
    world = World()
    await executor(world).execute(recipe)
    world.asked.clear()
    result = await second(world).execute(recipe, part=RunPart(only="end"))
    assert shown(result) == {"call": "pinned", "end": "completed"}
    assert world.asked == {"re: Inner?": 1}


async def test_a_way_back_to_a_step_that_was_not_asked_for_is_none() -> None:
    document: Document = {
        "steps": [
            {"id": "ask", "goal": "Ask"},
            {"id": "check", "assert": "ask == 'good'", "on_error": {"goto": "ask", "max": 2}},
        ]
    }
    part = RunPart(only="check", pinned={"ask": "bad"})
    result = await executor(World()).execute(loaded(document), part=part)
    assert result.status is RunStatus.FAILED
    assert [each.step_id for each in result.executions] == ["ask", "check"]


# --- output ---------------------------------------------------------------------------------------


async def test_the_recipes_output_counts_where_all_of_it_is_there() -> None:
    document: Document = {**NEWS, "output": {"sum": "{{ sum }}", "post": "{{ post }}"}}
    world = await after_a_whole_run(document)
    recipe = loaded(document)
    whole = await second(world).execute(recipe, part=RunPart(only="post"))
    assert whole.output == {
        "sum": "re: Sum re: Fetch tea!",
        "post": "re: Post re: Sum re: Fetch tea!",
    }
    part = await second(world, 3).execute(recipe, part=RunPart(until="clean"))
    assert part.output == {"text": "re: Fetch tea!"}


# --- where pins come from ---------------------------------------------------------------------


async def test_inputs_are_those_of_the_earlier_run_unless_given() -> None:
    world = World()
    await executor(world).execute(loaded(NEWS), {"topic": "coffee"})
    world.asked.clear()
    document: Document = {
        **NEWS,
        "steps": [*STEPS, {"id": "last", "goal": "{{ inputs.topic }} {{ post }}"}],
    }
    await second(world).execute(loaded(NEWS), part=RunPart(only="sum"))
    assert list(world.asked) == ["Sum re: Fetch coffee!"]
    recipe = loaded(document)
    made = second(world, 3)
    pins = await made.pin(recipe, RunPart(only="last"))
    assert (pins.run_id, pins.inputs) == ("run_1", {"topic": "coffee"})
    result = await made.execute(recipe, {"topic": "milk"}, part=RunPart(only="last"))
    assert str(result.output).startswith("re: milk re: Post")


async def test_of_all_ended_runs_the_newest_that_has_everything_counts() -> None:
    world = await after_a_whole_run()
    await second(world).execute(loaded(NEWS), part=RunPart(until="fetch"))
    made = executor(world)
    assert (await made.pin(loaded(NEWS), RunPart(only="clean"))).run_id == "run_2"
    assert (await made.pin(loaded(NEWS), RunPart(only="post"))).run_id == "run_1"
    named = await made.pin(loaded(NEWS), RunPart(only="clean"), run="run_1")
    assert named.run_id == "run_1"


async def test_a_step_that_was_edited_since_is_told() -> None:
    world = await after_a_whole_run()
    edited = loaded(
        {
            **NEWS,
            "steps": [
                {"id": "fetch", "goal": "Fetch all of {{ inputs.topic }}"},
                *STEPS[1:],
            ],
        }
    )
    made = executor(world)
    assert (await made.pin(edited, RunPart(only="clean"))).edited == ("fetch",)
    assert (await made.pin(edited, RunPart(only="sum"))).edited == ()


async def test_outputs_may_be_given_by_hand() -> None:
    world = World()
    part = RunPart(only="post", pinned={"sum": "a sum of mine"})
    result = await executor(world).execute(loaded(NEWS), part=part)
    assert result.output == "re: Post a sum of mine"
    assert result.step("sum").pinned_from == "caller"


# --- what is refused ---------------------------------------------------------------------------


async def refusal(part: RunPart, *, run: str | None = None, world: World | None = None) -> str:
    with pytest.raises(MinionsError) as caught:
        await executor(world or World()).pin(loaded(NEWS), part, run=run)
    return f"{caught.value.error_code}: {caught.value.message}"


async def test_an_unknown_step_is_told_with_near_names() -> None:
    with pytest.raises(NotFoundError, match="Did you mean 'fetch'") as caught:
        await executor(World()).execute(loaded(NEWS), part=RunPart(until="fech"))
    assert (caught.value.error_code, caught.value.suggestions) == ("unknown-step", ("fetch",))


async def test_a_missing_output_is_told_with_the_command_that_makes_it() -> None:
    assert await refusal(RunPart(only="post")) == (
        "nothing-pinned: The output of step 'sum' is needed, which is not in the part "
        "that runs: no earlier run "
        "of 'news' has it. Run it first: `minions run news --until sum`."
    )
    world = World()
    await executor(world).execute(loaded(NEWS), part=RunPart(until="fetch"))
    assert await refusal(RunPart(only="post"), run="run_1", world=world) == (
        "nothing-pinned: The output of step 'sum' is needed, which is not in the part "
        "that runs: run 'run_1' has "
        "it not (sum skipped). Run it first: `minions run news --until sum`."
    )


async def test_bounds_that_make_no_part_are_refused() -> None:
    assert (await refusal(RunPart(first="post", until="fetch"))).startswith("empty-part: ")
    assert (await refusal(RunPart(only="post", until="fetch"))).startswith("part: ")
    with pytest.raises(NotFoundError):
        await executor(World()).pin(loaded(NEWS), RunPart(only="post"), run="run_9")


async def test_transition_graphs_have_no_parts() -> None:
    steps = [text_step("a"), text_step("b")]
    with pytest.raises(UsageError, match="graph of transitions"):
        await executor(World()).execute(recipe_of(steps), part=RunPart(only="b"))


async def test_a_conversation_is_run_from_its_beginning() -> None:
    document: Document = {
        "steps": [
            {"id": "ask", "goal": "Ask", "memory": "conversation"},
            {"id": "more", "goal": "More", "memory": "conversation"},
            {"id": "last", "goal": "Last", "memory": "conversation"},
        ]
    }
    with pytest.raises(UsageError, match="'more' continues the conversation of step 'ask'"):
        await executor(World()).execute(loaded(document), part=RunPart(first="more"))
    result = await executor(World()).execute(
        loaded({**document, "execution_mode": "planned"}), part=RunPart(only="ask")
    )
    assert result.output == "re: Ask"


async def test_models_of_steps_that_do_not_run_are_not_needed() -> None:
    """`clean` asks nobody."""
    world = await after_a_whole_run()

    def none(_: object) -> object:
        raise AssertionError

    made = AgentExecutor(none, services=second(world)._services)  # type: ignore[arg-type]  # never asked
    result = await made.execute(loaded(NEWS), part=RunPart(only="clean"))
    assert result.output == {"text": "re: Fetch tea!"}


# --- going on ------------------------------------------------------------------------------------


async def test_a_dry_run_tells_the_part_with_what_is_pinned_filled_in() -> None:
    world = await after_a_whole_run()
    made = executor(world)
    pins = await made.pin(loaded(NEWS), RunPart(only="sum"))
    (planned,) = made.plan(loaded(NEWS), part=pins.part)
    assert (planned.step_id, planned.shown) == ("sum", "Sum re: Fetch tea!")


PART: Document = {
    "permissions": {"allow_write": True},
    "execution_mode": "parallel",
    "steps": [
        {"id": "start", "goal": "Begin."},
        {"id": "look", "tool": "look", "params": {"n": "{{ start }}"}},
        {"id": "note", "tool": "note", "params": {"n": "{{ start }}"}},
        {"id": "each", "goal": "{{ look }} {{ loop.item }}", "loop": [1, 2], "max_parallel": 2},
        {"id": "end", "goal": "{{ each.successful }} {{ note }}"},
        {"id": "more", "goal": "{{ end }} more"},
    ],
}


async def test_killed_anywhere_a_part_goes_on_as_that_part_without_the_earlier_run() -> None:
    def tools(world: World) -> list[Tool]:
        note = world.tool("note", Effect.IDEMPOTENT, "noted")
        return [world.tool("look", Effect.PURE), note]

    quiet = World()
    recipe = loaded(PART, tools(quiet))
    await executor(quiet, tools(quiet)).execute(recipe)
    source = executor(quiet, tools(quiet))
    pins = await source.pin(recipe, RunPart(first="look", until="end"))
    assert pins.run_id == "run_1"

    def run(world: World) -> AgentRun:
        return executor(world, tools(world)).prepare(recipe, part=pins.part)

    alone = World()  # another journal: nothing of the earlier run is in it
    expected = await run(alone).execute()
    assert shown(expected) == {
        "start": "pinned",
        "look": "completed",
        "note": "pinned",
        "each": "completed",
        "end": "completed",
        "more": "not asked for",
    }
    facts = len(await alone.journal.entries())
    for at in range(2, facts + 1):
        for loses_last in (False, True):
            world = World()
            world.journal.dies_at, world.journal.loses_last = at, loses_last
            with pytest.raises(KilledError):
                await run(world).execute()
            world.journal.revive()
            result = await executor(world, tools(world)).resume("run_1")
            assert outline(result) == outline(expected), at
            assert shown(result) == shown(expected), at
            assert set(world.done) == set(alone.done), at
            assert sum(world.asked.values()) <= sum(alone.asked.values()) + 2, at


async def test_a_part_that_failed_is_retried_as_that_part() -> None:
    world = await after_a_whole_run()
    is_broken = True

    def answer(prompt: Prompt) -> Answer:
        is_refused = is_broken and str(prompt.messages[-1].content).startswith("Post")
        return ModelFailure(code="refused", message="not now") if is_refused else echo(prompt)

    made = second(world)
    pins = await made.pin(loaded(NEWS), RunPart(first="sum"))
    broken = AgentExecutor(world.model(answer), services=made._services)
    failed = await broken.prepare(loaded(NEWS), part=pins.part).execute()
    assert (failed.run_id, failed.status) == ("run_2", RunStatus.FAILED)
    is_broken = False
    world.asked.clear()
    result = await AgentExecutor(world.model(answer), services=made._services).retry("run_2")
    assert shown(result)["clean"] == "pinned"
    assert shown(result)["other"] == "not asked for"
    assert (result.status, sum(world.asked.values())) == (RunStatus.COMPLETED, 1)


async def test_a_retry_runs_nothing_that_was_not_asked_for() -> None:
    world = await after_a_whole_run()
    await second(world).execute(loaded(NEWS), part=RunPart(first="sum"))
    with pytest.raises(UsageError, match="'clean' is no part of run 'run_2'"):
        await executor(world).retry("run_2", from_step="clean")
    world.asked.clear()
    result = await executor(world).retry("run_2", from_step="post")
    assert shown(result)["clean"] == "pinned"
    assert sum(world.asked.values()) == 1


async def test_an_edited_recipe_is_still_that_part() -> None:
    world = await after_a_whole_run()
    await second(world).execute(loaded(NEWS), part=RunPart(only="sum"))
    edited = [{**step, "goal": "More"} if "goal" in step else step for step in STEPS]
    world.asked.clear()
    result = await executor(world).retry("run_2", recipe=loaded({**NEWS, "steps": edited}))
    assert (world.asked, shown(result)["clean"]) == ({"More": 1}, "pinned")


async def test_a_part_that_is_over_tells_its_output_again() -> None:
    world = await after_a_whole_run()
    first = await second(world).execute(loaded(NEWS), part=RunPart(only="sum"))
    rows = len(await world.journal.entries())
    again = await executor(world).resume("run_2")
    assert outline(again) == outline(first)
    assert len(await world.journal.entries()) == rows


async def test_what_was_pinned_is_shown_with_the_run() -> None:
    world = await after_a_whole_run()
    run = second(world).prepare(loaded(NEWS), part=RunPart(only="post", pinned={"sum": "s"}))
    assert list(run.preview()) == [
        "run run_2 runs a part of 'news'",
        "  pinned (as in caller): sum",
        "  to run: post",
        "  not asked for: fetch, clean, other",
    ]
    await run.execute()
    shown_run = await show_run(world.journal, (await list_runs(world.journal))[0])
    pinned = [step.step_id for step in shown_run.steps if step.facts.get("pinned_from")]
    assert (shown_run.summary.run_id, pinned) == ("run_2", ["sum"])


async def test_secrets_stay_references_in_what_is_taken_over() -> None:
    document: Document = {
        "inputs": {"key": {"type": "string", "secret": True}},
        "steps": [
            {"id": "a", "tool": "look", "params": {"key": "{{ inputs.key }}"}},
            {"id": "b", "set": {"x": "{{ a }} {{ inputs.key }}"}},
        ],
    }
    world = World()
    tools: list[Tool] = [world.tool("look", Effect.PURE)]
    recipe = loaded(document, tools)

    def with_secret(made: AgentExecutor) -> AgentExecutor:
        services = evolve(made._services, secrets=lambda _: "the secret value")
        extensions = Extensions(tools=Toolbox(tuple(tools)))
        return AgentExecutor(world.model(echo), extensions=extensions, services=services)

    await with_secret(executor(world)).execute(recipe, {"key": "env:KEY"})
    result = await with_secret(second(world)).execute(recipe, part=RunPart(only="b"))
    assert result.output == {"x": "seen ${secret:env:KEY}"}
    assert "the secret value" not in str(await world.journal.entries())
