"""The one reader of a planner's answer: JSON, the text grammar, or neither."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from yaml.reader import Reader

from minions.contracts.plans import FileUse, Plan, PlanStep
from minions.data.hidden_characters import HIDDEN
from minions.data.json_values import JsonValue, find_json_value
from minions.planning.plan_text import (
    listed,
    plain_artifacts,
    read_plan_text,
    step_type,
    tidy_id,
    type_note,
    with_meant_ids,
)

__all__ = ["read_plan", "readable"]

_HIDDEN: Final = re.compile(f"[{HIDDEN}]")
_AROUND: Final = ("plan", "output", "result", "value")
"""Keys in which models put a plan that is asked for without them."""


def read_plan(answer: JsonValue, name: str = "plan") -> Plan | None:
    """The plan in a planner's answer, whatever its form: JSON, in a text or not, then the text
    grammar; None: it is prose. A type that is unknown is `analyze`.

    Args:
        name: The plan's name where the answer gives none.
    """
    if not isinstance(answer, str):
        return _read_value(_printable(answer), name)
    try:
        value = find_json_value(answer)
    except ValueError:
        value = None
    return _read_value(_printable(value), name) or read_plan_text(readable(answer), name)


def _printable(answer: JsonValue) -> JsonValue:
    """The answer without characters that no recipe holds, or that hide what is approved."""
    if isinstance(answer, str):
        return readable(answer)
    if isinstance(answer, Mapping):
        return {key: _printable(each) for key, each in answer.items()}
    return [_printable(each) for each in answer] if isinstance(answer, list | tuple) else answer


def readable(text: str) -> str:
    """The text without characters that no recipe holds, or that hide what is approved."""
    return _HIDDEN.sub("", Reader.NON_PRINTABLE.sub("", text))


def _read_value(value: JsonValue, name: str) -> Plan | None:
    """The plan in a value: an object with `steps`, one around it, or a list of steps with goals."""
    if isinstance(value, list | tuple):
        if not value or not all(isinstance(each, Mapping) and "goal" in each for each in value):
            return None  # data of a plan's text
        value = {"steps": value}
    if not isinstance(value, Mapping):
        return None
    told = {key.casefold(): each for key, each in value.items()}
    if "steps" not in told:
        inner = [told[key] for key in _AROUND if isinstance(told.get(key), Mapping | list | tuple)]
        if len(inner) != 1:
            return None
        nested = inner[0] if isinstance(inner[0], Mapping) else {"steps": inner[0]}
        told = {key.casefold(): each for key, each in nested.items()}
    raw = told.get("steps")
    numbers: dict[str, str] = {}
    notes: list[str | None] = []
    steps = tuple(_steps(raw, numbers, notes))
    if not steps:
        return None
    name = _text(told, "name") or name
    return Plan(
        id=tidy_id(_text(told, "id") or name) or "plan",
        name=name,
        description=_text(told, "description"),
        steps=tuple(with_meant_ids(steps, numbers)),
        notes=filter(None, notes),
    )


def _steps(
    value: JsonValue, numbers: dict[str, str], notes: list[str | None]
) -> Iterator[PlanStep]:
    """The steps; `numbers` gets the ids of those whose id is a number, `notes` what is assumed."""
    for at, entry in enumerate(value if isinstance(value, list | tuple) else (), start=1):
        if not isinstance(entry, Mapping):
            continue
        each = {key.casefold(): item for key, item in entry.items()}
        name = _text(each, "id")
        if not any(_text(each, key) for key in ("id", "goal", "description", "name", "type")):
            continue
        step_id = tidy_id(name) or f"step_{at}"
        if name.isdecimal() and len(name) <= 3:
            numbers[str(int(name))] = step_id
        notes.append(type_note(step_id, _text(each, "type")))
        yield PlanStep(
            id=step_id,
            name=_text(each, "name") or (name if name != step_id else ""),
            type=step_type(_text(each, "type")),
            goal=_text(each, "goal")
            or _text(each, "description")
            or _text(each, "name")
            or step_id,
            description=_text(each, "description"),
            files=tuple(FileUse.of(path) for path in _items(each, "files")),
            dependencies=_items(each, "dependencies"),
            artifacts=plain_artifacts(_items(each, "artifacts")),
            tools=_items(each, "tools"),
            command=_text(each, "command") or None,
        )


def _text(mapping: Mapping[str, JsonValue], key: str) -> str:
    value = mapping.get(key)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)  # models number their steps
    return value.strip() if isinstance(value, str) else ""


def _items(mapping: Mapping[str, JsonValue], key: str) -> tuple[str, ...]:
    value = mapping.get(key)
    if isinstance(value, str):
        return listed(value)
    if not isinstance(value, list | tuple):
        return ()
    texts = (_text({"": each}, "") for each in value)
    return tuple(dict.fromkeys(each for each in texts if listed(each)))
