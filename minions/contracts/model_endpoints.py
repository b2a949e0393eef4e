"""The servers of models: base URLs, how calls share limits, and what servers say of those."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Final
from urllib.parse import urlsplit

from attrs import evolve, field, frozen
from attrs.validators import ge, optional
from msgspec import Struct

from minions.data.errors import UsageError
from minions.data.field_repr import FieldsRepr

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


def is_loopback_url(base_url: str) -> bool:
    """Whether the URL's host is this machine: a name of it, 127.0.0.0/8, also mapped, or ::1."""
    import ipaddress  # here: most commands need it not

    host = (urlsplit(base_url).hostname or "").rstrip(".")
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


class ModelApi(StrEnum):
    """The form in which a server takes requests and answers."""

    CHAT = "chat"
    """OpenAI's chat completions, which most servers implement."""
    RESPONSES = "responses"
    """OpenAI's responses."""
    MESSAGES = "messages"
    """Anthropic's messages."""
    GEMINI = "gemini"
    """Gemini's generateContent."""


class PromptCacheRules(StrEnum):
    """Whose rules a server's cache of prompts follows."""

    OPENAI = "openai"
    ANTHROPIC = "anthropic"
    GEMINI = "gemini"
    GEMINI_EXPLICIT = "gemini-explicit"
    """Those of Gemini, where runs also have beginnings kept under a name when that pays."""
    LLAMA_CPP = "llama.cpp"
    """Those of `llama-server`, whose slots each keep one prompt."""
    OFF = "off"
    """It has none, or none shall be counted on."""


class CacheRetention(StrEnum):
    """For how long a server is asked to keep beginnings of prompts."""

    SHORT = "short"
    """As long as it does by itself."""
    LONG = "long"
    """As long as it can be asked to."""


@frozen(kw_only=True)
class EndpointLimits(FieldsRepr):
    """How much a server is asked at most, by all models and runs of a process; None: unlimited."""

    max_concurrency: int | None = field(default=None, validator=optional(ge(1)))
    """Requests in flight at the same time."""
    requests_per_minute: int | None = field(default=None, validator=optional(ge(1)))
    """Requests that are begun in any 60 seconds."""
    tokens_per_minute: int | None = field(default=None, validator=optional(ge(1)))
    """Tokens, of prompts and answers, in any 60 seconds."""

    def tightened(self, other: EndpointLimits) -> EndpointLimits:
        """The stricter of both in each respect."""
        return EndpointLimits(
            max_concurrency=_least(self.max_concurrency, other.max_concurrency),
            requests_per_minute=_least(self.requests_per_minute, other.requests_per_minute),
            tokens_per_minute=_least(self.tokens_per_minute, other.tokens_per_minute),
        )


def _least(one: int | None, other: int | None) -> int | None:
    return min((most for most in (one, other) if most is not None), default=None)


@frozen(kw_only=True, cache_hash=True)
class ModelEndpoint(FieldsRepr):
    """A server as one account sees it: its limits count for all models that are called there."""

    origin: str
    """Scheme, host and port: `https://api.example:443`. Shown in logs, metrics and messages."""
    account: str = field(default="", repr=False)
    """Tells accounts apart: a digest of the key and the other headers that were configured."""
    limits: EndpointLimits = field(factory=EndpointLimits, eq=False)

    def limited(self, limits: EndpointLimits) -> ModelEndpoint:
        """The same server with stricter limits."""
        return evolve(self, limits=self.limits.tightened(limits))


class Allowance(Struct, frozen=True):
    """How much of something a server still takes, as one of its answers said."""

    left: int
    """How much may still be asked until `reset_s` have passed."""
    reset_s: float
    """Seconds, from the answer on, until there is as much as can be."""
    per_s: float | None = None
    """How much more there is each second until then; None: all of it comes at the end."""


class RateLimits(Struct, frozen=True, kw_only=True):
    """What the headers of an answer said of the server's own limits; None: they said nothing."""

    requests: Allowance | None = None
    tokens: Allowance | None = None
