"""What a run did before: its recorded work by key, fed back instead of being done again.

A run that goes on writes into a new generation. What an earlier generation finished stands; what
was cut off is done again. How recorded rows become calls and executions is in `recorded`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final, assert_never

from attrs import field, frozen, mutable

from minions.contracts.context import RunContext
from minions.contracts.decision_words import Decision
from minions.contracts.executions import RunWarning
from minions.contracts.facts import (
    BackEdge,
    ConversationStarted,
    DecisionFact,
    DecisionWaiting,
    Fact,
    MessageRecorded,
    ModelCallFact,
    Rollback,
    RouteFailed,
    RouteFinished,
    RunFinished,
    RunLimitReached,
    RunRejected,
    RunResumed,
    RunStarted,
    SessionCut,
    SessionForked,
    SessionOpened,
    StepEnd,
    StepFact,
    StepFailed,
    StepFinished,
    StepOmission,
    StepOutcome,
    StepSkipped,
    StepStarted,
    ToolCallFact,
    ToolCallStarted,
    UnreadableFact,
    WarningRecorded,
    given,
)
from minions.contracts.journal import JournalEntry
from minions.contracts.json_values import JsonValue
from minions.contracts.stored_sessions import unreadable_entry
from minions.engine.history.entry_checks import fact_in
from minions.engine.history.keys import (
    base_key,
    enclosing,
    execution_key,
    head_of,
    outermost,
    path_of,
    step_of,
)

__all__ = [
    "EXHAUSTED",
    "STUCK",
    "OpenCall",
    "RecordedInParts",
    "Replay",
    "Replayable",
    "StepRows",
    "visible",
]

EXHAUSTED: Final = "while-exhausted"
STUCK: Final = "while-stuck"
"""Codes of steps whose attempts went well and were not enough."""

_FINAL: Final = frozenset({"finished", "failed", "skipped", "recorded", "withdrawn"})
"""States that need no more work. `interrupted`, `in_doubt` and `waiting` are not among them."""


@mutable
class StepRows:
    """The rows of one execution of one step."""

    key: str
    """`step/visit/iteration`, with `@generation` where it was begun anew."""
    started: JournalEntry | None = None
    ended: JournalEntry | None = None
    """Its end, unless it was cut off."""
    rows: list[JournalEntry] = field(factory=list)
    """All of them, in order."""
    is_answered: bool = False
    """Whether the run went back because of its failure: it stands, also in a retry."""

    @property
    def start(self) -> StepStarted | None:
        """The fact of its start."""
        fact = self.started.fact if self.started is not None else None
        return fact if isinstance(fact, StepStarted) else None

    @property
    def end(self) -> StepEnd | None:
        """The fact of its end."""
        fact = self.ended.fact if self.ended is not None else None
        return fact if isinstance(fact, StepEnd) else None

    @property
    def output(self) -> JsonValue:
        """What it gave; None: nothing, or it has not ended."""
        end = self.end
        return given(end.output) if isinstance(end, StepOutcome) else None

    @property
    def cache_key(self) -> str | None:
        """What its output rests on, where that was taken from the cache."""
        end = self.end
        return end.cache_key if isinstance(end, StepFinished) else None

    @property
    def has_failed(self) -> bool:
        """Whether its end is a failure that nothing made up for."""
        return self.ended is not None and self.ended.state == "failed" and not self.is_answered

    @property
    def is_withdrawn(self) -> bool:
        """Whether it waited for a person when the run went back: nobody is asked any more."""
        return self.ended is not None and self.ended.state == "withdrawn"

    @property
    def was_not_enough(self) -> bool:
        """Whether it failed though every attempt of it went well: then all begin anew."""
        if not self.has_failed or self.ended is None:
            return False
        end = self.ended.fact
        return isinstance(end, StepFailed) and end.error.get("code") in (EXHAUSTED, STUCK)

    @property
    def until_end(self) -> list[JournalEntry]:
        """What belongs to the execution itself: a decision about the next step comes after it."""
        end = self.ended
        return self.rows if end is None else [e for e in self.rows if e.position <= end.position]

    @property
    def unsettled(self) -> list[JournalEntry]:
        """What no end of the execution settles: all of it, or the decision about the next step."""
        end = self.ended
        return self.rows if end is None else [e for e in self.rows if e.position > end.position]


@frozen
class RecordedBackEdge:
    """That the run went back because of a step's failure."""

    position: int
    """Of its row."""
    attempt: int


