"""One step or one item of a recorded run, with everything that it sent and received."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import frozen

from minions.contracts.executions import RunState, address_of
from minions.contracts.journal.facts import StepEnd, StepFact, StepOmission, StepOutcome, given
from minions.contracts.journal.journal import Journal, JournalEntry
from minions.contracts.runtime import BlockingCalls
from minions.data.json_values import JsonValue
from minions.engine.history.current_rows import current_rows
from minions.engine.services.event_loop import FEW_ROWS, beside
from minions.engine.views.run_detail import (
    SentPrompt,
    StepSummary,
    messages_in,
    prompts_in,
    step_of,
)
from minions.engine.views.run_names import unknown_address
from minions.engine.views.run_summary import RunSummary


@frozen(kw_only=True)
class StepDetail:
    """One step of a run, or one item of a loop."""

    summary: StepSummary
    """The newest visit."""
    messages: tuple[Mapping[str, JsonValue], ...]
    """In the order of recording, of all visits."""
    prompts: tuple[SentPrompt, ...]


async def step_of_run(
    journal: Journal,
    run: RunSummary,
    address: str,
    *,
    threads: BlockingCalls | None = None,
) -> StepDetail | None:
    """The step or item of a run with that address; None: nothing is recorded of it.

    Args:
        address: `step`, `outer/inner`, or of an item `each[3]`, `sub[1]/each[2]`.
        threads: Compute beside the event loop where the run is long; None: they do not.
    Raises:
        JournalError: `corrupt-entry`; the run cannot be read.
    """
    rows = await journal.entries(run.session_id, run_id=run.run_id)
    is_running = run.status == RunState.RUNNING
    return await beside(
        threads,
        len(rows) > FEW_ROWS,
        lambda: step_in(current_rows(rows), address, is_running=is_running),
    )


async def require_step(journal: Journal, run: RunSummary, address: str) -> StepDetail:
    """The step or item of a run with that address.

    Raises:
        NotFoundError: `unknown-step`; nothing is recorded of it. Similar addresses are suggested.
        JournalError: As `step_of_run`.
    """
    rows = current_rows(await journal.entries(run.session_id, run_id=run.run_id))
    found = step_in(rows, address, is_running=run.status == RunState.RUNNING)
    if found is None:
        raise unknown_address(address, dict.fromkeys(filter(None, map(row_address, rows))))
    return found


def step_in(rows: Sequence[JournalEntry], address: str, *, is_running: bool) -> StepDetail | None:
    """The step or item with that address among the current rows of a run.

    Args:
        is_running: Whether a step without an end is being executed; else it was interrupted.
    """
    own = [row for row in rows if row_address(row) == address]
    return _step(own, address, is_running=is_running)


def _step(own: Sequence[JournalEntry], address: str, *, is_running: bool) -> StepDetail | None:
    """The step that these rows are of."""
    facts = [row for row in own if isinstance(row.fact, StepFact)]
    if not facts:
        return None
    return StepDetail(
        summary=_summary(address, facts[-1], is_running=is_running),
        messages=tuple(message for _, message in messages_in(own)),
        prompts=tuple(prompts_in(own)),
    )


def steps_in(rows: Sequence[JournalEntry], *, is_running: bool) -> Mapping[str, StepDetail]:
    """All steps and items by address, in the order of their start.

    Args:
        rows: The current rows of a run.
        is_running: Whether a step without an end is being executed; else it was interrupted.
    """
    own: dict[str, list[JournalEntry]] = {}
    for row in rows:
        if (address := row_address(row)) is not None:
            own.setdefault(address, []).append(row)
    found = {address: _step(each, address, is_running=is_running) for address, each in own.items()}
    return {address: step for address, step in found.items() if step is not None}


def row_address(row: JournalEntry) -> str | None:
    """The address of the step or item that the row belongs to; None: it belongs to the run."""
    return address_of(row.key) if step_of(row) is not None else None


def _summary(address: str, row: JournalEntry, *, is_running: bool) -> StepSummary:
    fact = row.fact
    open_state = (RunState.RUNNING if is_running else RunState.INTERRUPTED).value
    return StepSummary(
        step_id=address,
        status=fact.status if isinstance(fact, StepEnd) else open_state,
        reason=fact.reason if isinstance(fact, StepOutcome | StepOmission) else None,
        output=given(fact.output) if isinstance(fact, StepOutcome) else None,
        facts=row.body,
        position=row.position,
    )
