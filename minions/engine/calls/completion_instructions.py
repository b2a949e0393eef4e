"""Completion instructions in the text of an answer."""

from __future__ import annotations

import json
from collections.abc import Collection

from minions.contracts.calls import StepCompletionInstruction
from minions.contracts.context import snake_case

__all__ = ["instruction_in"]

_FLAGS = ("is_complete", "is_more_calls_needed", "is_non_recoverable")
_TEXTS = ("next_step_id", "failure_reason")


def instruction_in(text: str, *, besides: Collection[str] = ()) -> StepCompletionInstruction | None:
    """The instruction that a whole-text JSON object gives: at least one of its flags, as a bool.

    Both spellings count (`is_complete`, `isComplete`). JSON inside prose does not: what a model
    quotes is not what it says.

    Args:
        besides: Keys that mean something else here.
    """
    stripped = text.strip()
    if not stripped.startswith("{") or (
        "omplete" not in stripped and "ecoverable" not in stripped and "eeded" not in stripped
    ):
        return None
    try:
        parsed = json.loads(stripped)
    except (ValueError, RecursionError):
        return None
    if not isinstance(parsed, dict):
        return None
    values = {snake_case(key): value for key, value in parsed.items() if key not in besides}
    flags = {name: values[name] for name in _FLAGS if isinstance(values.get(name), bool)}
    texts = {name: values[name] for name in _TEXTS if isinstance(values.get(name), str)}
    return StepCompletionInstruction(**flags, **texts) if flags else None
