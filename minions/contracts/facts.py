"""The facts of the journal: what the body of an entry holds, by kind and state of the entry.

A fact is a value of one of these classes, and the class is the schema of its row: a body that lacks
a field, or has one of another type, becomes an `UnreadableFact`. Fields stand in the order of the
row. A field that is missing from the row is None here, or UNSET where the row may also say `null`.

This module holds shapes only. What is computed from facts (a run's state, a conversation, events)
are folds elsewhere.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Annotated, Any, ClassVar, Final, Literal, TypeAlias, TypeVar

import msgspec
from attrs import asdict
from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import replace

from minions.contracts.calls import StepCompletionInstruction
from minions.contracts.decision_words import Answer, Approve, Decision, Done, Reject, parse_decision
from minions.contracts.errors import Fault
from minions.contracts.executions import RunStatus
from minions.contracts.json_values import JsonValue
from minions.contracts.messages import Message, message_to_json

__all__ = [
    "FACTS",
    "BackEdge",
    "ConversationStarted",
    "DecisionFact",
    "DecisionImported",
    "DecisionRecorded",
    "DecisionTaken",
    "DecisionWaiting",
    "ExamplesPinned",
    "Fact",
    "FileChangeFact",
    "FileChangeImported",
    "FileChangeRecorded",
    "FileRollbackFact",
    "FileRollbackFinished",
    "FileRollbackStarted",
    "MarkFact",
    "MarkImported",
    "MarkRecorded",
    "MessageRecorded",
    "ModelCallFact",
    "ModelCallFailed",
    "ModelCallFinished",
    "ModelCallInterrupted",
    "ModelCallLoss",
    "PinnedExample",
    "PlanReplaced",
    "RecordedConversation",
    "RecordedItem",
    "RecordedPart",
    "RecordedProposal",
    "Rollback",
    "RouteFailed",
    "RouteFinished",
    "RunBeginning",
    "RunFinished",
    "RunLimitReached",
    "RunRejected",
    "RunResumed",
    "RunStarted",
    "SavedMessage",
    "SessionCut",
    "SessionForked",
    "SessionOpened",
    "StepEnd",
    "StepFact",
    "StepFailed",
    "StepFinished",
    "StepInterrupted",
    "StepOmission",
    "StepOutcome",
    "StepSkipped",
    "StepStarted",
    "StepWithdrawn",
    "ToolCallFact",
    "ToolCallFailed",
    "ToolCallFinished",
    "ToolCallInDoubt",
    "ToolCallInterrupted",
    "ToolCallOutcome",
    "ToolCallStarted",
    "UnreadableFact",
    "WarningRecorded",
    "body_of",
    "class_of",
    "fact_of",
    "given",
    "inputs_in",
]

Object: TypeAlias = Mapping[str, JsonValue]
"""A JSON object that other code interprets: usage, metrics, an error."""

T = TypeVar("T")

_Count: TypeAlias = Annotated[int, Meta(ge=0)]
"""The sequence of the last message that counts; 0: none does."""
_Number: TypeAlias = Annotated[int, Meta(ge=1)]
"""The sequence of a message, counted from 1."""


# A field with its default is left out of the row: a field that is added later with a default does
# not change rows of old kinds, and rows that lack it stay readable.
class _Fact(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The base of all facts."""

    kind: ClassVar[str]
    state: ClassVar[str]


class _OfStep(_Fact, frozen=True, kw_only=True):
    step_id: str
    """The step's path in the whole run: `outer/inner` for a step of a nested recipe."""


# --- runs ----------------------------------------------------------------------------------


_STATUSES: Final = tuple(each.value for each in RunStatus)


class RecordedConversation(Struct, frozen=True, kw_only=True, gc=False):
    """How much of the session's conversation a run starts with."""

    keep: int | None
    """Number of messages that stay, counted from the first; None: all."""
    continues: bool
    """Whether the run continues the conversation as it is; else it appends the input `message`."""


