"""Remembers which examples recorded runs gave: a batch asks for the same in each of its runs."""

from __future__ import annotations

from typing import Final, TypeAlias

from attrs import field, frozen

from minions.contracts.journal.facts import PinnedExample

_MOST: Final = 256
"""Steps whose examples are remembered."""

_Key: TypeAlias = tuple[str, str, str]
"""A recipe's id, a step's id, and a fingerprint of what decides."""


@frozen(eq=False)
class ChosenExamples:
    """The examples of one step, and what they were chosen from."""

    recipe: object
    judgements: object
    examples: tuple[PinnedExample, ...]

    def fits(self, recipe: object, judgements: object) -> bool:
        """Whether the same would be chosen: of the same recipe, and nobody has said more since."""
        return self.recipe is recipe and self.judgements == judgements


@frozen(eq=False)
class ExampleMemory:
    """What was chosen last for each step."""

    _chosen: dict[_Key, ChosenExamples] = field(factory=dict, init=False)

    def get(self, key: _Key) -> ChosenExamples | None:
        """What was chosen for the step; None: nothing so far."""
        return self._chosen.get(key)

    def keep(self, key: _Key, chosen: ChosenExamples) -> None:
        """Remember it; of too many, all others are forgotten."""
        if len(self._chosen) >= _MOST:
            self._chosen.clear()
        self._chosen[key] = chosen
