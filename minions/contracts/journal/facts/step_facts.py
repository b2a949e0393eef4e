"""The facts of steps, and of what they do: messages and model calls, tool calls, file changes."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, ClassVar, TypeAlias, TypeVar

from msgspec import UNSET, Meta, Struct, UnsetType

from minions.contracts.calls import StepCompletionInstruction
from minions.contracts.messages import Message
from minions.contracts.redaction import Redacted
from minions.data.json_values import JsonValue

Object: TypeAlias = Mapping[str, JsonValue]
"""A JSON object that other code interprets: usage, metrics, an error."""

T = TypeVar("T")

MessageCount: TypeAlias = Annotated[int, Meta(ge=0)]
"""The sequence of the last message that counts; 0: none does."""
MessageNumber: TypeAlias = Annotated[int, Meta(ge=1)]
"""The sequence of a message, counted from 1."""


# A field with its default is left out of the row: a field that is added later with a default does
# not change rows of old kinds, and rows that lack it stay readable.
class FactShape(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The base of all facts."""

    kind: ClassVar[str]
    state: ClassVar[str]


class FactOfStep(FactShape, frozen=True, kw_only=True):
    """The base of facts that belong to a step."""

    step_id: str
    """The step's path in the whole run: `outer/inner` for a step of a nested recipe."""


def given(value: T | UnsetType) -> T | None:
    """The field's value; None where the row lacks the field."""
    return None if isinstance(value, UnsetType) else value


class StepFact(FactOfStep, frozen=True, kw_only=True):
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
    sandbox: str | None = None
    """The sandbox that held its code; None: it is none, or was not executed."""


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


class ConversationStarted(FactOfStep, frozen=True, kw_only=True):
    """A conversation outside of the model loop starts: of a Python
    step, or of parameter extraction.
    """

    kind: ClassVar[str] = "conversation"
    state: ClassVar[str] = "started"

    conversation: str
    messages: tuple[Message, ...]


class ModelCallFact(FactOfStep, frozen=True, kw_only=True):
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
    sequence: MessageNumber | None = None
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
    redacted: tuple[Redacted, ...] = ()
    """What was replaced by placeholders in the request: kinds, places and counts, no values."""


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


class BatchCallFact(FactOfStep, frozen=True, kw_only=True):
    """A model call has to do with a provider's batch. Its end is a `ModelCallFact`."""

    kind: ClassVar[str] = "batch_call"

    custom_id: str
    """The id of the request in its batch; no other request has it."""
    attempt: int
    """How many requests of the call there were, with this one."""


class BatchCallQueued(BatchCallFact, frozen=True, kw_only=True):
    """The call waits for a batch to be sent."""

    kind: ClassVar[str] = "batch_call"
    state: ClassVar[str] = "queued"

    request: str
    """A digest of the request's body."""


class BatchCallSubmitted(BatchCallFact, frozen=True, kw_only=True):
    """The call is in a batch that is sent now, if it was not sent before the next fact."""

    kind: ClassVar[str] = "batch_call"
    state: ClassVar[str] = "submitted"

    wave: str
    """The wave that makes the batch; its record, beside the journal, says what became of it."""
    request: str
    """A digest of the request's body."""


class BatchCallExpired(BatchCallFact, frozen=True, kw_only=True):
    """The call left its batch without an answer; it is asked again."""

    kind: ClassVar[str] = "batch_call"
    state: ClassVar[str] = "expired"

    reason: str
    """`expired` or `cancelled` by the provider, `failed` with the batch, `missing` among its
    answers, `not-created`; or `late`: the call is made at once."""


class SavedMessage(Struct, frozen=True, kw_only=True, gc=False):
    """What an application states about a message that it stores itself."""

    id: str | None = None
    run_id: str | None = None
    created_at: str | None = None
    """ISO 8601 date and time."""

    def __post_init__(self) -> None:
        if self.created_at is not None:
            datetime.fromisoformat(self.created_at)


class MessageRecorded(FactShape, frozen=True, kw_only=True):
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
    sequence: MessageNumber | None = None
    saved: SavedMessage | None = None
    metrics: Object | None = None
    replaces: int | None = None
    """Sequence of the message that this one replaces; None: it is appended."""

    def __post_init__(self) -> None:
        if self.message is None and self.call is None:
            raise ValueError("neither `message` nor `call` holds the message's content")


class Rollback(FactShape, frozen=True, kw_only=True):
    """Messages of a failed attempt leave the conversation, which returns to an earlier position."""

    kind: ClassVar[str] = "rollback"
    state: ClassVar[str] = "recorded"

    step_id: str | None = None
    conversation: str
    position: int
    sequence: MessageCount | None = None


class ToolCallFact(FactOfStep, frozen=True, kw_only=True):
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
    filled: Sequence[str] | None = None
    """The parameters that a model filled in, of the call of a tool step; None: none."""


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
    filled: Sequence[str] | None = None
    """As of `ToolCallStarted`; set where none holds it."""
    decided: str | None = None
    """Text form of the decision by which a person settled the call."""
    words_of: Sequence[str] | None = None
    """Whose words agents that the call ran have read, of those that strangers may have written;
    None: it ran no agent, and the tool says what it reads."""


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


class FileChangeFact(FactOfStep, frozen=True, kw_only=True):
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


class FileRollbackFact(FactShape, frozen=True, kw_only=True):
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
