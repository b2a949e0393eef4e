"""Decisions of a person that steps need: from the journal, given with a resume, or asked for."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final, cast

from attrs import evolve, frozen
from msgspec import UNSET
from msgspec.structs import asdict, replace

from minions.contracts.addresses import address_of, is_within
from minions.contracts.approvals import AskedRule, Tally, Vote, rule_words, tally_of
from minions.contracts.calls import ToolCall, ToolFailure
from minions.contracts.decisions import (
    Answer,
    ApprovalRequest,
    Approve,
    Decision,
    NoAnswer,
    Question,
    Reject,
    Rejection,
    Verdict,
    word_of,
)
from minions.contracts.journal.facts import (
    DecisionFact,
    DecisionRecorded,
    DecisionWaiting,
    RecordedProposal,
    RecordedVote,
)
from minions.contracts.plan_diffs import PlanProposal
from minions.contracts.tools import DECLINED
from minions.data.errors import NEEDS_DECISION, FailureInfo, StepFailedError
from minions.data.json_values import JsonValue, dumps, parse_json
from minions.data.patterns import match_beside_loop
from minions.data.schema import JsonSchema, SchemaValidator
from minions.data.texts import write_duration
from minions.data.words import shell_word
from minions.engine.calls.answer_forms import example_of
from minions.engine.context.step_view import StepView
from minions.engine.history.entry_checks import fact_in
from minions.engine.history.keys import budget_key, is_budget_key, is_question_key
from minions.engine.history.replay import Replay, is_same_question
from minions.engine.services.memory_journal import MemoryJournal

if TYPE_CHECKING:
    from minions.engine.history.recorder import Recorder
    from minions.engine.services.services import Services
    from minions.engine.services.shared_budgets import SharedBudgets

_MOST_SHOWN: Final = 200
"""Characters of arguments in a line of text."""


@frozen(kw_only=True)
class PendingDecision:
    """A decision that a run waits for."""

    key: str
    fact: DecisionFact
    asked_at: datetime | None = None
    """When it was asked; None: not known."""
    due: datetime | None = None
    """When its time is over, so that a call counts as rejected, a question as answered with its
    default or as failed, or others are asked; None: never."""
    votes: tuple[Vote, ...] = ()
    """What persons said of it so far, where not everybody decides alone."""

    @property
    def step_id(self) -> str:
        """The step that waits, as the whole run knows it."""
        return self.fact.step_id

    @property
    def what(self) -> str:
        """Which kind of decision waits: `approval` or `answer`."""
        return self.fact.what

    @property
    def tool(self) -> str | None:
        """The tool of an approval."""
        return self.fact.tool

    @property
    def digest(self) -> str | None:
        """Of the tool and arguments that are shown; None: it is no call.

        Reckoned of just these. A row of a file that somebody changed may show one call beside the
        digest of another one, and consent is to what was shown.
        """
        if self.tool is None:
            return None
        return consent_digest(self.tool, f"{self.fact.arguments}")

    @property
    def address(self) -> str:
        """The address of the execution that waits: `outer[1]/step[2]`."""
        return address_of(self.key)

    def is_meant_by(self, name: str) -> bool:
        """By its key, its tool, its step, its address, or an address that it is within."""
        if name in (self.key, self.tool, self.step_id):
            return True
        return self.key.startswith(f"{name}/") or is_within(self.address, name)

    @property
    def can_reject(self) -> bool:
        """Whether `reject` decides it: a call that needs approval, or a tool's question."""
        return self.what == "approval" or self.can_decline

    @property
    def rules(self) -> tuple[AskedRule, ...]:
        """Who may decide, and how far that came; empty: anybody, alone."""
        return self.fact.rules or ()

    @property
    def deciders(self) -> tuple[str, ...]:
        """Who is asked now, as persons and `role:NAME`; empty: anybody."""
        named = (name for each in self.rules for name in each.present.deciders)
        return tuple(dict.fromkeys(named))

    @property
    def form(self) -> JsonSchema | None:
        """The form of a question."""
        return self.fact.form

    def to_json(self) -> dict[str, JsonValue]:
        """What events say of it: which decision, without the call's arguments."""
        shown = {"tool": self.tool, "digest": self.digest, "question": self.fact.question}
        found: dict[str, JsonValue] = {
            name: value for name, value in shown.items() if value is not None
        }
        if self.deciders:
            found["deciders"] = list(self.deciders)
        return {
            "key": self.key,
            "step_id": self.step_id,
            "address": self.address,
            "what": self.what,
            **found,
        }

    @property
    def can_decline(self) -> bool:
        """Whether a person may decline to answer: it is a tool's question."""
        return self.what == "answer" and is_question_key(self.key)

    @property
    def filled(self) -> tuple[str, ...]:
        """The parameters of the call that a model filled in."""
        return tuple(self.fact.filled or ())

    @property
    def words(self) -> str:
        """One line for a person: the call or question, and its step."""
        if is_budget_key(self.key):
            return f"step '{self.address}' waits: {budget_words(f'{self.fact.arguments}')}"
        if self.what == "approval":
            arguments = shortened(f"{self.fact.arguments}")
            made = f" (a model made: {', '.join(self.filled)})" if self.filled else ""
            words = self.fact.words_of
            made += f" (words in it may be of: {', '.join(words)})" if words else ""
            who = rule_words(self.rules, self.votes)
            made += f" ({who})" if who else ""
            return f"{self.tool}({arguments}) in step '{self.address}' needs approval{made}"
        return f"step '{self.address}' asks: {self.fact.question}"


