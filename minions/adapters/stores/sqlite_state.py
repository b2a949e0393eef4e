"""State in the journal's own SQLite file, in a table of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from minions.adapters.stores.state_store import StateStore, behind
from minions.contracts.runtime import Sleep

if TYPE_CHECKING:
    import sqlite3

    from minions.adapters.stores.sqlite_file import SqliteFile


class SqliteState(StateStore):
    """Survives `kill -9`; shared by the processes of one machine.

    SQLite is loaded and the file opened at the first use: most runs keep no state.
    """

    def __init__(
        self,
        path: str | PathLike[str],
        *,
        busy_timeout_s: float = 30.0,
        sleep: Sleep = asyncio.sleep,
        migrations: Mapping[str, str] | None = None,
    ) -> None:
        """No I/O here; the arguments are those of `SqliteJournal`."""
        self.path = Path(path)
        self._busy_timeout_s = busy_timeout_s
        self._sleep = sleep
        self._migrations = migrations
        self._made: SqliteFile | None = None

    async def put(self, key: str, text: str) -> None:
        """Committed when this returns.

        Raises:
            JournalError: The file cannot be used, or the key has half a character.
        """
        await self._file.run(lambda db: _put(db, key, text), is_landmark=True)

    async def get(self, key: str) -> str | None:
        """As the contract says.

        Raises:
            JournalError: The file cannot be used, or the key has half a character.
        """
        return await self._file.run(lambda db: _get(db, key), is_landmark=True)

    async def keys(self, start: str = "") -> Sequence[str]:
        """In the order of their code points.

        Raises:
            JournalError: The file cannot be used.
        """
        return await self._file.run(lambda db: _keys(db, start), is_landmark=True)

    async def remove(self, key: str) -> None:
        """Committed when this returns.

        Raises:
            JournalError: The file cannot be used, or the key has half a character.
        """
        await self._file.run(lambda db: _remove(db, key), is_landmark=True)

    async def aclose(self) -> None:
        """Close the file, if it was opened."""
        if self._made is not None:
            self._made.close()

    @property
    def _file(self) -> SqliteFile:
        if self._made is None:
            from minions.adapters.stores.sqlite_file import SqliteFile

            self._made = SqliteFile(
                self.path,
                busy_timeout_s=self._busy_timeout_s,
                sleep=self._sleep,
                migrations=self._migrations,
            )
        return self._made


def _put(db: sqlite3.Connection, key: str, text: str) -> None:
    db.execute(
        "INSERT INTO state (key, value) VALUES (?, ?) "
        "ON CONFLICT (key) DO UPDATE SET value = excluded.value",
        (key, text),
    )


def _get(db: sqlite3.Connection, key: str) -> str | None:
    row = db.execute("SELECT value FROM state WHERE key = ?", (key,)).fetchone()
    return None if row is None else _text(row[0])


def _remove(db: sqlite3.Connection, key: str) -> None:
    db.execute("DELETE FROM state WHERE key = ?", (key,))


def _keys(db: sqlite3.Connection, start: str) -> Sequence[str]:
    if not start:
        found = db.execute("SELECT key FROM state ORDER BY key")
    else:
        found = db.execute(
            "SELECT key FROM state WHERE key >= ? AND key < ? ORDER BY key", (start, behind(start))
        )
    return [_text(key) for (key,) in found]


def _text(stored: object) -> str:
    if not isinstance(stored, str):
        from minions.adapters.stores.sqlite_file import DamageError

        raise DamageError("a key or value of its state is no text")
    return stored
