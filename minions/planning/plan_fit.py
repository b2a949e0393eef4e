"""A plan that served one task, fitted to another task that differs only in names, numbers, paths.

Whatever is not surely understood is a reason against it: a model then plans the task.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeAlias

from attrs import evolve, frozen

from minions.contracts.plans import FileForm, Plan, PlanStep, PlanStepType
from minions.data.json_values import JsonValue
from minions.planning.plan_checks import MOST_STEPS, refusal_of
from minions.planning.plan_json import tidy_id
from minions.recipe.kinds.plan_kind import KeptPlan, PlanFit

_BEFORE: Final = "\"'`([{<“‘"
_AFTER: Final = "\"'`)]}>”’,;:!?."
"""What stands around a word of a task: quotes, brackets and the end of a sentence."""
_QUOTES: Final = "\"'`“‘"
_PARTS: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_PARTS_OF_ANY: Final = re.compile(r"[^\W_]+")
_SAFE: Final = re.compile(r"[\w@/][\w./@:+-]{0,79}")
"""What may come into a plan: it may stand in a path or a command."""
_ENDING: Final = re.compile(r"(?<=[\w)])\.[A-Za-z][A-Za-z0-9]{0,5}\Z")
_MOST_CHANGES: Final = 20
"""Words that may differ: for each of them the whole plan is searched."""
_SHORTEST: Final = 3
"""Letters of a part that is replaced alone, and of which the plan must keep no trace."""

_Render: TypeAlias = Callable[[str], str]
"""A text with the new words."""


class _NoFitError(Exception):
    """The plan does not serve the task; the text says why."""


def fit_plan(kept: KeptPlan, inputs: Mapping[str, JsonValue]) -> PlanFit:
    """The plan for the task of `inputs`, or why it cannot serve it. Looks at the workspace.

    Args:
        inputs: Those of the recipe that would draft a plan.
    """
    try:
        _compare_circumstances(kept, inputs)
        changes = _find_changes(str(kept.inputs.get("task", "")), str(inputs["task"]), kept.plan)
        plan = _replace_words(kept.plan, changes)
        _compare_workspace(plan, Path(str(inputs["workspace"])))
    except _NoFitError as error:
        return PlanFit(plan=None, reason=str(error))
    told = ", ".join(f"{each.before} → {each.after}" for each in changes)
    return PlanFit(plan=plan, reason=told)


def _compare_circumstances(kept: KeptPlan, inputs: Mapping[str, JsonValue]) -> None:
    words = {"context": "another context", "command": "another command that tests"}
    for name, what in words.items():
        if (kept.inputs.get(name) or "") != (inputs.get(name) or ""):
            raise _NoFitError(f"it was made with {what}")
    tools = [each.get("tools") for each in (kept.inputs, inputs)]
    names = [sorted(each) if isinstance(each, Mapping) else [] for each in tools]
    if names[0] != names[1]:
        raise _NoFitError("it was made with other tools")


# --- what differs between the tasks ---------------------------------------------------------------


@frozen(kw_only=True)
class _Change:
    """A word of the task that is another one now."""

    before: str
    after: str
    parts: tuple[tuple[str, str], ...]
    """Parts of the word with what stands in their place, in lower case: `users`, `orders`; the
    words of a part of several, and of what takes its place, are separated by `_`."""


def _find_changes(before: str, now: str, plan: Plan) -> list[_Change]:
    """The words that differ, each once; all of them are inputs of the task."""
    old, new = before.split(), now.split()
    if len(old) != len(new):
        raise _NoFitError("its task has other words")
    found: dict[str, _Change] = {}
    stay: set[str] = set()
    for was, is_now in zip(old, new, strict=True):
        if was == is_now:
            stay.update(each.casefold() for each in _list_parts(was))
            continue
        change = _compare_words(was, is_now, plan)
        if found.setdefault(change.before, change) != change:
            raise _NoFitError(f"'{change.before}' would become two different words")
        if len(found) > _MOST_CHANGES:
            raise _NoFitError(f"its task differs in more than {_MOST_CHANGES} words")
    parts = dict(pair for each in found.values() for pair in each.parts)
    pairs = {pair for each in found.values() for pair in each.parts}
    if len(pairs) != len(parts) or len(set(parts.values())) != len(parts):
        raise _NoFitError("the words that differ are not told apart by it")
    for each in parts:
        if any(part in stay for part in each.split("_")):
            raise _NoFitError(f"'{each}' differs at one place of the task and stays at another")
    return list(found.values())


def _compare_words(was: str, is_now: str, plan: Plan) -> _Change:
    (left, old, right), (now_left, new, now_right) = _split_edges(was), _split_edges(is_now)
    if (left, right) != (now_left, now_right) or not _SAFE.fullmatch(new) or not old:
        raise _NoFitError(f"its task says '{was:.60}' where this one says '{is_now:.60}'")
    ending, now_ending = (
        "" if (match := _ENDING.search(each)) is None else match[0] for each in (old, new)
    )
    if ending != now_ending:
        raise _NoFitError(f"'{old:.60}' and '{new:.60}' are of different types")
    bare, now_bare = old.removesuffix(ending), new.removesuffix(ending)
    parts = _pair_parts(bare, now_bare)
    is_input = (
        (len(left) > 0 and left[-1] in _QUOTES)
        or _is_name(old)
        or any(_stands_in_path(part, plan) for part, _ in parts)
    )
    if not is_input:
        raise _NoFitError(
            f"its task says '{old:.60}' where this one says '{new:.60}', and that is no name, "
            "number or path"
        )
    if old.isdecimal() and int(old[:9]) <= MOST_STEPS:
        raise _NoFitError(f"'{old}' may be the number of its steps")
    return _Change(before=old, after=new, parts=parts)


def _split_edges(word: str) -> tuple[str, str, str]:
    """The quotes and brackets before a word, the word, and what follows it."""
    rest = word.lstrip(_BEFORE)
    bare = rest.rstrip(_AFTER)
    return word[: len(word) - len(rest)], bare, rest[len(bare) :]


def _list_parts(word: str) -> list[str]:
    return (_PARTS if word.isascii() else _PARTS_OF_ANY).findall(word)


def _pair_parts(old: str, new: str) -> tuple[tuple[str, str], ...]:
    """The parts in letters that differ, pair by pair where both words are built alike."""
    pattern = _PARTS if old.isascii() and new.isascii() else _PARTS_OF_ANY
    before, after = pattern.findall(old), pattern.findall(new)
    if pattern.sub("_", old) == pattern.sub("_", new):
        pairs = [
            (was.casefold(), now.casefold())
            for was, now in zip(before, after, strict=True)
            if was.casefold() != now.casefold() and len(was) >= _SHORTEST and not was.isdecimal()
        ]
        return tuple(dict.fromkeys(pairs))
    if not before or all(each.isdecimal() for each in before):
        return ()
    return (("_".join(before).casefold(), "_".join(after).casefold()),)


def _is_name(word: str) -> bool:
    """Whether it is a number, a path, an address or an identifier, rather than a plain word."""
    return (
        re.search(r"[0-9]{2}|[/._@]", word) is not None
        or re.search(r"[a-z][A-Z]", word) is not None
    )


def _stands_in_path(part: str, plan: Plan) -> bool:
    """Whether a file of the plan is called by it."""
    paths = [
        path
        for step in plan.steps
        for path in (*(each.path for each in step.files), *step.made_files)
    ]
    names = {
        each.casefold() for path in paths for each in _list_parts(path.removesuffix(_suffix(path)))
    }
    return all(each in names for each in part.split("_"))


def _suffix(path: str) -> str:
    return "" if (match := _ENDING.search(path)) is None else match[0]


# --- the plan with other words --------------------------------------------------------------------


def _replace_words(plan: Plan, changes: Sequence[_Change]) -> Plan:
    """The plan in which they are replaced, in whatever form an identifier has them."""
    if not changes:
        return plan
    forms: dict[str, tuple[str, str]] = {}
    """By what stands in the plan: a pattern for it, and what takes its place."""
    told = "\n".join(_list_texts(plan))
    for change in changes:
        own = dict(_list_forms(change))
        if not any(re.search(pattern, told) for pattern, _ in own.values()):
            raise _NoFitError(f"it does not say '{change.before}', and may depend on it")
        forms.update({before: form for before, form in own.items() if before not in forms})
    ordered = sorted(forms, key=len, reverse=True)
    replacing = re.compile("|".join(f"({forms[each][0]})" for each in ordered))
    _refuse_traces("\n".join(replacing.sub("\0", each) for each in _list_texts(plan)), changes)

    def render(text: str) -> str:
        return replacing.sub(lambda match: forms[ordered[(match.lastindex or 1) - 1]][1], text)

    ids = {each.id: tidy_id(render(each.id)) for each in plan.steps}
    steps = [_replace_in_step(each, ids, render) for each in plan.steps]
    return evolve(
        plan,
        id=tidy_id(render(plan.id)) or plan.id,
        name=render(plan.name),
        description=render(plan.description),
        steps=steps,
    )


def _replace_in_step(step: PlanStep, ids: Mapping[str, str], render: _Render) -> PlanStep:
    return evolve(
        step,
        id=ids[step.id],
        goal=render(step.goal),
        name=render(step.name),
        description=render(step.description),
        files=[evolve(each, path=render(each.path)) for each in step.files],
        dependencies=[ids.get(each, each) for each in step.dependencies],
        artifacts=[render(each) for each in step.artifacts],
        command=None if step.command is None else render(step.command),
    )


def _list_texts(plan: Plan) -> Iterator[str]:
    """Everything that the plan says."""
    yield from (plan.name, plan.description)
    for step in plan.steps:
        yield from (step.id, step.name, step.goal, step.description, step.command or "")
        yield from (each.path for each in step.files)
        yield from step.artifacts


def _list_forms(change: _Change) -> Iterator[tuple[str, tuple[str, str]]]:
    """By each form in which the plan may have a word: a pattern for it, and the new word so."""
    old = re.escape(change.before)
    yield change.before, (rf"(?<![\w.]){old}(?!\w|\.[0-9])", change.after)
    for before, after in change.parts:
        was, now = before.split("_"), after.split("_")
        for join in ("_", "-", " "):
            together = join.join(now) if len(was) > 1 else after
            yield (
                join.join(was),
                (
                    rf"(?<![^\W_]){re.escape(join.join(was))}(?![^\W_A-Z])",
                    together,
                ),
            )
        title, upper = "".join(map(str.title, was)), "_".join(was).upper()
        yield title, (rf"(?<![A-Z]){re.escape(title)}(?![^\W_A-Z])", "".join(map(str.title, now)))
        yield upper, (rf"(?<![^\W_]){re.escape(upper)}(?![^\W_])", "_".join(now).upper())


def _refuse_traces(rest: str, changes: Sequence[_Change]) -> None:
    """Refuse a plan that still says a word of the earlier task in some form, or said a new one.

    Args:
        rest: What the plan says, without what is replaced.
    """
    folded = rest.casefold()
    for change in changes:
        for before, after in change.parts:
            kept = after.split("_")
            for part in before.split("_"):
                stem = part.removesuffix("s") if len(part) > _SHORTEST else part
                if len(stem) >= _SHORTEST and part not in kept and stem in folded:
                    raise _NoFitError(f"it says '{part}' in a form in which it is not replaced")
        numbers = re.findall(r"[0-9]+", change.before) if not change.parts else []
        if any(re.search(rf"(?<![0-9]){each}(?![0-9])", rest) for each in numbers):
            raise _NoFitError(f"it says '{change.before}' in a form in which it is not replaced")
        back = evolve(change, before=change.after, parts=tuple((b, a) for a, b in change.parts))
        if any(re.search(pattern, rest) for _, (pattern, _) in _list_forms(back)):
            raise _NoFitError(f"it says '{change.after}' already, of something else")


# --- the workspace --------------------------------------------------------------------------------


def _compare_workspace(plan: Plan, workspace: Path) -> None:
    """Refuse a plan whose files are not as it needs them."""
    made = {path for step in plan.steps for path in step.made_files}
    for step in plan.steps:
        for each in step.files:
            if each.form is FileForm.LINES:
                raise _NoFitError(f"it reads lines of '{each.path}', which may be others now")
            if each.path not in made and not _exists(workspace, each.path):
                raise _NoFitError(f"it reads '{each.path}', which is not in the workspace")
        for path in step.made_files:
            if step.type is PlanStepType.GENERATE and _exists(workspace, path):
                raise _NoFitError(f"it creates '{path}', which exists already")
            if step.type is PlanStepType.MODIFY and not _exists(workspace, path):
                others = {p for s in plan.steps if s is not step for p in s.made_files}
                if path not in others:
                    raise _NoFitError(f"it changes '{path}', which is not in the workspace")


def _exists(workspace: Path, path: str) -> bool:
    if (refusal := refusal_of(path)) is not None:
        raise _NoFitError(f"'{path:.100}' {refusal}")
    return (workspace / path).exists()
