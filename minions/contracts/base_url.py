"""Validation of base URLs of model servers and collectors. Which
server receives which key is decided by the adapters.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import urlsplit

from minions.data.errors import UsageError

# Narrower than the standard on purpose: two URL parsers must not disagree on the host.
_URL: Final = re.compile(
    r"https?://(?:[a-z0-9_](?:[a-z0-9._-]*[a-z0-9_.])?|\[[0-9a-f:.]+\])(?::[0-9]{1,5})?(?:/[!-~]*)?",
    re.IGNORECASE | re.ASCII,  # else `İ` is an `i`, and the Kelvin sign a `k`
)
_MODEL_SERVER: Final = "http://127.0.0.1:11434/v1"


def check_base_url(base_url: str, source: str, example: str = _MODEL_SERVER) -> str:
    """Validate a base URL; returns it without surrounding blanks and trailing slashes.

    Args:
        source: Where the URL was set, for the error message: a variable, a file, an option.
        example: A URL that would do, for the error message; the default is a model server's.
    Raises:
        UsageError: `bad-base-url`. User names, queries and fragments are refused: credentials
            belong in an environment variable.
    """
    url = base_url.strip().rstrip("/")
    if _URL.fullmatch(url) and not set(url) & set("\\?#@") and _has_good_port(url):
        scheme, separator, rest = url.partition("://")
        return f"{scheme.lower()}{separator}{rest}"
    # A password may stand before an `@`, so only what follows it is shown.
    shown = f"…@{url.rpartition('@')[2]}" if "@" in url else url
    raise UsageError(
        f"{source[0].upper()}{source[1:]} is {shown!r}, which is not a base URL. Expected "
        "http:// or https:// with a host, perhaps a port and a path, and neither user name "
        f"nor query, such as `{example}`.",
        code="bad-base-url",
    )


def _has_good_port(url: str) -> bool:
    try:
        urlsplit(url).port  # noqa: B018  # reading it is the check
    except ValueError:
        return False
    return True
