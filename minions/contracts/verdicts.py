"""Is a step done? The verdict of one completion link, and how a step is judged."""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar

from attrs import frozen

__all__ = ["Completion", "CompletionMode", "Verdict"]


class Verdict(StrEnum):
    """What a link says."""

    COMPLETE = "complete"
    FAILED = "failed"
    UNDECIDED = "undecided"


@frozen
class Completion:
    """A verdict with its reason, who gave it and what it rests on."""

    COMPLETE: ClassVar[Completion]
    UNDECIDED: ClassVar[Completion]

    verdict: Verdict
    reason: str = ""
    """Why, for a person; of a FAILED verdict it is the step's failure text."""
    evidence: str | None = None
    """The words or result that decided."""
    code: str = "not-complete"
    """The failure's code; only for FAILED."""
    next_step_id: str | None = None
    """A wish for the next step; honoured where the graph allows it."""
    decided_by: str | None = None
    """The link's name; set by the chain."""

    @classmethod
    def complete(cls, reason: str = "", *, evidence: str | None = None) -> Completion:
        """Done; a declared output is validated next."""
        return cls(Verdict.COMPLETE, reason, evidence)

    @classmethod
    def failed(cls, reason: str, *, code: str = "not-complete") -> Completion:
        """Not done and not going to be."""
        return cls(Verdict.FAILED, reason, code=code)


Completion.COMPLETE = Completion(Verdict.COMPLETE)
Completion.UNDECIDED = Completion(Verdict.UNDECIDED)


class CompletionMode(StrEnum):
    """What completes a step when nothing else decides."""

    TEXT = "text"
    """An answer without tool calls."""
    STRUCTURED = "structured"
    """An answer without tool calls that fits the declared output."""
    SIGNAL = "signal"
    """Only a link: an instruction, a pattern, a tool's outcome. The guide's loop."""
