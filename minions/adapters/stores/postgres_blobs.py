"""Blobs of the PostgreSQL journal: stored under their digest, collected when not referenced."""

from __future__ import annotations

import zlib
from datetime import datetime
from typing import TYPE_CHECKING

from minions.adapters.stores.postgres_link import DamageError
from minions.contracts.journal import BlobCollection
from minions.contracts.stored_sessions import digests_in

if TYPE_CHECKING:
    from minions.adapters.stores.postgres_database import Connection

__all__ = ["collect_blobs", "get_blob", "put_blob"]


async def put_blob(db: Connection, digest: str, packed: bytes, now: datetime | None) -> None:
    """Whoever puts it again is about to name it: it is young again."""
    await db.execute(
        "INSERT INTO minions.blobs (digest, data, put_at) "
        "VALUES (%s, %s, coalesce(%s::timestamptz, clock_timestamp())) "
        "ON CONFLICT (digest) DO UPDATE SET put_at = excluded.put_at",
        [digest, packed, now],
    )


async def get_blob(db: Connection, digest: str) -> bytes | None:
    """The packed bytes of a blob; None: there is none."""
    found = await db.execute(
        "SELECT data FROM minions.blobs WHERE digest = %s", [digest], binary=True
    )
    row = await found.fetchone()
    if row is None:
        return None
    try:
        return zlib.decompress(row[0])
    except zlib.error as error:
        raise DamageError(f"the blob {digest} cannot be unpacked ({error})") from error


async def collect_blobs(
    db: Connection, now: datetime | None, spare_s: float, *, dry_run: bool
) -> BlobCollection:
    """The young ones are left out twice: one may be put again while the bodies are read."""
    old = "put_at <= coalesce(%s::timestamptz, clock_timestamp()) - make_interval(secs => %s)"
    found = await db.execute(
        f"SELECT digest, octet_length(data) FROM minions.blobs WHERE {old}".encode(),  # noqa: S608  # a constant
        [now, spare_s],
    )
    sizes: dict[str, int] = dict(await found.fetchall())
    named = await _named(db) if sizes else set()
    useless = {digest: size for digest, size in sizes.items() if digest not in named}
    if useless and not dry_run:
        await db.execute(
            f"DELETE FROM minions.blobs WHERE {old} AND digest = ANY(%s)".encode(),  # noqa: S608  # a constant
            [now, spare_s, list(useless)],
        )
    return BlobCollection(blobs=len(useless), bytes=sum(useless.values()))


async def _named(db: Connection) -> set[str]:
    named: set[str] = set()
    rest: set[str] = set()
    async with db.transaction(), db.cursor("bodies", binary=True) as cursor:
        await cursor.execute("SELECT body FROM minions.entries")
        async for (body,) in cursor:
            rest |= digests_in(body)
    while rest:
        named |= rest
        found = [await get_blob(db, digest) for digest in rest]
        rest = digests_in(*(data for data in found if data is not None)) - named
    return named
