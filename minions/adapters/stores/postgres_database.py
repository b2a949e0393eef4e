"""A PostgreSQL database of ours: connected to, migrated by one process at a time, faults in words.

What is stored in it is not known here, nor who uses the connection (`postgres_link`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from minions.adapters.stores.migrations import missing_migrations
from minions.adapters.stores.postgres_url import hidden_in, is_ambiguous, without_password
from minions.data.errors import EnvironmentRefusedError, JournalError

if TYPE_CHECKING:
    import psycopg
    from psycopg.rows import TupleRow

    Connection: TypeAlias = psycopg.AsyncConnection[TupleRow]


_MIGRATION_LOCK: Final = 5_506_021_906_420_777_551
"""An advisory lock of the database: its holder alone migrates."""
_LONGEST_PAUSE_IN_A_TRANSACTION_S: Final = 5
"""A worker that is stopped in the middle of one must not keep the others out for longer."""


def bundled_migrations() -> dict[str, str]:
    """The SQL of each migration by its name (`0001_journal`), oldest first."""
    scripts = sorted(Path(__file__).with_name("postgres_migrations").glob("*.sql"))
    return {script.stem: script.read_text("utf-8") for script in scripts}


async def connect(
    url: str, migrations: Mapping[str, str], *, connect_timeout_s: float, statement_timeout_s: float
) -> Connection:
    """A connection in autocommit mode to the database, which is migrated as needed.

    Args:
        migrations: SQL by name, oldest first.
        connect_timeout_s: For a server that does not answer; `connect_timeout` in the URL wins.
        statement_timeout_s: After which the server gives a statement up.
    Raises:
        JournalError: It cannot be reached, is newer than `migrations`, or is not ours.
        EnvironmentRefusedError: psycopg is not installed.
    """
    if is_ambiguous(url):
        raise _no_url(url)
    require_psycopg()
    import psycopg
    from psycopg.conninfo import conninfo_to_dict

    try:
        wanted = conninfo_to_dict(url).get("connect_timeout")
        async with asyncio.timeout(float(wanted or connect_timeout_s) or None):
            connection = await psycopg.AsyncConnection.connect(
                url, autocommit=True, prepare_threshold=0
            )
    except (psycopg.ProgrammingError, ValueError):
        raise _no_url(url) from None
    except (psycopg.Error, OSError, TimeoutError) as error:
        raise unreachable(url, error) from None  # its own text is in ours, without a password
    try:
        await _prepare(connection, url, migrations, statement_timeout_s)
    except psycopg.Error as error:
        is_lost = connection.closed or is_connection_lost(error)
        await connection.close()
        raise (unreachable if is_lost else journal_error)(url, error) from error
    except BaseException:
        await connection.close()
        raise
    return connection


def require_psycopg() -> None:
    """Load it.

    Raises:
        EnvironmentRefusedError: It is not installed, or its C library is not.
    """
    try:
        import psycopg  # noqa: F401  # whether it can be
    except ImportError as error:
        raise EnvironmentRefusedError(
            f"A journal in PostgreSQL needs psycopg, which cannot be loaded ({error}). "
            f"Install it: {_INSTALL}",
            code="missing-package",
            suggestions=[_INSTALL],
        ) from error


_INSTALL: Final = "pip install 'minions-engine[postgres]'"


async def _prepare(
    connection: Connection, url: str, migrations: Mapping[str, str], statement_timeout_s: float
) -> None:
    found = await connection.execute(
        _SET_UP,
        {
            "statement": str(round(statement_timeout_s * 1000)),
            "pause": str(_LONGEST_PAUSE_IN_A_TRANSACTION_S * 1000),
        },
        prepare=False,
    )
    encoding, has_migrations, backend, *_ = await found.fetchone() or ("", False, 0)
    if backend != connection.info.backend_pid:  # a pooler tells clients numbers of its own
        await _refuse_shared_backend(url, backend)
    if encoding != "UTF8":
        raise JournalError(
            f"{without_password(url)} keeps its texts in {encoding}, which not every text fits "
            "into. Give the journal a database of its own: createdb --encoding=UTF8 "
            "--template=template0 NAME",
            code="bad-encoding",
            where=without_password(url),
        )
    applied = await _apply(connection) if has_migrations else []
    if _missing(applied, url, migrations):
        await _migrate(connection, url, migrations)


_SET_UP: Final = """
SELECT current_setting('server_encoding'), to_regclass('minions.applied_migrations') IS NOT NULL,
    pg_backend_pid(),
    set_config('TimeZone', 'UTC', false),
    set_config('statement_timeout', %(statement)s, false),
    set_config('idle_in_transaction_session_timeout', %(pause)s, false),
    -- What is acknowledged must survive the death of the server; a stricter setting is kept.
    CASE current_setting('synchronous_commit')
        WHEN 'off' THEN set_config('synchronous_commit', 'on', false) END
