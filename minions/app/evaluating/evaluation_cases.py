"""Where the cases of an evaluation come from: files, values of an application, recorded runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, cast

from attrs import field, frozen

from minions.app.runs.batch_items import ItemsFile
from minions.contracts.executions import RunState
from minions.contracts.journal.facts import given
from minions.contracts.journal.journal import Journal
from minions.contracts.journal.run_rows import RunFilter, RunRow
from minions.contracts.secrets import InputValue
from minions.data.errors import MinionsError, UsageError
from minions.data.json_values import JsonValue
from minions.engine.history.imported_entries import STRANGERS_RECIPE
from minions.engine.history.recorded import recorded_end
from minions.engine.run.recorded_run import load_recorded_run
from minions.evaluation.cases import CaseRow
from minions.recipe.expressions.values import type_name
from minions.recipe.model import AgentRecipe

EVALUATED: Final = "eval"
"""The key of the note of runs that an evaluation asked: they are no cases of another."""
_PAGE: Final = 100


@frozen(kw_only=True)
class RecordedCases:
    """Recorded runs as cases."""

    rows: list[CaseRow] = field(factory=list)
    unreadable: list[str] = field(factory=list)
    """Ids of runs that could not be read, and so are none."""


def file_rows(path: Path, name: str) -> list[CaseRow]:
    """The rows of a file of cases.

    Raises:
        UsageError: `bad-items`; it cannot be read, or a row of it.
    """
    rows = []
    for row in ItemsFile(path, name=name).rows():
        if row.problem is not None:
            raise UsageError(f"{row.place}: {row.problem}", code="bad-items")
        rows.append(CaseRow(place=row.place, values=row.inputs, is_text=row.is_text))
    return rows


def listed_rows(cases: Iterable[object]) -> list[CaseRow]:
    """The cases of an application, as rows.

    Raises:
        UsageError: `bad-items`; one is no mapping.
    """
    rows = []
    for index, case in enumerate(cases):
        if not isinstance(case, Mapping):
            kind = type_name(cast("JsonValue", case))
            raise UsageError(
                f"case {index}: a mapping of inputs with `expected` was expected, not a {kind}.",
                code="bad-items",
            )
        rows.append(CaseRow(place=f"case {index}", values=cast("Mapping[str, InputValue]", case)))
    return rows


async def recorded_rows(
    journal: Journal, recipe: AgentRecipe, most: int, project: str | None
) -> RecordedCases:
    """The newest completed runs of a recipe in a project (None: in all).

    Not those of evaluations, and none of a stranger's: the inputs of an imported run could name
    files and secrets of whoever asks them again.
    """
    wanted = RunFilter(recipe=recipe.id, statuses=(RunState.COMPLETED,), project=project)
    found, after = RecordedCases(), None
    while len(found.rows) < most:
        page = await journal.runs(wanted, limit=_PAGE, after=after)
        for row in page:
            if len(found.rows) < most:
                await _add(found, journal, row, recipe)
        if len(page) < _PAGE:
            break
        after = page[-1]
    return found


async def _add(found: RecordedCases, journal: Journal, row: RunRow, recipe: AgentRecipe) -> None:
    try:
        recorded = await load_recorded_run(journal, row.run_id)
        if recorded.note.get(EVALUATED) or recorded.note.get(STRANGERS_RECIPE):
            return
        end = await recorded_end(journal, row)
    except MinionsError:  # a damaged run harms only itself
        found.unreadable.append(row.run_id)
        return
    inputs = {name: value for name, value in recorded.inputs.items() if name in recipe.inputs}
    expected = None if end is None else given(end.output)
    values = {"name": row.run_id, "inputs": inputs, "expected": expected}
    found.rows.append(CaseRow(place=row.run_id, values=values))
