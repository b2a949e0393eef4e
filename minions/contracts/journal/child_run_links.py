"""Child runs: the items of a distributed step, as runs of their own that workers execute.

What is said here of a child run stands in the note of its start, and of a waiting run in the note
with which it is queued; nothing here is done.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from attrs import field, frozen
from attrs.validators import ge, instance_of

from minions.contracts.executions import RunState
from minions.contracts.journal.journal import JournalEntry
from minions.data.field_repr import FieldsRepr
from minions.data.json_values import JsonValue, dumps

WAITS_FOR_RUNS: Final = "waits-for-runs"
"""Code of a step whose child runs have not all ended: its run is queued until they have."""
OPEN_STATES: Final = frozenset(
    (RunState.QUEUED, RunState.INTERRUPTED, RunState.RUNNING, RunState.NEEDS_DECISION)
)
"""States of child runs that may still come to an end of their own."""
_LINK: Final = "child"
_WAITS: Final = "waits_for"
_PARENT_DIGITS: Final = 12
_STEP_DIGITS: Final = 4
_INDEX_DIGITS: Final = 6
_WORK_DIGITS: Final = 10
_DIGITS: Final = _PARENT_DIGITS + _STEP_DIGITS + _INDEX_DIGITS + _WORK_DIGITS
"""Twice as many as other ids have."""


def child_runs_start(run_id: str) -> str:
    """The start of the ids of all child runs of that run, whichever step has them."""
    return f"run_{_digest(run_id)[:_PARENT_DIGITS]}"


def parent_part(session_id: str) -> str | None:
    """What the ids of all child runs of its run begin with; None: it is no child run's session."""
    digits = session_id.removeprefix("ses_")
    is_child = len(digits) == _DIGITS and digits != session_id
    return f"run_{digits[:_PARENT_DIGITS]}" if is_child else None


@frozen(kw_only=True)
class ChildRunNames(FieldsRepr):
    """The ids of the child runs of one execution of a step.

    They are made of the run, the step, the index of the item and what the child run does, so that
    whoever queues an item, it is the same run, and an item that was changed is another one.
    """

    run_id: str
    """The run that has the step."""
    key: str
    """The journal key of the step's execution, without a generation: `step/visit/0`, and behind
    `#` how often a retry was told to run all of it again."""
    work: str
    """What the step does with every item, as text: its recipe's, and the values that it reads."""
    start: str = field(init=False)
    """The start of the ids of all child runs of the step."""
    _work: str = field(init=False)

    @start.default
    def _own_start(self) -> str:
        return f"{child_runs_start(self.run_id)}{_digest(self.key)[:_STEP_DIGITS]}"

    @_work.default
    def _short_work(self) -> str:
        return _digest(self.work)

    @staticmethod
    def key_of(base: str, reruns: int) -> str:
        """The key of an execution that retries were told so often to run all of again."""
        return f"{base}#{reruns}" if reruns else base

    def index_of(self, run_id: str) -> int | None:
        """The index of the item that the run executes; None: the id is of another form."""
        digits = run_id.removeprefix(self.start)[:_INDEX_DIGITS]
        try:
            return int(digits, 16)
        except ValueError:
            return None

    def run(self, index: int, item: JsonValue) -> str:
        """The id of the run of that item."""
        work = _digest(f"{self._work}{dumps(item)}")[:_WORK_DIGITS]
        return f"{self.start}{index:0{_INDEX_DIGITS}x}{work}"

    @staticmethod
    def session(run_id: str) -> str:
        """The id of the session of a child run, which has no other run."""
        return f"ses_{run_id.removeprefix('run_')}"


