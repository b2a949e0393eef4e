"""Plans of recorded runs that were carried out to their end: nothing is stored for them."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Final

from minions.contracts.executions import address_of
from minions.contracts.journal.facts import (
    FileRollbackFact,
    RunBeginning,
    StepFinished,
    ToolCallFinished,
    ToolCallStarted,
    UnreadableFact,
    given,
)
from minions.contracts.journal.journal import Journal, JournalEntry
from minions.contracts.journal.run_rows import RunFilter, RunRow
from minions.contracts.journal.start_note import StartNote
from minions.contracts.plans import Plan, json_object
from minions.data.json_values import JsonValue, parse_json
from minions.engine.history.keys import scope_of
from minions.engine.services.event_loop import breathe
from minions.engine.views.judgements import mark_of, marks_in
from minions.recipe.kinds.plan_kind import KeptPlan

_MOST_RUNS: Final = 200
"""Runs whose rows are compared with the task, the newest."""
_MOST_READ: Final = 10
"""Runs whose entries are read: those with most words of the task."""
_KINDS: Final = frozenset({"run", "step", "tool_call", "file_rollback", "mark"})


async def kept_plans(
    journal: Journal, wanted: RunFilter, task: str, tool: str
) -> AsyncIterator[KeptPlan]:
    """Plans that were carried out to their end and of which nothing was planned again, taken back
    or marked bad; those first whose runs have most words of the task in their inputs.

    Not of runs that came from a file: what they say is a stranger's.

    Args:
        wanted: Which runs. Without a `user` they are those that have none.
        tool: As `RecipePlanner.checking_tool`.
    Raises:
        JournalError: The journal cannot be read.
    """
    words = frozenset(_words(task))

    def likeness(row: RunRow) -> int:
        return len(words.intersection(_words(row.input_words or "")))

    rows = [
        row
        for row in await journal.runs(wanted, limit=_MOST_RUNS)
        if row.user == wanted.user and row.problem is None
    ]
    for row in sorted(rows, key=likeness, reverse=True)[:_MOST_READ]:  # stable: the newest first
        entries = await journal.entries(
            row.session_id, run_id=row.run_id, kinds=_KINDS, with_damaged=True
        )
        await breathe()  # a journal may answer without waiting for anything
        for kept in _plans_in(entries, tool):
            yield kept


def _words(text: str) -> Iterator[str]:
    return (each[0] for each in re.finditer(r"\w{3,}", text.casefold()))


def _plans_in(entries: Sequence[JournalEntry], tool: str) -> Iterator[KeptPlan]:
    """The plans of one run, the last one first."""
    checked: dict[str, Mapping[str, JsonValue]] = {}
    finished: list[tuple[JournalEntry, StepFinished]] = []
    for entry in entries:
        match entry.fact:
            case RunBeginning(note=note):
                noted = StartNote.of(note)
                if noted.is_imported or noted.is_strangers:
                    return
            case FileRollbackFact() | UnreadableFact():
                return
            case (
                ToolCallStarted(tool=name, arguments=str(said))
                | ToolCallFinished(tool=name, arguments=str(said))
            ) if name == tool:
                head, _, rest = entry.key.partition("#plan-")
                if rest and isinstance(arguments := parse_json(said), Mapping):
                    checked.setdefault(head, arguments)
            case StepFinished() as fact:
                finished.append((entry, fact))
            case _:
                pass
    marks = marks_in(entries)
    for entry, fact in reversed(finished):
        inputs = checked.get(scope_of(entry.key)[:-1])
        output = given(fact.output)
        if inputs is None or not isinstance(output, Mapping) or output.get("replans") != 0:
            continue
        mark = mark_of(marks, address_of(entry.key), entry.position)
        if mark is None or mark.is_good:
            plan = Plan.from_json(json_object(output["plan"]))
            yield KeptPlan(run_id=entry.run_id, plan=plan, inputs=inputs)
