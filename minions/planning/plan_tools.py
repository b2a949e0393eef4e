"""The toolset `plans`: a planner's answer becomes a checked plan, and the plan a recipe."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Final

from attrs import evolve, field, frozen
from msgspec.structs import replace

from minions.contracts.plans import Plan, PlanStep, PlanStepType, json_object
from minions.contracts.protected_files import is_secret
from minions.contracts.tools import Effect, Reads, Tool, ToolScope, Toolset, ToolSpec
from minions.data.json_values import JsonValue
from minions.data.schema import JsonSchema
from minions.planning.plan_checks import (
    MOST_NAMED,
    MOST_STEPS,
    READING_TOOLS,
    CheckedPlan,
    check_plan,
    refusal_of,
    without_completed,
)
from minions.planning.plan_json import PlanForm, Sharing, read_plan, readable
from minions.planning.plan_recipe import recipe_document
from minions.recipe.catalog import Catalog
from minions.recipe.reading.load import check_recipe_text
from minions.recipe.text.yaml_reader import yaml_text

_MOST_NOTES: Final = 20
_MOST_BESIDE: Final = 500
_TEXT: Final[JsonValue] = {"type": "string"}
_PARAMETERS: Final[Mapping[str, JsonValue]] = {
    "type": "object",
    "properties": {
        "answer": {"description": "A plan, as text or structured."},
        "task": {"type": "string", "description": "The requirements."},
        "files": {
            "anyOf": [{"type": "array", "items": _TEXT}, {"type": "null"}],
            "description": "All files of the workspace; null: they are looked up.",
        },
        "workspace": {"type": "string", "description": "The recipe's folder."},
        "context": {"type": "string", "description": "What every step is told."},
        "command": {"type": ["string", "null"], "description": "Tests the work."},
        "share": {"enum": [each.value for each in Sharing]},
        "repairs": {"type": "integer", "minimum": 0, "maximum": 20},
        "trusted": {"type": "boolean", "description": "Whether the workspace's text is trusted."},
        "completed": {
            "type": "array",
            "items": {"type": "object"},
            "description": "Steps that are completed: id, type, artifacts.",
        },
        "done": {"type": "object", "description": "Results of done steps, by id."},
        "tools": {"type": "object", "description": "Tools that steps may use, by name."},
        "allow_config": {"type": "array", "items": _TEXT, "description": "Files that are opened."},
        "allow_secrets": {
            "type": "array",
            "items": _TEXT,
            "description": "Secrets that are opened.",
        },
        "asked": {"type": "boolean", "description": "Whether a person approves the plan."},
    },
    "required": ["answer", "task"],
    "additionalProperties": False,
}


_TEXTS: Final[JsonSchema] = {"type": "array", "items": {"type": "string"}}
_RETURNS: Final[JsonSchema] = {
    "type": "object",
    "properties": {
        "ok": {"type": "boolean"},
        "plan": {"type": "object"},
        "text": {"type": "string"},
        "recipe": {"type": "string"},
        "faults": _TEXTS,
        "notes": _TEXTS,
        "is_fallback": {"type": "boolean"},
    },
    "required": ["ok", "plan", "text", "recipe", "faults", "notes", "is_fallback"],
    "additionalProperties": False,
}


def plans_toolset(catalog: Callable[[], Catalog]) -> Toolset:
    """The tool `check` (pure).

    Args:
        catalog: The toolsets that the recipes of plans may name.
    """

    def open_tools(_options: Mapping[str, JsonValue], prefix: str) -> Sequence[Tool]:
        return [_CheckPlan(catalog, name=f"{prefix}__check" if prefix else "check")]

    return Toolset(
        name="plans",
        description="Check a plan and make a recipe of it.",
        options={"type": "object", "properties": {}, "additionalProperties": False},
        specs=(_CheckPlan(catalog).spec,),
        open=open_tools,
    )


@frozen
class _CheckPlan(Tool):
    """Reads, checks and compiles a plan."""

    catalog: Callable[[], Catalog]
    name: str = field(default="check", kw_only=True)

    @property
    def spec(self) -> ToolSpec:
        return ToolSpec(
            name=self.name,
            description="Check a plan and give its recipe, or its faults.",
            parameters=_PARAMETERS,
            returns=_RETURNS,
            effect=Effect.PURE,
            reads=Reads.TRUSTED,
            is_offered=False,
        )

    async def invoke(self, arguments: Mapping[str, JsonValue], scope: ToolScope) -> object:
        """Returns `{ok, plan, text, recipe, faults, notes, is_fallback}`."""
        task = str(arguments["task"])
        plan = read_plan(arguments["answer"], _name_of(task))
        is_fallback = plan is None
        plan = plan if plan is not None else _fallback(readable(task))
        form = _form(arguments)
        plan = _with_command(plan, arguments.get("command"))
        left = without_completed(plan, _complete(arguments), form.share)
        plan = left.plan
        checked = check_plan(
            plan,
            files=await _files(plan, arguments),
            done=form.results,
            tools=[*_tools(arguments), *READING_TOOLS],
            form=form,
        )
        text, faults = "", [*left.faults, *checked.faults]
        if not faults:
            text = _recipe_text(checked, form)
            specs = {name: ToolSpec(name=name) for name in _tools(arguments)}
            faults = _faults_of_recipe(text, replace(self.catalog(), tools=specs))
        return {
            "ok": not faults,
            "plan": checked.plan.to_json(),
            "text": checked.plan.to_text(),
            "recipe": text if not faults else "",
            "faults": faults,
            "notes": [
                *plan.notes[:_MOST_NOTES],
                *left.notes,
                *checked.notes,
                *([_FALLBACK_NOTE] if is_fallback else []),
            ],
            "is_fallback": is_fallback,
        }


_LONGEST_RECIPE: Final = 500_000
"""Characters of a recipe, so that the tool's result can be recorded."""
_FALLBACK_NOTE: Final = "The model gave no plan: the whole task is one step."


