"""Facts as the JSON text of journal rows and back; the same for every database.

The text is written by the standard library: msgspec writes some floats otherwise, NaN as `null`,
and takes classes that are no JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import MsgspecError
from msgspec.json import Decoder

from minions.contracts.journal.facts import (
    Fact,
    UnreadableFact,
    body_of,
    class_of,
    fact_of,
)
from minions.contracts.journal.journal import EntryDraft, JournalEntry
from minions.data.errors import JournalError
from minions.data.json_parts import LONG_TEXT, encoded_parts
from minions.data.json_values import parse_json


def body_text(draft: EntryDraft | JournalEntry, *, in_parts: bool = False) -> str:
    """The body as JSON, short.

    Args:
        in_parts: In a thread beside an event loop, which goes on.
    Raises:
        JournalError: It is none, or an entry that nobody could read.
    """
    if isinstance(draft.fact, UnreadableFact) and draft.fact.body is None:
        raise JournalError(
            f"What {draft.kind} '{draft.key}' {draft.state} holds cannot be read: "
            f"{draft.fact.problem}. Nothing was stored.",
            code="corrupt-entry",
        )
    try:
        body = body_of(draft.fact)
        if in_parts:
            return "".join(encoded_parts(body, _ENCODER.encode))
        return _ENCODER.encode(body)
    except (TypeError, ValueError, RecursionError) as error:
        raise JournalError(
            f"The body of {draft.kind} '{draft.key}' {draft.state} is not JSON: {error}. "
            "Nothing was stored.",
            code="body-not-json",
        ) from error


def _plain(value: object) -> object:
    """Mappings and sequences other than dict and list, which the type of a body allows."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return list(value)
    raise TypeError(f"{type(value).__module__}.{type(value).__qualname__} is no JSON value")


_ENCODER: Final = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_plain
)


_DECODERS: Final[dict[tuple[str, str], Decoder[Fact]]] = {}
"""By kind and state, made when the first row of it is read."""


def read_fact(
    kind: str, state: str, stored: str | bytes, *, in_parts: bool = False
) -> Fact | UnreadableFact:
    """The fact that the text of a row tells.

    Args:
        in_parts: In a thread beside an event loop, which goes on.
    """
    if in_parts and len(stored) >= LONG_TEXT:
        return _read_slowly(kind, state, stored)
    decoder = _DECODERS.get((kind, state)) or _new_decoder(kind, state)
    if decoder is not None:
        try:
            return decoder.decode(stored)
        except (MsgspecError, ValueError, RecursionError):
            pass  # it may hold what only the other decoder takes, such as half a character
    return _read_slowly(kind, state, stored)


def _new_decoder(kind: str, state: str) -> Decoder[Fact] | None:
    found = class_of(kind, state)
    if found is None:
        return None
    decoder = _DECODERS[kind, state] = Decoder[Fact](found)
    return decoder


def _read_slowly(kind: str, state: str, stored: str | bytes) -> Fact | UnreadableFact:
    """As above, or what was expected."""
    try:
        text = stored.decode("utf-8", "surrogatepass") if isinstance(stored, bytes) else stored
        body = parse_json(text, in_parts=True)
    except (ValueError, RecursionError) as error:
        problem = f"its body is not JSON ({type(error).__name__})"
        return UnreadableFact(kind=kind, state=state, problem=problem)
    if isinstance(body, dict):
        return fact_of(kind, state, body)
    return UnreadableFact(kind=kind, state=state, problem="its body is no JSON object")
