"""The blobs of a SQLite journal, which of them nothing names, and the room that they leave."""

from __future__ import annotations

import contextlib
import sqlite3
import zlib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Final

from minions.adapters.stores.sqlite_database import is_busy, transaction
from minions.adapters.stores.sqlite_file import DamageError
from minions.contracts.journal.stored_sessions import digests_in

_FAST_COMPRESSION: Final = 1


def packed(data: bytes) -> bytes:
    """The bytes as they are stored."""
    return zlib.compress(data, _FAST_COMPRESSION)


def touch_blob(db: sqlite3.Connection, digest: str, now: int) -> bool:
    """Whether it is there. Whoever puts it again is about to name it: it is young again."""
    touched = db.execute("UPDATE blobs SET put_at = ? WHERE digest = ?", (now, digest))
    return touched.rowcount > 0


def put_blob(db: sqlite3.Connection, digest: str, data: bytes, now: int) -> None:
    """Store it once.

    Args:
        data: Packed.
    """
    if not touch_blob(db, digest, now):
        db.execute(
            "INSERT INTO blobs (digest, data, put_at) VALUES (?, ?, ?) "
            "ON CONFLICT (digest) DO UPDATE SET put_at = excluded.put_at",
            (digest, data, now),
        )


def useless_blobs(db: sqlite3.Connection, latest: int) -> Mapping[str, int]:
    """Each with its size, in one state of the database."""
    db.execute("BEGIN")
    try:
        named = set[str]()
        rest = _named_by_entries(db)
        while rest:
            named |= rest
            found = (get_blob(db, digest) for digest in rest)
            rest = digests_in(*(data for data in found if data is not None)) - named
        old = db.execute("SELECT digest, length(data) FROM blobs WHERE put_at <= ?", (latest,))
        return {digest: size for digest, size in old if digest not in named}
    finally:
        db.execute("ROLLBACK")


def _named_by_entries(db: sqlite3.Connection) -> set[str]:
    bodies = db.execute("SELECT body, body_digest FROM entries")
    return {
        digest
        for body, body_digest in bodies
        for digest in (digests_in(body) if body_digest is None else (body_digest,))
    }


def drop_blobs(db: sqlite3.Connection, digests: Collection[str], latest: int) -> None:
    """Those of them that nobody has put again since `latest`."""
    with transaction(db):
        db.executemany(
            "DELETE FROM blobs WHERE digest = ? AND put_at <= ?",
            [(digest, latest) for digest in digests],
        )


def get_blob(db: sqlite3.Connection, digest: str) -> bytes | None:
    """Its bytes, if there is one."""
    data = packed_blob(db, digest)
    return None if data is None else decompressed(data, digest)


def packed_blob(db: sqlite3.Connection, digest: str) -> bytes | None:
    """Its bytes as they are stored, if there is one."""
    row = db.execute("SELECT data FROM blobs WHERE digest = ?", (digest,)).fetchone()
    return None if row is None else row[0] or b""


def decompressed(data: bytes | None, digest: str) -> bytes:
    """The bytes that were put.

    Raises:
        DamageError: They are not what was stored.
    """
    try:
        return zlib.decompress(data or b"")
    except (zlib.error, TypeError) as error:
        raise DamageError(f"the blob {digest} cannot be unpacked ({error})") from error


def unpacks_to_more(data: bytes | None, most: int) -> bool:
    """Whether these packed bytes are more than so many; False where they cannot be unpacked."""
    unpacking = zlib.decompressobj()
    try:
        return len(unpacking.decompress(data or b"", most + 1)) > most
    except (zlib.error, TypeError):
        return False


def compact(db: sqlite3.Connection, path: Path) -> int:
    """Make the file smaller where nobody else has it open; by how many bytes."""
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    before = path.stat().st_size
    (free,) = db.execute("PRAGMA freelist_count").fetchone()
    if not free:
        return 0
    with _not_when_busy():  # only who is alone may leave the mode in which several write
        db.execute("PRAGMA journal_mode = DELETE")
        db.execute("VACUUM")
    with _not_when_busy():
        db.execute("PRAGMA journal_mode = WAL")
    return max(before - path.stat().st_size, 0)


@contextlib.contextmanager
def _not_when_busy() -> Iterator[None]:
    try:
        yield
    except sqlite3.OperationalError as error:
        if not is_busy(error):
            raise
