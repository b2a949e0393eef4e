"""The window of a conversation: how many tokens its prompts have, and what becomes of the rest."""

from __future__ import annotations

from enum import StrEnum

from attrs import field, frozen
from attrs.validators import ge


class HistoryStrategy(StrEnum):
    """What becomes of the oldest messages of a conversation that no longer fits its window."""

    DROP = "drop"
    """They are left out of the prompt; the session keeps them."""
    SUMMARISE = "summarise"
    """A model call summarises them; the summary stands in the prompt in their place."""


@frozen(kw_only=True)
class HistoryWindow:
    """The bound of the prompts of a step that shares a conversation."""

    max_tokens: int = field(validator=ge(1))
    """The most tokens of a prompt, estimated at four characters each: system texts, tools, schema
    and messages together."""
    strategy: HistoryStrategy = field(default=HistoryStrategy.DROP, converter=HistoryStrategy)
