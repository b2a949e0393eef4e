"""The stores of journal, saved values and cached outputs: SQLite, PostgreSQL or memory."""

from __future__ import annotations

import logging
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from minions.adapters.stores.memory_stores import MemoryState, StateStore
from minions.adapters.stores.postgres_url import is_postgres_url, without_password
from minions.app.settings.settings import Settings
from minions.app.settings.user_folders import user_data_folder
from minions.contracts.runtime import Log
from minions.data.errors import UsageError

if TYPE_CHECKING:
    from minions.adapters.stores.body_cipher import BodyCipher
    from minions.contracts.dispatch import DispatchEngine
    from minions.contracts.journal.journal import Journal
    from minions.contracts.runtime import Clock
    from minions.contracts.steps import StepCache


def _default_database() -> Path:
    """The path of the command line's journal if none is configured."""
    return user_data_folder() / "journal.sqlite"


def database_of(settings: Settings, folder: Path) -> Path:
    """The file of the configured SQLite database; check `postgres_of` first.

    Raises:
        UsageError: `unknown-database`; it is a URL of another kind.
    """
    if settings.db is None:
        return _default_database()
    text = settings.db.removeprefix("sqlite:///")
    if "://" in text:
        raise UsageError(
            f"db={without_password(settings.db)!r}: expected PATH or sqlite:///PATH of an SQLite "
            "file, or postgresql://USER@HOST/DATABASE.",
            code="unknown-database",
        )
    return (folder / Path(text).expanduser()).resolve()


def postgres_of(settings: Settings) -> str | None:
    """The URL of the configured PostgreSQL database, with its password; None: it is a file."""
    return settings.db if settings.db is not None and is_postgres_url(settings.db) else None


def place_of_journal(settings: Settings, folder: Path) -> str:
    """The path of the journal, or its URL without the password.

    Raises:
        UsageError: `unknown-database`; it is a URL of another kind.
    """
    url = postgres_of(settings)
    return without_password(url) if url is not None else str(database_of(settings, folder))


def has_database(settings: Settings, folder: Path) -> bool:
    """Whether the configured database may exist already; a server is not asked."""
    return postgres_of(settings) is not None or database_of(settings, folder).exists()


def make_journal(settings: Settings, folder: Path) -> Journal:
    """The configured journal; in memory with `no_store`. Opens nothing yet.

    Raises:
        UsageError: `unknown-database`, `bad-configuration`; it is none that can be used.
    """
    from minions.contracts.runtime import SystemClock

    if settings.no_store:
        from minions.engine.services.memory_journal import MemoryJournal

        return MemoryJournal(SystemClock())
    place, replica = postgres_of(settings), settings.journal.replica
    cipher = cipher_of_settings(settings)
    if replica is None:
        return journal_at(place or database_of(settings, folder), SystemClock(), cipher)
    if place is None or not is_postgres_url(replica):
        raise UsageError(
            f"journal.replica={without_password(replica)!r}: expected postgresql://USER@HOST/"
            "DATABASE of a standby of the server that `db` names, which is in PostgreSQL, too.",
            code="bad-configuration",
        )
    from minions.adapters.stores.postgres_replica import Replica, ReplicatedJournal

    logger = logging.getLogger("minions.journal")
    copy = Replica(url=replica, tell=lambda line: logger.warning("%s", line))
    return ReplicatedJournal(place, SystemClock(), copy, cipher=cipher)


def cipher_of_settings(settings: Settings) -> BodyCipher | None:
    """What encrypts the journal; None: nothing does. Reads the file of the keys.

    Raises:
        UsageError, EnvironmentRefusedError: The keys cannot be used.
    """
    name = settings.journal.encryption_key_file
    return None if name is None else _cipher_of(name)


def _cipher_of(name: str) -> BodyCipher:
    from minions.adapters.stores.body_cipher import cipher_of

    file = Path(name).expanduser()
    if not file.is_absolute():
        raise UsageError(
            f"journal.encryption_key_file={name!r}: expected an absolute path, or one from ~/.",
            code="bad-configuration",
        )
    return cipher_of(file)


def journal_at(
    place: str | PathLike[str], clock: Clock, cipher: BodyCipher | None = None
) -> Journal:
    """The journal in that SQLite file, or at that `postgresql://` URL. Opens nothing yet."""
    if isinstance(place, str) and is_postgres_url(place):
        from minions.adapters.stores.postgres_journal import PostgresJournal

        return PostgresJournal(place, clock, cipher=cipher)
    from minions.adapters.stores.sqlite_journal import SqliteJournal

    return SqliteJournal(place, clock, cipher=cipher)


