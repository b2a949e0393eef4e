"""Texts without what looks like a key, for pages and logs."""

from __future__ import annotations

import re
from typing import Final

_KEYS: Final = re.compile(
    r"\b(?:sk|pk|rk)-[A-Za-z0-9_-]{16,}|\bgh[pousr]_[A-Za-z0-9]{20,}|\bAKIA[0-9A-Z]{16}\b"
    r"|\bxox[abeoprs]-[A-Za-z0-9-]{10,}"
    r"|(?<=[Bb]earer )[\w.~+/=-]{16,}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
)
"""Texts that look like keys: of model providers, code hosts, clouds and chats, JWTs, PEM."""


def masked(text: str) -> str:
    """The text without what looks like a key or a token."""
    return _KEYS.sub("[masked]", _JWT.sub(_without_token, text))


_JWT: Final = re.compile(r"\beyJ[\w-]{10,}(\.[\w-]{10,}\.[\w-]{5,})?")
"""A beginning without the rest matches, too: each of many is then looked at once."""


def _without_token(found: re.Match[str]) -> str:
    return "[masked]" if found[1] else found[0]
