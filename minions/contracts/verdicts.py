"""The verdict of a completion link on whether a step is complete."""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar

from attrs import frozen


class Verdict(StrEnum):
    """The three verdicts of a completion link."""

    COMPLETE = "complete"
    FAILED = "failed"
    UNDECIDED = "undecided"


@frozen
class Completion:
    """A verdict with its reason, its evidence and the link that gave it."""

    COMPLETE: ClassVar[Completion]
    UNDECIDED: ClassVar[Completion]

    verdict: Verdict
    reason: str = ""
    """Why, for a person; of a FAILED verdict, the error message of the step."""
    evidence: str | None = None
    """The words or the result that decided; None: nothing to quote."""
    code: str = "not-complete"
    """Error code of the step; used only if FAILED."""
    next_step_id: str | None = None
    """The step that the model asked to run next; honoured where the graph has that edge."""
    decided_by: str | None = None
    """Name of the link; set by the chain."""

    @classmethod
    def complete(cls, reason: str = "", *, evidence: str | None = None) -> Completion:
        """The step is done; a declared output is validated next."""
        return cls(Verdict.COMPLETE, reason, evidence)

    @classmethod
    def failed(cls, reason: str, *, code: str = "not-complete") -> Completion:
        """The step is not done and cannot be completed."""
        return cls(Verdict.FAILED, reason, code=code)


Completion.COMPLETE = Completion(Verdict.COMPLETE)
Completion.UNDECIDED = Completion(Verdict.UNDECIDED)


class CompletionMode(StrEnum):
    """What completes a step when no other link decides."""

    TEXT = "text"
    """An answer without tool calls."""
    STRUCTURED = "structured"
    """An answer without tool calls that fits the declared output."""
    SIGNAL = "signal"
    """Only a completion link: an instruction, a pattern, a tool's result. The Java guide's loop."""