class Replayable(ABC):
    """A Python step that can tell what it would ask, without asking it."""

    @abstractmethod
    def would_repeat(self, view: RunContext, recorded: StepRows) -> bool:
        """Whether it would do now just what it did then."""


class RecordedInParts:
    """A Python step whose parts are recorded one by one: entered again, it does nothing twice."""


@frozen(kw_only=True)
class OpenCall:
    """A tool call that was started and whose end nobody saw."""

    key: str
    step_id: str
    tool: str
    arguments: str


class Replay:
    """The recorded work of one run, as far as it still stands.

    `entries` are all rows of the run, oldest first; `generation` is the one it goes on in.
    """

    def __init__(self, entries: Iterable[JournalEntry], generation: int) -> None:
        self.generation = generation
        self.checks_inputs = False
        """Whether finished steps are reused only if what they read is unchanged."""
        self.is_over = False
        """Whether the run came to its output: it is told again, and nothing is a new fact."""
        self.warnings: list[RunWarning] = []
        self.decisions: dict[str, Decision] = {}
        """What was decided of calls in doubt, by key."""
        self.retried_at = 0
        """Ways back that are recorded before this position count no more: a retry came after."""
        self.position = 0
        """Of the newest row that is known here."""
        self._latest: dict[tuple[str, str], JournalEntry] = {}
        self._executions: dict[str, StepRows] = {}
        self._current: dict[str, StepRows | None] = {}
        self._back_edges: dict[str, RecordedBackEdge] = {}
        self._given_up: set[str] = set()
        """Keys of choices of a next step that failed and are to be made again."""
        for entry in entries:
            self._add(entry)

    def _add(self, entry: JournalEntry) -> None:  # noqa: C901  # one case a kind
        self.position = max(self.position, entry.position)
        match fact := entry.fact:  # the most frequent first: it is done for every row
            case ToolCallStarted():
                self._rows_of(entry)
                self.decisions.pop(entry.key, None)  # begun again: decided and done
            case ToolCallFact() | ModelCallFact() | MessageRecorded():
                self._rows_of(entry)
            case StepSkipped():
                # Decided anew each time: what is under way in the step is still there.
                self._latest[fact.kind, entry.key] = entry
            case StepFact():
                self._add_step_row(self._rows_of(entry), entry, fact)
            case (
                ConversationStarted() | Rollback() | DecisionFact() | RouteFinished()
                | RouteFailed()
            ):  # fmt: skip
                self._rows_of(entry)
            case BackEdge(attempt=attempt):
                rows = self._rows_of(entry)
                rows.is_answered = True
                # The first: whether it came before a retry is the same for every later execution.
                back_edge = RecordedBackEdge(entry.position, attempt)
                self._back_edges.setdefault(base_key(rows.key), back_edge)
            case WarningRecorded(code=code, message=message):
                self._latest[fact.kind, entry.key] = entry
                self.warnings.append(RunWarning(code=code, message=message))
            case RunResumed():
                self._add_resume(fact)
            case RunStarted() | RunFinished() | RunLimitReached() | RunRejected():
                pass  # where the run stands is told in lists
            case SessionOpened() | SessionForked() | SessionCut():
                pass  # of the session, and no run's work
            case UnreadableFact(problem=problem):
                raise unreadable_entry(entry, problem)
            case _:
                assert_never(fact)

    def _rows_of(self, entry: JournalEntry) -> StepRows:
        """The rows of the execution that it belongs to, with it."""
        self._latest[entry.fact.kind, entry.key] = entry
        key = execution_key(entry.key)
        rows = self._executions.get(key)
        if rows is None:
            rows = self._executions[key] = StepRows(key)
        rows.rows.append(entry)
        return rows

    def _add_step_row(self, rows: StepRows, entry: JournalEntry, fact: StepFact) -> None:
        self._current[base_key(rows.key)] = rows
        if isinstance(fact, StepStarted):
            rows.started = entry
        elif fact.state in _FINAL:
            rows.ended = entry

    def _add_resume(self, fact: RunResumed) -> None:
        self.decisions.update(fact.decided)
        if fact.retries:
            self.retry(fact.anew or ())

    def retry(self, anew: Collection[str]) -> None:
        """Forget the ends of failed steps, and what the steps `anew` did.

        Args:
            anew: `outer/inner`: that step alone; `outer/`: all within it, too.
        """
        self.checks_inputs = True
        steps, wholes = set(anew), tuple(name for name in anew if name.endswith("/"))
        self.retried_at = self.position + 1
        failed = (e for e in self._latest.values() if e.kind == "route" and e.state == "failed")
        self._given_up.update(entry.key for entry in failed)
        stale = {
            head_of(base)
            for base, rows in self._current.items()
            if rows is not None and rows.was_not_enough
        }
        for base, rows in self._current.items():
            if rows is None:
                continue
            path = path_of(base)
            is_chosen = path in steps or f"{path}/".startswith(wholes)
            is_stale = any(head_of(each) in stale for each in (base, *enclosing(base)))
            if rows.has_failed or rows.is_withdrawn or is_stale or is_chosen:
                self._current[base] = None

    # --- looking up -----------------------------------------------------------------------------

    def execution(self, base: str) -> StepRows | None:
        """The execution that stands for `step/visit/iteration`; None: it is to be begun."""
        return self._current.get(base)

    def outputs_of(self, step_id: str) -> Iterator[JsonValue]:
        """What the executions of that step gave that stand and came to their end."""
        for base, rows in self._current.items():
            end = rows.end if rows is not None else None
            if step_of(base) == step_id and isinstance(end, StepFinished):
                yield given(end.output)

    def begun_calls(self, step_ids: Collection[str]) -> Iterator[tuple[str, str]]:
        """Key and tool of every call that these steps ever began."""
        for rows in self._executions.values():
            stands = self._current.get(base_key(rows.key)) is not None
            if stands or outermost(rows.key) not in step_ids:
                continue
            for entry in rows.rows:
                if isinstance(entry.fact, ToolCallStarted):
                    yield entry.key, entry.fact.tool

    def forget(self, base: str) -> None:
        """Begin it anew."""
        self._current[base] = None

    def key_of(self, base: str) -> str:
        """The key of the execution that stands, or of the one that is begun now."""
        rows = self._current.get(base)
        if rows is not None:
            return rows.key
        return f"{base}@{self.generation}" if base in self._executions else base

    def key_of_choice(self, base: str) -> str:
        """The key of the choice of a next step: a later try of one that failed has its own."""
        key, number = base, 1
        while key in self._given_up:
            number += 1
            key = f"{base}@{number}"
        return key

    def find(self, kind: str, key: str) -> JournalEntry | None:
        """The end of that work, if it has one."""
        entry = self._latest.get((kind, key))
        return entry if entry is not None and entry.state in _FINAL else None

    def newest(self, kind: str, key: str) -> JournalEntry | None:
        """The newest row about that key, if it has one."""
        return self._latest.get((kind, key))

    def waiting(self) -> Iterator[tuple[str, DecisionWaiting]]:
        """Decisions that the executions that stand wait for, and that nobody took."""
        for base, rows in self._current.items():
            if rows is None or self._is_withdrawn(base):
                continue
            for entry in rows.rows:
                fact = entry.fact
                if not isinstance(fact, DecisionWaiting) or entry.key in self.decisions:
                    continue
                if entry is self.newest("decision", entry.key):
                    yield entry.key, fact

    def _is_withdrawn(self, base: str) -> bool:
        """It, or what it is within; of a loop or `while` all turns at once."""
        for each in (base, *enclosing(base)):
            for rows in (self._current.get(each), self._current.get(f"{head_of(each)}/0")):
                if rows is not None and rows.is_withdrawn:
                    return True
        return False

    def back_edges(self, base: str) -> RecordedBackEdge | None:
        """The first time that the run went back because of that visit, whichever try of it."""
        return self._back_edges.get(base)

    def newest_visit(self, step_id: str) -> StepRows | None:
        """Of the run's own step, the last time that it was done; None: it is to be begun."""
        rows, visit = None, 1
        while (base := f"{step_id}/{visit}/0") in self._current:
            rows, visit = self._current[base], visit + 1
        return rows

    def same(self, key: str, fact: Fact) -> JournalEntry | None:
        """That very fact, if it is the newest about its key.

        A call that begins again is a fact of its own; so is a step that is passed over, or that is
        cut off for another reason, or a loop that gives something else now.
        """
        if isinstance(fact, ToolCallFact) or (isinstance(fact, StepSkipped) and not self.is_over):
            return None
        entry = self._newest(key, fact)
        if entry is None or entry.state != fact.state:
            return None
        return entry if self.is_over or _told(entry.fact) == _told(fact) else None

    def _newest(self, key: str, fact: Fact) -> JournalEntry | None:
        if isinstance(fact, StepStarted):  # it stands also after the end, as of a loop
            rows = self._executions.get(key)
            return rows.started if rows is not None else None
        return self._latest.get((fact.kind, key))

    def opened(self) -> Iterator[OpenCall]:
        """Tool calls of the executions that stand, started and not ended, oldest first."""
        for rows in self._current.values():
            for entry in rows.unsettled if rows is not None else ():
                if entry.kind == "tool_call" and entry is self._begin_of_open(entry.key):
                    yield _open_call(entry)

    def begun_call(self, key: str) -> OpenCall | None:
        """The call of that key as it was started, where nobody saw its end."""
        if execution_key(key) not in self._executions:
            return None
        begun = self._begin_of_open(key)
        return _open_call(begun) if begun is not None else None

    def _begin_of_open(self, key: str) -> JournalEntry | None:
        """The newest start of a call without an end."""
        if self.find("tool_call", key) is not None:
            return None
        rows = self._executions[execution_key(key)].rows
        starts = (row for row in reversed(rows) if row.key == key and row.state == "started")
        return next(starts, None)


def _open_call(entry: JournalEntry) -> OpenCall:
    fact = fact_in(entry, ToolCallStarted)
    return OpenCall(key=entry.key, step_id=fact.step_id, tool=fact.tool, arguments=fact.arguments)


def _told(fact: Fact | UnreadableFact) -> tuple[str | None, JsonValue]:
    """Reason and output: what may be another when the same work is done again."""
    match fact:
        case StepOutcome(reason=reason, output=output):
            return reason, given(output)
        case StepOmission(reason=reason) | RouteFailed(reason=reason):
            return reason, None
        case RouteFinished(reason=reason, output=output):
            return reason, output
        case _:
            return None, None


def visible(entries: Sequence[JournalEntry]) -> list[JournalEntry]:
    """The rows that still tell what happened: not those of executions that were begun anew."""
    newest: dict[str, str] = {}
    for entry in entries:
        if entry.kind == "step" and entry.state != "skipped":
            newest[base_key(entry.key)] = entry.key
    return [
        entry
        for entry in entries
        if entry.state == "skipped"
        or (key := execution_key(entry.key)) == newest.get(base_key(key), key)
    ]
