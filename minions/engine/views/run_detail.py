"""One recorded run with its inputs, steps, messages and result, folded from its entries."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Final, TypeVar

from attrs import evolve, field, frozen
from msgspec import Struct

from minions.contracts.executions import RunState, StepStatus, address_of, item_address
from minions.contracts.journal.child_run_links import OPEN_STATES, WAITS_FOR_RUNS
from minions.contracts.journal.facts import (
    BackEdge,
    ConversationStarted,
    DecisionFact,
    Fact,
    FileChangeFact,
    FileChangeRecorded,
    MessageRecorded,
    ModelCallFact,
    ModelCallFinished,
    RecipeChange,
    Rollback,
    RouteFailed,
    RouteFinished,
    RunBeginning,
    RunFinished,
    RunRejected,
    RunResumed,
    RunStarted,
    StepEnd,
    StepFact,
    StepOmission,
    StepOutcome,
    StepSkipped,
    StepStarted,
    ToolCallFact,
    UnreadableFact,
    given,
    inputs_in,
)
from minions.contracts.journal.journal import Journal, JournalEntry
from minions.contracts.journal.start_note import StartNote
from minions.contracts.messages import Message, message_to_json
from minions.contracts.run_events import StepCompleted
from minions.contracts.runtime import BlockingCalls, IsWorkerGone
from minions.contracts.session_views import SessionStep, StepMetrics
from minions.data.errors import NEEDS_DECISION, Fault
from minions.data.json_values import JsonValue, as_count, as_object, as_objects, as_text
from minions.engine.history.current_rows import current_rows
from minions.engine.history.entry_checks import fact_in
from minions.engine.history.event_stream import EventMaker
from minions.engine.history.keys import base_key, execution_key
from minions.engine.services.event_loop import FEW_ROWS, beside
from minions.engine.services.run_services import is_worker_gone
from minions.engine.views.child_run_states import ChildRunStates, child_runs_in
from minions.engine.views.lookup import REJECTED, json_of_blob
from minions.engine.views.output_rungs import RungCount, rungs_in
from minions.engine.views.run_items import LoopItems, loops_in
from minions.engine.views.run_notes import RunNote, notes_in, rollback_notes_in
from minions.engine.views.run_states import read_leases
from minions.engine.views.run_summary import RunSummary

F = TypeVar("F", bound=Struct)

_LONG: Final = 65_536
"""Bytes of a recipe that are parsed at once."""


@frozen(kw_only=True)
class StepSummary:
    """One visit of a step in a run, or one iteration of a `while`."""

    step_id: str
    """`outer/inner` within a recipe step; `step[0]` is the first iteration of a `while`."""
    status: str
    """The step's status; `running` or `interrupted` as the run's, where it has no recorded end."""
    reason: str | None = None
    output: JsonValue = None
    facts: Mapping[str, JsonValue] = field(factory=dict)
    """The recorded body of the newest row: usage, counts, duration in ms, error."""
    position: int = 0
    """The position in the session of the row with which the visit began."""

    @property
    def is_waiting(self) -> bool:
        """Whether the step waits for a decision of a person."""
        return self._open_code == NEEDS_DECISION

    @property
    def waits_for_runs(self) -> bool:
        """Whether the step waits for its child runs."""
        return self._open_code == WAITS_FOR_RUNS

    @property
    def _open_code(self) -> JsonValue:
        """The code with which the step was left open; None: it was not."""
        error = self.facts.get("error")
        if self.status != StepStatus.IN_PROGRESS or not isinstance(error, Mapping):
            return None
        return error.get("code")

    @property
    def kept_as(self) -> str | None:
        """`pinned` or `cached`, if the output is that of another run; None: the step was run."""
        if self.facts.get("pinned_from"):
            return "pinned"
        return "cached" if self.facts.get("cached_from") else None

    @property
    def retried_attempts(self) -> int | None:
        """The most attempts that one of its calls took; None: each succeeded or failed at once."""
        attempts = self.facts.get("attempts")  # of a `while` without an end: those it may make
        has_ended = "model_calls" in self.facts
        return attempts if has_ended and isinstance(attempts, int) and attempts > 1 else None


@frozen(kw_only=True)
class SentPrompt:
    """The prompt of one answered model call, by its sections."""

    step_id: str
    key: str
    phase: str | None
    sections: Mapping[str, JsonValue]
    """Input tokens by section; they add up to those of the call."""
    cached_from: str | None = None
    """The run whose answer was taken from the cache, so that nothing was sent; None: none."""
    batch: str | None = None
    """The provider's id of the batch that it was answered in; None: the call was made alone."""
    address: str = ""
    """The step, or the item of a loop."""
    input_tokens: int = 0
    cache_read_tokens: int = 0
    """Of these what the server read from its cache of prompts."""
    prefix: Mapping[str, JsonValue] = field(factory=dict)
    """`expected_tokens` of them were to be read there, for a prompt of the step `after` began so;
    `written_tokens` were stored; it `differs` there, and `lost_tokens` behind that are paid again.
    """


