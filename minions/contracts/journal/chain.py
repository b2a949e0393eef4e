"""The hash chain of a session: the value of each entry covers its row and the value before it.

Here are the form of a row that is hashed, and what a verification finds. Stores keep the values.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final

from msgspec import Struct
from msgspec.json import Encoder
from msgspec.structs import replace

from minions.data.json_values import JsonValue, dumps, parse_json

GENESIS: Final = bytes(32)
"""What stands for the value before the first one."""

LARGEST_INLINE_BODY: Final = 32 * 1024
"""Bytes; a larger body is hashed by its digest, and SQLite stores it as a blob."""


class ChainedRow(Struct, frozen=True, kw_only=True, gc=False):
    """A row of a journal, as it is hashed."""

    session_id: str
    position: int
    """0: what stands there is no number."""
    run_id: str
    generation: int
    key: str
    kind: str
    state: str
    body: str | None
    """JSON; None: it is large, or not valid Unicode."""
    body_digest: str | None
    """SHA-256 of the body in hex, where `body` is None."""
    epoch: int
    at: int
    """Microseconds since 1970, in UTC."""
    chain: bytes | None
    """The value that is stored; None: the row was written by a version without chains."""
    damage: str | None = None
    """Why it cannot be read; None: it can."""
    raw: bytes | None = None
    """The body, where a store that reads it has only its digest above."""


class ChainHead(Struct, frozen=True, gc=False):
    """The end of a chain."""

    epoch: int
    """Of the lease of whoever wrote it."""
    position: int
    """Of the last entry; 0: there is none."""
    value: bytes
    """Its value; empty: a version without chains wrote it."""


class StoredChain(Struct, frozen=True):
    """What a journal holds of one session."""

    rows: Sequence[ChainedRow]
    """In the order of their positions."""
    head: ChainHead | None = None
    """The end as it is stored beside the entries, which may have become more since; None: none is
    stored."""


class ChainFault(Struct, frozen=True, kw_only=True):
    """The first thing that is wrong in a session."""

    position: int
    what: str
    """`changed`, `removed`, `inserted`, `swapped`, `cut` (at the end), `damaged`, or `signature`:
    it is not what was signed."""
    words: str


class ChainReport(Struct, frozen=True, kw_only=True):
    """What the verification of one session found."""

    session_id: str
    entries: int
    uncovered: int = 0
    """So many entries, the first ones, were written by a version without chains."""
    head: str | None = None
    """The value of the last entry, in hex; None: no entry has one."""
    values: Sequence[str | None] = ()
    """Those of all entries."""
    fault: ChainFault | None = None
    """None: each entry that has a value is the one that was written."""


class SignedHead(Struct, frozen=True, kw_only=True):
    """The head of a session's chain when a run ended, signed by the operator."""

    session_id: str
    entries: int
    """The position of the entry whose value is signed: it covers all up to it."""
    head: str
    """The value, in hex."""
    at: datetime
    public_key: str = ""
    """Of Ed25519, in hex."""
    signature: str = ""
    """Over `to_bytes`, in hex."""

    def to_bytes(self) -> bytes:
        """What is signed."""
        parts: list[JsonValue] = [self.session_id, self.entries, self.head, self.at.isoformat()]
        return b"minions session head\n" + dumps(parts).encode("utf-8", "surrogatepass")

    def to_document(self) -> dict[str, JsonValue]:
        """The document that a webhook posts."""
        return {
            "type": "session.head",
            "timestamp": self.at.isoformat(),
            "data": {
                "session_id": self.session_id,
                "entries": self.entries,
                "head": self.head,
                "public_key": self.public_key,
                "signature": self.signature,
            },
        }


class HeadKeeper(ABC):
    """Is told of the end of each execution of a run, to keep the head of its session elsewhere."""

    @abstractmethod
    async def run_ended(self, session_id: str, run_id: str) -> None:
        """The end is recorded, and nobody else writes to the session meanwhile. Raises nothing."""


def link(before: bytes, row: tuple[str | int | None, ...]) -> bytes:
    """The value of a row.

    Args:
        before: The value of the row before it.
        row: The fields of `ChainedRow` up to `at`, in that order.
    """
    # In one array, so that no field can borrow from its neighbour. The same bytes are written by
    # json.dumps(row, ensure_ascii=False, separators=(",", ":")).
    return hashlib.sha256(before + _ENCODE(row)).digest()


_ENCODE: Final = Encoder().encode