def waiting_failure(
    failure: FailureInfo, pending: Sequence[PendingDecision], run_id: str
) -> FailureInfo:
    """The failure of a run that waits: what it waits for, and the commands that decide it.

    Args:
        failure: What its steps say.
    """
    commands = tuple(shortest_command(each, pending, run_id) for each in pending)
    words = failure.message.replace("\n", "\n  ")
    declined = (
        f"{rejecting_command(each, pending, run_id)}  (declines to answer)"
        for each in pending
        if each.can_decline
    )
    listed = "\n".join(f"  {command}" for command in (*commands, *declined))
    message = f"The run waits for a person:\n  {words}\nIt is resumed by\n{listed}"
    return evolve(failure, message=message, suggestions=commands)


def shortest_command(
    decision: PendingDecision, pending: Sequence[PendingDecision], run_id: str
) -> str:
    """It names the decision only where several of its kind wait: by its address, else its key."""
    others = [each for each in pending if each.what == decision.what and each is not decision]
    name = _shortest_name(decision, others)
    return decision_command(run_id, decision.what, name, decision.form)


def rejecting_command(
    decision: PendingDecision, pending: Sequence[PendingDecision], run_id: str
) -> str:
    """The command that rejects a call, or declines to answer a tool's question."""
    others = [each for each in pending if each.can_reject and each is not decision]
    name = _shortest_name(decision, others)
    about = "" if name is None else f" {shlex.quote(name)}"
    return f"minions reject {shell_word(run_id)}{about}"


def _shortest_name(decision: PendingDecision, others: Sequence[PendingDecision]) -> str | None:
    """Its address; its key where the address means others, too; None: there are no others."""
    if not others:
        return None
    is_unique = not any(each.is_meant_by(decision.address) for each in others)
    return decision.address if is_unique else decision.key


def decision_command(
    run_id: str, what: str, name: str | None = None, form: JsonSchema | None = None
) -> str:
    """The command that makes a decision, for an answer with an example of what fits.

    Args:
        what: `approval` or `answer`.
        name: Which decision is meant; None: the only one of its kind that waits.
        form: The form of the question.
    """
    about = "" if name is None else f" {shlex.quote(name)}"
    if what == "answer":
        return f"minions answer {shell_word(run_id)}{about} {example_of(form)}"
    return f"minions approve {shell_word(run_id)}{about}"


def pending_decisions(replay: Replay) -> tuple[PendingDecision, ...]:
    """The decisions that executions of the run wait for and that nobody made yet."""
    return tuple(_pending(replay, key, fact) for key, fact in replay.waiting())


def _pending(replay: Replay, key: str, fact: DecisionWaiting) -> PendingDecision:
    asked = replay.question(key)
    at = asked.at if asked is not None else None
    votes = tuple(replay.votes.get(key, ())) if fact.rules is not None else ()
    return PendingDecision(key=key, fact=fact, asked_at=at, due=_due(at, fact), votes=votes)


