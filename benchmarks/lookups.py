"""What is looked up in a journal of 100,000 runs against one of 100; and an older file made new."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import io
import json
import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Iterator,
    Mapping,
    MutableMapping,
    Sequence,
)
from pathlib import Path
from typing import Any, Final, TypeAlias

from attrs import field, frozen

from benchmarks.endpoint import Endpoint
from benchmarks.measuring import Effort, Row, absolute_row, ratio_row
from minions import Services, SqliteJournal
from minions.adapters.stores.sqlite_database import bundled_migrations
from minions.app.settings.settings import Settings
from minions.contracts.runtime import SystemClock
from minions.interfaces.cli.main import run_command_line
from minions.interfaces.server.app import App, create_app
from minions.interfaces.server.server_options import ServerOptions

MOST_TIMES, LIST_MS, HELD_MS, RENEWAL_S, ROW_BYTES = 1.2, 10.0, 20.0, 60.0, 1_000.0

RECIPES: Final = {
    "done": "id: done\nsteps: [{id: a, set: {n: 1}}]\n",
    "asks": "id: asks\nsteps: [{id: a, set: {n: 1}}, {id: who, ask: 'Fine?'}]\n",
}
TOKEN: Final = "a-token-of-the-benchmarks"
WAITING: Final = 10
"""Runs that wait for a person, however many there are in all."""

Answer: TypeAlias = MutableMapping[str, Any]  # Any: as ASGI has it
Command: TypeAlias = Callable[[int], Sequence[str]]

COMMANDS: Final[Mapping[str, Command]] = {
    "sessions list": lambda _: ("sessions", "list"),
    "sessions show RUN": lambda _: ("sessions", "show", "run_00000001"),
    "sessions show START": lambda _: ("sessions", "show", "run_open00"),
    "resume RUN": lambda n: ("resume", f"run_open{n:02}"),
    "retry RUN": lambda n: ("retry", f"run_{n:08}", "--from", "a"),
    "run RECIPE": lambda _: ("run", "done.yaml"),
    "run RECIPE --session": lambda n: ("run", "done.yaml", "--session", f"name{n}"),
}
REQUESTS: Final[Mapping[str, tuple[str, str]]] = {
    "GET /runs?limit=50": ("GET", "/runs?limit=50"),
    "GET /runs?status=needs_decision": ("GET", "/runs?status=needs_decision"),
    "GET /sessions?limit=50": ("GET", "/sessions?limit=50"),
    "GET /approvals": ("GET", "/approvals"),
    "POST /runs": ("POST", "/runs"),
}


async def measure(effort: Effort, _: Endpoint) -> list[Row]:
    """Both files in one folder, looked at in turns."""
    few, many = 100, max(200, effort.count(100_000))
    with tempfile.TemporaryDirectory() as folder:
        for name, text in RECIPES.items():
            (Path(folder) / f"{name}.yaml").write_text(text, "utf-8")
        (Path(folder) / ".git").mkdir()  # the search for minions.toml ends here
        done = json.loads(_child(folder, effort.rounds, few, many))
        files = {count: Path(folder) / f"{count}.sqlite" for count in (few, many)}
        requests, held_ms = await _requests(effort, files)
        size = _bytes_of_rows(files[many]) / many
    renewal_s = done["renewal_s"]
    taken = {name: {few: t[0], many: t[1]} for name, t in done["commands"].items()} | requests
    listed_ms = taken["GET /runs?limit=50"][many] * 1e3
    return [
        *(_growth(name, times[few], times[many], many) for name, times in taken.items()),
        absolute_row(
            "lookup-list",
            f"`GET /runs?limit=50` of {many:,} runs",
            value=listed_ms,
            most=LIST_MS,
            unit="ms CPU",
        ),
        absolute_row(
            "lookup-held",
            f"the longest that a search through {many:,} runs holds the event loop",
            value=held_ms,
            most=HELD_MS,
            unit="ms CPU",
        ),
        absolute_row(
            "lookup-renewal",
            f"an older file of {many:,} runs: its copy, and its rows made of the entries",
            value=renewal_s,
            most=RENEWAL_S,
            unit="s",
        ),
        absolute_row(
            "lookup-bytes",
            "bytes of the rows of a run and its session, with their indexes",
            value=size,
            most=ROW_BYTES,
            unit="bytes",
        ),
    ]


def _growth(name: str, few_s: float, many_s: float, many: int) -> Row:
    return ratio_row(
        f"lookup-{name}",
        f"`{name}`, of {many:,} runs against 100",
        ratio=many_s / few_s,
        most=MOST_TIMES,
        of="of 100",
        absolute=f"{many_s * 1e3:.1f} ms; {few_s * 1e3:.1f} ms CPU",
    )


# --- files -----------------------------------------------------------------------------------


def _child(folder: str, rounds: int, few: int, many: int) -> str:
    """Commands end event loops of their own and take signals: they have a process to themselves."""
    code = f"from benchmarks.lookups import in_child; in_child({rounds}, {few}, {many})"
    environ = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *sys.path]),
    }
    command = [sys.executable, "-c", code]
    return subprocess.run(
        command, cwd=folder, env=environ, stdout=subprocess.PIPE, text=True, check=True
    ).stdout


def in_child(rounds: int, few: int, many: int) -> None:
    """Make the files, measure the commands, print what came out."""
    files = {count: Path(f"{count}.sqlite").absolute() for count in (few, many)}
    for count, path in files.items():
        _make_older(path, count)
    renewals = [asyncio.run(_renewal_s(path)) for path in files.values()]
    taken = _commands(rounds, files)
    commands = {name: [each[few], each[many]] for name, each in taken.items()}
    print(json.dumps({"renewal_s": renewals[-1], "commands": commands}))


def _make_older(path: Path, count: int) -> None:
    """A file of an older program with that many runs."""
    _command(path, ("run", "done.yaml"))
    for _ in range(WAITING):
        _command(path, ("run", "asks.yaml"))
    rows = (
        "0007_runs",
        "0008_spending",
        "0011_owners",
        "0012_projects",
        "0013_new_entries",
        "0015_budgets",
        "0016_retention",
        "0017_counted_when_asked.additive",
    )
    _become_older(path, {name for name in bundled_migrations() if name not in rows})
    _copy_runs(path, count - WAITING - 1)


async def _renewal_s(path: Path) -> float:
    """Seconds until its rows are there."""
    journal = SqliteJournal(path, SystemClock())
    begin = time.perf_counter()
    await journal.count_runs()
    taken = time.perf_counter() - begin
    await journal.aclose()
    return taken


def _become_older(path: Path, migrations: Collection[str]) -> None:
    with contextlib.closing(sqlite3.connect(path)) as db:
        for kind, name in db.execute(
            "SELECT type, name FROM sqlite_master WHERE type = 'trigger' "
            "OR name IN ('runs', 'sessions', 'changed_sessions', 'row_marks', 'row_counts', "
            "'removed_spending', 'entries_by_body_digest')"
        ).fetchall():
            db.execute(f"DROP {kind} IF EXISTS {name}")
        marks = ",".join("?" * len(migrations))
        db.execute(f"DELETE FROM applied_migrations WHERE name NOT IN ({marks})", [*migrations])
        db.commit()


def _copy_runs(path: Path, count: int) -> None:
    """Ended ones, older than those that are there, and some that were cut off."""
    with contextlib.closing(sqlite3.connect(path)) as db:
        columns = "position, generation, key, kind, state, body, body_digest, epoch, at"
        (session,) = db.execute(
            "SELECT session_id FROM entries WHERE kind = 'run' AND body LIKE '%completed%'"
        ).fetchone()
        rows = db.execute(
            f"SELECT {columns} FROM entries WHERE session_id = ? ORDER BY position", (session,)
        ).fetchall()
        sql = f"INSERT INTO entries (session_id, run_id, {columns}) VALUES ({','.join('?' * 11)})"
        for number in range(count):
            name, own, ago = f"{number:08}", rows, (number + 1) * 1_000_000
            if number >= count - 60:
                name, own = f"open{number - count + 60:02}", rows[:1]
            db.executemany(
                sql, [(f"ses_{name}", f"run_{name}", *row[:-1], row[-1] - ago) for row in own]
            )
        db.commit()


def _bytes_of_rows(path: Path) -> float:
    with contextlib.closing(sqlite3.connect(path)) as db:
        tables = "'runs', 'sessions'"
        try:
            (total,) = db.execute(
                "SELECT sum(pgsize) FROM dbstat WHERE name IN (SELECT name FROM sqlite_master "
                f"WHERE tbl_name IN ({tables}))"
            ).fetchone()
        except sqlite3.OperationalError:  # this SQLite was built without it
            return float("nan")
    return float(total)


# --- commands --------------------------------------------------------------------------------


def _command(path: Path, arguments: Sequence[str]) -> None:
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        code = run_command_line([*arguments, "--db", str(path)])
    assert code in (0, 3), out.getvalue()


def _commands(rounds: int, files: Mapping[int, Path]) -> dict[str, dict[int, float]]:
    """Least CPU seconds of each, in this process, where everything is imported already."""
    least: dict[str, dict[int, float]] = {name: dict.fromkeys(files, 9e9) for name in COMMANDS}
    for number in range(1 + 3 * rounds):
        for name, command in COMMANDS.items():
            for count, path in files.items():
                begin = time.process_time()
                _command(path, command(number))
                taken = time.process_time() - begin
                if number:
                    least[name][count] = min(least[name][count], taken)
    return least


# --- requests --------------------------------------------------------------------------------


@frozen
class Caller:
    """Asks an app in this process."""

    app: App
    sent: list[Answer] = field(factory=list)

    @property
    def body(self) -> bytes:
        """That of the answer."""
        return b"".join(each.get("body", b"") for each in self.sent)

    async def ask(self, method: str, path: str, body: bytes = b"") -> int:
        """The status of the answer."""
        where, _, query = path.partition("?")
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": f"/api/v1{where}",
            "raw_path": f"/api/v1{where}".encode(),
            "root_path": "",
            "query_string": query.encode(),
            "headers": [
                (b"host", b"localhost"),
                (b"authorization", f"Bearer {TOKEN}".encode()),
                (b"content-type", b"application/json"),
            ],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 80),
        }
        self.sent.clear()
        await self.app(scope, _received(body), self._send)
        return int(self.sent[0]["status"])

    async def _send(self, message: Answer) -> None:
        self.sent.append(message)


def _received(body: bytes) -> Callable[[], Awaitable[Answer]]:
    messages: Iterator[Answer] = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def receive() -> Answer:
        message = next(messages, None)
        if message is None:
            await asyncio.Event().wait()
        return message or {}

    return receive


async def _requests(
    effort: Effort, files: Mapping[int, Path]
) -> tuple[dict[str, dict[int, float]], float]:
    """Least CPU seconds of each request, and the longest that a search holds the loop, in ms."""
    apps = {}
    for count, path in files.items():
        journal = SqliteJournal(path, SystemClock())
        apps[count] = create_app(
            ServerOptions(token=TOKEN),
            recipes=[path.parent],
            settings=Settings(),
            services=Services(journal=journal),
        )
        apps[count].at_end(journal.aclose)
    least: dict[str, dict[int, float]] = {name: dict.fromkeys(files, 9e9) for name in REQUESTS}
    for number in range(1 + 5 * effort.rounds):
        for name, (method, path_) in REQUESTS.items():
            for count, app in apps.items():
                begin = time.process_time()
                body = b'{"recipe": "done"}' if method == "POST" else b""
                status = await Caller(app).ask(method, path_, body)
                await asyncio.sleep(0.02 if method == "POST" else 0)  # the run ends, and counts
                taken = time.process_time() - begin
                assert status in (200, 202), (name, status)
                if number:
                    least[name][count] = min(least[name][count], taken)
    gc.freeze()  # as the command does: what was imported is not searched each time
    held_ms = await _longest_hold(Caller(apps[max(files)]), "/runs?text=nothing+of+the+kind")
    for app in apps.values():
        await app.aclose()
    return least, held_ms


async def _longest_hold(caller: Caller, path: str) -> float:
    """The most CPU time between two turns of another task, in ms; of three answers the least."""
    holds = []
    for _ in range(3):
        asked = asyncio.ensure_future(caller.ask("GET", path))
        longest, before = 0.0, time.process_time()
        while not asked.done():
            await asyncio.sleep(0)
            now = time.process_time()
            longest, before = max(longest, now - before), now
        assert asked.result() == 200
        holds.append(longest)
    return min(holds) * 1e3
