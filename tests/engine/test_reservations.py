"""What model calls may use is reserved before they start, and shared by whoever spends together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from builders import answer_of, deterministic_services, executor_of
from minions.adapters.models.script_items import AnswerFunction
from minions.adapters.models.scripted import ScriptedModel
from minions.contracts.calls import ModelCallResponse, ModelFailure, Prompt
from minions.contracts.context import Limits
from minions.contracts.executions import AgentResult, RunStatus
from minions.contracts.messages import TokenUsage
from minions.data.json_values import JsonValue
from minions.engine.services.run_services import Services
from minions.engine.services.spending import CallEstimate, EarlierUsage, Spending
from minions.recipe.catalog import Catalog
from minions.recipe.model import AgentRecipe
from minions.recipe.reading.load import recipe_from_document
from mortal import KilledError, World, outline
from nested import Document, loaded
from prices import FlatPrices

MODEL = "scripted/answers"
CALL_USD = 15.0  # ten tokens of input and five of output at a dollar each


def priced(services: Services | None = None) -> Services:
    return evolve(services or deterministic_services(), prices=FlatPrices({MODEL: 1.0}))


def items(count: int, **limits: JsonValue) -> AgentRecipe:
    step: Mapping[str, JsonValue] = {
        "id": "each",
        "goal": "Do {{ loop.item }}.",
        "loop": list(range(count)),
        "max_parallel": count,
    }
    document: Mapping[str, JsonValue] = {"id": "recipe", "limits": limits, "steps": [step]}
    return recipe_from_document(document, Catalog())


def slow_answers() -> AnswerFunction:
    async def answer(prompt: Prompt) -> ModelCallResponse:
        for _ in range(3):
            await asyncio.sleep(0)
        return answer_of("done")

    return answer


async def spent(recipe: AgentRecipe) -> AgentResult[object]:
    world = World()
    return await executor_of(world.model(slow_answers()), services=priced()).execute(recipe)


def cost(result: AgentResult[object]) -> float:
    assert result.usage.cost_usd is not None
    return result.usage.cost_usd


async def test_sixty_items_at_once_exceed_a_limit_on_cost_by_one_call_at_most() -> None:
    most = 20 * CALL_USD + 1
    result = await spent(items(60, max_cost_usd=most))
    assert result.status is RunStatus.LIMIT_REACHED
    assert most <= cost(result) <= most + CALL_USD
    (warned,) = result.warnings
    assert warned.code == "limit-exceeded"
    assert "run's limit: $315 was spent, and max_cost_usd=301" in warned.message


async def test_a_run_that_died_before_it_said_that_a_limit_is_exceeded_says_so_later() -> None:
    recipe = items(1, max_tokens=10)
    for at in range(2, 30):
        world = World()
        executor = world.executor(world.model(lambda _: answer_of("done")))
        if not await world.killed(executor, recipe, at):
            break
        again = world.executor(world.model(lambda _: answer_of("done")))
        result = await again.resume("run_1")
        assert [each.code for each in result.warnings] == ["limit-exceeded"], at
    assert at > 4


async def test_an_answer_that_used_up_the_budget_before_the_run_died_is_used() -> None:
    steps: list[JsonValue] = [{"id": name, "goal": f"Do {name}."} for name in ("first", "second")]
    recipe = recipe_from_document(
        {"id": "recipe", "limits": {"max_tokens": 20}, "steps": steps}, Catalog()
    )
    quiet = World()
    wanted = await quiet.executor(quiet.model(lambda _: answer_of("done"))).execute(recipe)
    assert wanted.status is RunStatus.COMPLETED
    assert wanted.usage.total_tokens == 30
    for at in range(2, 30):
        world = World()
        model = world.model(lambda _: answer_of("done"))
        if not await world.killed(world.executor(model), recipe, at):
            break
        result = await world.executor(model).resume("run_1")
        assert outline(result) == outline(wanted), at
    assert at > 6


async def test_an_item_that_ended_stays_so_behind_one_that_the_budget_keeps_from_going_on() -> None:
    """The budget has room for three calls at once; the first uses it up, the second dies."""

    async def answer(prompt: Prompt) -> ModelCallResponse:
        turns, tokens = {"Do 0.": (40, 100_000), "Do 1.": (80, 0), "Do 2.": (0, 5)}[
            prompt.messages[-1].content or ""
        ]
        for _ in range(turns):
            await asyncio.sleep(0)
        if not tokens:
            world.journal.is_dead = True
            raise KilledError
        return evolve(answer_of("done"), usage=TokenUsage(output_tokens=tokens))

    world, recipe = World(), items(3, max_tokens=60_000)
    with pytest.raises(KilledError):
        await world.executor(ScriptedModel(answer)).execute(recipe)
    world.journal.revive()
    result = await world.executor(ScriptedModel(answer)).resume("run_1")
    assert result.status is RunStatus.LIMIT_REACHED
    assert result.usage.output_tokens == 100_005


async def test_a_limit_that_is_not_exceeded_warns_of_nothing() -> None:
    result = await spent(items(60, max_cost_usd=20 * CALL_USD))
    assert (result.status, cost(result), result.warnings) == (
        RunStatus.LIMIT_REACHED,
        20 * CALL_USD,
        (),
    )


async def test_sixty_items_at_once_exceed_a_limit_on_tokens_by_one_call_at_most() -> None:
    result = await spent(items(60, max_tokens=100))
    assert result.status is RunStatus.LIMIT_REACHED
    assert 100 <= result.usage.total_tokens <= 115


async def test_model_calls_of_a_run_are_limited_exactly() -> None:
    result = await spent(items(60, max_model_calls=7))
    assert result.status is RunStatus.LIMIT_REACHED
    assert result.usage.total_tokens == 7 * 15
    assert result.error is not None
    assert "limit max_model_calls=7 is reached: 7 model calls were made" in result.error.message


async def test_a_limit_with_room_for_all_lets_all_calls_go_at_once() -> None:
    in_flight = most_in_flight = 0

    async def answer(prompt: Prompt) -> ModelCallResponse:
        nonlocal in_flight, most_in_flight
        in_flight += 1
        most_in_flight = max(most_in_flight, in_flight)
        for _ in range(3):
            await asyncio.sleep(0)
        in_flight -= 1
        return answer_of("done")

    model = World().model(answer)
    result = await executor_of(model, services=priced()).execute(items(30, max_cost_usd=1e9))
    assert (result.status, most_in_flight) == (RunStatus.COMPLETED, 30)


async def test_recipes_within_a_run_spend_its_budget_together() -> None:
    inner: Document = {"id": "inner", "steps": [{"id": "asks", "goal": "Go."}]}
    step: Mapping[str, JsonValue] = {
        "id": "each",
        "recipe": "inner",
        "loop": list(range(20)),
        "max_parallel": 20,
    }
    outer: Document = {"limits": {"max_cost_usd": 4 * CALL_USD + 1}, "steps": [step]}
    result = await spent(loaded(outer, {"inner": inner}))
    assert result.status is RunStatus.LIMIT_REACHED
    assert cost(result) == 5 * CALL_USD


async def test_a_resumed_run_keeps_what_it_spent_also_before_that_is_replayed() -> None:
    world = World()
    recipe = items(30, max_cost_usd=10 * CALL_USD)
    facts = 2 + 30 + 12  # it dies among the answers
    assert await world.killed(
        executor_of(world.model(slow_answers()), services=services_of(world)), recipe, facts
    )
    assert world.asked.total() > 1
    result = await executor_of(world.model(slow_answers()), services=services_of(world)).resume(
        "run_1"
    )
    assert result.status is RunStatus.LIMIT_REACHED
    assert cost(result) <= 11 * CALL_USD


def services_of(world: World) -> Services:
    return priced(deterministic_services(world.journal))


async def test_attempts_that_fail_and_cost_end_with_the_budget() -> None:
    failed = ModelFailure(
        code="stream-interrupted",
        message="It broke off.",
        is_retryable=True,
        usage=TokenUsage(input_tokens=10, output_tokens=5),
    )
    asked = 0

    async def answer(prompt: Prompt) -> ModelFailure:
        nonlocal asked
        asked += 1
        return failed

    step: Mapping[str, JsonValue] = {"id": "asks", "goal": "Go."}
    document: Mapping[str, JsonValue] = {
        "id": "recipe",
        "limits": {"max_cost_usd": 20},
        "retry": {"max_attempts": 9, "initial_delay": 0},
        "steps": [step],
    }
    model = World().model(answer)
    result = await executor_of(model, services=priced()).execute(
        recipe_from_document(document, Catalog())
    )
    assert (result.status, asked, cost(result)) == (RunStatus.LIMIT_REACHED, 2, 30.0)


# --- the reservations themselves ---------------------------------------------------------------


def dollars(usage: TokenUsage) -> float:
    return float(usage.total_tokens)


@asynccontextmanager
async def reserved(spending: Spending, estimate: CallEstimate) -> AsyncIterator[None]:
    hold = await spending.reserve(estimate)
    try:
        yield
    finally:
        if hold is not None:
            spending.release(hold)


@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(1, 4)), min_size=1, max_size=40),
    st.integers(1, 120),
)
def test_bounded_calls_never_exceed_a_limit_by_more_than_one_of_them(
    calls: list[tuple[int, int]], most: int
) -> None:
    """Each call uses up to the 20 tokens of its bound, and takes some turns of the loop."""
    spending = Spending(lambda: Limits(max_tokens=most, max_cost_usd=float(most)))
    used: list[int] = []

    async def call(tokens: int, turns: int) -> None:
        estimate = CallEstimate(characters=0, max_output_tokens=20, cost_usd=dollars)
        async with reserved(spending, estimate):
            if spending.reached is not None:
                return
            for _ in range(turns):
                await asyncio.sleep(0)
            used.append(tokens)
            spending.add(TokenUsage(output_tokens=tokens, cost_usd=float(tokens)))

    async def everything() -> None:
        async with asyncio.timeout(10):
            await asyncio.gather(*(call(*each) for each in calls))

    asyncio.run(everything())
    assert sum(used) <= most + 20
    if sum(tokens for tokens, _ in calls) <= most:
        assert len(used) == len(calls) or spending.reached is not None
    assert spending.calls == len(used)


async def test_a_call_is_estimated_only_when_another_wants_to_begin_beside_it() -> None:
    spending = Spending(lambda: Limits(max_cost_usd=100.0))
    asked: list[int] = []

    def price(usage: TokenUsage) -> float:
        asked.append(usage.output_tokens)
        return dollars(usage) - 1000  # of the prompt

    def estimate(bound: int) -> CallEstimate:
        return CallEstimate(characters=0, max_output_tokens=bound, cost_usd=price)

    async with reserved(spending, estimate(60)):
        assert asked == []
        second = asyncio.ensure_future(spending.reserve(estimate(41)))
        await asyncio.sleep(0)
        assert (asked, second.done()) == ([60, 41], False)
    hold = await second
    assert hold is not None
    spending.release(hold)
    assert asked == [60, 41]


async def test_calls_that_wait_for_room_begin_in_their_order() -> None:
    spending = Spending(lambda: Limits(max_tokens=100))
    begun: list[str] = []

    async def call(name: str, bound: int) -> None:
        estimate = CallEstimate(characters=0, max_output_tokens=bound, cost_usd=dollars)
        async with reserved(spending, estimate):
            begun.append(name)
            await asyncio.sleep(0)
            spending.add(TokenUsage(output_tokens=1))

    names = {"first": 60, "large": 99, "small": 1, "smaller": 0}
    await asyncio.gather(*(call(name, bound) for name, bound in names.items()))
    assert begun == list(names)


async def test_a_cancelled_call_gives_back_what_it_held() -> None:
    spending = Spending(lambda: Limits(max_tokens=10))
    estimate = CallEstimate(characters=0, max_output_tokens=10, cost_usd=dollars)

    async def call() -> str:
        async with reserved(spending, estimate):
            await asyncio.sleep(0)
        return "done"

    first, second, third = (asyncio.create_task(call()) for _ in range(3))
    await asyncio.sleep(0)
    second.cancel()
    assert await third == "done"
    assert first.result() == "done"


def test_earlier_usage_counts_until_it_is_replayed() -> None:
    usage = TokenUsage(input_tokens=3, cost_usd=0.5)
    earlier = EarlierUsage([("a", usage), ("b", usage)])
    spending = Spending(lambda: Limits(max_tokens=100), earlier=earlier)
    assert (spending.tokens, spending.cost_usd, spending.usage) == (6, 1.0, TokenUsage())
    spending.replay("a", usage)
    assert (spending.tokens, spending.cost_usd, spending.usage) == (6, 1.0, usage)
    spending.replay("c", usage)
    assert (spending.tokens, earlier.calls) == (9, 1)


def test_earlier_usage_of_unknown_cost_uses_up_a_limit_on_cost() -> None:
    earlier = EarlierUsage([("a", TokenUsage(input_tokens=3))])
    spending = Spending(lambda: Limits(max_cost_usd=1.0), earlier=earlier)
    assert (spending.cost_usd, spending.used_up()) == (None, "max_cost_usd")
