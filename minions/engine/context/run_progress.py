"""What changes during a run: its limits and budget, its time, calls in doubt, its conversation.

Of a step, `StepProgress` says which came before it, and `Iteration` which turn of a loop it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING, TypeAlias

from attrs import field, frozen
from msgspec import Struct
from msgspec import field as struct_field

from minions.contracts.context import Limits
from minions.contracts.executions import RunWarning, StepExecution, StepStatus
from minions.contracts.journal.child_run_links import ChildWait
from minions.contracts.journal.facts import (
    StoredPrefixFact,
    StoredPrefixLost,
    StoredPrefixMade,
    StoredPrefixRenewed,
)
from minions.contracts.messages import Message
from minions.contracts.steps import Step, StepGraph
from minions.data.field_repr import FieldsRepr
from minions.data.json_values import JsonValue
from minions.engine.history.conversation import ConversationSummary, LiveConversation
from minions.engine.services.budget import RunBudget
from minions.engine.services.spending import EarlierUsage

if TYPE_CHECKING:
    from minions.contracts.stored_prefixes import PrefixStorage, StoredPrefix
    from minions.engine.history.open_calls import OpenCall


class LoopItem(Struct, frozen=True, kw_only=True):
    """What one iteration of a loop is about."""

    value: JsonValue
    index: int
    """Of the item or attempt, from 0."""

    @property
    def loop(self) -> JsonValue:
        """What templates read as `loop`."""
        return {"item": self.value, "index": self.index}


@frozen(kw_only=True)
class Attempt(FieldsRepr):
    """One attempt of a step that is done as long as a condition holds."""

    index: int
    """Of the item or attempt, from 0."""
    outputs: Sequence[JsonValue] = ()
    """Outputs of the attempts before; one growing sequence, shared with later attempts."""
    _known: int = field(init=False)

    @_known.default
    def _all_so_far(self) -> int:
        return len(self.outputs)

    @property
    def loop(self) -> JsonValue:
        """What templates read as `loop`."""
        outputs = list(islice(self.outputs, self._known))
        return {"index": self.index, "last": outputs[-1] if outputs else None, "attempts": outputs}


Iteration: TypeAlias = LoopItem | Attempt
"""One of the times that a step is done."""


class Feedback(Struct, frozen=True, kw_only=True):
    """Why the run went back to an earlier step."""

    step_id: str
    """The id of the step that failed."""
    to: str
    """The id of the step that runs again."""
    code: str
    message: str
    attempt: int
    """How often the back edge was followed, this time included; from 1."""

    def to_json(self) -> dict[str, JsonValue]:
        """What templates read as `feedback`."""
        return {
            "step": self.step_id,
            "to": self.to,
            "code": self.code,
            "message": self.message,
            "attempt": self.attempt,
        }


class RunPrefix(Struct, eq=False, kw_only=True):
    """One beginning in one run."""

    key: str
    """Names its rows: `prompt_cache/DIGEST`."""
    model: str
    facts: int = 0
    """How many rows it has."""
    stored: StoredPrefix | None = None
    """None: the provider does not keep it."""
    until: datetime | None = None
    uses: int = 0
    """Calls of this execution that used it since it was made."""
    is_given_up: bool = False
    """Whether it is not made again in this run: the provider refused it, or lost it."""
    storage: PrefixStorage | None = None
    """None: no call of this execution was about it."""
    turn: asyncio.Lock = struct_field(default_factory=asyncio.Lock)

    def take(self, fact: StoredPrefixFact, at: datetime) -> None:
        """Take a recorded fact."""
        self.facts += 1
        match fact:
            case StoredPrefixMade():
                from minions.contracts.stored_prefixes import StoredPrefix

                self.stored = StoredPrefix(name=fact.name, tokens=fact.tokens)
                self.until = at + timedelta(seconds=fact.ttl_s)
            case StoredPrefixRenewed():
                self.until = at + timedelta(seconds=fact.ttl_s)
            case StoredPrefixLost():
                self.stored = None
                self.is_given_up = fact.reason != "expired"
            case _:
                self.stored = None


class RunProgress:
    """Of one recipe in a run. A recipe that is a step shares time, doubt and warnings with it."""

    def __init__(
        self,
        limits: Mapping[str, object],
        *,
        open_calls: Sequence[OpenCall] = (),
        warnings: Sequence[RunWarning] = (),
        parent: RunProgress | None = None,
        earlier: EarlierUsage | None = None,
    ) -> None:
        """Begin with nothing spent.

        Args:
            limits: The recipe's, as they stand in it.
            open_calls: Calls in doubt of the run.
            warnings: Those that earlier executions of the run recorded.
            parent: Of the recipe around this one: what is spent here is spent there, too.
            earlier: What earlier executions of the run used; None: nothing.
        Raises:
            MetadataError: A limit of a wrong name or type.
        """
        self.metadata: dict[str, object] = dict(limits)
        """Limits, and what the application adds; a step reads it when it starts."""
        self._limits = Limits.from_metadata(self.metadata)
        self._limits_seen = dict(self.metadata)
        self._parent = parent
        self.budget: RunBudget = RunBudget(
            self.read_limits,
            parent=parent.budget if parent is not None else None,
            earlier=earlier,
        )
        self.answers_asked: set[str] = parent.answers_asked if parent is not None else set()
        """Keys of answers that were looked up in the cache: to ask again is no repetition."""
        self.retries = 0
        """Attempts at calls beyond the first of each, made by this execution of the run."""
        self._open_calls = tuple(open_calls)
        self._warnings = list(warnings)
        self._deadline: asyncio.Timeout | None = None
        self._conversation: tuple[Message, ...] = ()
        self._live_conversation: LiveConversation | None = None
        self._summary: ConversationSummary | None = None
        self.loop_sizes: dict[str, int] = {}
        """How many items the loops have that have begun, by id of the step."""
        self.prefixes: dict[str, RunPrefix] = parent.prefixes if parent is not None else {}
        """Beginnings of prompts that a provider keeps for the run, by the keys of their rows."""
        self.child_waits: list[ChildWait] = []
        """The steps of the run that wait for child runs."""

    def add_child_wait(self, wait: ChildWait) -> None:
        """A step of the run waits for child runs."""
        self.child_waits.append(wait)

    def count_retry(self) -> None:
        """Count an attempt that is not the first at its call."""
        self.retries += 1
        if self._parent is not None:
            self._parent.count_retry()

    @property
    def limits(self) -> Limits:
        """Read from `metadata` as it is now.

        Raises:
            MetadataError: A limit of a wrong name or type.
        """
        return self.read_limits()

    def read_limits(self) -> Limits:
        """As `limits`. They are read only when the metadata have changed: reading them costs as
        much as a small step.
        """
        if self._limits_seen != self.metadata:
            self._limits = Limits.from_metadata(self.metadata)
            self._limits_seen = dict(self.metadata)
        return self._limits

    @property
    def open_calls(self) -> tuple[OpenCall, ...]:
        """Calls in doubt of the whole run: while there are any, nothing new starts."""
        return self._open_calls if self._parent is None else self._parent.open_calls

    @property
    def warnings(self) -> Sequence[RunWarning]:
        """Those of the whole run, in order, each once."""
        return self._warnings if self._parent is None else self._parent.warnings

    def add_warning(self, warning: RunWarning) -> bool:
        """Whether it is a new one."""
        if self._parent is not None:
            return self._parent.add_warning(warning)
        if warning in self._warnings:
            return False
        self._warnings.append(warning)
        return True

    def start_time(self) -> asyncio.Timeout | None:
        """The run's own time, from its limit `timeout_s`; it begins when the timeout is entered.
        None: it has no such limit.
        """
        timeout_s = self.read_limits().timeout_s
        if timeout_s is not None:
            self._deadline = asyncio.timeout(timeout_s)
        return self._deadline

    @property
    def deadline(self) -> asyncio.Timeout | None:
        """When the time of the whole run is over; None: it has no limit, or has not begun."""
        return self._deadline if self._parent is None else self._parent.deadline

    @property
    def is_out_of_time(self) -> bool:
        """Whether the run's own timeout is what cancels its steps."""
        deadline = self.deadline
        return deadline is not None and deadline.expired()

    def check_time(self) -> None:
        """Spend the budget when the time is over: code that swallowed its cancellation runs on."""
        if self._deadline is None and self._parent is None:
            return
        deadline = self.deadline
        if deadline is not None and deadline.expired():
            self.budget.run_out_of_time()

    @property
    def conversation(self) -> tuple[Message, ...]:
        """Messages of the recipe's steps that share one conversation, oldest first."""
        return self._conversation

    def share_conversation(self, messages: tuple[Message, ...]) -> None:
        """Give the next step that shares the conversation these messages to continue."""
        self._conversation = messages

    @property
    def live_conversation(self) -> LiveConversation | None:
        """The session's conversation, for the run's own steps that share it; else None."""
        return self._live_conversation

    def join_session(self, conversation: LiveConversation) -> None:
        """Let steps that share a conversation continue the session's."""
        self._live_conversation = conversation
        self._summary = conversation.summary

    @property
    def summary(self) -> ConversationSummary | None:
        """The newest summary of the conversation's oldest messages; None: there is none."""
        return self._summary

    def note_summary(self, summary: ConversationSummary) -> None:
        """Let later calls use it; it is newer than the one known so far."""
        self._summary = summary


