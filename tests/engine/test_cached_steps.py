"""`cache: true`: what was asked before is not asked again, in whatever run; what differs is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import cast

import pytest
from attrs import evolve, field, mutable

from builders import FakeTool, deterministic_services, fake_tool
from minions.adapters.models.script_items import Answer, tool_request
from minions.adapters.models.scripted import ScriptedModel
from minions.adapters.stores.memory_stores import MemoryStepCache, NoStepCache
from minions.adapters.tools.files_toolset import files_toolset
from minions.contracts.calls import ModelFailure, Prompt
from minions.contracts.executions import AgentResult, RunStatus
from minions.contracts.messages import TokenUsage
from minions.contracts.steps import CachedStep, StepCache
from minions.contracts.tools import Effect, Tool, Toolbox, Toolset
from minions.data.errors import JournalError, RecipeError
from minions.data.json_values import JsonValue
from minions.engine.calls.model_executors import ModelCallExecutors
from minions.engine.compile.extensions import Extensions
from minions.engine.run.agent_executor import AgentExecutor
from minions.recipe.kinds.tool_kind import ToolSpecStep
from minions.recipe.model import AgentRecipe
from minions.recipe.reading.load import recipe_from_document
from mortal import KilledError, World, outline

Document = dict[str, JsonValue]


def echo(prompt: Prompt) -> Answer:
    """The last words of the prompt."""
    return f"re: {prompt.messages[-1].content}"


class Notes:
    """A log that can be read."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, Mapping[str, object]]] = []

    def info(self, event: str, /, **facts: object) -> None:
        self.lines.append((event, facts))

    warning = info

    def reasons(self, event: str) -> list[object]:
        return [facts["reason"] for name, facts in self.lines if name == event]


@mutable(kw_only=True)
class House:
    """Runs in fresh processes, over one world and one cache."""

    world: World = field(factory=World)
    cache: StepCache | None = field(factory=MemoryStepCache)
    tools: list[Tool] = field(factory=list)
    toolsets: Mapping[str, Toolset] = field(factory=dict)
    recipes: Mapping[str, AgentRecipe] = field(factory=dict)
    answer: Callable[[Prompt], Answer] = echo
    name: str = "scripted/answers"
    log: Notes = field(factory=Notes)
    runs: int = 0

    def recipe(self, *steps: Document, **fields: JsonValue) -> AgentRecipe:
        """Of these steps."""
        return self.loaded({"id": "r", **fields, "steps": list(steps)})

    def loaded(self, document: Document) -> AgentRecipe:
        return recipe_from_document(document, self._extensions().catalog())

    def _extensions(self) -> Extensions:
        return Extensions(
            tools=Toolbox(tuple(self.tools)), toolsets=self.toolsets, recipes=self.recipes
        )

    def executor(self) -> AgentExecutor:
        """That of a fresh process."""

        def counted(prompt: Prompt) -> Answer:
            self.world.asked[prompt.messages[-1].content or ""] += 1
            return self.answer(prompt)

        services = deterministic_services(self.world.journal)
        services = evolve(services, cache=self.cache, log=self.log)
        for _ in range(self.runs):
            services.ids("run"), services.ids("ses")  # ids that were used
        model = ScriptedModel(counted, name=self.name)
        return AgentExecutor(model, extensions=self._extensions(), services=services)

    async def run(
        self, recipe: AgentRecipe, inputs: Mapping[str, JsonValue] | None = None
    ) -> AgentResult[JsonValue]:
        """To the end."""
        executor = self.executor()
        self.runs += 1
        return await executor.execute(recipe, inputs)

    @property
    def asked(self) -> int:
        """Model calls so far."""
        return sum(self.world.asked.values())


ASK: Document = {"id": "a", "goal": "What is {{ inputs.x }}?", "cache": True}
INPUTS: Document = {"x": "tea"}


# --- hits -----------------------------------------------------------------------------------------


