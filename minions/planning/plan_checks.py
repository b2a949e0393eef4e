"""Checks of a plan before it becomes a recipe: its graph, its files, its size."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Final

from attrs import evolve, frozen

from minions.contracts.plans import (
    FileForm,
    FileUse,
    Plan,
    PlanStep,
    PlanStepType,
    is_path,
    steps_before,
)
from minions.contracts.protected_files import configures, is_git_name, is_secret
from minions.data.errors import did_you_mean
from minions.planning.plan_json import PlanForm, Sharing
from minions.recipe.artifacts import as_path

READING_TOOLS: Final = ("files__glob", "files__search", "files__read")
"""Tools that every step may be offered: they find what no list of files tells."""

MOST_STEPS: Final = 50
"""Steps of a plan; a longer one is no decomposition that a person can approve."""
_LONGEST_TEXT: Final = 8_000
"""Characters of a goal, a description or a command."""
MOST_NAMED: Final = 100
"""Files, dependencies, artifacts or tools of one step."""
_LONGEST_PLAN: Final = 100_000
"""Characters of a plan as text: it is shown, sent and stored several times."""
_LONGEST_NAME: Final = 300
"""Characters of a path, or of another artifact."""
_MOST_FAULTS: Final = 20
"""Faults, or notes, that are told; to look for what is meant takes time for each."""
_MOST_SHOWN: Final = 10
"""Items of a list that are shown, of a plan that is too large, or in a note."""
_LEFT_OUT: Final = (".git", ".venv", "node_modules", "__pycache__")
"""Folders that the toolset `files` leaves out, whatever the case."""
_ENDING: Final = re.compile(r"\.[A-Za-z][A-Za-z0-9]{0,5}\Z")


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
    form: PlanForm = PlanForm(),  # noqa: B008  # frozen
) -> CheckedPlan:
    """All faults of a plan; steps that would race for a file are put in order.

    Args:
        files: Paths of the files in the workspace; None: they are not known, or not all.
        done: Ids of steps of an earlier plan, on which steps may depend.
        tools: Names of the tools that steps may be offered.
        form: What the steps may use although it is closed.
    """
    # Alone, for what follows takes the square of a plan's size.
    too_large = _first(_faults_of_sizes(plan))
    if too_large:
        return CheckedPlan(plan=_cut(plan), faults=too_large)
    plan, taken = _with_made_files(plan, files)
    faults = _first(
        itertools.chain(
            _faults_of_ids(plan, done),
            _faults_of_steps(plan),
            _faults_of_paths(plan, form),
            _faults_of_tools(plan, tools),
            _faults_of_order(plan),
        )
    )
    if faults:
        return CheckedPlan(plan=plan, faults=faults)
    ordered, notes = _in_order(plan)
    faults = _first(_faults_of_reading(ordered, files))
    return CheckedPlan(
        plan=ordered,
        faults=faults,
        notes=(*_describe_openings(ordered, form), *[*taken, *notes][:_MOST_FAULTS]),
    )


def without_completed(plan: Plan, completed: Collection[PlanStep], share: Sharing) -> CheckedPlan:
    """The plan of what is left: a step that is completed is not carried out, and not paid, again.

    It is the same work where id and type are the same and no file is to be made besides, whatever
    its goal says now, and where no step before it is carried out.
    """
    known = {each.id: each for each in completed}
    names = {each.id for each in plan.steps}
    done: dict[str, PlanStep] = {}
    for _ in plan.steps:
        more = {
            each.id: known[each.id]
            for each in plan.steps
            if each.id not in done
            and _is_same_work(each, known.get(each.id))
            and all(before in done or before not in names for before in each.dependencies)
        }
        if not more:
            break
        done |= more
    if not done:
        return CheckedPlan(plan=plan)
    left = tuple(_seeing(each, done, share) for each in plan.steps if each.id not in done)
    notes = [f"Step '{each}' is completed already and is not carried out again." for each in done]
    if not left:
        fault = "All steps of this plan are completed already. Plan what is left, with new ids."
        return CheckedPlan(plan=plan, faults=(fault,))
    return CheckedPlan(plan=evolve(plan, steps=left), notes=tuple(notes[:_MOST_FAULTS]))


def _is_same_work(step: PlanStep, completed: PlanStep | None) -> bool:
    if completed is None or step.type is not completed.type:
        return False
    # A command costs no call of a model, and tests what is made besides.
    return step.command is None and set(step.made_files) <= set(completed.made_files)


def _seeing(step: PlanStep, done: Mapping[str, PlanStep], share: Sharing) -> PlanStep:
    """The step with the files that completed steps made for it, as it would see them."""
    if share is Sharing.NAMES:
        return step
    seen = {each.path for each in step.files}
    form = FileForm.OUTLINE if share is Sharing.OUTLINE else FileForm.WHOLE
    made = dict.fromkeys(
        path
        for each in step.dependencies
        if each in done
        for path in done[each].made_files
        if path not in seen
    )
    return evolve(step, files=(*step.files, *(FileUse(path=path, form=form) for path in made)))


def configuring_files(plan: Plan, form: PlanForm) -> list[str]:
    """The files that configure tools outside and that steps of a plan change by name, without those
    that are open anyway.
    """
    named = (
        path
        for step in plan.steps
        if step.type.changes_files
        for path in (*step.made_files, *_seen_and_changed(step))
    )
    return [path for path in dict.fromkeys(named) if configures(path.split("/"), form.allow_config)]


def _seen_and_changed(step: PlanStep) -> Iterator[str]:
    """The files that it sees and may change."""
    if step.type is not PlanStepType.GENERATE:
        yield from (each.path for each in step.files)


def _describe_openings(plan: Plan, form: PlanForm) -> Iterator[str]:
    """What a person is told before they approve the plan."""
    found = configuring_files(plan, form) if form.is_asked else []
    if found:
        yield (
            "These files configure tools that run outside of the plan, and a yes lets it change "
            f"them: {', '.join(found)}."
        )


def _first(faults: Iterator[str]) -> tuple[str, ...]:
    """The faults, as many as are told."""
    found = tuple(itertools.islice(faults, _MOST_FAULTS))
    return (*found, "There are more faults.") if next(faults, None) is not None else found


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
    elif (length := len(plan.to_text())) > _LONGEST_PLAN:
        yield f"The plan has {length} characters; at most {_LONGEST_PLAN}."
    for step in plan.steps:
        texts = {
            "GOAL": step.goal,
            "DESCRIPTION": step.description,
            "COMMAND": step.command or "",
        }
        for key, text in texts.items():
            if len(text) > _LONGEST_TEXT:
                size = f"{key} has {len(text)} characters"
                yield f"Step '{step.id}': {size}; at most {_LONGEST_TEXT}."
        lists: Mapping[str, Sequence[object]] = {
            "FILES": step.files,
            "DEPENDENCIES": step.dependencies,
            "ARTIFACTS": step.artifacts,
            "TOOLS": step.tools,
        }
        for key, listed in lists.items():
            if len(listed) > MOST_NAMED:
                yield f"Step '{step.id}': {key} has {len(listed)} items; at most {MOST_NAMED}."


def _cut(plan: Plan) -> Plan:
    """A plan that is too large, as far as it is shown: nobody reads a megabyte, or pays for it."""
    steps = tuple(_cut_step(each) for each in plan.steps[:MOST_STEPS])
    description = _shorten_text(plan.description)
    return evolve(plan, name=_shorten_text(plan.name), description=description, steps=steps)


def _cut_step(step: PlanStep) -> PlanStep:
    return evolve(
        step,
        name=_shorten_text(step.name),
        goal=_shorten_text(step.goal),
        description=_shorten_text(step.description),
        command=_shorten_text(step.command) if step.command is not None else None,
        files=tuple(
            evolve(each, path=_shorten_text(each.path)) for each in step.files[:_MOST_SHOWN]
        ),
        dependencies=step.dependencies[:_MOST_SHOWN],
        artifacts=tuple(_shorten_text(each) for each in step.artifacts[:_MOST_SHOWN]),
        tools=tuple(_shorten_text(each) for each in step.tools[:_MOST_SHOWN]),
    )


def _shorten_text(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:199]}…"


def _faults_of_steps(plan: Plan) -> Iterator[str]:
    for step in plan.steps:
        if not step.goal.strip():
            yield f"Step '{step.id}' has no GOAL."
        if step.command is not None and step.type is not PlanStepType.VALIDATE:
            yield f"Step '{step.id}' has a COMMAND, which only a step of type validate may have."


def _faults_of_paths(plan: Plan, form: PlanForm) -> Iterator[str]:
    for step in plan.steps:
        reasons = {
            each.path: refusal_of(each.path) or _bad_lines(each) or _secret(each.path, form)
            for each in step.files
        }
        reasons |= {each: _unusable(step, each, form) for each in step.artifacts}
        for path, why in reasons.items():
            if why is not None:
                yield f"Step '{step.id}': '{path:.100}' {why}."


def _bad_lines(use: FileUse) -> str | None:
    """Why no lines of a file are meant; None: some are."""
    if use.form is FileForm.LINES and (use.last or 0) < max(use.first or 0, 1):
        return f"has no lines {use.first} to {use.last}; the first line is 1"
    return None


def _secret(path: str, form: PlanForm) -> str | None:
    """Why a file is not used; None: it is no secret, or open."""
    if is_secret(path.split("/"), form.allow_secrets):
        return "is taken for a secret; whoever asks for the plan can open it (`allow_secrets`)"
    return None


def _unusable(step: PlanStep, artifact: str, form: PlanForm) -> str | None:
    """Why a step cannot give an artifact; None: it can, or it is a name rather than a file."""
    # Meant as a file, though it is perhaps none that could be made.
    is_file = is_path(artifact) or "\\" in artifact or _ENDING.search(artifact) is not None
    if not is_file:
        return None if artifact.isprintable() and len(artifact) <= _LONGEST_NAME else "is no name"
    refusal = refusal_of(artifact)
    if refusal is not None or not step.type.changes_files:
        return refusal
    parts = artifact.split("/")
    is_open = form.is_asked and not any(map(is_git_name, parts))
    if not is_open and configures(parts, form.allow_config):
        return (
            "configures tools that run outside of the plan; whoever asks for the plan can open it "
            "(`allow_config`)"
        )
    if (secret := _secret(artifact, form)) is not None:
        return secret
    if as_path(artifact) == artifact:
        return None
    return "cannot be written: a path has letters, digits and . _ - + @ ~ $ ( ) [ ] / only"


def _faults_of_tools(plan: Plan, tools: Collection[str]) -> Iterator[str]:
    for step in plan.steps:
        for each in step.tools:
            if each not in tools:
                known = f" Tools are: {', '.join(tools)}." if tools else " There are no tools."
                hint = did_you_mean(each, tools)
                wanted = f"wants the tool '{each:.100}', which is unknown"
                yield f"Step '{step.id}' {wanted}.{hint}{known}"


def refusal_of(path: str) -> str | None:
    """Why a path cannot be used in a workspace; None: it can."""
    parts = path.split("/")
    if path.startswith(("/", "~")) or "\\" in path or ":" in path[:3] or ".." in parts:
        return "leads out of the workspace; give a path relative to it"
    if len(path) > _LONGEST_NAME or any(
        len(each.encode("utf-8", "replace")) > 255 for each in parts
    ):
        return "is too long for the path of a file"
    if not path or not path.isprintable():
        return "is no path of a file"
    for folder in _LEFT_OUT:
        if folder in (part.casefold() for part in parts):
            return f"is in a folder that is left out: {', '.join(_LEFT_OUT)}"
    return None


def _faults_of_order(plan: Plan) -> Iterator[str]:
    circle = _circle(plan)
    if circle:
        yield f"The steps {' -> '.join(circle)} wait for each other."


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
            shared = _find_changed(earlier) & (_find_changed(step) | _read(step))
            shared |= _read(earlier) & _find_changed(step)
            if not shared or _is_ordered(steps, step.id, earlier.id):
                continue
            steps[at] = evolve(step, dependencies=(*step.dependencies, earlier.id))
            named = ", ".join(sorted(shared)[:_MOST_SHOWN])
            notes.append(f"Step '{step.id}' waits for '{earlier.id}': both use {named}.")
    return evolve(plan, steps=tuple(steps)), notes


def _with_made_files(plan: Plan, files: Collection[str] | None) -> tuple[Plan, list[str]]:
    """The plan in which a file that a step makes, and FILES names, stands in its ARTIFACTS.

    Planners take FILES for what a step is about.
    """
    notes: list[str] = []
    steps = []
    for step in plan.steps:
        moved = [
            each
            for each in step.files
            if files is not None and each.path not in files and _is_made_by(step, each, plan, files)
        ]
        if moved:
            artifacts = dict.fromkeys((*step.artifacts, *(each.path for each in moved)))
            kept = tuple(each for each in step.files if each not in moved)
            steps.append(evolve(step, files=kept, artifacts=tuple(artifacts)))
            paths = ", ".join(each.path for each in moved)
            notes.append(f"Step '{step.id}' makes {paths}: its FILES are taken for ARTIFACTS.")
        else:
            steps.append(step)
    return (evolve(plan, steps=tuple(steps)) if notes else plan), notes


def _is_made_by(step: PlanStep, use: FileUse, plan: Plan, files: Collection[str]) -> bool:
    """Whether a step that says nothing else of what it makes can only mean to make that file. A
    name like one in the workspace is a slip, and so is a file that others want to read before.
    """
    is_its_own = use.path in step.made_files or not step.made_files
    if step.type is not PlanStepType.GENERATE or use.form is not FileForm.WHOLE or not is_its_own:
        return False
    if as_path(use.path) != use.path:
        return False
    is_of_others = any(
        use.path in each.made_files
        or (use.path in _read(each) and step.id not in steps_before(plan.steps, each.id))
        for each in plan.steps
        if each is not step
    )
    return not is_of_others and not did_you_mean(use.path, files)  # the latter takes much longer


def _is_ordered(steps: Sequence[PlanStep], one: str, other: str) -> bool:
    return other in steps_before(steps, one) or one in steps_before(steps, other)


def _find_changed(step: PlanStep) -> set[str]:
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
