"""Waves at a provider whose answers a test says one by one: refusals, and results that cannot be
read.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import datetime, timedelta

import pytest
from attrs import field, mutable
from returns.result import Failure, Result, Success

from batch_worlds import HOUR_S, BatchWorld
from minions.adapters.models.scripted import ScriptedModel
from minions.contracts.batch_apis import (
    BatchApi,
    BatchLimits,
    BatchLine,
    BatchRequest,
    BatchStatus,
    LineEnd,
)
from minions.contracts.calls import ModelCallResponse, ModelFailure, Prompt
from minions.contracts.messages import assistant, user
from minions.contracts.patience import LateError, PatientCall
from minions.engine.services.waves.wave_calls import WaveCalls, _Again, _Group

BUSY = ModelFailure(code="busy", message="later", is_retryable=True, status=503)
GONE = ModelFailure(code="gone", message="no", status=404)
BARRED = ModelFailure(code="barred", message="no", status=403)
WRONG = ModelFailure(code="wrong", message="no", status=400)


@mutable(kw_only=True)
class Provider(BatchApi):
    """Answers a reading of results with so many of the requests, or with a failure behind them."""

    readings: list[int | ModelFailure] = field(factory=list)
    """Of each reading; behind them all requests are there."""
    most: int = 1_000
    """The largest batch that it takes."""
    refusal: ModelFailure = WRONG
    counts: bool = True
    """Whether it says how many requests were answered."""
    max_requests: int = 1_000
    sizes: list[int] = field(factory=list)
    reads: int = 0
    is_wrong: Callable[[bytes], bool] = lambda _body: False
    """Whether a request makes it refuse the batch."""
    taken: dict[str, list[str]] = field(factory=dict)

    @property
    def limits(self) -> BatchLimits:
        return BatchLimits(max_requests=self.max_requests, max_bytes=1_000_000, cancel_s=60.0)

    def write(self, prompt: Prompt) -> Result[bytes, ModelFailure]:
        return Success((prompt.messages[0].content or "").encode())

    def read(self, prompt: Prompt, line: BatchLine) -> Result[ModelCallResponse, ModelFailure]:
        return Success(ModelCallResponse(message=assistant(line.body.decode())))

    async def create(
        self, name: str, requests: Sequence[BatchRequest], uploaded: str | None
    ) -> Result[str, ModelFailure]:
        self.sizes.append(len(requests))
        if len(requests) > self.most or any(self.is_wrong(each.body) for each in requests):
            return Failure(self.refusal)
        self.taken[name] = [each.custom_id for each in requests]
        return Success(name)

    async def find(
        self, name: str, uploaded: str | None, custom_ids: Sequence[str], since: datetime
    ) -> Result[str | None, ModelFailure]:
        return Success(None)

    async def status(self, batch_id: str) -> Result[BatchStatus, ModelFailure]:
        done = len(self.taken[batch_id]) if self.counts else 0
        return Success(BatchStatus(has_ended=True, done=done))

    async def results(
        self, batch_id: str, status: BatchStatus, custom_ids: Sequence[str]
    ) -> AsyncIterator[Result[BatchLine, ModelFailure]]:
        self.reads += 1
        said = self.readings.pop(0) if self.readings else len(custom_ids)
        count = said if isinstance(said, int) else 0
        for custom_id in self.taken[batch_id][:count]:
            yield Success(BatchLine(custom_id=custom_id, end=LineEnd.ANSWERED, body=b"done"))
        if isinstance(said, ModelFailure):
            yield Failure(said)

    async def cancel(self, batch_id: str) -> Result[None, ModelFailure]:
        return Success(None)


def ends_of(api: Provider, count: int, by_s: float = 24 * HOUR_S) -> list[str]:
    """How so many calls end: `done`, `late`, or the code of the failure."""
    world = BatchWorld()
    services = world.services("a")
    calls, by = WaveCalls(services, world.store), world.time.now() + timedelta(seconds=by_s)
    model = ScriptedModel([], name="fake/m")

    async def record(_fact: object) -> None:
        """Nothing is kept."""

    async def end(number: int) -> str:
        call = PatientCall(
            run_id=f"run_{number}", key="k", step_id="s", by=by, recorded=None, record=record
        )
        prompt = Prompt((user(f"n{number}"),))
        try:
            outcome = await calls.answer(model, api, prompt, call)
        except LateError:
            return "late"
        return "done" if isinstance(outcome, Success) else str(outcome.failure().code)

    async def run() -> list[str]:
        try:
            return await asyncio.gather(*map(end, range(count)))
        finally:
            await calls.aclose()

    return world.time.run(run())


@pytest.mark.parametrize(
    ("readings", "reads"),
    [([], 1), ([2], 2), ([2, 1, 0], 4), ([BUSY], 2), ([BUSY, 1, BUSY, 2], 5), ([3], 1)],
)
def test_results_are_read_until_all_are_there(
    readings: list[int | ModelFailure], reads: int
) -> None:
    """A-177."""
    api = Provider(readings=readings)
    assert ends_of(api, 3) == ["done"] * 3
    assert (api.sizes, api.reads) == ([3], reads)


def test_what_five_readings_lack_is_asked_again() -> None:
    api = Provider(readings=[2] * 5)
    assert ends_of(api, 3) == ["done"] * 3
    assert (api.sizes, api.reads) == ([3, 1], 6)


def test_what_two_readings_lack_is_asked_again_where_the_provider_does_not_count() -> None:
    api = Provider(readings=[2] * 2, counts=False)
    assert ends_of(api, 3) == ["done"] * 3
    assert (api.sizes, api.reads) == ([3, 1], 3)


def test_results_that_may_not_be_read_fail_the_calls() -> None:
    assert ends_of(Provider(readings=[BARRED]), 3) == ["barred"] * 3
    assert ends_of(Provider(readings=[GONE]), 3) == ["batch-failed"] * 3


def test_results_that_cannot_be_read_in_time_fail_the_call() -> None:
    api = Provider(readings=[BUSY] * 50)
    assert ends_of(api, 1, by_s=300) == ["busy"]
    assert api.sizes == [1]
    assert 2 < api.reads < 9


def group_at(api: Provider) -> _Group:
    """The calls of a model at that provider, of which none waits."""
    world = BatchWorld()
    calls = WaveCalls(world.services("a"), world.store)
    return _Group(calls, "m", api, world.time.now() + timedelta(days=1), 16)


def is_again(end: object) -> bool:
    return isinstance(end, _Again) and end.reason == "failed"


def test_batches_that_were_refused_together_are_sent_one_by_one() -> None:
    """A-177: the first refusals say nothing of the size of one."""
    group = group_at(Provider())
    assert not group._sends_one
    assert is_again(group.note_refusal(WRONG, 100, was_alone=False))
    assert (group._sends_one, group._most) == (True, 1_000)
    assert is_again(group.note_refusal(WRONG, 100, was_alone=False))
    assert (group._refusals, group._most) == (1, 25)
    alone = group_at(Provider())
    assert is_again(alone.note_refusal(WRONG, 100, was_alone=True))
    assert (alone._sends_one, alone._refusals, alone._most) == (False, 1, 25)


def test_the_eighth_refusal_in_a_row_ends_all_that_waits() -> None:
    group = group_at(Provider())
    for _ in range(7):
        assert is_again(group.note_refusal(WRONG, 100, was_alone=True))
    assert group.note_refusal(WRONG, 100, was_alone=True) == WRONG
    group.note_taken(100)
    assert is_again(group.note_refusal(WRONG, 100, was_alone=True))


def test_a_refused_call_says_nothing_of_the_size_of_batches() -> None:
    group = group_at(Provider())
    group.note_refusal(WRONG, 100, was_alone=True)
    group.note_taken(60)
    assert group._most == 99
    assert group.note_refusal(WRONG, 1, was_alone=True) == WRONG
    group.note_taken(700)
    assert group._most == 1_000
    group.note_refusal(WRONG, 2, was_alone=True)
    assert group._most == 1
    group.note_taken(1)
    assert group._most == 1


def test_a_creation_that_is_barred_fails_all_calls() -> None:
    """It is no fault of a request, nor of their number."""
    api = Provider(refusal=BARRED, most=0)
    assert ends_of(api, 10) == ["barred"] * 10
    assert api.sizes == [10]


@pytest.mark.parametrize(
    ("most", "sizes"),
    [
        (40, [40]),
        (10, [40, 10, 20, 5, 10]),
        (3, [40, 10, 2]),
        (2, [40, 10, 2, 4, 1, 2]),
    ],
)
def test_refused_batches_become_a_quarter_and_grow_again_below_what_was_refused(
    most: int, sizes: list[int]
) -> None:
    api = Provider(most=most)
    assert ends_of(api, 40) == ["done"] * 40
    assert api.sizes[: len(sizes)] == sizes
    refused = [size for size in api.sizes if size > most]
    assert len(refused) == len(set(refused))


def test_the_call_that_is_to_blame_fails_alone() -> None:
    api = Provider(is_wrong=lambda body: body == b"n5")
    ends = ends_of(api, 40)
    assert [at for at, end in enumerate(ends) if end != "done"] == [5]
    assert ends[5] == "wrong"


def test_after_eight_refusals_in_a_row_all_calls_fail() -> None:
    api = Provider(most=0)
    assert ends_of(api, 200) == ["wrong"] * 200
    assert len(api.sizes) == 8


def test_a_wave_holds_what_a_batch_may() -> None:
    api = Provider(max_requests=4)
    assert ends_of(api, 10) == ["done"] * 10
    assert max(api.sizes) == 4
