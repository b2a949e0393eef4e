"""The one reader of a planner's answer: JSON, the text grammar, or neither."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from enum import StrEnum
from typing import Final

from attrs import evolve, field, frozen
from yaml.reader import Reader

from minions.contracts.plans import FileUse, Plan, PlanStep, PlanStepType, is_path
from minions.data.json_values import JsonValue, find_json_value
from minions.data.texts import HIDDEN
from minions.recipe.checks.step_rules import RESERVED
from minions.recipe.expressions.syntax import WORDS

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


# --- the text grammar of plans, for models without structured output -----------------------------


_KEYS: Final = (
    "PLAN",
    "DESCRIPTION",
    "STEP",
    "NAME",
    "TYPE",
    "GOAL",
    "FILES",
    "DEPENDENCIES",
    "ARTIFACTS",
    "TOOLS",
    "COMMAND",
    "END_PLAN",
)
_DECORATION: Final = re.compile(r"(?:#{1,6}\s+|[-*+]\s+|\d{1,4}[.)]\s+|>\s+)")
_KEY: Final = re.compile(r"(\*\*|__)?([A-Za-z_ ]{4,13}?)(\*\*|__)?\s*:\s*(\*\*|__)?")
_NUMBERED: Final = re.compile(
    r"(\*\*|__)?(step)[ _]?(?:#|no\.? )?(\d{1,3})(\*\*|__)?\s*(?::|[.)]\s|[-–—]\s)\s*(\*\*|__)?",
    re.IGNORECASE,
)
"""`STEP 1:`, `Step #2 -`: the number is how others may name it."""
_REFERENCE: Final = re.compile(r"(?:step[ _]?)?(?:#|no\.? )?(\d{1,3})\Z", re.IGNORECASE)
_NOTHING: Final = frozenset({"", "none", "n/a", "na", "nil", "null", "-", "–", "—", "nothing"})
_SEPARATORS: Final = re.compile(r"[,;\n]")
_RESERVED: Final = frozenset({*RESERVED, *WORDS, "feedback"})
"""Names that templates read as something else."""
_TYPES: Final = {each.value: each for each in PlanStepType}
_QUOTES: Final = "\"'`"


@frozen
class _Entry:
    """A key with its value."""

    key: str
    value: str
    word: str = ""
    """The key as it was written."""
    is_bold: bool = False
    number: str = ""
    """That of a step, as it was written."""

    @property
    def is_marked(self) -> bool:
        """Whether it is a key wherever it stands."""
        return self.is_bold or self.word == self.word.upper()


def read_plan_text(text: str, name: str = "plan") -> Plan | None:
    """The plan in a model's text; None: there is none, or it has no steps.

    Args:
        name: The plan's name where the text gives none.
    """
    plan, description = "", ""
    steps: list[PlanStep] = []
    numbers: dict[str, str] = {}
    notes: list[str | None] = []
    has_keys = False
    for entry in _entries(text):
        if entry.key == "PLAN":
            plan = plan or entry.value
        elif entry.key == "STEP":
            steps.append(_begin_step(entry.value, len(steps)))
            if entry.number:
                numbers.setdefault(str(int(entry.number)), steps[-1].id)
            has_keys = has_keys or entry.is_marked
        elif steps:
            steps[-1] = _with(steps[-1], entry)
            if entry.key == "TYPE":
                notes.append(type_note(steps[-1].id, entry.value))
            has_keys = True
        elif entry.key == "DESCRIPTION":
            description = entry.value
    if not steps or not has_keys:  # prose counts its steps, too
        return None
    name = plan or name
    return Plan(
        id=tidy_id(name) or "plan",
        name=name,
        description=description,
        steps=tuple(
            evolve(each, goal=each.goal or each.description or each.name or each.id)
            for each in with_meant_ids(steps, numbers)
        ),
        notes=filter(None, notes),
    )


def with_meant_ids(steps: Sequence[PlanStep], numbers: Mapping[str, str]) -> Iterator[PlanStep]:
    """The steps with the ids of those that a planner names as their dependencies: by id, by a name,
    in any case, or by its number.

    Args:
        numbers: The ids of numbered steps, by number.
    """
    ids = {each.id for each in steps}
    folded: dict[str, str] = {}
    for each in steps:
        folded.setdefault(each.id.casefold(), each.id)
    for each in steps:
        found: list[str] = []
        for text in each.dependencies:
            bare = tidy_id(text)
            number = _REFERENCE.match(text.strip(_QUOTES + "*[]() "))
            by_number = numbers.get(str(int(number[1]))) if number is not None else None
            found.append(bare if bare in ids else folded.get(bare.casefold()) or by_number or bare)
        yield evolve(each, dependencies=tuple(dict.fromkeys(found)))


def _entries(text: str) -> Iterator[_Entry]:
    """The keys and values, from PLAN (or the first STEP) to END_PLAN."""
    lines = [(line, _key_of(line)) for line in text.splitlines() if not _is_fence(line)]
    marked = {found.key for _, found in lines if found is not None and found.is_marked}
    key: _Entry | None = None
    value: list[str] = []
    for line, found in lines:
        if found is None or not _counts(found, marked):
            value.append(line)
            continue
        if key is not None:
            yield evolve(key, value=_join(value))
        if found.key == "END_PLAN":
            return
        if key is None and found.key not in ("PLAN", "STEP"):
            continue
        key, value = found, [found.value]
    if key is not None:
        yield evolve(key, value=_join(value))


def _counts(entry: _Entry, marked: Set[str]) -> bool:
    """Whether a word with a colon is a key.

    Args:
        marked: The keys that the text writes in capitals or bold: it writes such keys so.
    """
    if entry.is_marked:
        return True
    if entry.key in marked:
        return False
    # Each plan has these; other words may be those of a goal.
    return entry.key in ("PLAN", "STEP", "TYPE", "GOAL") or marked <= {"PLAN", "STEP", "END_PLAN"}


def _is_fence(line: str) -> bool:
    return line.strip().startswith(("```", "~~~"))


def _key_of(line: str) -> _Entry | None:
    """The key at the start of a line, with the rest of the line."""
    bare = line.strip()
    if (mark := _DECORATION.match(bare)) is not None:
        bare = bare[mark.end() :]
    if bare.strip("*_# `").upper() in ("END_PLAN", "END PLAN"):
        return _Entry("END_PLAN", "", word="END_PLAN")
    numbered = _NUMBERED.match(bare)
    found = numbered or _KEY.match(bare)
    if found is None:
        return None
    word = found[2].strip().replace(" ", "_")
    if word.upper() not in _KEYS:
        return None
    opened, ends = found[1], found.groups()[-2:]
    value = bare[found.end() :]
    if opened is not None and ends == (None, None):
        value = value.removesuffix(opened)  # the whole line is bold
    number = numbered[3] if numbered is not None else ""
    return _Entry(word.upper(), value.strip(), word, is_bold=opened is not None, number=number)


def _join(lines: Sequence[str]) -> str:
    """The lines of a value; those that hold dots only stand for something left out."""
    kept = [line.strip() for line in lines if line.strip().strip(".…") or not line.strip()]
    return "\n".join(kept).strip()


def _begin_step(value: str, number: int) -> PlanStep:
    name = value.strip(_QUOTES + "*[]() ")
    step_id = tidy_id(name) or f"step_{number + 1}"
    return PlanStep(id=step_id, name=name if name != step_id else "", goal="")


def _with(step: PlanStep, entry: _Entry) -> PlanStep:
    """The step with one more key; the first of a kind counts, but for NAME."""
    value = entry.value
    match entry.key:
        case "NAME":
            return evolve(step, name=value)
        case "TYPE":
            return evolve(step, type=step_type(value))
        case "GOAL":
            return evolve(step, goal=step.goal or value)
        case "DESCRIPTION":
            return evolve(step, description=step.description or value)
        case "FILES":
            files = tuple(FileUse.of(each) for each in listed(value))
            return evolve(step, files=step.files or files)
        case "DEPENDENCIES":
            return evolve(step, dependencies=step.dependencies or listed(value))
        case "ARTIFACTS":
            return evolve(step, artifacts=step.artifacts or plain_artifacts(listed(value)))
        case "TOOLS":
            return evolve(step, tools=step.tools or listed(value))
        case "COMMAND":
            command = value.strip("` \n")
            return evolve(step, command=None if command.casefold() in _NOTHING else command)
        case _:
            return step


def step_type(value: str) -> PlanStepType:
    """The type that a text names; anything unknown is `analyze`."""
    word = value.strip(_QUOTES + "*[]() .").casefold()
    return _TYPES.get(word, PlanStepType.ANALYZE)


def type_note(step_id: str, value: str) -> str | None:
    """What a person is told of a type that is none; None: it is one, or none is given."""
    word = value.strip(_QUOTES + "*[]() .\n")
    if not word or word.casefold() in _TYPES:
        return None
    return f"Step '{step_id}' has the unknown type '{word:.40}' and is taken for analyze."


def listed(value: str) -> tuple[str, ...]:
    """The items of a list: separated by commas or lines, in brackets or not; `none` is no item."""
    items: list[str] = []
    for piece in _SEPARATORS.split(value.strip().removeprefix("[").removesuffix("]")):
        bare = piece.strip()
        if (mark := _DECORATION.match(bare)) is not None:
            bare = bare[mark.end() :]
        bare = bare.strip(_QUOTES + "[]* ")
        if bare.casefold() not in _NOTHING and bare not in items:
            items.append(bare)
    return tuple(items)


def plain_artifacts(artifacts: Iterable[str]) -> tuple[str, ...]:
    """The artifacts, each once; of a file its plain path, without what a list of FILES may say."""
    bare = (each.strip(_QUOTES) for each in artifacts)
    uses = ((each, FileUse.of(each).path) for each in bare)
    return tuple(dict.fromkeys(path if is_path(path) else each for each, path in uses))


def tidy_id(text: str) -> str:
    """The text as the id of a step: letters, digits and `_`, at most 60 characters."""
    bare = re.sub(r"[^A-Za-z0-9]+", "_", text.strip(_QUOTES + "*[]() ")).strip("_")[:60]
    return f"step_{bare}" if bare[:1].isdigit() or bare in _RESERVED else bare


# --- how a plan is made a recipe -----------------------------------------------------------------


class Sharing(StrEnum):
    """How a step sees the files that its dependencies made."""

    NAMES = "names"
    """Their paths only: fewest tokens."""
    OUTLINE = "outline"
    """Their signatures: a step that calls the code knows how."""
    WHOLE = "whole"
    """Their whole text."""


@frozen(kw_only=True)
class PlanForm:
    """How a plan is made a recipe."""

    workspace: str = "."
    """The folder that the recipe works in, as the default of its input `workspace`."""
    context: str = ""
    """What every step is told besides its own; the system context of the seed's planner."""
    share: Sharing = Sharing.OUTLINE
    max_file_characters: int = 24_000
    """Characters of files that one prompt shows."""
    max_repairs: int = 2
    """How often a failed validation goes back to a repair."""
    max_parallel: int = 4
    is_trusted: bool = False
    """Whether nobody but the user writes into the workspace: what is read there is then trusted."""
    allow_config: tuple[str, ...] = ()
    """Patterns of files that steps may write although they configure tools outside."""
    allow_secrets: tuple[str, ...] = ()
    """Patterns of files that steps may use although they are taken for secrets."""
    is_asked: bool = False
    """Whether a person approves the plan: then what it names is opened, too, and shown to them."""
    results: Mapping[str, JsonValue] = field(factory=dict)
    """Results of steps of an earlier plan that steps of this one depend on, by their ids."""

    def result_of(self, step_id: str) -> JsonValue:
        """What that step of an earlier plan gave; empty: it is not known."""
        return self.results.get(step_id, "")
