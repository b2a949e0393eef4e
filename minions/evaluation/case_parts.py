"""Divides cases into parts that share nothing: for examples, for a search, and to confirm it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from enum import StrEnum
from typing import Final

from attrs import frozen

from minions.data.errors import UsageError
from minions.data.json_values import dumps
from minions.evaluation.cases import Case

FEWEST_CASES: Final = 6
"""Distinct cases without which nothing can be searched and confirmed."""
_FEWEST_SEARCHED: Final = 3
_FEWEST_CONFIRMING: Final = 2
_MOST_SHOWN: Final = 16
"""Cases that are held out for examples; few of them are chosen."""


class Part(StrEnum):
    """What a case is used for."""

    SEARCH = "search"
    """It is asked of every configuration."""
    CONFIRMATION = "confirmation"
    """It is asked of what the search found, which has never seen it."""


@frozen(kw_only=True)
class CaseParts:
    """The cases of each part; cases with the same inputs are all in one part."""

    shown: tuple[Case, ...]
    """Those that may become examples; they are never asked."""
    search: tuple[Case, ...]
    confirmation: tuple[Case, ...]
    seed: int

    def of(self, part: Part) -> tuple[Case, ...]:
        """The cases of one part, in the order in which they are asked."""
        return self.search if part is Part.SEARCH else self.confirmation

    @property
    def asked(self) -> tuple[Case, ...]:
        """The cases that are asked in either part."""
        return (*self.search, *self.confirmation)


def parts_of(cases: Sequence[Case], *, seed: int, has_shown: bool) -> CaseParts:
    """The parts of the cases: the same cases and the same seed give the same parts, in any order.

    Args:
        has_shown: Whether a fifth of them is held out for examples, at most 16.
    Raises:
        UsageError: `bad-items`; there are too few distinct cases.
    """
    groups: dict[str, list[Case]] = {}
    for case in cases:
        groups.setdefault(dumps(dict(sorted(case.plain_inputs.items()))), []).append(case)
    count = len(groups)
    if count < FEWEST_CASES:
        is_repeated = count < len(cases)
        same = f" ({len(cases)} cases, of which some have the same inputs)" if is_repeated else ""
        raise UsageError(
            f"{count} distinct cases are too few to search and to confirm what was found{same}. "
            f"Give at least {FEWEST_CASES}; some 50 tell models apart.",
            code="bad-items",
        )
    shown = min(_MOST_SHOWN, count // 5) if has_shown else 0
    shown = min(shown, count - _FEWEST_SEARCHED - _FEWEST_CONFIRMING)
    confirming = max(_FEWEST_CONFIRMING, (count - shown) * 2 // 5)
    ordered = [groups[inputs] for inputs in sorted(groups, key=lambda inputs: _rank(inputs, seed))]
    return CaseParts(
        shown=_flat(ordered[:shown]),
        search=_flat(ordered[shown + confirming :]),
        confirmation=_flat(ordered[shown : shown + confirming]),
        seed=seed,
    )


def _rank(inputs: str, seed: int) -> str:
    text = f"{seed}\n{inputs}".encode("utf-8", "surrogatepass")
    return hashlib.sha256(text).hexdigest()


def _flat(groups: Sequence[Sequence[Case]]) -> tuple[Case, ...]:
    return tuple(case for group in groups for case in group)
