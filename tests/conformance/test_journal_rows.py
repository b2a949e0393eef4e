"""Rows of runs and sessions are those that all entries come to, in every journal: A-127."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal, TypeVar

import psycopg
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from msgspec.structs import replace
from psycopg.rows import TupleRow

from builders import body_cipher, draft_of
from minions.adapters.stores import postgres_rows
from minions.adapters.stores.postgres_database import bundled_migrations as postgres_migrations
from minions.adapters.stores.postgres_journal import PostgresJournal
from minions.adapters.stores.row_queries import _FOLDED_TO_ASCII
from minions.adapters.stores.sqlite_database import bundled_migrations as sqlite_migrations
from minions.adapters.stores.sqlite_journal import SqliteJournal
from minions.contracts.journal.facts import UnreadableFact
from minions.contracts.journal.journal import EntryDraft, Journal, JournalEntry, Lease
from minions.contracts.journal.run_row_folds import folded
from minions.contracts.journal.run_rows import (
    LISTED,
    RunFilter,
    RunRow,
    SessionFilter,
    SessionRow,
    Spender,
    Spent,
    UsageBound,
    UseGroup,
    day_of,
    use_of,
)
from minions.contracts.runtime import Clock
from minions.data.errors import JournalError, LeaseHeldError
from minions.data.json_values import JsonValue
from minions.engine.services.memory_journal import MemoryJournal
from minions.testing.virtual_time import FakeClock
from postgres import PostgresServer

T = TypeVar("T")
Body = dict[str, JsonValue]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=["memory", "sqlite", "postgres", "sealed sqlite", "sealed postgres"])
async def journal(
    request: pytest.FixtureRequest, clock: FakeClock, tmp_path: Path
) -> AsyncIterator[Journal]:
    cipher = body_cipher() if request.param.startswith("sealed") else None
    made: Journal = MemoryJournal(clock)
    if (kind := request.param.removeprefix("sealed ")) == "sqlite":
        made = SqliteJournal(tmp_path / "journal.db", clock, cipher=cipher)
    elif kind == "postgres":
        made = PostgresJournal(
            request.getfixturevalue("postgres_url"), clock, lease_clock=clock, cipher=cipher
        )
    yield made
    await made.aclose()


def begun(recipe: str = "talk", **more: JsonValue) -> EntryDraft:
    body: Body = {"recipe": recipe, "model": "any", "steps": {}, **more}
    return draft_of("run", "started", body, key="run")


def ended(status: str = "completed", **more: JsonValue) -> EntryDraft:
    body: Body = {"status": status, "usage": {"input_tokens": 5, "cost_usd": None}, **more}
    return draft_of("run", "finished", body, key="run")


async def store(journal: Journal, session_id: str, run_id: str, *drafts: EntryDraft) -> None:
    lease = await journal.acquire(session_id, run_id, "w", 60)
    for draft in drafts:
        await journal.append(lease, draft)
    await journal.release(lease)


async def run_ids(journal: Journal, wanted: RunFilter | None = None, **part: int) -> list[str]:
    found = await journal.runs(wanted, **part)  # type: ignore[arg-type]  # limit, offset
    assert part or len(found) == await journal.count_runs(wanted)
    assert part or min(len(found), 2) == await journal.count_runs(wanted, at_most=2)
    return [row.run_id for row in found]


async def session_ids(journal: Journal, wanted: SessionFilter | None = None) -> list[str]:
    found = await journal.sessions(wanted)
    assert len(found) == await journal.count_sessions(wanted)
    assert min(len(found), 2) == await journal.count_sessions(wanted, at_most=2)
    return [row.session_id for row in found]


# --- one run, one session --------------------------------------------------------------------


async def test_a_row_says_what_lists_show(journal: Journal, clock: FakeClock) -> None:
    """A-127."""
    start = clock.now()
    await store(journal, "s", "r", begun(note={"server": True}))
    (open_run,) = await journal.runs()
    assert open_run == RunRow(
        run_id="r",
        session_id="s",
        position=1,
        recipe="talk",
        model="any",
        started_at=start,
        mark="server",
        day=day_of(start),
    )
    clock.advance(5)
    error: Body = {"code": "tool_failed", "message": "m" * 1000}
    await store(journal, "s", "r", ended("failed", error=error))
    (over,) = await journal.runs()
    assert over == replace(
        open_run,
        status="failed",
        ended_at=start + timedelta(seconds=5),
        usage={"input_tokens": 5, "cost_usd": None},
        error_code="tool_failed",
        error_message="m" * 200,
        spent=Spent(5, 0.0),
        day_spent=Spent(5, 0.0),
    )
    (session,) = await journal.sessions()
    assert session == SessionRow(
        session_id="s",
        created_at=start,
        updated_at=start + timedelta(seconds=5),
        last_at=start + timedelta(seconds=5),
        last_position=2,
        ran_recipe="talk",
        last_run_id="r",
        status="failed",
    )


async def test_a_resumed_run_is_open_again_and_keeps_when_it_began(
    journal: Journal, clock: FakeClock
) -> None:
    await store(journal, "s", "r", begun(), ended())
    (before,) = await journal.runs()
    clock.advance(1)
    lease = await journal.acquire("s", "r", "w", 60, next_generation=True)
    resumed = draft_of(
        "run", "resumed", {"recipe": "talk", "model": "other", "steps": {}}, key="run"
    )
    await journal.append(lease, resumed)
    (after,) = await journal.runs()
    assert after == replace(before, status="interrupted", model="other", ended_at=None)


async def test_other_entries_change_no_row(journal: Journal) -> None:
    await store(journal, "s", "r", begun())
    before = (await journal.runs(), await journal.sessions())
    await store(journal, "s", "r", draft_of("step", "finished", key="a"))
    assert (await journal.runs(), await journal.sessions()) == before


async def test_a_refused_entry_changes_no_row(journal: Journal) -> None:
    await store(journal, "s", "r", begun(), ended())
    before = (await journal.runs(), await journal.sessions())
    with pytest.raises(JournalError, match="already has the entry"):
        await store(journal, "s", "r", ended("failed"))
    assert (await journal.runs(), await journal.sessions()) == before


ODD_TEXTS = ["naïve 🦜", "a\0b", "\ud83d alone", "x" * 5_000, "", "'; --", "#" * 65]


@pytest.mark.parametrize("text", ODD_TEXTS)
async def test_any_text_is_kept_and_found(journal: Journal, text: str) -> None:
    opened: Body = {"name": text, "recipe": text, "inputs": {"a": text}}
    await store(journal, "s", "r", draft_of("session", "opened", opened, key="session"))
    await store(journal, "s", "r2", begun(text, model=text))
    (run,) = await journal.runs(RunFilter(recipe=text)) if text else await journal.runs()
    assert (run.recipe, run.model) == (text or "?", text)
    (session,) = await journal.sessions(SessionFilter(name=text))
    assert (session.name, session.has_inputs) == (text, True)


# --- lists -----------------------------------------------------------------------------------


LONG = "/srv/" + "long" * 100


async def some_runs(journal: Journal, clock: FakeClock) -> None:
    """Seven runs in four sessions, a second apart but for the last two."""
    for number, (session, recipe, status) in enumerate(
        [
            ("s1", "talk", "completed"),
            ("s2", "talk", "failed"),
            ("s1", "Prüfung", "completed"),
            ("t3", "talk", "needs_decision"),
            ("s4", "other", ""),
            ("s2", "other", "completed"),
            ("s4", "talk", ""),
        ]
    ):
        clock.advance(1 if number < 6 else 0)
        user: dict[str, JsonValue] = {"user": f"Jörg {number % 2}"} if number > 2 else {}
        place: dict[str, JsonValue] = {"project": LONG if number == 2 else "/a"} if number else {}
        used: JsonValue = {"total_tokens": 10 * number, "cost_usd": None}
        drafts = [begun(recipe, **user, **place), *([ended(status, usage=used)] if status else [])]
        await store(journal, session, f"run_{number}", *drafts)


async def test_runs_are_listed_the_newest_first(journal: Journal, clock: FakeClock) -> None:
    """A-127: those of one moment by their ids."""
    await some_runs(journal, clock)
    assert await run_ids(journal) == [f"run_{n}" for n in (5, 6, 4, 3, 2, 1, 0)]
    assert await run_ids(journal, limit=2) == ["run_5", "run_6"]
    assert await run_ids(journal, limit=2, offset=3) == ["run_3", "run_2"]
    assert await run_ids(journal, limit=0) == []
    assert await run_ids(journal, limit=2**70, offset=2**70) == []


async def test_pages_follow_each_other_whatever_comes_meanwhile(
    journal: Journal, clock: FakeClock
) -> None:
    """A-127."""
    await some_runs(journal, clock)
    found: list[str] = []
    after: RunRow | None = None
    while page := await journal.runs(limit=2, after=after):
        found += [row.run_id for row in page]
        after = page[-1]
        clock.advance(1)
        await store(journal, f"new{len(found)}", f"new{len(found)}", begun())
    assert found == [f"run_{n}" for n in (5, 6, 4, 3, 2, 1, 0)]


async def test_a_start_is_ambiguous_if_the_ids_of_several_runs_have_it(
    journal: Journal, clock: FakeClock
) -> None:
    await some_runs(journal, clock)
    await store(journal, "s", "run_66", begun())
    starts = ("", "run_", "run_6", "run_66", "run_5", "run_7", "r%", "run_6\U0010ffff")
    ambiguous = {start for start in starts if await journal.is_ambiguous(start)}
    assert ambiguous == {"", "run_", "run_6"}


def _bound(
    sign: Literal[">", ">=", "<", "<="],
    value: float,
    name: Literal["total_tokens", "cost_usd"] = "total_tokens",
) -> UsageBound:
    return UsageBound(name=name, sign=sign, value=value)


FILTERS: dict[str, tuple[RunFilter, list[int]]] = {
    "an id": (RunFilter(run_ids=["run_3"]), [3]),
    "some ids": (RunFilter(run_ids=["run_0", "run_5", "no", "run_0"]), [5, 0]),
    "no id": (RunFilter(run_ids=[]), []),
    "a start": (RunFilter(id_start="run_"), [5, 6, 4, 3, 2, 1, 0]),
    "a whole start": (RunFilter(id_start="run_2"), [2]),
    "no start": (RunFilter(id_start="r%"), []),
    "a session": (RunFilter(session_id="s2"), [5, 1]),
    "a status": (RunFilter(statuses={"completed"}), [5, 2, 0]),
    "statuses": (RunFilter(statuses={"failed", "needs_decision"}), [3, 1]),
    "no status": (RunFilter(statuses=()), []),
    "open": (RunFilter(statuses={"interrupted"}), [6, 4]),
    "running": (RunFilter(statuses={"running"}, running={"run_4", "run_0"}), [4]),
    "not running": (RunFilter(statuses={"interrupted"}, running={"run_4"}), [6]),
    "running or not": (RunFilter(statuses={"interrupted", "running"}, running={"run_4"}), [6, 4]),
    "open or ended": (
        RunFilter(statuses={"interrupted", "completed"}, running={"run_4"}),
        [5, 6, 2, 0],
    ),
    "a recipe": (RunFilter(recipe="Prüfung"), [2]),
    "a recipe and a status": (RunFilter(recipe="talk", statuses={"completed"}), [0]),
    "a user": (RunFilter(user="Jörg 1"), [5, 3]),
    "a user and a session": (RunFilter(user="Jörg 1", session_id="t3"), [3]),
    "nobody": (RunFilter(user="Jörg"), []),
    "a project": (RunFilter(project="/a"), [5, 6, 4, 3, 1]),
    "a project with a long path": (RunFilter(project=LONG), [2]),
    "a project and a recipe": (RunFilter(project="/a", recipe="talk"), [6, 3, 1]),
    "no project": (RunFilter(project="/"), []),
    "words": (RunFilter(text="PRÜFUNG any"), [2]),
    "words of a state": (RunFilter(text="running", running={"run_6"}), [6]),
    "a phrase": (RunFilter(phrases=["PRÜF"]), [2]),
    "a phrase and words": (RunFilter(phrases=["talk"], text="failed"), [1]),
    "a bound": (RunFilter(bounds=[_bound(">", 12)]), [5, 3, 2]),
    "two bounds": (RunFilter(bounds=[_bound(">=", 10), _bound("<", 20)]), [1]),
    "a bound and a recipe": (RunFilter(recipe="talk", bounds=[_bound("<=", 1_000)]), [3, 1, 0]),
    "a cost that is not known": (RunFilter(bounds=[_bound(">=", 0, "cost_usd")]), []),
    "blanks": (RunFilter(text="  "), [5, 6, 4, 3, 2, 1, 0]),
    "no words": (RunFilter(text="nothing"), []),
}


async def test_a_filter_gives_the_runs_that_fit(journal: Journal, clock: FakeClock) -> None:
    """A-127."""
    await some_runs(journal, clock)
    rows = await journal.runs()
    expected = {name: [f"run_{n}" for n in numbers] for name, (_, numbers) in FILTERS.items()}
    wanted = {name: each for name, (each, _) in FILTERS.items()}
    assert {name: await run_ids(journal, each) for name, each in wanted.items()} == expected
    second = {name: found[1:2] for name, found in expected.items()}
    pages = {name: await run_ids(journal, each, limit=1, offset=1) for name, each in wanted.items()}
    assert pages == second
    fitting = {
        name: [row.run_id for row in rows if each.fits(row)] for name, each in wanted.items()
    }
    assert fitting == expected


ODD_WORDS = {
    "a sharp s": ("the Straße", "strasse"),
    "capitals": ("ÄRGER", "ärger"),
    "a half character": ("\ud83d alone", "\ud83d"),
    "a quote": ('she said "no"', 'said "no"'),
    "a backslash": ("C:\\temp", "c:\\TEMP"),
    "signs of patterns": ("100%_sure", "100%_"),
    "a line break": ("talk", "talk\nany"),
    "a NUL": ("a\0b", "a\0b"),
    "a Kelvin sign": ("300 \u212a", "300 k"),
    "a long word": ("x" * 300, "X" * 300),
    "a dot beside it": ("a: one · b: two", "B: TWO"),
    "letters before and behind another one": ("in ZÜRICH 5", "zürich 5"),
    "other letters alone": ("次の 注文", "注文"),
    "a sharp s in capitals": ("STRAẞE", "strasse"),
    "a ligature": ("the \ufb01le", "THE FILE"),
    "a long s": ("Wa\u017f\u017fer", "wasser"),
    "a capital dotted i": ("\u0130stanbul", "\u0130STANBUL"),
    "an i of these": ("\u0130stanbul", "i"),
    "a letter with a line below": ("\u1e96", "\u1e96"),
    "its letter": ("\u1e96", "h"),
    "an n behind an apostrophe": ("\u0149", "n"),
    "a j with a caron": ("\u01f0", "j"),
    "a line break and another letter": ("tälk", "tälk\nany"),
}


def test_each_character_that_compares_as_ascii_is_looked_for() -> None:
    folded = {f"\\u{each:04x}" for each in range(128, 0x110000) if _folds_to_ascii(chr(each))}
    known = {f"{start}{end}" for start, ends in _FOLDED_TO_ASCII.items() for end in ends or ("",)}
    assert {each for each in folded if not each.startswith(tuple(known))} == set()
    assert {each for each in known if not any(one.startswith(each) for one in folded)} == set()


def _folds_to_ascii(character: str) -> bool:
    return any(map(str.isascii, character.casefold()))


@pytest.mark.parametrize("name", ODD_WORDS)
async def test_words_are_found_whatever_characters_they_have(journal: Journal, name: str) -> None:
    has, word = ODD_WORDS[name]
    error: Body = {"code": "tool_failed", "message": has[-200:]}
    await store(journal, "s1", "r1", begun(), ended("failed", error=error))
    await store(journal, "s2", "r2", begun(has), ended())
    await store(journal, "s3", "r3", begun("100 percent sure"), ended())
    rows = await journal.runs()
    for wanted in (RunFilter(phrases=[word]), RunFilter(phrases=[word], text="any TALK")):
        expected = [row.run_id for row in rows if wanted.fits(row)]
        assert await run_ids(journal, wanted) == expected
    assert await run_ids(journal, RunFilter(phrases=[word]))


@pytest.mark.parametrize("has", ["ß", "Diary", 'a "b"'])
async def test_sessions_are_found_by_odd_names(journal: Journal, has: str) -> None:
    opened = draft_of("session", "opened", {"name": has, "recipe": "talk"}, key="session")
    await store(journal, "s1", "r1", opened)
    await store(journal, "s2", "r2", begun("other"))
    assert await session_ids(journal, SessionFilter(text=has.upper())) == ["s1"]
    assert await session_ids(journal, SessionFilter(text="nothing")) == []


@pytest.mark.parametrize("by", ["recipe", "model", "user", "project"])
async def test_uses_are_those_of_the_rows(
    journal: Journal, clock: FakeClock, by: UseGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minions.adapters.stores.row_queries.READ", 3)
    await some_runs(journal, clock)
    rows = await journal.runs()
    assert await journal.uses(RunFilter(), by, limit=99) == [use_of(row, by) for row in rows]
    assert await journal.uses(RunFilter(), by, limit=4) == [use_of(row, by) for row in rows[:4]]
    only = await journal.uses(RunFilter(user="Jörg 1"), by, limit=99)
    assert only == [use_of(row, by) for row in rows if row.user == "Jörg 1"]


async def test_runs_since_a_time_are_found(journal: Journal, clock: FakeClock) -> None:
    start = clock.now()
    await some_runs(journal, clock)
    since = RunFilter(since=start + timedelta(seconds=5))
    assert await run_ids(journal, since) == ["run_5", "run_6", "run_4"]


async def test_sessions_are_listed_by_what_happened_last(
    journal: Journal, clock: FakeClock
) -> None:
    """A-127."""
    await some_runs(journal, clock)
    opened: Body = {"name": "Diary", "parent": "s1", "sequence": 1, "position": 1, "project": "/b"}
    fork = draft_of("session", "forked", opened, key="session")
    await store(journal, "f1", "edit", fork)
    clock.advance(1)
    await store(journal, "s2", "run_5", replace(begun(), key="again"))
    assert await session_ids(journal) == ["s2", "f1", "s4", "t3", "s1"]
    assert await session_ids(journal, SessionFilter(id_start="s")) == ["s2", "s4", "s1"]
    assert await session_ids(journal, SessionFilter(session_ids=["t3", "x"])) == ["t3"]
    assert await session_ids(journal, SessionFilter(name="Diary")) == ["f1"]
    assert await session_ids(journal, SessionFilter(parent="s1")) == ["f1"]
    assert await session_ids(journal, SessionFilter(project="/b")) == ["f1"]
    assert await session_ids(journal, SessionFilter(project="/a")) == ["s2", "s4", "t3"]
    assert await session_ids(journal, SessionFilter(text="diary f1")) == ["f1"]
    first = await journal.sessions(limit=2)
    second = await journal.sessions(limit=2, after=first[-1])
    assert [row.session_id for row in second] == ["s4", "t3"]
    assert [row.session_id for row in await journal.sessions(limit=9, offset=4)] == ["s1"]


# --- the rows are those of the entries -------------------------------------------------------

PLACES = [("ses_a", "run_1"), ("ses_a", "run_2"), ("ses_b", "run_3"), ("ses_c", "run_4")]
JUNK: st.SearchStrategy[JsonValue] = st.sampled_from(
    [None, 7, "talk", [], {}, {"code": "c", "message": "m"}, {"n": 1.5}]
)
NAMES = (
    "user",
    "project",
    "spent",
    "recipe",
    "model",
    "status",
    "usage",
    "error",
    "note",
    "name",
    "parent",
    "inputs",
)
STATES = [
    ("run", "started"),
    ("run", "resumed"),
    ("run", "finished"),
    ("run", "rejected"),
    ("run", "limit_reached"),
    ("session", "opened"),
    ("session", "forked"),
    ("session", "cut"),
    ("step", "finished"),
]
BODIES = st.sampled_from(
    [
        {"recipe": "talk", "model": "any", "steps": {}},
        {"recipe": "other", "model": None, "steps": {}, "note": {"server": True}},
        {"recipe": "talk", "faults": [], "note": {"imported": 1}},
        {"status": "completed", "usage": {"input_tokens": 1}, "output": 1},
        {"status": "failed", "error": {"code": "c", "message": "m" * 300}},
        {"status": "needs_decision"},
        {"recipe": "talk", "steps": {}, "user": "ann", "project": "/a/" + "b" * 300},
        {"status": "completed", "usage": {"total_tokens": 7, "cost_usd": 0.5}},
        {"status": "failed", "usage": {"cost_usd": 10**400}, "spent": {"tokens": 9, "cost_usd": 1}},
        {"parent": "ses_a", "sequence": 1, "position": 1, "name": "n", "inputs": {"a": 1}},
    ]
)
ANY_BODIES = BODIES | st.dictionaries(st.sampled_from(NAMES), JUNK, max_size=4)


class JumpingClock(Clock):
    """Shows what it is set to."""

    def __init__(self) -> None:
        self.time = datetime(2026, 1, 1, tzinfo=UTC)

    def now(self) -> datetime:
        return self.time

    def monotonic(self) -> float:
        return 0.0


class RowsOfHistories(RuleBasedStateMachine):
    """Random histories of a journal: begun, resumed, retried, forked, imported, removed."""

    def make(self, folder: Path) -> Journal:
        raise NotImplementedError

    @initialize()
    def begin(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.folder = tempfile.TemporaryDirectory()
        self.clock = JumpingClock()
        self.journal = self.make(Path(self.folder.name))
        self.leases: dict[str, Lease] = {}
        self.copies = 0

    def teardown(self) -> None:
        if hasattr(self, "journal"):
            self.wait(self.journal.aclose())
            self.loop.close()
            self.folder.cleanup()

    def wait(self, work: Awaitable[T]) -> T:
        async def awaited() -> T:
            return await work

        return self.loop.run_until_complete(awaited())

    @rule(place=st.sampled_from(PLACES), is_next=st.booleans())
    def take_up(self, place: tuple[str, str], is_next: bool) -> None:
        session, run = place
        if session in self.leases:
            self.wait(self.journal.release(self.leases.pop(session)))
        self.leases[session] = self.wait(
            self.journal.acquire(session, run, "w", 1e6, next_generation=is_next)
        )

    @rule(
        session=st.sampled_from(["ses_a", "ses_b", "ses_c"]),
        what=st.sampled_from(STATES),
        body=ANY_BODIES,
        key=st.sampled_from(["run", "more"]),
    )
    def append(self, session: str, what: tuple[str, str], body: Body, key: str) -> None:
        if session not in self.leases:
            return
        draft = draft_of(what[0], what[1], body, key=key)
        with contextlib.suppress(JournalError):  # the key is taken
            self.wait(self.journal.append(self.leases[session], draft))

    @rule(seconds=st.sampled_from([0.000_001, 1.0, 60.0, -30.0, 86_400.0]))
    def let_time_pass(self, seconds: float) -> None:
        self.clock.time += timedelta(seconds=seconds)

    @rule(session=st.sampled_from(["ses_a", "ses_b", "ses_c"]))
    def remove(self, session: str) -> None:
        try:
            self.wait(self.journal.remove_session(session))
        except LeaseHeldError:
            self.wait(self.journal.release(self.leases.pop(session)))

    @rule(session=st.sampled_from(["ses_a", "ses_b", "ses_c"]))
    def copy(self, session: str) -> None:
        """Under other ids, as from another journal."""
        known = self.wait(self.journal.entries(session, with_damaged=True))
        if not known or any(isinstance(entry.fact, UnreadableFact) for entry in known):
            return  # an import takes none that cannot be read
        self.copies += 1
        name = f"copy_{self.copies}"
        entries = [
            replace(entry, session_id=name, run_id=f"{entry.run_id}_{name}") for entry in known
        ]
        self.wait(self.journal.adopt(name, entries))

    @rule(change=st.integers(0, 5))
    def damage(self, change: int) -> None:
        """Nothing where nobody else can write."""

    @invariant()
    def rows_are_those_of_the_entries(self) -> None:
        """A-127."""
        if not hasattr(self, "journal"):
            return
        rows = folded(self.wait(self.journal.entries(kinds=LISTED, with_damaged=True)))
        runs = sorted(rows.runs.values(), key=lambda row: row.run_id)
        runs.sort(key=lambda row: row.started_at, reverse=True)
        assert list(self.wait(self.journal.runs())) == runs
        sessions = sorted(rows.sessions.values(), key=lambda row: row.session_id)
        sessions.sort(key=lambda row: row.updated_at, reverse=True)
        assert list(self.wait(self.journal.sessions())) == sessions
        self.wait(_check_sums(self.journal, rows.runs))


DAMAGES = [
    "UPDATE {0}entries SET body = '{{' WHERE position = 1",
    "UPDATE {0}entries SET body = '[]' WHERE kind = 'run' AND state = 'finished'",
    "UPDATE {0}entries SET state = 'resumed' WHERE kind = 'run' AND key = 'more'",
    "DELETE FROM {0}entries WHERE kind = 'run' AND state = 'finished'",
    "UPDATE {0}runs SET rest = '{{}}'",
    "UPDATE {0}sessions SET rest = 'oops'",
]


class RowsInMemory(RowsOfHistories):
    def make(self, folder: Path) -> Journal:
        return MemoryJournal(self.clock)


class RowsInSqlite(RowsOfHistories):
    def make(self, folder: Path) -> Journal:
        self.path = folder / "journal.db"
        return SqliteJournal(self.path, self.clock)

    @rule(change=st.integers(0, len(DAMAGES) - 1))
    def damage(self, change: int) -> None:
        """As somebody does with a tool."""
        self.wait(self.journal.entries(limit=0))  # there is a file
        with closing(sqlite3.connect(self.path)) as db:
            # A row beside one that is the same otherwise cannot become it: nothing is damaged.
            with suppress(sqlite3.IntegrityError):
                db.execute(DAMAGES[change].format(""))
            db.commit()


def _case(machine: type[RowsOfHistories], examples: int) -> Callable[[], object]:
    machine.TestCase.settings = settings(
        max_examples=examples, stateful_step_count=20, deadline=None
    )
    return machine.TestCase


TestRowsInMemory = _case(RowsInMemory, 50)
TestRowsInSqlite = _case(RowsInSqlite, 40)


def test_rows_in_postgres(postgres: PostgresServer) -> None:
    """A-127."""

    class RowsInPostgres(RowsOfHistories):
        def make(self, folder: Path) -> Journal:
            self.lending = postgres.journal()
            self.url = self.lending.__enter__()
            return PostgresJournal(self.url, self.clock, lease_clock=self.clock)

        def teardown(self) -> None:
            super().teardown()
            if hasattr(self, "lending"):
                self.lending.__exit__(None, None, None)

        @rule(change=st.integers(0, len(DAMAGES) - 1))
        def damage(self, change: int) -> None:
            self.wait(self.journal.entries(limit=0))
            with suppress(psycopg.errors.UniqueViolation), psycopg.connect(self.url) as db:
                db.execute(DAMAGES[change].format("minions.").encode())

    run_state_machine_as_test(
        RowsInPostgres, settings=settings(max_examples=10, stateful_step_count=20, deadline=None)
    )


# --- databases that were there before --------------------------------------------------------


def _older(migrations: Mapping[str, str]) -> dict[str, str]:
    """Those before the one that made the table of runs."""
    first = next(name for name in migrations if name[5:] == "runs")
    return {name: sql for name, sql in migrations.items() if name < first}


async def _entries(journal: Journal) -> list[JournalEntry]:
    return list(await journal.entries(kinds=LISTED, with_damaged=True))


async def _check(journal: Journal) -> None:
    rows = folded(await _entries(journal))
    assert {row.run_id: row for row in await journal.runs()} == rows.runs
    assert {row.session_id: row for row in await journal.sessions()} == rows.sessions
    await _check_sums(journal, rows.runs)


async def _check_sums(journal: Journal, rows: Mapping[str, RunRow]) -> None:
    for wanted in (RunFilter(), RunFilter(id_start="run_"), RunFilter(recipe="a")):
        expected: dict[str, list[RunRow]] = {}
        for row in filter(wanted.fits, rows.values()):
            expected.setdefault(row.status, []).append(row)
        totals = await journal.totals(wanted)
        assert {state: each.runs for state, each in totals.items()} == {
            state: len(each) for state, each in expected.items()
        }
        for state, total in totals.items():
            assert total.spent.tokens == sum(row.spent.tokens for row in expected[state])
            dollars = sum(row.spent.cost_usd for row in expected[state])
            assert total.spent.cost_usd == pytest.approx(dollars)
    newest = sorted(rows.values(), key=lambda row: row.run_id)
    newest.sort(key=lambda row: row.started_at, reverse=True)
    uses = await journal.uses(RunFilter(), "recipe", limit=1_000)
    assert uses == [use_of(row, "recipe") for row in newest]
    for spender in {each for row in rows.values() for each in _spenders(row)}:
        for left_out in (set[str](), {*rows} & {"run_1", "run_a", "r", "r1"}):
            parts = (spender.of(row) for row in rows.values() if row.run_id not in left_out)
            tokens, dollars = map(sum, zip(Spent(), *parts, strict=True))
            found = await journal.spent(spender, without=left_out)
            assert found.tokens == tokens
            assert found.cost_usd == pytest.approx(dollars)


def _spenders(row: RunRow) -> list[Spender]:
    day = Spender(day=row.day)
    return [Spender(session_id=row.session_id), day, replace(day, user=row.user or "nobody")]


async def test_an_older_file_has_its_rows_at_the_first_look(
    tmp_path: Path, clock: FakeClock
) -> None:
    """A-127: a damaged run is unreadable, and is no other's concern."""
    path = tmp_path / "journal.db"
    older = SqliteJournal(path, clock, migrations=_older(sqlite_migrations()))
    await older.entries()
    await older.aclose()
    with closing(sqlite3.connect(path)) as db:
        for number in range(250):
            for position, draft in enumerate((begun(), ended()), 1):
                db.execute(
                    "INSERT INTO entries (session_id, position, run_id, generation, key, kind, "
                    "state, body, epoch, at) VALUES (?, ?, ?, 1, 'run', 'run', ?, ?, 1, ?)",
                    (f"s{number}", position, f"r{number}", draft.state, _json(draft), number),
                )
        db.execute("UPDATE entries SET body = '{' WHERE session_id = 's7' AND state = 'finished'")
        db.commit()
    journal = SqliteJournal(path, clock)
    assert len(await journal.runs()) == 250
    (damaged,) = await journal.runs(RunFilter(statuses={"unreadable"}))
    assert (damaged.run_id, "its body is not JSON" in str(damaged.problem)) == ("r7", True)
    await _check(journal)
    await journal.aclose()
    with closing(sqlite3.connect(path.with_name("journal.db.bak-0006"))) as db:
        assert db.execute("SELECT count(*) FROM entries").fetchone() == (500,)