class RecordedItem(Struct, frozen=True, kw_only=True, gc=False):
    """What a child run executes of a distributed step."""

    index: int | None = None
    """The index of the item in its loop, from 0; None: the step has no loop."""
    value: JsonValue = None
    """What templates read as `loop.item`."""


class RecordedPart(Struct, frozen=True, kw_only=True, gc=False):
    """Which steps of the recipe were selected, and the recorded outputs of the others."""

    runs: Sequence[str]
    passed_over: Sequence[str]
    pinned_from: str
    pinned: str
    """Digest of a blob: a JSON object of outputs by step id. Of a child run it has what templates
    read as `steps`."""
    item: RecordedItem | None = None
    """Of a child run: what it executes of its one step; None: it is no child run."""


class RunBeginning(_Fact, frozen=True, kw_only=True):
    """The start of an execution of a run."""

    recipe: str
    """The recipe's id."""
    version: str | None = None
    """The version that the recipe itself states."""
    inputs: Object | None = None
    """The validated inputs; secrets as references. None: those of the start before, where they are
    long: a run that is resumed often stores them once."""
    model: str | None | UnsetType = UNSET
    """The models that the run calls, as far as known at the start."""
    user: str | None = None
    """The label of the user for whom it runs; None: none was given."""
    note: Object | None = None
    """What the caller wants to find again: flags of the command line, the server's mark."""
    thread: RecordedConversation | None = None
    part: RecordedPart | None = None
    """The selected part of the recipe; None: all of it."""
    document: str | None = None
    """Digest of a blob: the resolved recipe. A recipe built in code has `steps` instead."""
    directory: str | None | UnsetType = UNSET
    """The folder of the recipe's file, which relative paths start from."""
    recipes: str | None = None
    """Digest of a blob: the nested recipes."""
    steps: Mapping[str, str] | None = None
    """Versions of the steps' code, by step id."""
    queued: bool | None = None
    """Whether nothing is executed yet: the run waits in a queue for a worker, which resumes it."""

    def __post_init__(self) -> None:
        if self.document is None and self.steps is None:
            raise ValueError("neither `document` nor `steps` defines the steps of the run")


class RunStarted(RunBeginning, frozen=True, kw_only=True):
    """The first execution of a run starts."""

    kind: ClassVar[str] = "run"
    state: ClassVar[str] = "started"


