"""The one writer of a run: its lease, the order of its facts, and what is not stored again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest
from attrs import evolve, field, frozen

from builders import deterministic_services
from minions.contracts.journal.facts import (
    MessageRecorded,
    StepFinished,
    StepSkipped,
    StepStarted,
    ToolCallFinished,
)
from minions.contracts.journal.journal import EntryDraft, JournalEntry, Lease
from minions.contracts.run_events import RunEvent
from minions.data.errors import JournalError, LeaseHeldError
from minions.engine.history.event_stream import EventStream
from minions.engine.history.recorder import Recorder, _AppendQueue
from minions.engine.history.replay import Replay
from minions.engine.services.memory_journal import MemoryJournal
from minions.testing.virtual_time import FakeClock
from patience import leap

TTL_S = 30.0


class WatchedJournal(MemoryJournal):
    """Remembers renewals and releases."""

    def __init__(self) -> None:
        super().__init__(FakeClock())
        self.renewed: list[float] = []
        self.released: list[Lease] = []
        self.stops: asyncio.Event | None = None
        """Set by a renewal that then never ends."""
        self.fails = False

    async def renew(self, lease: Lease, ttl_s: float) -> None:
        self.renewed.append(ttl_s)
        if self.stops is not None:
            self.stops.set()
            await asyncio.Event().wait()
        if self.fails:
            raise JournalError("the disk is full")
        await super().renew(lease, ttl_s)

    async def release(self, lease: Lease) -> None:
        self.released.append(lease)
        if self.fails:
            raise JournalError("the disk is full")
        await super().release(lease)


@frozen
class Lines:
    """A log that keeps its warnings."""

    warnings: list[tuple[str, object]] = field(factory=list)

    def info(self, event: str, /, **facts: object) -> None:
        pass

    def warning(self, event: str, /, **facts: object) -> None:
        self.warnings.append((event, facts.get("reason")))


def recorder_for(
    journal: MemoryJournal,
    *,
    worker: str = "worker",
    replay: Replay | None = None,
    events: EventStream | None = None,
    log: Lines | None = None,
    is_worker_gone: Callable[[str], bool] = lambda worker: False,
) -> Recorder:
    services = evolve(
        deterministic_services(journal),
        worker_id=worker,
        lease_ttl_s=TTL_S,
        is_worker_gone=is_worker_gone,
        log=log or Lines(),
    )
    return Recorder(
        services, events or EventStream(), session_id="ses_1", run_id="run_1", replay=replay
    )


async def settle() -> None:
    """Let everything that is due run."""
    for _ in range(10):
        await asyncio.sleep(0)


STARTED = ("a/1/0", StepStarted(step_id="a"))


# --- the lease -----------------------------------------------------------------------------------


async def test_a_lease_is_renewed_after_a_third_of_its_time_again_and_again() -> None:
    journal = WatchedJournal()
    recorder = recorder_for(journal)
    await recorder.open()
    for count in (1, 2, 3):
        leap(TTL_S / 3)
        await settle()
        assert journal.renewed == [TTL_S] * count
    await recorder.close()


async def test_after_the_end_nothing_is_renewed() -> None:
    journal = WatchedJournal()
    recorder = recorder_for(journal)
    lease = await recorder.open()
    await recorder.close()
    leap(TTL_S)
    await settle()
    assert (journal.renewed, journal.released) == ([], [lease])


async def test_a_renewal_that_is_under_way_does_not_hold_up_the_end() -> None:
    journal = WatchedJournal()
    journal.stops = asyncio.Event()
    recorder = recorder_for(journal)
    lease = await recorder.open()
    leap(TTL_S / 3)
    await journal.stops.wait()
    keeper = recorder._renewal
    await recorder.close()
    assert keeper is not None
    assert keeper.cancelled()
    assert journal.released == [lease]


async def test_a_renewal_that_fails_is_logged_and_tried_again() -> None:
    journal, log = WatchedJournal(), Lines()
    journal.fails = True
    recorder = recorder_for(journal, log=log)
    await recorder.open()
    for _ in range(2):
        leap(TTL_S / 3)
        await settle()
    assert len(journal.renewed) == 2
    assert log.warnings == [("lease_renewal_failed", "the disk is full")] * 2
    await recorder.close()  # a lease that cannot be given back runs out by itself


async def test_what_was_never_opened_gives_nothing_back() -> None:
    journal = WatchedJournal()
    await recorder_for(journal).close()
    assert journal.released == []


async def test_the_lease_is_taken_once_by_facts_that_come_together() -> None:
    journal = MemoryJournal(FakeClock())
    recorder = recorder_for(journal)
    async with asyncio.TaskGroup() as group:
        for name in "abc":
            group.create_task(recorder.record(f"{name}/1/0", StepStarted(step_id=name)))
    entries = await journal.entries()
    assert [(each.key, each.epoch) for each in entries] == [
        ("a/1/0", 1),
        ("b/1/0", 1),
        ("c/1/0", 1),
    ]
    assert recorder.stored == 3
    await recorder.close()


async def test_after_the_end_nothing_is_stored() -> None:
    """Work that a Python step left behind must not become a fact of a run that ended."""
    journal = MemoryJournal(FakeClock())
    recorder = recorder_for(journal)
    await recorder.record(*STARTED)
    await recorder.close()
    with pytest.raises(JournalError, match="Run 'run_1' has ended") as caught:
        await recorder.record("a/1/0", StepSkipped(step_id="a", status="skipped"))
    assert caught.value.error_code == "run-ended"
    assert len(await journal.entries()) == 1


async def test_a_session_whose_worker_is_alive_is_left_to_it() -> None:
    journal = MemoryJournal(FakeClock())
    await journal.acquire("ses_1", "run_0", "other", 60)
    with pytest.raises(LeaseHeldError):
        await recorder_for(journal).open()


async def test_a_session_whose_worker_is_dead_is_taken_at_once() -> None:
    journal = MemoryJournal(FakeClock())
    await journal.acquire("ses_1", "run_0", "dead", 60)
    lease = await recorder_for(journal, is_worker_gone=lambda worker: worker == "dead").open()
    assert (lease.run_id, lease.epoch) == ("run_1", 2)


@pytest.mark.parametrize("is_resumed", [True, False])
async def test_a_run_that_is_resumed_writes_into_the_next_generation(is_resumed: bool) -> None:
    journal = MemoryJournal(FakeClock())
    first = recorder_for(journal)
    await first.record(*STARTED)
    await first.close()
    replay = Replay(await journal.entries(), 2) if is_resumed else None
    lease = await recorder_for(journal, replay=replay).open()
    assert lease.generation == (2 if is_resumed else 1)


# --- facts ---------------------------------------------------------------------------------------


async def test_a_fact_that_stands_is_not_stored_again_and_not_shown() -> None:
    journal = MemoryJournal(FakeClock())
    first = recorder_for(journal)
    known = await first.record(*STARTED)
    await first.close()
    events, shown = EventStream(), list[RunEvent]()
    events.listen(shown.append)
    replay = Replay(await journal.entries(), 2)
    again = recorder_for(journal, replay=replay, events=events)
    assert await again.record(*STARTED) is known
    assert (again.stored, shown, len(await journal.entries())) == (0, [], 1)
    added = await again.record("b/1/0", StepStarted(step_id="b"))
    assert (again.stored, added.generation, len(shown)) == (1, 2, 1)
    await again.close()


async def test_a_message_is_shown_with_the_result_of_a_call_that_an_earlier_execution_made() -> (
    None
):
    journal = MemoryJournal(FakeClock())
    first = recorder_for(journal)
    await first.record(*STARTED)
    seen = ToolCallFinished(step_id="a", tool="look", call_id="c1", content="seen")
    result = await first.record("a/1/0/tool/1/0", seen)
    await first.close()
    events, shown = EventStream(), list[RunEvent]()
    events.listen(shown.append)
    again = recorder_for(journal, replay=Replay(await journal.entries(), 2), events=events)
    again.note_replayed(result)
    message = MessageRecorded(
        step_id="a",
        conversation="run_1/a/1/0",
        call=result.key,
        tool_call_id="c1",
        name="look",
    )
    await again.record(f"{result.key}/answer", message)
    (event,) = shown
    assert "seen" in str(event)
    await again.close()


async def test_a_fact_that_cannot_be_stored_is_not_shown_and_holds_up_no_other() -> None:
    class Full(MemoryJournal):
        async def append(self, lease: Lease, draft: EntryDraft) -> JournalEntry:
            if draft.key == "a/1/0":
                await asyncio.sleep(0)
                raise JournalError("the disk is full")
            return await super().append(lease, draft)

    events, shown = EventStream(), list[RunEvent]()
    events.listen(shown.append)
    recorder = recorder_for(Full(FakeClock()), events=events)
    bad = asyncio.create_task(recorder.record(*STARTED))
    good = asyncio.create_task(recorder.record("b/1/0", StepStarted(step_id="b")))
    results = await asyncio.gather(bad, good, return_exceptions=True)
    assert isinstance(results[0], JournalError)
    assert isinstance(results[1], JournalEntry)
    assert (recorder.stored, len(shown)) == (1, 1)
    await recorder.close()


# --- turns ---------------------------------------------------------------------------------------


async def test_turns_are_given_in_order_of_arrival() -> None:
    turns, order = _AppendQueue(), list[str]()
    turns.is_taken = True

    async def come(name: str) -> None:
        await turns.wait()
        order.append(name)
        turns.release()

    async with asyncio.TaskGroup() as group:
        for name in "bcd":
            group.create_task(come(name))
        await settle()
        assert order == []
        turns.release()
    assert order == ["b", "c", "d"]
    assert not turns.is_taken


@pytest.mark.parametrize("is_given_before", [True, False])
async def test_who_is_cancelled_while_waiting_leaves_the_turn_to_the_next(
    is_given_before: bool,
) -> None:
    turns = _AppendQueue()
    turns.is_taken = True
    cancelled = asyncio.create_task(turns.wait())
    following = asyncio.create_task(turns.wait())
    await settle()
    if is_given_before:  # both at the same moment: the turn has come, and is not wanted
        turns.release()
    cancelled.cancel()
    await settle()
    assert cancelled.cancelled()
    assert following.done() == is_given_before
    if not is_given_before:
        turns.release()
        await settle()
    assert following.done()
    assert turns.is_taken
    turns.release()
    assert not turns.is_taken


# --- facts that may wait for the next one --------------------------------------------------------


class TogetherJournal(WatchedJournal):
    """Stores several facts at once, and remembers what came together."""

    stores_together = True

    def __init__(self) -> None:
        super().__init__()
        self.together: list[list[str]] = []
        self.refused = ""
        self.code = "journal"
        self.blocks: asyncio.Event | None = None

    async def append_all(
        self, lease: Lease, drafts: Sequence[EntryDraft]
    ) -> Sequence[JournalEntry]:
        if self.blocks is not None:
            await self.blocks.wait()
        if self.refused in [draft.key for draft in drafts]:
            raise JournalError("the disk is full", code=self.code)
        self.together.append([draft.key for draft in drafts])
        return await super().append_all(lease, drafts)

    def prepared(self, draft: EntryDraft) -> EntryDraft:
        if draft.key == "odd":
            raise JournalError("it is no JSON", code="body-not-json")
        return draft


ENDED = StepFinished(step_id="a", status="completed")


async def test_a_run_that_nobody_opened_is_opened_with_its_first_facts() -> None:
    journal = TogetherJournal()
    recorder = recorder_for(journal)
    await recorder.record_later("a/1/0", ENDED)
    assert await journal.held_leases() == []
    await recorder.record("b/1/0", StepStarted(step_id="b"))
    assert journal.together == [["a/1/0", "b/1/0"]]
    leap(TTL_S / 3)
    await settle()
    assert journal.renewed == [TTL_S]
    await recorder.close()
    assert len(journal.released) == 1


async def test_a_run_that_waits_after_its_first_fact_is_opened_meanwhile() -> None:
    journal = TogetherJournal()
    recorder = recorder_for(journal)
    await recorder.record_later("a/1/0", ENDED)
    await settle()
    assert journal.together == [["a/1/0"]]
    assert len(await journal.held_leases()) == 1
    await recorder.close()


async def test_a_run_that_cannot_be_opened_stores_nothing_ever() -> None:
    journal = TogetherJournal()
    other = await journal.acquire("ses_1", "run_0", "other", 60)
    recorder = recorder_for(journal)
    await recorder.record_later("a/1/0", ENDED)
    with pytest.raises(LeaseHeldError) as caught:
        await recorder.record("b/1/0", StepStarted(step_id="b"))
    assert recorder.refusal is caught.value
    await journal.release(other)
    with pytest.raises(LeaseHeldError):
        await recorder.record("c/1/0", StepStarted(step_id="c"))
    await recorder.close()
    assert (await journal.entries(), await journal.held_leases()) == ([], [])


async def test_of_first_facts_one_of_which_is_refused_the_others_open_the_run() -> None:
    journal = TogetherJournal()
    recorder = recorder_for(journal)
    journal.refused, journal.code = "b/1/0", "body-not-json"
    await recorder.record_later("a/1/0", ENDED)
    with pytest.raises(JournalError, match="disk is full"):
        await recorder.record("b/1/0", StepStarted(step_id="b"))
    assert recorder.refusal is None
    assert [row.key for row in await journal.entries()] == ["a/1/0"]
    await recorder.close()


async def test_the_last_fact_releases_the_lease_and_ends_the_writing() -> None:
    journal, events, released = TogetherJournal(), EventStream(), list[int]()
    events.listen(lambda event: released.append(len(journal.released)))
    recorder = recorder_for(journal, events=events)
    await recorder.open()
    await recorder.record_later("a/1/0", ENDED)
    await recorder.record("b/1/0", StepStarted(step_id="b"), is_last=True)
    assert journal.together == [["a/1/0", "b/1/0"]]
    assert released == [1, 1]
    for store in (recorder.record, recorder.record_later):
        with pytest.raises(JournalError, match="Run 'run_1' has ended"):
            await store("c/1/0", ENDED)
    leap(TTL_S)
    await settle()
    await recorder.close()
    assert (journal.renewed, len(journal.released)) == ([], 1)


async def test_a_last_fact_that_is_refused_leaves_the_lease_to_the_close() -> None:
    journal = TogetherJournal()
    recorder = recorder_for(journal)
    await recorder.open()
    journal.refused = "b/1/0"
    with pytest.raises(JournalError, match="disk is full"):
        await recorder.record("b/1/0", StepStarted(step_id="b"), is_last=True)
    assert journal.released == []
    await recorder.close()
    assert len(journal.released) == 1


async def test_a_fact_that_may_wait_is_stored_with_the_next_one_and_told_in_order() -> None:
    journal, events, told = TogetherJournal(), EventStream(), list[str]()
    events.listen(lambda event: told.append(type(event).__name__))
    recorder = recorder_for(journal, events=events)
    await recorder.open()
    at = await recorder.record_later("a/1/0", ENDED)
    assert not await journal.entries()
    assert told == []
    entry = await recorder.record("b/1/0", StepStarted(step_id="b"))
    assert journal.together == [["a/1/0", "b/1/0"]]
    assert entry.position == 2
    assert [row.key for row in await journal.entries()] == ["a/1/0", "b/1/0"]
    assert at <= entry.at
    assert told == ["StepFinished", "StepStarted"]
    await recorder.close()


async def test_a_fact_does_not_wait_longer_than_the_run_waits_for_anything() -> None:
    journal = TogetherJournal()
    recorder = recorder_for(journal)
    await recorder.open()
    await recorder.record_later("a/1/0", ENDED)
    await settle()
    assert journal.together == [["a/1/0"]]
    await recorder.record_later("b/1/0", ENDED)
    await recorder.flush()
    await recorder.record_later("c/1/0", ENDED)
    await recorder.close()
    assert journal.together == [["a/1/0"], ["b/1/0"], ["c/1/0"]]


async def test_a_long_chain_of_facts_is_stored_in_parts_between_which_others_work() -> None:
    journal = TogetherJournal()
    recorder = recorder_for(journal)
    await recorder.open()
    turns = 0

    async def work() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(work())
    for number in range(150):
        await recorder.record_later(f"s{number}/1/0", ENDED)
    await recorder.close()
    other.cancel()
    assert turns >= 4
    assert max(len(each) for each in journal.together) <= 65
    assert len(await journal.entries()) == 150


async def test_what_cannot_be_stored_is_told_at_once_or_to_whoever_records_next() -> None:
    journal = TogetherJournal()
    recorder = recorder_for(journal)
    await recorder.open()
    with pytest.raises(JournalError, match="no JSON"):
        await recorder.record_later("odd", ENDED)
    journal.refused = "a/1/0"
    await recorder.record_later("a/1/0", ENDED)
    await settle()
    for _ in range(2):
        with pytest.raises(JournalError, match="disk is full"):
            await recorder.record("b/1/0", StepStarted(step_id="b"))
    with pytest.raises(JournalError, match="disk is full"):
        await recorder.flush()
    assert not await journal.entries()
    await recorder.close()


async def test_a_journal_that_stores_one_after_another_is_handed_each_fact_at_once() -> None:
    journal = WatchedJournal()
    recorder = recorder_for(journal)
    await recorder.open()
    await recorder.record_later("a/1/0", ENDED)
    assert [row.key for row in await journal.entries()] == ["a/1/0"]
    await recorder.close()


async def test_a_fact_that_cannot_be_stored_costs_none_of_those_that_waited_for_it() -> None:
    journal = TogetherJournal()
    recorder = recorder_for(journal)
    await recorder.open()
    journal.refused, journal.code = "b/1/0", "body-not-json"
    await recorder.record_later("a/1/0", ENDED)
    with pytest.raises(JournalError, match="disk is full"):
        await recorder.record("b/1/0", StepStarted(step_id="b"))
    await recorder.record("c/1/0", StepStarted(step_id="c"))
    assert journal.together == [["a/1/0"]]
    assert [row.key for row in await journal.entries()] == ["a/1/0", "c/1/0"]
    await recorder.close()


async def test_who_is_cancelled_while_facts_are_stored_leaves_them_to_the_next() -> None:
    """What was done is kept: the end of a step that was done is not lost with another one."""
    journal = TogetherJournal()
    recorder = recorder_for(journal)
    await recorder.open()
    journal.blocks = asyncio.Event()
    await recorder.record_later("a/1/0", ENDED)
    cut = asyncio.create_task(recorder.record("b/1/0", StepStarted(step_id="b")))
    await asyncio.sleep(0)
    cut.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cut
    journal.blocks = None
    await recorder.record("c/1/0", StepStarted(step_id="c"))
    assert [row.key for row in await journal.entries()] == ["a/1/0", "c/1/0"]
    await recorder.close()
