"""The `schedule` of a recipe: read and checked with the rest, carried out by workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from minions.data.errors import Fault, near_names
from minions.recipe.drafts import RecipeDraft
from minions.recipe.language import keys
from minions.recipe.schedules import MOST_CHARACTERS, ScheduleSpec, cron_problem, timezone_problem
from minions.recipe.text.nodes import MappingNode, Node, ScalarNode, SequenceNode, to_plain
from minions.recipe.text.sections import Report, read_section, type_of

_MOST: Final = 20
"""Schedules of one recipe."""


def read_schedules(draft: RecipeDraft, report: Report) -> tuple[ScheduleSpec, ...]:
    """The schedules in the order of the file; empty: the recipe has none."""
    node = draft.section.node("schedule")
    if node is None:
        return ()
    if not isinstance(node, SequenceNode):
        read = _schedule(draft, node, report)
        return (read,) if read is not None else ()
    if not 1 <= len(node.items) <= _MOST:
        report(node.place.fault("bad-value", f"a list of schedules has 1 to {_MOST} of them"))
        return ()
    each = [_schedule(draft, item, report) for item in node.items]
    return tuple(spec for spec in each if spec is not None)


def _schedule(draft: RecipeDraft, node: Node, report: Report) -> ScheduleSpec | None:
    if isinstance(node, ScalarNode):
        if _is_in_words(node):
            report(_words_fault(node))
            return None
        cron = _checked(node, "cron expression", cron_problem, report)
        return None if cron is None else ScheduleSpec(cron=cron)
    if not isinstance(node, MappingNode):
        message = f"a schedule is a cron expression or a mapping, but this is {type_of(node)}"
        report(node.place.fault("wrong-type", message))
        return None
    section = read_section(node, keys.SCHEDULE, report)
    cron = _checked(section.scalar("cron"), "cron expression", cron_problem, report)
    zone = _checked(section.scalar("timezone"), "time zone", timezone_problem, report)
    inputs = section.mapping("inputs")
    _check_inputs(draft, inputs, report)
    if cron is None:
        return None
    plain = to_plain(inputs) if inputs is not None else {}
    return ScheduleSpec(
        cron=cron,
        timezone=zone or "UTC",
        missed=section.text("missed") or "once",
        overlap=section.text("overlap") or "skip",
        inputs=plain if isinstance(plain, Mapping) else {},
    )


def _is_in_words(node: ScalarNode) -> bool:
    """Whether it is a text for people, as the older format of recipes had it."""
    if not isinstance(node.value, str):
        return False
    text = node.value.strip()
    fields = text.split()
    is_of_five = len(fields) > 4 and text[0].isdigit()
    looks_like_cron = text.startswith("@") or "*" in text or is_of_five
    return 0 < len(text) <= MOST_CHARACTERS and not looks_like_cron


def _words_fault(node: ScalarNode) -> Fault:
    return node.place.fault(
        "bad-schedule",
        f"'{node.value!s:.60}' is no cron expression: no worker starts runs by it",
        help='write it as `schedule: "0 8 * * *"`: minute, hour, day of the month, month, weekday',
        is_warning=True,
    )


def _checked(
    node: ScalarNode | None, what: str, problem: Callable[[str], str | None], report: Report
) -> str | None:
    """The text of the scalar; None: it is missing, or refused."""
    if node is None:
        return None
    text = node.value.strip() if isinstance(node.value, str) else ""
    why = problem(text)
    if why is None:
        return text
    report(node.place.fault("bad-schedule", f"'{node.value!s:.60}' is no {what}: {why}"))
    return None


def _check_inputs(draft: RecipeDraft, inputs: MappingNode | None, report: Report) -> None:
    known = tuple(draft.inputs)
    for entry in inputs.entries if inputs is not None else ():
        if entry.key not in known:
            near = near_names(entry.key, known, limit=1)
            report(
                entry.key_node.place.fault(
                    "bad-schedule",
                    f"the recipe has no input '{entry.key:.60}'",
                    label=f"did you mean '{near[0]}'?" if near else None,
                )
            )
