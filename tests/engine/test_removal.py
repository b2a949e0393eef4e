"""Sessions that are no longer wanted: which may go, which stay, and what goes with them."""

from __future__ import annotations

import pytest
from attrs import evolve

from builders import deterministic_services, draft_of
from minions.contracts.journal.child_run_links import ChildRunNames
from minions.contracts.journal.journal import BlobCollection, Lease
from minions.data.errors import LeaseHeldError, NotFoundError, UsageError
from minions.data.json_values import JsonValue
from minions.engine.services.memory_journal import MemoryJournal
from minions.engine.services.run_services import Services
from minions.engine.sessions.deletion import CleanUp, clean_up, find_session, remove_sessions
from minions.testing.virtual_time import FakeClock

DAY = 86_400
NAMES = ChildRunNames(run_id="run_1", key="each/0/0", work="")
CHILDREN = [NAMES.run(index, f"item {index}") for index in range(2)]
CHILD_SESSIONS = sorted(map(ChildRunNames.session, CHILDREN))


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def services(clock: FakeClock) -> Services:
    return deterministic_services(MemoryJournal(clock), clock)


async def make(
    services: Services,
    number: int | str,
    status: str | None = "completed",
    parent: int | None = None,
) -> str:
    """`ses_N` with `run_N`; a status of None: it was killed."""
    session = f"ses_{number}"
    lease = await services.journal.acquire(session, f"run_{number}", "w", 60)
    if parent is not None:
        fork: dict[str, JsonValue] = {"parent": f"ses_{parent}", "sequence": 1, "position": 1}
        await append(services, lease, "session", "forked", fork)
    await append(services, lease, "run", "started", {"recipe": "news"})
    if status is not None:
        await append(services, lease, "run", "finished", {"status": status})
    await services.journal.release(lease)
    return session


async def append(
    services: Services, lease: Lease, kind: str, state: str, body: dict[str, JsonValue]
) -> None:
    draft = draft_of(kind, state, body, key=kind)
    await services.journal.append(lease, draft)


async def sessions_of(services: Services) -> list[str]:
    return sorted({entry.session_id for entry in await services.journal.entries()})


# --- by name ---------------------------------------------------------------------------------


async def test_a_session_is_found_by_a_start_of_its_id_or_its_runs(services: Services) -> None:
    await make(services, 11)
    await make(services, 12)
    await make(services, 1)
    for name in ("ses_12", "run_12"):
        assert await find_session(services.journal, name) == "ses_12"
    assert await find_session(services.journal, "ses_1") == "ses_1"
    with pytest.raises(UsageError, match=r"not unique: ses_1, ses_11, ses_12"):
        await find_session(services.journal, "ses")
    with pytest.raises(NotFoundError) as caught:
        await find_session(services.journal, "ses_13")
    assert caught.value.suggestions


async def test_sessions_are_removed_forks_first(services: Services) -> None:
    for number, parent in ((1, None), (2, 1), (3, 2), (4, None)):
        await make(services, number, parent=parent)
    removed = await remove_sessions(services, ["ses_1", "ses_3", "ses_2", "ses_3"])
    assert removed == ("ses_3", "ses_2", "ses_1")
    assert await sessions_of(services) == ["ses_4"]


async def test_a_session_from_which_others_read_is_not_removed(services: Services) -> None:
    for number, parent in ((1, None), (2, 1), (3, 2)):
        await make(services, number, parent=parent)
    with pytest.raises(UsageError, match=r"minions sessions rm ses_1 ses_2 ses_3") as caught:
        await remove_sessions(services, ["ses_1"])
    assert caught.value.error_code == "has-forks"
    with pytest.raises(UsageError, match=r"ses_3 was forked from it"):
        await remove_sessions(services, ["ses_1", "ses_2"])
    assert await sessions_of(services) == ["ses_1", "ses_2", "ses_3"]


async def test_nothing_is_removed_where_one_is_unknown_or_busy(
    services: Services, clock: FakeClock
) -> None:
    await make(services, 1)
    with pytest.raises(NotFoundError):
        await remove_sessions(services, ["ses_1", "ses_9"])
    await make(services, 2)
    lease = await services.journal.acquire("ses_2", "run_2", "w", 60)
    with pytest.raises(LeaseHeldError, match="run_2"):
        await remove_sessions(services, ["ses_1", "ses_2"])
    assert await sessions_of(services) == ["ses_1", "ses_2"]
    await append(services, lease, "step", "started", {})
    await services.journal.acquire("ses_1", "run_1", "w", 60)  # it was let go again


async def test_a_holder_that_is_known_to_be_dead_is_not_waited_for(services: Services) -> None:
    await make(services, 1)
    await services.journal.acquire("ses_1", "run_1", "dead", 60)
    knowing = evolve(services, is_worker_gone=lambda worker: worker == "dead")
    assert await remove_sessions(knowing, ["ses_1"]) == ("ses_1",)
    assert await sessions_of(services) == []


# --- by age ----------------------------------------------------------------------------------


async def test_without_an_age_or_a_number_no_session_goes(
    services: Services, clock: FakeClock
) -> None:
    await make(services, 1)
    await services.journal.put_blob(b"nobody names it")
    clock.advance(400 * DAY)
    assert await clean_up(services) == CleanUp(
        sessions=(), unfinished=(), forked=(), collected=BlobCollection(blobs=1, bytes=15)
    )
    assert await sessions_of(services) == ["ses_1"]