@frozen(kw_only=True)
class RunDetail:
    """One run with inputs, result, steps, messages and events between the steps."""

    summary: RunSummary
    inputs: JsonValue
    output: JsonValue
    error: JsonValue
    steps: tuple[StepSummary, ...]
    messages: tuple[tuple[str, Mapping[str, JsonValue]], ...]
    """Pairs of step id and message as the provider saw it, in the order of recording."""
    notes: tuple[RunNote, ...] = ()
    """In the order of recording."""
    faults: tuple[Fault, ...] = ()
    """The faults of a rejected run, in file order, without lines of the recipe's text."""
    prompts: tuple[SentPrompt, ...] = ()
    """In the order they were sent, as far as their sections are recorded."""
    rungs: tuple[RungCount, ...] = ()
    """How the outputs of its steps were asked for, and which answers were valid."""
    loops: Mapping[str, LoopItems] = field(factory=dict)
    """The items of each loop, by the id of its step."""
    child_runs: Mapping[str, ChildRunStates] = field(factory=dict)
    """The child runs of each distributed step, by its id."""
    changed_files: tuple[str, ...] = ()
    """The absolute paths of the files whose changes are recorded, so that `minions rollback` can
    undo them; sorted."""
    resumes_at: datetime | None = None
    """When a run that is queued or waits can be resumed without a decision; None: at once, or
    never."""
    worker: str | None = None
    """The worker that executes it now; None: none does."""
    lacks: tuple[str, ...] = ()
    """What a queued run needs and no worker of its queue has, in words; empty: nothing is known."""
    paused: str | None = None
    """Why no worker takes a queued run now, in words: its queue is paused, or has no worker."""
    takers: tuple[str, ...] = ()
    """The living workers that may take a queued run; empty: there is none, or it is not known."""


async def show_run(
    journal: Journal,
    run: RunSummary,
    *,
    is_worker_gone: IsWorkerGone = is_worker_gone,
    threads: BlockingCalls | None = None,
) -> RunDetail:
    """The run with its steps and messages.

    Args:
        is_worker_gone: Whether the holder of a lease is known to be dead.
        threads: Compute beside the event loop where the run is long; None: nothing else is done
            meanwhile.
    Raises:
        JournalError: `corrupt-entry`; it cannot be read.
    """
    all_rows = await journal.entries(run.session_id, run_id=run.run_id)
    rows = await beside(threads, len(all_rows) > FEW_ROWS, lambda: current_rows(all_rows))
    if run.status == REJECTED:
        return _rejected_detail(run, rows)
    started = await beside(
        threads, len(all_rows) > FEW_ROWS, lambda: _newest(rows, RunStarted, RunResumed)
    )
    ids, looped = await _step_ids(journal, started, threads)
    children = await child_runs_in(journal, run.run_id, all_rows, looped, is_worker_gone, threads)
    detail = await beside(
        threads,
        len(all_rows) > FEW_ROWS,
        lambda: _detail(run, all_rows, rows, started, ids, children),
    )
    if run.status != RunState.RUNNING:
        return detail
    leases = (await read_leases(journal, is_worker_gone)).executed
    return evolve(
        detail, worker=next((each.worker_id for each in leases if each.run_id == run.run_id), None)
    )