class StepProgress:
    """The current step, what ran, and how often. Only an `AgentExecutor` changes it."""

    def __init__(self, graph: StepGraph) -> None:
        self.graph = graph
        self._current: Step[object] | None = graph.steps[0]
        self._executions: list[StepExecution[object]] = []
        self._latest: dict[str, int] = {}
        self._visits: dict[str, int] = {}
        self._failures = 0

    @property
    def current_step(self) -> Step[object] | None:
        """What runs next or now; None when the workflow is complete."""
        return self._current

    def set_current_step(self, step: Step[object] | str | None) -> None:
        """Go there; None or an id that the graph does not know completes the workflow."""
        self._current = self.graph.find(step) if isinstance(step, str) else step

    @property
    def is_workflow_complete(self) -> bool:
        """Whether no step comes next."""
        return self._current is None

    def set_workflow_complete(self) -> None:
        """End the workflow: no step comes next."""
        self._current = None

    def record(self, execution: StepExecution[object]) -> None:
        """Keep what came out of a step."""
        step_id = execution.step_id
        self._latest[step_id] = len(self._executions)
        self._executions.append(execution)
        if execution.status is StepStatus.FAILED or execution.is_partial:
            self._failures += 1
        self._visits[step_id] = self._visits.get(step_id, 0) + 1

    @property
    def has_failures(self) -> bool:
        """Whether any execution FAILED or was partial so far, those with a back edge left out."""
        return self._failures > 0

    def take_back_failure(self) -> None:
        """The run went back because of the last one: it is made good, or fails again."""
        self._failures -= 1

    @property
    def step_executions(self) -> tuple[StepExecution[object], ...]:
        """In order of their end, repeated steps each time."""
        return tuple(self._executions)

    def latest(self, step_id: str) -> StepExecution[object] | None:
        """The newest execution of that step; None if it has not run."""
        index = self._latest.get(step_id)
        return None if index is None else self._executions[index]

    def visits(self, step_id: str) -> int:
        """How often that step has run."""
        visits = self._visits
        return visits[step_id] if step_id in visits else 0  # noqa: SIM401  # a call less

    def has_failed(self, step_id: str) -> bool:
        """Whether the newest execution of that step FAILED."""
        execution = self.latest(step_id)
        return execution is not None and execution.status is StepStatus.FAILED
