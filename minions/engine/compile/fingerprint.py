"""What the output of a step depends on: the material of the key under which it is cached."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from attrs import frozen

from minions.contracts.context import RunContext
from minions.contracts.json_values import JsonValue

__all__ = ["Fingerprint", "Fingerprinted"]


@frozen(kw_only=True)
class Fingerprint:
    """What the output of a step rests on, as far as the step itself can tell."""

    asked: JsonValue
    """All that it would ask or do now."""
    tools: Sequence[str] = ()
    """That may be called for it."""
    has_folder: bool = True
    """Whether it depends on the current folder."""
    asks_model: bool = True


class Fingerprinted(ABC):
    """A Python step whose output can be kept for another run."""

    @abstractmethod
    def fingerprint(self, view: RunContext) -> Fingerprint:
        """What it would do now, without doing it.

        Raises:
            MinionsError: It cannot tell.
        """
