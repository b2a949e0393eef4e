"""What is known of how a server keeps the beginnings of prompts."""

from __future__ import annotations

from msgspec import Struct


class PromptCache(Struct, frozen=True, kw_only=True):
    """How the server of a model keeps beginnings of prompts, which it then reads for less."""

    minimum_tokens: int
    """A shorter beginning is not kept."""
    step_tokens: int = 1
    """It is kept in multiples of so many tokens."""
    lifetime_s: float
    """For so long after it was last used."""
    reads_at: float
    """The price of a token that is read from it, as a share of the price of an input token."""
    writes_at: float = 1.0
    """The price of a token that is stored in it, as a share of the price of an input token."""
    storage_usd_per_mtok_hour: float | None = None
    """What a million tokens that are kept under a name cost for an hour, in US dollars; None: none
    are kept so."""
    is_long: bool = False
    """Whether the server is asked to keep beginnings for as long as it can."""
    asks_one_first: bool = True
    """Whether of several calls that begin alike one is made first, so that the others read what it
    stored."""
    is_known: bool = True
    """Whether its provider says so; else only what the server counts shows that it has a cache."""
    includes_form: bool = True
    """Whether the declared form of an answer is part of the beginning."""
    source: str
    """Where the provider says so."""
    read_on: str
    """The day on which that was read, `2026-11-28`."""

    def kept_of(self, tokens: int) -> int:
        """How many tokens of a beginning of that many are kept."""
        whole = tokens // self.step_tokens * self.step_tokens
        return whole if whole >= self.minimum_tokens else 0
