"""The ledger of a run and of a recipe within it: what is counted, what is refused, who is named."""

from __future__ import annotations

import pytest

from minions.contracts.context import Limits
from minions.contracts.messages import TokenUsage
from minions.data.errors import StepFailedError
from minions.engine.services.budget import RunBudget


def budget(parent: RunBudget | None = None, **limits: object) -> RunBudget:
    known = Limits.from_metadata(limits)
    return RunBudget(lambda: known, parent)


def spend(spender: RunBudget, usage: TokenUsage) -> None:
    """Spend it, whatever is left."""
    spender.spend_replayed("call", usage)


def tokens(count: int, cost_usd: float | None = None) -> TokenUsage:
    return TokenUsage(input_tokens=count, cost_usd=cost_usd)


# --- steps ---------------------------------------------------------------------------------------


def test_a_run_begins_with_nothing_spent_and_nothing_refused() -> None:
    run = budget(max_steps=1)
    assert (run.steps, run.usage, run.reached, run.has_refused) == (0, TokenUsage(), None, False)
    assert not run.is_spent


def test_as_many_steps_start_as_the_limit_says() -> None:
    run = budget(max_steps=2)
    for _ in range(2):
        assert run.may_start_step()
        run.count_step()
    assert (run.reached, run.has_refused) == (None, False)
    assert not run.may_start_step()
    assert (run.reached, run.has_refused, run.steps) == ("max_steps", True, 2)


def test_a_step_within_counts_for_the_run_around_and_is_refused_by_its_limit() -> None:
    run = budget(max_steps=1)
    inner = budget(run, max_steps=5)
    assert inner.may_start_step()
    inner.count_step()
    assert (inner.steps, run.steps) == (1, 1)
    assert not inner.may_start_step()
    assert (inner.reached, run.reached) == ("max_steps", "max_steps")
    assert (inner.has_refused, run.has_refused) == (True, True)


def test_a_limit_of_the_recipe_within_stops_it_alone() -> None:
    run = budget(max_steps=5)
    inner = budget(run, max_steps=1)
    inner.count_step()
    assert not inner.may_start_step()
    assert (inner.has_refused, run.has_refused) == (True, False)
    assert run.may_start_step()


def test_at_max_steps_calls_of_steps_that_are_under_way_go_on() -> None:
    run = budget(max_steps=1)
    run.count_step()
    assert not run.may_start_step()
    assert not run.is_spent
    run.check()


def test_what_was_reached_first_is_named_also_at_the_last_step() -> None:
    run = budget(max_steps=1, max_tokens=10)
    run.count_step()
    spend(run, tokens(10))
    assert not run.may_start_step()
    assert run.reached == "max_tokens"


# --- tokens and dollars --------------------------------------------------------------------------


@pytest.mark.parametrize(("used", "reached"), [(9, None), (10, "max_tokens"), (11, "max_tokens")])
def test_the_last_token_of_the_limit_reaches_it(used: int, reached: str | None) -> None:
    run = budget(max_tokens=10)
    spend(run, tokens(used))
    assert (run.reached, run.is_spent) == (reached, reached is not None)


@pytest.mark.parametrize(
    ("usage", "reached"),
    [
        (tokens(1, 0.5), None),
        (tokens(1, 1.0), "max_cost_usd"),
        (tokens(1, 1.5), "max_cost_usd"),
        (tokens(1), "max_cost_usd"),
        (tokens(0), None),
        (tokens(0, 0.5), None),
        (tokens(0, 1.0), "max_cost_usd"),
    ],
)
def test_a_cost_that_nobody_knows_uses_up_any_limit_on_it(
    usage: TokenUsage, reached: str | None
) -> None:
    run = budget(max_cost_usd=1.0)
    spend(run, usage)
    assert run.reached == reached


def test_without_a_limit_on_it_no_cost_reaches_any() -> None:
    run = budget()
    spend(run, tokens(10**9))
    spend(run, tokens(10**9, 10.0**9))
    assert (run.reached, run.is_spent) == (None, False)


def test_tokens_reach_their_limit_after_max_steps_too() -> None:
    run = budget(max_steps=1, max_tokens=10)
    run.count_step()
    assert not run.may_start_step()
    spend(run, tokens(5))
    assert run.reached == "max_steps"
    spend(run, tokens(5))
    assert run.reached == "max_tokens"