def _detail(
    run: RunSummary,
    all_rows: Sequence[JournalEntry],
    rows: Sequence[JournalEntry],
    started: RunBeginning | None,
    ids: Sequence[str],
    children: Mapping[str, ChildRunStates],
) -> RunDetail:
    starts = [row.fact for row in rows if isinstance(row.fact, RunBeginning)]
    finished = _newest(rows, RunFinished) if run.has_ended else None
    versions = [r.fact for r in all_rows if isinstance(r.fact, RunBeginning | RecipeChange)]
    if versions:  # a move is not in the run's row before it is executed
        newest = versions[-1]
        run = evolve(run, version=newest.version, digest=newest.recipe_digest)
    own = frozenset(ids)
    entries = [entry for entry in rows if _is_of(step_of(entry), own)]
    return RunDetail(
        summary=run,
        inputs=inputs_in(starts) if starts else None,
        output=given(finished.output) if finished is not None else None,
        error=given(finished.error) if finished is not None else None,
        steps=_steps(entries, run),
        messages=messages_in(entries),
        notes=tuple(
            sorted([*notes_in(entries), *rollback_notes_in(rows)], key=lambda note: note.position)
        ),
        prompts=tuple(prompts_in(entries)),
        rungs=rungs_in(entries),
        loops=loops_in(entries, is_running=run.status == RunState.RUNNING),
        child_runs=children,
        changed_files=tuple(sorted(_changed_files(all_rows))),
        resumes_at=_resumes_at(run, started, finished),
    )


def _resumes_at(
    run: RunSummary, begun: RunBeginning | None, ended: RunFinished | None
) -> datetime | None:
    if run.status == RunState.QUEUED and begun is not None:
        place = StartNote.of(begun.note).queue
        return place.not_before if place is not None else None
    at = ended.resumes_at if ended is not None else None
    return None if at is None else datetime.fromisoformat(at)


def _rejected_detail(run: RunSummary, rows: Sequence[JournalEntry]) -> RunDetail:
    fact = fact_in(rows[-1], RunRejected)
    return RunDetail(
        summary=run,
        inputs=None,
        output=None,
        error=fact.error,
        steps=(),
        messages=(),
        faults=fact.faults,
    )


async def _step_ids(
    journal: Journal, started: RunBeginning | None, threads: BlockingCalls | None
) -> tuple[Sequence[str], Sequence[str]]:
    """Ids of the steps of the recipe as it is stored now, and of those with a loop: an edit may
    have removed steps.
    """
    if started is None or started.document is None:
        ids = list((started.steps if started is not None else None) or ())
        return ids, ids
    document = as_object(await json_of_blob(journal, started.document, threads))
    steps = [(as_text(step["id"]), step.get("loop")) for step in as_objects(document["steps"])]
    return [step_id for step_id, _ in steps], [step_id for step_id, loop in steps if loop]


def step_of(entry: JournalEntry) -> str | None:
    """The path of the step that the entry belongs to; None: it belongs to the run as a whole."""
    match entry.fact:
        case (
            StepFact(step_id=path) | ConversationStarted(step_id=path)
            | ModelCallFact(step_id=path) | ToolCallFact(step_id=path)
            | DecisionFact(step_id=path) | BackEdge(step_id=path)
            | RouteFinished(step_id=path) | RouteFailed(step_id=path)
            | MessageRecorded(step_id=path) | Rollback(step_id=path)
            | FileChangeFact(step_id=path)
        ):  # fmt: skip
            return path
        case _:
            return None


def _is_of(path: str | None, ids: frozenset[str]) -> bool:
    """Whether that is the path of a step of the run, or None, the run as a whole."""
    return path is None or _outermost(path, ids) in ids


def _outermost(path: str, ids: frozenset[str]) -> str:
    """The run's own step that encloses `outer/inner` or an item's `outer[2]/inner`."""
    root, slash, _ = path.partition("/")
    return root.rpartition("[")[0] if slash and root not in ids else root


def _newest(entries: Sequence[JournalEntry], *kinds: type[F]) -> F | None:
    facts = (entry.fact for entry in reversed(entries))
    return next((fact for fact in facts if isinstance(fact, kinds)), None)


def _steps(entries: Sequence[JournalEntry], run: RunSummary) -> tuple[StepSummary, ...]:
    """The steps in order of start, each with its latest state."""
    steps: dict[str, StepSummary] = {}
    newest = max(entry.generation for entry in entries)
    repeated = {_whole(entry.key) for entry in entries if _begins_while(entry.fact)}
    for entry in entries:
        fact, base = entry.fact, base_key(entry.key)
        if isinstance(fact, RouteFinished):
            _note_choice(steps, entry, fact)
        if not isinstance(fact, StepFact):
            continue
        index = fact.index if isinstance(fact, StepStarted | StepOutcome) else None
        if index is not None and _whole(base) not in repeated:
            continue  # an item of a loop is part of the loop's own summary
        before = steps.get(base)
        is_skipped = isinstance(fact, StepSkipped)
        if is_skipped and before is not None and entry.generation < newest:
            continue  # decided again in each execution of the run
        has_started = before is not None and before.status != "skipped"
        steps[base] = StepSummary(
            step_id=item_address(fact.step_id, index),
            status=status_in(fact, run),
            reason=reason_in(fact, run),
            output=given(fact.output) if isinstance(fact, StepOutcome) else None,
            facts=entry.body,
            position=before.position if before is not None and has_started else entry.position,
        )
    return tuple(sorted(steps.values(), key=lambda step: step.position))


