"""URLs of PostgreSQL databases, and how they are shown: never with a password. Connects nowhere."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote

_SCHEMES: Final = ("postgresql://", "postgres://")
# Greedy up to the last `@`: a password that was not percent-encoded may hold one itself.
_IN_AUTHORITY: Final = re.compile(r"^(?P<head>\w+://[^:@/?#]*):(?P<word>.*)@", re.DOTALL)
_IN_QUERY: Final = re.compile(r"(?P<head>[?&](?:ssl)?password=)(?P<word>[^&#]*)", re.IGNORECASE)
_SHOWN: Final = r"\g<head>:***@"


def is_postgres_url(text: str) -> bool:
    """Whether `text` means a PostgreSQL database, well-formed or not."""
    return text.lower().startswith(_SCHEMES)


def without_password(url: str) -> str:
    """As it may be shown: `***` in place of every password."""
    return _IN_QUERY.sub(r"\g<head>***", _in_authority(url).sub(_SHOWN, url))


def is_ambiguous(url: str) -> bool:
    """Whether a password looks as if it held what another parser takes for the end of it."""
    match = _in_authority(url).search(url)
    return match is not None and bool(set(match["word"]) & set("/?#@"))


def hidden_in(url: str) -> frozenset[str]:
    """The passwords of a URL, as they are written and as they are meant."""
    words = {match["word"] for match in _IN_QUERY.finditer(url)}
    if match := _in_authority(url).search(url):
        words.add(match["word"])
    return frozenset({*words, *map(unquote, words)} - {""})


def _in_authority(url: str) -> re.Pattern[str]:
    """Up to the last `@` before the query, if there is one; a password may also hold a `?`."""
    return _BEFORE_QUERY if "@" in url.partition("?")[0] else _IN_AUTHORITY


_BEFORE_QUERY: Final = re.compile(r"^(?P<head>\w+://[^:@/?#]*):(?P<word>[^?]*)@", re.DOTALL)
