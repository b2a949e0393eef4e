"""Budgets that many runs share: of a session, of a user on a day, of all runs of a day."""

from __future__ import annotations

import math
from typing import Annotated, Final, NamedTuple, TypeAlias

from attrs import field, frozen
from attrs.validators import and_, ge, gt, instance_of, lt, optional

from minions.data.codec import Constraint
from minions.data.errors import UsageError

LONGEST_USER: Final = 100
"""The most characters of a user's label."""


def _is_amount(value: float) -> bool:
    return 0 < value < math.inf


_Usd: TypeAlias = Annotated[float, Constraint(_is_amount, "a number above 0")]
_Tokens: TypeAlias = Annotated[int, Constraint(lambda count: count >= 1, "a whole number from 1")]
_USD: Final = optional(and_(instance_of((int, float)), gt(0), lt(math.inf)))
_TOKENS: Final = optional(and_(instance_of(int), ge(1)))


@frozen(kw_only=True)
class Budgets:
    """What runs may spend together; None: unlimited. Days are those of UTC."""

    session_usd: _Usd | None = field(default=None, validator=_USD)
    """US dollars of all runs of one session."""
    session_tokens: _Tokens | None = field(default=None, validator=_TOKENS)
    user_usd_per_day: _Usd | None = field(default=None, validator=_USD)
    """US dollars of all runs of one user on a day; runs without a label of a user do not count."""
    user_tokens_per_day: _Tokens | None = field(default=None, validator=_TOKENS)
    usd_per_day: _Usd | None = field(default=None, validator=_USD)
    """US dollars of all runs of a day."""
    tokens_per_day: _Tokens | None = field(default=None, validator=_TOKENS)


class DayBudget(NamedTuple):
    """What a day's budget allows, and what is spent of it as far as this process knows."""

    tokens: int
    most_tokens: int | None
    cost_usd: float
    most_cost_usd: float | None


def checked_user(label: object) -> str:
    """The label of a user.

    Raises:
        UsageError: `bad-user`; it is no text, is empty or too long, or cannot be shown.
    """
    if isinstance(label, str) and 0 < len(label) <= LONGEST_USER and _is_shown_whole(label):
        return label
    raise UsageError(
        f"The label of a user has 1 to {LONGEST_USER} printable characters, with no blanks around "
        f"them; {str(label)[:LONGEST_USER]!r} has not.",
        code="bad-user",
    )


def _is_shown_whole(label: str) -> bool:
    return label.isprintable() and label == label.strip()