def _recipe_text(checked: CheckedPlan, form: PlanForm) -> str:
    document = recipe_document(checked.plan, form)
    head = f"# Made of the plan below.\n{_comment(checked.plan.to_text())}"
    return head + yaml_text(document)


def _faults_of_recipe(text: str, catalog: Catalog) -> list[str]:
    """What keeps the recipe of a plan from being run."""
    if len(text) > _LONGEST_RECIPE:
        size = f"{len(text)} characters; at most {_LONGEST_RECIPE}"
        return [f"The plan's recipe has {size}. Name fewer files and dependencies."]
    loaded = check_recipe_text(text, "plan.yaml", catalog)
    return [f"{fault.where}: {fault.message}" for fault in loaded.errors]


def _comment(text: str) -> str:
    return "".join(f"# {readable(line)}".rstrip() + "\n" for line in text.strip().splitlines())


async def _files(plan: Plan, arguments: Mapping[str, JsonValue]) -> Collection[str]:
    """The files of the workspace; where not all are listed, those of the plan that exist, and
    files beside those that do not, whose names may be meant.
    """
    files = arguments.get("files")
    workspace = Path(str(arguments.get("workspace", ".")))
    named = {each.path for step in plan.steps[:MOST_STEPS] for each in step.files[:MOST_NAMED]}
    if isinstance(files, list | tuple):
        # No list of files tells of secrets, also where one is opened.
        secret = sorted(each for each in named if is_secret(each.split("/")))
        found = await asyncio.to_thread(_existing, workspace, secret) if secret else []
        return [*(str(each) for each in files), *(each for each in found if each in secret)]
    return await asyncio.to_thread(_existing, workspace, sorted(named))


def _existing(workspace: Path, paths: Sequence[str]) -> list[str]:
    found: list[str] = []
    for path in paths:
        if refusal_of(path) is None and (workspace / path).is_file():
            found.append(path)
        elif refusal_of(path) is None:
            found += _beside(workspace, path.rpartition("/")[0])
    return found


def _beside(workspace: Path, folder: str) -> Iterator[str]:
    """Files of a folder, if it has no more than a few hundred."""
    with contextlib.suppress(OSError):
        names = [each.name for each in islice((workspace / folder).iterdir(), _MOST_BESIDE)]
        yield from (f"{folder}/{name}".lstrip("/") for name in names)


def _complete(arguments: Mapping[str, JsonValue]) -> list[PlanStep]:
    told = arguments.get("completed")
    return [
        PlanStep.from_json(json_object(each))
        for each in (told if isinstance(told, list | tuple) else ())
    ]


def _tools(arguments: Mapping[str, JsonValue]) -> Mapping[str, JsonValue]:
    tools = arguments.get("tools")
    return tools if isinstance(tools, Mapping) else {}


def _form(arguments: Mapping[str, JsonValue]) -> PlanForm:
    done, repairs = arguments.get("done"), arguments.get("repairs", 2)
    return PlanForm(
        workspace=str(arguments.get("workspace", ".")),
        context=str(arguments.get("context", "")),
        share=Sharing(str(arguments.get("share", Sharing.OUTLINE.value))),
        max_repairs=repairs if isinstance(repairs, int) else 2,
        is_trusted=arguments.get("trusted") is True,
        results=done if isinstance(done, Mapping) else {},
        allow_config=_texts(arguments, "allow_config"),
        allow_secrets=_texts(arguments, "allow_secrets"),
        is_asked=arguments.get("asked") is True,
    )


def _texts(arguments: Mapping[str, JsonValue], name: str) -> tuple[str, ...]:
    value = arguments.get(name)
    return tuple(map(str, value)) if isinstance(value, list | tuple) else ()


def _name_of(task: str) -> str:
    """The first words of the task."""
    return " ".join(task.split()[:8])[:60]


def _fallback(task: str) -> Plan:
    """A plan of one step, whose goal is the task."""
    step = PlanStep(id="work", type=PlanStepType.GENERATE, goal=task)
    return Plan(id="work", name=_name_of(task), steps=(step,))


def _with_command(plan: Plan, command: JsonValue) -> Plan:
    """The plan in which validations without a command of their own run this one."""
    if not isinstance(command, str) or not command.strip():
        return plan
    return evolve(
        plan,
        steps=tuple(
            evolve(each, command=each.command or command)
            if each.type is PlanStepType.VALIDATE
            else each
            for each in plan.steps
        ),
    )