def make_state(settings: Settings, folder: Path) -> StateStore:
    """The store of saved values, in the journal's database. Opens and loads nothing yet."""
    if settings.no_store:
        return MemoryState()
    state: StateStore
    if (url := postgres_of(settings)) is not None:
        from minions.adapters.stores.postgres_side_tables import PostgresState

        state = PostgresState(url)
    else:
        from minions.adapters.stores.sqlite_side_tables import SqliteState

        state = SqliteState(database_of(settings, folder))
    return _sealed_state(state, cipher_of_settings(settings))


def _sealed_state(state: StateStore, cipher: BodyCipher | None) -> StateStore:
    if cipher is None:
        return state
    from minions.adapters.stores.sealed_stores import SealedState

    return SealedState(state, cipher)


async def rewrite_values(state: StateStore) -> int:
    """Encrypt saved values under the first key; how many were not."""
    from minions.adapters.stores.sealed_stores import SealedState

    return await state.rewrite() if isinstance(state, SealedState) else 0


def database_backups(settings: Settings, folder: Path) -> list[Path]:
    """The copies of an SQLite file that its migrations left beside it."""
    if settings.no_store or postgres_of(settings) is not None:
        return []
    file = database_of(settings, folder)
    return sorted(file.parent.glob(f"{file.name}.bak-*"))


def state_beside(journal: Journal) -> StateStore:
    """The store of saved values in that journal's database; in memory if it has none."""
    from minions.engine.services.memory_journal import MemoryJournal

    if isinstance(journal, MemoryJournal):
        return MemoryState()
    from minions.adapters.stores.postgres_journal import PostgresJournal
    from minions.adapters.stores.sqlite_journal import SqliteJournal
    from minions.adapters.stores.sqlite_side_tables import SqliteState

    if isinstance(journal, PostgresJournal):
        return _sealed_state(journal.state_beside(), journal.cipher)
    if isinstance(journal, SqliteJournal):
        return _sealed_state(SqliteState(journal.path), journal.cipher)
    return MemoryState()


def make_cache(settings: Settings, folder: Path) -> StepCache:
    """The cache of step outputs, in the journal's database; none with `no_cache`. Opens nothing."""
    from minions.adapters.stores.memory_stores import MemoryStepCache, NoStepCache

    if settings.no_cache:
        return NoStepCache()
    if settings.no_store:
        return MemoryStepCache(
            max_entries=settings.max_cache_entries, max_bytes=settings.max_cache_bytes
        )
    cache: StepCache
    if (url := postgres_of(settings)) is not None:
        from minions.adapters.stores.postgres_side_tables import PostgresStepCache

        cache = PostgresStepCache(
            url, max_entries=settings.max_cache_entries, max_bytes=settings.max_cache_bytes
        )
    else:
        from minions.adapters.stores.sqlite_side_tables import SqliteStepCache

        cache = SqliteStepCache(
            database_of(settings, folder),
            max_entries=settings.max_cache_entries,
            max_bytes=settings.max_cache_bytes,
        )
    if (cipher := cipher_of_settings(settings)) is None:
        return cache
    from minions.adapters.stores.sealed_stores import SealedStepCache

    return SealedStepCache(cache, cipher)


# --- the engine that gives runs to workers, by the database of the journal -----------------------


def make_dispatch(settings: Settings, log: Log) -> DispatchEngine:
    """The engine of a worker: over DBOS where the journal is in PostgreSQL, else in the process.

    Workers of one SQLite file find queued runs in it, and a lease decides which of them has one.
    Opens nothing yet.
    """
    shared = shared_dispatch(settings, log)
    if shared is not None:
        return shared
    from minions.adapters.dispatch.local_dispatch import LocalDispatch
    from minions.contracts.runtime import SystemClock

    return LocalDispatch(SystemClock())


def shared_dispatch(settings: Settings, log: Log) -> DispatchEngine | None:
    """The engine to which a process submits that executes nothing itself; None: workers find what
    is queued in the journal alone. Opens nothing yet.
    """
    if settings.no_store or (url := postgres_of(settings)) is None:
        return None
    from minions.adapters.dispatch.dbos_dispatch import DbosDispatch
    from minions.engine.services.run_services import is_worker_gone

    return DbosDispatch(url, log, is_gone=is_worker_gone)
