"""Bodies of journal rows as JSON text and back; the same for every database."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

from minions.contracts.errors import JournalError
from minions.contracts.journal import EntryDraft, JournalEntry
from minions.contracts.json_values import JsonValue

__all__ = ["DecodeBody", "body_text", "decoder_for"]

DecodeBody: TypeAlias = Callable[[str | bytes], Mapping[str, JsonValue] | None]
"""The object that a text stands for; None where it is something else.

Raises ValueError where it is no JSON at all.
"""

_MANY_ROWS: Final = 200
"""From here on a quicker decoder is worth the time that it takes to load."""


def body_text(draft: EntryDraft | JournalEntry) -> str:
    """The body as JSON, short.

    Raises:
        JournalError: It is none.
    """
    try:
        return _ENCODER.encode(draft.body)
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


def decoder_for(rows: int) -> DecodeBody:
    """For so many rows. All decoders give the same."""
    return _quick_decoder() if rows >= _MANY_ROWS else _decode


def _decode(stored: str | bytes) -> Mapping[str, JsonValue] | None:
    text = stored.decode("utf-8", "surrogatepass") if isinstance(stored, bytes) else stored
    try:
        body: JsonValue = json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error
    return body if isinstance(body, dict) else None


def _quick_decoder() -> DecodeBody:
    """Four times as quick; what it does not take, such as half a character, the other does."""
    from msgspec import MsgspecError
    from msgspec.json import Decoder

    decode_any = Decoder().decode

    def decode(stored: str | bytes) -> Mapping[str, JsonValue] | None:
        try:
            body = decode_any(stored)
        except (MsgspecError, ValueError, RecursionError):
            return _decode(stored)
        return body if isinstance(body, dict) else None

    return decode
