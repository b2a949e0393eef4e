"""Pending decisions over HTTP: found in the journal, made by a caller with the server's token."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from datetime import datetime
from http import HTTPStatus
from typing import Final, TypeAlias

from minions.contracts.addresses import address_of, is_within
from minions.contracts.decisions import (
    Answer,
    Approve,
    Decision,
    Done,
    Fail,
    Redo,
    Reject,
    name_of,
)
from minions.contracts.executions import OPEN_STATES, RunState
from minions.contracts.journal.facts import (
    DecisionTaken,
    RecordedProposal,
    RunResumed,
    ToolCallInDoubt,
    given,
)
from minions.contracts.journal.journal import Journal, JournalEntry, unreadable_entry
from minions.contracts.journal.run_rows import RunFilter
from minions.data.errors import NEEDS_DECISION, JournalError, NotFoundError, UsageError
from minions.data.json_values import JsonValue, dumps
from minions.engine.calls.answer_forms import filled_in
from minions.engine.calls.pending_decisions import (
    PendingDecision,
    mismatch,
    pending_decisions,
    shortened,
)
from minions.engine.history.entry_checks import too_deep
from minions.engine.history.open_calls import OpenCall
from minions.engine.history.replay import Replay
from minions.engine.views.lookup import list_runs
from minions.engine.views.run_summary import RunSummary
from minions.interfaces.http.http_answers import RefusedError
from minions.interfaces.server.documents.run_documents import (
    ApprovalView,
    DecisionRequest,
    PlanOfApproval,
)

_STATUS = NEEDS_DECISION.replace("-", "_")


CallsInDoubt: TypeAlias = Callable[[str], Awaitable[Sequence[OpenCall]]]
"""Returns the calls of an interrupted run that a resume would ask about; empty: none, or the run
cannot be resumed here."""


async def all_waiting(
    journal: Journal, in_doubt: CallsInDoubt, *, user: str | None = None, project: str | None = None
) -> list[ApprovalView]:
    """The pending decisions of all runs, the newest run first; a damaged run hides no other.

    Args:
        user: Of the runs of that user alone; None: of all.
        project: Of the runs of the project with that folder; None: of all.
    """
    found: list[ApprovalView] = []
    statuses = {_STATUS, *(OPEN_STATES - {RunState.QUEUED})}
    wanted = RunFilter(statuses=statuses, user=user, project=project)
    for run in await list_runs(journal, wanted=wanted):
        try:
            found += await waiting_of(journal, run, in_doubt)
        except JournalError as error:
            if error.error_code != "corrupt-entry":
                raise
            found.append(_unreadable(run, error))
    return found


def _unreadable(run: RunSummary, error: JournalError) -> ApprovalView:
    return ApprovalView(
        id=_id(run, ""),
        run_id=run.run_id,
        session_id=run.session_id,
        recipe=run.recipe,
        key="",
        step_id="",
        address="",
        what="unreadable",
        words=error.message,
    )


async def waiting_of(
    journal: Journal, run: RunSummary, in_doubt: CallsInDoubt
) -> list[ApprovalView]:
    """The pending decisions of one run; of an interrupted one its calls in doubt.

    Raises:
        JournalError: `corrupt-entry`; it cannot be read.
    """
    if run.status == RunState.INTERRUPTED:
        return [_doubt(run, call) for call in await in_doubt(run.run_id)]
    if run.status != _STATUS:
        return []
    rows = await journal.entries(run.session_id, run_id=run.run_id)
    for row in rows:
        # Forms and defaults are shown as they are: one that cannot be encoded would break the list.
        if row.kind == "decision" and (problem := too_deep(row.body)) is not None:
            raise unreadable_entry(row, problem)
    return list(_views(run, rows))


def _views(run: RunSummary, rows: Sequence[JournalEntry]) -> Iterator[ApprovalView]:
    replay = Replay(rows, max(row.generation for row in rows) + 1)
    for waiting in pending_decisions(replay):
        yield _view(run, waiting)
    reported = {row.key for row in rows if isinstance(row.fact, ToolCallInDoubt)}
    for call in replay.opened():
        if call.key in reported and call.key not in replay.decisions:
            yield _doubt(run, call)


def _doubt(run: RunSummary, call: OpenCall) -> ApprovalView:
    return ApprovalView(
        id=_id(run, call.key),
        run_id=run.run_id,
        session_id=run.session_id,
        recipe=run.recipe,
        key=call.key,
        step_id=call.step_id,
        address=call.address,
        what="doubt",
        words=f"{call.tool}({shortened(call.arguments)}) in step '{call.address}' was cut off; it "
        "may have had its effect",
        tool=call.tool,
        arguments=call.arguments,
    )


def _id(run: RunSummary, key: str) -> str:
    """The id of a decision, for an address."""
    return id_of(run.run_id, key)


def id_of(run_id: str, key: str) -> str:
    """The id of the decision of a run with that key."""
    return f"{run_id}.{hashlib.sha256(key.encode()).hexdigest()[:12]}"


def _view(run: RunSummary, waiting: PendingDecision) -> ApprovalView:
    fact = waiting.fact
    return ApprovalView(
        id=_id(run, waiting.key),
        run_id=run.run_id,
        session_id=run.session_id,
        recipe=run.recipe,
        key=waiting.key,
        step_id=waiting.step_id,
        address=waiting.address,
        what=fact.what,
        words=waiting.words,
        tool=waiting.tool,
        arguments=fact.arguments,
        digest=waiting.digest,
        filled=waiting.filled,
        words_of=tuple(fact.words_of or ()),
        question=fact.question,
        form=waiting.form,
        default=given(fact.default),
        plan=_plan_of(fact.plan) if fact.plan is not None else None,
        can_decline=waiting.can_decline,
    )


def _plan_of(plan: RecordedProposal) -> PlanOfApproval:
    return PlanOfApproval(
        text=plan.text,
        notes=tuple(plan.notes or ()),
        faults=tuple(plan.faults or ()),
        diff=dict(plan.diff) if plan.diff is not None else None,
    )


def run_of(approval_id: str) -> str:
    """The id of the run that the decision belongs to."""
    return approval_id.rpartition(".")[0]


def unknown_approval() -> NotFoundError:
    """The error for a decision that does not wait, or not for whoever asks."""
    return NotFoundError(
        "No decision with that id is pending. GET /api/v1/approvals lists those that are.",
        code="unknown-approval",
    )


async def find_waiting(journal: Journal, approval_id: str, in_doubt: CallsInDoubt) -> ApprovalView:
    """The pending decision with that id.

    Raises:
        NotFoundError: There is none, or it was made already.
    """
    for run in await list_runs(journal, run_id=run_of(approval_id)):
        for view in await waiting_of(journal, run, in_doubt):
            if view.id == approval_id:
                return view
    raise unknown_approval()


async def waiting_at(
    journal: Journal, run: RunSummary, address: str | None, in_doubt: CallsInDoubt
) -> ApprovalView:
    """The one pending decision of a run that is meant.

    Args:
        address: An address, or the name of a step or tool; None: the only one that waits.
    Raises:
        NotFoundError: None is.
        UsageError: Several are.
    """
    waiting = await waiting_of(journal, run, in_doubt)
    found = [view for view in waiting if address is None or _is_meant(view, address)]
    if len(found) == 1:
        return found[0]
    listed = "".join(f"\n  {view.address}: {view.words}" for view in waiting) or " nothing."
    named = f"'{address[:100]}' means {len(found)} of them. " if address is not None else ""
    message = f"{named}Run '{run.run_id}' waits for:{listed}"
    names = tuple(view.address for view in waiting)
    if found:
        raise UsageError(message, code="unknown-call", suggestions=names)
    raise NotFoundError(message, code="unknown-approval", suggestions=names)


def _is_meant(view: ApprovalView, name: str) -> bool:
    return name in (view.key, view.tool, view.step_id) or is_within(view.address, name)


async def made_already(
    journal: Journal, run_id: str, is_meant: Callable[[str], bool]
) -> RefusedError | None:
    """The refusal of a decision that somebody made before: who and when; None: nobody did.

    Args:
        is_meant: Whether the decision with that key is meant.
    """
    for run in await list_runs(journal, run_id=run_id):
        rows = await journal.entries(run.session_id, run_id=run.run_id, kinds=_DECIDING)
        # The word that was given with a resume tells more than the row that repeats it.
        for row in sorted(rows, key=lambda row: (row.kind == "run", row.position), reverse=True):
            for key, word, by in _made_in(row):
                if is_meant(key):
                    return _refusal(row.at, word, by)
    return None


def named_by(address: str | None) -> Callable[[str], bool]:
    """Whether a decision with a key is at that address; None: each is."""

    def is_meant(key: str) -> bool:
        return address is None or address == key or is_within(address_of(key), address)

    return is_meant


_DECIDING: Final = frozenset({"run", "decision"})


def _made_in(row: JournalEntry) -> Iterator[tuple[str, str, str | None]]:
    """The key, the word and the maker of each decision that a row tells."""
    match fact := row.fact:
        case RunResumed():
            for key, decision in fact.decided.items():
                yield key, _told(decision), fact.by
        case DecisionTaken():
            yield row.key, _told(fact.decision), None


def _told(decision: Decision) -> str:
    """The decision in a word; of an answer its beginning."""
    if not isinstance(decision, Answer):
        return name_of(decision)
    words = " ".join(_as_typed(decision.value).split())
    return f"'{words[:60]}…'" if len(words) > 60 else f"'{words}'"


def _refusal(at: datetime, word: str, by: str | None) -> RefusedError:
    who = f" by {by}" if by is not None else ""
    return RefusedError(
        HTTPStatus.CONFLICT,
        "already-decided",
        f"This was decided{who} at {at:%Y-%m-%d %H:%M:%S}Z: {word}. Yours was not used.",
    )


def decision_of(view: ApprovalView, request: DecisionRequest) -> Decision:
    """The decision in a request, checked against what waits.

    Raises:
        RefusedError: The approval is for other arguments than those that wait.
        UsageError: It is no decision of this kind.
    """
    match view.what, request.decision:
        case "answer", "answer":
            return _answer(view, request)
        case "answer", "reject" if view.can_decline:
            return Reject(reason=request.reason or None)
        case "approval", "approve":
            _check_consent(view, request)
            if request.arguments is not None:
                return Approve.with_arguments(dict(request.arguments))
            return Approve()
        case "approval", "reject":
            _check_consent(view, request)
            return Reject(reason=request.reason or None)
        case "doubt", "redo":
            return Redo()
        case "doubt", "done":
            return Done() if request.value is None else Done.of(request.value)
        case "doubt", "fail":
            return Fail()
        case _:
            raise UsageError(
                f"{view.words}: decide it with {_describe_decision(view)}.", code="bad-decision"
            )


def _describe_decision(view: ApprovalView) -> str:
    declined = ", or 'reject'" if view.can_decline else ""
    return f"{_WANTED[view.what]}{declined}"


_WANTED: Final = {
    "answer": "'answer' and a 'value'",
    "approval": "'approve' or 'reject'",
    "doubt": "'redo' (make the call again), 'done' (it was made; `value` is its result) or "
    "'fail' (count it as failed)",
    "unreadable": "nothing: it cannot be read",
}


def _check_consent(view: ApprovalView, request: DecisionRequest) -> None:
    if request.digest is None:
        raise UsageError(
            "Send the 'digest' that was shown with the call: approval is for these arguments.",
            code="bad-decision",
        )
    if request.digest != view.digest:
        raise RefusedError(
            HTTPStatus.CONFLICT,
            "other-arguments",
            f"The call that waits now has other arguments than those that were shown; its digest "
            f"is '{view.digest}'. Look at it again.",
        )


def _answer(view: ApprovalView, request: DecisionRequest) -> Answer:
    value = filled_in(request.value, view.form)
    problem = mismatch(value, view.form)
    if problem is not None:
        form = dumps(view.form or {"type": "string"})
        raise UsageError(
            f"The value does not answer the question: {problem}. It has to fit {form}.",
            code="bad-answer",
        )
    return Answer(_as_typed(value))


def _as_typed(value: JsonValue) -> str:
    """The value as a person would type it."""
    return value if isinstance(value, str) else dumps(value)