def _due(asked: datetime | None, fact: DecisionWaiting) -> datetime | None:
    if fact.rules is not None:
        return min((each.end for each in fact.rules if each.end is not None), default=None)
    if asked is None or fact.timeout_s is None:
        return None
    try:
        return asked + timedelta(seconds=fact.timeout_s)
    except OverflowError:  # beyond the year 9999
        return None


# --- approvals -----------------------------------------------------------------------------------


async def needed_approval(
    view: StepView, call: ToolCall, words_of: Sequence[str] = ()
) -> ToolFailure | None:
    """None if the call, which needs approval, is approved; the failure if it is rejected.

    Args:
        words_of: Whose words may be in its arguments, if somebody is asked for their sake.
    Raises:
        StepFailedError: The decision is pending (`needs-decision`).
    """
    asked = _asking_about(view, call, words_of)
    if asked.rules is not None:
        return await _approval_by_rules(view, call, asked, words_of)
    key, digest, timeout_s = _approval_key(call), f"{asked.digest}", asked.timeout_s
    match said := _said(view, key):
        case Approve(about) | Reject(about) if about == digest:
            await _record(view, key, asked, said)
            return None if isinstance(said, Approve) else _rejected(call, said.reason, words_of)
    since = _asked_at(view, key, digest) if timeout_s is not None else None
    if since is not None and _is_over(view, since, timeout_s):
        reason = f"nobody decided within {timeout_s:g} s"
        await _record(view, key, asked, Reject(digest, reason), is_default=True)
        return _denied(call, reason, words_of)
    verdict = await _verdict(view, call, asked)
    if isinstance(verdict, Rejection):
        await _record(view, key, asked, Reject(digest, verdict.reason or None))
        return _rejected(call, verdict.reason, words_of)
    if not isinstance(verdict, Verdict):
        return _no_verdict(call, verdict)
    if verdict is Verdict.LATER:
        if since is None:  # else the time since then counts
            await view.context.scope.recorder.record(key, asked)
        raise _waits_for_approval(view, call, words_of)
    is_approved = verdict is Verdict.APPROVED
    await _record(view, key, asked, Approve(digest) if is_approved else Reject(digest))
    if is_approved:
        return None
    return _denied(call, "the decider of this run rejects it (set by --approve)", words_of)


def _asking_about(view: StepView, call: ToolCall, words_of: Sequence[str]) -> DecisionWaiting:
    """What is asked about a call, with the rules of who may decide."""
    name, arguments, scope = call.name, call.request.arguments, view.context.scope
    rules = view.context.approval_rules(name, arguments)
    since = scope.services.clock.now().isoformat() if rules else ""
    asked = [
        AskedRule(rule=rule, since=since, not_by=scope.starters if rule.not_by_starter else ())
        for rule in rules
    ]
    return DecisionWaiting(
        what="approval",
        step_id=view.step_id,
        path=view.address,
        tool=name,
        arguments=arguments,
        filled=call.filled or None,
        words_of=words_of or None,
        digest=consent_digest(name, arguments),
        timeout_s=None if rules else scope.rights.approval_timeout_s,
        rules=tuple(asked) or None,
    )


def _waits_for_approval(
    view: StepView, call: ToolCall, words_of: Sequence[str], who: str = ""
) -> StepFailedError:
    what = f"{call.name}({shortened(call.request.arguments)}) needs approval"
    if call.filled:
        what += f"; a model made: {', '.join(call.filled)}"
    if words_of:
        what += f"; words in it may be of: {', '.join(words_of)}"
    if who:
        what += f"; {who}"
    command = decision_command(view.run_id, "approval", _approval_key(call))
    return StepFailedError(_wait(view, what, command))


async def _verdict(view: StepView, call: ToolCall, asked: DecisionWaiting) -> object:
    """What the decider of this execution says."""
    request = ApprovalRequest(
        key=_approval_key(call),
        run_id=view.run_id,
        step_id=view.step_id,
        tool=call.name,
        arguments=call.request.arguments,
        digest=f"{asked.digest}",
        filled=call.filled,
        words_of=tuple(asked.words_of or ()),
    )
    return await view.context.scope.services.decider.approve(request)


# --- approvals that not everybody decides alone --------------------------------------------------


