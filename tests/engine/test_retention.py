"""Sessions that are older than they may become: which are removed, when, and what stays of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from datetime import timedelta
from pathlib import Path

import pytest

from builders import body_cipher, deterministic_services, draft_of
from minions.adapters.stores.memory_stores import MemoryStepCache
from minions.adapters.stores.postgres_journal import PostgresJournal
from minions.adapters.stores.postgres_side_tables import PostgresStepCache
from minions.adapters.stores.sealed_stores import SealedStepCache
from minions.adapters.stores.sqlite_journal import SqliteJournal
from minions.adapters.stores.sqlite_side_tables import SqliteStepCache
from minions.contracts.journal.child_run_links import ChildLink, child_runs_start
from minions.contracts.journal.journal import EntryDraft, Journal
from minions.contracts.journal.run_rows import (
    Expiry,
    SessionFilter,
    Spender,
    Spent,
    day_of,
)
from minions.contracts.steps import CachedStep, StepCache
from minions.data.errors import NotFoundError
from minions.data.json_values import JsonValue
from minions.engine.services.memory_journal import MemoryJournal
from minions.engine.sessions.deletion import clean_up
from minions.engine.sessions.retention import Retention
from minions.testing.virtual_time import FakeClock

DAY_S = 86_400.0


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=["memory", "sqlite", "postgres", "sealed sqlite"])
async def journal(
    request: pytest.FixtureRequest, clock: FakeClock, tmp_path: Path
) -> AsyncIterator[Journal]:
    made: Journal = MemoryJournal(clock)
    if request.param == "postgres":
        made = PostgresJournal(request.getfixturevalue("postgres_url"), clock, lease_clock=clock)
    elif request.param != "memory":
        cipher = body_cipher() if request.param.startswith("sealed") else None
        made = SqliteJournal(tmp_path / "journal.db", clock, cipher=cipher)
    yield made
    await made.aclose()


def started(**more: JsonValue) -> EntryDraft:
    body: dict[str, JsonValue] = {"recipe": "talk", "model": "any", "steps": {}, **more}
    return draft_of("run", "started", body, key="run")


def ended(status: str = "completed", **more: JsonValue) -> EntryDraft:
    usage: JsonValue = {"input_tokens": 8, "output_tokens": 2, "cost_usd": 0.5}
    return draft_of("run", "finished", {"status": status, "usage": usage, **more}, key="run")


async def store(journal: Journal, session_id: str, run_id: str, *drafts: EntryDraft) -> None:
    lease = await journal.acquire(session_id, run_id, "w", 60)
    for draft in drafts:
        await journal.append(lease, draft)
    await journal.release(lease)


async def swept(
    journal: Journal, clock: FakeClock, retain_s: float | None = 30 * DAY_S, turns: int = 1
) -> list[str]:
    """The sessions that are left after some turns."""
    retention = Retention(deterministic_services(journal, clock), retain_s=retain_s)
    for _ in range(turns):
        await retention.look()
    return sorted(row.session_id for row in await journal.sessions())


async def test_a_session_goes_when_its_last_run_ended_so_long_ago(
    journal: Journal, clock: FakeClock
) -> None:
    """A-172: nothing older than its age stays."""
    await store(journal, "old", "run_1", started(), ended())
    await store(journal, "used", "run_2", started(), ended())
    clock.advance(29 * DAY_S)
    await store(journal, "used", "run_3", started(), ended())
    assert await swept(journal, clock) == ["old", "used"]
    clock.advance(DAY_S)
    assert await swept(journal, clock) == ["used"]
    assert await journal.entries("old") == []
    assert await journal.runs() == [row for row in await journal.runs() if row.session_id == "used"]
    clock.advance(29 * DAY_S)
    assert await swept(journal, clock) == []


async def test_without_an_age_everything_stays(journal: Journal, clock: FakeClock) -> None:
    await store(journal, "old", "run_1", started(), ended())
    clock.advance(9_999 * DAY_S)
    assert await swept(journal, clock, None) == ["old"]
    assert await swept(journal, clock, 1e12) == ["old"]


@pytest.mark.parametrize(
    ("operators", "own", "days"), [(30.0, 7.0, 7), (7.0, 30.0, 7), (None, 7.0, 7), (7.0, None, 7)]
)
async def test_the_shorter_age_counts(
    journal: Journal, clock: FakeClock, operators: float | None, own: float | None, days: int
) -> None:
    """A-172: a recipe does not lengthen what its operator says."""
    more: dict[str, JsonValue] = {} if own is None else {"retain_s": own * DAY_S}
    await store(journal, "s", "run_1", started(**more), ended())
    retain_s = None if operators is None else operators * DAY_S
    clock.advance(days * DAY_S - 1)
    assert await swept(journal, clock, retain_s) == ["s"]
    clock.advance(1)
    assert await swept(journal, clock, retain_s) == []


async def test_a_later_run_makes_the_age_of_its_session_shorter_only(
    journal: Journal, clock: FakeClock
) -> None:
    await store(journal, "s", "run_1", started(retain_s=2 * DAY_S), ended())
    for number, age_s in enumerate((9 * DAY_S, None, DAY_S), 2):
        more: dict[str, JsonValue] = {} if age_s is None else {"retain_s": age_s}
        await store(journal, "s", f"run_{number}", started(**more), ended())
    (row,) = await journal.sessions()
    assert row.retain_s == DAY_S
    assert row.expires_at == row.updated_at + timedelta(days=1)
    wanted = SessionFilter(expiry=Expiry(now=row.updated_at + timedelta(days=1)))
    assert await journal.count_sessions(wanted) == 1


async def test_runs_that_live_wait_or_are_held_stay(journal: Journal, clock: FakeClock) -> None:
    """A-172."""
    await store(journal, "broken_off", "run_1", started())
    await store(journal, "waiting", "run_2", started(), ended("needs_decision"))
    await store(journal, "queued", "run_3", started(queued=True))
    await store(journal, "over", "run_4", started(), ended("failed"))
    await store(journal, "held", "run_5", started(), ended())
    clock.advance(99 * DAY_S)
    lease = await journal.acquire("held", "run_6", "w", 60)
    assert await swept(journal, clock) == ["broken_off", "held", "queued", "waiting"]
    await journal.release(lease)
    assert await swept(journal, clock) == ["broken_off", "queued", "waiting"]


async def test_a_session_from_which_a_fork_reads_stays_as_long_as_the_fork(
    journal: Journal, clock: FakeClock
) -> None:
    await store(journal, "parent", "run_1", started(), ended())
    clock.advance(20 * DAY_S)
    body: dict[str, JsonValue] = {"parent": "parent", "sequence": 1, "position": 1}
    await store(journal, "fork", "edit_1", draft_of("session", "forked", body, key="session"))
    clock.advance(15 * DAY_S)
    assert await swept(journal, clock) == ["fork", "parent"]
    clock.advance(15 * DAY_S)
    assert await swept(journal, clock, turns=2) == []


async def test_child_runs_go_with_their_run_and_not_before(
    journal: Journal, clock: FakeClock
) -> None:
    """A-172: each of them has a session of its own."""
    digits = f"{child_runs_start('run_1').removeprefix('run_')}{'0' * 20}"
    link = ChildLink(run_id="run_1", session_id="s", step_id="each", since=1)
    await store(journal, "s", "run_1", started())
    child = started(note=link.to_note(), retain_s=DAY_S)
    await store(journal, f"ses_{digits}", f"run_{digits}", child, ended())
    clock.advance(40 * DAY_S)
    assert await swept(journal, clock) == ["s", f"ses_{digits}"]
    lease = await journal.acquire("s", "run_1", "w", 60)
    await journal.append(lease, ended())
    await journal.release(lease)
    clock.advance(40 * DAY_S)
    assert await swept(journal, clock) == []


async def test_a_child_run_without_its_run_goes_by_itself(
    journal: Journal, clock: FakeClock
) -> None:
    digits = f"{child_runs_start('run_1').removeprefix('run_')}{'0' * 20}"
    link = ChildLink(run_id="run_1", session_id="s", step_id="each", since=1)
    await store(journal, f"ses_{digits}", f"run_{digits}", started(note=link.to_note()), ended())
    clock.advance(40 * DAY_S)
    assert await swept(journal, clock) == []


async def test_each_turn_looks_at_some_sessions_and_the_next_one_continues(
    clock: FakeClock,
) -> None:
    journal = MemoryJournal(clock)
    for number in range(120):
        await store(journal, f"s{number}", f"run_{number}", started(), ended())
    for number in range(60):
        await store(journal, f"kept{number}", f"open_{number}", started())
    clock.advance(40 * DAY_S)
    retention = Retention(deterministic_services(journal, clock), retain_s=30 * DAY_S)
    counts = [await retention.look() for _ in range(4)]
    assert sum(counts) == 120
    assert max(counts) <= 50
    assert await journal.count_sessions() == 60
    assert await retention.look() == 0


async def test_what_removed_runs_spent_still_counts_for_budgets(
    journal: Journal, clock: FakeClock
) -> None:
    """A-172: as figures: no run is listed, and no word is kept."""
    more: dict[str, JsonValue] = {"user": "ann", "project": "/p", "inputs": {"q": "secret words"}}
    note: JsonValue = {"token": "t1"}
    await store(journal, "s", "run_1", started(note=note, **more), ended())
    day = day_of(clock.now())
    clock.advance(2 * DAY_S)
    await store(journal, "t", "run_2", started(**more), ended())
    spenders = [
        Spender(day=day),
        Spender(day=day - 5, days=20),
        Spender(day=day - 5, days=20, user="ann"),
        Spender(day=day, recipe="talk"),
        Spender(day=day, project="/p", days=7),
        Spender(day=day, user="bob"),
        Spender(day=day + 1),
    ]
    before = [await journal.spent(each) for each in spenders]
    assert before[:2] == [Spent(10, 0.5), Spent(20, 1.0)]
    assert await swept(journal, clock, DAY_S) == ["t"]
    assert [await journal.spent(each) for each in spenders] == before
    assert await journal.spent(Spender(session_id="s")) == Spent()
    await journal.forget_spender("ann")
    assert await journal.spent(spenders[2]) == Spent(10, 0.5)
    assert await journal.spent(spenders[1]) == Spent(20, 1.0)
    clock.advance(40 * DAY_S)
    assert await swept(journal, clock, DAY_S) == []
    assert await journal.spent(spenders[1]) == Spent()  # no budget asks for that any more


async def test_blobs_go_within_a_day(journal: Journal, clock: FakeClock) -> None:
    """A-172."""
    digest = await journal.put_blob(b"of the session")
    error: JsonValue = {"code": "a", "message": digest}
    await store(journal, "s", "run_1", started(), ended("failed", error=error))
    retention = Retention(deterministic_services(journal, clock), retain_s=DAY_S)
    clock.advance(0.5 * DAY_S)
    await retention.look()
    clock.advance(0.5 * DAY_S)
    await retention.look()
    assert await journal.count_sessions() == 0
    with pytest.raises(NotFoundError):
        await journal.get_blob(digest)


async def test_those_who_keep_something_of_runs_are_told(clock: FakeClock) -> None:
    journal, told = MemoryJournal(clock), list[str]()

    async def forget(run_ids: Collection[str]) -> None:
        told.extend(run_ids)

    await store(journal, "s", "run_1", started(), ended())
    await store(journal, "s", "run_2", started(), ended())
    services = deterministic_services(journal, clock)
    clock.advance(DAY_S)
    await Retention(services, retain_s=1.0, forget=forget).look()
    assert sorted(told) == ["run_1", "run_2"]


@pytest.mark.parametrize("kind", ["memory", "sqlite", "postgres", "sealed"])
async def test_what_a_run_left_in_the_cache_is_removed(
    request: pytest.FixtureRequest, tmp_path: Path, clock: FakeClock, kind: str
) -> None:
    """A-172."""
    cache: StepCache = MemoryStepCache()
    if kind == "sqlite":
        cache = SqliteStepCache(tmp_path / "journal.db")
    elif kind == "postgres":
        cache = PostgresStepCache(request.getfixturevalue("postgres_url"))
    elif kind == "sealed":
        cache = SealedStepCache(cache, body_cipher())
    for number in range(3):
        entry = CachedStep(output=number, run_id=f"run_{number % 2}", created_at=clock.now())
        await cache.put(str(number) * 64, entry)
    assert await cache.forget_runs(["run_0", "run_7"]) == 2
    left = [await cache.get(str(number) * 64) for number in range(3)]
    assert [each is not None for each in left] == [False, True, False]
    await cache.aclose()


async def test_a_clean_up_removes_what_is_over_beside_what_it_is_asked_for(
    journal: Journal, clock: FakeClock
) -> None:
    await store(journal, "own", "run_1", started(retain_s=DAY_S), ended())
    await store(journal, "other", "run_2", started(), ended())
    services = deterministic_services(journal, clock)
    clock.advance(2 * DAY_S)
    done = await clean_up(services)
    assert (done.sessions, done.runs) == (("own",), ("run_1",))
    await store(journal, "new", "run_3", started(), ended())
    done = await clean_up(services, keep=5, retain_s=DAY_S)
    assert done.sessions == ("other",)
    assert await journal.count_sessions() == 1
