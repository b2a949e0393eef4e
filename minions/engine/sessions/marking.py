"""Marks the outputs of a recorded run, or of one of its steps, as good or bad."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, TypeAlias

from minions.contracts.executions import RunState
from minions.contracts.journal.facts import MarkFact, MarkRecorded, StepFinished
from minions.contracts.journal.journal import JournalEntry
from minions.data.errors import LeaseHeldError, UsageError
from minions.data.texts import shell_word
from minions.engine.history.current_rows import current_rows
from minions.engine.history.event_stream import EventStream
from minions.engine.history.recorder import Recorder
from minions.engine.services.run_services import Services
from minions.engine.views.lookup import REJECTED, find_run
from minions.engine.views.run_names import unknown_address
from minions.engine.views.run_summary import RunSummary
from minions.engine.views.step_details import row_address

Verdict: TypeAlias = Literal["good", "bad"]

LONGEST_NOTE: Final = 2_000
"""The most characters of the note of a mark."""


async def mark_run(
    services: Services,
    name: str,
    verdict: Verdict,
    *,
    address: str | None = None,
    note: str | None = None,
    by: str | None = None,
) -> JournalEntry:
    """Record what a person says of a run's outputs. Nothing is overwritten; the last mark counts.

    Args:
        name: The id or a unique prefix; see `find_run`.
        address: The step or item whose output is meant, `sub[1]/each[2]`; None: all of the run's.
        note: Why, in the person's words; 1 to 2,000 characters.
        by: Who says so, as they call themselves; None: it is not told.
    Returns:
        The recorded entry.
    Raises:
        NotFoundError: There is no such run, or `unknown-step`: it recorded no such step.
        UsageError: `bad-note`; or `nothing-to-mark`: there is no output that could be meant.
        LeaseHeldError: The run, or another one of its session, is being executed.
        JournalError: The journal refuses, or the run cannot be read.
    """
    _check_note(note)
    run = await find_run(services.journal, name)
    _refuse_running(services, run)
    rows = await services.journal.entries(run.session_id, run_id=run.run_id)
    _check_output(run, rows, address)
    count = sum(isinstance(row.fact, MarkFact) for row in rows)
    fact = MarkRecorded(verdict=verdict, address=address, note=note, by=by)
    recorder = Recorder(services, EventStream(), session_id=run.session_id, run_id=run.run_id)
    try:
        return await recorder.record(f"mark/{count + 1}", fact)
    finally:
        await recorder.close()


def _check_note(note: str | None) -> None:
    if note is not None and not (note.strip() and len(note) <= LONGEST_NOTE):
        raise UsageError(
            f"The note of a mark has 1 to {LONGEST_NOTE:,} characters, and not blanks alone: "
            "shorten it, or leave it out.",
            code="bad-note",
        )


def _refuse_running(services: Services, run: RunSummary) -> None:
    if run.status == RunState.RUNNING or run.run_id in services.executing:
        raise LeaseHeldError(
            f"Run '{run.run_id}' is being executed: its outputs cannot be marked now. Wait for its "
            f"end, or end it: minions cancel {shell_word(run.run_id)}",
            worker_id=services.worker_id,
            run_id=run.run_id,
        )


def _check_output(run: RunSummary, rows: Sequence[JournalEntry], address: str | None) -> None:
    """Refuse a mark of what gave no output.

    Raises:
        NotFoundError: `unknown-step`.
        UsageError: `nothing-to-mark`.
    """
    current = current_rows(rows) if run.status != REJECTED else []
    known = dict.fromkeys(filter(None, map(row_address, current)))
    if address is not None and address not in known:
        raise unknown_address(address, known)
    ended = {row_address(row) for row in current if isinstance(row.fact, StepFinished)}
    if not ended or address not in (None, *ended):
        what = f"Step '{address}' of run" if address is not None else "Run"
        raise UsageError(
            f"{what} '{run.run_id}' gave no output that could be marked. What became of it: "
            f"minions sessions show {shell_word(run.run_id)}",
            code="nothing-to-mark",
        )