def test_what_was_reached_stays_named_whatever_is_spent_later() -> None:
    run = budget(max_tokens=10, max_cost_usd=1.0)
    spend(run, tokens(1, 1.0))
    spend(run, tokens(10, 1.0))
    assert run.reached == "max_cost_usd"


def test_what_is_spent_within_is_spent_around() -> None:
    run = budget(max_tokens=10)
    inner = budget(run)
    spend(inner, tokens(10, 0.5))
    assert run.usage == inner.usage == tokens(10, 0.5)
    assert (run.reached, inner.reached) == ("max_tokens", "max_tokens")
    assert (inner.is_own, inner.whose) == (False, "run's")
    inner.refuse()
    assert (inner.has_refused, run.has_refused) == (True, True)


def test_a_spent_ledger_refuses_the_next_call_and_names_the_limit() -> None:
    run = budget(max_tokens=10)
    run.check()
    spend(run, tokens(12))
    assert not run.has_refused
    with pytest.raises(StepFailedError) as caught:
        run.check()
    assert caught.value.failure.code == "limit-reached"
    assert "run's limit max_tokens=10 is reached: 12 tokens were used" in str(caught.value)
    assert run.has_refused


def test_a_recipe_within_names_the_limit_as_its_own_or_the_runs() -> None:
    run = budget(max_tokens=20)
    inner = budget(run, max_tokens=10)
    spend(inner, tokens(10))
    assert (inner.is_own, inner.whose, run.reached) == (True, "recipe's", None)
    assert "The recipe's limit max_tokens=10 is reached" in inner.failure().message
    inner.refuse()
    assert not run.has_refused
    later = budget(run)
    spend(later, tokens(10))
    assert "The run's limit max_tokens=20 is reached: 20 tokens" in later.failure().message
    assert (run.is_own, run.whose) == (False, "run's")


@pytest.mark.parametrize(
    ("own", "around", "tightest"), [(2.0, 5.0, 2.0), (5.0, 2.0, 2.0), (None, 3.0, 3.0),
                                    (3.0, None, 3.0), (None, None, None)],
)  # fmt: skip
def test_the_tightest_limit_on_cost_holds(
    own: float | None, around: float | None, tightest: float | None
) -> None:
    def limited(parent: RunBudget | None, most: float | None) -> RunBudget:
        return budget(parent) if most is None else budget(parent, max_cost_usd=most)

    assert limited(limited(None, around), own).max_cost_usd == tightest
    assert limited(None, own).max_cost_usd == own


# --- other limits --------------------------------------------------------------------------------


def test_the_runs_time_is_over_for_the_run_and_for_all_within_it() -> None:
    run = budget(timeout_s=5.0)
    inner = budget(run, timeout_s=9.0)
    inner.run_out_of_time()
    assert (run.reached, run.has_refused) == ("timeout_s", True)
    assert (inner.reached, inner.is_own, inner.is_spent) == ("timeout_s", False, True)
    said = "The run's limit timeout_s=5.0 is reached: the run took too long."
    assert inner.failure().message.startswith(said)
    assert run.failure() == inner.failure()


def test_a_bound_that_is_no_limit_of_the_recipe_is_named_with_what_it_allows() -> None:
    run = budget(max_steps=7)
    run.stop_at("max_visits", 3)
    assert (run.reached, run.has_refused, run.is_spent) == ("max_visits", True, True)
    said = "The run's limit max_visits=3 is reached: the run's limit was reached."
    assert run.failure().message.startswith(said)


@pytest.mark.parametrize(
    ("usage", "said"),
    [
        (tokens(1, 1.25), "$1.25 was spent"),
        (tokens(1), "the cost of what was done is not known"),
    ],
)
def test_a_limit_on_cost_says_what_was_spent(usage: TokenUsage, said: str) -> None:
    run = budget(max_cost_usd=1.0)
    spend(run, usage)
    assert f"The run's limit max_cost_usd=1.0 is reached: {said}." in run.failure().message


def test_a_ledger_that_reached_nothing_names_no_limit() -> None:
    assert "limit limit=None is reached" in budget().failure().message


def test_what_is_refused_without_a_limit_is_refused_where_it_was() -> None:
    run = budget()
    run.refuse()
    assert (run.has_refused, run.reached) == (True, None)
