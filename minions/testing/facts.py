"""Facts for tests of journals, with defaults for everything that a test need not state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from minions.contracts.journal.facts import Fact, UnreadableFact, fact_of
from minions.contracts.journal.journal import EntryDraft
from minions.data.json_values import JsonValue

__all__ = ["holding", "row_fact"]

_STEP: Final[Mapping[str, JsonValue]] = {"step_id": "a"}
_CHANGE: Final[Mapping[str, JsonValue]] = {**_STEP, "root": "/work", "path": "a", "after": "0"}
_NEEDED: Final[Mapping[tuple[str, str], Mapping[str, JsonValue]]] = {
    ("run", "started"): {"recipe": "r"},
    ("run", "resumed"): {"recipe": "r"},
    ("step", "started"): _STEP,
    ("step", "finished"): {**_STEP, "status": "completed"},
    ("step", "failed"): {**_STEP, "status": "failed", "error": {}},
    ("step", "interrupted"): {**_STEP, "status": "failed", "error": {}},
    ("step", "skipped"): {**_STEP, "status": "skipped"},
    ("step", "withdrawn"): {**_STEP, "status": "skipped"},
    ("tool_call", "started"): {**_STEP, "tool": "look", "arguments": "{}"},
    ("tool_call", "in_doubt"): {**_STEP, "tool": "look", "arguments": "{}"},
    ("tool_call", "finished"): {**_STEP, "tool": "look"},
    ("tool_call", "failed"): {**_STEP, "tool": "look"},
    ("tool_call", "interrupted"): {**_STEP, "tool": "look"},
    ("model_call", "finished"): {**_STEP, "message": {"role": "assistant", "content": "so"}},
    ("model_call", "failed"): _STEP,
    ("model_call", "interrupted"): _STEP,
    ("decision", "waiting"): {**_STEP, "what": "answer"},
    ("decision", "recorded"): {**_STEP, "what": "approval", "word": "approve:1"},
    ("decision", "imported"): {**_STEP, "what": "approval", "word": "approve:1"},
    ("route", "finished"): {**_STEP, "output": "b"},
    ("route", "failed"): _STEP,
    ("goto", "recorded"): {**_STEP, "to": "b", "attempt": 1},
    ("plan", "replaced"): {**_STEP, "text": "", "diff": {}},
    ("examples", "pinned"): {"recipe": "r", "step": "a", "fingerprint": "0"},
    ("mark", "recorded"): {"verdict": "good"},
    ("mark", "imported"): {"verdict": "good"},
    ("rollback", "recorded"): {"conversation": "c", "position": 0},
    ("file_change", "recorded"): _CHANGE,
    ("file_change", "imported"): _CHANGE,
    ("file_rollback", "finished"): {"files": []},
    ("conversation", "started"): {**_STEP, "conversation": "c", "messages": []},
    ("session", "cut"): {"sequence": 0},
    ("session", "forked"): {"parent": "ses_0", "sequence": 0, "position": 1},
}


def row_fact(kind: str, state: str, body: Mapping[str, JsonValue]) -> Fact | UnreadableFact:
    """The fact of a row; required fields that the body lacks are filled in."""
    is_start = kind == "run" and state in ("started", "resumed") and "document" not in body
    needed = {**_NEEDED.get((kind, state), {}), **({"steps": {}} if is_start else {})}
    return fact_of(kind, state, {**needed, **body})


def holding(
    value: JsonValue = None, *, key: str = "k", kind: str = "step", state: str = "finished"
) -> EntryDraft:
    """A fact of that kind that holds `value` in a field of its own."""
    boxed = {"it": value}
    body: dict[tuple[str, str], Mapping[str, JsonValue]] = {
        ("step", "started"): {"conversation": repr(value)},
        ("step", "finished"): {"output": value},
        ("run", "started"): {"inputs": boxed},
        ("run", "finished"): {"status": "completed", "output": value},
        ("model_call", "finished"): {"metrics": boxed},
        ("model_call", "failed"): {"error": boxed},
        ("message", "recorded"): {"message": {"role": "user"}, "metrics": boxed},
        ("session", "opened"): {"inputs": boxed},
    }
    if kind in ("message", "session"):
        state = "recorded" if kind == "message" else "opened"
    fact = row_fact(kind, state, body[kind, state])
    assert not isinstance(fact, UnreadableFact)  # noqa: S101  # the table above fits each kind
    return EntryDraft(key=key, fact=fact)
