"""Calls in doubt: started before a crash, not safe to repeat, decided by a person."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from attrs import evolve

from minions.contracts.calls import CallStatus, ToolCall, ToolCallResponse, ToolFailure
from minions.contracts.errors import FailureInfo, UsageError, near_names
from minions.contracts.json_values import parse_json
from minions.contracts.tools import Effect, Toolbox
from minions.engine.completion import FINAL_ANSWER
from minions.engine.replay import OpenCall, Replay

__all__ = ["REDO", "calls_in_doubt", "checked_decisions", "decided_call", "doubt"]

REDO: Final = "redo"
_DONE: Final = "done"
_FAIL: Final = "fail"
_UNKNOWN: Final = "The call was made; what it gave is not known."


def calls_in_doubt(replay: Replay, tools: Toolbox) -> tuple[OpenCall, ...]:
    """Calls that nobody may repeat without being asked, and that nobody decided."""
    return tuple(
        call
        for call in replay.opened()
        if call.key not in replay.decisions and not _is_repeatable(tools, call.tool)
    )


def _is_repeatable(tools: Toolbox, name: str) -> bool:
    tool = tools.find(name)
    if tool is None:
        return name == FINAL_ANSWER
    return tool.spec.effect in (Effect.PURE, Effect.IDEMPOTENT)


def checked_decisions(given: Mapping[str, str], replay: Replay) -> dict[str, str]:
    """Decisions by the keys of the calls they are about.

    Args:
        given: A call's key, or the end or beginning of one that is unique, or its tool's name, to
            `redo`, `done`, `done:` with the result as JSON, or `fail`.
    Raises:
        UsageError: No such call is open, or the word is another.
    """
    opened = tuple(replay.opened())
    waiting = tuple(call for call in opened if call.key not in replay.decisions)
    decided: dict[str, str] = {}
    for name, word in given.items():
        key = _call_named(name, opened, waiting).key
        if decided.setdefault(key, checked := _checked_word(word)) != checked:
            raise UsageError(f"Two decisions about the call {key}.", code="bad-decision")
    return decided


def _call_named(name: str, opened: Sequence[OpenCall], waiting: Sequence[OpenCall]) -> OpenCall:
    """By its key, which may be decided anew, or by what is unique among those that wait."""
    found = [call for call in opened if call.key == name]
    found = found or [
        call
        for call in waiting
        if name in (call.tool, call.step_id) or call.key.startswith(f"{name}/")
    ]
    if len(found) == 1:
        return found[0]
    keys = [call.key for call in waiting]
    what = f"means {len(found)} calls" if found else "is no call that waits for a decision"
    raise UsageError(
        f"'{name}' {what}. Calls that wait: {', '.join(keys) or 'none'}.",
        code="unknown-call",
        suggestions=near_names(name, keys),
    )


def _checked_word(word: str) -> str:
    kind, colon, value = word.partition(":")
    if kind == _DONE and colon:
        try:
            parse_json(value)
        except ValueError as error:
            raise UsageError(
                f"The result in 'done:{value[:80]}' is not JSON: {error}.", code="bad-decision"
            ) from error
        return word
    if word not in (REDO, _DONE, _FAIL):
        raise UsageError(
            f"'{word}' is no decision. Say redo (make the call again), done (it was made; "
            "done:JSON gives its result) or fail (count it as failed).",
            code="bad-decision",
        )
    return word


def decided_call(call: ToolCall, word: str) -> ToolCall:
    """The call as a person says it ended."""
    kind, colon, value = word.partition(":")
    if kind == _FAIL:
        failure = ToolFailure(
            code="decided-failed",
            message=f"The call of '{call.name}' was cut off by a crash; it was decided to count it "
            "as failed.",
        )
        response = ToolCallResponse(content=f"Error: {failure.message}", is_error=True)
        return evolve(call, status=CallStatus.FAILED, response=response, failure=failure)
    result = parse_json(value) if colon else None
    content = result if isinstance(result, str) else value if colon else _UNKNOWN
    response = ToolCallResponse(content=content, value=result)
    return evolve(call, status=CallStatus.COMPLETED, response=response, attempts=1)


def doubt(calls: Sequence[OpenCall], run_id: str) -> FailureInfo:
    """What a person reads, with the commands that go on."""
    listed = "\n".join(
        f"  {call.key}: {call.tool}({call.arguments[:200]}) in step '{call.step_id}'"
        for call in calls
    )
    return FailureInfo(
        code="in-doubt",
        message="The run was cut off inside calls that may have had their effect and that are not "
        f"declared safe to repeat:\n{listed}\nFind out whether the effect is there; then say "
        f"`minions resume {run_id} --decide {calls[0].key}=done`, or `=redo` to make the call "
        "again, or `=fail`.",
        suggestions=(f"minions resume {run_id} --decide {calls[0].key}=redo",),
    )
