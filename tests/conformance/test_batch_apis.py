"""Model calls through the batches of each provider: one suite for the three forms."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Final

import pytest
from attrs import evolve, frozen

from batch_worlds import HOUR_S, BatchWorld, model_at
from minions.adapters.models.provider_batches import _sum_of, provider_batches
from minions.contracts.batch_apis import BatchRequest
from minions.contracts.executions import AgentResult, RunStatus
from minions.contracts.journal.facts import BatchCallExpired, BatchCallFact
from minions.data.json_values import JsonValue
from minions.engine.services.waves.wave_calls import custom_id_of
from minions.testing.batch_endpoint import (
    BatchEndpoint,
    BatchFate,
    BatchFaults,
    BatchForm,
    HeldBatch,
)

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
    assert [len(each.requests) for each in outcome.server.batches.values()][:2] == [RUNS, RUNS // 4]


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


TWO_READ = pytest.mark.parametrize("form", [BatchForm.OPENAI, BatchForm.ANTHROPIC])
"""Those whose answers are a file of lines."""


@TWO_READ
def test_results_that_end_in_their_middle_are_read_again(form: BatchForm) -> None:
    """A-177: a server that closes early has said nothing of the other requests."""
    expect_all_paid_once(outcome_of(form, BatchFaults(halves=2)))


@FORMS
@pytest.mark.parametrize("kind", ["upload", "create", "status", "results", "list"])
def test_an_answer_that_is_no_json_says_nothing_of_the_batch(form: BatchForm, kind: str) -> None:
    """A-177: a proxy's page is no list without our batch, and no results without our requests."""
    faults = BatchFaults(refusals={kind: (1,), **({"create": (0,)} if kind == "list" else {})})
    outcome = outcome_of(form, faults)
    expect_all_paid_once(outcome)
    assert len(outcome.server.batches) == 2


@FORMS
def test_a_batch_is_found_behind_thousands_of_later_ones(form: BatchForm) -> None:
    """A-177: the look may come days after the creation."""
    world = BatchWorld()

    async def run() -> None:
        async with BatchEndpoint(form, now=world.time.now, takes_s=60) as server:
            api = provider_batches(model_at(server))
            request = BatchRequest("m-1", b'{"contents": [], "messages": []}')
            begin = world.time.now()
            uploaded = (await api.upload("w-first", [request])).unwrap()
            first = (await api.create("w-first", [request], uploaded)).unwrap()
            held = server.batches[first.removeprefix("batches/")]
            for number in range(1, 1_150):
                later = evolve(held, id=f"batch_{number}", number=number, name="w", uploaded="x")
                server.batches[later.id] = evolve(later, requests=[*held.requests] * 2)
            await world.time.sleep(3_600)
            found = await api.find("w-first", uploaded, ["m-1"], begin)
            assert found.unwrap() == first

    world.time.run(run())


@FORMS
def test_a_batch_that_is_not_known_yet_is_asked_for_again(form: BatchForm) -> None:
    """A-177: a provider may take a moment to know everywhere what it has created."""
    expect_all_paid_once(outcome_of(form, BatchFaults(refusals={"status": (404, 404)})))