async def _approval_by_rules(
    view: StepView, call: ToolCall, asked: DecisionWaiting, words_of: Sequence[str]
) -> ToolFailure | None:
    """As `needed_approval`, of a call with rules of who may decide.

    The votes are counted here, where the decision is recorded, by whichever way they came.
    """
    key, digest, scope = _approval_key(call), f"{asked.digest}", view.context.scope
    said, tally = _said_by_rules(view, key, asked)
    if said is not None and tally is None:  # recorded before
        return None if isinstance(said, Approve) else _rejected(call, _reason(said), words_of)
    assert tally is not None  # noqa: S101  # nothing is recorded
    asked = replace(asked, rules=tally.rules)
    if said is not None:
        await _record(view, key, asked, said, votes=tally.counted)
        return None if isinstance(said, Approve) else _rejected(call, _reason(said), words_of)
    if tally.expired is not None:
        seconds = tally.expired.present.expires_s or 0.0
        who = (
            "nobody decided" if tally.expired.present.quorum == 1 else "too few persons approved it"
        )
        reason = f"{who} within {write_duration(seconds)}"
        reject = Reject(digest, reason)
        await _record(view, key, asked, reject, is_default=True, votes=tally.counted)
        return _denied(call, reason, words_of)
    if _may_be_asked(scope.services, tally.rules):
        verdict = await _verdict(view, call, asked)
        if isinstance(verdict, Rejection) or verdict is Verdict.REJECTED:
            why = verdict.reason or None if isinstance(verdict, Rejection) else None
            await _record(view, key, asked, Reject(digest, why))
            return _rejected(call, why, words_of)
        if verdict is Verdict.APPROVED:
            await _record(view, key, asked, Approve(digest))
            return None
        if verdict is not Verdict.LATER:
            return _no_verdict(call, verdict)
    await scope.recorder.record(key, asked)
    raise _waits_for_approval(view, call, words_of, rule_words(tally.rules, tally.counted))


def _may_be_asked(services: Services, rules: Sequence[AskedRule]) -> bool:
    """Whether the decider of this execution decides: anybody may, or it stands in for all persons
    and nothing is stored, as in a test of a recipe.
    """
    if services.decider.stands_in and isinstance(services.journal, MemoryJournal):
        return True
    return all(each.is_open for each in rules)


def _said_by_rules(
    view: StepView, key: str, asked: DecisionWaiting
) -> tuple[Approve | Reject | None, Tally | None]:
    """The decision, None where there is none yet, and what the votes come to, None where it was
    recorded by an earlier execution.
    """
    scope, digest = view.context.scope, asked.digest
    recorded = scope.recorded("decision", key)
    if recorded is not None:
        known = fact_in(recorded, DecisionRecorded)
        decision = known.decision
        if isinstance(decision, Approve | Reject) and decision.digest == digest:
            return decision, None
    rules, replay = asked.rules or (), scope.replay
    votes: Sequence[Vote] = ()
    question = replay.question(key) if replay is not None else None
    if replay is not None and question is not None and is_same_question(question.fact, asked):
        newest = replay.newest("decision", key)
        if newest is not None and isinstance(newest.fact, DecisionWaiting):
            rules = newest.fact.rules or ()
        votes = tuple(replay.votes.get(key, ()))
    tally = tally_of(rules, votes, f"{digest}", scope.services.clock.now())
    return tally.decision, tally


def _reason(said: Decision) -> str | None:
    return said.reason if isinstance(said, Reject) else None


def edited_call(view: StepView, call: ToolCall) -> ToolCall:
    """The call, which needs approval, with the arguments of it, if the person who approved it
    edited them.
    """
    asked, key = _asking_about(view, call, ()), _approval_key(call)
    said = _said(view, key) if asked.rules is None else _said_by_rules(view, key, asked)[0]
    match said:
        case Approve(digest, str(edited)) if digest == consent_digest(
            call.name, call.request.arguments
        ):
            return evolve(call, request=evolve(call.request, arguments=edited))
        case _:
            return call


def _approval_key(call: ToolCall) -> str:
    return f"{call.key}/approval"


def _rejected(call: ToolCall, reason: str | None, words_of: Sequence[str]) -> ToolFailure:
    because = f": {reason.strip().removesuffix('.')}" if reason else ""
    return _denied(call, f"it was rejected{because}", words_of)


def _denied(call: ToolCall, why: str, words_of: Sequence[str]) -> ToolFailure:
    since = f", as words in it may be of: {', '.join(words_of)}" if words_of else ""
    return ToolFailure(
        code="approval-denied",
        message=f"The tool '{call.name}' needs approval{since}, and {why}. It was not called.",
    )