"""


async def _refuse_shared_backend(url: str, backend: int) -> None:
    """Refuse a pooler that gives another client the backend that this one has just used.

    It may have another one free: then its first error says it (`_SHARED`).
    """
    import psycopg

    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as other:
        found = await other.execute("SELECT pg_backend_pid()", prepare=False)
        if await found.fetchone() == (backend,):
            code, remedy = _SHARED
            what = "a connection pooler gives each transaction any of the server's connections"
            raise _refused(url, what, code, remedy)


async def _apply(connection: Connection) -> Sequence[str]:
    found = await connection.execute("SELECT name FROM minions.applied_migrations ORDER BY name")
    return [name for (name,) in await found.fetchall()]


def _missing(applied: Sequence[str], url: str, migrations: Mapping[str, str]) -> Sequence[str]:
    """The names of the migrations that are left to apply."""
    place = without_password(url)
    return missing_migrations(applied, migrations, place, where=place)


async def _migrate(connection: Connection, url: str, migrations: Mapping[str, str]) -> None:
    """All or nothing; another process that comes at the same time waits, and finds it done."""
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock(%s)", [_MIGRATION_LOCK])
        await _make_room(connection, url)
        applied = await _apply(connection)
        for name in _missing(applied, url, migrations):
            await connection.execute(migrations[name], prepare=False)
            await connection.execute(
                "INSERT INTO minions.applied_migrations (name) VALUES (%s)", [name]
            )


async def _make_room(connection: Connection, url: str) -> None:
    found = await connection.execute(
        "SELECT n.oid IS NOT NULL, min(c.relname), bool_or(c.relname = 'applied_migrations') "
        "FROM (VALUES (to_regnamespace('minions')::oid)) AS n (oid) "
        "LEFT JOIN pg_class c ON c.relnamespace = n.oid AND c.relkind = 'r' GROUP BY n.oid"
    )
    has_schema, table, is_ours = await found.fetchone() or (False, None, None)
    if is_ours:
        return
    if table is not None:
        raise JournalError(
            f"{without_password(url)} has a schema 'minions' of another program (with the table "
            f"'{table}'). Give the journal a database of its own.",
            code="not-a-journal",
            where=without_password(url),
        )
    if not has_schema:  # IF NOT EXISTS would ask for the right to make one where it is there
        await connection.execute("CREATE SCHEMA minions")
    await connection.execute(
        "CREATE TABLE minions.applied_migrations "
        '(name text COLLATE "C" PRIMARY KEY, applied_at timestamptz NOT NULL DEFAULT now())'
    )


# --- faults ----------------------------------------------------------------------------------


def is_connection_lost(error: psycopg.Error) -> bool:
    """Whether the server ended the connection, so that another one can help."""
    state = error.sqlstate or ""
    # 57P01 to 57P05: it was told to end, crashed, starts anew, or the database is gone.
    return state.startswith(("08", "57P")) or state == "25P03"


_BUSY: Final = (
    "database-busy",
    "Another connection keeps it locked, or the server is overloaded. Wait and try again.",
)
_DAMAGED: Final = (
    "corrupt-database",
    "The database is damaged. Restore a backup, or use another database.",
)
_SHARED: Final = (
    "pooler-mode",
    "Let it work in session mode (PgBouncer: pool_mode = session), or connect to the server.",
)
_REMEDIES: Final[Mapping[str, tuple[str, str]]] = {
    "57014": _BUSY,
    "55P03": _BUSY,
    "40P01": _BUSY,
    "53100": ("disk-full", "The server's disk is full. Free some space and resume the run."),
    "53200": ("server-overloaded", "The server has no memory left. Wait and try again."),
    "53300": ("too-many-connections", "Raise max_connections, or run fewer workers."),
    "42501": (
        "not-permitted",
        "Let its user make a schema: GRANT CREATE ON DATABASE … TO …",
    ),
    "25006": ("read-only", "The database is read-only, as that of a standby is. Use the primary."),
    "26000": _SHARED,  # a prepared statement is not there, or another client's is
    "42P05": _SHARED,
    "42P01": _DAMAGED,
    "42703": _DAMAGED,
    "3F000": _DAMAGED,
    "XX001": _DAMAGED,
    "XX002": _DAMAGED,
    "54000": ("key-too-long", "Keys and ids have some 2,000 characters at most."),
}


def journal_error(url: str, error: psycopg.Error) -> JournalError:
    """What went wrong in the database, as a person can use it."""
    code, remedy = _REMEDIES.get(
        error.sqlstate or "", ("journal", "Look into the server's log, or use another database.")
    )
    return _refused(url, _words(url, error), code, remedy)


def damaged(url: str, what: str) -> JournalError:
    """The database holds what was never written to it."""
    return _refused(url, what, *_DAMAGED)


def unreachable(url: str, error: Exception) -> JournalError:
    """Nobody answers, or the server does not let us in."""
    words = "no answer in time" if isinstance(error, TimeoutError) else _words(url, error)
    return JournalError(
        f"The journal {without_password(url)} cannot be reached at {_place(url)}: {words}. Check "
        "that the server runs there, and the user, password and database of the URL.",
        code="database-unreachable",
        where=without_password(url),
    )


def _refused(url: str, what: str, code: str, remedy: str) -> JournalError:
    shown = without_password(url)
    return JournalError(
        f"The journal {shown} cannot be used: {what}. {remedy}", code=code, where=shown
    )


def _no_url(url: str) -> JournalError:
    # The parser's own words are left out: they may quote half a password.
    return JournalError(
        f"{without_password(url)!r} is no URL of a PostgreSQL database. Expected "
        "postgresql://USER@HOST:PORT/DATABASE; of a password or user name everything but letters "
        "and digits is percent-encoded (`@` as %40, `/` as %2F).",
        code="unknown-database",
        where=without_password(url),
    )


def _words(url: str, error: Exception) -> str:
    """The first line, which says what; without a password."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    text = lines[0].removeprefix("connection failed: ").rstrip(". ")
    for word in hidden_in(url):
        text = text.replace(word, "***")
    return text