class RunResumed(RunBeginning, frozen=True, kw_only=True):
    """A later execution of a run starts: by `resume`, `retry` or a decision."""

    kind: ClassVar[str] = "run"
    state: ClassVar[str] = "resumed"

    retries: bool | None = None
    """Whether failed steps are retried."""
    anew: Sequence[str] | None = None
    """Steps that are rerun although they have outputs: `outer/inner`,
    or `outer/` with all steps within.
    """
    anew_at: Sequence[str] | None = None
    """Addresses of executions that are rerun: `outer[1]/inner[2]` alone, or
    `outer[1]/inner/` with its iterations and all within.
    """
    decisions: Mapping[str, str] | None = None
    """Decisions made with the resume: their text forms by the key of the decision or tool call."""
    by: str | None = None
    """Who made them, as they say themselves; None: it is not known."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for word in (self.decisions or {}).values():
            _stored_decision(word)

    @property
    def decided(self) -> Mapping[str, Decision]:
        """Decisions made with the resume, by the key of the decision or tool call."""
        return {key: parse_decision(word) for key, word in (self.decisions or {}).items()}


class RunFinished(_Fact, frozen=True, kw_only=True):
    """An execution of a run ended; its status tells whether the run can be resumed."""

    kind: ClassVar[str] = "run"
    state: ClassVar[str] = "finished"

    status: str
    output: JsonValue | UnsetType = UNSET
    usage: Object | None = None
    """What all executions of the run used; `discarded_tokens` and `discarded_cost_usd` in it are
    of calls that a retry ran again.
    """
    spent: Object | None = None
    """`tokens` and `cost_usd` that the run itself spent, where `usage` has those of its child runs,
    too; of older versions also where `usage` lacked the calls that a retry ran again. None: what
    `usage` says.
    """
    error: Object | None | UnsetType = UNSET
    sequence: _Count | None = None
    """The session's last message that counts again after a failed
    retry; None: nothing is restored.
    """
    waiting: Sequence[Object] | None = None
    """The pending decisions of a run that waits: `key`, `step_id`, `what`, and `tool` with its
    `digest` or `question`; None: it does not wait, or an older version recorded its end.
    """

    resumes_at: str | None = None
    """Of a run that waits: the first time, in ISO 8601, at which it can be resumed without a
    decision, because a question's time is over or a server may be asked again; None: there is none.
    """

    def __post_init__(self) -> None:
        if self.resumes_at is not None:
            datetime.fromisoformat(self.resumes_at)
        if self.status not in _STATUSES:
            raise ValueError(
                f"`{self.status:.40}` is not a status; expected: {', '.join(_STATUSES)}"
            )


class RunLimitReached(_Fact, frozen=True, kw_only=True):
    """A limit of the run is reached, so that no further work starts."""

    kind: ClassVar[str] = "run"
    state: ClassVar[str] = "limit_reached"

    limit: str | None
    message: str


class RunRejected(_Fact, frozen=True, kw_only=True):
    """The recipe has faults, so that the run never started."""

    kind: ClassVar[str] = "run"
    state: ClassVar[str] = "rejected"

    recipe: str
    note: Object | None = None
    error: Object | None = None
    faults: tuple[Fault, ...]


# --- steps ---------------------------------------------------------------------------------


class StepFact(_OfStep, frozen=True, kw_only=True):
    """A fact about an execution of a step as a whole."""

    kind: ClassVar[str] = "step"


class StepStarted(StepFact, frozen=True, kw_only=True):
    """An execution of a step starts."""

    kind: ClassVar[str] = "step"
    state: ClassVar[str] = "started"

    version: str | None = None
    index: int | None = None
    """Index of the loop's item or of the attempt of a `while`,
    from 0; None: the step as a whole.
    """
    total: int | None = None
    """Number of items of the loop."""
    attempts: int | None = None
    """The most attempts that the `while` may make."""
    distributed: str | None = None
    """The queue in which the items are runs of their own; None: they are executed within the run.
    """
    conversation: str | None = None
    messages: tuple[Message, ...] | None = None
    """The opening prompt, oldest first."""
    history: tuple[int, int] | None = None
    """Where the session's messages stand in the opening prompt: index and count."""


class StepEnd(StepFact, frozen=True, kw_only=True):
    """An execution of a step ended, or was omitted."""

    status: str


class StepOutcome(StepEnd, frozen=True, kw_only=True):
    """An execution of a step that had started ended."""

    duration_ms: float | None = None
    index: int | None = None
    total: int | None = None
    usage: Object | None = None
    model_calls: int | None = None
    tool_calls: int | None = None
    attempts: int | None = None
    error: Object | None = None
    reason: str | None = None
    output: JsonValue | UnsetType = UNSET
    """Missing where a `while` has no output; in a failed loop the outputs
    of the items that completed.
    """
    decided_by: str | None | UnsetType = UNSET
    """Name of the completion link that decided."""
    next_step_id: str | None = None
    """The step that the model asked to run next."""


class StepFinished(StepOutcome, frozen=True, kw_only=True):
    """The step completed with an output."""

    kind: ClassVar[str] = "step"
    state: ClassVar[str] = "finished"

    cached_from: str | None = None
    """The run from whose cached output this one was taken; None: the step was executed."""
    cache_key: str | None = None
    pinned_from: str | None = None
    partial: bool = False
    """Whether an item of its loop failed, or a step of the recipe that it is."""


