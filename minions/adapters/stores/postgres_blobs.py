"""Blobs of the PostgreSQL journal: stored under their digest, collected when not referenced."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final

from attrs import frozen

from minions.adapters.stores.call_groups import GroupTerms
from minions.adapters.stores.postgres_groups import CallKind
from minions.adapters.stores.postgres_link import Attempt, DamageError
from minions.contracts.journal.journal import BlobCollection
from minions.contracts.journal.stored_sessions import digests_in

if TYPE_CHECKING:
    from minions.adapters.stores.postgres_database import Connection


@frozen
class PackedBlob:
    """A blob that is to be stored."""

    digest: str
    packed: bytes
    now: datetime | None
    """When it is stored; None: by the server's clock."""


async def _put_alone(attempt: Attempt, blob: PackedBlob) -> None:
    await _put_together(attempt.connection, [blob])


async def _put_together(db: Connection, blobs: Sequence[PackedBlob]) -> Mapping[int, None]:
    """Whoever puts a blob again is about to name it: it is young again."""
    # In one order, as by everybody: two groups that wait for each other would never end.
    rows = {blob.digest: blob for blob in sorted(blobs, key=lambda blob: blob.digest)}.values()
    await db.execute(
        "INSERT INTO minions.blobs (digest, data, put_at) "
        "SELECT digest, data, coalesce(now, clock_timestamp()) "
        "FROM unnest(%s::text[], %s::bytea[], %s::timestamptz[]) AS b (digest, data, now) "
        "ON CONFLICT (digest) DO UPDATE SET put_at = excluded.put_at",
        [[row.digest for row in rows], [row.packed for row in rows], [row.now for row in rows]],
        binary=True,
    )
    return dict.fromkeys(range(len(blobs)))


BLOBS: Final = CallKind(
    alone=_put_alone,
    together=_put_together,
    terms=lambda blob: GroupTerms(blob.digest, None, len(blob.packed)),
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
        locked = (
            "SELECT digest FROM minions.blobs WHERE digest = ANY(%s) ORDER BY digest FOR UPDATE"
        )
        await db.execute(
            f"DELETE FROM minions.blobs WHERE {old} AND digest IN ({locked})".encode(),  # noqa: S608  # constants
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
