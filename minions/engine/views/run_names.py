"""The run or session that an id, or the start of one, means; the cost is that of the matches."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Final, NamedTuple

from minions.contracts.journal.journal import Journal
from minions.contracts.journal.run_rows import RunFilter, RunRow, SessionFilter, SessionRow
from minions.data.errors import NotFoundError, UsageError, near_names

_MOST_SHOWN: Final = 5
_PAGE: Final = 100
_COMPARED: Final = 100
"""How many of the newest runs and sessions an unknown name is compared with, to suggest others."""
_MOST_ADDRESSES: Final = 12
_FEWEST: Final = len("run_") + 4
"""Characters of a shortened id: fewer would soon mean another run, too."""
_SAME_START: Final = 8
"""Ids that share so many first characters with an unknown name are compared with it as well."""


class Meaning(NamedTuple):
    """Everything that a name may mean; the first field that is not empty wins."""

    run: RunRow | None = None
    """The run with exactly that id."""
    session: str | None = None
    """The session with exactly that id."""
    runs: Sequence[RunRow] = ()
    """The newest runs whose ids start with the name: one, or several, which is ambiguous."""
    sessions: Sequence[SessionRow] = ()
    """The sessions whose ids start with the name: one, or enough to show that it is not unique."""
    sessions_of_runs: Sequence[str] = ()
    """The sessions of all runs whose ids start with the name, up to the same number."""


async def meaning_of(journal: Journal, name: str) -> Meaning:
    """The runs and sessions that a name may mean; a whole id wins over longer ids.

    Raises:
        UsageError: The name is empty; every id would start with it.
    """
    if not name.strip():
        raise UsageError("The id is empty. `minions sessions list` shows all ids.")
    run = next(iter(await journal.runs(RunFilter(run_ids=[name]))), None)
    known = await journal.sessions(SessionFilter(session_ids=[name]))
    is_session = bool(known or await journal.entries(name, limit=1, with_damaged=True))
    if run is not None or is_session:
        return Meaning(run=run, session=name if is_session else None)
    most = _MOST_SHOWN + 1
    return Meaning(
        runs=await journal.runs(RunFilter(id_start=name), limit=most),
        sessions=await journal.sessions(SessionFilter(id_start=name), limit=most),
        sessions_of_runs=[each async for each in _sessions_of_runs(journal, name)],
    )


async def shortest_name(journal: Journal, run_id: str) -> str:
    """The shortest start of a run's id that means only that run now, as a person may type it.

    Args:
        run_id: Of a recorded run.
    """
    for length in range(_FEWEST, len(run_id), 2):
        start = run_id[:length]
        if await journal.is_ambiguous(start):
            continue
        if not await journal.sessions(SessionFilter(id_start=start), limit=1):
            return start
    return run_id


async def _sessions_of_runs(journal: Journal, start: str) -> AsyncIterator[str]:
    """Session ids without repeats, until there are enough to show."""
    seen: set[str] = set()
    after: RunRow | None = None
    while len(seen) <= _MOST_SHOWN:
        rows = await journal.runs(RunFilter(id_start=start), limit=_PAGE, after=after)
        for row in rows:
            if row.session_id not in seen:
                seen.add(row.session_id)
                yield row.session_id
        if len(rows) < _PAGE:
            return
        after = rows[-1]


def not_unique(name: str, ids: Sequence[str]) -> UsageError:
    """The error for a name that means several ids.

    Args:
        ids: The ids that it may mean.
    """
    shown = ", ".join(ids[:_MOST_SHOWN])
    return UsageError(f"'{name}' is not unique: {shown} … Give more of the id.")


def unknown_address(address: str, known: Iterable[str]) -> NotFoundError:
    """The error for an address at which nothing ran, with similar ones as suggestions.

    Args:
        known: The addresses of what ran, in the order in which it began.
    """
    names = list(known)
    shown = ", ".join(names[:_MOST_ADDRESSES])
    more = len(names) - _MOST_ADDRESSES
    listed = f"Executed were: {shown}{f' and {more} more' if more > 0 else ''}."
    return NotFoundError(
        f"Nothing with the address '{address}' was executed in this run. "
        f"{listed if names else 'Nothing was executed in it.'}",
        code="unknown-step",
        suggestions=near_names(address, names),
    )


async def unknown_name(journal: Journal, name: str, what: str = "run or session") -> NotFoundError:
    """The error for a name that means nothing, with similar ids as suggestions.

    Args:
        what: What was looked for: `run`, `session`, or both.
    """
    near = RunFilter(id_start=name[:_SAME_START])
    near_session = SessionFilter(id_start=name[:_SAME_START])
    runs = [
        *await journal.runs(limit=_COMPARED),
        *(await journal.runs(near, limit=_COMPARED) if name else ()),
    ]
    sessions = [
        *await journal.sessions(limit=_COMPARED),
        *(await journal.sessions(near_session, limit=_COMPARED) if name else ()),
    ]
    known = [row.run_id for row in runs] if "run" in what else []
    known += [row.session_id for row in sessions]
    return NotFoundError(
        f"No {what} starts with '{name}'. `minions sessions list` shows all.",
        code="unknown-session",
        suggestions=near_names(name, known),
    )
