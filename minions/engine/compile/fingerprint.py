"""The fingerprint of a step: everything that its output depends on, for its cache key."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from attrs import frozen

from minions.contracts.context import RunContext
from minions.data.json_values import JsonValue


@frozen(kw_only=True)
class Fingerprint:
    """Everything that the output of a step depends on, as far as the step itself knows."""

    asked: JsonValue
    """The messages, calls or values that the step would use now."""
    tools: Sequence[str] = ()
    """Names of tools that may be called for the step."""
    has_folder: bool = True
    """Whether the output depends on the current folder."""
    asks_model: bool = True


class Fingerprinted(ABC):
    """A Python step whose output can be cached."""

    @abstractmethod
    def fingerprint(self, view: RunContext) -> Fingerprint:
        """What the step would do now, without doing it.

        Raises:
            MinionsError: The step cannot know it.
        """
