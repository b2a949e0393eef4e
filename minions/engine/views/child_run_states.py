"""The child runs of a recorded run: how many are in which state, and which of them need a look."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from heapq import nsmallest
from typing import Final

from attrs import field, frozen

from minions.contracts.executions import RunState, item_address
from minions.contracts.journal.child_run_links import ChildRunNames
from minions.contracts.journal.facts import StepFailed, StepStarted
from minions.contracts.journal.journal import Journal, JournalEntry
from minions.contracts.journal.run_rows import RunFilter, RunRow
from minions.contracts.runtime import BlockingCalls, IsWorkerGone
from minions.engine.history.keys import base_key
from minions.engine.history.replay import Replay
from minions.engine.services.event_loop import FEW_ROWS, beside
from minions.engine.views.run_states import executed_runs

_PAGE: Final = 500
_MOST_LISTED: Final = 10
_LISTED: Final = frozenset(
    (
        RunState.FAILED,
        RunState.PARTIAL,
        RunState.LIMIT_REACHED,
        RunState.NEEDS_DECISION,
        RunState.UNREADABLE,
    )
)


@frozen(kw_only=True)
class ChildRun:
    """A child run that failed, also in part, or reached a limit, or waits, or cannot be read."""

    address: str
    """Of its item: `each[3]`; `each` if the step has no loop."""
    run_id: str
    status: str
    """One of `RunState`."""
    reason: str | None = None
    """The message of its error, of most runs the first 200 characters; None: none is recorded."""


@frozen(kw_only=True)
class ChildRunStates:
    """The child runs of a distributed step."""

    total: int | None
    """The number of items, some of which may have no run yet; None: it is not recorded."""
    counts: Mapping[str, int] = field(factory=dict)
    """The number of child runs by state, in the order of the states' names."""
    listed: tuple[ChildRun, ...] = ()
    """The first ten by index that failed or wait; the counts tell how many they are."""
    unlisted: int = 0
    """How many more failed or wait."""


@frozen(kw_only=True)
class _DistributedExecution:
    """The newest execution of a distributed step."""

    address: str
    names: ChildRunNames
    total: int | None


async def child_runs_in(
    journal: Journal,
    run_id: str,
    rows: Sequence[JournalEntry],
    loops: Collection[str],
    is_worker_gone: IsWorkerGone,
    threads: BlockingCalls | None = None,
) -> Mapping[str, ChildRunStates]:
    """The child runs of each distributed step, by its id; {} where no step is distributed.

    The rows of child runs are read in pages, and of those that are listed at most one entry.

    Args:
        rows: All rows of the run, the discarded ones, too.
        loops: The ids of the steps that have a loop.
        is_worker_gone: Whether the holder of a lease is known to be dead.
        threads: Compute beside the event loop where there are many rows; None: they do not.
    Raises:
        JournalError: The journal cannot be read.
    """
    steps = await beside(threads, len(rows) > FEW_ROWS, lambda: _distributed_steps(run_id, rows))
    if not steps:
        return {}
    running = await executed_runs(journal, is_worker_gone)
    return {
        each.address: await _states(journal, each, running, has_loop=each.address in loops)
        for each in steps
    }


def _distributed_steps(
    run_id: str, rows: Sequence[JournalEntry]
) -> Sequence[_DistributedExecution]:
    """The steps whose items were runs of their own when they were begun last."""
    newest: dict[str, tuple[JournalEntry, StepStarted]] = {}
    for row in rows:
        if isinstance(fact := row.fact, StepStarted) and fact.index is None:
            newest[fact.step_id] = row, fact
    if not any(fact.distributed is not None for _, fact in newest.values()):
        return ()
    replay = Replay(rows, max(row.generation for row in rows))
    found = []
    for row, fact in newest.values():
        if fact.distributed is not None:
            base = base_key(row.key)
            key = ChildRunNames.key_of(base, replay.reruns(base))
            names = ChildRunNames(run_id=run_id, key=key, work="")  # their start is all that counts
            found.append(_DistributedExecution(address=fact.step_id, names=names, total=fact.total))
    return found


async def _states(
    journal: Journal, step: _DistributedExecution, running: Collection[str], *, has_loop: bool
) -> ChildRunStates:
    wanted = RunFilter(id_start=step.names.start, running=running)
    newest: dict[int, tuple[RunRow, str]] = {}
    async for row in _pages(journal, wanted):
        index = step.names.index_of(row.run_id)
        if index is None or (step.total is not None and index >= step.total):
            continue  # of an item that the loop no longer has
        before = newest.get(index)
        if before is None or before[0].started_at < row.started_at:  # else it was changed since
            newest[index] = row, _status(row, wanted)
    bad = [index for index, (_, status) in newest.items() if status in _LISTED]
    listed = [
        ChildRun(
            address=item_address(step.address, index if has_loop else None),
            run_id=newest[index][0].run_id,
            status=newest[index][1],
            reason=await _reason(journal, newest[index][0]),
        )
        for index in nsmallest(_MOST_LISTED, bad)
    ]
    counts = Counter(status for _, status in newest.values())
    return ChildRunStates(
        total=step.total,
        counts=dict(sorted(counts.items())),
        listed=tuple(listed),
        unlisted=len(bad) - len(listed),
    )


async def _pages(journal: Journal, wanted: RunFilter) -> AsyncIterator[RunRow]:
    after: RunRow | None = None
    while page := await journal.runs(wanted, limit=_PAGE, after=after):
        for row in page:
            yield row
        after = page[-1]


def _status(row: RunRow, wanted: RunFilter) -> str:
    return RunState.UNREADABLE.value if row.problem is not None else wanted.status_of(row)


async def _reason(journal: Journal, row: RunRow) -> str | None:
    """Why the run is listed; where its row does not say it, as its step recorded it."""
    if (known := row.problem or row.error_message) is not None:
        return known
    newest = await journal.entries(
        row.session_id, run_id=row.run_id, kinds={"step"}, limit=1, newest_first=True
    )
    fact = newest[0].fact if newest else None
    return fact.reason if isinstance(fact, StepFailed) else None
