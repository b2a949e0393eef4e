"""What a run costs: each call is priced once, a limit on cost holds, unknown is never nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

import pytest
from attrs import evolve

from builders import (
    Ran,
    answer_of,
    deterministic_services,
    executor_of,
    python_step,
    recipe_of,
    run_of,
    run_recipe,
    text_step,
)
from minions.adapters.models.script_items import Answer
from minions.adapters.models.scripted import ScriptedModel
from minions.contracts.calls import (
    ModelCall,
    ModelCallResponse,
    ModelFailure,
)
from minions.contracts.context import Limits, ModelCallExecutor, RunContext
from minions.contracts.executions import RunStatus
from minions.contracts.messages import TokenUsage, assistant
from minions.contracts.retry_config import RetryConfig
from minions.contracts.run_events import RunEvent, StepFinished
from minions.contracts.runtime import PriceBook
from minions.contracts.steps import Step, StepScope
from minions.data.errors import EnvironmentRefusedError, MetadataError
from minions.data.json_values import JsonValue
from minions.engine.calls.model_executors import DefaultModelCallExecutor
from minions.engine.run.agent_executor import AgentExecutor
from minions.engine.services.budget import RunBudget
from minions.engine.services.run_services import Services
from prices import FlatPrices

MODEL = "scripted/answers"


def services_with(prices: PriceBook | None) -> Services:
    return evolve(deterministic_services(), prices=prices)


DOLLAR_A_TOKEN: Mapping[str, float] = {MODEL: 1.0}


async def run_priced(
    steps: Sequence[Step[object]],
    answers: Iterable[Answer],
    *,
    prices: Mapping[str, float] = DOLLAR_A_TOKEN,
    retry: RetryConfig | None = None,
    **limits: JsonValue,
) -> Ran:
    recipe = recipe_of(steps, limits=limits, retry=retry)
    return await run_of(recipe, answers, services=services_with(FlatPrices(prices)))


# --- each call ---------------------------------------------------------------------------------


async def test_the_cost_stands_in_the_result_the_step_the_journal_and_the_events() -> None:
    services = services_with(FlatPrices({MODEL: 0.5}))
    run = executor_of(ScriptedModel([answer_of("done")]), services=services).prepare(
        recipe_of([text_step()])
    )
    events: list[RunEvent] = []
    run.listen(events.append)
    result = await run.execute()
    usage = TokenUsage(input_tokens=10, output_tokens=5, cost_usd=7.5)
    assert (result.usage, result.executions[0].usage) == (usage, usage)
    assert result.usage.to_json()["cost_usd"] == 7.5
    (finished,) = [event for event in events if isinstance(event, StepFinished)]
    assert finished.usage["cost_usd"] == 7.5
    rows = await services.journal.entries(run.session_id)
    metrics = [
        row.body["metrics"] for row in rows if row.kind == "model_call" and row.state == "finished"
    ]
    assert [isinstance(each, Mapping) and each["cost_usd"] for each in metrics] == [7.5]


async def test_without_a_price_the_cost_is_unknown_and_not_nothing() -> None:
    for prices in (None, FlatPrices({})):
        ran = await run_recipe(text_step(), [answer_of("done")], services=services_with(prices))
        assert ran.result.usage == TokenUsage(input_tokens=10, output_tokens=5)
        assert ran.result.usage.cost_usd is None


async def test_what_the_server_says_itself_stands() -> None:
    said = TokenUsage(input_tokens=10, output_tokens=5, cost_usd=0.25)
    answer = ModelCallResponse(message=assistant("done"), usage=said)
    ran = await run_priced([text_step()], [answer])
    assert ran.result.usage == said


async def test_one_call_of_unknown_cost_makes_the_sum_unknown() -> None:
    said = TokenUsage(input_tokens=1, output_tokens=1, cost_usd=0.25)
    answers: list[Answer] = [
        ModelCallResponse(message=assistant("one"), usage=said),
        answer_of("two"),
    ]
    ran = await run_priced([text_step("a"), text_step("b")], answers, prices={})
    assert (ran.result.step("a").usage.cost_usd, ran.result.usage.cost_usd) == (0.25, None)


async def test_failed_attempts_that_were_counted_cost_as_well() -> None:
    failed = ModelFailure(
        code="output-truncated",
        message="cut",
        is_retryable=True,
        usage=TokenUsage(input_tokens=3, output_tokens=1),
    )
    last = evolve(failed, is_retryable=False)
    ran = await run_priced([text_step()], [failed, answer_of("done")])
    assert ran.result.usage.cost_usd == ran.only.usage.cost_usd == 4 + 15
    ran = await run_priced([text_step()], [failed, last])
    assert ran.result.usage.cost_usd == ran.only.usage.cost_usd == 4 + 4


async def test_a_price_book_that_breaks_loses_no_answer() -> None:
    class Broken(PriceBook):
        def cost_usd(
            self, model: str, usage: TokenUsage, *, at: datetime, base_url: str | None = None
        ) -> float | None:
            raise KeyError(model)

    ran = await run_recipe(text_step(), [answer_of("done")], services=services_with(Broken()))
    assert (ran.result.output, ran.result.usage.cost_usd) == ("done", None)


def test_a_cost_without_tokens_is_kept_in_a_sum() -> None:
    fee = TokenUsage(cost_usd=0.5)
    assert TokenUsage() + fee == fee
    assert fee + TokenUsage(input_tokens=1, cost_usd=1.0) == TokenUsage(
        input_tokens=1, cost_usd=1.5
    )
    assert (fee + TokenUsage(input_tokens=1)).cost_usd is None


# --- the limit ---------------------------------------------------------------------------------


async def test_after_max_cost_no_model_is_called_any_more() -> None:
    answers = [answer_of(each) for each in "abc"]
    ran = await run_priced([text_step(each) for each in "abc"], answers, max_cost_usd=20)
    assert (len(ran.prompts), ran.ids) == (2, ["a", "b"])
    assert ran.result.status is RunStatus.LIMIT_REACHED
    assert ran.result.usage.cost_usd == 30
    assert ran.result.error is not None
    assert ran.result.error.code == "limit-reached"
    assert "max_cost_usd=20 is reached: $30 was spent" in ran.result.error.message
    (limit,) = [row for row in ran.entries if row.state == "limit_reached"]
    assert limit.body["limit"] == "max_cost_usd"


async def test_a_last_call_may_overshoot_for_nothing_was_refused() -> None:
    ran = await run_priced([text_step()], [answer_of("done")], max_cost_usd=1)
    assert ran.result.status is RunStatus.COMPLETED


@pytest.mark.parametrize("prices", [None, FlatPrices({})])
def test_a_model_of_unknown_price_is_refused_before_the_run(prices: PriceBook | None) -> None:
    model = ScriptedModel([answer_of("never")])
    executor = executor_of(model, services=services_with(prices))
    with pytest.raises(EnvironmentRefusedError) as refused:
        executor.prepare(recipe_of([text_step()], limits={"max_cost_usd": 0.5}))
    assert refused.value.error_code == "unknown-price"
    assert "may cost $0.5 (max_cost_usd)" in refused.value.message
    assert f'[prices."{MODEL}"]' in refused.value.message
    assert model.prompts == []


async def test_a_recipe_that_asks_no_model_needs_no_price() -> None:
    async def work(scope: StepScope) -> object:
        return 1

    ran = await run_priced([python_step(work)], [], prices={}, max_cost_usd=1)
    assert ran.result.status is RunStatus.COMPLETED


async def test_code_that_asks_a_model_of_unknown_price_is_refused_at_its_call() -> None:
    async def work(scope: StepScope) -> object:
        return await scope.call_model("one")

    ran = await run_priced([python_step(work)], [answer_of("never")], prices={}, max_cost_usd=1)
    assert (ran.result.status, ran.prompts) == (RunStatus.FAILED, [])
    assert ran.only.error is not None
    assert ran.only.error.code == "unknown-price"


async def test_calls_carried_out_by_the_application_stop_at_the_first_of_unknown_cost() -> None:
    model = ScriptedModel([answer_of(each) for each in "abc"])

    def carry_out(call: ModelCall, context: RunContext) -> ModelCallExecutor:
        return DefaultModelCallExecutor(model)

    executor = AgentExecutor(
        model,
        services=services_with(FlatPrices(DOLLAR_A_TOKEN)),
        model_call_executor_factory=carry_out,
    )
    steps = [text_step(each) for each in "abc"]
    result = await executor.execute(recipe_of(steps, limits={"max_cost_usd": 100}))
    assert (result.status, len(model.prompts)) == (RunStatus.LIMIT_REACHED, 1)
    assert result.error is not None
    assert "the cost of what was done is not known" in result.error.message


def test_the_limit_of_a_run_around_holds_within_it() -> None:
    around = RunBudget(lambda: Limits(max_cost_usd=2))
    inner = RunBudget(lambda: Limits(max_cost_usd=5), around)
    assert (around.max_cost_usd, inner.max_cost_usd) == (2, 2)
    inner.spend_replayed("call", TokenUsage(input_tokens=1, cost_usd=3.0))
    assert (inner.reached, around.reached) == ("max_cost_usd", "max_cost_usd")


@pytest.mark.parametrize("wrong", [0, -1, "1", True, float("nan")])
async def test_a_limit_that_is_no_amount_is_refused(wrong: JsonValue) -> None:
    with pytest.raises(MetadataError, match="max_cost_usd"):
        await run_priced([text_step()], [], max_cost_usd=wrong)


# --- a run that goes on ------------------------------------------------------------------------


async def test_a_run_that_goes_on_sums_what_was_recorded_and_asks_no_price_anew() -> None:
    """At another price by now, the first call costs what it cost."""
    services = services_with(FlatPrices(DOLLAR_A_TOKEN))
    limited = recipe_of([text_step("a"), text_step("b")], limits={"max_cost_usd": 10})
    ran = await run_of(limited, [answer_of("one")], services=services)
    assert ran.result.status is RunStatus.LIMIT_REACHED
    dearer = FlatPrices({MODEL: 2.0})
    executor = executor_of(
        ScriptedModel([answer_of("one"), answer_of("two")]),
        services=evolve(services, prices=dearer),
    )
    done = await executor.resume(
        ran.result.run_id, recipe=evolve(limited, limits={"max_cost_usd": 100})
    )
    assert (done.status, done.usage.cost_usd) == (RunStatus.COMPLETED, 15 + 30)


async def test_a_limit_set_later_does_not_hide_what_was_done_at_unknown_cost() -> None:
    services = services_with(FlatPrices({}))
    limited = recipe_of([text_step("a"), text_step("b")], limits={"max_steps": 1})
    ran = await run_of(limited, [answer_of("one")], services=services)
    executor = executor_of(
        ScriptedModel([answer_of("never")]),
        services=evolve(services, prices=FlatPrices(DOLLAR_A_TOKEN)),
    )
    done = await executor.resume(
        ran.result.run_id, recipe=evolve(limited, limits={"max_cost_usd": 100})
    )
    assert done.status is RunStatus.LIMIT_REACHED
    assert done.error is not None
    assert "the cost of what was done is not known" in done.error.message
