"""Facts of runs: how they begin, are continued and end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import ClassVar, Final

from msgspec import UNSET, Struct, UnsetType

from minions.contracts.decision_words import Decision, parse_decision
from minions.contracts.executions import RunStatus
from minions.contracts.journal.facts.decision_facts import _stored_decision
from minions.contracts.journal.facts.shape import FactShape, MessageCount, Object
from minions.data.errors import Fault
from minions.data.json_values import JsonValue

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


class RunBeginning(FactShape, frozen=True, kw_only=True):
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

    project: str | None = None
    """The folder of the project in which it was started; None: of none."""


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


class RunFinished(FactShape, frozen=True, kw_only=True):
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
    sequence: MessageCount | None = None
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


class RunLimitReached(FactShape, frozen=True, kw_only=True):
    """A limit of the run is reached, so that no further work starts."""

    kind: ClassVar[str] = "run"
    state: ClassVar[str] = "limit_reached"

    limit: str | None
    message: str


class RunRejected(FactShape, frozen=True, kw_only=True):
    """The recipe has faults, so that the run never started."""

    kind: ClassVar[str] = "run"
    state: ClassVar[str] = "rejected"

    recipe: str
    project: str | None = None
    """The folder of the project in which it was refused; None: of none."""
    note: Object | None = None
    error: Object | None = None
    faults: tuple[Fault, ...]


def inputs_in(beginnings: Sequence[RunBeginning]) -> Mapping[str, JsonValue]:
    """The newest inputs in the starts of a run, which are in order."""
    return next((each.inputs for each in reversed(beginnings) if each.inputs is not None), {})
