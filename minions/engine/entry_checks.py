"""What the body of each kind of journal entry must hold, so that the folds over it can read it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeAlias

from minions.contracts.errors import JournalError
from minions.contracts.journal import JournalEntry
from minions.contracts.json_values import JsonValue
from minions.contracts.stored_sessions import unreadable_entry

__all__ = ["check_entries", "problem_of", "unreadable_among"]

_Fields: TypeAlias = Mapping[str, type]

_NOTHING: Final[_Fields] = {}
_STEP: Final[_Fields] = {"step_id": str}
_STEP_END: Final[_Fields] = {**_STEP, "status": str}
_CALL: Final[_Fields] = {**_STEP, "tool": str}
_CALL_START: Final[_Fields] = {**_CALL, "arguments": str}
_DECIDED: Final[_Fields] = {**_STEP, "what": str, "word": str}
_NEEDED: Final[Mapping[str, Mapping[str, _Fields]]] = {
    "run": {
        "started": {"recipe": str},
        "resumed": {"recipe": str},
        "rejected": {"recipe": str, "faults": list},
        "finished": {"status": str},
        "limit_reached": _NOTHING,
    },
    "step": {
        "started": _STEP,
        "finished": _STEP_END,
        "failed": _STEP_END,
        "skipped": _STEP_END,
        "interrupted": _STEP_END,
        "withdrawn": _STEP_END,
    },
    "conversation": {"started": {**_STEP, "messages": list}},
    "model_call": {
        "finished": {**_STEP, "message": dict},
        "failed": _STEP,
        "interrupted": _STEP,
    },
    "tool_call": {
        "started": _CALL_START,
        "in_doubt": _CALL_START,
        "finished": _CALL,
        "failed": _CALL,
        "interrupted": _CALL,
    },
    "message": {"recorded": _NOTHING},
    "decision": {
        "waiting": {**_STEP, "what": str},
        "recorded": _DECIDED,
        "imported": _DECIDED,
    },
    "goto": {"recorded": {**_STEP, "to": str, "attempt": int}},
    "route": {"finished": {**_STEP, "output": str}, "failed": _STEP},
    "rollback": {"recorded": {"conversation": str, "position": int}},
    "warning": {"recorded": {"code": str, "message": str}},
    "session": {
        "opened": _NOTHING,
        "forked": {"parent": str, "sequence": int, "position": int},
        "cut": {"sequence": int},
    },
}
"""Kind and state to what no fold can do without."""

_WHERE_GIVEN: Final[_Fields] = {
    "inputs": dict,
    "note": dict,
    "decisions": dict,
    "usage": dict,
    "error": dict,
    "document": str,
    "recipes": str,
    "steps": dict,
    "model": str,
    "metrics": dict,
    "sequence": int,
    "anew": list,
    "index": int,
}
"""Of whatever kind: what it is where it is there and not null."""

_WORDS: Final[Mapping[type, str]] = {
    str: "a text",
    int: "a whole number",
    list: "a list",
    dict: "a mapping",
}


def problem_of(entry: JournalEntry) -> str | None:
    """What is wrong with it, as `'recipe' is missing; a text is expected`; None: nothing."""
    if entry.damage is not None:
        return entry.damage
    states = _NEEDED.get(entry.kind)
    if states is None:
        return f"the kind {entry.kind!r:.40} is not known; known are: {', '.join(_NEEDED)}"
    if entry.state not in states:
        known = ", ".join(states)
        return f"{entry.kind} has no state {entry.state!r:.40}; its states are: {known}"
    problems = (
        *(_misses(entry.body, name, kind) for name, kind in states[entry.state].items()),
        *(
            _misses(entry.body, name, kind)
            for name, kind in _WHERE_GIVEN.items()
            if entry.body.get(name) is not None
        ),
        _without_steps(entry),
        _without_message(entry),
    )
    return next((problem for problem in problems if problem is not None), None)


def _misses(body: Mapping[str, JsonValue], name: str, kind: type) -> str | None:
    if name not in body:
        return f"{name!r} is missing; {_WORDS[kind]} is expected"
    value = body[name]
    if _is_a(value, kind):
        return None
    return f"{name!r} is {value!r:.40}; {_WORDS[kind]} is expected"


def _is_a(value: JsonValue, kind: type) -> bool:
    if kind is str:
        return isinstance(value, str)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if kind is dict:
        return isinstance(value, Mapping)
    return isinstance(value, Sequence) and not isinstance(value, str)


def _without_steps(entry: JournalEntry) -> str | None:
    if entry.kind != "run" or entry.state not in ("started", "resumed"):
        return None
    if entry.body.get("document") is None and "steps" not in entry.body:
        return "neither 'document' nor 'steps' says which steps the run has"
    return None


def _without_message(entry: JournalEntry) -> str | None:
    if entry.kind != "message" or isinstance(entry.body.get("call"), str):
        return None
    if isinstance(entry.body.get("message"), Mapping):
        return None
    return "neither 'message' (a mapping) nor 'call' (a text) says what the message is"


def unreadable_among(rows: Iterable[JournalEntry]) -> JournalError | None:
    """Of the run and session entries of a list, the first that cannot be read.

    Looks only at what a list is made of: it is called for every run ever recorded.
    """
    for row in rows:
        body = row.body
        if row.damage is None:
            if row.state == "finished":
                if isinstance(body.get("status"), str):
                    continue
            elif row.kind != "run" or isinstance(body.get("recipe"), str):
                continue
        if (problem := problem_of(row)) is not None:
            return unreadable_entry(row, problem)
    return None


def check_entries(entries: Iterable[JournalEntry]) -> None:
    """Refuse a run that cannot be read, before anything is made of a part of it.

    Raises:
        JournalError: `corrupt-entry`, about the first entry that cannot be read.
    """
    for entry in entries:
        if (problem := problem_of(entry)) is not None:
            raise unreadable_entry(entry, problem)