def _begins_while(fact: Fact | UnreadableFact) -> bool:
    return isinstance(fact, StepStarted) and fact.attempts is not None


def _whole(key: str) -> str:
    """The key of the visit, without the iteration."""
    return base_key(key).rpartition("/")[0]


def prompts_in(entries: Sequence[JournalEntry]) -> Iterator[SentPrompt]:
    """The prompts of answered calls, as far as their sections were recorded."""
    for entry in entries:
        fact = entry.fact
        if isinstance(fact, ModelCallFinished) and fact.sections:
            metrics = fact.metrics or {}
            known, prefix = StepMetrics.of(metrics), metrics.get("prefix")
            yield SentPrompt(
                step_id=fact.step_id,
                key=entry.key,
                phase=fact.phase,
                sections=fact.sections,
                cached_from=known.cached_from,
                batch=known.batch,
                address=address_of(entry.key) or fact.step_id,
                input_tokens=int(as_count(metrics.get("input_tokens") or 0)),
                cache_read_tokens=int(as_count(metrics.get("cached_tokens") or 0)),
                prefix=prefix if isinstance(prefix, Mapping) else {},
            )


def _changed_files(rows: Sequence[JournalEntry]) -> set[str]:
    facts = (row.fact for row in rows)
    return {f"{each.root}/{each.path}" for each in facts if isinstance(each, FileChangeRecorded)}


def _note_choice(steps: dict[str, StepSummary], entry: JournalEntry, choice: RouteFinished) -> None:
    """Add a model's choice of the next step, and its reason, to the step that ended before it."""
    base = base_key(execution_key(entry.key))
    if (step := steps.get(base)) is not None:
        shown = {"next": choice.output, "next_because": choice.reason}
        steps[base] = evolve(step, facts={**step.facts, **shown})


def _shown_message(step: SessionStep) -> Mapping[str, JsonValue]:
    """The message as the provider sees it, what the model thought aloud, and `metrics`."""
    shown = step.to_message_dict()
    if step.reasoning is not None:
        shown["reasoning"] = step.reasoning
    if (metrics := step.metrics.to_json()) and step.is_assistant_step():
        shown["metrics"] = metrics
    return shown


def _shown_opening(message: Message) -> Mapping[str, JsonValue]:
    return message_to_json(evolve(message, provider_data=None))


def messages_in(
    entries: Sequence[JournalEntry],
) -> tuple[tuple[str, Mapping[str, JsonValue]], ...]:
    """Pairs of step id and message as the provider saw it, in the order of recording."""
    maker = EventMaker()
    found: list[tuple[str, Mapping[str, JsonValue]]] = []
    for entry in entries:
        if isinstance(fact := entry.fact, StepStarted | ConversationStarted):
            found += [(fact.step_id, _shown_opening(each)) for each in fact.messages or ()]
        maker.note(entry)
        event = maker.event_of(entry)
        if isinstance(event, StepCompleted):
            found.append((event.step_id, _shown_message(event.snapshot)))
    return tuple(found)


# --- what became of a recorded step, where its run has ended or was cut off meanwhile ------------


def status_in(fact: StepFact, run: RunSummary) -> str:
    """The status of the step by its newest fact; where it has no end, the state of the run.

    A step that waited when its run ended was interrupted: nothing waits any more.
    """
    if isinstance(fact, StepEnd) and not _is_left(fact, run):
        return fact.status
    return RunState.INTERRUPTED.value if run.has_ended else run.status


def reason_in(fact: StepFact, run: RunSummary) -> str | None:
    """Why the step has that status; None: nothing is recorded, or its wait is over."""
    if not isinstance(fact, StepOutcome | StepOmission):
        return None
    return None if _is_left(fact, run) else fact.reason


def _is_left(fact: StepEnd, run: RunSummary) -> bool:
    """Whether the step waited, and its run has ended since."""
    return fact.status == StepStatus.IN_PROGRESS and run.status not in OPEN_STATES