class StepFailed(StepOutcome, frozen=True, kw_only=True):
    """The step failed for good."""

    kind: ClassVar[str] = "step"
    state: ClassVar[str] = "failed"

    error: Object


class StepInterrupted(StepOutcome, frozen=True, kw_only=True):
    """The step was cancelled, or waits for a person: resuming the run continues it."""

    kind: ClassVar[str] = "step"
    state: ClassVar[str] = "interrupted"

    error: Object


class StepOmission(StepEnd, frozen=True, kw_only=True):
    """The step was not executed."""

    reason: str | None = None


class StepSkipped(StepOmission, frozen=True, kw_only=True):
    """The step was skipped; `reason` says why."""

    kind: ClassVar[str] = "step"
    state: ClassVar[str] = "skipped"


class StepWithdrawn(StepOmission, frozen=True, kw_only=True):
    """The step waited for a person when the run took a back edge:
    its decision is no longer pending.
    """

    kind: ClassVar[str] = "step"
    state: ClassVar[str] = "withdrawn"


# --- model calls, messages -----------------------------------------------------------------


class ConversationStarted(_OfStep, frozen=True, kw_only=True):
    """A conversation outside of the model loop starts: of a Python
    step, or of parameter extraction.
    """

    kind: ClassVar[str] = "conversation"
    state: ClassVar[str] = "started"

    conversation: str
    messages: tuple[Message, ...]


class ModelCallFact(_OfStep, frozen=True, kw_only=True):
    """A model call ended, with all its attempts."""

    phase: str | None = None
    """`model`, `final`, `repair` and so on."""
    attempts: int | None = None
    retried_usage: Object | None = None
    """Tokens of failed attempts that were retried."""
    output_mode: str | None = None
    """How the answer was constrained, as an `OutputMode`, or `text`: not at all. None: as the
    model's declared capabilities say.
    """
    tier: int | None = None
    """The index of the model among those of the step; None: the first."""


class ModelCallFinished(ModelCallFact, frozen=True, kw_only=True):
    """The model answered."""

    kind: ClassVar[str] = "model_call"
    state: ClassVar[str] = "finished"

    conversation: str | None = None
    message: Message
    sequence: _Number | None = None
    """Number of the message in the session; None: not part of the session's conversation."""
    metrics: Object | None = None
    finish_reason: str | None | UnsetType = UNSET
    instruction: StepCompletionInstruction | None = None
    """What the answer says about completion of the step."""
    sections: Object | None = None
    """Input tokens by section of the prompt; None: it had no text."""
    summarises: int | None = None
    """Of a summary: how many of the conversation's oldest messages it is of."""
    of_session: bool = False
    """Whether these are the oldest messages of the session."""


class ModelCallLoss(ModelCallFact, frozen=True, kw_only=True):
    """A model call ended without an answer."""

    error: Object | None = None
    usage: Object | None = None


class ModelCallFailed(ModelCallLoss, frozen=True, kw_only=True):
    """All attempts at the call failed."""

    kind: ClassVar[str] = "model_call"
    state: ClassVar[str] = "failed"


class ModelCallInterrupted(ModelCallLoss, frozen=True, kw_only=True):
    """The call was cancelled."""

    kind: ClassVar[str] = "model_call"
    state: ClassVar[str] = "interrupted"


class SavedMessage(Struct, frozen=True, kw_only=True, gc=False):
    """What an application states about a message that it stores itself."""

    id: str | None = None
    run_id: str | None = None
    created_at: str | None = None
    """ISO 8601 date and time."""

    def __post_init__(self) -> None:
        if self.created_at is not None:
            datetime.fromisoformat(self.created_at)


