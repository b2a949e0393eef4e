"""Which runs without a recorded end are being executed now, by the leases of their workers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

from attrs import evolve, frozen

from minions.contracts.executions import RunState
from minions.contracts.journal.journal import Journal, Lease
from minions.contracts.runtime import IsWorkerGone

if TYPE_CHECKING:
    from minions.contracts.session_views import Session
    from minions.engine.views.run_summary import RunSummary


T = TypeVar("T", "RunSummary", "Session")


async def with_states(
    journal: Journal,
    is_worker_gone: IsWorkerGone,
    read: Callable[[frozenset[str]], Awaitable[Iterable[T]]],
    run_of: Callable[[T], str | None],
) -> list[T]:
    """The result of `read`, with `running` instead of `interrupted` for executed runs.

    Args:
        read: Returns summaries from the journal's rows alone: `interrupted` where no end is
            recorded. Its argument is the set of executed runs.
        run_of: The run whose state a summary has; None: it has no run.
    """
    # A worker has the lease before the first fact of its run and until after the last one. With
    # a look before and one after, no run that begins or ends meanwhile counts as interrupted.
    live = await executed_runs(journal, is_worker_gone)
    found = list(await read(live))
    if any(_is_open(each) and run_of(each) not in live for each in found):
        live |= await executed_runs(journal, is_worker_gone)
    return [
        evolve(each, status=RunState.RUNNING.value)
        if _is_open(each) and run_of(each) in live
        else each
        for each in found
    ]


def _is_open(each: RunSummary | Session) -> bool:
    return each.status == RunState.INTERRUPTED


@frozen
class RunLeases:
    """The leases that no worker has released, by whether somebody executes their run."""

    executed: tuple[Lease, ...]
    """Their time is not over, and their worker is not known to be dead."""
    abandoned: tuple[Lease, ...]
    """All others: nobody executes these runs."""


async def read_leases(journal: Journal, is_worker_gone: IsWorkerGone) -> RunLeases:
    """Whose runs are executed now, and whose are not any more.

    Args:
        is_worker_gone: Whether the holder of a lease is known to be dead.
    Raises:
        JournalError: The journal cannot be read.
    """
    executed: list[Lease] = []
    abandoned: list[Lease] = []
    for each in await journal.held_leases():
        is_executed = not each.has_expired and not is_worker_gone(each.lease.worker_id)
        (executed if is_executed else abandoned).append(each.lease)
    return RunLeases(tuple(executed), tuple(abandoned))


async def executed_runs(journal: Journal, is_worker_gone: IsWorkerGone) -> frozenset[str]:
    """The runs whose lease is held by a worker that is not known to be dead."""
    leases = await read_leases(journal, is_worker_gone)
    return frozenset(each.run_id for each in leases.executed)
