"""A worker whose database has no room, or is away, when it starts."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from forked_commands import PROGRAM, ForkedCommand, run_forked
from patience import HANG_S
from postgres import PostgresServer

pytest.importorskip("dbos", reason="dbos is not installed: pip install 'minions-engine[dbos]'")

_TOO_FEW: Final = 2
"""Connections: journal and workers have theirs, and what makes the tables of jobs has none."""


@pytest.fixture
def run_id(tmp_path: Path, postgres_url: str) -> str:
    """A queued run."""
    (tmp_path / "one.yaml").write_text("id: one\nsteps:\n  - {id: a, set: {x: 1}}\n", "utf-8")
    return _command(tmp_path, "run", "one.yaml", "--detach", "--db", postgres_url).strip()


@pytest.fixture
def role(postgres_url: str) -> Iterator[str]:
    """A role that may have few connections."""
    _sql(postgres_url, f"CREATE ROLE few LOGIN IN ROLE minions CONNECTION LIMIT {_TOO_FEW}")
    yield "few"
    _sql(postgres_url, "REASSIGN OWNED BY few TO minions; DROP OWNED BY few; DROP ROLE few")


async def test_a_worker_whose_role_has_no_connection_left_waits_until_it_has(
    tmp_path: Path, postgres_url: str, role: str, run_id: str
) -> None:
    _sql(postgres_url, f"GRANT ALL ON DATABASE {_database(postgres_url)} TO {role}")
    url = postgres_url.replace("minions@", f"{role}@")
    worker = _worker(tmp_path, "--once", "--db", url)
    await _until_log(tmp_path, "database_awaited")
    assert worker.poll() is None
    _sql(postgres_url, f"ALTER ROLE {role} CONNECTION LIMIT 30")
    async with asyncio.timeout(HANG_S):
        assert await asyncio.to_thread(worker.wait) == 0
    assert (tmp_path / "log").read_text("utf-8").count("database_awaited") == 1
    assert "completed" in _command(tmp_path, "sessions", "list", "--db", postgres_url)


async def test_a_worker_that_starts_while_the_database_does_too_waits_for_it(
    tmp_path: Path, postgres: PostgresServer, postgres_url: str, run_id: str
) -> None:
    postgres.kill()
    try:
        worker = _worker(tmp_path, "--once", "--db", postgres_url)
        await _until_log(tmp_path, "database_awaited")
    finally:
        await asyncio.to_thread(postgres.start)
    async with asyncio.timeout(HANG_S):
        assert await asyncio.to_thread(worker.wait) == 0
    assert "completed" in _command(tmp_path, "sessions", "list", "--db", postgres_url)


async def test_a_signal_ends_a_worker_that_waits_for_its_database(tmp_path: Path) -> None:
    worker = _worker(tmp_path, "--db", f"postgresql://minions@/none?host={tmp_path}")
    await _until_log(tmp_path, "database_awaited")
    worker.send_signal(signal.SIGTERM)
    async with asyncio.timeout(HANG_S):
        assert await asyncio.to_thread(worker.wait) == 143


def _command(folder: Path, *arguments: str) -> str:
    done = run_forked(
        [*PROGRAM, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=10 * HANG_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def _worker(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    with (folder / "log").open("w", encoding="utf-8") as log:
        return ForkedCommand(
            [*PROGRAM, "worker", *arguments],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=log,
            text=True,
            env=dict(os.environ),
        )


async def _until_log(folder: Path, word: str) -> None:
    async with asyncio.timeout(HANG_S):
        while word not in (folder / "log").read_text("utf-8"):  # noqa: ASYNC110  # of another process
            await asyncio.sleep(0.05)


def _database(url: str) -> str:
    return url.rpartition("@/")[2].partition("?")[0]


def _sql(url: str, statements: str) -> None:
    import psycopg

    with psycopg.connect(url, autocommit=True) as db:
        db.execute(statements.encode())
