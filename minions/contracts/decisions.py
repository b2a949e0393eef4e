"""What a person decides while a run waits: whether a call may be made, and answers to questions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import StrEnum

from attrs import frozen

from minions.contracts.json_values import JsonValue
from minions.contracts.schema import JsonSchema

__all__ = ["ApprovalRequest", "Decider", "Deny", "NoAnswer", "Question", "Verdict"]


class Verdict(StrEnum):
    """About a call that needs approval."""

    APPROVED = "approved"
    REJECTED = "rejected"
    LATER = "later"
    """Nobody is there to say: the run ends waiting, and goes on after the decision."""


@frozen(kw_only=True)
class ApprovalRequest:
    """A tool call that may be made only with somebody's consent."""

    key: str
    """Of the decision in its run."""
    run_id: str
    step_id: str
    tool: str
    arguments: str
    """JSON."""
    digest: str
    """Of tool and arguments: consent is to exactly these."""


@frozen(kw_only=True)
class Question:
    """What an `ask` step wants to know."""

    key: str
    """Of the decision in its run."""
    run_id: str
    step_id: str
    text: str
    form: JsonSchema | None = None
    """What the answer has to fit; None: any text."""
    default: JsonValue = None
    has_default: bool = False
    timeout_s: float | None = None
    """After which the default counts."""


class NoAnswer(StrEnum):
    """That a question has no answer yet."""

    LATER = "later"


class Decider(ABC):
    """Who is asked. Everything it says is stored with the run, so it is asked once."""

    @abstractmethod
    async def approve(self, request: ApprovalRequest) -> Verdict:
        """Whether that call may be made."""

    async def answer(self, question: Question) -> JsonValue | NoAnswer:
        """The answer, which fits `question.form`; or that nobody is there to give one."""
        return NoAnswer.LATER


@frozen
class Deny(Decider):
    """Nobody consents; questions wait. The default where no person is near."""

    async def approve(self, request: ApprovalRequest) -> Verdict:
        """Never."""
        return Verdict.REJECTED