async def test_the_second_run_asks_nobody_and_says_where_its_output_is_from() -> None:
    house = House()
    recipe = house.recipe(ASK, {"id": "b", "set": {"said": "{{ a }}"}}, inputs=INPUTS)
    first, second = await house.run(recipe), await house.run(recipe)
    assert house.asked == 1
    assert first.output == second.output == {"said": "re: What is tea?"}
    assert (first.step("a").cached_from, second.step("a").cached_from) == (None, "run_1")
    assert (second.usage, second.step("a").model_calls) == (TokenUsage(), ())
    rows = await house.world.journal.entries(second.session_id)
    (row,) = [entry for entry in rows if entry.key == "a/1/0"]
    assert (row.state, row.body["cached_from"], row.body["output"]) == (
        "finished",
        "run_1",
        "re: What is tea?",
    )


async def test_a_cached_step_that_reads_an_appended_output_is_found_by_the_next_run() -> None:
    """The border around the output is another in each run."""
    house = House()
    step: Document = {"id": "b", "goal": "Use it", "depends_on": ["a"], "cache": True}
    recipe = house.recipe({"id": "a", "set": {"x": 1}}, step)
    first, second = await house.run(recipe), await house.run(recipe)
    assert (house.asked, second.step("b").cached_from) == (1, first.run_id)


async def test_another_recipe_that_asks_the_same_is_answered_too() -> None:
    house = House()
    await house.run(house.recipe(ASK, inputs=INPUTS))
    other = house.loaded(
        {"id": "other", "steps": [{"id": "q", "goal": "What is tea?", "cache": True}]}
    )
    assert (await house.run(other)).output == "re: What is tea?"
    assert house.asked == 1


async def test_declared_outputs_and_analyses_are_kept_as_values() -> None:
    house = House(answer=lambda _: '{"n": 7}')
    recipe = house.recipe(
        {"id": "a", "goal": "Count", "output": {"n": "integer"}, "cache": True},
        {"id": "b", "analyze": "Count", "input": [1], "output": {"n": "integer"}, "cache": True},
    )
    await house.run(recipe)
    again = await house.run(recipe)
    assert (house.asked, again.output) == (2, {"n": 7})
    assert [each.cached_from for each in again.executions] == ["run_1", "run_1"]


async def test_a_pure_tool_is_not_called_again_for_the_same_arguments() -> None:
    house = House()
    house.tools = [house.world.tool("look", Effect.PURE, {"found": 3})]
    step: Document = {"id": "a", "tool": "look", "params": {"n": "{{ inputs.n }}"}, "cache": True}
    recipe = house.recipe(step, inputs={"n": {"type": "integer"}})
    outputs = [(await house.run(recipe, {"n": n})).output for n in (1, 1, 2)]
    assert outputs == [{"found": 3}] * 3
    assert sum(house.world.done.values()) == 2


async def test_a_kept_result_is_none_where_the_step_says_another_type() -> None:
    """A-164."""
    house = House()
    house.tools = [house.world.tool("look", Effect.PURE, {"found": 3})]
    step: Document = {"id": "a", "tool": "look", "cache": True}
    assert (await house.run(house.recipe(step))).output == {"found": 3}
    typed = house.recipe({**step, "returns": {"found": "string"}})
    error = (await house.run(typed)).error
    assert error is not None
    assert error.code == "bad-result"


async def test_each_item_of_a_loop_is_kept_for_itself() -> None:
    house = House()
    step: Document = {
        "id": "a",
        "goal": "Item {{ loop.item }}",
        "loop": "{{ inputs.items }}",
        "aggregate": True,
        "max_parallel": 2,
        "cache": True,
    }
    recipe = house.recipe(step, inputs={"items": {"type": "array"}})
    await house.run(recipe, {"items": [1, 2]})
    again = await house.run(recipe, {"items": [2, 3, 1]})
    assert again.output == ["re: Item 2", "re: Item 3", "re: Item 1"]
    assert [each.cached_from for each in again.step("a").iterations] == ["run_1", None, "run_1"]
    assert house.asked == 3


