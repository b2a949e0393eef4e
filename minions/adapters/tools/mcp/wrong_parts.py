"""What is wrong with a message of a server, in our words: the SDK has those of its parser."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from minions.data.errors import words_of

_MOST: Final = 3
"""Parts that are told."""
_WORDS: Final = {
    "missing": "is missing",
    "dict_type": "is no object",
    "model_type": "is no object",
    "list_type": "is no list",
    "string_type": "is no text",
    "bool_type": "is neither true nor false",
    "int_type": "is no whole number",
}


def wrong_parts(error: Exception) -> str:
    """Each wrong part with its place, as in `tools[0] ('weather'): inputSchema is missing`."""
    listed = getattr(error, "errors", None)
    if not callable(listed):
        return words_of(error)
    faults = [each for each in listed(include_url=False) if isinstance(each, Mapping)]
    lines = list(dict.fromkeys(_told(each) for each in faults))
    more = len(lines) - _MOST
    return "; ".join([*lines[:_MOST], *([f"and {more} more"] if more > 0 else [])])


def _told(fault: Mapping[str, object]) -> str:
    place, kind = fault.get("loc"), f"{fault.get('type')}"
    parts = list(place) if isinstance(place, Sequence) else []
    what = _WORDS.get(kind)
    if what is None:
        context = fault.get("ctx")
        wanted = context.get("expected") if isinstance(context, Mapping) else None
        what = f"is not {wanted}" if wanted is not None else f"does not fit: {fault.get('msg')}"
    return f"{''.join(_path(parts)).lstrip('.') or 'the whole'} {what}"


def _path(parts: Sequence[object]) -> Iterator[str]:
    for part in parts:
        yield f"[{part}]" if isinstance(part, int) else f".{part}"
