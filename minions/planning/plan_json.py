"""A plan as the structured output of a planner."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from minions.contracts.json_values import JsonValue
from minions.contracts.plans import FileUse, Plan, PlanStep
from minions.planning.plan_text import listed, plain_artifacts, read_plan_text, step_type, tidy_id

__all__ = ["read_plan"]


def read_plan(answer: JsonValue, name: str = "plan") -> Plan | None:
    """The plan in a planner's answer, a text or a mapping; None: there is none.

    Args:
        name: The plan's name where the answer gives none.
    """
    if isinstance(answer, str):
        return read_plan_text(answer, name)
    if not isinstance(answer, Mapping):
        return None
    steps = tuple(_steps(answer.get("steps")))
    if not steps:
        return None
    name = _text(answer, "name") or name
    return Plan(
        id=tidy_id(_text(answer, "id") or name) or "plan",
        name=name,
        description=_text(answer, "description"),
        steps=steps,
    )


def _steps(value: JsonValue) -> Iterator[PlanStep]:
    for number, each in enumerate(value if isinstance(value, list | tuple) else ()):
        if not isinstance(each, Mapping):
            continue
        name = _text(each, "id")
        step_id = tidy_id(name) or f"step_{number + 1}"
        yield PlanStep(
            id=step_id,
            name=_text(each, "name") or (name if name != step_id else ""),
            type=step_type(_text(each, "type")),
            goal=_text(each, "goal") or _text(each, "description") or step_id,
            description=_text(each, "description"),
            files=tuple(FileUse.of(path) for path in _items(each, "files")),
            dependencies=tuple(dict.fromkeys(map(tidy_id, _items(each, "dependencies")))),
            artifacts=plain_artifacts(_items(each, "artifacts")),
            tools=_items(each, "tools"),
            command=_text(each, "command") or None,
        )


def _text(mapping: Mapping[str, JsonValue], key: str) -> str:
    value = mapping.get(key)
    return value.strip() if isinstance(value, str) else ""


def _items(mapping: Mapping[str, JsonValue], key: str) -> tuple[str, ...]:
    value = mapping.get(key)
    if isinstance(value, str):
        return listed(value)
    if not isinstance(value, list | tuple):
        return ()
    found = (each.strip() for each in value if isinstance(each, str))
    return tuple(dict.fromkeys(each for each in found if listed(each)))