async def test_a_recipe_that_is_a_step_is_kept_with_its_inputs_and_its_text() -> None:
    house = House()

    def inner(goal: str) -> AgentRecipe:
        steps: list[JsonValue] = [{"id": "q", "goal": goal}]
        return house.loaded({"id": "inner", "inputs": {"x": "tea"}, "steps": steps})

    step: Document = {"id": "a", "recipe": "inner", "with": {"x": "{{ inputs.x }}"}, "cache": True}
    house.recipes = {"inner": inner("What is {{ inputs.x }}?")}
    recipe = house.recipe(step, inputs=INPUTS)
    await house.run(recipe)
    again = await house.run(recipe)
    assert (again.output, again.step("a").cached_from, house.asked) == (
        "re: What is tea?",
        "run_1",
        1,
    )
    await house.run(recipe, {"x": "milk"})
    house.recipes = {"inner": inner("Why {{ inputs.x }}?")}
    assert (await house.run(house.recipe(step, inputs=INPUTS))).output == "re: Why tea?"
    assert house.asked == 3


async def test_arguments_that_a_model_fills_in_are_kept_with_the_question() -> None:
    parameters: Mapping[str, JsonValue] = {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    }
    look = fake_tool("look", effect=Effect.PURE, parameters=parameters)
    house = House(tools=[look], answer=lambda _: '{"params": {"city": "Bern"}}')
    recipe = house.recipe(
        {"id": "a", "tool": "look", "description": "Look at Bern", "params": {}, "cache": True}
    )
    await house.run(recipe)
    again = await house.run(recipe)
    assert (again.output, house.asked, look.asked) == ("seen", 1, [{"city": "Bern"}])


# --- misses -----------------------------------------------------------------------------------


async def asked_after(change: Callable[[House, Document], Document]) -> int:
    """Model calls of two runs between which something was changed."""
    house = House(tools=[fake_tool("look", effect=Effect.PURE)])
    step: Document = {"id": "a", "goal": "Look!", "tools": ["look"], "cache": True}
    document: Document = {"id": "r", "steps": [step]}
    await house.run(house.loaded(document))
    await house.run(house.loaded(change(house, document)))
    return house.asked


def of_step(**fields: JsonValue) -> Callable[[House, Document], Document]:
    def change(_: House, document: Document) -> Document:
        (step,) = cast("list[Document]", document["steps"])
        return {**document, "steps": [{**step, **fields}]}

    return change


def of_recipe(**fields: JsonValue) -> Callable[[House, Document], Document]:
    return lambda _, document: {**document, **fields}


def another_model(house: House, document: Document) -> Document:
    house.name = "scripted/others"
    return document


def another_tool(house: House, document: Document) -> Document:
    house.tools = [
        fake_tool("look", effect=Effect.PURE, parameters={"type": "object", "properties": {}})
    ]
    return document


@pytest.mark.parametrize(
    "change",
    [
        of_step(goal="Look again!"),
        of_step(output={"n": "integer"}, completion="text"),
        of_step(completion={"patterns": ["DONE"]}),
        of_step(tools=[]),
        of_step(tool_failure="report"),
        of_step(model={"temperature": 0.5}),
        of_step(system_prompt="Be brief."),
        of_recipe(system_prompt="Be brief."),
        of_recipe(model={"max_output_tokens": 5}),
        another_model,
        another_tool,
    ],
)
async def test_whatever_the_output_rests_on_makes_it_another_question(
    change: Callable[[House, Document], Document],
) -> None:
    assert await asked_after(change) >= 2


@pytest.mark.parametrize(
    "change",
    [
        of_step(description="Looks", timeout_s=9, save_as="it", optional=True, when="true"),
        of_recipe(
            version="2", description="Other", limits={"max_steps": 9}, execution_mode="planned"
        ),
    ],
)
async def test_what_stands_around_the_step_does_not_matter(
    change: Callable[[House, Document], Document],
) -> None:
    assert await asked_after(change) == 1


