"""Decisions about a run that a worker resumes: recorded without what its recipe names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec.structs import asdict

from minions.contracts.journal.facts import RunBeginning, RunResumed
from minions.contracts.journal.journal import EntryDraft, JournalEntry
from minions.data.errors import JournalError
from minions.data.json_values import JsonValue
from minions.data.texts import shell_word
from minions.engine.history.recorder import acquire_lease
from minions.engine.history.replay import Replay
from minions.engine.run.run_record import current_trace, maker_fields
from minions.engine.run.run_start import ResumePlan, refuse_rolled_back
from minions.engine.services.run_services import Services

if TYPE_CHECKING:
    from minions.contracts.approvals import DecisionMaker
    from minions.engine.run.recorded_run import RecordedRun


async def record_decisions(
    services: Services,
    recorded: RecordedRun,
    decisions: Mapping[str, str],
    note: Mapping[str, JsonValue],
    decided_by: DecisionMaker | None,
) -> JournalEntry:
    """Record that the run is resumed with decisions by whoever finds it queued.

    Its recipe is not read: the worker does that, and has what the recipe names.

    Args:
        recorded: A run that waits for them; without decisions, one that is queued.
        decisions: By what they are about, as `AgentExecutor.resume` takes them.
        note: The whole note of the run from now on, which says where it is queued.
    Raises:
        UsageError: Nothing waits under a name, or a decision does not fit.
        LeaseHeldError, JournalError: It could not be recorded; nothing was done.
    """
    from minions.contracts.decision_types import word_of
    from minions.engine.calls.resume_decisions import checked_decisions

    refuse_rolled_back(recorded, None)
    replay = Replay(recorded.entries, recorded.generation + 1)
    given = checked_decisions(decisions, replay, decided_by, services.clock.now())
    plan = ResumePlan(decisions=given, decided_by=decided_by)
    start, names = asdict(recorded.start), RunBeginning.__struct_fields__
    beginning = {name: start[name] for name in names} | {"queued": True, "note": dict(note)}
    # That of an execution is a span of its own, and not of whoever queues the next one.
    queued_by = recorded.start.trace if recorded.start.queued else None
    beginning["trace"] = current_trace(services) or queued_by
    fact = RunResumed(
        **beginning,
        retries=False,
        anew=(),
        decisions={key: word_of(decision) for key, decision in given.items()},
        **maker_fields(plan),
    )
    session_id, run_id = recorded.summary.session_id, recorded.run_id
    lease = await acquire_lease(services, session_id, run_id, next_generation=True)
    try:
        if await services.journal.entries(session_id, run_id=run_id, after=replay.position):
            raise JournalError(
                f"Run '{run_id}' was resumed by another process just now. Nothing was done here; "
                f"`minions sessions show {shell_word(run_id)}` shows where it stands.",
                code="run-went-on",
            )
        return await services.journal.append(lease, EntryDraft(key="run", fact=fact))
    finally:
        await services.journal.release(lease)
