"""Budgets that many runs share: of a session, of a user on a day, of all runs of a week and so on.

Here is what they allow, and the store in which processes tell each other what they reserve.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Final, NamedTuple, TypeAlias

from attrs import Attribute, field, frozen
from attrs.validators import and_, ge, gt, instance_of, le, lt, optional

from minions.data.codec import Constraint
from minions.data.errors import UsageError
from minions.data.field_repr import FieldsRepr

LONGEST_USER: Final = 100
"""The most characters of a user's label."""


def _is_amount(value: float) -> bool:
    return 0 < value < math.inf


_Usd: TypeAlias = Annotated[float, Constraint(_is_amount, "a number above 0")]
_Tokens: TypeAlias = Annotated[int, Constraint(lambda count: count >= 1, "a whole number from 1")]
_USD: Final = optional(and_(instance_of((int, float)), gt(0), lt(math.inf)))
_TOKENS: Final = optional(and_(instance_of(int), ge(1)))


_Check: TypeAlias = Callable[[object, "Attribute[float]", float], object]
_Share: TypeAlias = Annotated[float, Constraint(lambda share: 0 < share <= 1, "above 0, up to 1")]
_SHARE: Final[_Check] = and_(gt(0.0), le(1.0))
_Factor: TypeAlias = Annotated[float, Constraint(lambda factor: 1 <= factor < math.inf, "from 1")]
_FACTOR: Final[_Check] = and_(ge(1.0), lt(math.inf))


class BudgetSpender(StrEnum):
    """Whose runs spend from one budget."""

    ALL = "all"
    SESSION = "session"
    USER = "user"
    RECIPE = "recipe"
    SCHEDULE = "schedule"
    TOKEN = "token"  # noqa: S105  # whose runs
    """The runs that were started over HTTP with one token of the server."""
    PROJECT = "project"
    """The runs that were started in the folder of one project."""


class BudgetPeriod(StrEnum):
    """When a new budget begins: at midnight of UTC, weeks on Mondays, months on their first day."""

    DAY = "day"
    WEEK = "week"
    MONTH = "month"


class OnThreshold(StrEnum):
    """What happens at the threshold of a budget."""

    ASK = "ask"
    """Runs wait for a person before more is spent."""
    WARN = "warn"
    """Each run has a warning, and spends up to the limit."""
    STOP = "stop"
    """No further call begins, as at a limit."""


@frozen(kw_only=True)
class BudgetRule(FieldsRepr):
    """One budget: who spends from it, over which period, and how much."""

    per: BudgetSpender = BudgetSpender.ALL
    """Whose runs spend together: each user, recipe and so on has a budget of its own."""
    only: str | None = None
    """Of this one alone, by its name; None: of each."""
    period: BudgetPeriod | None = None
    """None: a day; of a session all its time."""
    usd: _Usd | None = field(default=None, validator=_USD)
    tokens: _Tokens | None = field(default=None, validator=_TOKENS)
    threshold: _Share | None = field(default=None, validator=optional(_SHARE))
    """As of `Budgets`, which is what None stands for; so with the next two."""
    on_threshold: OnThreshold | None = None
    raise_to: _Factor | None = field(default=None, validator=optional(_FACTOR))


@frozen(kw_only=True)
class Budgets(FieldsRepr):
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
    limits: Mapping[str, BudgetRule] = field(factory=dict)
    """Further budgets, by names of your choice."""
    threshold: _Share = field(default=0.8, validator=_SHARE)
    """The share of a limit at which `on_threshold` happens."""
    on_threshold: OnThreshold | None = None
    """What happens at the threshold; None: nothing before the limit is reached."""
    raise_to: _Factor = field(default=1.0, validator=_FACTOR)
    """How many times the limit an approval may name as the new one; 1: never more than the limit.
    """


class BudgetStore(ABC):
    """Texts by key, in which the processes of one database tell what they reserve."""

    @abstractmethod
    async def get(self, key: str) -> str | None:
        """The text, as any process stored it last; None: there is none."""

    @abstractmethod
    async def keys(self, start: str = "") -> Sequence[str]:
        """Those that begin so, sorted."""

    @abstractmethod
    async def replace(self, key: str, known: str | None, text: str) -> bool:
        """Store `text` if the present one is still `known`; None: there is none yet.

        Returns:
            Whether it was stored. Of several that replace the same text one succeeds.
        """

    @abstractmethod
    async def remove(self, key: str) -> None:
        """Forget the text; does nothing where there is none."""


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
