"""What a journal holds of one user: found and removed, over all journals."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from builders import body_cipher, deterministic_services, draft_of
from minions.adapters.stores.memory_stores import MemoryState, MemoryStepCache
from minions.adapters.stores.postgres_journal import PostgresJournal
from minions.adapters.stores.sqlite_journal import SqliteJournal
from minions.contracts.budgets import Budgets
from minions.contracts.journal.child_run_links import ChildLink, child_runs_start
from minions.contracts.journal.facts import ExamplesPinned
from minions.contracts.journal.journal import EntryDraft, Journal
from minions.contracts.journal.run_rows import Spender, Spent, day_of
from minions.contracts.steps import CachedStep
from minions.data.errors import FencedError, LeaseHeldError, NotFoundError
from minions.data.json_values import JsonValue
from minions.engine.services.budget_rules import forget_budgets, rules_of
from minions.engine.services.memory_journal import MemoryJournal
from minions.engine.sessions.user_data import find_user_data, remove_user_data
from minions.testing.virtual_time import FakeClock

CANARY = "Wilhelmine-Krautwurst"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=["memory", "sqlite", "postgres", "sealed sqlite", "sealed postgres"])
async def journal(
    request: pytest.FixtureRequest, clock: FakeClock, tmp_path: Path
) -> AsyncIterator[Journal]:
    made: Journal = MemoryJournal(clock)
    cipher = body_cipher() if request.param.startswith("sealed") else None
    if request.param.endswith("sqlite"):
        made = SqliteJournal(tmp_path / "journal.db", clock, cipher=cipher)
    elif request.param.endswith("postgres"):
        url = request.getfixturevalue("postgres_url")
        made = PostgresJournal(url, clock, lease_clock=clock, cipher=cipher)
    yield made
    await made.aclose()


def started(user: str | None, text: str = "", **more: JsonValue) -> EntryDraft:
    body: dict[str, JsonValue] = {"recipe": "talk", "model": "any", "steps": {}, **more}
    body |= {"inputs": {"question": text}}
    if user is not None:
        body["user"] = user
    return draft_of("run", "started", body, key="run")


def ended(**more: JsonValue) -> EntryDraft:
    usage: JsonValue = {"input_tokens": 8, "output_tokens": 2, "cost_usd": 0.5}
    return draft_of("run", "finished", {"status": "completed", "usage": usage, **more}, key="run")


async def store(journal: Journal, session_id: str, run_id: str, *drafts: EntryDraft) -> None:
    lease = await journal.acquire(session_id, run_id, "w", 60)
    for draft in drafts:
        await journal.append(lease, draft)
    await journal.release(lease)


def example(run_id: str, text: str) -> JsonValue:
    return {"question": text, "answer": {"a": text}, "run": run_id, "address": "one"}


def pinned(*examples: JsonValue) -> EntryDraft:
    body: dict[str, JsonValue] = {"recipe": "talk", "step": "one", "fingerprint": "f"}
    return draft_of("examples", "pinned", {**body, "examples": [*examples]}, key="examples")


async def test_all_of_a_user_goes_and_all_of_others_stays(
    journal: Journal, clock: FakeClock
) -> None:
    """A-172: child runs, forks, blobs that only they name, examples, cached outputs."""
    digests = f"{child_runs_start('run_1').removeprefix('run_')}{'0' * 20}"
    link = ChildLink(run_id="run_1", session_id="s1", step_id="each", since=1)
    own, shared = await journal.put_blob(CANARY.encode()), await journal.put_blob(b"shared")
    recipe = await journal.put_blob(b"a recipe")
    clock.advance(7200)
    note: JsonValue = {"token": "t"}
    more: dict[str, JsonValue] = {"document": recipe, "note": note}
    await store(journal, "s1", "run_1", started("ann", CANARY, **more), ended(output=[own, shared]))
    child = started("ann", CANARY, note=link.to_note())
    await store(journal, f"ses_{digests}", f"run_{digests}", child, ended())
    forked: dict[str, JsonValue] = {"parent": "s1", "sequence": 1, "position": 1}
    await store(journal, "fork", "edit", draft_of("session", "forked", forked, key="session"))
    await store(journal, "s2", "run_2", started("bob", "Bob"), ended(output=shared))
    await store(
        journal,
        "s3",
        "run_3",
        started("bob", "shown"),
        pinned(example("run_1", CANARY), example("run_2", "Bob")),
        ended(),
    )
    mark: dict[str, JsonValue] = {"verdict": "good", "by": "ann"}
    await store(journal, "s2", "run_2", draft_of("mark", "recorded", mark, key="mark"))
    found = await find_user_data(journal, "ann")
    assert set(found.sessions) == {"s1", f"ses_{digests}", "fork"}
    assert set(found.runs) == {"run_1", f"run_{digests}"}
    assert (found.examples, found.foreign, found.judged) == (("s3",), (), ("s2",))
    cache = MemoryStepCache()
    for run_id in ("run_1", "run_2"):
        await cache.put(run_id, CachedStep(output=1, run_id=run_id, created_at=clock.now()))
    services = deterministic_services(journal, clock)
    day = day_of(clock.now())
    before = await journal.spent(Spender(day=day))
    done = await remove_user_data(services, found, cache.forget_runs)
    assert set(done.sessions) == set(found.sessions)
    assert (done.blobs, done.cached, done.examples, done.left) == (2, 1, ("s3",), ())
    assert (await find_user_data(journal, "ann")).is_empty
    assert await journal.chained_sessions() == ["s2", "s3"]
    entries = await journal.entries()
    assert CANARY not in str([dict(each.body) for each in entries])
    (shown,) = [each.fact for each in entries if isinstance(each.fact, ExamplesPinned)]
    assert [each.question for each in shown.examples] == ["(removed)", "Bob"]
    assert [(await journal.verify(each)).fault for each in ("s2", "s3")] == [None, None]
    assert await journal.get_blob(shared) == b"shared"
    for digest in (own, recipe):
        with pytest.raises(NotFoundError):
            await journal.get_blob(digest)
    assert await journal.spent(Spender(day=day)) == before
    assert await journal.spent(Spender(day=day, user="ann")) == Spent()
    assert await journal.spent(Spender(day=day, token="t")) == Spent(10, 0.5)


async def test_a_recipe_that_a_run_may_be_about_to_name_stays_for_an_hour(
    journal: Journal, clock: FakeClock
) -> None:
    own, recipe = await journal.put_blob(b"words"), await journal.put_blob(b"a recipe")
    await store(journal, "s", "run_1", started("ann", document=recipe), ended(output=own))
    found = await find_user_data(journal, "ann")
    clock.advance(120)
    done = await remove_user_data(deterministic_services(journal, clock), found)
    assert (done.blobs, done.young_blobs) == (1, 1)
    assert await journal.get_blob(recipe) == b"a recipe"
    clock.advance(3601)
    assert (await journal.collect()).blobs == 1


async def test_a_run_that_is_active_keeps_back_the_whole_removal(
    journal: Journal, clock: FakeClock
) -> None:
    await store(journal, "s1", "run_1", started("ann"), ended())
    await store(journal, "s2", "run_2", started("ann"))
    lease = await journal.acquire("s2", "run_2", "w", 60)
    found = await find_user_data(journal, "ann")
    assert found.queued == ("run_2",)
    services = deterministic_services(journal, clock)
    with pytest.raises(LeaseHeldError):
        await remove_user_data(services, found)
    assert await journal.count_sessions() == 2
    await journal.release(lease)
    assert len((await remove_user_data(services, found)).sessions) == 2


async def test_a_session_of_others_in_which_a_run_was_for_the_user_is_told(
    journal: Journal, clock: FakeClock
) -> None:
    await store(journal, "s1", "run_1", started("ann"), ended())
    await store(journal, "s2", "run_2", started(None), ended())
    await store(journal, "s2", "run_3", started("ann"), ended())
    found = await find_user_data(journal, "ann")
    assert (found.sessions, found.foreign) == (("s1",), ("s2",))


async def test_examples_of_a_session_that_is_active_or_was_changed_are_told(
    clock: FakeClock,
) -> None:
    journal = MemoryJournal(clock)
    await store(journal, "s1", "run_1", started("ann"), ended())
    await store(journal, "s2", "run_2", started("bob"), pinned(example("run_1", CANARY)))
    await journal.acquire("s2", "run_2", "w", 60)
    found = await find_user_data(journal, "ann")
    done = await remove_user_data(deterministic_services(journal, clock), found)
    assert (done.examples, done.left) == ((), ("s2",))


async def test_records_of_budgets_of_a_user_are_removed() -> None:
    """A-172: their keys hold the label."""
    state = MemoryState()
    rules = rules_of(Budgets(user_usd_per_day=1.0, usd_per_day=2.0))
    for rule in rules:
        for user in ("ann b", "bob"):
            await state.put(rule.key(user, 738_000), "{}")
    assert await forget_budgets(state, rules, "ann b") == 1
    assert len(await state.keys()) == 3


async def test_the_ids_of_removed_sessions_go_and_who_wrote_to_them_writes_no_more(
    journal: Journal, clock: FakeClock
) -> None:
    """A-172: the id of a session may be a name that a person gave."""
    old = await journal.acquire(CANARY, "run_1", "w", 60)
    await journal.append(old, started("ann"))
    clock.advance(61)
    lease = await journal.acquire(CANARY, "run_2", "w", 60)
    await journal.forget_sessions([CANARY])  # it is held, and has entries
    await journal.append(lease, ended())
    await journal.release(lease)
    await remove_user_data(
        deterministic_services(journal, clock), await find_user_data(journal, "ann")
    )
    assert await journal.chained_sessions() == []
    for stale in (old, lease):
        with pytest.raises(FencedError):
            await journal.append(stale, started("ann"))
    new = await journal.acquire(CANARY, "run_9", "w", 60)
    for stale in (old, lease):
        with pytest.raises(FencedError):
            await journal.append(stale, started("ann"))
    assert (await journal.append(new, started("bob"))).position == 1
