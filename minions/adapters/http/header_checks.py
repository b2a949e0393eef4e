"""What an HTTP header can carry, and which headers an operator may set."""

from __future__ import annotations

import re
from typing import Final

from minions.data.errors import EnvironmentRefusedError

_OWN_HEADERS: Final = frozenset(
    (
        *("accept", "accept-encoding", "connection", "content-length", "content-type", "host"),
        "transfer-encoding",
    )
)
"""Headers that belong to the transport."""


def check_key(key: str, source: str) -> str:
    """`key`, if it is valid in an HTTP header.

    Raises:
        EnvironmentRefusedError: `bad-key`; names the key's source without showing the key.
    """
    if re.fullmatch(r"[!-~]+", key):
        return key
    raise EnvironmentRefusedError(
        f"{source[0].upper()}{source[1:]} holds blanks, line breaks or characters outside ASCII, "
        "which no HTTP header can carry. Copy it again, on one line.",
        code="bad-key",
    )


def check_header(value: str, source: str) -> str:
    """`value`, if it is valid in an HTTP header.

    Raises:
        EnvironmentRefusedError: `bad-header`; names the value's source without showing the value.
    """
    if re.fullmatch(r"[\t -~]*", value):
        return value
    raise EnvironmentRefusedError(
        f"{source[0].upper()}{source[1:]} holds line breaks or characters outside ASCII, which "
        "no HTTP header can carry.",
        code="bad-header",
    )


def check_header_name(name: str, provider: str) -> str:
    """`name`, if the operator may set that header.

    Raises:
        EnvironmentRefusedError: `bad-header`: it is no name of a header, or belongs to the
            transport.
    """
    if re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", name) and name.lower() not in _OWN_HEADERS:
        return name
    raise EnvironmentRefusedError(
        f"[providers.{provider}] headers cannot set '{name:.60}': it is no header's name, or one "
        "that the transport sets.",
        code="bad-header",
    )
