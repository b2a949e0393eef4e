"""Checks of a plan before it becomes a recipe: its graph, its files, its size."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Final

from attrs import evolve, frozen

from minions.contracts.errors import did_you_mean
from minions.contracts.plans import Plan, PlanStep, PlanStepType, steps_before

__all__ = ["MOST_NAMED", "MOST_STEPS", "READING_TOOLS", "CheckedPlan", "check_plan", "refusal_of"]

READING_TOOLS: Final = ("files__glob", "files__search", "files__read")
"""Tools that every step may be offered: they find what no list of files tells."""

MOST_STEPS: Final = 50
"""Steps of a plan; a longer one is no decomposition that a person can approve."""
_LONGEST_TEXT: Final = 8_000
"""Characters of a goal, a description or a command."""
MOST_NAMED: Final = 100
"""Files, dependencies or artifacts of one step."""


@frozen(kw_only=True)
class CheckedPlan:
    """A plan with what is wrong with it."""

    plan: Plan
    """The plan with dependencies added between steps that use the same file."""
    faults: tuple[str, ...] = ()
    """Faults for the planner and for people, each with the step it is about; empty: it can run."""
    notes: tuple[str, ...] = ()
    """What was added, for people."""


def check_plan(
    plan: Plan,
    *,
    files: Collection[str] | None = None,
    done: Collection[str] = (),
    tools: Collection[str] = (),
) -> CheckedPlan:
    """All faults of a plan; steps that would race for a file are put in order.

    Args:
        files: Paths of the files in the workspace; None: they are not known, or not all.
        done: Ids of steps of an earlier plan, on which steps may depend.
        tools: Names of the tools that steps may be offered.
    """
    faults = [*_faults_of_ids(plan, done), *_faults_of_sizes(plan), *_faults_of_paths(plan)]
    faults += _faults_of_tools(plan, tools)
    circle = _circle(plan)
    if circle:
        faults.append(f"The steps {' -> '.join(circle)} wait for each other.")
    if faults:
        return CheckedPlan(plan=plan, faults=tuple(faults))
    ordered, notes = _in_order(plan)
    faults += _faults_of_reading(ordered, files)
    return CheckedPlan(plan=ordered, faults=tuple(faults), notes=tuple(notes))


def _faults_of_ids(plan: Plan, done: Collection[str]) -> Iterator[str]:
    counts = Counter(each.id.casefold() for each in plan.steps)
    seen: set[str] = set()
    known = [*(each.id for each in plan.steps), *done]
    for step in plan.steps:
        if counts[step.id.casefold()] > 1 and step.id.casefold() not in seen:
            yield f"Step '{step.id}' occurs {counts[step.id.casefold()]} times; ids are unique."
        seen.add(step.id.casefold())
        for each in step.dependencies:
            if each == step.id:
                yield f"Step '{step.id}' depends on itself."
            elif each not in known:
                hint = did_you_mean(each, known)
                yield f"Step '{step.id}' depends on '{each}', which is no step.{hint}"


def _faults_of_sizes(plan: Plan) -> Iterator[str]:
    if len(plan.steps) > MOST_STEPS:
        yield f"The plan has {len(plan.steps)} steps; {MOST_STEPS} are the most."
    for step in plan.steps:
        texts = {
            "GOAL": step.goal,
            "DESCRIPTION": step.description,
            "COMMAND": step.command or "",
        }
        for key, text in texts.items():
            if len(text) > _LONGEST_TEXT:
                length = f"{key} has {len(text)} characters"
                yield f"Step '{step.id}': {length}; at most {_LONGEST_TEXT}."
        lists: Mapping[str, Sequence[object]] = {
            "FILES": step.files,
            "DEPENDENCIES": step.dependencies,
            "ARTIFACTS": step.artifacts,
        }
        for key, listed in lists.items():
            if len(listed) > MOST_NAMED:
                yield f"Step '{step.id}': {key} has {len(listed)} items; at most {MOST_NAMED}."
        if not step.goal.strip():
            yield f"Step '{step.id}' has no GOAL."
        if step.command is not None and step.type is not PlanStepType.VALIDATE:
            yield f"Step '{step.id}' has a COMMAND, which only a step of type validate may have."


def _faults_of_paths(plan: Plan) -> Iterator[str]:
    for step in plan.steps:
        for path in (*(each.path for each in step.files), *step.made_files):
            why = refusal_of(path)
            if why is not None:
                yield f"Step '{step.id}': '{path:.100}' {why}."


def _faults_of_tools(plan: Plan, tools: Collection[str]) -> Iterator[str]:
    for step in plan.steps:
        for each in step.tools:
            if each not in tools:
                known = f" Tools are: {', '.join(tools)}." if tools else " There are no tools."
                hint = did_you_mean(each, tools)
                yield f"Step '{step.id}' wants the tool '{each}', which is unknown.{hint}{known}"


def refusal_of(path: str) -> str | None:
    """Why a path cannot be used in a workspace; None: it can."""
    parts = path.split("/")
    if path.startswith(("/", "~")) or "\\" in path or ":" in path[:3] or ".." in parts:
        return "leads out of the workspace; give a path relative to it"
    if not path or not path.isprintable() or len(path) > 300:
        return "is no path of a file"
    if ".git" in (part.casefold() for part in parts):
        return "belongs to the repository itself"
    return None


def _circle(plan: Plan) -> list[str]:
    """Ids of steps that wait for each other, the first one once more at the end; empty: none."""
    waits = {each.id: set(each.dependencies) - {each.id} for each in plan.steps}
    try:
        TopologicalSorter(waits).prepare()
    except CycleError as error:
        return [*reversed(error.args[1])]  # the sorter names what comes before first
    return []


# --- files --------------------------------------------------------------------------------------


def _in_order(plan: Plan) -> tuple[Plan, list[str]]:
    """The plan in which steps that change or read what another one changes wait for each other.

    The order of the plan decides: the later step waits.
    """
    steps = list(plan.steps)
    notes: list[str] = []
    for at in range(len(steps)):
        for earlier in steps[:at]:
            step = steps[at]
            shared = _changed(earlier) & (_changed(step) | _read(step))
            shared |= _read(earlier) & _changed(step)
            if not shared or _is_ordered(steps, step.id, earlier.id):
                continue
            steps[at] = evolve(step, dependencies=(*step.dependencies, earlier.id))
            notes.append(
                f"Step '{step.id}' waits for '{earlier.id}': both use {', '.join(sorted(shared))}."
            )
    return evolve(plan, steps=tuple(steps)), notes


def _is_ordered(steps: Sequence[PlanStep], one: str, other: str) -> bool:
    return other in steps_before(steps, one) or one in steps_before(steps, other)


def _changed(step: PlanStep) -> set[str]:
    """Files that a step may change, as far as the plan tells."""
    if not step.type.changes_files:
        return set()
    read = {each.path for each in step.files} if step.type is not PlanStepType.GENERATE else set()
    return {*step.made_files, *read}


def _read(step: PlanStep) -> set[str]:
    return {each.path for each in step.files}


def _faults_of_reading(plan: Plan, files: Collection[str] | None) -> Iterator[str]:
    """Files that are neither in the workspace nor made by an earlier step."""
    if files is None:
        return
    for step in plan.steps:
        before = steps_before(plan.steps, step.id)
        made = {path for each in plan.steps if each.id in before for path in each.made_files}
        for each in step.files:
            if each.path not in files and each.path not in made:
                hint = did_you_mean(each.path, files)
                yield (
                    f"Step '{step.id}' reads '{each.path}', which is not in the workspace and "
                    f"which no step before it makes.{hint}"
                )
