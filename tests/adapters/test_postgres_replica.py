"""Lists are read from a standby that is up to date, and from the primary where it is not."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from minions import Minions, ScriptedModel
from minions.adapters.stores import postgres_replica
from minions.adapters.stores.postgres_replica import Replica, ReplicaLag, ReplicatedJournal
from minions.app.settings.settings import JournalSettings, Settings
from minions.app.wiring.databases import make_journal
from minions.contracts.journal.journal import Journal
from minions.contracts.runtime import SystemClock
from minions.data.errors import JournalError, UsageError
from minions.services import PostgresJournal
from minions.testing import FakeClock
from patience import HANG_S
from postgres import PostgresServer, postgres_server, reason_without_postgres

if TYPE_CHECKING:
    import psycopg
    from psycopg.rows import TupleRow

_RECIPE = "id: one\nsteps: [{id: a, set: {n: 1}}]\n"


def connected(url: str) -> closing[psycopg.Connection[TupleRow]]:
    import psycopg

    return closing(psycopg.connect(url, autocommit=True))


@contextmanager
def standby_of(primary: PostgresServer) -> Iterator[PostgresServer]:
    """A server that streams the log of that one."""
    with postgres_server() as standby:
        standby.stop()
        data = standby.folder / "data"
        shutil.rmtree(data)
        data.mkdir(0o700)
        shutil.chown(data, standby.folder.owner(), standby.folder.group())
        owner = pwd.getpwnam(standby.folder.owner())
        subprocess.run(
            [
                standby.programs / "pg_basebackup", "-h", primary.folder, "-U", "minions",
                "-D", data, "--checkpoint=fast", "--no-sync", "--write-recovery-conf",
            ],
            check=True,
            capture_output=True,
            user=owner.pw_uid if os.geteuid() == 0 else None,
        )  # fmt: skip
        standby.start()
        yield standby


@pytest.fixture(scope="module")
def primary() -> Iterator[PostgresServer]:
    if (reason := reason_without_postgres()) is not None:
        pytest.skip(reason)
    with postgres_server() as server:
        yield server


@pytest.fixture(scope="module")
def standby(primary: PostgresServer) -> Iterator[PostgresServer]:
    with standby_of(primary) as server:
        yield server


@contextmanager
def journal_of(primary: PostgresServer, standby: PostgresServer) -> Iterator[str]:
    """The URL of a journal that holds nothing, once the standby has its database and tables: its
    own lag is no part of these tests.
    """
    with primary.journal() as url, connected(url) as origin:
        (mark,) = origin.execute("SELECT pg_current_wal_lsn()").fetchone() or (None,)
        with connected(standby.url("postgres")) as copy:
            until = time.monotonic() + HANG_S
            while copy.execute("SELECT pg_last_wal_replay_lsn() >= %s", [mark]).fetchone() != (
                True,
            ):
                assert time.monotonic() < until
                time.sleep(0.005)
        yield url


class Lists:
    """Reads lists, and notes which database gave them."""

    def __init__(self) -> None:
        self.places: list[str] = []

    async def __call__(self, journal: Journal) -> list[str]:
        rows = await journal.runs()
        assert isinstance(journal, PostgresJournal)
        self.places.append("primary" if isinstance(journal, ReplicatedJournal) else "standby")
        return [row.run_id for row in rows]


async def test_a_list_from_the_standby_has_the_run_that_ended_just_now(
    primary: PostgresServer, standby: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_replica, "_WAITED_S", 60.0)  # however busy the machine is
    told: list[str] = []
    with journal_of(primary, standby) as url:
        name = url.partition("@/")[2].partition("?")[0]
        journal = ReplicatedJournal(
            url, SystemClock(), Replica(url=standby.url(name), tell=told.append)
        )
        lists, expected = Lists(), list[str]()
        async with Minions(model=ScriptedModel([]), journal=journal) as app:
            for _ in range(3):
                expected.insert(0, (await app.arun(_RECIPE, {})).run_id)
                assert sorted(await journal.read_lists(lists)) == sorted(expected)
        await journal.aclose()
    assert (lists.places, told) == (["standby"] * 3, [])


async def test_where_the_standby_is_behind_the_primary_is_asked_and_it_is_told_once(
    primary: PostgresServer, standby: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    clock, lists = FakeClock(), Lists()
    with journal_of(primary, standby) as url:
        name = url.partition("@/")[2].partition("?")[0]
        journal = ReplicatedJournal(url, clock, Replica(url=standby.url(name), tell=told.append))
        with connected(standby.url("postgres")) as db:
            async with Minions(model=ScriptedModel([]), journal=journal) as app:
                await app.arun(_RECIPE, {})
                await journal.read_lists(lists)
                db.execute("SELECT pg_wal_replay_pause()")
                try:
                    run = await app.arun(_RECIPE, {})
                    for _ in range(2):
                        assert run.run_id in await journal.read_lists(lists)
                        clock.advance(60)
                finally:
                    db.execute("SELECT pg_wal_replay_resume()")
                monkeypatch.setattr(postgres_replica, "_WAITED_S", 60.0)
                assert run.run_id in await journal.read_lists(lists)
        await journal.aclose()
    assert lists.places == ["standby", "primary", "primary", "standby"]
    behind, again = told
    assert "is behind" in behind
    assert again == f"Lists are read from {standby.url(name)} again."


async def test_where_the_standby_is_down_the_primary_is_asked_at_once_for_a_while(
    primary: PostgresServer,
) -> None:
    told: list[str] = []
    clock, lists = FakeClock(), Lists()
    with primary.journal() as url:
        nowhere = f"postgresql://minions@/none?host={primary.folder}/none"
        journal = ReplicatedJournal(url, clock, Replica(url=nowhere, tell=told.append))
        async with Minions(model=ScriptedModel([]), journal=journal) as app:
            run = await app.arun(_RECIPE, {})
            for _ in range(3):
                assert await journal.read_lists(lists) == [run.run_id]
                clock.advance(11)
        await journal.aclose()
    assert lists.places == ["primary"] * 3
    (line,) = told
    assert "cannot be reached" in line
    assert line.endswith(f"Lists are read from {url} meanwhile.")


async def test_another_server_than_a_standby_is_named_and_not_asked(
    primary: PostgresServer,
) -> None:
    told: list[str] = []
    lists = Lists()
    with primary.journal() as url, primary.journal() as other:
        journal = ReplicatedJournal(url, SystemClock(), Replica(url=other, tell=told.append))
        async with Minions(model=ScriptedModel([]), journal=journal) as app:
            run = await app.arun(_RECIPE, {})
            assert await journal.read_lists(lists) == [run.run_id]
        await journal.aclose()
    assert lists.places == ["primary"]
    assert f"{other} is no standby of {url}" in told[0]


async def test_how_far_the_standby_is_behind_is_known_also_while_the_primary_is_away(
    primary: PostgresServer, standby: PostgresServer
) -> None:
    async def lag_of(url: str, replica: str) -> ReplicaLag:
        journal = ReplicatedJournal(url, SystemClock(), Replica(url=replica, tell=print))
        try:
            return await journal.lag()
        finally:
            await journal.aclose()

    with journal_of(primary, standby) as url, primary.journal() as other:
        copy = standby.url(url.partition("@/")[2].partition("?")[0])
        await lag_of(url, copy)  # which makes the tables
        assert (await lag_of(url, copy)).log_bytes == 0
        with connected(standby.url("postgres")) as db, connected(url) as change:
            db.execute("SELECT pg_wal_replay_pause()")
            change.execute("CREATE TABLE late (n integer)")
            try:
                lag = await lag_of(url, copy)
            finally:
                db.execute("SELECT pg_wal_replay_resume()")
        assert (lag.log_bytes or 0) > 100
        assert (lag.newest_s or 0) > 0
        nowhere = f"postgresql://minions@/none?host={primary.folder}/none"
        assert (await lag_of(nowhere, copy)).log_bytes is None
        with pytest.raises(JournalError, match="cannot be reached"):
            await lag_of(url, nowhere)
        with pytest.raises(JournalError, match="is no standby of"):
            await lag_of(url, other)


@pytest.mark.parametrize(
    ("db", "replica"),
    [("runs.sqlite", "postgresql://copy/minions"), ("postgresql://db/minions", "copy.sqlite")],
)
def test_a_replica_needs_postgresql_on_both_sides(db: str, replica: str, tmp_path: Path) -> None:
    settings = Settings(db=db, journal=JournalSettings(replica=replica))
    with pytest.raises(UsageError, match=r"journal\.replica=") as refused:
        make_journal(settings, tmp_path)
    assert refused.value.error_code == "bad-configuration"


def test_the_configured_replica_is_used(tmp_path: Path) -> None:
    settings = Settings(
        db="postgresql://db/minions", journal=JournalSettings(replica="postgresql://copy/minions")
    )
    assert isinstance(make_journal(settings, tmp_path), ReplicatedJournal)