def _no_verdict(call: ToolCall, said: object) -> ToolFailure:
    return ToolFailure(
        code="bad-verdict",
        message=f"Asked whether '{call.name}' may be called, the Decider's `approve` said "
        f"{said!r:.80}. It returns Verdict.APPROVED, Verdict.REJECTED, Verdict.LATER or a "
        "Rejection. The tool was not called.",
    )


def consent_digest(tool: str, arguments: str) -> str:
    """Of tool and arguments (JSON text), however those are spelled."""
    try:
        spelled = dumps(parse_json(arguments or "{}"))
    except ValueError:
        spelled = arguments
    text = f"{tool}\n{spelled}".encode("utf-8", "surrogatepass")
    return hashlib.sha256(text).hexdigest()[:16]


def shortened(arguments: str) -> str:
    """The text cut to one line, with the number of characters left out."""
    more = len(arguments) - _MOST_SHOWN
    return arguments if more <= 0 else f"{arguments[:_MOST_SHOWN]}… {more} more characters"


# --- budgets --------------------------------------------------------------------------------------

_BUDGET: Final = "budget"
"""What stands for the tool where a decision is about a budget."""


async def wait_for_budget(
    view: StepView, call_key: str, asked: Mapping[str, JsonValue], *, is_first: bool
) -> FailureInfo:
    """The failure of a call that waits at the threshold of a budget.

    Args:
        asked: What a person is told about the budget.
        is_first: Whether it is the first call of this execution that waits for that: what the
            others wait for is recorded with it.
    """
    key, arguments = budget_key(call_key), dumps(asked)
    replay = view.context.scope.replay
    known = replay.newest("decision", key) if replay is not None else None
    if known is not None and isinstance(known.fact, DecisionWaiting):
        fact = known.fact
    else:
        fact = DecisionWaiting(
            what="approval",
            step_id=view.step_id,
            path=view.address,
            tool=_BUDGET,
            arguments=arguments,
            digest=consent_digest(_BUDGET, arguments),
        )
    if is_first:
        await view.context.scope.recorder.record(key, fact)
    return _wait(
        view, budget_words(f"{fact.arguments}"), decision_command(view.run_id, "approval", key)
    )


def budget_words(arguments: str) -> str:
    """What a person is asked about a budget, in a line.

    Args:
        arguments: Of the decision, as JSON text.
    """
    try:
        told = parse_json(arguments)
    except ValueError:
        told = None
    if not isinstance(told, dict):
        return f"more of a budget: {shortened(arguments)}"
    whose = f" of {told['of']}" if "of" in told else ""
    amounts = [
        f"{told[f'used_{unit}']} of {told.get(f'limit_{unit}')} {name} are used, "
        f"{told.get(f'reserved_{unit}')} reserved, {told.get(f'left_{unit}')} left"
        for unit, name in (("usd", "US dollars"), ("tokens", "tokens"))
        if f"used_{unit}" in told
    ]
    named = told.get("budget")
    return f"the budget {named}{whose} is at its threshold: {'; '.join(amounts)}"


def raised_limits(edited: str, arguments: str) -> Mapping[str, float]:
    """The limits that an approval names: `limit_usd`, `limit_tokens`.

    Args:
        edited: JSON text of the approval.
        arguments: What the person was asked.
    Raises:
        ValueError: They are no limits, or not within what the operator allows.
    """
    named, told = parse_json(edited), parse_json(arguments)
    if not isinstance(named, dict) or not isinstance(told, dict):
        raise ValueError("they are no JSON object")
    limits: dict[str, float] = {}
    for unit in ("usd", "tokens"):
        said, most = named.get(f"limit_{unit}"), told.get(f"most_{unit}")
        if said is None:
            continue
        kinds = (int,) if unit == "tokens" else (int, float)
        if (
            not isinstance(said, kinds)
            or isinstance(said, bool)
            or not isinstance(most, int | float)
        ):
            raise ValueError(f"limit_{unit} is {said!r:.40}, and a number was expected")
        if not 0 < said <= most:
            raise ValueError(f"limit_{unit} is {said:g}, and has to be above 0 and up to {most:g}")
        limits[f"limit_{unit}"] = said
    if not limits:
        raise ValueError("they name neither limit_usd nor limit_tokens")
    return limits


