"""What a run began to wait for, derived from the recorded ends of its executions."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

from minions.contracts.executions import RunStatus
from minions.contracts.journal.facts import RunBeginning, RunFinished
from minions.contracts.journal.journal import Journal, JournalEntry
from minions.contracts.waiting import RunWait
from minions.data.json_values import JsonValue


async def new_wait(journal: Journal, run_id: str, *, page: str | None = None) -> RunWait | None:
    """What the run began to wait for with its last execution; None: nothing, or it was resumed.

    A decision that the execution before waited for already is not new, so that a resume which does
    not make it tells nothing.

    Args:
        page: The address of the server's page; None: there is none.
    Raises:
        JournalError: The journal cannot be read.
    """
    rows = await journal.entries(run_id=run_id, kinds={"run"})
    ends = [row for row in rows if isinstance(row.fact, RunFinished)]
    if not ends or rows[-1] is not ends[-1]:
        return None
    known = {_identity(each) for each in (_waiting(ends[-2]) if len(ends) > 1 else ())}
    decisions = tuple(each for each in _waiting(ends[-1]) if _identity(each) not in known)
    if not decisions:
        return None
    last = ends[-1]
    return RunWait(
        id=_id(run_id, last.position),
        run_id=run_id,
        session_id=last.session_id,
        recipe=next(row.fact.recipe for row in rows if isinstance(row.fact, RunBeginning)),
        since=last.at,
        decisions=decisions,
        address=None if page is None else f"{page}#/runs/{run_id}",
    )


def _waiting(end: JournalEntry) -> Sequence[Mapping[str, JsonValue]]:
    fact = end.fact
    if not isinstance(fact, RunFinished) or fact.status != RunStatus.NEEDS_DECISION:
        return ()
    return fact.waiting or ()


def _identity(decision: Mapping[str, JsonValue]) -> tuple[JsonValue, ...]:
    deciders = decision.get("deciders") or ()
    asked = (*deciders,) if isinstance(deciders, list | tuple) else ()
    return (*(decision.get(name) for name in ("key", "digest", "question")), *asked)


def _id(run_id: str, position: int) -> str:
    return f"wait_{hashlib.sha256(f'{run_id} {position}'.encode()).hexdigest()[:24]}"
