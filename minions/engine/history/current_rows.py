"""The rows of a run that count now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from minions.contracts.journal.facts import RunResumed
from minions.contracts.journal.journal import JournalEntry
from minions.engine.history.keys import base_key, execution_key
from minions.engine.history.replay import Replay


def current_rows(rows: Sequence[JournalEntry]) -> list[JournalEntry]:
    """The rows without those that a retry discarded, whether their steps ran again or not."""
    replay = Replay(rows, max((row.generation for row in rows), default=1))
    started = {base_key(row.key) for row in rows if row.kind == "step" and row.state != "skipped"}
    discarded = {base for base in started if replay.execution(base) is None}
    places = _places(rows)
    return [
        replace(row, position=places[row.position])
        for row in visible(rows)
        if row.state == "skipped" or base_key(execution_key(row.key)) not in discarded
    ]


def visible(entries: Sequence[JournalEntry]) -> list[JournalEntry]:
    """The rows that still count: without executions that were begun again."""
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


def _places(rows: Sequence[JournalEntry]) -> Mapping[int, int]:
    """By position, the place of each row in a listing: work that is done again keeps its place."""
    first: dict[tuple[str, str, str], int] = {}
    places: dict[int, int] = {}
    for row in rows:
        if isinstance(row.fact, RunResumed) and row.fact.retries:
            first = {}
        key = execution_key(row.key)
        name = (row.kind, f"{base_key(key)}{row.key.removeprefix(key)}", row.state)
        is_skipped = row.state == "skipped"  # decided again in each execution of the run
        places[row.position] = row.position if is_skipped else first.setdefault(name, row.position)
    return places