async def record_that_none_is_needed(view: StepView, call_key: str) -> None:
    """Of a call that waited for a budget, and may be made although nobody decided here: there is a
    new budget, or another run was told.

    Raises:
        JournalError: It cannot be stored.
    """
    key, replay = budget_key(call_key), view.context.scope.replay
    if replay is None or key in replay.decisions:
        return
    known = replay.newest("decision", key)
    if known is not None and isinstance(known.fact, DecisionWaiting):
        await _record(view, key, known.fact, Approve(known.fact.digest), is_default=True)


async def decide_on_budgets(
    replay: Replay, recorder: Recorder, budgets: SharedBudgets, run_id: str
) -> None:
    """Record what persons said about budgets with a resume, and tell it to the budgets.

    Raises:
        JournalError: It cannot be stored.
    """
    from minions.engine.services.budget_records import BudgetAnswer

    for key, decision in replay.decisions.items():
        waiting = replay.newest("decision", key)
        if not is_budget_key(key) or waiting is None or not isinstance(waiting.fact, DecisionFact):
            continue
        asked = waiting.fact
        told = parse_json(f"{asked.arguments}")
        if isinstance(asked, DecisionWaiting):
            await _record_by(recorder, key, asked, decision)
        limits: Mapping[str, float] = {}
        if isinstance(decision, Approve) and decision.arguments is not None:
            limits = raised_limits(decision.arguments, f"{asked.arguments}")
        answer = BudgetAnswer(
            run_id=run_id,
            at=waiting.at.isoformat(),
            about=(None, None),
            is_approved=isinstance(decision, Approve),
            usd=limits.get("limit_usd"),
            tokens=int(limits["limit_tokens"]) if "limit_tokens" in limits else None,
        )
        if isinstance(told, dict):
            await budgets.answer(run_id, f"{told.get('key')}", answer)


# --- answers -------------------------------------------------------------------------------------


async def answer_to(view: StepView, question: Question) -> JsonValue:
    """The answer to a question: recorded, given with the resume, or from the decider.

    Raises:
        StepFailedError: The answer is pending (`needs-decision`), came too late (`ask-timeout`), or
            a person declined to give one (`question-declined`).
    """
    said = _said(view, question.key)
    if isinstance(said, Answer):
        await _record(view, question.key, _asking(question), said)
        return said.value
    if isinstance(said, Reject) and question.can_decline:
        raise await _declined(view, question, said)
    asked = _asked_at(view, question.key)
    if asked is not None and _is_over(view, asked, question.timeout_s):
        return await _in_place_of_an_answer(view, question)
    answer = await view.context.scope.services.decider.answer(question)
    if answer is NoAnswer.DECLINED and question.can_decline:
        raise await _declined(view, question, Reject())
    if not isinstance(answer, NoAnswer):
        value = await match_beside_loop(lambda: _fitting(answer, question))
        await _record(view, question.key, _asking(question), Answer.of(value))
        return value
    if asked is None:
        await view.context.scope.recorder.record(question.key, _asking(question))
    command = decision_command(view.run_id, "answer", question.key, question.form)
    raise StepFailedError(_wait(view, f"it asks: {question.text}", command))


async def _declined(view: StepView, question: Question, said: Reject) -> StepFailedError:
    """What says that there will be no answer, stored."""
    await _record(view, question.key, _asking(question), said)
    because = f": {said.reason}" if said.reason else ""
    message = f"A person declined to answer '{question.text}'{because}"
    return StepFailedError(FailureInfo(code=DECLINED, message=message, where=view.address))


def _asked_at(view: StepView, key: str, digest: str | None = None) -> datetime | None:
    """When a person was asked; None: that was not yet.

    Args:
        digest: Of the call that is meant: under its key, another one may have waited.
    """
    replay = view.context.scope.replay
    entry = replay.newest("decision", key) if replay is not None else None
    if entry is None or not isinstance(entry.fact, DecisionWaiting):
        return None
    return entry.at if digest in (None, entry.fact.digest) else None


def _is_over(view: StepView, asked: datetime, timeout_s: float | None) -> bool:
    if timeout_s is None:
        return False
    return view.context.scope.services.clock.now() >= asked + timedelta(seconds=timeout_s)


