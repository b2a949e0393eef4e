"""Approvals of tool calls: reviewed by a recipe, asked for, counted, and covered by what was
approved before.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from attrs import evolve
from msgspec.structs import replace

from minions.contracts.approvals import AskedRule, Tally, Vote, rule_words, tally_of
from minions.contracts.calls import CallOrigin, ToolCall, ToolFailure
from minions.contracts.decision_types import (
    ApprovalRequest,
    Approve,
    Decision,
    Reject,
    Rejection,
    Verdict,
)
from minions.contracts.journal.facts import DecisionRecorded, DecisionWaiting, RecordedReview
from minions.contracts.messages import ToolCallRequest
from minions.data.codec import encode
from minions.data.errors import FailureInfo, JournalError, MinionsError, StepFailedError
from minions.data.json_values import JsonValue, dumps, parse_json
from minions.data.texts import write_duration
from minions.engine.calls.pending_decisions import (
    MODEL_CALL,
    asked_at,
    consent_digest,
    decision_command,
    is_over,
    record_decision,
    review_words,
    said_before,
    shortened,
    waiting_step,
)
from minions.engine.context.step_view import StepView
from minions.engine.history.approval_classes import recorded_class
from minions.engine.history.entry_checks import fact_in
from minions.engine.history.replay import definitions_of, is_same_question
from minions.engine.services.event_loop import leading_error
from minions.engine.services.memory_journal import MemoryJournal
from minions.recipe.model import AgentRecipe, CallRule, Reviewer, UntrustedRule

if TYPE_CHECKING:
    from minions.engine.services.run_services import Services


async def needed_approval(
    view: StepView, call: ToolCall, words_of: Sequence[str] = ()
) -> ToolFailure | None:
    """None if the call, which needs approval, is approved; the failure if it is rejected.

    Args:
        words_of: Whose words may be in its arguments, if somebody is asked for their sake.
    Raises:
        StepFailedError: The decision is pending (`needs-decision`).
    """
    rules = view.context.approval_rules(call.name, call.request.arguments)
    asked = _asking_about(view, call, words_of, rules)
    if not _is_decided(view, call, asked.digest):
        asked = await _reviewed(view, call, asked, rules)
        if (rejection := _rejection_in(asked)) is not None:
            await _record(view, _approval_key(call), asked, Reject(asked.digest, rejection))
            return _rejected(call, rejection, words_of)
        if await _is_covered(view, call, asked):
            return None
    if asked.rules is not None:
        return await _approval_by_rules(view, call, asked, words_of)
    key, digest, timeout_s = _approval_key(call), f"{asked.digest}", asked.timeout_s
    match said := said_before(view, key):
        case Approve(about) | Reject(about) if about == digest:
            await _record(view, key, asked, said)
            return None if isinstance(said, Approve) else _rejected(call, said.reason, words_of)
    since = asked_at(view, key, digest) if timeout_s is not None else None
    if since is not None and is_over(view, since, timeout_s):
        reason = f"nobody decided within {timeout_s:g} s"
        await record_decision(view, key, asked, Reject(digest, reason), is_default=True)
        return _denied(call, reason, words_of)
    verdict = await _verdict(view, call, asked)
    if isinstance(verdict, Rejection):
        await record_decision(view, key, asked, Reject(digest, verdict.reason or None))
        return _rejected(call, verdict.reason, words_of)
    if not isinstance(verdict, Verdict):
        return _no_verdict(call, verdict)
    if verdict is Verdict.LATER:
        if since is None:  # else the time since then counts
            await view.context.scope.recorder.record(key, asked)
        raise _waits_for_approval(view, call, words_of)
    is_approved = verdict is Verdict.APPROVED
    await record_decision(view, key, asked, Approve(digest) if is_approved else Reject(digest))
    if is_approved:
        return None
    return _denied(call, "the decider of this run rejects it (set by --approve)", words_of)


async def approve_private_data(
    view: StepView, model: str, private: Sequence[str], rule: UntrustedRule
) -> None:
    """Return if private data may be in prompts of that model, which is of another party.

    Args:
        private: Which data, as a person reads it.
        rule: What becomes of such calls.
    Raises:
        StepFailedError: They are refused, rejected, or the decision is pending (`needs-decision`).
    """
    number = hashlib.blake2b(model.encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()
    request = ToolCallRequest(id=number, name=MODEL_CALL, arguments=dumps({"model": model}))
    what = f"The prompt of step '{view.address}' may hold {', '.join(private)}, and the model "
    if rule is UntrustedRule.REFUSE:
        message = f"{what}'{model}' is of another party than the run's. Such calls are refused."
        raise StepFailedError(FailureInfo(code="private-data", message=message))
    call = ToolCall(key=f"{view.key}/{number}", request=request, origin=CallOrigin.STEP)
    if (rejected := await needed_approval(view, call, private)) is not None:
        raise StepFailedError(rejected.info())


def _asking_about(
    view: StepView, call: ToolCall, words_of: Sequence[str], named: Sequence[CallRule]
) -> DecisionWaiting:
    """What is asked about a call, with the rules of who may decide."""
    name, arguments, scope = call.name, call.request.arguments, view.context.scope
    rules = tuple(dict.fromkeys(each.rule for each in named))
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
        remind_every_s=scope.rights.remind_every_s,
    )


def _is_decided(view: StepView, call: ToolCall, digest: str | None) -> bool:
    """Whether a decision about this very call was recorded, or somebody said something of it."""
    scope, key = view.context.scope, _approval_key(call)
    recorded = scope.recorded("decision", key)
    if recorded is not None and fact_in(recorded, DecisionRecorded).digest == digest:
        return True
    if scope.recorder.classes.has(key):
        return True
    replay = scope.replay
    if replay is None:
        return False
    said = [replay.decisions.get(key), *(vote.decision for vote in replay.votes.get(key, ()))]
    return any(isinstance(x, Approve | Reject) and x.digest == digest for x in said)


# --- recipes that review calls -------------------------------------------------------------------


async def _reviewed(
    view: StepView, call: ToolCall, asked: DecisionWaiting, rules: Sequence[CallRule]
) -> DecisionWaiting:
    """With what the reviewers say of the call: each is asked once."""
    reviewers = {each.reviewer.name: each.reviewer for each in rules if each.reviewer is not None}
    if not reviewers:
        return asked
    replay, reviews = view.context.scope.replay, list[RecordedReview]()
    known = replay.question(_approval_key(call)) if replay is not None else None
    fact = known.fact if known is not None else None
    if isinstance(fact, DecisionWaiting) and is_same_question(fact, asked) and fact.reviews:
        return replace(asked, reviews=fact.reviews)
    for each in reviewers.values():
        reviews.append(await review_call(view, call, each, asked.words_of or ()))
        if reviews[-1].verdict == "reject":
            break
    return replace(asked, reviews=tuple(reviews))


def _rejection_in(asked: DecisionWaiting) -> str | None:
    """Why a reviewer rejects the call; None: none does."""
    for each in asked.reviews or ():
        if each.verdict == "reject":
            return f"the reviewer '{each.recipe}' says: {each.reason or 'no reason'}"
    return None


# --- calls that were approved together -----------------------------------------------------------


async def _is_covered(view: StepView, call: ToolCall, asked: DecisionWaiting) -> bool:
    """Whether somebody approved all calls like this one; then that is recorded. One that no
    reviewer passed is not covered.
    """
    scope, key = view.context.scope, _approval_key(call)
    if any(each.verdict != "pass" for each in asked.reviews or ()):
        return False
    tool = view.tools.find(call.name)
    if tool is None:
        return False
    await _record_classes(view, asked)
    classes, now = scope.recorder.classes, scope.services.clock.now()
    by_class = classes.take(asked, tool.spec, view.context.recipe, now)
    if by_class is None:
        return False
    try:
        await record_decision(view, key, asked, Approve(asked.digest), by_class=by_class)
    except BaseException:
        classes.give_back(by_class)
        raise
    return True


async def _record_classes(view: StepView, asked: DecisionWaiting) -> None:
    """Record what this execution was told of other calls of the tool in the step with which more
    than these were approved: the calls before them are covered, too.
    """
    replay = view.context.scope.replay
    for key, said in tuple(replay.decisions.items()) if replay is not None else ():
        if not isinstance(said, Approve) or said.like is None or replay is None:
            continue
        newest = replay.newest("decision", key)
        known = newest.fact if newest is not None else None
        if not isinstance(known, DecisionWaiting) or known.digest != said.digest:
            continue
        if (known.tool, known.step_id) != (asked.tool, asked.step_id):
            continue
        if definitions_of(known) != definitions_of(asked):
            continue  # others decide it now
        if known.rules is None:
            await _record(view, key, known, said)
            continue
        now = view.context.scope.services.clock.now()
        tally = tally_of(known.rules, replay.votes.get(key, ()), f"{known.digest}", now)
        if isinstance(tally.decision, Approve) and tally.decision.like is not None:
            await _record(view, key, known, tally.decision, votes=tally.counted)


async def _record(
    view: StepView,
    key: str,
    asked: DecisionWaiting,
    said: Decision,
    votes: Sequence[Vote] = (),
) -> None:
    """Record a decision; an approval perhaps with the class of calls that it covers."""
    like, tool, classes = (
        None,
        view.tools.find(f"{asked.tool}"),
        view.context.scope.recorder.classes,
    )
    if classes.has(key):
        return  # it is recorded since another call was looked at
    if isinstance(said, Approve) and said.like is not None and tool is not None:
        now = view.context.scope.services.clock.now()
        like = recorded_class(said.like, asked, tool.spec, view.context.recipe, now)
    recorded = await record_decision(view, key, asked, said, votes=votes, like=like)
    classes.add(key, recorded)


def _waits_for_approval(
    view: StepView, call: ToolCall, words_of: Sequence[str], more: Sequence[str] = ()
) -> StepFailedError:
    what = f"{call.name}({shortened(call.request.arguments)}) needs approval"
    if call.filled:
        what += f"; a model made: {', '.join(call.filled)}"
    if words_of:
        what += f"; words in it may be of: {', '.join(words_of)}"
    what += "".join(f"; {each}" for each in more if each)
    command = decision_command(view.run_id, "approval", _approval_key(call))
    return StepFailedError(waiting_step(view, what, command))


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
    asked = replace(asked, rules=tally.rules, reviews=_reviews_of(view, key, asked))
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
        await record_decision(view, key, asked, reject, is_default=True, votes=tally.counted)
        return _denied(call, reason, words_of)
    if _may_be_asked(scope.services, tally.rules):
        verdict = await _verdict(view, call, asked)
        if isinstance(verdict, Rejection) or verdict is Verdict.REJECTED:
            why = verdict.reason or None if isinstance(verdict, Rejection) else None
            await record_decision(view, key, asked, Reject(digest, why))
            return _rejected(call, why, words_of)
        if verdict is Verdict.APPROVED:
            await record_decision(view, key, asked, Approve(digest))
            return None
        if verdict is not Verdict.LATER:
            return _no_verdict(call, verdict)
    await scope.recorder.record(key, asked)
    who = rule_words(tally.rules, tally.counted)
    raise _waits_for_approval(view, call, words_of, [who, *review_words(asked)])


def _reviews_of(
    view: StepView, key: str, asked: DecisionWaiting
) -> tuple[RecordedReview, ...] | None:
    """What reviewers said, now or when it was asked first."""
    replay = view.context.scope.replay
    question = replay.question(key) if replay is not None else None
    known = question.fact if question is not None else None
    if asked.reviews is None and isinstance(known, DecisionWaiting):
        return known.reviews if is_same_question(known, asked) else None
    return asked.reviews


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
    rules = view.context.approval_rules(call.name, call.request.arguments)
    asked, key = _asking_about(view, call, (), rules), _approval_key(call)
    said = said_before(view, key) if asked.rules is None else _said_by_rules(view, key, asked)[0]
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


_LONGEST_REASON: Final = 2_000


async def review_call(
    view: StepView, call: ToolCall, reviewer: Reviewer, words_of: Sequence[str]
) -> RecordedReview:
    """What the reviewer says of a call. Its steps are recorded under the step of the call, so that
    an execution that was cut off repeats none of them.

    Raises:
        JournalError: A fact of it could not be stored: the run must stop.
    """
    recipe = reviewer.bounded
    runner = view.context.recipe_runner
    if runner is None:
        return _failed(recipe.id, "only an AgentExecutor runs recipes")
    text = dumps([call.key.removeprefix(view.key), "review", reviewer.name, call.request.arguments])
    place = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()
    secrets = view.secrets
    given: dict[str, JsonValue] = {
        "tool": call.name,
        "arguments": secrets.disarm(_arguments(secrets.clean_text(call.request.arguments))),
        "words_of": list(words_of),
        "step": view.step_id,
    }
    inputs = {name: _fitting(recipe, name, given[name]) for name in given if name in recipe.inputs}
    try:
        result = await runner.run(
            recipe, inputs, view.context, view.address, f"{view.key}#{place}", lambda _: None
        )
    except Exception as error:  # whatever goes wrong: a person is asked
        leading = leading_error(error)
        if isinstance(leading, JournalError):
            raise leading from error
        said = leading.message if isinstance(leading, MinionsError) else f"{leading}"
        return _failed(recipe.id, said)
    if result.error is not None:
        return _failed(recipe.id, result.error.message)
    output = encode(result.output)
    verdict = output.get("verdict") if isinstance(output, Mapping) else None
    reason = output.get("reason") if isinstance(output, Mapping) else None
    told = f"{reason}"[:_LONGEST_REASON] if reason else None
    if verdict == "reject":
        return RecordedReview(recipe=recipe.id, verdict="reject", reason=told)
    if verdict == "pass":
        return RecordedReview(recipe=recipe.id, verdict="pass", reason=told)
    return _failed(recipe.id, "its output has no verdict")


def _failed(recipe: str, problem: str) -> RecordedReview:
    return RecordedReview(recipe=recipe, verdict="failed", reason=problem[:_LONGEST_REASON])


def _arguments(text: str) -> JsonValue:
    try:
        return parse_json(text or "{}")
    except ValueError:
        return text


def _fitting(recipe: AgentRecipe, name: str, value: JsonValue) -> JsonValue:
    """The value as the input takes it: arguments may also be a text."""
    is_text = recipe.inputs[name].schema.get("type") == "string"
    if is_text and not isinstance(value, str):
        return ", ".join(map(str, value)) if isinstance(value, list) else dumps(value)
    return value
