"""Runs as responses show them."""

from __future__ import annotations

from typing import Final

from attrs import evolve

from minions.contracts.executions import RunState
from minions.contracts.journal.run_rows import RunFilter
from minions.data.errors import NotFoundError, UsageError
from minions.engine.services.event_loop import beside
from minions.engine.views.lookup import list_runs, readable
from minions.engine.views.run_detail import RunDetail, SentPrompt, StepSummary, show_run
from minions.engine.views.run_summary import RunSummary
from minions.interfaces.http.http_answers import fault_view
from minions.interfaces.server.decision_views import waiting_of
from minions.interfaces.server.documents.run_documents import (
    ApprovalView,
    Links,
    MessageOfRun,
    NoteOfRun,
    PromptOfRun,
    RunRow,
    RunView,
    StepOfRun,
)
from minions.interfaces.server.documents.shared_documents import MOST_DIGITS, After
from minions.interfaces.server.endpoint_parts import ApiRequest

RUN_VALUES: Final = (
    "/inputs",
    "/output",
    "/error",
    "/steps/*/output",
    "/steps/*/facts",
    "/messages/*/message/content",
    "/messages/*/message/tool_calls",
    "/notes/*/facts",
)
"""The places of a `RunView` that may hold large values."""


async def find_exact(request: ApiRequest, run_id: str) -> RunSummary:
    """The run with exactly that id.

    Raises:
        NotFoundError: There is none, or it is another user's.
        JournalError: `corrupt-entry`; it cannot be read.
    """
    wanted = RunFilter(user=request.owner)
    runs = await list_runs(request.app_state.journal, run_id=run_id, wanted=wanted)
    if not runs:
        raise NotFoundError(
            f"There is no run '{run_id[:100]}'. GET /api/v1/runs lists all.", code="unknown-run"
        )
    return readable(runs[0])


def position_after(asked: After, last_event_id: str | None) -> int:
    """The position after which a stream begins.

    Raises:
        UsageError: `bad-last-event-id`; the header is no position.
    """
    text = last_event_id
    if text is None or not text.strip():
        return asked.after or 0
    if not (text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS):
        raise UsageError(
            "The header Last-Event-ID is a whole number: the `id:` of the last event.",
            code="bad-last-event-id",
        )
    return int(text)


def links_of(request: ApiRequest, run_id: str, session_id: str) -> Links:
    """The addresses of a run and its session."""
    return Links(
        run=request.link(f"/runs/{run_id}"),
        events=request.link(f"/runs/{run_id}/events"),
        cancel=request.link(f"/runs/{run_id}/cancel"),
        session=request.link(f"/sessions/{session_id}"),
    )


def run_row(request: ApiRequest, run: RunSummary) -> RunRow:
    """A run for the list."""
    return RunRow(
        run_id=run.run_id,
        session_id=run.session_id,
        recipe=run.recipe,
        status=run.status,
        is_active=request.app_state.run_manager.find(run.run_id) is not None,
        model=run.model,
        started_at=run.started_at,
        finished_at=run.finished_at,
        usage=run.usage,
        problem=run.problem,
        about=run.input_words,
        user=run.user,
        project=run.project if request.owner is None else None,
        version=run.version,
        digest=run.digest,
    )


async def run_view(request: ApiRequest, run: RunSummary) -> RunView:
    """A run with everything that is known."""
    journal = request.app_state.journal
    threads = request.app_state.threads
    detail = await show_run(journal, run, threads=threads)
    if run.status in (RunState.QUEUED, RunState.INTERRUPTED):
        hindrance = await request.app_state.work.hindrance(run.run_id)
        detail = evolve(detail, lacks=hindrance.lacks, paused=hindrance.not_taken)
    waiting = await waiting_of(journal, run, request.app_state.runtime.calls_in_doubt)
    size = len(detail.steps) + len(detail.messages) + len(detail.notes)
    return await beside(threads, size, lambda: _view(request, detail, waiting))


def _view(request: ApiRequest, detail: RunDetail, waiting: list[ApprovalView]) -> RunView:
    run = detail.summary
    return RunView(
        run_id=run.run_id,
        session_id=run.session_id,
        recipe=run.recipe,
        status=run.status,
        is_active=request.app_state.run_manager.find(run.run_id) is not None,
        model=run.model,
        started_at=run.started_at,
        finished_at=run.finished_at,
        usage=run.usage,
        inputs=detail.inputs,
        output=detail.output,
        error=detail.error,
        steps=tuple(map(step_view, detail.steps)),
        messages=tuple(MessageOfRun(step_id=at, message=each) for at, each in detail.messages),
        prompts=tuple(map(prompt_view, detail.prompts)),
        notes=_notes(detail),
        faults=tuple(map(fault_view, detail.faults)),
        waiting=tuple(waiting),
        has_file_changes=bool(detail.changed_files),
        worker=detail.worker,
        lacks=detail.lacks,
        paused=detail.paused,
        version=run.version,
        digest=run.digest,
        links=links_of(request, run.run_id, run.session_id),
    )


def prompt_view(prompt: SentPrompt) -> PromptOfRun:
    """The sections of a prompt for a response."""
    return PromptOfRun(
        step_id=prompt.step_id,
        key=prompt.key,
        phase=prompt.phase,
        sections=prompt.sections,
        input_tokens=prompt.input_tokens,
        cache_read_tokens=prompt.cache_read_tokens,
        prefix=prompt.prefix,
    )


def step_view(step: StepSummary) -> StepOfRun:
    """A step for a response."""
    return StepOfRun(
        id=step.step_id,
        status=step.status,
        reason=step.reason,
        output=step.output,
        is_waiting=step.is_waiting,
        kept_as=step.kept_as,
        facts={name: value for name, value in step.facts.items() if name != "output"},
        position=step.position,
    )


def _notes(detail: RunDetail) -> tuple[NoteOfRun, ...]:
    return tuple(
        NoteOfRun(
            kind=note.kind,
            step_id=note.step_id,
            state=note.state,
            facts=note.facts,
            position=note.position,
        )
        for note in detail.notes
    )
