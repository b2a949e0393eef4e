"""What a base URL may look like. Who may have a key at it is the adapters' business."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import urlsplit

from minions.contracts.errors import UsageError

__all__ = ["check_base_url"]

# Narrower than the standard on purpose: two URL parsers must not disagree on the host.
_URL: Final = re.compile(
    r"https?://(?:[a-z0-9_](?:[a-z0-9._-]*[a-z0-9_.])?|\[[0-9a-f:.]+\])(?::[0-9]{1,5})?(?:/[!-~]*)?",
    re.IGNORECASE,
)


def check_base_url(base_url: str, source: str) -> str:
    """`base_url` without blanks around and slashes behind.

    Raises:
        UsageError: `bad-base-url`; `source` says whose it is. User names, queries and
            fragments are refused: credentials belong in an environment variable.
    """
    url = base_url.strip().rstrip("/")
    if _URL.fullmatch(url) and not set(url) & set("\\?#@") and _has_good_port(url):
        scheme, separator, rest = url.partition("://")
        return f"{scheme.lower()}{separator}{rest}"
    # A password may stand before an `@`, so only what follows it is shown.
    shown = f"…@{url.rpartition('@')[2]}" if "@" in url else url
    raise UsageError(
        f"{source[0].upper()}{source[1:]} is {shown!r}, which is no base URL. Expected "
        "http:// or https:// with a host, perhaps a port and a path, and neither user name "
        "nor query, such as `http://127.0.0.1:11434/v1`.",
        code="bad-base-url",
    )


def _has_good_port(url: str) -> bool:
    try:
        urlsplit(url).port  # noqa: B018  # reading it is the check
    except ValueError:
        return False
    return True
