"""The command line with its journal on a PostgreSQL server; passwords are shown nowhere."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from command_line import Cli, Write
from forked_commands import PROGRAM, ForkedCommand
from postgres import PostgresServer, reason_without_postgres

SET = "id: bind\nsteps:\n  - {id: a, set: {n: 1}}\n"
STATE = """
id: remember
permissions: {allow_write: true}
steps:
  - {id: save, tool: saveState, params: {key: k, value: kept}}
  - {id: load, tool: loadState, params: {key: k}}
"""
SLOW = """
import time
from minions import tool

@tool(effect="idempotent")
def wait(n: int) -> int:
    '''Takes a moment.'''
    time.sleep(0.1)
    return n
"""
LOOP = """
id: slow
permissions: {allow_write: true}
steps:
  - {id: all, loop: [0, 1, 2, 3, 4, 5, 6, 7, 8, 9], tool: wait, params: {n: "{{ loop.item }}"}}
"""
CACHED = "id: keep\nsteps:\n  - {id: a, cache: true, tool: getCurrentDateTime}\n"


@pytest.fixture
def password_url(empty_postgres_url: str) -> str:
    """With a password, which the server does not ask for."""
    return empty_postgres_url.replace("minions@", "minions:s3cret@")


def test_a_run_is_stored_listed_and_shown(cli: Cli, write: Write, password_url: str) -> None:
    write("bind.yaml", SET)
    done = cli("run", "bind.yaml", "--db", password_url)
    shown = password_url.replace("s3cret", "***")
    assert (done.code, json.loads(done.out)) == (0, {"n": 1})
    assert f"--db '{shown}'" in done.err
    listed = cli("sessions", "list", "--db", password_url)
    assert "completed" in listed.out
    unknown = cli("sessions", "show", "run_nobody", "--db", password_url)
    assert (unknown.code, f"The journal is {shown}." in unknown.err) == (2, True)
    for outcome in (done, listed, unknown):
        assert "s3cret" not in outcome.out + outcome.err


def test_state_and_cache_are_in_the_same_database(
    cli: Cli, write: Write, password_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINIONS_DB", password_url)
    write("remember.yaml", STATE)
    write("keep.yaml", CACHED)
    done = cli("run", "remember.yaml")
    assert (done.code, done.json["value"]) == (0, "kept")
    first = cli("run", "keep.yaml")
    assert (first.code, cli("run", "keep.yaml").out) == (0, first.out)
    import psycopg

    with psycopg.connect(password_url) as db:
        assert db.execute("SELECT key FROM minions.state").fetchall() == [(b"k",)]


def test_doctor_looks_into_the_database(cli: Cli, write: Write, password_url: str) -> None:
    write("bind.yaml", SET)
    assert cli("run", "bind.yaml", "--db", password_url).code == 0
    looked = cli("doctor", "--db", password_url)
    shown = password_url.replace("s3cret", "***")
    assert looked.code == 0
    assert f"database: {shown}, 1 runs" in looked.out
    assert "disk" not in looked.out


@pytest.mark.parametrize("command", [("run", "bind.yaml"), ("sessions", "list"), ("doctor",)])
def test_a_server_that_is_not_there_ends_a_command_with_code_4(
    cli: Cli, write: Write, command: tuple[str, ...]
) -> None:
    if (reason := reason_without_postgres()) is not None:
        pytest.skip(reason)
    write("bind.yaml", SET)
    outcome = cli(*command, "--db", "postgresql://me:s3cret@127.0.0.1:9/x")
    assert outcome.code == 4
    assert "at 127.0.0.1:9: " in outcome.out + outcome.err
    assert "s3cret" not in outcome.out + outcome.err


def test_config_shows_no_password(cli: Cli) -> None:
    url = "postgresql://me:s3cret@db.example/x?sslmode=require&password=s3cret"
    shown = "postgresql://me:***@db.example/x?sslmode=require&password=***"
    assert f'db = "{shown}"' in cli("config", "--db", url).out
    as_json = cli("config", "--json", "--db", url)
    assert as_json.json["db"] == {"value": shown, "origin": "flag"}


def test_a_url_of_another_database_is_refused_without_its_password(cli: Cli, write: Write) -> None:
    write("bind.yaml", SET)
    outcome = cli("run", "bind.yaml", "--db", "mysql://me:s3cret@h/db")
    assert (outcome.code, outcome.out) == (2, "")
    assert "mysql://me:***@h/db" in outcome.err
    assert "postgresql://USER@HOST/DATABASE" in outcome.err


def test_without_psycopg_a_command_says_what_to_install(
    cli: Cli, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    write("bind.yaml", SET)
    outcome = cli("run", "bind.yaml", "--db", "postgres://me:s3cret@127.0.0.1/db")
    assert outcome.code == 4
    assert "pip install 'minions-engine[postgres]'" in outcome.err
    assert "s3cret" not in outcome.err


def test_a_run_outlives_a_crash_of_the_server_and_one_that_does_not_is_resumed(
    cli: Cli, write: Write, here: Path, postgres: PostgresServer, empty_postgres_url: str
) -> None:
    """The server is killed twice: once it comes back at once, then the process is killed, too."""
    write("slow.yaml", LOOP)
    write("own.py", SLOW)
    options = ("--extensions", "own.py", "--db", empty_postgres_url)
    running = ForkedCommand[bytes](
        [*PROGRAM, "run", "slow.yaml", *options],
        cwd=here,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    _wait_for_facts(empty_postgres_url, 8, running)
    postgres.kill()
    postgres.start()
    _wait_for_facts(empty_postgres_url, 16, running)
    postgres.kill()
    running.send_signal(signal.SIGKILL)
    running.communicate()
    postgres.start()
    before = _facts(empty_postgres_url)
    resumed = cli("resume", "run_", *options)
    assert (resumed.code, resumed.json["results"]) == (0, list(range(10)))
    after = _facts(empty_postgres_url)
    assert after[: len(before)] == before
    ends = [key for kind, key, state in after if (kind, state) == ("tool_call", "finished")]
    assert len(ends) == len(set(ends)) == 10


def _wait_for_facts(url: str, many: int, running: subprocess.Popen[bytes]) -> None:
    while len(_facts(url)) < many:
        assert running.poll() is None, running.communicate()
        time.sleep(0.02)


def _facts(url: str) -> list[tuple[str, str, str]]:
    import psycopg

    with psycopg.connect(url) as db:
        if db.execute("SELECT to_regclass('minions.step_cache')").fetchone() == (None,):
            return []
        return db.execute(
            "SELECT kind, key, state FROM minions.entries ORDER BY position"
        ).fetchall()
