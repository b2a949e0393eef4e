"""A PostgreSQL server for one session of tests: made when it is first wanted, gone at the end.

It listens on a socket in a folder of its own and on no network, and syncs nothing to the disk
unless asked to. It ends with the tests also where those are killed: a watchdog beside it sees to
that.
"""

from __future__ import annotations

import asyncio
import importlib.util
import itertools
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from attrs import field, mutable

from minions.adapters.stores.postgres_database import bundled_migrations, connect
from patience import HANG_S

if TYPE_CHECKING:
    import psycopg
    from psycopg.rows import TupleRow

__all__ = ["PostgresServer", "postgres_server", "reason_without_postgres"]

_PLACES: Final = (
    "/usr/lib/postgresql/*/bin",
    "/usr/pgsql-*/bin",
    "/opt/homebrew/opt/postgresql*/bin",
)
_USER: Final = "minions"

# Its input ends with the process of the tests, however that ends. A line is the server's process
# now, 0 where none runs.
_WATCHDOG: Final = """
import os, shutil, signal, sys, time

pid = 0
for line in sys.stdin:
    pid = int(line)
try:
    if pid:
        os.kill(pid, signal.SIGQUIT)
        for _ in range(1_000):  # it keeps its folder in use until it is gone
            os.kill(pid, 0)
            time.sleep(0.01)
except ProcessLookupError:
    pass
shutil.rmtree(sys.argv[1], ignore_errors=True)
"""


def _programs() -> Path | None:
    """Where the newest server's programs are."""
    found = [
        folder
        for pattern in _PLACES
        for folder in Path("/").glob(pattern.lstrip("/"))
        if (folder / "initdb").exists()
    ]
    if on_path := shutil.which("initdb"):
        found.append(Path(on_path).parent)
    return max(
        found, key=lambda folder: [int(n) for n in folder.parts if n.isdecimal()], default=None
    )


def reason_without_postgres() -> str | None:
    """Why no server can be had here; None: it can."""
    if _programs() is None:
        return "PostgreSQL is not installed: install the package postgresql"
    if importlib.util.find_spec("psycopg") is None:
        return "psycopg is not installed: pip install 'minions-engine[postgres]'"
    return None


@mutable
class PostgresServer:
    """One cluster; it may be killed and started again."""

    folder: Path
    programs: Path
    _watchdog: subprocess.Popen[str]
    syncs: bool = False
    """Whether each commit is synced to the disk, as a server that is in use does it."""
    most: int = 50
    """Connections at a time."""
    _numbers: Iterator[int] = field(factory=lambda: itertools.count(1), init=False)
    _free: list[str] = field(factory=list, init=False)
    _journals: list[str] = field(factory=list, init=False)
    """Databases with the tables of a journal, and nothing in them."""
    _tables: str = field(default="", init=False)
    """What the tables of a journal are like."""
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    def start(self) -> None:
        """Return when it takes connections."""
        end = time.monotonic() + HANG_S
        is_ready = False
        while not is_ready:
            assert time.monotonic() < end, self._log()
            if self._process is None or self._process.poll() is not None:
                self._process = self._server()  # again, while backends of a killed one still live
                self._tell_watchdog(self._process.pid)
            time.sleep(0.02)
            is_ready = self._popen("pg_isready", "-q", "-h", self.folder).wait() == 0

    def _server(self) -> subprocess.Popen[bytes]:
        return self._popen(
            "postgres", "-D", self.folder / "data", "-k", self.folder,
            "-c", "listen_addresses=", "-c", f"fsync={'on' if self.syncs else 'off'}",
            "-c", f"max_connections={self.most}",
            "-c", "autovacuum=off",  # its transactions and its log would be counted with ours
        )  # fmt: skip

    def stop(self) -> None:
        """At once: nothing that it keeps is wanted any more."""
        self._end(signal.SIGQUIT)

    def kill(self) -> None:
        """As a crash; its backends notice on their own."""
        self._end(signal.SIGKILL)

    @contextmanager
    def database(self) -> Iterator[str]:
        """The URL of an empty one; emptied afterwards and lent again, for making one is slow."""
        name = self._free.pop() if self._free else self.new_database()
        yield self.url(name)
        with self._connection(name) as db:
            db.execute(b"DROP SCHEMA IF EXISTS minions, minions_dispatch CASCADE")
            db.execute(f"ALTER DATABASE {name} RESET ALL".encode())
        self._free.append(name)

    @contextmanager
    def journal(self) -> Iterator[str]:
        """The URL of one with the tables of a journal and no rows; emptied afterwards and lent
        again, for the migrations take ten times as long as all that a test does.
        """
        name = self._journals.pop() if self._journals else self._new_journal()
        yield self.url(name)
        with self._connection(name) as db:
            db.execute(b"DROP SCHEMA IF EXISTS minions_dispatch CASCADE")
            db.execute(f"ALTER DATABASE {name} RESET ALL".encode())
            if _tables_of(db) == self._tables:
                db.execute(_EMPTY)
                self._journals.append(name)
            else:  # the test was about the tables
                db.execute(b"DROP SCHEMA IF EXISTS minions CASCADE")
                self._free.append(name)

    def _new_journal(self) -> str:
        name = self._free.pop() if self._free else self.new_database()
        with ThreadPoolExecutor(1) as pool:  # this thread may have an event loop that runs
            pool.submit(asyncio.run, _migrate(self.url(name))).result()
        with self._connection(name) as db:
            self._tables = _tables_of(db)
        return name

    def new_database(self, options: str = "") -> str:
        """The name of a new one.

        Args:
            options: Of `CREATE DATABASE`.
        """
        name = f"test_{next(self._numbers)}"
        with self._connection("postgres") as db:
            db.execute(f"CREATE DATABASE {name} {options}".encode())
        return name

    def url(self, database: str) -> str:
        """Of a database by that name."""
        return f"postgresql://{_USER}@/{database}?host={self.folder}"

    def initialize(self) -> None:
        """Make the cluster."""
        made = self._popen(
            "initdb", "-D", self.folder / "data", "-U", _USER, "--auth=trust",
            "--encoding=UTF8", "--locale=C", "--no-sync",
        )  # fmt: skip
        assert made.wait() == 0, self._log()

    def _connection(self, database: str) -> closing[psycopg.Connection[TupleRow]]:
        import psycopg

        return closing(psycopg.connect(self.url(database), autocommit=True))

    def _popen(self, program: str, *arguments: str | Path) -> subprocess.Popen[bytes]:
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(
                [self.programs / program, *arguments],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for the tests
                user=_owner(),
                group=_owner() and pwd.getpwnam(_owner() or "").pw_gid,
                extra_groups=[] if _owner() else None,
                env={**os.environ, "LC_ALL": "C"},
            )

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait()
            self._process = None
            self._tell_watchdog(0)

    def _tell_watchdog(self, pid: int) -> None:
        assert self._watchdog.stdin is not None
        self._watchdog.stdin.write(f"{pid}\n")
        self._watchdog.stdin.flush()

    def _log(self) -> str:
        return (self.folder / "log").read_text("utf-8", "replace")[-2000:]


