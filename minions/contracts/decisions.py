"""What a run asks of a person: approval of a tool call, and answers to questions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import StrEnum

from attrs import frozen

from minions.contracts.addresses import address_of
from minions.contracts.plan_diffs import PlanProposal
from minions.data.json_values import JsonValue
from minions.data.schema import JsonSchema


class Verdict(StrEnum):
    """The decision about a tool call that needs approval."""

    APPROVED = "approved"
    REJECTED = "rejected"
    LATER = "later"
    """Nobody can decide now: the run ends as waiting, and is resumed after the decision."""


@frozen
class Rejection:
    """`Verdict.REJECTED` with its reason."""

    reason: str
    """Why, in words for people and for the model."""


@frozen(kw_only=True)
class ApprovalRequest:
    """A tool call that may be made only after approval."""

    key: str
    """The key of the pending decision in its run."""
    run_id: str
    step_id: str
    tool: str
    arguments: str
    """The call's arguments, as JSON text."""
    digest: str
    """Fingerprint of tool and arguments: an approval covers exactly these."""
    filled: tuple[str, ...] = ()
    """The parameters that a model filled in, of the call of a tool step."""

    @property
    def address(self) -> str:
        """The address of the execution that wants to make the call: `outer[1]/step[2]`."""
        return address_of(self.key)


@frozen(kw_only=True)
class Question:
    """The question of an `ask` step, or of a tool."""

    key: str
    """The key of the pending decision in its run."""
    run_id: str
    step_id: str
    text: str
    form: JsonSchema | None = None
    """JSON Schema that the answer has to fit; None: any text."""
    default: JsonValue = None
    has_default: bool = False
    timeout_s: float | None = None
    """Seconds after which the default counts as the answer; None: waits without limit."""
    plan: PlanProposal | None = None
    """The plan that the question is about; None: it is about something else."""
    can_decline: bool = False
    """Whether a person may decline to answer, of which the tool that asks is told."""

    @property
    def address(self) -> str:
        """The address of the execution that asks: `outer[1]/step[2]`."""
        return address_of(self.key)


class NoAnswer(StrEnum):
    """Says that a question has no answer."""

    LATER = "later"
    """Not yet: the run waits for it."""
    DECLINED = "declined"
    """A person declines to answer; only where `Question.can_decline`."""


class Decider(ABC):
    """Decides while a run is executed. Every decision is stored with
    the run, so each is asked for once.
    """

    @abstractmethod
    async def approve(self, request: ApprovalRequest) -> Verdict | Rejection:
        """Decide whether the call may be made; a `Rejection` says why not."""

    async def answer(self, question: Question) -> JsonValue | NoAnswer:
        """The answer, which fits `question.form`; `NoAnswer` when there is none."""
        return NoAnswer.LATER


@frozen
class Deny(Decider):
    """Rejects every call and leaves questions pending: the default where nobody can be asked."""

    async def approve(self, request: ApprovalRequest) -> Verdict:
        return Verdict.REJECTED