async def test_what_an_older_program_adds_is_seen(tmp_path: Path, clock: FakeClock) -> None:
    """A-127: it had the file open when it was migrated, and keeps no rows."""
    journal = SqliteJournal(tmp_path / "journal.db", clock)
    await store(journal, "s", "r", begun())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "minions.adapters.stores.sqlite_rows.Known.keep", lambda known, db, entry, cipher: None
        )
        await store(journal, "s", "r", ended())
        await store(journal, "s2", "r2", begun(), ended("failed"))
    await store(journal, "s2", "r3", begun(), ended())
    assert {row.run_id: row.status for row in await journal.runs()} == {
        "r": "completed",
        "r2": "failed",
        "r3": "completed",
    }
    await _check(journal)
    await journal.aclose()


async def test_an_older_database_has_its_rows_at_the_first_look(
    empty_postgres_url: str, clock: FakeClock
) -> None:
    """A-127."""
    migrations = _older(postgres_migrations())
    older = PostgresJournal(empty_postgres_url, clock, lease_clock=clock, migrations=migrations)
    await older.entries()
    with psycopg.connect(empty_postgres_url) as db:
        db.execute(b"INSERT INTO minions.leases VALUES ('s', 'r', 'w', 1, 1, NULL, 2)")
        for position, draft in enumerate((begun(), ended()), 1):
            db.execute(
                b"INSERT INTO minions.entries "
                b"VALUES ('s', %s, 'r', 1, 'run', 'run', %s, %s, 1, %s)",
                [position, draft.state, _json(draft), clock.now()],
            )
    await older.aclose()
    journal = PostgresJournal(empty_postgres_url, clock, lease_clock=clock)
    assert await run_ids(journal, RunFilter(statuses={"completed"})) == ["r"]
    await _check(journal)
    await store(journal, "s", "r2", begun())
    with psycopg.connect(empty_postgres_url) as db:
        db.execute(b"UPDATE minions.entries SET body = '{' WHERE position = 1")
    assert await run_ids(journal, RunFilter(statuses={"unreadable"})) == ["r"]
    await _check(journal)
    await journal.aclose()