def link_of(before: bytes, row: ChainedRow) -> bytes:
    """The value of a row that was read."""
    return link(
        before,
        (
            row.session_id, row.position, row.run_id, row.generation, row.key, row.kind, row.state,
            row.body, row.body_digest, row.epoch, row.at,
        ),
    )  # fmt: skip


def hashed_body(data: bytes) -> tuple[str | None, str | None]:
    """The fields `body` and `body_digest` of a row with this body."""
    if len(data) <= LARGEST_INLINE_BODY:
        try:
            return data.decode(), None
        except UnicodeDecodeError:  # half a character has no UTF-8
            pass
    return None, hashlib.sha256(data).hexdigest()


def chained(rows: Iterable[ChainedRow]) -> list[ChainedRow]:
    """Rows with their values, from the first one of a session on."""
    found, before = list[ChainedRow](), GENESIS
    for row in rows:
        before = link_of(before, row)
        found.append(replace(row, chain=before))
    return found


# --- verification ----------------------------------------------------------------------------


def verify_chain(session_id: str, stored: StoredChain) -> ChainReport:
    """Compare each row with its value, and the last one with the end that is stored beside."""
    rows, values = (
        stored.rows,
        [None if row.chain is None else row.chain.hex() for row in stored.rows],
    )
    report = ChainReport(
        session_id=session_id,
        entries=len(rows),
        head=values[-1] if values else None,
        values=values,
    )
    before, uncovered = GENESIS, 0
    for number, row in enumerate(rows, 1):
        if (fault := _fault_of_place(rows, number)) is not None:
            return replace(report, fault=fault, uncovered=uncovered)
        if row.chain is None and uncovered == number - 1:
            uncovered += 1
            continue
        value = link_of(before, row)
        if value != row.chain:
            return replace(report, fault=_fault_of_row(rows, number, before), uncovered=uncovered)
        before = value
    return replace(report, fault=_fault_of_end(stored), uncovered=uncovered)


def _fault_of_place(rows: Sequence[ChainedRow], number: int) -> ChainFault | None:
    """What is wrong with a row that has another position than its number, or is unreadable."""
    row = rows[number - 1]
    if row.damage is not None and row.position in (number, 0):
        return ChainFault(position=number, what="damaged", words=f"it cannot be read: {row.damage}")
    if row.position < number:
        words = "there are several entries with this position"
        return ChainFault(position=row.position, what="inserted", words=words)
    if row.position > number:
        lost = [each for each in rows if each.position == 0]
        if lost:
            words = f"it cannot be read: {lost[0].damage}"
            return ChainFault(position=number, what="damaged", words=words)
        last = row.position - 1
        words = "it was removed" if last == number else f"entries {number} to {last} were removed"
        return ChainFault(position=number, what="removed", words=words)
    return None


def _fault_of_row(rows: Sequence[ChainedRow], number: int, before: bytes) -> ChainFault:
    """What is wrong with a row whose value is missing, or another one."""
    row = rows[number - 1]
    if row.chain is None:
        words = "it has no chain value: it was inserted, or written by an older version"
        return ChainFault(position=number, what="inserted", words=words)
    if row.body is not None and not _is_json(row.body):
        return ChainFault(position=number, what="damaged", words="its body is not JSON")
    following = rows[number] if number < len(rows) else None
    if following is not None:
        value = link_of(before, replace(following, position=number))
        if value == following.chain:
            moved = replace(row, position=following.position)
            if link_of(value, moved) == row.chain:
                words = f"it and entry {following.position} were swapped"
                return ChainFault(position=number, what="swapped", words=words)
            words = "it was inserted, and the entries behind it were moved"
            return ChainFault(position=number, what="inserted", words=words)
    words = "it is not what was written here: it was changed, or something before it was removed"
    return ChainFault(position=number, what="changed", words=words)


def _is_json(text: str) -> bool:
    try:
        parse_json(text)
    except ValueError:
        return False
    return True


def _fault_of_end(stored: StoredChain) -> ChainFault | None:
    """What is wrong at the end that is stored beside the entries."""
    head, rows = stored.head, stored.rows
    if head is None or head.position == 0:
        return None
    if head.position > len(rows):
        words = f"the end was removed: {head.position} entries were written, {len(rows)} are here"
        return ChainFault(position=len(rows) + 1, what="cut", words=words)
    if head.value in (b"", rows[head.position - 1].chain):
        return None
    words = "its chain value is not the one that is stored beside the entries"
    return ChainFault(position=head.position, what="changed", words=words)