class MessageRecorded(_Fact, frozen=True, kw_only=True):
    """A message enters a conversation: as text, or as a reference to the result of a tool call."""

    kind: ClassVar[str] = "message"
    state: ClassVar[str] = "recorded"

    step_id: str | None = None
    conversation: str | None = None
    message: Message | None = None
    call: str | None = None
    """Key of the tool call whose result the message is; None: the text is in `message`."""
    tool_call_id: str | None = None
    name: str | None = None
    """The tool's name."""
    shown: int | None = None
    """How many characters of the call's result the message shows; None: all."""
    sequence: _Number | None = None
    saved: SavedMessage | None = None
    metrics: Object | None = None
    replaces: int | None = None
    """Sequence of the message that this one replaces; None: it is appended."""

    def __post_init__(self) -> None:
        if self.message is None and self.call is None:
            raise ValueError("neither `message` nor `call` holds the message's content")


class Rollback(_Fact, frozen=True, kw_only=True):
    """Messages of a failed attempt leave the conversation, which returns to an earlier position."""

    kind: ClassVar[str] = "rollback"
    state: ClassVar[str] = "recorded"

    step_id: str | None = None
    conversation: str
    position: int
    sequence: _Count | None = None


# --- tool calls ----------------------------------------------------------------------------


class ToolCallFact(_OfStep, frozen=True, kw_only=True):
    """A fact about a tool call."""

    kind: ClassVar[str] = "tool_call"

    call_id: str | None = None
    """The provider's id of the call."""
    tool: str
    pending: str | None = None
    """Where the session holds this call, if an earlier run left it without a result."""


class ToolCallStarted(ToolCallFact, frozen=True, kw_only=True):
    """The tool is about to be called. Committed before the call: from
    here on it may have had its effect.
    """

    kind: ClassVar[str] = "tool_call"
    state: ClassVar[str] = "started"

    arguments: str
    """JSON text."""
    effect: str | None = None
    """The declared effect of a tool whose call a rollback does not undo. None: it changes nothing,
    or records what it changes; or an older version recorded the call.
    """


class ToolCallOutcome(ToolCallFact, frozen=True, kw_only=True):
    """A tool call ended, with a result or without."""

    attempts: int | None = None
    duration_ms: float | None = None
    content: str | None = None
    """The text that a model reads, where it differs from the text of `value`."""
    value: JsonValue | UnsetType = UNSET
    error: Object | None = None
    arguments: str | None = None
    """JSON text; set where no `ToolCallStarted` holds it."""
    decided: str | None = None
    """Text form of the decision by which a person settled the call."""


class ToolCallFinished(ToolCallOutcome, frozen=True, kw_only=True):
    """The tool returned a result, or an error that the model reads."""

    kind: ClassVar[str] = "tool_call"
    state: ClassVar[str] = "finished"


class ToolCallFailed(ToolCallOutcome, frozen=True, kw_only=True):
    """The call failed for good."""

    kind: ClassVar[str] = "tool_call"
    state: ClassVar[str] = "failed"


class ToolCallInterrupted(ToolCallOutcome, frozen=True, kw_only=True):
    """The call was cancelled; the tool may have had its effect."""

    kind: ClassVar[str] = "tool_call"
    state: ClassVar[str] = "interrupted"


class ToolCallInDoubt(ToolCallFact, frozen=True, kw_only=True):
    """The call started, its end is unknown and it is not safe to repeat: a person has to decide."""

    kind: ClassVar[str] = "tool_call"
    state: ClassVar[str] = "in_doubt"

    arguments: str


# --- changes of files --------------------------------------------------------------------------


class FileChangeFact(_OfStep, frozen=True, kw_only=True):
    """What one file was before a tool call changed it."""

    kind: ClassVar[str] = "file_change"

    root: str
    """The folder below which the file is, absolute."""
    path: str
    """The path below the root, with `/`."""
    content: str | None = None
    """What the file held, as text or in base64; None: there was no file."""
    is_base64: bool = False
    """Whether `content` is base64, because the file was no text."""
    mode: int | None = None
    """The permission bits of the file; None: there was no file."""
    after: str
    """SHA-256 of the content afterwards, in hex."""
    folders: Sequence[str] | None = None
    """The folders below the root that the change makes, the outermost first; None: none."""

    def __post_init__(self) -> None:
        _ = self.before
        if (self.content is None) is not (self.mode is None):
            raise ValueError("`content` and `mode` must both be there, or neither")

    @property
    def before(self) -> bytes | None:
        """What the file held; None: there was no file."""
        if self.content is None:
            return None
        return b64decode(self.content, validate=True) if self.is_base64 else self.content.encode()