async def test_tools_of_another_folder_are_other_tools(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask_for_file(prompt: Prompt) -> Answer:
        if len(prompt.messages) == 1:
            return tool_request("files__read", {"path": "a.txt"})
        return prompt.messages[-1].content or ""

    toolset = files_toolset()
    house = House(toolsets={"files": toolset}, answer=ask_for_file)
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.txt").write_text(name)
    step: Document = {"id": "a", "goal": "Read", "tools": ["files__read"], "cache": True}

    def recipe(root: str) -> AgentRecipe:
        return house.recipe(step, tools=[{"files": {"root": root}}])

    said = []
    for root in ("one", "two", "one"):
        result = await house.run(recipe(str(tmp_path / root)))
        said.append((result.step("a").cached_from, "one" in str(result.output)))
    assert said == [(None, True), (None, False), ("run_1", True)]
    for name in ("one", "two"):
        monkeypatch.chdir(tmp_path / name)
        result = await house.run(recipe("."))
        assert (result.step("a").cached_from, name in str(result.output)) == (None, True)


async def test_failures_are_not_kept() -> None:
    house = House(answer=lambda _: ModelFailure(code="refused", message="not now"))
    recipe = house.recipe(ASK, inputs=INPUTS)
    assert (await house.run(recipe)).status is RunStatus.FAILED
    house.answer = echo
    assert (await house.run(recipe)).output == "re: What is tea?"


async def test_an_answer_that_also_names_the_next_step_is_not_kept() -> None:
    house = House(answer=lambda _: '{"is_complete": true, "next_step_id": "c"}')
    recipe = house.recipe(
        {"id": "a", "goal": "Choose", "completion": "signal", "cache": True},
        {"id": "b", "set": {"x": 1}},
        {"id": "c", "set": {"x": 2}},
        graph={"a": ["b", "c"]},
    )
    results = [await house.run(recipe) for _ in range(2)]
    ways = [[each.step_id for each in result.executions] for result in results]
    assert (ways, house.asked) == ([["a", "c"]] * 2, 2)


async def test_steps_of_a_transition_graph_are_cached_too() -> None:
    house = House()
    recipe = house.recipe(
        {"id": "a", "goal": "Ask", "cache": True, "route": "{{ 'c' if a else 'b' }}"},
        {"id": "b", "set": {"x": 1}},
        {"id": "c", "set": {"x": "{{ a }}"}},
        graph={"a": ["b", "c"]},
    )
    results = [await house.run(recipe) for _ in range(2)]
    assert [result.output for result in results] == [{"x": "re: Ask"}] * 2
    assert (results[1].step("a").cached_from, house.asked) == ("run_1", 1)


async def test_steps_that_do_not_say_so_are_done_each_time() -> None:
    house = House()
    recipe = house.recipe({**ASK, "cache": False}, inputs=INPUTS)
    for _ in range(2):
        await house.run(recipe)
    assert house.asked == 2


# --- without a cache ----------------------------------------------------------------------------


async def test_without_a_cache_a_run_warns_once_and_does_its_work() -> None:
    house = House(cache=None)
    recipe = house.recipe(ASK, inputs=INPUTS)
    first, second = await house.run(recipe), await house.run(recipe)
    assert [warning.code for warning in first.warnings] == ["no-cache"]
    assert (second.status, house.asked) == (RunStatus.COMPLETED, 2)


async def test_who_wants_no_cache_is_not_warned() -> None:
    house = House(cache=NoStepCache())
    recipe = house.recipe(ASK, inputs=INPUTS)
    results = [await house.run(recipe), await house.run(recipe)]
    assert ([each.warnings for each in results], house.asked) == ([(), ()], 2)


class BrokenCache(StepCache):
    """Busy, or worse."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    async def get(self, key: str) -> CachedStep | None:
        raise self._error

    async def put(self, key: str, entry: CachedStep) -> None:
        raise self._error


@pytest.mark.parametrize("error", [JournalError("busy", code="database-busy"), OSError("odd")])
async def test_a_cache_that_cannot_be_used_never_fails_a_run(error: Exception) -> None:
    house = House(cache=BrokenCache(error))
    result = await house.run(house.recipe(ASK, inputs=INPUTS))
    assert (result.status, result.warnings) == (RunStatus.COMPLETED, ())
    assert len(house.log.reasons("step_cache_unreadable")) == 1
    assert len(house.log.reasons("step_cache_unwritable")) == 1


async def test_where_nobody_can_tell_which_model_answers_nothing_is_kept() -> None:
    house = House()
    recipe = house.recipe(ASK, inputs=INPUTS)
    base = house.executor()
    own = ModelCallExecutors(ScriptedModel(echo))

    def make(_house: House) -> AgentExecutor:
        return AgentExecutor(
            ScriptedModel(echo),
            services=base._services,
            model_call_executor_factory=lambda call, context: own(call, context),
        )

    results = [await make(house).execute(recipe) for _ in range(2)]
    assert [each.step("a").cached_from for each in results] == [None, None]
    (reason, _) = house.log.reasons("step_not_cached")
    assert "is not known" in str(reason)


async def test_a_step_that_is_given_a_secret_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "a secret value")
    house = House()
    house.tools = [house.world.tool("look", Effect.PURE)]
    step: Document = {"id": "a", "tool": "look", "params": {"k": "{{ inputs.k }}"}, "cache": True}
    recipe = house.recipe(step, inputs={"k": {"type": "string", "secret": True}})
    for _ in range(2):
        await house.run(recipe, {"k": "env:TOKEN"})
    assert sum(house.world.done.values()) == 2
    assert house.log.reasons("step_not_cached") == ["a secret is part of what it asks"] * 2


async def test_a_tool_that_is_not_pure_is_called_also_where_a_recipe_was_made_by_code() -> None:
    house = House()
    house.tools = [house.world.tool("look", Effect.UNDECLARED)]
    recipe = AgentRecipe(id="r", steps=[ToolSpecStep(id="a", tool="look", cache=True)])
    for _ in range(2):
        assert (await house.run(recipe)).status is RunStatus.COMPLETED
    assert sum(house.world.done.values()) == 2


# --- faults ---------------------------------------------------------------------------------------


def faults_of(house: House, *steps: Document) -> list[str]:
    """Of the code `cache-skips-effect` only the words that differ."""
    with pytest.raises(RecipeError) as caught:
        house.recipe(*steps, permissions={"allow_write": True})
    words = [f"{fault.code}: {fault.message}" for fault in caught.value.faults]
    return [each.removeprefix("cache-skips-effect: step ") for each in words]


def test_a_step_that_may_change_something_cannot_be_cached() -> None:
    effects = (Effect.PURE, Effect.IDEMPOTENT, Effect.ONCE, Effect.UNDECLARED)
    house = House(tools=[fake_tool(effect.value, effect=effect) for effect in effects])
    names: list[JsonValue] = [effect.value for effect in effects]
    one, other = faults_of(
        house,
        {"id": "a", "goal": "All", "tools": names, "cache": True},
        {"id": "b", "tool": "once", "cache": True},
        {"id": "c", "tool": "pure", "cache": True},
    )
    assert one == (
        "'a' cannot be cached: the tool 'idempotent' is not declared pure (it is idempotent); "
        "the tool 'once' is not declared pure (it is once); the tool 'undeclared' is not declared "
        "pure (it is undeclared)"
    )
    assert other == "'b' cannot be cached: the tool 'once' is not declared pure (it is once)"


def test_a_step_of_a_conversation_cannot_be_cached() -> None:
    step: Document = {"id": "a", "goal": "x", "memory": "conversation", "cache": True}
    (fault,) = faults_of(House(), step)
    assert fault == (
        "'a' cannot be cached: later steps continue its conversation (memory: conversation)"
    )


def test_a_recipe_that_changes_something_or_asks_a_person_cannot_be_cached() -> None:
    house = House(tools=[fake_tool("send", effect=Effect.ONCE)])
    deep = house.loaded(
        {"id": "deep", "permissions": {"allow_write": True}, "steps": [{"id": "s", "tool": "send"}]}
    )
    house.recipes = {"deep": deep}
    asks = house.loaded(
        {"id": "asks", "steps": [{"id": "q", "ask": "Now?"}, {"id": "d", "recipe": "deep"}]}
    )
    made = AgentRecipe(id="made", steps=[ToolSpecStep(id="x", tool="send")])
    house.recipes = {"asks": asks, "made": made}
    one, other = faults_of(
        house,
        {"id": "a", "recipe": "asks", "cache": True},
        {"id": "b", "recipe": "made", "cache": True},
    )
    assert one == (
        "'a' cannot be cached: step 'q' of the recipe 'asks' asks a person; the tool 'send' is "
        "not declared pure (it is once)"
    )
    assert other == (
        "'b' cannot be cached: the recipe 'made' was made by code, whose changes cannot be detected"
    )


def test_steps_without_work_have_nothing_to_keep() -> None:
    (fault,) = faults_of(House(), {"id": "a", "set": {"x": 1}, "cache": True})
    assert fault == (
        "unknown-key: 'cache' belongs to goal, tool, analyze, recipe and code steps, but this is a "
        "set step"
    )
    (fault,) = faults_of(House(), {"id": "a", "goal": "x", "cache": "yes"})
    assert fault == "wrong-type: 'cache' takes true or false, but this is text"


# --- going on -------------------------------------------------------------------------------------

MIXED: list[Document] = [
    {"id": "a", "goal": "One", "cache": True},
    {"id": "b", "goal": "Item {{ loop.item }}", "loop": [1, 2], "max_parallel": 2, "cache": True},
    {"id": "c", "tool": "look", "params": {"n": "{{ a }}"}, "cache": True},
    {"id": "d", "recipe": "inner", "cache": True},
    {"id": "e", "goal": "{{ a }} {{ b.successful }} {{ c }} {{ d }}"},
]


def mixed() -> tuple[House, AgentRecipe]:
    house = House()
    house.tools = [house.world.tool("look", Effect.PURE)]
    inner = house.loaded({"id": "inner", "steps": [{"id": "q", "goal": "Inner"}]})
    house.recipes = {"inner": inner}
    return house, house.recipe(*MIXED, execution_mode="parallel")


def cached(result: AgentResult[object]) -> dict[str, str | None]:
    return {each.step_id: each.cached_from for each in result.executions}


async def killed(house: House, recipe: AgentRecipe, at: int, *, loses_last: bool) -> bool:
    journal = house.world.journal
    journal.dies_at, journal.loses_last = journal.count + at, loses_last
    try:
        await house.run(recipe)
    except KilledError:
        return True
    finally:
        journal.revive()
    return False


async def test_killed_anywhere_a_run_over_a_full_cache_goes_on_and_gives_the_same() -> None:
    quiet, recipe = mixed()
    await quiet.run(recipe)
    before = len(await quiet.world.journal.entries())
    expected = await quiet.run(recipe)
    facts = len(await quiet.world.journal.entries()) - before
    assert cached(expected) == {
        "a": "run_1",
        "b": None,  # its items are
        "c": "run_1",
        "d": "run_1",
        "e": None,
    }
    for at in range(2, facts + 1):
        for loses_last in (False, True):
            house, recipe = mixed()
            await house.run(recipe)
            asked, done = house.asked, sum(house.world.done.values())
            assert await killed(house, recipe, at, loses_last=loses_last)
            result = await house.executor().resume("run_2")
            assert outline(result) == outline(expected), at
            assert cached(result) == cached(expected), at
            assert house.asked - asked <= 2, at  # `e`, and once more where it was cut off
            assert sum(house.world.done.values()) == done, at


async def test_killed_anywhere_a_run_over_an_empty_cache_does_nothing_twice() -> None:
    quiet, recipe = mixed()
    expected = await quiet.run(recipe)
    for at in range(2, len(await quiet.world.journal.entries()) + 1):
        house, recipe = mixed()
        assert await killed(house, recipe, at, loses_last=False)
        result = await house.executor().resume("run_1")
        assert outline(result) == outline(expected), at
        assert set(cached(result).values()) == {None}, at
        assert house.asked <= quiet.asked + 4, at
        again = await house.run(recipe)
        assert again.output == expected.output, at


async def test_a_recorded_end_wins_over_the_cache() -> None:
    house = House()
    recipe = house.recipe(ASK, {"id": "b", "goal": "B {{ a }}"}, inputs=INPUTS)
    assert await killed(house, recipe, 6, loses_last=True)  # `a` has ended, `b` has begun
    other = MemoryStepCache()
    for key in list(house.cache._entries):  # type: ignore[union-attr]  # in memory
        entry = await house.cache.get(key)  # type: ignore[union-attr]  # likewise
        assert entry is not None
        await other.put(key, evolve(entry, output="something else"))
    assert other._entries
    house.cache = other
    result = await house.executor().resume("run_1")
    assert result.step("a").output == "re: What is tea?"


@pytest.mark.parametrize("keeps_cache", [True, False])
async def test_a_hit_that_was_recorded_is_kept_by_a_retry(keeps_cache: bool) -> None:  # a parameter
    house, recipe = mixed()
    await house.run(recipe)
    house.answer = lambda _: ModelFailure(code="refused", message="not now")
    failed = await house.run(recipe)
    assert (failed.run_id, failed.status) == ("run_2", RunStatus.FAILED)
    house.answer = echo
    asked, done = house.asked, sum(house.world.done.values())
    if not keeps_cache:
        house.cache = None
    result = await house.executor().retry("run_2")
    assert result.status is RunStatus.COMPLETED
    assert cached(result)["a"] == "run_1"
    assert cached(result)["d"] == "run_1"
    assert (house.asked - asked, sum(house.world.done.values()) - done) == (1, 0)


async def test_a_step_that_a_retry_names_is_asked_anew_and_the_new_answer_is_kept() -> None:
    house = House()
    recipe = house.recipe(ASK, inputs=INPUTS)
    await house.run(recipe)
    await house.run(recipe)
    house.answer = lambda _: "better"
    result = await house.executor().retry("run_2", from_step="a")
    assert (result.output, result.step("a").cached_from) == ("better", None)
    again = await house.run(recipe)
    assert (again.output, again.step("a").cached_from) == ("better", "run_2")


async def test_an_edit_that_only_asks_for_caching_runs_nothing_again() -> None:
    house = House()
    plain: Document = {key: value for key, value in ASK.items() if key != "cache"}
    await house.run(house.recipe(plain, inputs=INPUTS))
    result = await house.executor().retry("run_1", recipe=house.recipe(ASK, inputs=INPUTS))
    assert (result.output, house.asked) == ("re: What is tea?", 1)


async def test_what_was_in_the_cache_stands_in_a_retry_of_a_recipe_that_caches_no_more() -> None:
    house = House()
    check: Document = {"id": "b", "assert": "1 == 2"}
    plain: Document = {key: value for key, value in ASK.items() if key != "cache"}
    await house.run(house.recipe(ASK, inputs=INPUTS))
    failed = await house.run(house.recipe(ASK, check, inputs=INPUTS))
    edited = house.recipe(plain, check, inputs=INPUTS)
    result = await house.executor().retry(failed.run_id, recipe=edited)
    assert (result.step("a").cached_from, house.asked) == ("run_1", 1)


# --- further attempts ---------------------------------------------------------------------------


def in_turn(*answers: str) -> Callable[[Prompt], Answer]:
    left = iter(answers)
    return lambda _: next(left)


async def test_a_further_attempt_at_the_same_question_is_asked_and_the_last_answer_is_kept() -> (
    None
):
    house = House(answer=in_turn("bad", "good"))
    recipe = house.recipe(
        {"id": "a", "goal": "Try", "while": "a == 'bad'", "max_iterations": 3, "cache": True}
    )
    assert (await house.run(recipe)).output == "good"
    again = await house.run(recipe)
    assert (again.output, house.asked) == ("good", 2)


LOOK: Document = {"id": "a", "tool": "look", "cache": True}
CHECK: Document = {"id": "b", "assert": "a == 'good'", "on_error": {"goto": "a", "max": 1}}


def looking(*results: str) -> tuple[House, FakeTool]:
    left = iter(results)
    tool = fake_tool("look", lambda _: next(left), effect=Effect.PURE)
    return House(tools=[tool]), tool


async def test_an_answer_because_of_which_the_run_goes_back_is_not_given_again() -> None:
    house, tool = looking("bad", "good")
    recipe = house.recipe(LOOK, CHECK)
    assert (await house.run(recipe)).status is RunStatus.COMPLETED
    again = await house.run(recipe)
    assert (again.status, len(tool.asked)) == (RunStatus.COMPLETED, 2)


async def test_also_not_where_an_earlier_run_gave_it_and_wherever_the_run_is_killed() -> None:
    for at in range(2, 10):
        house, _ = looking("bad", "good", "good")
        await house.run(house.recipe(LOOK))  # "bad" is in the cache
        recipe = house.recipe(LOOK, CHECK)
        if await killed(house, recipe, at, loses_last=False):
            result = await house.executor().resume("run_2")
            first, *_, last = (each for each in result.executions if each.step_id == "a")
            assert (first.cached_from, first.output) == ("run_1", "bad"), at
            assert (last.cached_from, last.output) == (None, "good"), at
            assert result.status is RunStatus.COMPLETED, at
