"""A run that was cut off goes on: what is recorded is not done again, what is not is done once."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence

import pytest
from attrs import evolve

from builders import (
    FakeTool,
    deterministic_services,
    executor_of,
    fake_tool,
    python_step,
    recipe_of,
    text_step,
)
from minions.adapters.models.script_items import Answer, AnswerFunction, tool_request
from minions.adapters.models.scripted import ScriptedModel
from minions.contracts.calls import Prompt
from minions.contracts.executions import AgentResult, RunStatus
from minions.contracts.messages import MessageBundle, MessageRole
from minions.contracts.runtime import IsWorkerGone
from minions.contracts.steps import DefaultStep, StepScope
from minions.contracts.tools import Effect
from minions.data.errors import LeaseHeldError, NotFoundError, UsageError
from minions.data.json_values import JsonValue
from minions.engine.run.recorded_run import RecordedRun
from minions.engine.views.lookup import list_runs
from minions.engine.views.run_detail import show_run
from minions.recipe.catalog import Catalog
from minions.recipe.model import AgentRecipe, Permissions
from minions.recipe.reading.load import recipe_from_document
from minions.testing.virtual_time import FakeClock
from mortal import KilledError, MortalJournal, World, outline

WRITING = Permissions(allow_write=True)


def loaded(text_steps: Sequence[Mapping[str, JsonValue]], **settings: JsonValue) -> AgentRecipe:
    """A recipe as a file would give it."""
    document: dict[str, JsonValue] = {
        "id": "recipe",
        "tools": ["note", "send", "look"],
        "permissions": {"allow_write": True},
        **settings,
        "steps": [dict(step) for step in text_steps],
    }
    specs = {
        name: fake_tool(name, effect=effect).spec
        for name, effect in (
            ("note", Effect.IDEMPOTENT),
            ("send", Effect.ONCE),
            ("look", Effect.PURE),
        )
    }
    return recipe_from_document(document, Catalog(tools=specs))


def tools_of(world: World) -> list[FakeTool]:
    return [
        world.tool("note", Effect.IDEMPOTENT, {"n": 1}),
        world.tool("send", Effect.ONCE),
        world.tool("look", Effect.PURE, ["a", "b"]),
    ]


MIXED = loaded(
    [
        {"id": "first", "set": {"x": 1}},
        {"id": "read", "tool": "look", "params": {"of": "{{ first.x }}"}},
        {"id": "write", "tool": "note", "params": {"text": "{{ read[0] }}"}},
        {"id": "ask", "goal": "Ask about {{ read }}.", "tools": ["look", "note"]},
        {
            "id": "judge",
            "goal": "Judge {{ ask }}.",
            "output": {
                "type": "object",
                "required": ["good"],
                "properties": {"good": {"type": "boolean"}},
            },
        },
        {"id": "never", "goal": "no", "when": "judge.good == false"},
        {"id": "last", "set": {"all": "{{ ask }} {{ write.n }} {{ judge.good }}"}},
    ]
)


def mixed_answer(prompt: Prompt) -> Answer:
    """Two turns of tools and then words; wrong JSON at first."""
    goal = next(m.content or "" for m in prompt.messages if m.role is MessageRole.GOAL)
    said = [m for m in prompt.messages if m.role is MessageRole.ASSISTANT]
    if goal.startswith("Judge"):
        return '{"good": 3}' if not said else '{"good": true}'
    if len(said) == 0:
        return [tool_request("look", {"of": "b"}), tool_request("note", {"text": "c"})]
    if len(said) == 1:
        return tool_request("note", {"text": "d"})
    return "all well"


async def whole(recipe: AgentRecipe, answer: AnswerFunction) -> tuple[AgentResult[object], World]:
    """The same run without a crash."""
    world = World()
    executor = world.executor(world.model(answer), tools_of(world))
    return await executor.execute(recipe), world


@pytest.mark.parametrize("mode", ["sequential", "parallel"])
@pytest.mark.parametrize("loses_last", [False, True])
async def test_a_run_that_is_killed_at_any_fact_comes_to_the_same_end(
    mode: str, loses_last: bool
) -> None:
    """A-26 … A-35 hold over a crash: no recorded call is made again, effects keep their key."""
    recipe = recipe_from_document(
        {**(MIXED.document or {}), "execution_mode": mode},
        Catalog(tools={tool.spec.name: tool.spec for tool in tools_of(World())}),
    )
    expected, quiet = await whole(recipe, mixed_answer)
    assert expected.status is RunStatus.COMPLETED
    facts = len(await quiet.journal.entries())
    for at in range(2, facts + 1):
        world = World()
        executor = world.executor(world.model(mixed_answer), tools_of(world))
        assert await world.killed(executor, recipe, at, loses_last=loses_last)
        again = world.executor(world.model(mixed_answer), tools_of(world))
        result = await again.resume("run_1")
        assert outline(result) == outline(expected), at
        extra = sum((world.asked - quiet.asked).values()) + sum((world.done - quiet.done).values())
        assert extra <= (1 if loses_last else 0), at  # only the work whose end was lost
        assert set(world.done) == set(quiet.done)
        (summary,) = await list_runs(world.journal)
        assert summary.status == "completed"
        detail = await show_run(world.journal, summary)
        assert [step.status for step in detail.steps].count("skipped") == 1
        assert len(detail.steps) == 7


async def test_a_run_that_is_killed_again_and_again_comes_to_its_end() -> None:
    expected, quiet = await whole(MIXED, mixed_answer)
    world = World()
    executor = world.executor(world.model(mixed_answer), tools_of(world))
    assert await world.killed(executor, MIXED, 3)
    kills = 0
    while True:
        world.journal.dies_at = world.journal.count + 3
        again = world.executor(world.model(mixed_answer), tools_of(world))
        try:
            result = await again.resume("run_1")
            break
        except KilledError:
            kills += 1
        finally:
            world.journal.revive()
    assert kills > 5
    assert outline(result) == outline(expected)
    assert sum(world.asked.values()) <= sum(quiet.asked.values()) + kills


async def test_a_finished_run_tells_its_output_again_and_does_nothing() -> None:
    expected, quiet = await whole(MIXED, mixed_answer)
    before = (Counter(quiet.asked), Counter(quiet.done), len(await quiet.journal.entries()))
    again = quiet.executor(quiet.model(mixed_answer), tools_of(quiet))
    result = await again.resume("run_1")
    assert outline(result) == outline(expected)
    assert (quiet.asked, quiet.done, len(await quiet.journal.entries())) == before


async def test_a_resumed_run_loads_its_recipe_once(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    await interrupted_send(world)
    read: list[str] = []

    def noted(recorded: RecordedRun, catalog: Catalog) -> AgentRecipe:
        read.append(recorded.run_id)
        return load(recorded, catalog)

    load = RecordedRun.recipe
    monkeypatch.setattr(RecordedRun, "recipe", noted)
    await world.executor(world.model(lambda prompt: "no"), tools_of(world)).resume("run_1")
    assert read == ["run_1"]


# --- effects in doubt ----------------------------------------------------------------------------

SENDING = loaded(
    [
        {"id": "before", "set": {"x": 1}},
        {"id": "mail", "tool": "send", "params": {"to": "you"}},
        {"id": "after", "set": {"y": "{{ mail }}"}},
    ]
)


async def interrupted_send(world: World) -> None:
    """A run that dies between the effect and the fact that it ended."""
    executor = world.executor(world.model(lambda prompt: "no"), tools_of(world))
    rows = ["run started", "before finished", "mail started", "call started", "call finished"]
    assert await world.killed(executor, SENDING, len(rows), loses_last=True)
    assert sum(world.done.values()) == 1


async def test_an_effect_that_may_not_be_repeated_stops_the_run_for_a_decision() -> None:
    world = World()
    await interrupted_send(world)
    again = world.executor(world.model(lambda prompt: "no"), tools_of(world))
    for _ in range(2):  # asking again changes nothing
        result = await again.resume("run_1")
        assert result.status is RunStatus.NEEDS_DECISION
        assert result.error is not None
        assert result.error.code == "in-doubt"
        assert "--decide mail/1/0/call/" in result.error.message
        assert {each.step_id: each.status.value for each in result.executions} == {
            "before": "completed",
            "mail": "skipped",
            "after": "skipped",
        }
    assert sum(world.done.values()) == 1


@pytest.mark.parametrize(
    ("word", "runs", "status", "output"),
    [
        ("redo", 2, "completed", {"y": "seen"}),
        ("done", 1, "completed", {"y": None}),
        ('done:{"id": 7}', 1, "completed", {"y": {"id": 7}}),
        ('done:"sent"', 1, "completed", {"y": "sent"}),
        ("fail", 1, "failed", None),
    ],
)
async def test_a_decision_settles_a_call_in_doubt(
    word: str, runs: int, status: str, output: JsonValue
) -> None:
    world = World()
    await interrupted_send(world)
    again = world.executor(world.model(lambda prompt: "no"), tools_of(world))
    result = await again.resume("run_1", decisions={"mail": word})
    assert (result.status.value, result.output) == (status, output)
    assert sum(world.done.values()) == runs


async def test_a_decision_is_remembered_over_the_next_crash() -> None:
    world = World()
    await interrupted_send(world)
    again = world.executor(world.model(lambda prompt: "no"), tools_of(world))
    world.journal.dies_at = world.journal.count + 1  # just after `run resumed`
    with pytest.raises(KilledError):
        await again.resume("run_1", decisions={"send": "done"})
    world.journal.revive()
    result = await world.executor(world.model(lambda prompt: "no"), tools_of(world)).resume("run_1")
    assert (result.status, result.output) == (RunStatus.COMPLETED, {"y": None})
    assert sum(world.done.values()) == 1


async def test_a_call_that_is_made_again_and_cut_off_again_is_in_doubt_again() -> None:
    world = World()
    await interrupted_send(world)
    again = world.executor(world.model(lambda prompt: "no"), tools_of(world))
    world.journal.dies_at = world.journal.count + 2  # `run resumed`, `call started`
    with pytest.raises(KilledError):
        await again.resume("run_1", decisions={"send": "redo"})
    world.journal.revive()
    result = await world.executor(world.model(lambda prompt: "no"), tools_of(world)).resume("run_1")
    assert result.status is RunStatus.NEEDS_DECISION


@pytest.mark.parametrize(
    ("name", "word", "message"),
    [
        ("post", "redo", "'post' does not wait for a decision. What waits: mail/"),
        ("mail", "again", "'again' is no decision. Say redo"),
        ("mail", "done:{", "The result in 'done:{' is not JSON"),
    ],
)
async def test_a_decision_that_means_nothing_is_refused(name: str, word: str, message: str) -> None:
    world = World()
    await interrupted_send(world)
    before = len(await world.journal.entries())
    again = world.executor(world.model(lambda prompt: "no"), tools_of(world))
    with pytest.raises(UsageError) as caught:
        await again.resume("run_1", decisions={name: word})
    assert caught.value.message.startswith(message)
    assert len(await world.journal.entries()) == before


async def test_a_tool_nobody_declared_is_in_doubt_and_a_declared_one_is_not() -> None:
    step = text_step(tools=["look"])

    def answer(prompt: Prompt) -> Answer:
        return "done" if prompt.messages[-1].role is MessageRole.TOOL else tool_request("look")

    for effect in Effect:
        world = World()
        executor = world.executor(world.model(answer), [world.tool("look", effect)])
        recipe = recipe_of([step], permissions=WRITING)
        assert await world.killed(executor, recipe, 5, loses_last=True)  # its end is lost
        assert sum(world.done.values()) == 1
        again = world.executor(world.model(answer), [world.tool("look", effect)])
        result = await again.resume("run_1", recipe=recipe)
        is_safe = effect in (Effect.PURE, Effect.IDEMPOTENT)
        assert result.status.value == ("completed" if is_safe else "needs_decision"), effect
        assert len(world.done) == 1  # the same key


# --- who may go on -------------------------------------------------------------------------------


def _always(*, answer: bool) -> IsWorkerGone:
    return lambda _: answer


async def test_a_run_whose_worker_lives_is_refused_and_one_whose_worker_died_goes_on() -> None:
    world = World()
    dead = deterministic_services(world.journal)
    executor = executor_of(world.model(mixed_answer), tools=tools_of(world), services=dead)
    assert await world.killed(executor, MIXED, 4)
    for is_gone in (False, True):
        services = evolve(dead, worker_id="other", is_worker_gone=_always(answer=is_gone))
        other = executor_of(world.model(mixed_answer), tools=tools_of(world), services=services)
        if is_gone:
            assert (await other.resume("run_1")).status is RunStatus.COMPLETED
        else:
            with pytest.raises(LeaseHeldError, match="run 'run_1' is active on worker 'worker'"):
                await other.resume("run_1")


async def test_a_lease_that_ran_out_is_taken_without_asking() -> None:
    clock = FakeClock()
    world = World(journal=MortalJournal(clock))
    services = deterministic_services(world.journal, clock)
    executor = executor_of(world.model(mixed_answer), tools=tools_of(world), services=services)
    assert await world.killed(executor, MIXED, 4)
    await clock.sleep(services.lease_ttl_s)
    other = evolve(services, worker_id="other", is_worker_gone=lambda _: False)
    executor = executor_of(world.model(mixed_answer), tools=tools_of(world), services=other)
    assert (await executor.resume("run_1")).status is RunStatus.COMPLETED


async def test_an_unknown_run_is_refused() -> None:
    with pytest.raises(NotFoundError, match="No run or session starts with 'run_9'"):
        await executor_of(ScriptedModel([])).resume("run_9")


async def test_a_cancelled_run_goes_on_where_it_was() -> None:
    """What the cancellation cut off is done again; what was done is not."""
    world = World()

    def answer(prompt: Prompt) -> Answer:
        text = prompt.messages[-1].content
        if text == "Goal of b." and world.asked["Goal of b."] == 1:
            run.cancel()
        return f"re: {text}"

    recipe = recipe_of([text_step("a"), text_step("b"), text_step("c")])
    run = world.executor(world.model(answer)).prepare(recipe)
    result = await run.execute()
    assert result.status is RunStatus.CANCELLED
    result = await world.executor(world.model(answer)).resume("run_1", recipe=recipe)
    assert result.status is RunStatus.COMPLETED
    assert result.output == "re: Goal of c."
    assert [each.step_id for each in result.executions] == ["a", "b", "c"]
    assert world.asked["Goal of a."] == 1


async def test_a_run_that_reached_a_limit_goes_on_with_a_higher_one() -> None:
    world = World()
    steps = [text_step("a"), text_step("b"), text_step("c")]
    executor = world.executor(world.model(lambda prompt: "yes"))
    low = recipe_of(steps, limits={"max_steps": 2})
    assert (await executor.execute(low)).status is RunStatus.LIMIT_REACHED
    again = world.executor(world.model(lambda prompt: "yes"))
    assert (await again.resume("run_1", recipe=low)).status is RunStatus.LIMIT_REACHED
    result = await again.resume("run_1", recipe=recipe_of(steps))
    assert result.status is RunStatus.COMPLETED
    assert sum(world.asked.values()) == 3


async def test_code_of_another_version_is_refused() -> None:
    world = World()
    old = recipe_of([text_step("a"), text_step("b")])
    assert await world.killed(world.executor(world.model(lambda prompt: "yes")), old, 4)
    new = recipe_of([text_step("a"), DefaultStep[object](id="b", version="2"), text_step("c")])
    again = world.executor(world.model(lambda prompt: "yes"))
    with pytest.raises(UsageError) as caught:
        await again.resume("run_1", recipe=new)
    assert caught.value.error_code == "other-version"
    assert "step 'b' was version 1 and is version 2; step 'c' was not there" in str(caught.value)
    with pytest.raises(UsageError, match="code does not travel with a run"):
        await again.resume("run_1")
    with pytest.raises(UsageError, match="belongs to the recipe 'recipe', not to 'other'"):
        await again.resume("run_1", recipe=AgentRecipe(id="other", steps=old.steps))


# --- steps of code -----------------------------------------------------------------------------


async def test_code_that_asks_in_another_order_gets_each_answer_to_its_question() -> None:
    """Work of a Python step is known by what was asked: no rule of determinism is needed."""
    world = World()
    look = world.tool("look", Effect.PURE)
    order = ["a", "b", "c"]

    async def ask(scope: StepScope) -> object:
        answers = {}
        for name in order:
            answers[name] = await scope.call_model(name)
            await scope.call_tool("look", {"at": name})
        return dict(sorted(answers.items()))

    def answer(prompt: Prompt) -> Answer:
        return f"re: {prompt.messages[-1].content}"

    recipe = recipe_of([python_step(ask)])
    executor = world.executor(world.model(answer), [look])
    assert await world.killed(executor, recipe, 9)
    order.reverse()
    again = world.executor(world.model(answer), [look])
    result = await again.resume("run_1", recipe=recipe)
    assert result.output == {"a": "re: a", "b": "re: b", "c": "re: c"}
    assert world.asked == {"a": 1, "b": 1, "c": 1}
    assert sum(world.done.values()) == 3


async def test_the_same_question_asked_twice_is_two_calls_also_after_a_crash() -> None:
    world = World()

    async def ask(scope: StepScope) -> object:
        return await asyncio.gather(*[scope.call_model("same") for _ in range(3)])

    recipe = recipe_of([python_step(ask)])
    count = iter(range(10))
    executor = world.executor(world.model(lambda prompt: f"{next(count)}"))
    assert await world.killed(executor, recipe, 7)
    again = world.executor(world.model(lambda prompt: f"{next(count)}"))
    result = await again.resume("run_1", recipe=recipe)
    assert isinstance(result.output, list)
    assert sorted(result.output) == ["0", "1", "2"]
    assert world.asked == {"same": 3}


# --- a transition graph ------------------------------------------------------------------------


async def test_a_walk_through_transitions_takes_the_same_way_again() -> None:
    """Routing by a decision tool and by the model's wish rests on recorded answers."""
    said: list[str] = []

    def decide(arguments: Mapping[str, JsonValue]) -> object:
        said.append("right")
        return "right"

    step = text_step("fork", decision_tool=tool_request("choose", id="c"))
    wish = DefaultStep[object](id="right", messages=MessageBundle.of(goal="Where to?"))
    recipe = AgentRecipe(
        id="recipe",
        steps=[step, text_step("left"), wish, text_step("x"), text_step("y")],
        graph={"fork": ["left", "right"], "right": ["x", "y"]},
    )

    def answer(prompt: Prompt) -> Answer:
        if prompt.messages[-1].content == "Where to?":
            return {"is_complete": True, "next_step_id": "y"}
        return "done"

    tool = fake_tool("choose", decide, effect=Effect.PURE)
    quiet = World()
    expected = await quiet.executor(quiet.model(answer), [tool]).execute(recipe)
    assert [each.step_id for each in expected.executions] == ["fork", "right", "y"]
    for at in range(2, len(await quiet.journal.entries()) + 1):
        world = World()
        executor = world.executor(world.model(answer), [tool])
        assert await world.killed(executor, recipe, at)
        again = world.executor(world.model(answer), [tool])
        result = await again.resume("run_1", recipe=recipe)
        assert outline(result) == outline(expected)
        assert world.asked == quiet.asked
