"""Model calls through the batches of each provider: one suite for the three forms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pytest
from attrs import frozen

from batch_worlds import HOUR_S, BatchWorld, model_at
from minions.contracts.executions import AgentResult, RunStatus
from minions.contracts.journal.facts import BatchCallExpired, BatchCallFact
from minions.testing.batch_endpoint import BatchEndpoint, BatchFate, BatchFaults, BatchForm

FORMS = pytest.mark.parametrize("form", BatchForm)
REFUSING = pytest.mark.parametrize("form", [BatchForm.OPENAI, BatchForm.GEMINI])
"""Those that refuse a batch as a whole after they took it."""
RUNS: Final = 12
CALLS: Final = 2 * RUNS


@frozen(kw_only=True)
class Outcome:
    """What a process made of runs at a server with faults."""

    world: BatchWorld
    server: BatchEndpoint
    results: Sequence[AgentResult[object]]

    @property
    def statuses(self) -> set[RunStatus]:
        """How the runs ended."""
        return {each.status for each in self.results}

    @property
    def cost_usd(self) -> float:
        """What the runs say that they cost, together."""
        return sum(each.usage.cost_usd or 0.0 for each in self.results)


def outcome_of(
    form: BatchForm,
    faults: BatchFaults | None = None,
    *,
    takes_s: float = HOUR_S,
    expires_s: float = 24 * HOUR_S,
    by_s: float = 240 * HOUR_S,
    has_batches: bool = True,
) -> Outcome:
    """Run the two steps of `RUNS` runs through a server with these faults."""
    world = BatchWorld()

    async def run() -> Outcome:
        async with BatchEndpoint(
            form,
            now=world.time.now,
            faults=faults,
            takes_s=takes_s,
            expires_s=expires_s,
            has_batches=has_batches,
        ) as server:
            services = world.services("a", by_s)
            results = await world.run_all(model_at(server), services, RUNS)
        server.settle()
        return Outcome(world=world, server=server, results=results)

    return world.time.run(run())


def expect_all_paid_once(outcome: Outcome) -> None:
    """Each call is answered in a batch, and paid once, at the price of batches."""
    assert {each.error for each in outcome.results} == {None}
    assert outcome.statuses == {RunStatus.COMPLETED}
    assert outcome.server.paid.total() == CALLS
    assert set(outcome.server.paid.values()) == {1}
    assert set(outcome.server.submitted.values()) == {1}
    assert not outcome.server.live
    assert outcome.cost_usd == pytest.approx(CALLS * 0.07)


@FORMS
def test_runs_go_step_by_step_through_batches_at_half_the_price(form: BatchForm) -> None:
    """A-177."""
    outcome = outcome_of(form)
    expect_all_paid_once(outcome)
    assert [len(each.requests) for each in outcome.server.batches.values()] == [RUNS, RUNS]


@FORMS
def test_results_out_of_order_twice_and_between_other_lines_go_to_their_calls(
    form: BatchForm,
) -> None:
    expect_all_paid_once(outcome_of(form, BatchFaults(shuffles=True, repeats=True)))


def test_answers_of_gemini_without_keys_are_told_apart_by_their_order() -> None:
    expect_all_paid_once(outcome_of(BatchForm.GEMINI, BatchFaults(gives_keys=False)))


@FORMS
def test_what_a_batch_did_not_answer_is_asked_in_the_next_one(form: BatchForm) -> None:
    fates = (BatchFate.BUSY, BatchFate.EXPIRED, BatchFate.MISSING, BatchFate.ANSWERED)
    faults = BatchFaults(fate=lambda batch, index: fates[min(3, index + 4 * min(batch, 1))])
    outcome = outcome_of(form, faults)
    expect_all_paid_once(outcome)
    assert len(next(iter(outcome.server.batches.values())).requests) == RUNS


@FORMS
def test_a_request_that_is_refused_for_good_fails_its_run_alone(form: BatchForm) -> None:
    def fate(batch: int, index: int) -> BatchFate:
        return BatchFate.WRONG if (batch, index) == (0, 3) else BatchFate.ANSWERED

    outcome = outcome_of(form, BatchFaults(fate=fate))
    failed = [each for each in outcome.results if each.status is not RunStatus.COMPLETED]
    assert [each.error.code for each in failed if each.error is not None] == ["bad-request"]
    assert outcome.server.paid.total() == CALLS - 2


@FORMS
def test_a_batch_that_expires_keeps_what_it_answered(form: BatchForm) -> None:
    outcome = outcome_of(form, takes_s=2 * HOUR_S, expires_s=1.5 * HOUR_S)
    expect_all_paid_once(outcome)
    assert len(outcome.server.batches) > 2


@REFUSING
def test_a_batch_that_is_refused_as_a_whole_is_asked_again_in_smaller_ones(form: BatchForm) -> None:
    outcome = outcome_of(form, BatchFaults(fails=lambda batch: batch == 0))
    expect_all_paid_once_but_submitted(outcome)
    assert [len(each.requests) for each in outcome.server.batches.values()][:2] == [RUNS, RUNS // 2]


def expect_all_paid_once_but_submitted(outcome: Outcome) -> None:
    """As `expect_all_paid_once`, of calls whose first batch was refused."""
    assert outcome.statuses == {RunStatus.COMPLETED}
    assert set(outcome.server.paid.values()) == {1}
    assert outcome.server.paid.total() == CALLS


@REFUSING
def test_a_provider_that_refuses_every_batch_fails_the_calls(form: BatchForm) -> None:
    outcome = outcome_of(form, BatchFaults(fails=lambda _batch: True))
    errors = {each.error.code for each in outcome.results if each.error is not None}
    assert errors == {"batch-failed"}
    assert not outcome.server.live


@FORMS
@pytest.mark.parametrize("status", [429, 500, 503])
def test_refusals_of_every_request_are_waited_out(form: BatchForm, status: int) -> None:
    kinds = ("upload", "create", "status", "results", "list")
    expect_all_paid_once(outcome_of(form, BatchFaults(refusals=dict.fromkeys(kinds, (status,)))))


@FORMS
def test_a_batch_whose_creation_got_no_answer_is_found_and_not_created_again(
    form: BatchForm,
) -> None:
    outcome = outcome_of(form, BatchFaults(refusals={"create": (0,), "status": (0,), "list": (0,)}))
    expect_all_paid_once(outcome)
    assert len(outcome.server.batches) == 2


@FORMS
def test_a_creation_without_answer_is_not_repeated_where_batches_cannot_be_listed(
    form: BatchForm,
) -> None:
    outcome = outcome_of(form, BatchFaults(refusals={"create": (0,), "list": (401,)}))
    errors = {each.error.code for each in outcome.results if each.error is not None}
    assert errors == {"auth-rejected"}
    assert len(outcome.server.batches) == 1


@FORMS
def test_a_server_without_batches_fails_the_calls_and_says_why(form: BatchForm) -> None:
    outcome = outcome_of(form, has_batches=False)
    errors = [each.error for each in outcome.results if each.error is not None]
    assert {each.code for each in errors} == {"no-batch-api"}
    assert "leave out --by and --patience" in errors[0].message
    assert not outcome.server.live


@FORMS
def test_what_would_be_late_is_cancelled_and_made_at_once(form: BatchForm) -> None:
    """A-177: what the batch has answered by then is kept, and costs what a batch does."""
    outcome = outcome_of(form, takes_s=6 * HOUR_S, by_s=3 * HOUR_S)
    assert {each.error for each in outcome.results} == {None}
    assert outcome.world.time.monotonic() < 3 * HOUR_S
    in_batch, live = outcome.server.paid.total(), len(outcome.server.live)
    assert in_batch + live == CALLS
    assert 0 < in_batch < RUNS
    assert outcome.cost_usd == pytest.approx(in_batch * 0.07 + live * 0.14)


@FORMS
def test_a_call_without_answer_is_recorded_with_the_reason(form: BatchForm) -> None:
    outcome = outcome_of(form, takes_s=6 * HOUR_S, by_s=3 * HOUR_S)

    async def facts() -> list[BatchCallFact]:
        journal = outcome.world.journal
        rows = [await journal.entries(each.session_id) for each in outcome.results]
        entries = (entry.fact for each in rows for entry in each)
        return [fact for fact in entries if isinstance(fact, BatchCallFact)]

    found = outcome.world.time.run(facts())
    expired = [each for each in found if isinstance(each, BatchCallExpired)]
    assert {each.reason for each in expired} == {"late"}
    assert len(expired) + outcome.server.paid.total() == len({each.custom_id for each in found})
