"""The recorded work of a run by key: a resumed run replays it instead of doing it again.

A resumed run writes into a new generation. Work that an earlier generation finished is replayed;
work that was cut off is done again. `recorded` restores calls and executions from the rows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Final, assert_never

from attrs import frozen

from minions.contracts.approvals import DecisionMaker, Vote
from minions.contracts.decision_types import Approve, Decision, Reject
from minions.contracts.executions import RunWarning, address_of, around
from minions.contracts.journal.facts import (
    BackEdge,
    BatchCallFact,
    ConversationStarted,
    DecisionFact,
    DecisionRecorded,
    DecisionWaiting,
    ExamplesPinned,
    Fact,
    FileChangeFact,
    FileRollbackFact,
    MarkFact,
    MessageRecorded,
    ModelCallFact,
    PlanLookup,
    PlanReplaced,
    RecipeFact,
    RecipeMoved,
    RecipeMovedBack,
    Rollback,
    RouteFailed,
    RouteFinished,
    RunFinished,
    RunLimitReached,
    RunRejected,
    RunResumed,
    RunStarted,
    ScoreFact,
    SessionCut,
    SessionForked,
    SessionOpened,
    StepFact,
    StepFailed,
    StepFinished,
    StepInterrupted,
    StepOmission,
    StepOutcome,
    StepSkipped,
    StepStarted,
    StoredPrefixFact,
    ToolCallFact,
    ToolCallStarted,
    UnreadableFact,
    WarningRecorded,
    given,
)
from minions.contracts.journal.journal import JournalEntry, unreadable_entry
from minions.data.field_repr import FieldsRepr
from minions.data.json_values import JsonValue
from minions.engine.history.keys import (
    base_key,
    enclosing,
    execution_key,
    head_of,
    outermost,
    path_of,
    question_key,
    step_of,
)
from minions.engine.history.open_calls import OpenCall, open_call, was_refused
from minions.engine.history.step_rows import StepRows

_FINAL: Final = frozenset({"finished", "failed", "skipped", "recorded", "withdrawn"})
"""States after which no work is left. `interrupted`, `in_doubt` and `waiting` are not final."""


class _AddressSet:
    """Executions by address; of an address that ends with `/` also its iterations and what is
    within.
    """

    def __init__(self, addresses: Collection[str]) -> None:
        self._single = {each for each in addresses if not each.endswith("/")}
        self._whole = {each[:-1] for each in addresses if each.endswith("/")}

    def __contains__(self, base: str) -> bool:
        if not (self._single or self._whole):
            return False
        address = address_of(base)
        return address in self._single or any(each in self._whole for each in around(address))


@frozen
class RecordedBackEdge(FieldsRepr):
    """A back edge that a run took because a step failed."""

    position: int
    """The position of its row."""
    attempt: int


class Replay:
    """The recorded work of one run, as far as it still counts.

    `entries` are all rows of the run, oldest first; `generation` is the one of this execution.
    """

    def __init__(self, entries: Iterable[JournalEntry], generation: int) -> None:
        self.generation = generation
        self.checks_inputs = False
        """Whether a finished step is replayed only if the values that it read are unchanged."""
        self.is_over = False
        """Whether the run already has its output: everything is replayed and no fact is new."""
        self.warnings: list[RunWarning] = []
        self.decisions: dict[str, Decision] = {}
        """Decisions on calls in doubt, by key."""
        self.votes: dict[str, list[Vote]] = {}
        """What persons said with resumes of the calls that wait now, by key."""
        self.retried_at = 0
        """Back edges that were recorded before this position do not count: a retry followed."""
        self.examples: dict[tuple[str, str], ExamplesPinned] = {}
        """The examples from recorded runs that were pinned, by recipe and step."""
        self.prefixes: list[JournalEntry] = []
        """What became of beginnings of prompts that providers keep, oldest first."""
        self.position = 0
        """The position of the newest row."""
        self.trace: Mapping[str, str] = {}
        """Headers of the span of the newest execution; empty: it was not traced."""
        self.queued_trace: Mapping[str, str] = {}
        """Those of whoever queued the run since; empty: nobody did, or it was not traced."""
        self._latest: dict[tuple[str, str], JournalEntry] = {}
        self._executions: dict[str, StepRows] = {}
        self._interrupted: set[str] = set()
        """Keys, without generation, of executions that were cut off and not continued so far."""
        self._current: dict[str, StepRows | None] = {}
        self._moved_from: list[dict[str, StepRows | None]] = []
        """What counted before each move to another version that was not undone."""
        self._reruns: dict[str, int] = {}
        """How often retries discarded an execution whatever it came to, by its base."""
        self._back_edges: dict[str, RecordedBackEdge] = {}
        self._asked: dict[str, JournalEntry] = {}
        """The first row of each question that waits, which later rows repeat or escalate."""
        self._given_up: set[str] = set()
        """Keys of failed choices of a next step that are to be repeated."""
        for entry in entries:
            self._add(entry)

    def _add(self, entry: JournalEntry) -> None:  # one case a kind
        self.position = max(self.position, entry.position)
        match fact := entry.fact:  # the most frequent first: it is done for every row
            case ToolCallStarted():
                self._rows_of(entry)
                self.decisions.pop(entry.key, None)  # started again: the decision is used up
            case ToolCallFact() | ModelCallFact() | MessageRecorded():
                self._rows_of(entry)
            case StepSkipped() | BatchCallFact():
                # Decided again in each execution of the run; open work of the step stays.
                self._latest[fact.kind, entry.key] = entry
            case StepFact():
                self._add_step_row(self._rows_of(entry), entry, fact)
            case (
                ConversationStarted() | Rollback() | DecisionFact() | PlanLookup() | PlanReplaced()
                | RouteFinished() | RouteFailed()
            ):  # fmt: skip
                self._rows_of(entry)
                self._add_question(entry)
            case BackEdge(attempt=attempt):
                rows = self._rows_of(entry)
                rows.is_answered = True
                # The first, so that every later execution compares the same row with the retry.
                back_edge = RecordedBackEdge(entry.position, attempt)
                self._back_edges.setdefault(base_key(rows.key), back_edge)
            case WarningRecorded(code=code, message=message):
                self._latest[fact.kind, entry.key] = entry
                self.warnings.append(RunWarning(code=code, message=message))
            case StoredPrefixFact():
                self.prefixes.append(entry)
            case RunStarted() | RunResumed():
                self._add_beginning(fact, entry.at)
            case RunFinished() | RunLimitReached() | RunRejected():
                pass  # the state of the run is no recorded work
            case FileChangeFact() | FileRollbackFact():
                pass  # a rollback reads them; a change that is made again is recorded again
            case ExamplesPinned() | RecipeFact():
                self._add_choice(fact)
            case MarkFact() | ScoreFact() | SessionOpened() | SessionForked() | SessionCut():
                pass  # of the session, or what somebody thinks of a run's work, changes none of it
            case UnreadableFact(problem=problem):
                raise unreadable_entry(entry, problem)
            case _:
                assert_never(fact)

    def _add_choice(self, fact: ExamplesPinned | RecipeFact) -> None:
        match fact:
            case ExamplesPinned(recipe=recipe, step=step):
                self.examples[recipe, step] = fact
            case RecipeMoved(anew=anew):
                self._moved_from.append(dict(self._current))
                self._begin_again(anew)
            case RecipeMovedBack() if self._moved_from:
                self._current = self._moved_from.pop()

    def _rows_of(self, entry: JournalEntry) -> StepRows:
        """Add an entry to its execution, and return the rows of that execution."""
        self._latest[entry.fact.kind, entry.key] = entry
        key = execution_key(entry.key)
        rows = self._executions.get(key)
        if rows is None:
            rows = self._executions[key] = StepRows(key)
        rows.rows.append(entry)
        return rows

    def _add_step_row(self, rows: StepRows, entry: JournalEntry, fact: StepFact) -> None:
        base = base_key(rows.key)
        self._current[base] = rows
        self._interrupted.discard(base)
        if isinstance(fact, StepStarted):
            rows.started = entry
        elif isinstance(fact, StepInterrupted):
            self._interrupted.add(base)
        elif fact.state in _FINAL:
            rows.ended = entry
        if isinstance(fact, StepFailed):
            rows.was_cut_off = any(base in enclosing(each) for each in self._interrupted)

    def _add_question(self, entry: JournalEntry) -> None:
        """Another call, or other rules, are another question, on which there is no vote yet."""
        fact = entry.fact
        if not isinstance(fact, DecisionWaiting):
            return
        known = self._asked.get(entry.key)
        if known is None or not is_same_question(known.fact, fact):
            self._asked[entry.key] = entry
            self.votes.pop(entry.key, None)

    def add_votes(
        self, decided: Mapping[str, Decision], maker: DecisionMaker, at: datetime
    ) -> None:
        """Add what a person says of questions, by key."""
        for key, decision in decided.items():
            if isinstance(decision, Approve | Reject):
                vote = Vote(decision=decision, maker=maker, at=at)
                self.votes.setdefault(key, []).append(vote)

    def recorded_decisions(self) -> Iterator[tuple[str, DecisionRecorded]]:
        """The decisions that were made in this journal, by key."""
        for (kind, key), entry in self._latest.items():
            if kind == "decision" and isinstance(entry.fact, DecisionRecorded):
                yield key, entry.fact

    def question(self, key: str) -> JournalEntry | None:
        """The first row of the question that waits under that key; None: none does."""
        newest = self.newest("decision", key)
        is_waiting = newest is not None and isinstance(newest.fact, DecisionWaiting)
        return self._asked.get(key) if is_waiting else None

    def _add_beginning(self, fact: RunStarted | RunResumed, at: datetime) -> None:
        trace = fact.trace or {}
        if fact.queued:
            self.queued_trace = trace
        else:
            self.trace, self.queued_trace = trace, {}
        if isinstance(fact, RunStarted):
            return
        self.add_votes(fact.decided, fact.maker, at)
        self.decisions.update(fact.decided)
        if fact.retries:
            self.retry(fact.anew or (), fact.anew_at or ())

    def _begin_again(self, paths: Collection[str]) -> None:
        """Discard what steps had begun, with all within them."""
        for base in self._current:
            path = path_of(base)
            if any(path == each or path.startswith(f"{each}/") for each in paths):
                self._current[base] = None

    def retry(self, rerun: Collection[str], at: Collection[str] = ()) -> None:
        """Discard the ends of failed steps, and everything that the steps `rerun` did.

        Args:
            rerun: Paths of steps: `outer/inner` means that step alone, `outer/` all within it, too.
            at: Addresses of executions: `outer[1]/inner[2]` means that one alone, and
                `outer[1]/inner/` also its iterations and all within it.
        """
        self.checks_inputs = True
        steps, wholes = set(rerun), tuple(name for name in rerun if name.endswith("/"))
        discarded = _AddressSet(at)
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
            has_failed = rows.has_failed or rows.is_partial or rows.is_withdrawn
            is_rerun = is_chosen or base in discarded
            if is_rerun:
                self._reruns[base] = self._reruns.get(base, 0) + 1
            if has_failed or is_stale or is_rerun:
                self._current[base] = None

    # --- looking up -----------------------------------------------------------------------------

    def execution(self, base: str) -> StepRows | None:
        """The execution that counts for `step/visit/iteration`; None: it is to be begun."""
        return self._current.get(base)

    def bases(self) -> Iterator[str]:
        """The keys `step/visit/iteration` of all executions, without generation, as they began."""
        return iter(self._current)

    def began_at(self, base: str) -> int:
        """The position of the oldest row of the execution that counts; 0: it is to be begun."""
        rows = self._current.get(base)
        return rows.rows[0].position if rows is not None else 0

    def reruns(self, base: str) -> int:
        """How often retries discarded that execution whatever it came to."""
        return self._reruns.get(base, 0)

    def was_distributed(self, base: str) -> bool | None:
        """Whether the items of that step were runs of their own when it was begun last; None: no
        execution of the run began it.
        """
        found = [
            rows.start.distributed is not None
            for key, rows in self._executions.items()
            if base_key(key) == base and rows.start is not None
        ]
        return found[-1] if found else None

    def outputs_of(self, step_id: str) -> Iterator[JsonValue]:
        """The outputs of the finished executions of a step that count."""
        for base, rows in self._current.items():
            end = rows.end if rows is not None else None
            if step_of(base) == step_id and isinstance(end, StepFinished):
                yield given(end.output)

    def loop_facts(self) -> Iterator[StepStarted | StepOutcome]:
        """Of executions that count: the starts of loops, and the ends of items."""
        for rows in self._current.values():
            start, end = (None, None) if rows is None else (rows.start, rows.end)
            if start is not None and start.total is not None:
                yield start
            if isinstance(end, StepOutcome) and end.index is not None:
                yield end

    def begun_calls(self, step_ids: Collection[str]) -> Iterator[tuple[str, str]]:
        """Key and tool of every call that discarded executions of these steps made, or may have.

        A call that was refused before its tool was called is none of them.
        """
        for rows in self._executions.values():
            is_current = self._current.get(base_key(rows.key)) is not None
            if is_current or outermost(rows.key) not in step_ids:
                continue
            refused = {entry.key for entry in rows.rows if was_refused(entry.fact)}
            for entry in rows.rows:
                if isinstance(entry.fact, ToolCallStarted) and entry.key not in refused:
                    yield entry.key, entry.fact.tool

    def forget(self, base: str) -> None:
        """Discard the execution, so that it is begun again."""
        self._current[base] = None

    def key_of(self, base: str) -> str:
        """The key of the execution that counts, or of the one that begins now."""
        rows = self._current.get(base)
        if rows is not None:
            return rows.key
        return f"{base}@{self.generation}" if base in self._executions else base

    def key_of_choice(self, base: str) -> str:
        """The key of a choice of the next step; after a failed one a retry counts up `@number`."""
        key, number = base, 1
        while key in self._given_up:
            number += 1
            key = f"{base}@{number}"
        return key

    def find(self, kind: str, key: str) -> JournalEntry | None:
        """The final row of that work; None: it has none."""
        entry = self._latest.get((kind, key))
        return entry if entry is not None and entry.state in _FINAL else None

    def newest(self, kind: str, key: str) -> JournalEntry | None:
        """The newest row with that key; None: there is none."""
        return self._latest.get((kind, key))

    def waiting(self) -> Iterator[tuple[str, DecisionWaiting]]:
        """The pending decisions of executions that count."""
        for base, rows in self._current.items():
            if rows is None or self._is_withdrawn(base):
                continue
            for entry in rows.rows:
                fact = entry.fact
                if not isinstance(fact, DecisionWaiting):
                    continue
                if entry.key in self.decisions and fact.rules is None:
                    continue  # of others the votes are counted
                if entry is self.newest("decision", entry.key):
                    yield entry.key, fact

    def _is_withdrawn(self, base: str) -> bool:
        """Whether it, or an execution that encloses it, is withdrawn; a loop with all
        iterations.
        """
        for each in (base, *enclosing(base)):
            for rows in (self._current.get(each), self._current.get(f"{head_of(each)}/0")):
                if rows is not None and rows.is_withdrawn:
                    return True
        return False

    def back_edges(self, base: str) -> RecordedBackEdge | None:
        """The first back edge that the run took because of that visit; None: it took none."""
        return self._back_edges.get(base)

    def newest_visit(self, step_id: str) -> StepRows | None:
        """The newest visit of one of the run's own steps; None: it is to be begun."""
        rows, visit = None, 1
        while (base := f"{step_id}/{visit}/0") in self._current:
            rows, visit = self._current[base], visit + 1
        return rows

    def same(self, key: str, fact: Fact) -> JournalEntry | None:
        """The recorded row of that same fact, if it is the newest with its key; None: it is new.

        A started call is always new, and so is a request in a batch or a skipped step; an end is
        new if its reason or output changed.
        """
        if isinstance(fact, ToolCallFact | BatchCallFact):
            return None
        if isinstance(fact, StepSkipped) and not self.is_over:
            return None
        entry = self._newest(key, fact)
        if entry is None or entry.state != fact.state:
            return None
        known = entry.fact
        if isinstance(fact, DecisionRecorded) and isinstance(known, DecisionRecorded):
            is_same = (known.digest, known.word) == (fact.digest, fact.word)
            return entry if is_same or self.is_over else None
        if isinstance(fact, DecisionWaiting) and not self.is_over:
            is_same = isinstance(known, DecisionWaiting) and known.rules == fact.rules
            return entry if is_same and is_same_question(known, fact) else None
        return (
            entry
            if self.is_over or _reason_and_output(entry.fact) == _reason_and_output(fact)
            else None
        )

    def _newest(self, key: str, fact: Fact) -> JournalEntry | None:
        if isinstance(fact, StepStarted):  # a loop's start is asked for also after its end
            rows = self._executions.get(key)
            return rows.started if rows is not None else None
        return self._latest.get((fact.kind, key))

    def opened(self) -> Iterator[OpenCall]:
        """Tool calls in doubt of executions that count: started and not ended, oldest first."""
        for rows in self._current.values():
            for entry in rows.unsettled if rows is not None else ():
                if entry.kind == "tool_call" and entry is self._open_start(entry.key):
                    yield open_call(entry)

    def pending_questions(self, call: str) -> Iterator[tuple[str, DecisionWaiting]]:
        """Questions of a call that have no recorded answer, by key, in the order in which they were
        asked; also those that a resume answers.
        """
        for entry, fact in self._asked_by(call):
            if entry is self.newest("decision", entry.key):
                yield entry.key, fact

    def ended_by_question(self, call: str) -> bool:
        """Whether the call was ended because a person had to answer first, and was not made since:
        after an answer it is made again.
        """
        start = self._open_start(call)
        since = start.position if start is not None else 0
        pending = dict(self.pending_questions(call))
        return any(e.position > since or e.key in pending for e, _ in self._asked_by(call))

    def _asked_by(self, call: str) -> Iterator[tuple[JournalEntry, DecisionWaiting]]:
        """The rows of a call's questions that had no answer when they were asked."""
        rows = self._executions.get(execution_key(call))
        below = question_key(call, "")
        for entry in rows.rows if rows is not None else ():
            if isinstance(entry.fact, DecisionWaiting) and entry.key.startswith(below):
                yield entry, entry.fact

    def begun_call(self, key: str) -> OpenCall | None:
        """The call in doubt with that key; None: it has an end, or was never started."""
        if execution_key(key) not in self._executions:
            return None
        start = self._open_start(key)
        return open_call(start) if start is not None else None

    def _open_start(self, key: str) -> JournalEntry | None:
        """The newest start of a call that has no end; None: it has one."""
        if self.find("tool_call", key) is not None:
            return None
        rows = self._executions[execution_key(key)].rows
        starts = (row for row in reversed(rows) if row.key == key and row.state == "started")
        return next(starts, None)


def is_same_question(known: Fact | UnreadableFact, fact: DecisionWaiting) -> bool:
    """Whether it is the same call under the same rules, however far those came."""
    if not isinstance(known, DecisionWaiting) or known.digest != fact.digest:
        return False
    return definitions_of(known) == definitions_of(fact)


def definitions_of(fact: DecisionWaiting) -> tuple[object, ...]:
    """The rules of who decides, however far those came."""
    return tuple((each.rule, each.not_by) for each in fact.rules or ())


def _reason_and_output(fact: Fact | UnreadableFact) -> tuple[str | None, JsonValue]:
    """Reason and output, which may differ when the same work is done again."""
    match fact:
        case StepOutcome(reason=reason, output=output):
            return reason, given(output)
        case StepOmission(reason=reason) | RouteFailed(reason=reason):
            return reason, None
        case RouteFinished(reason=reason, output=output):
            return reason, output
        case _:
            return None, None
