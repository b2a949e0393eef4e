"""The servers of models, as far as calls share their limits, and what servers say of those."""

from __future__ import annotations

from enum import StrEnum

from attrs import evolve, field, frozen
from attrs.validators import ge, optional
from msgspec import Struct


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


@frozen(kw_only=True)
class EndpointLimits:
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
class ModelEndpoint:
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
