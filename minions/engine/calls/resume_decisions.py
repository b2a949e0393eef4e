"""Decisions of a person with which a run is resumed: on calls in doubt, approvals and questions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final

from attrs import evolve

from minions.contracts.calls import CallStatus, ToolCall, ToolCallResponse, ToolFailure
from minions.contracts.executions import is_within
from minions.contracts.journal.facts import DecisionWaiting
from minions.contracts.tool_search import FIND_TOOLS
from minions.contracts.tools import Effect, Toolbox
from minions.data.errors import FailureInfo, UsageError, near_names
from minions.data.json_values import JsonValue, dumps, json_type, parse_json
from minions.data.schema import JsonSchema, SchemaValidator
from minions.data.texts import shell_word, shown_text
from minions.engine.compile.completion_links import FINAL_ANSWER
from minions.engine.history.keys import is_budget_key
from minions.engine.history.memory import READ_RESULT

if TYPE_CHECKING:
    from minions.contracts.approvals import AskedRule, DecisionMaker
    from minions.contracts.decision_types import Decision
    from minions.engine.calls.pending_decisions import PendingDecision
    from minions.engine.history.open_calls import OpenCall
    from minions.engine.history.replay import Replay

_UNKNOWN: Final = "The call was made; what it gave is not known."


def calls_in_doubt(
    replay: Replay, tools: Toolbox, effects: Mapping[str, Effect] | None = None
) -> tuple[OpenCall, ...]:
    """Calls that nobody may repeat without being asked, and that nobody decided.

    A call that was ended because it waits for an answer is none of them: it is made again once the
    answer is there.

    Args:
        effects: Effects of tools that are not among `tools`, by full name; None: none are known.
    """
    return tuple(
        call
        for call in replay.opened()
        if call.key not in replay.decisions
        and not _is_repeatable(tools, effects or {}, call.tool)
        and not replay.ended_by_question(call.key)
    )


def _is_repeatable(tools: Toolbox, effects: Mapping[str, Effect], name: str) -> bool:
    repeatable = (Effect.PURE, Effect.IDEMPOTENT)
    tool = tools.find(name)
    if tool is not None:
        return tool.spec.is_resumable or tool.spec.effect in repeatable
    return name in (FINAL_ANSWER, READ_RESULT, FIND_TOOLS) or effects.get(name) in repeatable


def checked_decisions(
    given: Mapping[str, str],
    replay: Replay,
    maker: DecisionMaker | None = None,
    now: datetime | None = None,
) -> dict[str, Decision]:
    """Decisions by the keys of the calls they are about.

    Args:
        given: The key of what waits, or the beginning of one that is unique, or its tool's or
            step's name. Of a call in doubt to `redo`, `done`, `done:` with the result as JSON, or
            `fail`; of a call that needs approval to `approve`, `approve::` with edited
            arguments as JSON, `reject` or `reject::` with the reason; of a
            question to `answer:` with the answer, and if a tool asks it to `reject`, which declines
            to answer.
        maker: Who makes them; None: it is not known.
        now: When; None: no time is over.
    Raises:
        UsageError: Nothing waits under that name, the word does not fit, or whoever makes the
            decision may not.
    """
    from minions.engine.calls.pending_decisions import pending_decisions
    from minions.engine.history.open_calls import OpenCall

    opened = tuple(replay.opened())
    waiting: tuple[OpenCall | PendingDecision, ...] = (
        *(call for call in opened if call.key not in replay.decisions),
        *pending_decisions(replay),
    )
    decided: dict[str, Decision] = {}
    for name, word in given.items():
        about = _named(name, opened, waiting)
        if not isinstance(about, OpenCall):
            check_maker(about.rules, maker, now)
        if decided.setdefault(about.key, checked := _checked(word, about)) != checked:
            raise UsageError(f"Two decisions about {about.key}.", code="bad-decision")
    return decided


def _named(
    name: str, opened: Sequence[OpenCall], waiting: Sequence[OpenCall | PendingDecision]
) -> OpenCall | PendingDecision:
    """The call that a name means: its key, or what is unique among the waiting ones."""
    found: list[OpenCall | PendingDecision] = [call for call in opened if call.key == name]
    found = found or [each for each in waiting if _is_meant(each, name)]
    if len(found) == 1:
        return found[0]
    keys = [each.key for each in waiting]
    what = f"means {len(found)} decisions" if found else "does not wait for a decision"
    raise UsageError(
        f"'{name}' {what}. What waits: {', '.join(keys) or 'nothing'}.",
        code="unknown-call",
        suggestions=near_names(name, keys),
    )


def _is_meant(each: OpenCall | PendingDecision, name: str) -> bool:
    """Otherwise than by the key of a call, which is looked for before."""
    from minions.engine.calls.pending_decisions import PendingDecision

    if isinstance(each, PendingDecision):
        return each.is_meant_by(name)
    is_named = name in (each.tool, each.step_id) or is_within(each.address, name)
    return is_named or each.key.startswith(f"{name}/")


def _checked(word: object, about: OpenCall | PendingDecision) -> Decision:
    """The decision as it is stored.

    Raises:
        UsageError: It is not one that decides this.
    """
    from minions.contracts.decision_types import (
        Answer,
        ApprovalClass,
        Approve,
        Reject,
        said_decision,
    )
    from minions.engine.history.approval_classes import checked_class
    from minions.engine.history.open_calls import OpenCall

    if not isinstance(word, str):
        wanted = "redo, done or fail" if isinstance(about, OpenCall) else _wanted(about)
        raise UsageError(
            f"The decision about {about.key} is {word!r:.80}, which is no text. Say {wanted}.",
            code="bad-decision",
        )
    decision = said_decision(word)
    if isinstance(about, OpenCall):
        return _settled(word, decision)
    match decision, about.what:
        case Approve(None, edited, like), "approval" if about.is_of_model and (edited or like):
            pass  # it has no arguments to edit, nor is it like another one
        case Approve(None, str(edited), None), "approval" if is_budget_key(about.key):
            return Approve(about.digest, _raised(edited, about))
        case Approve(None, None, ApprovalClass() as like), "approval" if not is_budget_key(
            about.key
        ):
            return Approve(about.digest, like=checked_class(like, about.fact))
        case Approve(None, edited, None), "approval":
            return Approve(about.digest, None if edited is None else _json_object(edited))
        case Reject(None, reason), "approval":
            return Reject(about.digest, reason)
        case Reject(None, reason), "answer" if about.can_decline:
            return Reject(reason=reason)
        case Answer(text), "answer":
            return Answer.of(read_answer(text, about.form))
    raise UsageError(
        f"'{word[:80]}' decides nothing here: {about.words}. Say {_wanted(about)}.",
        code="bad-decision",
    )


def check_maker(
    rules: Sequence[AskedRule], maker: DecisionMaker | None, now: datetime | None
) -> None:
    """Refuse a decision of somebody whose vote would not count.

    Raises:
        UsageError: `not-a-decider`; they are not asked, or started the run. `approval-expired`: it
            came too late.
    """
    from minions.contracts.approvals import rule_words

    present = rules if now is None else [each.present_at(now) for each in rules]
    asked = [each for each in present if each is not None]
    if len(asked) < len(rules):
        raise UsageError(
            "The time for this decision is over: the next resume of the run counts the call as "
            "rejected.",
            code="approval-expired",
        )
    if not asked or any(each.allows(maker) for each in asked):
        return
    if maker is None or maker.name is None or maker.is_claimed:
        who = "a name that nothing checked" if maker and maker.name else "nobody by name"
        problem = f"the decision comes from {who}"
    else:
        roles = f" ({', '.join(maker.roles)})" if maker.roles else ""
        problem = f"'{maker.name}'{roles} is not asked"
    raise UsageError(
        f"Not everybody may decide this: {rule_words(asked)}; {problem}. Decide with a token of "
        "one of them, or on the machine of the journal with --as NAME and --role ROLE.",
        code="not-a-decider",
    )


def _raised(edited: str, about: PendingDecision) -> str:
    """The limits that the approval names, in their stored form.

    Raises:
        UsageError: They are none, or above what the operator allows.
    """
    from minions.engine.calls.pending_decisions import raised_limits

    try:
        return dumps(dict(raised_limits(edited, f"{about.fact.arguments}")))
    except ValueError as error:
        raise UsageError(
            f'The new limit of the budget is not accepted: {error}. Say {{"limit_usd": AMOUNT}} or '
            '{"limit_tokens": NUMBER}.',
            code="bad-arguments",
        ) from error


def _json_object(arguments: str) -> str:
    """Edited arguments in their stored form.

    Raises:
        UsageError: They are not a JSON object.
    """
    try:
        value = parse_json(arguments)
    except ValueError as error:
        raise _bad_arguments(f"are not JSON ({error})") from error
    if not isinstance(value, dict):
        raise _bad_arguments(f"are a JSON {json_type(value)}, not an object")
    return dumps(value)


def check_edits(replay: Replay, decisions: Mapping[str, Decision], tools: Toolbox) -> None:
    """Check edited arguments against the schemas of the run's own tools.

    Steps of nested recipes have other toolboxes; their calls are checked before they are made.

    Raises:
        UsageError: `bad-arguments`; they do not fit.
    """
    from minions.contracts.decision_types import Approve

    for key, decision in decisions.items():
        waiting = replay.newest("decision", key)
        fact = waiting.fact if waiting is not None else None
        if not isinstance(decision, Approve) or not isinstance(fact, DecisionWaiting):
            continue
        is_call = "/" not in fact.step_id and not is_budget_key(key)
        tool = tools.find(fact.tool or "") if is_call else None
        if tool is None or decision.arguments is None:
            continue
        if errors := SchemaValidator(tool.spec.parameters).errors(parse_json(decision.arguments)):
            fitting = dumps(tool.spec.parameters.get("properties", {}))
            raise _bad_arguments(
                f"do not fit the tool '{tool.spec.name}': {'; '.join(errors)}. Its parameters "
                f"are: {fitting}"
            )


def _bad_arguments(problem: str) -> UsageError:
    return UsageError(f"The edited arguments {problem}.", code="bad-arguments")


def _wanted(about: PendingDecision) -> str:
    if about.what == "approval":
        return "approve or reject"
    return "answer:VALUE or reject" if about.can_decline else "answer:VALUE"


def read_answer(text: str, form: JsonSchema | None) -> JsonValue:
    """An answer that was typed as text, parsed by the form of its question.

    Raises:
        UsageError: It does not fit.
    """
    from minions.engine.calls.answer_forms import filled_in
    from minions.engine.calls.pending_decisions import mismatch

    value: JsonValue = text
    try:
        if mismatch(text, form) is not None:
            value = filled_in(_typed(text, form), form)
        problem = mismatch(value, form)
    except ValueError as error:
        problem = f"{error}"
    if problem is None:
        return value
    raise UsageError(
        f"{text[:80]!r} is no answer to that question: {problem}. It takes {_what_fits(form)}.",
        code="bad-answer",
    )


def _typed(text: str, form: JsonSchema | None) -> JsonValue:
    """What a text stands for: JSON, or `field=value`; else the text itself.

    Raises:
        ValueError: A field does not fit.
    """
    from minions.engine.calls.answer_forms import typed_fields

    try:
        return parse_json(text)
    except ValueError:
        fields = typed_fields(text, form)
        return text if fields is None else fields


def _what_fits(form: JsonSchema | None) -> str:
    from minions.engine.calls.answer_forms import example_of, fields_of

    fields = fields_of(form)
    if not fields:
        return f"what fits {dumps(form or {'type': 'string'})}"
    listed = ", ".join(
        shown_text(f"{each.name} ({each.noun}{'' if each.is_required else ', optional'})")
        for each in fields
    )
    return f"JSON, or fields as in `{example_of(form)}`: {listed}"


def _settled(word: str, decision: Decision | None) -> Decision:
    """The decision on a call in doubt.

    Raises:
        UsageError: That is not said.
    """
    from minions.contracts.decision_types import Done, Fail, Redo

    match decision:
        case Redo() | Fail():
            return decision
        case Done(text):
            try:
                _ = decision.value
            except ValueError as error:
                raise UsageError(
                    f"The result in 'done:{text or '':.80}' is not JSON: {error}.",
                    code="bad-decision",
                ) from error
            return decision
        case _:
            raise UsageError(
                f"'{word}' is no decision. Say redo (make the call again), done (it was made; "
                "done:JSON gives its result) or fail (count it as failed).",
                code="bad-decision",
            )


def decided_call(call: ToolCall, decision: Decision) -> ToolCall:
    """The call with the end that a person declared: done, done with a result, or failed."""
    from minions.contracts.decision_types import Done

    if not isinstance(decision, Done):
        failure = ToolFailure(
            code="decided-failed",
            message=f"The call of '{call.name}' was cut off by a crash; it was decided to count it "
            "as failed.",
        )
        response = ToolCallResponse(content=f"Error: {failure.message}", is_error=True)
        return evolve(call, status=CallStatus.FAILED, response=response, failure=failure)
    result = decision.value
    content = result if isinstance(result, str) else decision.text or _UNKNOWN
    response = ToolCallResponse(content=content, value=result)
    return evolve(call, status=CallStatus.COMPLETED, response=response, attempts=1)


def doubt(calls: Sequence[OpenCall], run_id: str) -> FailureInfo:
    """The failure of a run with calls in doubt: each call, and the commands that decide on it."""
    from minions.engine.calls.pending_decisions import shortened

    listed = "\n".join(
        f"  {call.key}: {call.tool}({shortened(call.arguments)}) in step '{call.address}'"
        for call in calls
    )
    run, decide = shell_word(run_id), shell_word(calls[0].key)
    return FailureInfo(
        code="in-doubt",
        message="The run was cut off inside calls that may have had their effect and that are not "
        f"declared safe to repeat:\n{listed}\nFind out whether the effect is there; then say "
        f"`minions resume {run} --decide {decide}=done`, or `=redo` to make the call "
        "again, or `=fail`.",
        suggestions=(f"minions resume {run} --decide {decide}=redo",),
    )