async def _migrate(url: str) -> None:
    connection = await connect(
        url, bundled_migrations(), connect_timeout_s=HANG_S, statement_timeout_s=HANG_S
    )
    await connection.close()


def _tables_of(db: psycopg.Connection[TupleRow]) -> str:
    found = db.execute(b"SELECT to_regclass('minions.applied_migrations')").fetchall()
    return f"{db.execute(_TABLES).fetchall()}" if found != [(None,)] else ""


_TABLES: Final = b"""
SELECT string_agg(line, E'\\n' ORDER BY line) FROM (
    SELECT concat_ws(' ', c.relname, a.attname, a.atttypid, a.attnotnull,
        pg_get_expr(d.adbin, c.oid))
    FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND NOT a.attisdropped
    LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
    WHERE c.relnamespace = to_regnamespace('minions') AND c.relkind = 'r' AND a.attnum > 0
    UNION ALL SELECT pg_get_indexdef(c.oid)
    FROM pg_class c WHERE c.relnamespace = to_regnamespace('minions') AND c.relkind = 'i'
    UNION ALL SELECT pg_get_constraintdef(oid)
    FROM pg_constraint WHERE connamespace = to_regnamespace('minions')
    UNION ALL SELECT pg_get_functiondef(oid)
    FROM pg_proc WHERE pronamespace = to_regnamespace('minions')
    UNION ALL SELECT pg_get_triggerdef(t.oid)
    FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
    WHERE c.relnamespace = to_regnamespace('minions')
    UNION ALL SELECT name FROM minions.applied_migrations
) AS lines (line)
"""
"""All that the migrations make."""
_EMPTY: Final = b"""
DO $$ DECLARE name regclass; BEGIN
    PERFORM set_config('session_replication_role', 'replica', true);  -- no triggers
    FOR name IN SELECT oid FROM pg_class WHERE relnamespace = to_regnamespace('minions')
        AND relkind = 'r' AND relname <> 'applied_migrations'
    LOOP EXECUTE 'DELETE FROM ' || name; END LOOP;
END $$
"""


def _owner() -> str | None:
    """Whom the server runs as: it refuses to be root."""
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"


@contextmanager
def postgres_server(*, syncs: bool = False, most: int = 50) -> Iterator[PostgresServer]:
    """A running one; nothing is left of it afterwards.

    Args:
        most: Connections at a time.
    """
    programs = _programs()
    assert programs is not None
    # Not pytest's folder: the path of a socket is short, and another user must reach it.
    folder = Path(tempfile.mkdtemp(prefix="minions-pg-"))
    if owner := _owner():
        shutil.chown(folder, owner)
    with _watchdog_of(folder) as watchdog:
        server = PostgresServer(folder, programs, watchdog, syncs, most)
        try:
            server.initialize()
            server.start()
            yield server
        finally:
            server.stop()


def _watchdog_of(folder: Path) -> subprocess.Popen[str]:
    """A process that outlives this one, ends the server that it is told of, removes the folder."""
    return subprocess.Popen(
        [sys.executable, "-c", _WATCHDOG, str(folder)],
        stdin=subprocess.PIPE,
        text=True,
        start_new_session=True,  # what ends the tests does not end it
    )
