"""A PostgreSQL database is restored to an earlier time: what is asked and done again."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

import pytest

from minions import Minions, Prompt, ScriptedModel
from minions.contracts.executions import RunState
from minions.contracts.journal.run_rows import RunFilter
from minions.contracts.runtime import SystemClock
from minions.data.errors import FencedError
from minions.services import PostgresJournal
from minions.testing.journal_suite import holding
from postgres import PostgresServer, postgres_server, reason_without_postgres

if TYPE_CHECKING:
    import psycopg
    from psycopg.rows import TupleRow

_RECIPE = """
id: letter
steps:
  - {id: draft, goal: "Write a draft."}
  - {id: fine, ask: "Is it fine?"}
  - {id: final, goal: "Write {{ draft }} again: {{ fine }}."}
"""


@contextmanager
def archiving() -> Iterator[PostgresServer]:
    """A server that copies its log into a folder beside its data."""
    with postgres_server() as server:
        archive = server.folder / "archive"
        archive.mkdir()
        shutil.chown(archive, server.folder.owner(), server.folder.group())
        with connected(server, "postgres") as db:
            db.execute("ALTER SYSTEM SET archive_mode = on")
            db.execute(f"ALTER SYSTEM SET archive_command = 'cp %p {archive}/%f'".encode())
        server.stop()
        server.start()
        yield server


def connected(server: PostgresServer, name: str) -> closing[psycopg.Connection[TupleRow]]:
    import psycopg

    return closing(psycopg.connect(server.url(name), autocommit=True))


def back_up(server: PostgresServer) -> None:
    """A base backup beside the data."""
    subprocess.run(
        [
            server.programs / "pg_basebackup", "-h", server.folder, "-U", "minions",
            "-D", server.folder / "backup", "--checkpoint=fast", "--no-sync",
        ],
        check=True,
        capture_output=True,
        user=server.folder.owner() if os.geteuid() == 0 else None,
    )  # fmt: skip


def restore(server: PostgresServer, point: str) -> None:
    """Let the server have the data of that time, by the backup and the log behind it."""
    with connected(server, "postgres") as db:
        ((name,),) = db.execute("SELECT pg_walfile_name(pg_switch_wal())").fetchall()
        while db.execute(
            "SELECT coalesce(last_archived_wal, '') FROM pg_stat_archiver"
        ).fetchall() < [(name,)]:
            db.execute("SELECT pg_sleep(0.01)")
    server.stop()
    data = server.folder / "data"
    shutil.rmtree(data)
    (server.folder / "backup").rename(data)
    with (data / "postgresql.auto.conf").open("a", encoding="utf-8") as settings:
        settings.write(
            f"restore_command = 'cp {server.folder}/archive/%f %p'\n"
            f"recovery_target_name = '{point}'\nrecovery_target_action = 'promote'\n"
        )
    signal = data / "recovery.signal"
    signal.touch()
    owner = pwd.getpwnam(server.folder.owner())
    os.chown(signal, owner.pw_uid, owner.pw_gid)
    server.start()
    with connected(server, "postgres") as db:
        while db.execute("SELECT pg_is_in_recovery()").fetchall() != [(False,)]:
            db.execute("SELECT pg_sleep(0.01)")


@pytest.mark.long
async def test_what_was_recorded_since_is_asked_and_done_again() -> None:
    """A decision is asked for again, a model call is made again, and a run that began since is not
    there; a worker that was at work meanwhile does not continue in a record that lacks facts.
    """
    if (reason := reason_without_postgres()) is not None:
        pytest.skip(reason)
    prompts = list[str]()

    def answer(prompt: Prompt) -> str:
        prompts.append(str(prompt.messages[-1].content))
        return "A letter."

    with archiving() as server:
        url = server.url(name := server.new_database())
        async with Minions(model=ScriptedModel(answer), journal=url) as app:
            waiting = await app.arun(_RECIPE, {})
            back_up(server)
            worker = PostgresJournal(url, SystemClock())
            lease = await worker.acquire("ses_worker", "run_worker", "w1", 3_600)
            await worker.append(lease, holding({"n": "1"}, key="a"))
            with connected(server, name) as db:
                db.execute("SELECT pg_create_restore_point('before')")
            await worker.append(lease, holding({"n": "2"}, key="b"))
            decided = await app.answer(waiting.run_id, "fine", "yes")
            later = await app.arun("id: later\nsteps: [{id: a, set: {n: 1}}]\n", {})
        assert (decided.status, later.status) == ("completed", "completed")
        restore(server, "before")
        with pytest.raises(FencedError, match="It was restored to an earlier time"):
            await worker.append(lease, holding({"n": "3"}, key="c"))
        await worker.aclose()
        async with Minions(model=ScriptedModel(answer), journal=url) as app:
            journal = app.services.journal
            assert await journal.runs(RunFilter(run_ids=[later.run_id])) == []
            (row,) = await journal.runs(RunFilter(run_ids=[waiting.run_id]))
            assert row.status == RunState.NEEDS_DECISION
            assert len(await app.waiting(waiting.run_id)) == 1
            again = await app.answer(waiting.run_id, "fine", "yes")
            assert again.status == "completed"
            assert (await journal.verify(waiting.session_id)).fault is None
    assert prompts == ["Write a draft.", *["Write A letter. again: yes."] * 2]
