"""Decisions of a person that steps need: from the journal, given with a resume, or asked for."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final, cast

from attrs import evolve, frozen
from msgspec import UNSET
from msgspec.structs import asdict

from minions.contracts.approvals import AskedRule, Vote, rule_words
from minions.contracts.decision_types import (
    Answer,
    Approve,
    Decision,
    NoAnswer,
    Question,
    Reject,
    word_of,
)
from minions.contracts.executions import address_of, is_within
from minions.contracts.journal.facts import (
    DecisionFact,
    DecisionRecorded,
    DecisionWaiting,
    RecordedClass,
    RecordedProposal,
    RecordedVote,
)
from minions.contracts.tools import DECLINED
from minions.data.errors import NEEDS_DECISION, FailureInfo, StepFailedError
from minions.data.field_repr import FieldsRepr
from minions.data.json_values import JsonValue, dumps, parse_json
from minions.data.patterns import match_beside_loop
from minions.data.schema import JsonSchema, SchemaValidator
from minions.data.texts import one_line, shell_word
from minions.engine.calls.answer_forms import example_of
from minions.engine.context.step_view import StepView
from minions.engine.history.entry_checks import fact_in
from minions.engine.history.keys import budget_key, is_budget_key, is_question_key
from minions.engine.history.replay import Replay

if TYPE_CHECKING:
    from minions.contracts.plan_diffs import PlanProposal
    from minions.engine.history.recorder import Recorder
    from minions.engine.services.shared_budgets import SharedBudgets

MODEL_CALL: Final = "model call"
"""What stands for the tool where an approval is about the prompts of a model; no tool is so
called."""
_MOST_SHOWN: Final = 200
"""Characters of arguments in a line of text."""


@frozen(kw_only=True)
class PendingDecision(FieldsRepr):
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
        """The tool of an approval; of an answer the caller's tool whose result it is."""
        return self.fact.tool

    @property
    def is_of_caller(self) -> bool:
        """Whether it is the result of a call that the caller of the run carries out."""
        return self.what == "answer" and self.tool is not None

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
    def is_of_model(self) -> bool:
        """Whether it is about the prompts of a model, where no arguments can be edited."""
        return self.tool == MODEL_CALL

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
    def plan(self) -> RecordedProposal | None:
        """The plan that a question is about; None: it is about none."""
        return self.fact.plan

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
            made += "".join(f" ({each})" for each in review_words(self.fact))
            return f"{self.tool}({arguments}) in step '{self.address}' needs approval{made}"
        if self.is_of_caller:
            arguments = shortened(f"{self.fact.arguments}")
            return f"{self.tool}({arguments}) in step '{self.address}' waits for its caller"
        return f"step '{self.address}' asks: {self.fact.question}"


