"""What waits for a person in a journal: one list for commands, HTTP, the page and programs.

Only runs that wait or were cut off are read, which their rows select: runs that have ended cost
nothing here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final, TypeAlias

from attrs import frozen

from minions.contracts.executions import OPEN_STATES, RunState
from minions.contracts.journal.facts import ToolCallInDoubt, ToolCallStarted
from minions.contracts.journal.journal import Journal, JournalEntry, unreadable_entry
from minions.contracts.journal.run_rows import RunFilter
from minions.contracts.tools import Effect
from minions.data.errors import NEEDS_DECISION, JournalError
from minions.data.json_values import JsonValue
from minions.engine.calls.pending_decisions import PendingDecision, pending_decisions, shortened
from minions.engine.history.entry_checks import too_deep
from minions.engine.history.keys import is_budget_key
from minions.engine.history.open_calls import OpenCall
from minions.engine.history.replay import Replay
from minions.engine.views.lookup import list_runs
from minions.engine.views.run_summary import RunSummary
from minions.engine.views.run_waits import is_case

_STATUS: Final = NEEDS_DECISION.replace("-", "_")

CallsInDoubt: TypeAlias = Callable[[str], Awaitable[Sequence[OpenCall]]]
"""Returns the calls of an interrupted run that a resume would ask about; empty: none, or the run
cannot be resumed here."""


class ItemKind(StrEnum):
    """What is asked of a person."""

    APPROVAL = "approval"
    """A call that needs approval."""
    QUESTION = "question"
    """Of an `ask` step, or of a tool."""
    CALL = "call"
    """A call of a tool that the caller of the run carries out."""
    PLAN = "plan"
    """A plan to review."""
    BUDGET = "budget"
    """A budget at its threshold."""
    DOUBT = "doubt"
    """A call that was cut off and may have had its effect."""
    UNREADABLE = "unreadable"
    """An entry of the run is damaged, so that its pending decisions are not known."""


@frozen(kw_only=True)
class InboxItem:
    """A decision that a run waits for."""

    run: RunSummary
    pending: PendingDecision | None = None
    call: OpenCall | None = None
    """The call in doubt; None: it is another kind."""
    problem: str | None = None
    """Of an unreadable run: which entry is damaged, and how."""

    @property
    def kind(self) -> ItemKind:
        """What is asked."""
        if self.pending is None:
            return ItemKind.DOUBT if self.call is not None else ItemKind.UNREADABLE
        if self.pending.what == "answer":
            if self.pending.is_of_caller:
                return ItemKind.CALL
            return ItemKind.PLAN if self.pending.plan is not None else ItemKind.QUESTION
        return ItemKind.BUDGET if is_budget_key(self.pending.key) else ItemKind.APPROVAL

    @property
    def key(self) -> str:
        """The key of the decision in its run; empty: it cannot be read."""
        about = self.pending or self.call
        return about.key if about is not None else ""

    @property
    def step_id(self) -> str:
        """The step that waits; empty: it cannot be read."""
        about = self.pending or self.call
        return about.step_id if about is not None else ""

    @property
    def address(self) -> str:
        """The address of what waits, `sub[1]/each[2]`; empty: it cannot be read."""
        about = self.pending or self.call
        return about.address if about is not None else ""

    @property
    def words(self) -> str:
        """The decision in a line for a person."""
        if self.pending is not None:
            return self.pending.words
        if self.call is None:
            return self.problem or ""
        return (
            f"{self.call.tool}({shortened(self.call.arguments)}) in step '{self.call.address}' was "
            "cut off; it may have had its effect"
        )

    @property
    def asked_at(self) -> datetime:
        """When it was asked; of a call in doubt when its run stopped or began."""
        if self.pending is not None and self.pending.asked_at is not None:
            return self.pending.asked_at
        return self.run.finished_at or self.run.started_at

    @property
    def expires_at(self) -> datetime | None:
        """When its time is over; None: it waits for as long as it takes."""
        return self.pending.due if self.pending is not None else None

    @property
    def cost_usd(self) -> float:
        """What the run cost so far, in US dollars, as far as it is known."""
        return self.run.cost_usd or 0.0

    def to_json(self) -> dict[str, JsonValue]:
        """The document for programs."""
        pending, call, expires = self.pending, self.call, self.expires_at
        return {
            "kind": self.kind.value,
            "recipe": self.run.recipe,
            "run_id": self.run.run_id,
            "session_id": self.run.session_id,
            "key": self.key,
            "step_id": self.step_id,
            "address": self.address,
            "words": self.words,
            "tool": pending.tool if pending is not None else call.tool if call is not None else "",
            "arguments": (
                pending.fact.arguments
                if pending is not None
                else call.arguments
                if call is not None
                else None
            ),
            "digest": pending.digest if pending is not None else None,
            "question": pending.fact.question if pending is not None else None,
            "words_of": list(pending.fact.words_of or ()) if pending is not None else [],
            "deciders": list(pending.deciders) if pending is not None else [],
            "asked_at": self.asked_at.isoformat(),
            "expires_at": expires.isoformat() if expires is not None else None,
            "cost_usd": self.cost_usd,
            "user": self.run.user,
            "project": self.run.project,
        }


async def list_inbox(
    journal: Journal,
    in_doubt: CallsInDoubt | None = None,
    *,
    user: str | None = None,
    project: str | None = None,
) -> list[InboxItem]:
    """Everything that waits for a person; a damaged run hides no other.

    The oldest first, by the hour in which it was asked; of the same hour that of the dearest run.

    Args:
        in_doubt: The calls in doubt of an interrupted run; None: as their starts recorded the
            effects of the tools.
        user: Of the runs of that user alone; None: of all.
        project: Of the runs of the project with that folder; None: of all.
    """
    found: list[InboxItem] = []
    statuses = {_STATUS, *(OPEN_STATES - {RunState.QUEUED})}
    wanted = RunFilter(statuses=statuses, user=user, project=project)
    for run in await list_runs(journal, wanted=wanted):
        try:
            found += await items_of(journal, run, in_doubt)
        except JournalError as error:
            if error.error_code != "corrupt-entry":
                raise
            found.append(InboxItem(run=run, problem=error.message))
    return sorted(found, key=_place)


def _place(item: InboxItem) -> tuple[datetime, float, datetime, str]:
    at = item.asked_at.astimezone(UTC)
    return (at.replace(minute=0, second=0, microsecond=0), -item.cost_usd, at, item.key)


async def items_of(
    journal: Journal, run: RunSummary, in_doubt: CallsInDoubt | None = None
) -> list[InboxItem]:
    """What one run waits for, and what it waited for when it was interrupted; of an interrupted one
    also its calls in doubt. A case of an evaluation asks nobody.

    Raises:
        JournalError: `corrupt-entry`; it cannot be read.
    """
    if run.status not in (_STATUS, RunState.INTERRUPTED):
        return []
    rows = await journal.entries(run.session_id, run_id=run.run_id)
    if run.status == _STATUS and is_case(rows):
        return []
    for row in rows:
        # Forms and defaults are shown as they are: one that cannot be encoded would break the list.
        if row.kind == "decision" and (problem := too_deep(row.body)) is not None:
            raise unreadable_entry(row, problem)
    items = list(_items_in(run, rows))
    if run.status == RunState.INTERRUPTED:
        calls = _cut_off_in(rows) if in_doubt is None else await in_doubt(run.run_id)
        known = {each.key for each in items}
        items += [InboxItem(run=run, call=call) for call in calls if call.key not in known]
    return items


def _items_in(run: RunSummary, rows: Sequence[JournalEntry]) -> Iterator[InboxItem]:
    replay = Replay(rows, max(row.generation for row in rows) + 1)
    for pending in pending_decisions(replay):
        yield InboxItem(run=run, pending=pending)
    reported = {row.key for row in rows if isinstance(row.fact, ToolCallInDoubt)}
    for call in replay.opened():
        if call.key in reported and call.key not in replay.decisions:
            yield InboxItem(run=run, call=call)


def _cut_off_in(rows: Sequence[JournalEntry]) -> Iterator[OpenCall]:
    """The open calls that may have had an effect which must not be had twice."""
    replay = Replay(rows, max(row.generation for row in rows) + 1)
    effects = {row.key: row.fact.effect for row in rows if isinstance(row.fact, ToolCallStarted)}
    for call in replay.opened():
        is_repeatable = effects.get(call.key) in (None, Effect.IDEMPOTENT.value)
        if not (
            is_repeatable or call.key in replay.decisions or replay.ended_by_question(call.key)
        ):
            yield call