class FileChangeRecorded(FileChangeFact, frozen=True, kw_only=True):
    """A tool call is about to change a file. Committed before the change."""

    state: ClassVar[str] = "recorded"


class FileChangeImported(FileChangeFact, frozen=True, kw_only=True):
    """The change was made where another journal is: it is shown, and no rollback undoes it here."""

    state: ClassVar[str] = "imported"


class FileRollbackFact(_Fact, frozen=True, kw_only=True):
    """A rollback of the files that the run changed."""

    kind: ClassVar[str] = "file_rollback"

    within: str | None = None
    """The prefix of the keys of the work that is undone; None: all of the run."""


class FileRollbackStarted(FileRollbackFact, frozen=True, kw_only=True):
    """The first file is about to be restored. Committed before."""

    state: ClassVar[str] = "started"


class FileRollbackFinished(FileRollbackFact, frozen=True, kw_only=True):
    """All files have been looked at."""

    state: ClassVar[str] = "finished"

    files: Sequence[Object]
    """By file and folder `root`, `path`, `outcome` and `reason`."""
    not_reversible: Sequence[Object] | None = None
    """Calls with an effect that is not undone: `key`, `tool`, `address`, `effect`; None: none."""


# --- decisions, routes, what else happens --------------------------------------------------


class RecordedProposal(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A plan that a person is asked about."""

    text: str
    """The whole plan, as it may be edited and given as the answer."""
    notes: Sequence[str] | None = None
    faults: Sequence[str] | None = None
    """Why it cannot be carried out as it is; None: it can."""
    diff: Object | None = None
    """What differs from the plan that failed, as `PlanDiff` writes it; None: there was none."""


class DecisionFact(_Fact, frozen=True, kw_only=True):
    """A decision of a person that a step needs to continue."""

    kind: ClassVar[str] = "decision"

    what: Literal["approval", "answer"]
    step_id: str
    path: str | None = None
    """The step as people see it: `outer/step[2]`."""
    tool: str | None = None
    arguments: str | None = None
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


class BackEdge(_Fact, frozen=True, kw_only=True):
    """The run takes a back edge because a step failed."""

    kind: ClassVar[str] = "goto"
    state: ClassVar[str] = "recorded"

    step: str | None = None
    to: str
    code: str | None = None
    message: str | None = None
    attempt: int
    step_id: str


class PlanReplaced(_OfStep, frozen=True, kw_only=True):
    """A plan took the place of one that failed, and nobody was asked about it."""

    kind: ClassVar[str] = "plan"
    state: ClassVar[str] = "replaced"

    text: str
    """What differs, in words for people."""
    diff: Object
    """What differs, as `PlanDiff` writes it."""


class RouteFinished(_OfStep, frozen=True, kw_only=True):
    """A model chose the next step."""

    kind: ClassVar[str] = "route"
    state: ClassVar[str] = "finished"

    output: str
    reason: str | None = None


class RouteFailed(_OfStep, frozen=True, kw_only=True):
    """The model could not choose the next step."""

    kind: ClassVar[str] = "route"
    state: ClassVar[str] = "failed"

    error: Object | None = None
    reason: str | None = None


class WarningRecorded(_Fact, frozen=True, kw_only=True):
    """Something that a person should know and that does not stop the run."""

    kind: ClassVar[str] = "warning"
    state: ClassVar[str] = "recorded"

    code: str
    message: str


class PinnedExample(Struct, frozen=True, kw_only=True, gc=False):
    """A question with its answer, taken from a recorded run."""

    question: str
    answer: JsonValue
    run: str
    """The id of the run."""
    address: str
    """The address of the step or item in it."""


class ExamplesPinned(_Fact, frozen=True, kw_only=True):
    """The examples from recorded runs that a step's model is shown, in every call of this run."""

    kind: ClassVar[str] = "examples"
    state: ClassVar[str] = "pinned"

    recipe: str
    """The id of the recipe that has the step: the run's own, or a nested one."""
    step: str
    """The id of the step in that recipe."""
    fingerprint: str
    """Of the step's goal, output and bounds, as far as they decide which examples fit."""
    examples: tuple[PinnedExample, ...] = ()
    """In the order in which they are shown."""


class MarkFact(_Fact, frozen=True, kw_only=True):
    """What a person says of the work of a run: it is good, or bad."""

    kind: ClassVar[str] = "mark"

    verdict: Literal["good", "bad"]
    address: str | None = None
    """The address of the step or item that is meant; None: the whole run."""
    note: str | None = None
    """Why, in the person's words; None: nothing was said."""
    by: str | None = None
    """Who marked it, as they say themselves; None: it is not known."""


class MarkRecorded(MarkFact, frozen=True, kw_only=True):
    """The mark was set in this journal."""

    state: ClassVar[str] = "recorded"


class MarkImported(MarkFact, frozen=True, kw_only=True):
    """The mark was set in another journal: it is shown, and counts for nothing here."""

    state: ClassVar[str] = "imported"


# --- sessions ------------------------------------------------------------------------------


class SessionOpened(_Fact, frozen=True, kw_only=True):
    """A new session, without messages."""

    kind: ClassVar[str] = "session"
    state: ClassVar[str] = "opened"

    recipe: str | None | UnsetType = UNSET
    name: str | None | UnsetType = UNSET
    inputs: Object | None = None


class SessionForked(_Fact, frozen=True, kw_only=True):
    """A new session that starts with the messages of another one."""

    kind: ClassVar[str] = "session"
    state: ClassVar[str] = "forked"

    parent: str
    sequence: _Count
    """Sequence of the last message that is taken from the parent."""
    position: int
    """Position of the last entry that is read from the parent."""
    recipe: str | None | UnsetType = UNSET
    name: str | None | UnsetType = UNSET
    inputs: Object | None = None


class SessionCut(_Fact, frozen=True, kw_only=True):
    """Messages after `sequence` leave the conversation."""

    kind: ClassVar[str] = "session"
    state: ClassVar[str] = "cut"

    sequence: _Count


Fact: TypeAlias = (
    RunStarted
    | RunResumed
    | RunFinished
    | RunLimitReached
    | RunRejected
    | StepStarted
    | StepFinished
    | StepFailed
    | StepInterrupted
    | StepSkipped
    | StepWithdrawn
    | ConversationStarted
    | ModelCallFinished
    | ModelCallFailed
    | ModelCallInterrupted
    | MessageRecorded
    | Rollback
    | ToolCallStarted
    | ToolCallFinished
    | ToolCallFailed
    | ToolCallInterrupted
    | ToolCallInDoubt
    | FileChangeRecorded
    | FileChangeImported
    | FileRollbackStarted
    | FileRollbackFinished
    | DecisionWaiting
    | DecisionRecorded
    | DecisionImported
    | BackEdge
    | PlanReplaced
    | RouteFinished
    | RouteFailed
    | WarningRecorded
    | ExamplesPinned
    | MarkRecorded
    | MarkImported
    | SessionOpened
    | SessionForked
    | SessionCut
)
"""Every fact that a row may hold. Closed: a `match` over it ends in `assert_never`."""

FACTS: Final[tuple[type[Fact], ...]] = Fact.__args__
"""Every class of fact, in the order of the union."""

_CLASSES: Final[Mapping[tuple[str, str], type[Fact]]] = {
    (each.kind, each.state): each for each in FACTS
}


class UnreadableFact(Struct, frozen=True, kw_only=True, gc=False):
    """A body that is not the fact of its kind and state."""

    kind: str
    state: str
    problem: str
    """What was expected, and where in the body: "Expected `str`, got `int` - at `$.recipe`"."""
    body: Object | None = None
    """The body as it is stored; None: there is none that could be shown."""


def class_of(kind: str, state: str) -> type[Fact] | None:
    """The class of facts of that kind and state; None: there is none."""
    return _CLASSES.get((kind, state))


def fact_of(kind: str, state: str, body: Object) -> Fact | UnreadableFact:
    """The body as a fact of that kind and state, or as an `UnreadableFact` if it is not one."""
    found = _CLASSES.get((kind, state))
    if found is None:
        problem = _unknown(kind, state)
    else:
        try:
            return msgspec.convert(body, found)
        except (msgspec.ValidationError, RecursionError) as error:
            problem = str(error)
        except UnicodeEncodeError:
            problem = "a name in its body holds half a character (a lone surrogate)"
    return UnreadableFact(kind=kind, state=state, problem=problem, body=body)


def _unknown(kind: str, state: str) -> str:
    """The message about a kind or state that does not exist."""
    states = [known for each, known in _CLASSES if each == kind]
    if states:
        return f"{kind} has no state {state!r:.40}; its states are: {', '.join(states)}"
    kinds = ", ".join(dict.fromkeys(each for each, _ in _CLASSES))
    return f"the kind {kind!r:.40} is not known; known are: {kinds}"


_LAYOUTS: Final[dict[type[Struct], tuple[tuple[str, object], ...]]] = {}
"""For each class the names of its fields, each with the default that the row leaves out."""


def _layout(kind: type[Struct]) -> tuple[tuple[str, object], ...]:
    names, defaults = kind.__struct_fields__, kind.__struct_defaults__
    required = (msgspec.NODEFAULT,) * (len(names) - len(defaults))
    layout = _LAYOUTS[kind] = tuple(zip(names, (*required, *defaults), strict=True))
    return layout


def body_of(fact: Struct) -> dict[str, JsonValue]:
    """The fact as the body of its entry, without the fields that the row leaves out."""
    if isinstance(fact, UnreadableFact):
        return dict(fact.body or {})
    return _members(fact)


def _members(part: Struct) -> dict[str, JsonValue]:
    layout = _LAYOUTS.get(type(part)) or _layout(type(part))
    return {
        name: value if (form := _FORMS.get(type(value))) is None else form(value)
        for name, default in layout
        if (value := getattr(part, name)) is not default
    }


def _fault_members(fault: Fault) -> dict[str, JsonValue]:
    """The fault without the line of the recipe's text: rows hold no recipe text."""
    return {name: getattr(fault, name) for name in _FAULT_MEMBERS}


_FAULT_MEMBERS: Final = ("code", "message", "file", "line", "column", "label", "help")


def _listed(values: tuple[object, ...]) -> list[object]:
    return [value if (form := _FORMS.get(type(value))) is None else form(value) for value in values]


_FORMS: Final[Mapping[type, Callable[[Any], Any]]] = {  # Any: each form takes its own class
    Message: message_to_json,
    StepCompletionInstruction: partial(asdict, recurse=False),
    Fault: _fault_members,
    PinnedExample: _members,
    RecordedConversation: _members,
    RecordedItem: _members,
    RecordedPart: _members,
    RecordedProposal: _members,
    SavedMessage: _members,
    tuple: _listed,
}
"""How values that are not JSON are written into a row, by their class."""


def inputs_in(beginnings: Sequence[RunBeginning]) -> Mapping[str, JsonValue]:
    """The newest inputs in the starts of a run, which are in order."""
    return next((each.inputs for each in reversed(beginnings) if each.inputs is not None), {})


def given(value: T | UnsetType) -> T | None:
    """The field's value; None where the row lacks the field."""
    return None if isinstance(value, UnsetType) else value


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