def review_words(fact: DecisionFact) -> Iterator[str]:
    """What reviewing recipes said of a call, in words for a person."""
    for each in fact.reviews or ():
        said = {"pass": "lets it pass", "failed": "failed", "reject": "rejects it"}[each.verdict]
        reason = f": {shortened(one_line(each.reason))}" if each.reason else ""
        yield f"the reviewer '{each.recipe}' {said}{reason}"


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
    return waiting_step(
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
        await record_decision(view, key, known.fact, Approve(known.fact.digest), is_default=True)


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
            await recorder.record(key, recorded_form(asked, decision))
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
    said = said_before(view, question.key)
    if isinstance(said, Answer):
        await record_decision(view, question.key, _asking(view, question), said)
        return said.value
    if isinstance(said, Reject) and question.can_decline:
        raise await _declined(view, question, said)
    asked = asked_at(view, question.key)
    if asked is not None and is_over(view, asked, question.timeout_s):
        return await _in_place_of_an_answer(view, question)
    answer = await view.context.scope.services.decider.answer(question)
    if answer is NoAnswer.DECLINED and question.can_decline:
        raise await _declined(view, question, Reject())
    if not isinstance(answer, NoAnswer):
        value = await match_beside_loop(lambda: _fitting(answer, question))
        await record_decision(view, question.key, _asking(view, question), Answer.of(value))
        return value
    if asked is None:
        await view.context.scope.recorder.record(question.key, _asking(view, question))
    command = decision_command(view.run_id, "answer", question.key, question.form)
    raise StepFailedError(waiting_step(view, f"it asks: {question.text}", command))


async def _declined(view: StepView, question: Question, said: Reject) -> StepFailedError:
    """What says that there will be no answer, stored."""
    await record_decision(view, question.key, _asking(view, question), said)
    because = f": {said.reason}" if said.reason else ""
    message = f"A person declined to answer '{question.text}'{because}"
    return StepFailedError(FailureInfo(code=DECLINED, message=message, where=view.address))


def asked_at(view: StepView, key: str, digest: str | None = None) -> datetime | None:
    """When a person was asked; None: that was not yet.

    Args:
        digest: Of the call that is meant: under its key, another one may have waited.
    """
    replay = view.context.scope.replay
    entry = replay.newest("decision", key) if replay is not None else None
    if entry is None or not isinstance(entry.fact, DecisionWaiting):
        return None
    return entry.at if digest in (None, entry.fact.digest) else None


def is_over(view: StepView, asked: datetime, timeout_s: float | None) -> bool:
    """Whether the time for an answer is over."""
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
    await record_decision(view, question.key, _asking(view, question), answer, is_default=True)
    return question.default


def _asking(view: StepView, question: Question) -> DecisionWaiting:
    return DecisionWaiting(
        what="answer",
        step_id=question.step_id,
        tool=question.tool,
        arguments=question.arguments,
        question=question.text,
        form=question.form,
        default=question.default if question.has_default else UNSET,
        timeout_s=question.timeout_s,
        plan=_proposal(question.plan) if question.plan is not None else None,
        remind_every_s=view.context.scope.rights.remind_every_s,
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


def said_before(view: StepView, key: str) -> Decision | None:
    """The decision that was recorded in an earlier execution or given with this one."""
    recorded = view.context.scope.recorded("decision", key)
    if recorded is not None:
        return fact_in(recorded, DecisionRecorded).decision
    replay = view.context.scope.replay
    return replay.decisions.get(key) if replay is not None else None


async def record_decision(
    view: StepView,
    key: str,
    asked: DecisionWaiting,
    decision: Decision,
    *,
    is_default: bool = False,
    votes: Sequence[Vote] = (),
    like: RecordedClass | None = None,
    by_class: str | None = None,
) -> DecisionRecorded:
    """Record a decision of the step, in its stored form."""
    taken = recorded_form(
        asked, decision, is_default=is_default, votes=votes, like=like, by_class=by_class
    )
    await view.context.scope.recorder.record(key, taken)
    return taken


def recorded_form(
    asked: DecisionWaiting,
    decision: Decision,
    *,
    is_default: bool = False,
    votes: Sequence[Vote] = (),
    like: RecordedClass | None = None,
    by_class: str | None = None,
) -> DecisionRecorded:
    """A decision as it is stored."""
    bare, reason, edited = _parts(decision)
    return DecisionRecorded(
        **asdict(asked),
        word=word_of(bare),
        is_default=is_default,
        reason=reason,
        edited_arguments=edited,
        edited_digest=consent_digest(f"{asked.tool}", edited) if edited is not None else None,
        votes=tuple(_recorded_vote(each) for each in votes) or None,
        like=like,
        by_class=by_class,
    )


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


def waiting_step(view: StepView, what: str, command: str) -> FailureInfo:
    """The failure of a step that waits for a decision, with the command that makes it."""
    return FailureInfo(
        code=NEEDS_DECISION,
        message=f"Step '{view.address}' waits for a decision: {what}",
        where=view.address,
        suggestions=(command,),
    )
