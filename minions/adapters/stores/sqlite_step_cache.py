"""The step cache in the journal's own SQLite file, in a table of its own."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Final

from minions.contracts.runtime import Sleep
from minions.contracts.step_cache import CachedStep, StepCache

if TYPE_CHECKING:
    import sqlite3

    from minions.adapters.stores.sqlite_file import SqliteFile

__all__ = ["SqliteStepCache"]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class SqliteStepCache(StepCache):
    """Shared by the processes of one machine; forgets nothing by itself.

    SQLite is loaded and the file opened at the first use: most runs cache nothing.
    """

    def __init__(
        self,
        path: str | PathLike[str],
        *,
        busy_timeout_s: float = 1.0,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        """No I/O here.

        Args:
            path: Of the journal's database.
            busy_timeout_s: Short: doing the step is better than waiting for a cache.
        """
        self.path = Path(path)
        self._busy_timeout_s = busy_timeout_s
        self._sleep = sleep
        self._made: SqliteFile | None = None

    async def get(self, key: str) -> CachedStep | None:
        """As the contract says.

        Raises:
            JournalError: The file cannot be used, or stayed busy.
        """
        return await self._file.run(lambda db: _get(db, key), is_landmark=True)

    async def put(self, key: str, entry: CachedStep) -> None:
        """Committed when this returns.

        Raises:
            JournalError: The file cannot be used, or stayed busy.
        """
        await self._file.run(lambda db: _put(db, key, entry), is_landmark=True)

    async def clear(self) -> int:
        """Committed when this returns.

        Raises:
            JournalError: The file cannot be used, or stayed busy.
        """
        return await self._file.run(
            lambda db: db.execute("DELETE FROM step_cache").rowcount, is_landmark=True
        )

    async def aclose(self) -> None:
        """Close the file, if it was opened."""
        if self._made is not None:
            self._made.close()

    @property
    def _file(self) -> SqliteFile:
        if self._made is None:
            from minions.adapters.stores.sqlite_file import SqliteFile

            self._made = SqliteFile(
                self.path, busy_timeout_s=self._busy_timeout_s, sleep=self._sleep
            )
        return self._made


def _get(db: sqlite3.Connection, key: str) -> CachedStep | None:
    row = db.execute(
        "SELECT output, run_id, created_at FROM step_cache WHERE key = ?", (key,)
    ).fetchone()
    return None if row is None else _entry(*row)


def _put(db: sqlite3.Connection, key: str, entry: CachedStep) -> None:
    at = (entry.created_at - _EPOCH) // timedelta(microseconds=1)
    db.execute(
        "INSERT INTO step_cache (key, output, run_id, created_at) VALUES (?, ?, ?, ?) "
        "ON CONFLICT (key) DO UPDATE SET output = excluded.output, run_id = excluded.run_id, "
        "created_at = excluded.created_at",
        (key, json.dumps(entry.output), entry.run_id, at),
    )


def _entry(output: object, run_id: object, at: object) -> CachedStep:
    if not (isinstance(output, str) and isinstance(run_id, str) and isinstance(at, int)):
        raise _damage("a value in its step cache is of another type")
    try:
        value = json.loads(output)
    except ValueError as error:
        raise _damage("an output in its step cache is no JSON") from error
    created_at = _EPOCH + timedelta(microseconds=at)
    return CachedStep(output=value, run_id=run_id, created_at=created_at)


def _damage(what: str) -> Exception:
    from minions.adapters.stores.sqlite_file import DamageError

    return DamageError(what)
