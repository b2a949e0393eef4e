"""Pending decisions over HTTP: found in the journal, made by a caller with the server's token."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from http import HTTPStatus
from typing import Final

from attrs import evolve

from minions.contracts.approvals import Vote, rule_words
from minions.contracts.decision_types import (
    Answer,
    ApprovalClass,
    Approve,
    Decision,
    Done,
    Fail,
    Redo,
    Reject,
    name_of,
)
from minions.contracts.executions import address_of, is_within
from minions.contracts.journal.facts import (
    DecisionTaken,
    DecisionWaiting,
    RecordedProposal,
    RunResumed,
    given,
)
from minions.contracts.journal.journal import Journal, JournalEntry
from minions.data.errors import NotFoundError, UsageError
from minions.data.json_values import JsonValue, dumps
from minions.engine.calls.answer_forms import filled_in
from minions.engine.calls.inbox import CallsInDoubt, InboxItem, items_of, list_inbox
from minions.engine.calls.pending_decisions import mismatch
from minions.engine.views.lookup import list_runs
from minions.engine.views.run_summary import RunSummary
from minions.interfaces.http.http_answers import RefusedError
from minions.interfaces.server.documents.run_documents import (
    ApprovalView,
    CallsAlike,
    DecisionRequest,
    PlanOfApproval,
    VoteView,
    id_of,
    run_of,
)


async def all_waiting(
    journal: Journal, in_doubt: CallsInDoubt, *, user: str | None = None, project: str | None = None
) -> list[ApprovalView]:
    """The pending decisions of all runs, in the order of `list_inbox`."""
    items = await list_inbox(journal, in_doubt, user=user, project=project)
    return [_view(item) for item in items]


async def waiting_of(
    journal: Journal, run: RunSummary, in_doubt: CallsInDoubt
) -> list[ApprovalView]:
    """The pending decisions of one run, in the order of `items_of`."""
    return [_view(item) for item in await items_of(journal, run, in_doubt)]


def _view(item: InboxItem) -> ApprovalView:
    pending, call = item.pending, item.call
    view = ApprovalView(
        id=id_of(item.run.run_id, item.key),
        run_id=item.run.run_id,
        session_id=item.run.session_id,
        recipe=item.run.recipe,
        key=item.key,
        step_id=item.step_id,
        address=item.address,
        what="unreadable",
        kind=item.kind.value,
        words=item.words,
        asked_at=item.asked_at,
        expires_at=item.expires_at,
        cost_usd=item.cost_usd,
    )
    if call is not None:
        return evolve(view, what="doubt", tool=call.tool, arguments=call.arguments)
    if pending is None:
        return view
    fact = pending.fact
    return evolve(
        view,
        what=fact.what,
        tool=pending.tool,
        arguments=fact.arguments,
        digest=pending.digest,
        filled=pending.filled,
        words_of=tuple(fact.words_of or ()),
        question=fact.question,
        form=pending.form,
        default=given(fact.default),
        plan=_plan_of(fact.plan) if fact.plan is not None else None,
        can_decline=pending.can_decline,
        who=rule_words(pending.rules, pending.votes),
        deciders=pending.deciders,
        votes=tuple(map(_vote_view, pending.votes)),
    )


def _vote_view(vote: Vote) -> VoteView:
    maker = vote.maker
    return VoteView(
        decision="approve" if isinstance(vote.decision, Approve) else "reject",
        by=maker.name,
        roles=maker.roles,
        way=maker.way,
        at=vote.at,
    )


def _plan_of(plan: RecordedProposal) -> PlanOfApproval:
    return PlanOfApproval(
        text=plan.text,
        notes=tuple(plan.notes or ()),
        faults=tuple(plan.faults or ()),
        diff=dict(plan.diff) if plan.diff is not None else None,
    )


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
        votes = _undecided_votes(rows)
        # The word that was given with a resume tells more than the row that repeats it.
        for row in sorted(rows, key=lambda row: (row.kind == "run", row.position), reverse=True):
            for key, word, by in _made_in(row):
                if is_meant(key) and key not in votes:
                    return _refusal(row.at, word, by)
    return None


def _undecided_votes(rows: Sequence[JournalEntry]) -> set[str]:
    """The keys of what several persons decide, or some, and of which there is no decision yet."""
    asked = {
        row.key
        for row in rows
        if isinstance(row.fact, DecisionWaiting) and row.fact.rules is not None
    }
    return asked - {row.key for row in rows if isinstance(row.fact, DecisionTaken)}


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
                yield key, _decision_word(decision), fact.by
        case DecisionTaken():
            yield row.key, _decision_word(fact.decision), None


def _decision_word(decision: Decision) -> str:
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
            if request.all_like is not None and request.arguments is None:
                return Approve(like=_class_of(request.all_like))
            if request.all_like is not None:
                raise UsageError("Edited arguments are of one call.", code="bad-class")
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


def _class_of(alike: CallsAlike) -> ApprovalClass:
    return ApprovalClass(
        same=alike.same, when=alike.when, count=alike.count, expires_s=alike.expires_s
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
