"""What finds personal data in texts before they leave for a model, and what a call had of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

from msgspec import Struct


class Finding(NamedTuple):
    """A part of a text that stands for somebody or something."""

    start: int
    """Index of its first character."""
    end: int
    """Index behind its last one."""


class Redactor(ABC):
    """Finds one kind of personal data: mail addresses, cards, customer numbers.

    It is registered under the name of the kind, `Extensions(redactors={"plate": …})`, which recipes
    and operators use, and which stands in placeholders: `<plate-3f2a91c0>`.
    """

    @abstractmethod
    def find(self, text: str) -> Sequence[Finding]:
        """What is of this kind in the text: in order, without overlaps, none of them empty.

        Called for every text of every request, also of long ones: it takes time in proportion to
        the text, gives the same for the same text, and does nothing else.
        """


class Redacted(Struct, frozen=True, kw_only=True):
    """How often something of a kind was replaced in one part of a request."""

    kind: str
    """The name under which the redactor is registered."""
    where: str
    """`system`, `user`, `assistant` or `tool`, of messages; `tools`, `output`, `options`."""
    count: int