def database_key(url: str) -> str:
    """A text that is equal for URLs that mean the same database on the same servers, whatever their
    users, passwords, parameters and spelling are. Connects nowhere; a name and an address of one
    host are two, but for those of this machine.
    """
    import psycopg

    try:
        known = _parameters(url)
    except psycopg.Error:
        return url  # whoever opens it says what is wrong
    if "service" in known:  # what it says stands in a file
        return url
    hosts = (known.get("hostaddr") or known.get("host") or "").split(",")
    ports = known.get("port", "5432").split(",")
    ports = ports * len(hosts) if len(ports) == 1 else ports
    names = ("localhost" if each in _OWN_HOSTS else each.rstrip(".") for each in hosts)
    servers = sorted({f"{host.lower()}:{port}" for host, port in zip(names, ports, strict=False)})
    return f"{','.join(servers)}/{known.get('dbname') or known.get('user', '')}"


_OWN_HOSTS: Final = frozenset({"127.0.0.1", "::1", "localhost"})


def _parameters(url: str) -> Mapping[str, str]:
    """The parameters of a connection, as libpq understands them, with the defaults."""
    from psycopg import conninfo, pq

    known = {
        option.keyword.decode(): option.val.decode()
        for option in pq.Conninfo.get_defaults()
        if option.val
    }
    return known | {key: str(value) for key, value in conninfo.conninfo_to_dict(url).items()}


def _place(url: str) -> str:
    """`host:port` or the folder of the socket, as libpq understands it."""
    known = _parameters(url)
    host = known.get("hostaddr") or known.get("host") or "the local socket"
    return f"{host}:{known.get('port', '5432')}"
