"""The one address of each execution: printed by events and errors, accepted by retry (A-115)."""

from __future__ import annotations

import contextlib
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import deterministic_services, executor_of, python_step
from minions.adapters.models.script_items import Answer
from minions.contracts.calls import ModelFailure, Prompt
from minions.contracts.executions import AgentResult, RunStatus, address_of, around, is_within
from minions.contracts.run_events import RunEvent, event_to_json
from minions.contracts.steps import StepScope
from minions.data.errors import NotFoundError
from minions.data.json_values import JsonValue
from minions.engine.history.keys import scope_of
from minions.recipe.model import AgentRecipe
from mortal import KilledError, World
from nested import Document, loaded

# --- the form ---------------------------------------------------------------------------------

STEPS = st.text("abc-_[]", min_size=1, max_size=6)


@pytest.mark.parametrize(
    ("key", "address"),
    [
        ("draft/1/0", "draft"),
        ("draft/2/0", "draft"),
        ("each/1/3", "each[2]"),
        ("each/1/3@2", "each[2]"),
        ("each/1/3@2/model/1", "each[2]"),
        ("sub~1~2~each/1/3/call/9f.1/0/approval", "sub[1]/each[2]"),
        ("code~1~0#9f.1~say/1/0", "code/say"),
        ("run", "run"),
    ],
)
def test_the_address_is_derived_from_the_key_of_the_work(key: str, address: str) -> None:
    """Its steps from the outside in, each with the index of its iteration."""
    assert address_of(key) == address


@given(st.lists(st.tuples(STEPS, st.integers(1, 3), st.integers(0, 4)), min_size=1, max_size=4))
def test_what_encloses_an_execution_is_around_its_address(
    path: list[tuple[str, int, int]],
) -> None:
    """And nothing that does not."""
    prefix, outer = "", ""
    for step, visit, iteration in path:
        key = f"{prefix}{step}/{visit}/{iteration}"
        address = address_of(key)
        assert address == f"{outer}{step}" + (f"[{iteration - 1}]" if iteration else "")
        assert is_within(address, address)
        assert not outer or is_within(address, outer[:-1])
        assert not is_within(address, f"{address}x")
        assert address in around(address)
        prefix, outer = scope_of(key), f"{address}/"


# --- printed ----------------------------------------------------------------------------------

INNER: Document = {
    "inputs": {"name": "string"},
    "steps": [
        {"id": "before", "goal": "Before {{ inputs.name }}"},
        {"id": "each", "goal": "{{ inputs.name }} {{ loop.item }} {{ before }}", "loop": [0, 1]},
        {"id": "after", "goal": "After {{ inputs.name }} {{ each.results }}"},
    ],
}
OUTER: Document = {
    "steps": [
        {
            "id": "sub",
            "recipe": "inner",
            "with": {"name": "{{ loop.item }}"},
            "loop": ["x", "y"],
        },
        {"id": "end", "goal": "End {{ sub.results }}"},
    ]
}


def echo(prompt: Prompt) -> Answer:
    return f"re({len(prompt.messages[-1].content or '')})"


async def test_every_event_of_a_step_says_the_address_of_its_execution() -> None:
    """Also those of calls and messages, whose step's id does not tell the item."""
    world = World()
    run = world.executor(world.model(echo)).prepare(loaded(OUTER, {"inner": INNER}))
    events: list[RunEvent] = []
    run.listen(events.append)
    await run.execute()
    told = Counter(
        (event.type, str(event_to_json(event)["address"]))
        for event in events
        if not event.type.startswith("run_")
    )
    assert told["step_started", "sub[1]/each[1]"] == 1
    assert told["step_completed", "sub[1]/each[1]"] == 1
    assert told["step_finished", "sub[1]/each"] == 1
    assert told["step_delta", "sub[0]/before"] >= 1
    assert {address for _, address in told} == {
        "end",
        "sub",
        *(f"sub[{at}]" for at in (0, 1)),
        *(f"sub[{at}]/{step}" for at in (0, 1) for step in ("before", "each", "after")),
        *(f"sub[{at}]/each[{item}]" for at in (0, 1) for item in (0, 1)),
    }


async def test_a_failure_says_where_by_the_address_however_deep_it_is() -> None:
    """Of an item as in a list, of recipes within each other with each step around it once."""

    def answer(prompt: Prompt) -> Answer | ModelFailure:
        if (prompt.messages[-1].content or "").startswith("y 1"):
            return ModelFailure(code="model-refused", message="No.", is_retryable=False)
        return echo(prompt)

    nested: Document = {"steps": [{"id": "low", "recipe": "inner", "with": {"name": "y"}}]}
    world = World()
    recipe = loaded(
        {"steps": [{"id": "top", "recipe": "nested"}]}, {"nested": nested, "inner": INNER}
    )
    result = await world.executor(world.model(answer)).execute(recipe)
    assert result.error is not None
    assert (result.error.code, result.error.where) == ("loop-failed", "top/low/each")
    (top,) = result.executions
    (low,) = top.steps
    loop = next(each for each in low.steps if each.step_id == "each")
    items = ["top/low/each[0]", "top/low/each[1]"]
    assert [each.address for each in loop.iterations] == items
    assert loop.iterations[1].error is not None
    assert loop.iterations[1].error.where == items[1]


