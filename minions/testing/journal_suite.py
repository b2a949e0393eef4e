"""Conformance tests for every implementation of `Journal`, also for your own.

In a test module, with pytest-asyncio in its mode `auto`:

    from minions.testing.journal_suite import *

    @pytest.fixture
    async def journal(clock, tmp_path):
        made = MyJournal(tmp_path / "journal", clock)
        yield made
        await made.aclose()
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Final

import pytest
from attrs import evolve

from minions.contracts.journal.facts import Fact, StepFinished, UnreadableFact, fact_of
from minions.contracts.journal.journal import EntryDraft, Journal, JournalEntry, Lease
from minions.data.errors import FencedError, JournalError, LeaseHeldError, NotFoundError
from minions.data.json_values import JsonValue
from minions.testing.virtual_time import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def draft(
    key: str = "fetch/1", *, kind: str = "step", state: str = "finished", **body: JsonValue
) -> EntryDraft:
    return holding(body, kind=kind, state=state, key=key)


async def lease_of(
    journal: Journal, session: str = "ses_1", run: str = "run_1", worker: str = "w1"
) -> Lease:
    return await journal.acquire(session, run, worker, ttl_s=60)


async def value_after_storing(journal: Journal, value: JsonValue) -> JsonValue:
    lease = await lease_of(journal)
    await journal.append(lease, holding(value, key="a"))
    (entry,) = await journal.entries("ses_1")
    return entry.body["output"]


# --- entries ---------------------------------------------------------------------------------


async def test_an_entry_is_read_as_it_was_acknowledged(journal: Journal, clock: FakeClock) -> None:
    lease = await lease_of(journal)
    clock.advance(0.000_001)
    stored = await journal.append(lease, draft("fetch/1", n=1.5, ok=True))
    assert stored == JournalEntry(
        session_id="ses_1",
        position=1,
        run_id="run_1",
        generation=1,
        key="fetch/1",
        fact=StepFinished(step_id="a", status="completed", output={"n": 1.5, "ok": True}),
        epoch=1,
        at=datetime(2026, 1, 1, 0, 0, 0, 1, tzinfo=UTC),
    )
    assert await journal.entries("ses_1") == [stored]


async def test_entries_come_in_the_order_of_their_appending(journal: Journal) -> None:
    lease = await lease_of(journal)
    stored = [await journal.append(lease, draft(key)) for key in ("c", "a", "b")]
    assert await journal.entries("ses_1") == stored
    assert [entry.position for entry in stored] == [1, 2, 3]


async def test_each_session_counts_for_itself(journal: Journal) -> None:
    first = await lease_of(journal, "ses_1", "run_1")
    second = await lease_of(journal, "ses_2", "run_2")
    a = await journal.append(second, draft("a"))
    b = await journal.append(first, draft("a"))
    c = await journal.append(second, draft("b"))
    assert [entry.position for entry in (a, b, c)] == [1, 1, 2]
    assert await journal.entries() == [b, a, c]
    assert await journal.entries("ses_2") == [a, c]


async def test_positions_stay_gapless_when_many_tasks_append_at_once(journal: Journal) -> None:
    lease = await lease_of(journal)
    await asyncio.gather(*(journal.append(lease, draft(f"call/{n}")) for n in range(50)))
    entries = await journal.entries("ses_1")
    assert [entry.position for entry in entries] == list(range(1, 51))
    assert {entry.key for entry in entries} == {f"call/{n}" for n in range(50)}


async def test_facts_of_one_lease_that_come_together_keep_their_order(journal: Journal) -> None:
    lease, other = await lease_of(journal), await lease_of(journal, "ses_2", "run_2")
    appends = [journal.append(each, draft(f"{n}")) for n in range(30) for each in (lease, other)]
    stored = await asyncio.gather(*appends)
    assert [entry.position for entry in stored] == [n for n in range(1, 31) for _ in range(2)]
    assert await journal.entries() == [*stored[::2], *stored[1::2]]


async def test_a_fact_that_is_refused_harms_none_of_those_that_come_with_it(
    journal: Journal,
) -> None:
    lost, other = await lease_of(journal), await lease_of(journal, "ses_2", "run_2")
    lease = await journal.acquire("ses_1", "run_1", "w2", ttl_s=60, takes_over="w1")
    ended = await asyncio.gather(
        journal.append(other, draft("a")),
        journal.append(lost, draft("a")),
        journal.append(lease, draft("a")),
        journal.append(other, draft("a")),
        journal.append(lease, draft("b")),
        journal.append(other, draft("b")),
        return_exceptions=True,
    )
    stored = [entry for entry in ended if isinstance(entry, JournalEntry)]
    refused = [error.error_code for error in ended if isinstance(error, JournalError)]
    assert refused == ["fenced", "duplicate-entry"]
    places = [(entry.session_id, entry.position, entry.key) for entry in stored]
    assert places == [("ses_2", 1, "a"), ("ses_1", 1, "a"), ("ses_1", 2, "b"), ("ses_2", 2, "b")]
    assert await journal.entries() == sorted(stored, key=lambda entry: entry.session_id)


async def test_of_two_that_want_a_session_at_once_one_gets_it(journal: Journal) -> None:
    ended = await asyncio.gather(
        lease_of(journal, worker="w1"),
        lease_of(journal, "ses_2", "run_2"),
        lease_of(journal, worker="w2"),
        return_exceptions=True,
    )
    assert [type(each) for each in ended] == [Lease, Lease, LeaseHeldError]
    assert len(await journal.held_leases()) == 2


async def test_a_key_that_is_taken_is_refused_and_leaves_no_gap(journal: Journal) -> None:
    lease = await lease_of(journal)
    await journal.append(lease, draft("a", state="started"))
    with pytest.raises(JournalError) as caught:
        await journal.append(lease, draft("a", state="started"))
    assert caught.value.error_code == "duplicate-entry"
    assert "run_1" in str(caught.value)
    after = await journal.append(lease, draft("a", state="finished"))
    assert after.position == 2


async def test_the_next_generation_may_use_a_key_again(journal: Journal) -> None:
    first = await lease_of(journal)
    await journal.append(first, draft("a"))
    second = Lease(
        session_id="ses_1", run_id="run_1", worker_id="w1", epoch=first.epoch, generation=2
    )
    entry = await journal.append(second, draft("a"))
    assert (entry.generation, entry.position) == (2, 2)


async def test_a_run_goes_on_in_its_newest_generation(journal: Journal) -> None:
    first = await lease_of(journal)
    await journal.append(
        Lease(session_id="ses_1", run_id="run_1", worker_id="w1", epoch=first.epoch, generation=3),
        draft("a"),
    )
    assert (await lease_of(journal)).generation == 3


async def test_entries_after_a_position_can_be_read_alone(journal: Journal) -> None:
    lease = await lease_of(journal)
    stored = [await journal.append(lease, draft(f"{n}")) for n in range(5)]
    assert await journal.entries("ses_1", after=3) == stored[3:]
    assert await journal.entries("ses_1", after=5) == []
    assert await journal.entries("ses_1", after=2**70) == []


async def test_entries_can_be_chosen_by_kind_and_run(journal: Journal) -> None:
    first = await lease_of(journal, "ses_1", "run_1")
    run_1 = await journal.append(first, draft("run_1", kind="run"))
    step = await journal.append(first, draft("a", kind="step"))
    await journal.release(first)
    again = await lease_of(journal, "ses_1", "run_2")
    run_2 = await journal.append(again, draft("run_2", kind="run"))
    other = await lease_of(journal, "ses_0", "run_3")
    run_3 = await journal.append(other, draft("run_3", kind="run"))
    assert await journal.entries(kinds=("run",)) == [run_3, run_1, run_2]
    assert await journal.entries("ses_1", kinds={"run", "step"}) == [run_1, step, run_2]
    assert await journal.entries(run_id="run_1") == [run_1, step]
    assert await journal.entries(run_id="run_1", kinds=("step",), after=1) == [step]
    assert await journal.entries(kinds=()) == []


async def test_an_unknown_session_has_no_entries(journal: Journal) -> None:
    assert await journal.entries("ses_unknown") == []


# --- bodies ----------------------------------------------------------------------------------

ODD_BODIES: Mapping[str, dict[str, JsonValue]] = {
    "emoji": {"text": "naïve 🦜 \u2028"},
    "nul": {"text": "a\0b", "k\0": 1},
    "lone-surrogate": {"text": "\ud83d alone", "\udc80": None},
    "surrogates-side-by-side": {"text": "\ud83d" + "\ude00"},
    "large-integers": {"n": 2**70, "m": -(2**63) - 1},
    "floats": {"n": 1e308, "m": 5e-324, "whole": 1.0},
    "empty": {},
    "large": {"text": "x" * 40_000},
    "large-and-odd": {"text": "\ud83d🦜" * 20_000},
    "nested": {"a": [[], {}, [None, True, {"b": ""}]]},
}


@pytest.mark.parametrize("name", ODD_BODIES)
async def test_a_value_comes_back_exactly(journal: Journal, name: str) -> None:
    assert await value_after_storing(journal, ODD_BODIES[name]) == ODD_BODIES[name]


async def test_bodies_of_many_entries_come_back_exactly(journal: Journal) -> None:
    lease = await lease_of(journal)
    bodies = [ODD_BODIES[name] for name in sorted(ODD_BODIES)] * 30
    for n, body in enumerate(bodies):
        await journal.append(lease, holding(body, key=f"{n}"))
    assert [entry.body["output"] for entry in await journal.entries("ses_1")] == bodies


async def test_a_value_may_be_any_mapping(journal: Journal) -> None:
    value = MappingProxyType({"a": MappingProxyType({"b": 1})})
    assert await value_after_storing(journal, value) == {"a": {"b": 1}}


# --- leases ----------------------------------------------------------------------------------


async def test_a_second_run_of_a_busy_session_is_refused(journal: Journal) -> None:
    await lease_of(journal, run="run_1")
    with pytest.raises(LeaseHeldError, match="run_1") as caught:
        await lease_of(journal, run="run_2")
    assert caught.value.error_code == "lease-held"


async def test_another_worker_of_an_active_run_is_refused(journal: Journal) -> None:
    await lease_of(journal, worker="w1")
    with pytest.raises(LeaseHeldError, match="w1"):
        await lease_of(journal, worker="w2")


async def test_sessions_are_leased_apart(journal: Journal) -> None:
    await lease_of(journal, "ses_1", "run_1")
    assert (await lease_of(journal, "ses_2", "run_2")).epoch == 1


async def test_a_lease_that_ran_out_is_stolen_and_its_holder_fenced(
    journal: Journal, clock: FakeClock
) -> None:
    old = await lease_of(journal, worker="w1")
    await journal.append(old, draft("a"))
    clock.advance(61)
    new = await lease_of(journal, worker="w2")
    assert new.epoch == old.epoch + 1
    with pytest.raises(FencedError, match="w2"):
        await journal.append(old, draft("b"))
    with pytest.raises(FencedError):
        await journal.renew(old, 60)
    stored = await journal.append(new, draft("b"))
    assert (stored.position, stored.epoch) == (2, new.epoch)


async def test_a_lease_lasts_until_its_deadline(journal: Journal, clock: FakeClock) -> None:
    await lease_of(journal, run="run_1")
    clock.advance(59.9)
    with pytest.raises(LeaseHeldError):
        await lease_of(journal, run="run_2")


async def test_at_its_deadline_a_lease_is_over(journal: Journal, clock: FakeClock) -> None:
    await lease_of(journal, run="run_1")
    clock.advance(60)
    assert (await lease_of(journal, run="run_2")).epoch == 2


async def test_who_is_refused_is_told_when_the_session_is_free(journal: Journal) -> None:
    lease = await lease_of(journal, run="run_1")
    await journal.append(lease, draft("a"))
    with pytest.raises(LeaseHeldError, match=r"Run 'run_2' can start when that run ends"):
        await lease_of(journal, run="run_2")
    with pytest.raises(LeaseHeldError, match=r"It can be changed when that run ends"):
        await journal.remove_session("ses_1")


async def test_only_the_worker_that_is_named_is_taken_over_from(journal: Journal) -> None:
    old = await lease_of(journal, worker="w1")
    with pytest.raises(LeaseHeldError, match="w1"):
        await journal.acquire("ses_1", "run_1", "w2", 60, takes_over="w3")
    new = await journal.acquire("ses_1", "run_1", "w2", 60, takes_over="w1")
    assert new.epoch == old.epoch + 1
    with pytest.raises(FencedError):
        await journal.append(old, draft("a"))


@pytest.mark.parametrize("text", ["short", "x" * 40_000], ids=["short", "large"])
@pytest.mark.parametrize("wrong", ["epoch", "run_id"])
async def test_a_lease_of_another_run_or_epoch_writes_nothing(
    journal: Journal, wrong: str, text: str
) -> None:
    lease = await lease_of(journal)
    changed = evolve(lease, epoch=7) if wrong == "epoch" else evolve(lease, run_id="run_2")
    entry = holding(text, key="a")
    with pytest.raises(FencedError, match="worker 'w1' has it for run 'run_1'"):
        await journal.append(changed, entry)
    with pytest.raises(FencedError):
        await journal.renew(changed, 60)
    assert (await journal.append(lease, entry)).position == 1


async def test_a_lease_of_another_session_gives_no_right(journal: Journal) -> None:
    lease = await lease_of(journal, "ses_1")
    await journal.release(lease)
    await lease_of(journal, "ses_2")
    with pytest.raises(FencedError):
        await journal.append(lease, draft("a"))
    assert await journal.entries() == []


@pytest.mark.parametrize("text", ["short", "x" * 40_000], ids=["short", "large"])
async def test_who_writes_no_more_is_told_why(journal: Journal, text: str) -> None:
    entry = holding(text, key="a")
    invented = Lease(session_id="ses_9", run_id="run_9", worker_id="w1", epoch=1)
    with pytest.raises(FencedError, match="nobody holds it"):
        await journal.append(invented, entry)
    lease = await lease_of(journal)
    await journal.release(lease)
    with pytest.raises(FencedError, match="its last lease was given back"):
        await journal.append(lease, entry)
    with pytest.raises(FencedError, match="its last lease was given back"):
        await journal.renew(lease, 60)


async def test_a_lease_that_ran_out_still_writes_while_nobody_took_it(
    journal: Journal, clock: FakeClock
) -> None:
    lease = await lease_of(journal)
    clock.advance(61)
    assert (await journal.append(lease, draft("a"))).position == 1


async def test_a_renewed_lease_cannot_be_stolen(journal: Journal, clock: FakeClock) -> None:
    lease = await lease_of(journal, worker="w1")
    clock.advance(50)
    await journal.renew(lease, 60)
    clock.advance(50)
    with pytest.raises(LeaseHeldError):
        await lease_of(journal, worker="w2")


async def test_a_released_session_is_free_and_its_holder_fenced(journal: Journal) -> None:
    old = await lease_of(journal, run="run_1")
    await journal.release(old)
    with pytest.raises(FencedError):
        await journal.append(old, draft("a"))
    new = await lease_of(journal, run="run_2", worker="w2")
    assert new.epoch == old.epoch + 1


async def test_a_run_is_opened_with_its_first_facts(journal: Journal) -> None:
    opened = await journal.open_run("ses_1", "run_1", "w1", 60, [draft("a"), draft("b")])
    assert opened.lease == Lease(session_id="ses_1", run_id="run_1", worker_id="w1", epoch=1)
    assert [(each.key, each.position) for each in opened.entries] == [("a", 1), ("b", 2)]
    assert await journal.entries() == opened.entries
    assert await held(journal) == [(opened.lease, False)]
    assert (await journal.append(opened.lease, draft("c"))).position == 3
    assert (await journal.verify("ses_1")).fault is None


@pytest.mark.parametrize("text", ["short", "x" * 40_000], ids=["short", "large"])
async def test_a_run_is_opened_in_a_session_that_has_runs(journal: Journal, text: str) -> None:
    earlier = await lease_of(journal, run="run_0")
    await journal.append(earlier, draft("a"))
    await journal.release(earlier)
    opened = await journal.open_run("ses_1", "run_1", "w1", 60, [holding(text, key="a")])
    assert (opened.lease.epoch, opened.entries[0].position) == (2, 2)
    assert await journal.entries(run_id="run_1") == opened.entries


async def test_a_run_is_opened_in_its_next_generation(journal: Journal) -> None:
    await journal.release((await journal.open_run("s", "r", "w1", 60, [draft("a")])).lease)
    opened = await journal.open_run("s", "r", "w1", 60, [draft("a")], next_generation=True)
    assert (opened.lease.generation, opened.entries[0].generation) == (2, 2)


async def test_a_run_of_a_dead_worker_is_opened_by_another_one(journal: Journal) -> None:
    await lease_of(journal, run="run_0", worker="w1")
    with pytest.raises(LeaseHeldError, match="run_0"):
        await journal.open_run("ses_1", "run_1", "w2", 60, [draft("a")])
    assert await journal.entries() == []
    opened = await journal.open_run("ses_1", "run_1", "w2", 60, [draft("a")], takes_over="w1")
    assert opened.lease.epoch == 2


async def test_a_run_whose_first_facts_are_refused_is_not_open(journal: Journal) -> None:
    with pytest.raises(JournalError) as caught:
        await journal.open_run("ses_1", "run_1", "w1", 60, [draft("a"), draft("a")])
    assert caught.value.error_code == "duplicate-entry"
    assert await held(journal) == []
    assert (await lease_of(journal, run="run_2", worker="w2")).run_id == "run_2"


async def test_the_last_facts_release_the_lease(journal: Journal) -> None:
    opened = await journal.open_run("ses_1", "run_1", "w1", 60, [draft("a")])
    await journal.append(opened.lease, draft("b"))
    entries = await journal.close_run(opened.lease, [draft("c"), holding("x" * 40_000, key="d")])
    assert [(each.key, each.position) for each in entries] == [("c", 3), ("d", 4)]
    assert (await journal.entries())[2:] == entries
    assert await held(journal) == []
    with pytest.raises(FencedError, match="its last lease was given back"):
        await journal.append(opened.lease, draft("e"))
    again = await lease_of(journal, run="run_2", worker="w2")
    assert (again.epoch, (await journal.append(again, draft("a"))).position) == (2, 5)
    assert (await journal.verify("ses_1")).fault is None


async def test_last_facts_that_are_refused_leave_the_lease(journal: Journal) -> None:
    lease = await lease_of(journal)
    await journal.append(lease, draft("a"))
    with pytest.raises(JournalError) as caught:
        await journal.close_run(lease, [draft("a")])
    assert caught.value.error_code == "duplicate-entry"
    assert await held(journal) == [(lease, False)]
    assert (await journal.close_run(lease, [draft("b")]))[0].position == 2
    assert await held(journal) == []


async def test_last_facts_under_a_lease_that_was_taken_are_refused(
    journal: Journal, clock: FakeClock
) -> None:
    old = await lease_of(journal, worker="w1")
    await journal.append(old, draft("a"))
    clock.advance(61)
    new = await lease_of(journal, worker="w2")
    with pytest.raises(FencedError, match="w2"):
        await journal.close_run(old, [draft("b")])
    assert await held(journal) == [(new, False)]
    assert [each.key for each in await journal.entries()] == ["a"]


async def test_last_facts_under_the_lease_of_another_run_are_refused(journal: Journal) -> None:
    lease = await lease_of(journal)
    with pytest.raises(FencedError, match="worker 'w1' has it for run 'run_1'"):
        await journal.close_run(evolve(lease, run_id="run_2"), [draft("a")])
    assert (await held(journal), await journal.entries()) == ([(lease, False)], [])


async def test_the_last_facts_of_a_resumed_run_release_its_lease(journal: Journal) -> None:
    start = draft("run", kind="run", state="started")
    first = await journal.open_run("ses_1", "run_1", "w1", 60, [start])
    await journal.close_run(first.lease, [draft("run", kind="run", state="finished")])
    lease = await journal.acquire("ses_1", "run_1", "w1", 60, next_generation=True)
    (entry,) = await journal.close_run(lease, [draft("run", kind="run", state="finished")])
    assert (entry.position, entry.epoch, entry.generation) == (3, 2, 2)
    assert await held(journal) == []
    (row,) = await journal.runs()
    assert row.status == "completed"


async def test_a_stale_release_changes_nothing(journal: Journal, clock: FakeClock) -> None:
    old = await lease_of(journal, worker="w1")
    clock.advance(61)
    new = await lease_of(journal, worker="w2")
    await journal.release(old)
    assert (await journal.append(new, draft("a"))).position == 1


async def test_leases_that_were_not_given_back_are_told(journal: Journal, clock: FakeClock) -> None:
    """A-126: whoever resumes runs finds those that nobody executes any more."""
    given_back = await lease_of(journal, "ses_0", "run_0")
    await journal.release(given_back)
    old = await lease_of(journal, "ses_1", "run_1")
    await journal.append(old, draft())
    clock.advance(59)
    young = await lease_of(journal, "ses_2", "run_2", "w2")
    assert await held(journal) == [(old, False), (young, False)]
    clock.advance(1)
    assert await held(journal) == [(old, True), (young, False)]
    await journal.renew(old, 60)
    assert await held(journal) == [(old, False), (young, False)]
    await journal.release(old)
    await journal.release(young)
    assert await held(journal) == []


async def held(journal: Journal) -> list[tuple[Lease, bool]]:
    found = await journal.held_leases()
    return sorted(((each.lease, each.has_expired) for each in found), key=lambda p: p[0].session_id)


async def test_the_same_worker_may_take_its_run_again(journal: Journal) -> None:
    old = await lease_of(journal)
    new = await lease_of(journal)
    assert new.epoch == old.epoch + 1
    with pytest.raises(FencedError):
        await journal.append(old, draft("a"))


async def test_a_lease_that_nobody_gave_is_refused(journal: Journal) -> None:
    invented = Lease(session_id="ses_9", run_id="run_9", worker_id="w1", epoch=1)
    with pytest.raises(FencedError):
        await journal.append(invented, draft("a"))
    await journal.release(invented)
    assert await journal.entries("ses_9") == []


# --- blobs -----------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [b"", b"\0\xff", b"recipe" * 50_000])
async def test_a_blob_is_found_under_its_hash(journal: Journal, data: bytes) -> None:
    digest = await journal.put_blob(data)
    assert await journal.put_blob(data) == digest
    assert await journal.get_blob(digest) == data


async def test_the_hash_of_a_blob_is_its_sha_256(journal: Journal) -> None:
    assert await journal.put_blob(b"abc") == (
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    )


async def test_an_unknown_blob_is_not_found(journal: Journal) -> None:
    with pytest.raises(NotFoundError) as caught:
        await journal.get_blob("00" * 32)
    assert caught.value.error_code == "unknown-blob"


# --- facts for tests of journals, with defaults for everything that a test need not state --------


_STEP: Final[Mapping[str, JsonValue]] = {"step_id": "a"}
_CHANGE: Final[Mapping[str, JsonValue]] = {**_STEP, "root": "/work", "path": "a", "after": "0"}
_NEEDED: Final[Mapping[tuple[str, str], Mapping[str, JsonValue]]] = {
    ("run", "started"): {"recipe": "r"},
    ("run", "resumed"): {"recipe": "r"},
    ("step", "started"): _STEP,
    ("step", "finished"): {**_STEP, "status": "completed"},
    ("step", "failed"): {**_STEP, "status": "failed", "error": {}},
    ("step", "interrupted"): {**_STEP, "status": "failed", "error": {}},
    ("step", "skipped"): {**_STEP, "status": "skipped"},
    ("step", "withdrawn"): {**_STEP, "status": "skipped"},
    ("tool_call", "started"): {**_STEP, "tool": "look", "arguments": "{}"},
    ("tool_call", "in_doubt"): {**_STEP, "tool": "look", "arguments": "{}"},
    ("tool_call", "finished"): {**_STEP, "tool": "look"},
    ("tool_call", "failed"): {**_STEP, "tool": "look"},
    ("tool_call", "interrupted"): {**_STEP, "tool": "look"},
    ("model_call", "finished"): {**_STEP, "message": {"role": "assistant", "content": "so"}},
    ("model_call", "failed"): _STEP,
    ("model_call", "interrupted"): _STEP,
    ("decision", "waiting"): {**_STEP, "what": "answer"},
    ("decision", "recorded"): {**_STEP, "what": "approval", "word": "approve:1"},
    ("decision", "imported"): {**_STEP, "what": "approval", "word": "approve:1"},
    ("route", "finished"): {**_STEP, "output": "b"},
    ("route", "failed"): _STEP,
    ("goto", "recorded"): {**_STEP, "to": "b", "attempt": 1},
    ("plan", "replaced"): {**_STEP, "text": "", "diff": {}},
    ("examples", "pinned"): {"recipe": "r", "step": "a", "fingerprint": "0"},
    ("mark", "recorded"): {"verdict": "good"},
    ("mark", "imported"): {"verdict": "good"},
    ("score", "recorded"): {"scorer": "exact"},
    ("score", "imported"): {"scorer": "exact"},
    ("rollback", "recorded"): {"conversation": "c", "position": 0},
    ("file_change", "recorded"): _CHANGE,
    ("file_change", "imported"): _CHANGE,
    ("file_rollback", "finished"): {"files": []},
    ("conversation", "started"): {**_STEP, "conversation": "c", "messages": []},
    ("session", "cut"): {"sequence": 0},
    ("session", "forked"): {"parent": "ses_0", "sequence": 0, "position": 1},
}


def row_fact(kind: str, state: str, body: Mapping[str, JsonValue]) -> Fact | UnreadableFact:
    """The fact of a row; required fields that the body lacks are filled in."""
    is_start = kind == "run" and state in ("started", "resumed") and "document" not in body
    needed = {**_NEEDED.get((kind, state), {}), **({"steps": {}} if is_start else {})}
    return fact_of(kind, state, {**needed, **body})


def holding(
    value: JsonValue = None, *, key: str = "k", kind: str = "step", state: str = "finished"
) -> EntryDraft:
    """A fact of that kind that holds `value` in a field of its own."""
    boxed = {"it": value}
    body: dict[tuple[str, str], Mapping[str, JsonValue]] = {
        ("step", "started"): {"conversation": repr(value)},
        ("step", "finished"): {"output": value},
        ("run", "started"): {"inputs": boxed},
        ("run", "finished"): {"status": "completed", "output": value},
        ("model_call", "finished"): {"metrics": boxed},
        ("model_call", "failed"): {"error": boxed},
        ("message", "recorded"): {"message": {"role": "user"}, "metrics": boxed},
        ("session", "opened"): {"inputs": boxed},
    }
    if kind in ("message", "session"):
        state = "recorded" if kind == "message" else "opened"
    fact = row_fact(kind, state, body[kind, state])
    assert not isinstance(fact, UnreadableFact)  # the table above fits each kind
    return EntryDraft(key=key, fact=fact)