async def _in_place_of_an_answer(view: StepView, question: Question) -> JsonValue:
    """The default, after the time is over."""
    if not question.has_default:
        raise StepFailedError(
            FailureInfo(
                code="ask-timeout",
                message=f"Nobody answered within {question.timeout_s:g} s: {question.text}",
                where=view.address,
            )
        )
    answer = Answer.of(question.default)
    await _record(view, question.key, _asking(question), answer, is_default=True)
    return question.default


def _asking(question: Question) -> DecisionWaiting:
    return DecisionWaiting(
        what="answer",
        step_id=question.step_id,
        question=question.text,
        form=question.form,
        default=question.default if question.has_default else UNSET,
        timeout_s=question.timeout_s,
        plan=_proposal(question.plan) if question.plan is not None else None,
    )


def _proposal(plan: PlanProposal) -> RecordedProposal:
    return RecordedProposal(
        text=plan.text,
        notes=plan.notes or None,
        faults=plan.faults or None,
        diff=plan.diff.to_json() if plan.diff is not None else None,
    )


def _fitting(answer: object, question: Question) -> JsonValue:
    """What the Decider answered, as JSON.

    Raises:
        StepFailedError: `bad-answer`; it is none, or does not fit the form.
    """
    try:
        value = parse_json(dumps(cast("JsonValue", answer)))
        problem = mismatch(value, question.form)
    except (TypeError, ValueError, RecursionError) as error:
        value, problem = None, f"it is not JSON ({error})"
    if problem is None:
        return value
    form = dumps(question.form or {"type": "string"})
    message = (
        f"The Decider's answer {_shown(answer)} to '{question.text}' is none: {problem}. It takes "
        f"what fits {form}."
    )
    raise StepFailedError(FailureInfo(code="bad-answer", message=message))


def _shown(answer: object) -> str:
    try:
        return f"{answer!r:.80}"
    except RecursionError:  # what is nested too deeply for JSON is so for `repr`, too
        return f"(a {type(answer).__name__})"


def mismatch(value: JsonValue, form: JsonSchema | None) -> str | None:
    """Why that is no answer to a question with that form; None: it is one."""
    errors = SchemaValidator(form or {"type": "string"}).errors(value)
    return "; ".join(errors) or None


# --- both ----------------------------------------------------------------------------------------


def _said(view: StepView, key: str) -> Decision | None:
    """The decision that was recorded in an earlier execution or given with this one."""
    recorded = view.context.scope.recorded("decision", key)
    if recorded is not None:
        return fact_in(recorded, DecisionRecorded).decision
    replay = view.context.scope.replay
    return replay.decisions.get(key) if replay is not None else None


async def _record(
    view: StepView,
    key: str,
    asked: DecisionWaiting,
    decision: Decision,
    *,
    is_default: bool = False,
    votes: Sequence[Vote] = (),
) -> None:
    recorder = view.context.scope.recorder
    await _record_by(recorder, key, asked, decision, is_default=is_default, votes=votes)


async def _record_by(
    recorder: Recorder,
    key: str,
    asked: DecisionWaiting,
    decision: Decision,
    *,
    is_default: bool = False,
    votes: Sequence[Vote] = (),
) -> None:
    bare, reason, edited = _parts(decision)
    taken = DecisionRecorded(
        **asdict(asked),
        word=word_of(bare),
        is_default=is_default,
        reason=reason,
        edited_arguments=edited,
        edited_digest=consent_digest(f"{asked.tool}", edited) if edited is not None else None,
        votes=tuple(_recorded_vote(each) for each in votes) or None,
    )
    await recorder.record(key, taken)


def _recorded_vote(vote: Vote) -> RecordedVote:
    return RecordedVote(
        word=word_of(vote.decision),
        at=vote.at.isoformat(),
        by=vote.maker.name,
        person=vote.maker.user,
        roles=vote.maker.roles,
        way=vote.maker.way,
    )


def _parts(decision: Decision) -> tuple[Decision, str | None, str | None]:
    """The decision as its row's word says it, a rejection's reason, and edited arguments."""
    match decision:
        case Approve(digest, edited):
            return Approve(digest), None, edited
        case Reject(digest, reason):
            return Reject(digest), reason, None
        case _:
            return decision, None, None


def _wait(view: StepView, what: str, command: str) -> FailureInfo:
    return FailureInfo(
        code=NEEDS_DECISION,
        message=f"Step '{view.address}' waits for a decision: {what}",
        where=view.address,
        suggestions=(command,),
    )
