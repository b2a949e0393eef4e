"""Batches: texts beside the journal say which there are, the journal what came of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Self

from attrs import evolve, field, frozen

from minions.adapters.stores.memory_stores import StateStore
from minions.app.runs.dated_texts import DatedTexts
from minions.app.wiring.databases import state_beside
from minions.contracts.executions import RunState
from minions.contracts.journal.journal import Journal
from minions.contracts.journal.run_rows import RunFilter, Spent
from minions.data.errors import NotFoundError
from minions.data.json_values import dumps, parse_json
from minions.engine.batches.lines import RunNames
from minions.engine.services.run_services import is_worker_gone
from minions.engine.views.run_states import executed_runs


def batch_id(name: str) -> str:
    """The id of the batch of that name."""
    return RunNames(name).start.removeprefix("run_")


@frozen(kw_only=True)
class BatchRecord:
    """A batch as it was begun."""

    id: str
    """What the ids of all its runs begin with, behind `run_`."""
    title: str
    """Where its lines are from: `tickets.jsonl`, or the name that was given."""
    recipe: str
    lines: int
    began_at: datetime
    """When it was begun first."""
    project: str | None = None
    """The folder of the project in which it was begun."""

    def to_text(self) -> str:
        """The form in which it is stored."""
        return dumps(
            {
                "title": self.title,
                "recipe": self.recipe,
                "lines": self.lines,
                "began_at": self.began_at.isoformat(),
                "project": self.project,
            }
        )

    @classmethod
    def of_text(cls, name: str, text: str) -> Self | None:
        """What was stored; None: it is of another form."""
        try:
            stored = parse_json(text)
            if not isinstance(stored, Mapping):
                return None
            project, lines = stored.get("project"), stored["lines"]
            return cls(
                id=name,
                title=str(stored["title"]),
                recipe=str(stored["recipe"]),
                lines=lines if isinstance(lines, int) else 0,
                began_at=datetime.fromisoformat(str(stored["began_at"])),
                project=project if isinstance(project, str) else None,
            )
        except (KeyError, ValueError):
            return None


@frozen(kw_only=True)
class BatchProgress:
    """A batch with what came of its lines."""

    record: BatchRecord
    states: Mapping[str, int] = field(factory=dict)
    """How many of its runs are in each state, one of `RunState`. A line whose inputs changed
    between two executions has a run for each of them."""
    spent: Spent = field(factory=Spent)

    @property
    def begun(self) -> int:
        """The number of its runs."""
        return sum(self.states.values())


class BatchRecords:
    """The batches of a database."""

    def __init__(self, state: StateStore) -> None:
        """Nothing is read yet.

        Args:
            state: The texts beside the journal.
        """
        self._texts = DatedTexts(state, "batch")

    async def begin(self, record: BatchRecord) -> None:
        """Store it; of one that was begun before, how many lines it has by now.

        Raises:
            JournalError: The database cannot be used.
        """
        before = await self._texts.find(record.id)
        known = None if before is None else BatchRecord.of_text(record.id, before)
        if known is not None:
            record = evolve(record, began_at=known.began_at)
        if record != known:
            await self._texts.put(record.id, record.began_at, record.to_text())

    async def page(self, limit: int, offset: int) -> tuple[Sequence[BatchRecord], int]:
        """A part of the batches, the newest first, and how many there are.

        Raises:
            JournalError: The database cannot be used.
        """
        texts, total = await self._texts.page(limit, offset)
        found = [BatchRecord.of_text(name, text) for name, text in texts]
        return [each for each in found if each is not None], total

    async def find(self, batch_id: str) -> BatchRecord:
        """The batch of that id.

        Raises:
            NotFoundError: There is none.
            JournalError: The database cannot be used.
        """
        text = await self._texts.find(batch_id)
        found = None if text is None else BatchRecord.of_text(batch_id, text)
        if found is None:
            raise NotFoundError(
                f"There is no batch '{batch_id[:100]}'. GET /api/v1/batches lists them.",
                code="unknown-batch",
            )
        return found


async def record_batch(journal: Journal, record: BatchRecord) -> None:
    """Store beside the journal that the batch began.

    Raises:
        JournalError: The database cannot be used.
    """
    state = state_beside(journal)
    try:
        await BatchRecords(state).begin(record)
    finally:
        await state.aclose()


async def batch_progress(journal: Journal, record: BatchRecord) -> BatchProgress:
    """What came of the lines of a batch; costs what the batch has, not what is recorded.

    Raises:
        JournalError: The journal cannot be read.
    """
    start = f"run_{record.id}"
    totals = await journal.totals(RunFilter(id_start=start))
    states = {state: each.runs for state, each in totals.items()}
    executed = await executed_runs(journal, is_worker_gone)
    if running := sum(each.startswith(start) for each in executed):
        cut_off = max(0, states.pop(RunState.INTERRUPTED, 0) - running)
        states[RunState.RUNNING.value] = running
        if cut_off:
            states[RunState.INTERRUPTED.value] = cut_off
    spent = Spent()
    for each in totals.values():
        spent = spent.plus(each.spent)
    return BatchProgress(record=record, states=states, spent=spent)