async def test_rows_made_anew_during_an_append_are_not_lost(
    postgres_url: str, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A-127: another worker brings an older database up to date just then."""
    journal = PostgresJournal(postgres_url, clock, lease_clock=clock)
    other = PostgresJournal(postgres_url, clock, lease_clock=clock)
    await store(journal, "s", "r", begun())
    assert len(await journal.runs()) == 1
    with psycopg.connect(postgres_url) as db:
        db.execute(b"DELETE FROM minions.runs")
        db.execute(b"DELETE FROM minions.sessions")
        db.execute(b"INSERT INTO minions.changed_sessions VALUES ('s')")
    rows_before = postgres_rows.rows_before

    async def interrupted(
        db: psycopg.AsyncConnection[TupleRow], leases: Sequence[Lease]
    ) -> dict[int, postgres_rows.KnownRows]:
        known = await rows_before(db, leases)
        assert len(await other.runs()) == 1
        return known

    clock.advance(1)
    monkeypatch.setattr(postgres_rows, "rows_before", interrupted)
    await store(journal, "s", "r", ended())
    assert await run_ids(journal, RunFilter(statuses={"completed"})) == ["r"]
    await _check(journal)
    await journal.aclose()
    await other.aclose()


async def test_rows_of_new_sessions_do_not_pile_up(tmp_path: Path, clock: FakeClock) -> None:
    """A-127: whoever looks first does not make the rows of all that ran before."""
    journal = SqliteJournal(tmp_path / "journal.db", clock)
    for number in range(200):
        await store(journal, f"s{number}", f"r{number}", begun(), ended())
    with sqlite3.connect(tmp_path / "journal.db") as db:
        ((pending,),) = db.execute("SELECT count(*) FROM changed_sessions")
    assert pending < 64
    assert await journal.count_runs() == 200
    await _check(journal)
    await journal.aclose()


async def test_the_first_run_of_a_process_makes_the_rows_that_others_left(
    tmp_path: Path, clock: FakeClock
) -> None:
    for number in range(3):
        journal = SqliteJournal(tmp_path / "journal.db", clock)
        await store(journal, f"s{number}", f"r{number}", begun(), ended())
        await journal.aclose()
    with sqlite3.connect(tmp_path / "journal.db") as db:
        assert db.execute("SELECT count(*) FROM changed_sessions").fetchall() == [(0,)]
        assert db.execute("SELECT count(*) FROM runs").fetchall() == [(3,)]


async def test_a_session_that_goes_on_keeps_its_rows_with_each_entry(
    tmp_path: Path, clock: FakeClock
) -> None:
    journal = SqliteJournal(tmp_path / "journal.db", clock)
    await store(journal, "s", "r1", begun(), ended())
    assert await run_ids(journal) == ["r1"]
    await store(journal, "s", "r2", begun(), ended())
    with sqlite3.connect(tmp_path / "journal.db") as db:
        assert db.execute("SELECT count(*) FROM changed_sessions").fetchall() == [(0,)]
        assert db.execute("SELECT count(*) FROM runs").fetchall() == [(2,)]
    await journal.aclose()


def _json(draft: EntryDraft) -> bytes:
    from minions.contracts.journal.journal import body_text

    return body_text(draft).encode()
