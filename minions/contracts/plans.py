"""A plan: the steps by which a task becomes a recipe, and what each of them needs and makes."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from enum import StrEnum
from typing import Final

from attrs import field, frozen

from minions.data.field_repr import FieldsRepr
from minions.data.json_values import JsonValue


class PlanStepType(StrEnum):
    """What a step of a plan does; decides its instructions, its tools and when it is complete."""

    ANALYZE = "analyze"
    """Examines code, requirements or the structure of a project; changes nothing."""
    GENERATE = "generate"
    """Creates files: all that it declares."""
    MODIFY = "modify"
    """Changes files that are there."""
    VALIDATE = "validate"
    """Tests or verifies, and gives a verdict."""
    CLEANUP = "cleanup"
    """Simplifies or documents what was made; may find nothing to do."""

    @property
    def changes_files(self) -> bool:
        """Whether its answer is written to files."""
        return self in (PlanStepType.GENERATE, PlanStepType.MODIFY, PlanStepType.CLEANUP)


class FileForm(StrEnum):
    """How much of a file a prompt shows."""

    WHOLE = "whole"
    OUTLINE = "outline"
    """Signatures and declarations only."""
    LINES = "lines"


_OUTLINES: Final = (":outline", "(outline)")
_LINES: Final = re.compile(
    r"(?::(\d{1,9})-(\d{1,9})|\((?:lines? ?)?(\d{1,9}) ?- ?(\d{1,9})\))$", re.IGNORECASE
)


@frozen(kw_only=True)
class FileUse(FieldsRepr):
    """A file that a step reads: `models.py`, `models.py:outline` or `models.py:10-60`."""

    path: str
    """Relative to the workspace, with `/`."""
    form: FileForm = FileForm.WHOLE
    first: int | None = None
    """First line that is shown, from 1; None unless the form is `lines`."""
    last: int | None = None
    """Last line that is shown."""

    @classmethod
    def of(cls, text: str) -> FileUse:
        """The file that such a text names; `(outline)` and `(lines 10-60)` are understood, too."""
        text = text.strip()
        for ending in _OUTLINES:
            if text.casefold().endswith(ending):
                return cls(path=plain_path(text[: -len(ending)]), form=FileForm.OUTLINE)
        if (found := _LINES.search(text)) is not None:
            first, last = int(found[1] or found[3]), int(found[2] or found[4])
            path = plain_path(text[: found.start()])
            return cls(path=path, form=FileForm.LINES, first=first, last=last)
        return cls(path=plain_path(text))

    def __str__(self) -> str:
        """The text that `of` reads."""
        if self.form is FileForm.LINES:
            return f"{self.path}:{self.first}-{self.last}"
        return f"{self.path}:outline" if self.form is FileForm.OUTLINE else self.path


def plain_path(path: str) -> str:
    """The path without what says nothing: `./a//b/./c.py` is `a/b/c.py`."""
    path = path.strip()
    names = [each for each in path.split("/") if each not in ("", ".")]
    plain = "/".join(names)
    if path.startswith("/") or not names:
        return path
    return f"{plain}/" if path.endswith("/") else plain


def _as_uses(files: Iterable[FileUse | str]) -> tuple[FileUse, ...]:
    return tuple(each if isinstance(each, FileUse) else FileUse.of(each) for each in files)


def _as_texts(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(texts)


@frozen(kw_only=True)
class PlanStep(FieldsRepr):
    """One step of a plan."""

    id: str
    """Letters, digits and `_`; unique in the plan."""
    type: PlanStepType = field(default=PlanStepType.ANALYZE, converter=PlanStepType)
    goal: str
    name: str = ""
    """The name shown to people; empty: the id is shown."""
    description: str = ""
    files: tuple[FileUse, ...] = field(default=(), converter=_as_uses)
    """Files whose content the step's prompt shows; a text such as `a.py:outline` is understood."""
    dependencies: tuple[str, ...] = field(default=(), converter=_as_texts)
    """Ids of the steps whose artifacts it gets."""
    artifacts: tuple[str, ...] = field(default=(), converter=_as_texts)
    """What it has to make: paths of files, or names."""
    tools: tuple[str, ...] = field(default=(), converter=_as_texts)
    """Tools that its model is offered, beside what the recipe reads and writes for it."""
    command: str | None = None
    """A shell command by which a `validate` step tests; None: the model judges."""

    @property
    def made_files(self) -> tuple[str, ...]:
        """Paths among the artifacts."""
        return tuple(each for each in self.artifacts if is_path(each))

    def to_json(self) -> dict[str, JsonValue]:
        """The step as the structured output of a planner has it, without what is empty."""
        shown: dict[str, JsonValue] = {"id": self.id, "type": self.type.value, "goal": self.goal}
        others: dict[str, JsonValue] = {
            "name": self.name,
            "description": self.description,
            "files": [str(each) for each in self.files],
            "dependencies": list(self.dependencies),
            "artifacts": list(self.artifacts),
            "tools": list(self.tools),
            "command": self.command,
        }
        return {**shown, **{name: value for name, value in others.items() if value}}

    def to_lines(self) -> list[str]:
        """The keys and values in the text grammar, without STEP; further lines are indented."""
        return [
            *_line("NAME", self.name if self.name != self.id else ""),
            f"TYPE: {self.type.value}",
            *_line("DEPENDENCIES", ", ".join(self.dependencies)),
            *_line("GOAL", self.goal),
            *_line("DESCRIPTION", self.description),
            *_line("FILES", ", ".join(str(each) for each in self.files)),
            *_line("ARTIFACTS", ", ".join(self.artifacts)),
            *_line("TOOLS", ", ".join(self.tools)),
            *_line("COMMAND", self.command or ""),
        ]

    @classmethod
    def from_json(cls, told: Mapping[str, JsonValue]) -> PlanStep:
        """The step that `to_json` wrote.

        Raises:
            KeyError, ValueError: It is something else.
        """
        command = told.get("command")
        return cls(
            id=str(told["id"]),
            type=PlanStepType(str(told["type"])),
            goal=str(told["goal"]),
            name=str(told.get("name", "")),
            description=str(told.get("description", "")),
            files=tuple(FileUse.of(each) for each in _texts(told, "files")),
            dependencies=_texts(told, "dependencies"),
            artifacts=_texts(told, "artifacts"),
            tools=_texts(told, "tools"),
            command=None if command is None else str(command),
        )