@FORMS
@pytest.mark.parametrize("status", [400, 413])
def test_a_creation_that_is_refused_for_good_is_tried_with_fewer_requests(
    form: BatchForm, status: int
) -> None:
    outcome = outcome_of(form, BatchFaults(refusals={"create": (status,)}))
    expect_all_paid_once(outcome)
    assert [len(each.requests) for each in outcome.server.batches.values()][:2] == [RUNS // 4] * 2


@FORMS
def test_requests_that_no_batch_takes_fail_with_what_the_provider_said(form: BatchForm) -> None:
    outcome = outcome_of(form, BatchFaults(refusals={"create": (400,) * 200}))
    errors = {each.error.code for each in outcome.results if each.error is not None}
    assert errors == {"bad-request"}
    assert not outcome.server.batches
    assert not outcome.server.live


def refusing_above(most: int, *, together: bool) -> Outcome:
    """What becomes of runs at a server that refuses larger batches, or more requests under way."""
    world, servers = BatchWorld(), list[BatchEndpoint]()

    @functools.cache
    def fails(number: int) -> bool:
        held = [*servers[0].batches.values()]
        if not together:
            return len(held[number].requests) > most
        mine = held[number]
        others = (
            each
            for each in held[:number]
            if not fails(each.number)
            and (mine.created_at - each.created_at).total_seconds() < HOUR_S
        )
        return len(mine.requests) + sum(len(each.requests) for each in others) > most

    async def run() -> Outcome:
        faults = BatchFaults(fails=fails)
        async with BatchEndpoint(now=world.time.now, faults=faults, takes_s=HOUR_S) as server:
            servers.append(server)
            results = await world.run_all(model_at(server), world.services("a", 240 * HOUR_S), RUNS)
        return Outcome(world=world, server=server, results=results)

    return world.time.run(run())


@pytest.mark.parametrize("together", [False, True])
def test_a_provider_that_takes_small_batches_only_gets_them(together: bool) -> None:
    """A-177: OpenAI limits the tokens that are queued, of all batches of a model together."""
    outcome = refusing_above(5, together=together)
    assert {each.error for each in outcome.results} == {None}
    outcome.server.settle()
    assert outcome.server.paid.total() == CALLS
    assert set(outcome.server.paid.values()) == {1}
    assert not outcome.server.live


def test_the_file_of_a_wave_is_uploaded_once_however_often_its_creation_fails() -> None:
    """A-177: so a batch that is listed late is known by its file, where metadata are not kept."""
    faults = BatchFaults(refusals={"create": (503, 0), "list": (503,)}, keeps_metadata=False)
    asked: list[str] = []
    world = BatchWorld()

    async def run() -> Outcome:
        async with BatchEndpoint(
            now=world.time.now, faults=faults, takes_s=HOUR_S, on_request=asked.append
        ) as server:
            results = await world.run_all(model_at(server), world.services("a"), RUNS)
        server.settle()
        return Outcome(world=world, server=server, results=results)

    expect_all_paid_once(world.time.run(run()))
    assert asked.count("upload") == 2


@FORMS
def test_results_of_other_requests_are_nobodys_answer(form: BatchForm) -> None:
    """An id of another call, and one that is none, in a file of results."""

    def say(body: object) -> str:
        return "done"

    world = BatchWorld()

    async def run() -> Outcome:
        async with BatchEndpoint(form, now=world.time.now, takes_s=HOUR_S, say=say) as server:
            lines = server._lines  # a server that mixes up its answers

            def mixed(batch: HeldBatch) -> list[bytes]:
                found = lines(batch)
                strange = custom_id_of("run_9", "greet/1", 1).encode()
                own = batch.requests[0][0].encode()
                odd = [found[0].replace(own, each) for each in (strange, b"../../x", b"")]
                return [*odd, *found]

            server._lines = mixed  # type: ignore[method-assign]
            results = await world.run_all(model_at(server), world.services("a"), RUNS)
        server.settle()
        return Outcome(world=world, server=server, results=results)

    expect_all_paid_once(world.time.run(run()))


@FORMS
@pytest.mark.parametrize(
    "document",
    [
        {},
        {"choices": "x", "content": 5, "candidates": {}},
        {"choices": [None], "content": [None], "candidates": [None]},
        {"choices": [], "content": [], "candidates": [], "usage": "9" * 5000},
    ],
)
def test_an_answer_of_another_form_is_an_attempt_and_harms_no_other_call(
    form: BatchForm, document: Mapping[str, JsonValue]
) -> None:
    world = BatchWorld()
    count = iter(range(10_000))

    def say(_body: object) -> str | Mapping[str, JsonValue]:
        return document if next(count) == 2 else "done"

    async def run() -> Outcome:
        async with BatchEndpoint(form, now=world.time.now, takes_s=HOUR_S, say=say) as server:
            results = await world.run_all(model_at(server), world.services("a"), RUNS)
        return Outcome(world=world, server=server, results=results)

    outcome = world.time.run(run())
    assert len([each for each in outcome.results if each.status is RunStatus.COMPLETED]) >= RUNS - 1
    assert {each.error.code for each in outcome.results if each.error} <= {
        "malformed-answer",
        "empty-answer",
    }


def test_counts_that_are_no_numbers_count_nothing() -> None:
    assert _sum_of({"a": "9" * 5000, "b": 3, "c": None, "d": -1, "e": "4"}) == 7
