"""Facts of decisions: by people, of routes, and of plans."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from minions.contracts.decision_words import Answer, Approve, Decision, Done, Reject, parse_decision
from minions.contracts.journal.facts.shape import FactOfStep, FactShape, Object
from minions.data.json_values import JsonValue


class RecordedProposal(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A plan that a person is asked about."""

    text: str
    """The whole plan, as it may be edited and given as the answer."""
    notes: Sequence[str] | None = None
    faults: Sequence[str] | None = None
    """Why it cannot be carried out as it is; None: it can."""
    diff: Object | None = None
    """What differs from the plan that failed, as `PlanDiff` writes it; None: there was none."""


class DecisionFact(FactShape, frozen=True, kw_only=True):
    """A decision of a person that a step needs to continue."""

    kind: ClassVar[str] = "decision"

    what: Literal["approval", "answer"]
    step_id: str
    path: str | None = None
    """The step as people see it: `outer/step[2]`."""
    tool: str | None = None
    arguments: str | None = None
    filled: Sequence[str] | None = None
    """The parameters that a model filled in, of the call of a tool step; None: none."""
    digest: str | None = None
    """Fingerprint of tool and arguments: an approval covers exactly these."""
    question: str | None = None
    form: Object | None = None
    """JSON Schema of the answer."""
    default: JsonValue | UnsetType = UNSET
    timeout_s: float | None = None
    plan: RecordedProposal | None = None
    """The plan that the question is about; None: it is about something else."""


class DecisionWaiting(DecisionFact, frozen=True, kw_only=True):
    """The decision is pending."""

    kind: ClassVar[str] = "decision"
    state: ClassVar[str] = "waiting"


class DecisionTaken(DecisionFact, frozen=True, kw_only=True):
    """The decision was made."""

    word: str
    """Text form of the decision: `approve:DIGEST`, `reject:DIGEST` or `answer:JSON`."""
    is_default: bool = False
    """Whether the default counted because the time for an answer was over."""
    reason: str | None = None
    """Why the call was rejected; None: no reason was given."""
    edited_arguments: str | None = None
    """The arguments with which the tool is called instead of those shown, as JSON text; None: the
    call was approved as shown.
    """
    edited_digest: str | None = None
    """Fingerprint of the tool and the edited arguments."""

    def __post_init__(self) -> None:
        _stored_decision(self.word)

    @property
    def decision(self) -> Decision:
        """The decision that `word` stands for, with what was said beside it."""
        decision = parse_decision(self.word)
        match decision:
            case Approve():
                return replace(decision, arguments=self.edited_arguments)
            case Reject():
                return replace(decision, reason=self.reason)
            case _:
                return decision


class DecisionRecorded(DecisionTaken, frozen=True, kw_only=True):
    """The decision was made in this journal."""

    kind: ClassVar[str] = "decision"
    state: ClassVar[str] = "recorded"


class DecisionImported(DecisionTaken, frozen=True, kw_only=True):
    """The decision was made in another journal: it is shown, and decides nothing here."""

    kind: ClassVar[str] = "decision"
    state: ClassVar[str] = "imported"


class BackEdge(FactShape, frozen=True, kw_only=True):
    """The run takes a back edge because a step failed."""

    kind: ClassVar[str] = "goto"
    state: ClassVar[str] = "recorded"

    step: str | None = None
    to: str
    code: str | None = None
    message: str | None = None
    attempt: int
    step_id: str


class PlanReplaced(FactOfStep, frozen=True, kw_only=True):
    """A plan took the place of one that failed, and nobody was asked about it."""

    kind: ClassVar[str] = "plan"
    state: ClassVar[str] = "replaced"

    text: str
    """What differs, in words for people."""
    diff: Object
    """What differs, as `PlanDiff` writes it."""


class RouteFinished(FactOfStep, frozen=True, kw_only=True):
    """A model chose the next step."""

    kind: ClassVar[str] = "route"
    state: ClassVar[str] = "finished"

    output: str
    reason: str | None = None


class RouteFailed(FactOfStep, frozen=True, kw_only=True):
    """The model could not choose the next step."""

    kind: ClassVar[str] = "route"
    state: ClassVar[str] = "failed"

    error: Object | None = None
    reason: str | None = None


def _stored_decision(word: str) -> None:
    """Refuse a text that is not a decision.

    Raises:
        ValueError: It is not a decision, or holds invalid JSON where it must hold JSON.
    """
    decision = parse_decision(word)
    if isinstance(decision, Answer | Done):
        try:
            _ = decision.value
        except ValueError as error:
            raise ValueError(f"`{word:.40}` holds no JSON: {error}") from error