async def test_old_sessions_go_and_those_that_may_go_on_stay(
    services: Services, clock: FakeClock
) -> None:
    await make(services, 1)
    await make(services, 2, status=None)
    await make(services, 3, status="needs_decision")
    await make(services, 4, status="failed")
    clock.advance(10 * DAY)
    await make(services, 5)
    clock.advance(25 * DAY)
    told = await clean_up(services, older_than_s=30 * DAY, dry_run=True)
    assert await sessions_of(services) == [f"ses_{n}" for n in range(1, 6)]
    done = await clean_up(services, older_than_s=30 * DAY)
    assert told == done
    assert (sorted(done.sessions), sorted(done.unfinished)) == (
        ["ses_1", "ses_4"],
        ["ses_2", "ses_3"],
    )
    assert await sessions_of(services) == ["ses_2", "ses_3", "ses_5"]


async def test_the_newest_stay_whatever_their_age(services: Services, clock: FakeClock) -> None:
    for number in range(1, 5):
        await make(services, number)
        clock.advance(DAY)
    kept = await clean_up(services, older_than_s=2 * DAY, keep=2)
    assert kept.sessions == ("ses_1", "ses_2")
    assert (await clean_up(services, keep=2)).sessions == ()
    assert (await clean_up(services, keep=1)).sessions == ("ses_3",)
    assert (await clean_up(services, keep=0)).sessions == ("ses_4",)


async def test_a_parent_stays_while_a_fork_of_it_stays(
    services: Services, clock: FakeClock
) -> None:
    await make(services, 1)
    await make(services, 2, parent=1)
    await make(services, 3)
    await make(services, 4, parent=3)
    clock.advance(40 * DAY)
    await make(services, 5, parent=2)
    done = await clean_up(services, older_than_s=30 * DAY)
    assert (done.sessions, done.forked) == (("ses_4", "ses_3"), ("ses_1", "ses_2"))
    assert await sessions_of(services) == ["ses_1", "ses_2", "ses_5"]


async def test_an_old_session_that_is_busy_stays_with_its_parents(
    services: Services, clock: FakeClock
) -> None:
    await make(services, 1)
    await make(services, 2, parent=1)
    clock.advance(40 * DAY)
    await services.journal.acquire("ses_2", "run_2", "w", 60)
    done = await clean_up(services, older_than_s=30 * DAY)
    assert (done.sessions, done.unfinished, done.forked) == ((), ("ses_2",), ("ses_1",))


# --- child runs ------------------------------------------------------------------------------


async def make_children(services: Services, status: str | None = "completed") -> None:
    for each in CHILDREN:
        await make(services, each.removeprefix("run_"), status)


async def test_a_session_goes_with_those_of_its_child_runs(services: Services) -> None:
    await make(services, 1)
    await make_children(services)
    await make(services, 2)
    removed = await remove_sessions(services, ["ses_1"])
    assert (sorted(removed[:2]), removed[2:]) == (CHILD_SESSIONS, ("ses_1",))
    assert await sessions_of(services) == ["ses_2"]


async def test_a_session_stays_while_a_child_run_is_active(services: Services) -> None:
    await make(services, 1)
    await make_children(services)
    await services.journal.acquire(CHILD_SESSIONS[1], CHILDREN[1], "w", 60)
    with pytest.raises(LeaseHeldError):
        await remove_sessions(services, ["ses_1"])
    assert await sessions_of(services) == sorted(["ses_1", *CHILD_SESSIONS])


@pytest.mark.parametrize("status", ["needs_decision", None])
async def test_old_child_runs_stay_while_their_run_may_go_on(
    services: Services, clock: FakeClock, status: str | None
) -> None:
    """Else it would pay for their results a second time."""
    await make(services, 1, status=status)
    await make_children(services)
    clock.advance(40 * DAY)
    done = await clean_up(services, older_than_s=30 * DAY)
    assert (done.sessions, done.unfinished) == ((), ("ses_1",))
    await remove_sessions(services, ["ses_1"])
    assert await sessions_of(services) == []


async def test_a_run_stays_while_a_child_run_of_it_may_go_on(
    services: Services, clock: FakeClock
) -> None:
    await make(services, 1, status="failed")
    await make_children(services, status=None)
    clock.advance(40 * DAY)
    assert (await clean_up(services, older_than_s=30 * DAY)).unfinished == ("ses_1",)


async def test_child_runs_do_not_count_as_sessions_that_are_kept(
    services: Services, clock: FakeClock
) -> None:
    await make(services, 1)
    await make_children(services)
    clock.advance(DAY)
    await make(services, 2)
    assert (await clean_up(services, keep=2)).sessions == ()
    done = await clean_up(services, keep=1)
    assert (sorted(done.sessions[:2]), done.sessions[2:]) == (CHILD_SESSIONS, ("ses_1",))


async def test_child_runs_whose_run_is_not_stored_are_like_others(
    services: Services, clock: FakeClock
) -> None:
    await make_children(services)
    clock.advance(40 * DAY)
    assert sorted((await clean_up(services, older_than_s=30 * DAY)).sessions) == CHILD_SESSIONS
