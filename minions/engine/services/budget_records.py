"""What processes tell each other of one budget: a text that each replaces only as it knows it.

It has what runs spent that no row of theirs says yet, what their calls may still use, who waits for
a person at the threshold, and what that person said. It does not have what rows of runs say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

import msgspec
from msgspec import Struct, field

from minions.contracts.budgets import BudgetStore
from minions.contracts.journal.run_rows import Spent
from minions.data.errors import JournalError

_MOST_OVER: Final = 50
"""Runs with an end that a record keeps: without them all processes have to read the rows again."""


class RunPart(Struct, frozen=True, omit_defaults=True):
    """What one run takes of the budget."""

    tokens: int = 0
    """Tokens that it spent, with what its row said before this execution."""
    usd: float = 0.0
    """US dollars that it spent, counted in the same way."""
    held_tokens: int = 0
    """What its calls in flight may still use."""
    held_usd: float = 0.0
    calls: int = 0
    """How many are in flight."""
    is_over: bool = False
    """Whether its row says all of that."""
    had_row: bool = False
    """Whether its row said something before this execution."""

    @property
    def spent(self) -> Spent:
        """What it spent."""
        return Spent(self.tokens, self.usd)


class BudgetAnswer(Struct, frozen=True, omit_defaults=True):
    """What a person said at the threshold."""

    run_id: str
    """The run that asked."""
    at: str
    """When, in ISO 8601."""
    about: tuple[float | None, int | None]
    """The limits in US dollars and tokens that were asked about: of others a person is asked again.
    """
    is_approved: bool = False
    usd: float | None = None
    """The limits from then on; None: as set."""
    tokens: int | None = None


class BudgetRecord(Struct, frozen=True, omit_defaults=True):
    """All that is told of a budget."""

    runs: dict[str, RunPart] = field(default_factory=dict)
    """Its runs, by id."""
    waits: dict[str, str] = field(default_factory=dict)
    """Since when runs wait for an answer, by their ids."""
    answer: BudgetAnswer | None = None

    def with_runs(self, changed: Mapping[str, RunPart]) -> BudgetRecord:
        """The record after these runs; too many that are over are left out."""
        runs = {**self.runs, **changed}
        if sum(part.is_over for part in runs.values()) > _MOST_OVER:
            runs = {run_id: part for run_id, part in runs.items() if not part.is_over}
        return msgspec.structs.replace(self, runs=runs)


Change: TypeAlias = Callable[[BudgetRecord], BudgetRecord]


class StoredRecord:
    """The record of one budget as this process knows it."""

    def __init__(self, store: BudgetStore, key: str) -> None:
        """Nothing is read yet."""
        self._store = store
        self.key = key
        self._text: str | None = None
        self.known = BudgetRecord()
        """As it was read or stored last."""
        self.is_created = False
        """Whether this process stored it first."""

    @property
    def runs(self) -> Mapping[str, RunPart]:
        """What is known of the budget's runs, by id."""
        return self.known.runs

    async def read(self) -> BudgetRecord:
        """Read it.

        Raises:
            JournalError: It cannot be read.
        """
        self._text = await self._store.get(self.key)
        self.known = read_record(self.key, self._text)
        return self.known

    async def replace(self, change: Change) -> bool:
        """Store what `change` makes of the known one, unless another process changed it.

        Raises:
            JournalError: It cannot be stored.
        """
        changed = change(self.known)
        text = msgspec.json.encode(changed).decode()
        if text != self._text and not await self._store.replace(self.key, self._text, text):
            return False
        self.is_created = self.is_created or self._text is None
        self._text, self.known = text, changed
        return True


def read_record(key: str, text: str | None) -> BudgetRecord:
    """The record of a text; None: there is none yet.

    Raises:
        JournalError: `corrupt-entry`; it is of another form.
    """
    if text is None:
        return BudgetRecord()
    try:
        return msgspec.json.decode(text, type=BudgetRecord)
    except msgspec.MsgspecError as error:
        raise JournalError(
            f"What is stored of a budget under '{key}' cannot be read: {error}.",
            code="corrupt-entry",
        ) from error