@frozen(kw_only=True)
class ChildLink(FieldsRepr):
    """Whose child run it is, and what it may spend; stored in the note of its start."""

    run_id: str = field(validator=instance_of(str))
    """The run that has the step."""
    session_id: str = field(validator=instance_of(str))
    """The session of that run."""
    step_id: str = field(validator=instance_of(str))
    since: int = field(validator=[instance_of(int), ge(0)])
    """The position at which that run began the step, or was continued after an end: what a child
    run came to before is done again by a retry."""
    share: int = field(default=1, validator=[instance_of(int), ge(1)])
    """Into how many parts what was left of that run's limits was split; this run has one of them.
    """
    limits: Mapping[str, float] = field(factory=dict)
    """Its part: `max_tokens`, `max_cost_usd`; {}: that run has no such limit."""

    def to_note(self) -> dict[str, JsonValue]:
        """The entry of the note."""
        own: dict[str, JsonValue] = {
            "run_id": self.run_id,
            "session_id": self.session_id,
            "step_id": self.step_id,
            "since": self.since,
            "share": self.share,
        }
        if self.limits:
            own["limits"] = dict(self.limits)
        return {_LINK: own}

    @classmethod
    def of_note(cls, note: Mapping[str, JsonValue]) -> ChildLink | None:
        """What was stored; None: it is no child run, or the note is of another form."""
        own = note.get(_LINK)
        if not isinstance(own, Mapping):
            return None
        limits = own.get("limits")
        known = limits if isinstance(limits, Mapping) else {}
        try:
            return cls(
                **{name: own.get(name) for name in ("run_id", "session_id", "step_id")},  # type: ignore[arg-type]  # its validators check them
                since=own.get("since", 0),  # type: ignore[arg-type]  # as above
                share=own.get("share", 1),  # type: ignore[arg-type]  # as above
                limits={
                    name: float(most)
                    for name, most in known.items()
                    if name in ("max_tokens", "max_cost_usd") and isinstance(most, int | float)
                },
            )
        except (TypeError, ValueError):
            return None


@frozen(kw_only=True)
class ChildWait(FieldsRepr):
    """A step of a queued run that waits for child runs."""

    start: str
    """The start of their ids."""
    most_open: int = field(default=0, validator=ge(0))
    """It is continued when at most so many of them have not ended."""

    @staticmethod
    def to_note(waits: Sequence[ChildWait]) -> dict[str, JsonValue]:
        """The entry of a note for all that a run waits for."""
        return {_WAITS: [{"start": each.start, "most_open": each.most_open} for each in waits]}

    @classmethod
    def of_note(cls, note: Mapping[str, JsonValue]) -> Sequence[ChildWait]:
        """What was stored; empty: the run waits for no child run."""
        found, stored = list[ChildWait](), note.get(_WAITS)
        for each in stored if isinstance(stored, list) else ():
            if not isinstance(each, Mapping):
                continue
            start, most = each.get("start"), each.get("most_open")
            if isinstance(start, str) and start and isinstance(most, int) and most >= 0:
                found.append(ChildWait(start=start, most_open=most))
        return tuple(found)

    @staticmethod
    def without(note: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
        """The note without that entry."""
        return {name: value for name, value in note.items() if name != _WAITS}


class QueueableRun(Protocol):
    """A prepared run that can be recorded as queued."""

    @property
    def run_id(self) -> str:
        """`run_…`."""

    async def record_queued(self, note: Mapping[str, JsonValue]) -> JournalEntry:
        """Record its start, or how it is resumed, for a worker; see `AgentRun`."""

    async def check_budgets(self) -> None:
        """Refuse a new run that could call no model; see `AgentRun`."""


class ChildRunQueue(ABC):
    """Queues the child runs of one run that a worker executes."""

    @property
    @abstractmethod
    def queue(self) -> str:
        """The name of the queue: that of the run itself."""

    @property
    @abstractmethod
    def note(self) -> Mapping[str, JsonValue]:
        """What the policy of the run is; its child runs have it, too."""

    @property
    @abstractmethod
    def user(self) -> str | None:
        """The label of the user for whom the run is executed; None: none."""

    @property
    @abstractmethod
    def project(self) -> str | None:
        """The folder of the project in which the run was started; None: of none."""

    @abstractmethod
    async def put(self, run: QueueableRun) -> None:
        """Record the run as queued, and submit it.

        Raises:
            BudgetSpentError: It is new, and the budget of its user or day is spent.
            LeaseHeldError: Another process executes or queues it.
            UsageError, JournalError: It could not be recorded; nothing was done.
        """


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