def json_object(value: JsonValue) -> Mapping[str, JsonValue]:
    """The value, which is a JSON object.

    Raises:
        ValueError: It is none.
    """
    if not isinstance(value, Mapping):
        raise ValueError(f"{value!r:.80} is no object")
    return value


def _texts(told: Mapping[str, JsonValue], key: str) -> tuple[str, ...]:
    value = told.get(key, ())
    if not isinstance(value, list | tuple):
        raise ValueError(f"`{key}` is no list")
    return tuple(map(str, value))


def _as_steps(steps: Iterable[PlanStep]) -> tuple[PlanStep, ...]:
    return tuple(steps)


@frozen(kw_only=True)
class Plan(FieldsRepr):
    """A task, decomposed into steps. As text it is the text grammar."""

    id: str
    name: str = ""
    description: str = ""
    steps: tuple[PlanStep, ...] = field(converter=_as_steps)
    notes: tuple[str, ...] = field(default=(), eq=False, converter=_as_texts)
    """What whoever read it had to assume, for people; no part of the plan."""

    def __str__(self) -> str:
        """The plan as `to_text` gives it."""
        return self.to_text()

    def step(self, step_id: str) -> PlanStep | None:
        """The step with that id; None: there is none."""
        return next((each for each in self.steps if each.id == step_id), None)

    def to_json(self) -> dict[str, JsonValue]:
        """The plan as the structured output of a planner has it."""
        shown: dict[str, JsonValue] = {"id": self.id, "name": self.name}
        if self.description:
            shown["description"] = self.description
        return {**shown, "steps": [each.to_json() for each in self.steps]}

    @classmethod
    def from_json(cls, told: Mapping[str, JsonValue]) -> Plan:
        """The plan that `to_json` wrote.

        Raises:
            KeyError, ValueError: It is something else.
        """
        steps = told["steps"]
        if not isinstance(steps, list | tuple):
            raise ValueError("`steps` is no list")
        return cls(
            id=str(told["id"]),
            name=str(told.get("name", "")),
            description=str(told.get("description", "")),
            steps=tuple(PlanStep.from_json(json_object(each)) for each in steps),
        )

    def to_text(self) -> str:
        """The plan in the text grammar: PLAN, STEP and the keys of each step."""
        lines = [f"PLAN: {self.name or self.id}"]
        lines += _line("DESCRIPTION", self.description)
        for step in self.steps:
            lines += ["", f"STEP: {step.id}", *step.to_lines()]
        return "\n".join([*lines, "", "END_PLAN", ""])


def _line(key: str, value: str) -> list[str]:
    if not value:
        return []
    first, *rest = value.splitlines()
    return [f"{key}: {first}", *(f"  {each}" for each in rest)]


def steps_before(steps: Collection[PlanStep], step_id: str) -> frozenset[str]:
    """Ids of all steps that the step depends on, directly or not."""
    by_id = {each.id: each for each in steps}
    found: set[str] = set()
    waiting = [step_id]
    while waiting:
        step = by_id.get(waiting.pop())
        new = [each for each in step.dependencies if each not in found] if step else []
        found.update(new)
        waiting += new
    return frozenset(found)


# --- names of artifacts that steps declare -------------------------------------------------------


_NAMED: Final = re.compile(r"[^\s/]*\.\w{1,10}|\.\w*(?:ignore|config|attributes)")
FILES_BY_NAME: Final = frozenset(
    {
        *("Makefile", "makefile", "GNUmakefile", "Dockerfile", "Containerfile", "Jenkinsfile"),
        *("Procfile", "Vagrantfile", "Gemfile", "Rakefile", "Pipfile", "Brewfile", "Caddyfile"),
        *("Justfile", "justfile", "LICENSE", "LICENCE", "COPYING", "CODEOWNERS"),
    }
)
"""Names of files without an extension; another is a file only within a folder."""


def is_path(artifact: str) -> bool:
    """Whether an artifact's name is that of a file: it has a folder or an extension, or is one of
    the names that files have without.
    """
    return "/" in artifact or artifact in FILES_BY_NAME or _NAMED.fullmatch(artifact) is not None