# --- accepted by retry ------------------------------------------------------------------------


async def ran() -> World:
    world = World()
    done = await world.executor(world.model(echo)).execute(loaded(OUTER, {"inner": INNER}))
    assert done.status is RunStatus.COMPLETED
    return world


async def retried(world: World, address: str) -> tuple[AgentResult[JsonValue], list[str]]:
    """The result, and the first two words of each prompt that was sent for it."""
    before = Counter(world.asked)

    def other(prompt: Prompt) -> Answer:
        return f"other({len(prompt.messages[-1].content or '')})"

    result = await world.executor(world.model(other)).retry("run_1", from_step=address)
    asked = (world.asked - before).elements()
    words = (["End"] if each.startswith("End") else each.split()[:2] for each in asked)
    return result, sorted(map(" ".join, words))


@pytest.mark.parametrize(
    ("address", "asked"),
    [
        ("sub[1]/each[0]", ["After y", "End", "y 0"]),
        ("sub[1]/each", ["After y", "End", "y 0", "y 1"]),
        ("sub[0]/after", ["After x", "End"]),
        ("sub[0]/before", ["After x", "Before x", "End", "x 0", "x 1"]),
        ("sub[1]", ["After y", "Before y", "End", "y 0", "y 1"]),
    ],
)
async def test_a_retry_from_an_address_runs_that_execution_and_what_comes_after_it(
    address: str, asked: list[str]
) -> None:
    """The other items of both loops are replayed, and so are the steps before it (A-115)."""
    world = await ran()
    result, sent = await retried(world, address)
    assert result.status is RunStatus.COMPLETED
    assert sent == asked
    assert (await retried(world, "end"))[1] == ["End"]  # the record of the retry is read again


async def test_a_retry_that_was_killed_goes_on_from_the_same_address() -> None:
    """What the retry discarded is read from its recorded start."""
    world = await ran()
    count = world.journal.count
    for at in range(1, 12):
        world.journal.dies_at = count + at
        with contextlib.suppress(KilledError):
            await world.executor(world.model(echo)).retry("run_1", from_step="sub[1]/each[0]")
        world.journal.revive()
        world.asked.clear()
        result = await world.executor(world.model(echo)).resume("run_1")
        assert result.status is RunStatus.COMPLETED
        assert not [each for each in world.asked if each.startswith(("x", "y 1", "Before"))]
        count = world.journal.count


async def test_a_retry_from_an_attempt_runs_the_later_attempts_too() -> None:
    """They read what the attempts before them gave."""
    world = World()
    recipe = loaded(
        {
            "steps": [
                {
                    "id": "draft",
                    "goal": "Attempt {{ loop.index }}",
                    "while": "loop.index < 3",
                    "max_iterations": 5,
                    "allow_repeats": True,
                }
            ]
        },
        {},
    )
    await world.executor(world.model(echo)).execute(recipe)
    _, sent = await retried(world, "draft[1]")
    assert sent == ["Attempt 1", "Attempt 2", "Attempt 3"]


async def test_a_retry_within_a_recipe_that_code_calls_runs_what_began_later() -> None:
    """Its steps are not known before they run; their order is that of the record."""

    async def work(scope: StepScope) -> JsonValue:
        return await scope.call_recipe("inner", {"name": "z"})

    world = World()
    inner = loaded({"id": "inner", **INNER}, {})
    recipe = AgentRecipe(id="calls", steps=(python_step(work, "code"),))

    executor = executor_of(
        world.model(echo), recipes={"inner": inner}, services=deterministic_services(world.journal)
    )
    await executor.execute(recipe)
    world.asked.clear()
    await executor.retry("run_1", recipe=recipe, from_step="code/each[1]")
    assert sorted(" ".join(each.split()[:2]) for each in world.asked) == ["After z", "z 1"]


async def test_an_address_at_which_nothing_ran_is_refused_with_those_that_are_like_it() -> None:
    """Nothing is run then, and nothing recorded."""
    world = await ran()
    count = world.journal.count
    with pytest.raises(NotFoundError) as caught:
        await retried(world, "sub[1]/eech[0]")
    assert caught.value.error_code == "unknown-step"
    assert "sub[1]/each[0]" in caught.value.suggestions
    assert "Executed were: sub, sub[0], sub[0]/before" in caught.value.message
    assert world.journal.count == count
