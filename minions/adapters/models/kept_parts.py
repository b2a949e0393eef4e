"""How texts, calls and what a provider wants back stood in an answer, as `ProviderData` keeps it.

Texts and calls are in the message itself; here only their order stands, and what belongs to them.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence

from msgspec import MsgspecError, Struct
from msgspec.json import Decoder

from minions.contracts.messages import Message, ProviderData
from minions.data.json_values import JsonValue, as_object


class KeptPart(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One part of an answer."""

    text: int | None = None
    """It is that many characters of the message's text."""
    call: int | None = None
    """It is the tool call with that index."""
    data: dict[str, object] | None = None
    """What goes back with the part, or as a part of its own, in the provider's form."""


_PARTS = Decoder(tuple[KeptPart, ...])


def provider_data(source: str, parts: Iterable[KeptPart]) -> ProviderData | None:
    """What to keep of an answer; None: nothing that the message does not say."""
    kept = [
        {name: value for name in ("text", "call", "data") if (value := getattr(part, name))
         is not None}
        for part in parts
    ]  # fmt: skip
    if not any("data" in part for part in kept):
        return None
    text = json.dumps(kept, ensure_ascii=False, separators=(",", ":"))
    return ProviderData(source=source, content=text.encode("utf-8", "replace").decode())


def kept_parts(
    message: Message, source: str, members: Mapping[str, Collection[str]]
) -> Sequence[KeptPart] | None:
    """The parts of a message in their order; None: it is of another model, or was changed since.

    Args:
        members: What the data of a part may hold, by its `type`; empty: it has none. Sessions are
            imported, too, and whatever else stands there is not sent.
    """
    kept = message.provider_data
    if kept is None or kept.source != source:
        return None
    try:
        parts = _PARTS.decode(kept.content)
    except (MsgspecError, ValueError, RecursionError):
        return None
    lengths = [part.text for part in parts if part.text is not None]
    calls = [part.call for part in parts if part.call is not None]
    if not all(_is_known(part.data, members) for part in parts if part.data is not None):
        return None
    is_whole = (
        all(length > 0 for length in lengths)
        and sum(lengths) == len(message.content or "")
        and sorted(calls) == list(range(len(message.tool_calls)))
    )
    return parts if is_whole else None


def _is_known(data: Mapping[str, object], members: Mapping[str, Collection[str]]) -> bool:
    known = members.get(str(data.get("type", "")), ())
    return bool(known) and set(data) <= set(known)


def data_of(part: KeptPart) -> Mapping[str, JsonValue]:
    """What goes back with the part; empty: nothing."""
    return as_object(part.data or {})
