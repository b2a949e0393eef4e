"""`plan:` — a task becomes a plan, the plan a recipe, and the recipe is run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Final

from attrs import frozen
from msgspec import Struct

from minions.contracts.tools import Effect, Reads, ToolSpec
from minions.data.json_values import JsonValue
from minions.data.schema import JsonSchema
from minions.recipe.drafts import GoalParts, StepDraft
from minions.recipe.kinds.kind import CommonKeys, KindReader, Look, StepKind
from minions.recipe.model import AgentRecipe, PersonQuestion, StepSpec
from minions.recipe.model_config import ModelConfig
from minions.recipe.text.key_types import (
    MODEL_KEY,
    TEXTS,
    Key,
    Table,
    choice_key,
    count_key,
    flag_key,
    text_key,
)
from minions.recipe.text.sections import Section

if TYPE_CHECKING:
    from minions.contracts.plans import Plan

QUESTION: Final = (
    "Carry out this plan? Answer yes, no, what to do differently, or the plan as you edited it."
)
"""The last line of the question whether a plan is carried out; its answer is any text."""


@frozen(kw_only=True)
class PlanSpec(StepSpec):
    """A task that is planned, approved and carried out."""

    kind: ClassVar[str] = "plan"
    asks_model: ClassVar[bool] = True
    calls_tools: ClassVar[bool] = True
    asks_person: ClassVar[bool] = True
    makes_recipe: ClassVar[bool] = True

    plan: str
    """The task; a template."""
    workspace: str = "."
    """The folder to work in; a template."""
    context: str = ""
    """What every step of the plan is told besides its own; a template."""
    command: str | None = None
    """The shell command that tests the work; a template. None: the planner chooses."""
    given: str | None = None
    """A plan that is carried out instead of one that a model writes; a template."""
    form: str = "structured"
    """How the model writes the plan: `structured` or `text`."""
    share: str = "outline"
    """How steps see the files that earlier ones made: `names`, `outline` or `whole`."""
    needs_approval: bool = True
    """Whether a person approves each plan before it is carried out."""
    max_replans: int = 1
    """How often what is left is planned again after a failure."""
    max_repairs: int = 2
    """How often a failed validation is repaired."""
    opens_named: bool = True
    """Whether consent to a plan lets it write what it names although it configures tools."""
    rolls_back: bool = False
    """Whether files are taken back to what they were when the plan fails."""
    is_trusted: bool = False
    """Whether the text of the workspace is trusted."""
    tools: tuple[str, ...] = ()
    """Registered tools that steps of the plan may be offered."""
    allow_config: tuple[str, ...] = ()
    """Patterns of files that steps may write although they configure tools outside."""
    allow_secrets: tuple[str, ...] = ()
    """Patterns of files that steps may use although they are taken for secrets."""
    reuses: bool = False
    """Whether a plan that served a similar task is carried out again instead of a new one."""
    is_run: bool = True
    """Whether the plan is carried out; else the step's output is the plan with its recipe."""
    model: ModelConfig | None = None

    @property
    def own_model(self) -> ModelConfig | None:
        return self.model

    @property
    def question(self) -> PersonQuestion | None:
        if not self.needs_approval:
            return None
        return PersonQuestion(text=QUESTION, form=None, timeout_s=None)

    @property
    def carries_out_plans(self) -> bool:
        return self.is_run

    @property
    def offered_tools(self) -> tuple[str, ...]:
        return self.tools

    @property
    def own_source(self) -> ToolSpec | None:
        """The files of the workspace."""
        if self.is_trusted:
            return None
        return ToolSpec(name=self.kind, origin="files__read", reads=Reads.PRIVATE)

    @property
    def sources(self) -> Sequence[JsonValue]:
        return (self.plan, self.workspace, self.context, self.command, self.given)

    @property
    def content(self) -> str:
        return self.plan


_CARRIED_OUT: Final[JsonSchema] = {
    "type": "object",
    "properties": {
        "plan": {"type": "object"},
        "steps": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {name: {"type": "string"} for name in ("id", "type", "status")},
            },
        },
        "replans": {"type": "integer"},
        "kept_run": {"type": "string", "description": "The run whose plan was used again."},
    },
    "required": ["plan", "steps", "replans"],
    "additionalProperties": False,
}
"""The output of a plan that was carried out."""


class _Plan(StepKind):
    name = "plan"
    spec = PlanSpec
    table = Table(
        "a plan step",
        (
            text_key("plan", "The task; a template.", is_required=True),
            text_key("workspace", "The folder to work in; a template. Default: the current one."),
            text_key("context", "What every step of the plan is told; a template."),
            text_key("command", "The shell command that tests the work; a template."),
            text_key(
                "given",
                "A plan that is there already, as text or JSON: it is carried out, and a model "
                "plans only what is left after a failure; a template.",
            ),
            choice_key(
                "form",
                "How the model writes the plan: `structured`, or as `text` for weak models.",
                ("structured", "text"),
            ),
            choice_key(
                "share",
                "How steps see the files that earlier steps made: their names, their outline "
                "(default), or whole.",
                ("names", "outline", "whole"),
            ),
            choice_key(
                "approval",
                "Whether a person approves each plan before it is carried out (default).",
                ("required", "none"),
            ),
            count_key(
                "max_replans",
                "How often what is left is planned again after a failure; default 1.",
                minimum=0,
                maximum=20,
            ),
            count_key(
                "max_repairs",
                "How often a failed validation goes back to a repair; default 2.",
                minimum=0,
                maximum=20,
            ),
            flag_key(
                "rollback_on_failure",
                "Whether a plan that fails takes the files back to what they were.",
            ),
            Key(
                name="tools",
                description="Registered tools that the planner may give to steps.",
                types=("array",),
                shape=TEXTS,
            ),
            Key(
                name="allow_config",
                description="Glob patterns of files that the plan may write without being asked "
                "about although they configure tools outside.",
                types=("array",),
                shape=TEXTS,
            ),
            flag_key(
                "opens_named",
                "Whether consent to a plan lets it write files that it names and that configure "
                "tools outside (default). Of no use without approval.",
            ),
            Key(
                name="allow_secrets",
                description="Glob patterns of files that the plan may use although they are taken "
                "for secrets.",
                types=("array",),
                shape=TEXTS,
            ),
            flag_key(
                "reuse",
                "Whether a plan that served an earlier run of the recipe is used again, without a "
                "model, where the task differs in names, numbers and paths alone.",
            ),
            flag_key("trusted", "Whether the text of the workspace is trusted."),
            flag_key("execute", "Whether the plan is carried out (default), or only written."),
            MODEL_KEY,
        ),
    )
    templates = ("plan", "workspace", "context", "command", "given")
    look = Look(light="#b45309", dark="#fbbf24", outline="#d97706", brackets=("[[", "]]"))

    def read(self, step: StepDraft, reader: KindReader) -> None:
        """Check the task and read the model."""
        section = step.section
        if not (section.text("plan") or "?").strip():
            message = "'plan' is empty: there is no task"
            fault = section.place_of("plan").fault("bad-value", message, help="write the task")
            reader.report(fault)
        if section.plain("reuse") is True and section.plain("given") is not None:
            message = "'reuse' and 'given' exclude each other: a plan that is given is carried out"
            fault = section.place_of("reuse").fault("bad-value", message, help="remove one of them")
            reader.report(fault)
        node = section.node("model")
        step.goal = GoalParts(model=reader.read_model(node) if node is not None else None)
        step.output = {"type": "object"} if section.plain("execute") is False else _CARRIED_OUT

    def build(self, step: StepDraft, common: CommonKeys) -> PlanSpec:
        section = step.section
        return PlanSpec(
            **common,
            plan=section.text("plan") or "",
            workspace=section.text("workspace") or ".",
            context=section.text("context") or "",
            command=section.text("command"),
            given=section.text("given"),
            form=section.text("form") or "structured",
            share=section.text("share") or "outline",
            needs_approval=section.text("approval") != "none",
            max_replans=_count(section.plain("max_replans"), 1),
            max_repairs=_count(section.plain("max_repairs"), 2),
            opens_named=section.plain("opens_named") is not False,
            rolls_back=section.plain("rollback_on_failure") is True,
            reuses=section.plain("reuse") is True,
            is_trusted=section.plain("trusted") is True,
            tools=step.tools,
            allow_config=_texts(section, "allow_config"),
            allow_secrets=_texts(section, "allow_secrets"),
            is_run=section.plain("execute") is not False,
            model=step.goal.model,
        )


def _texts(section: Section, key: str) -> tuple[str, ...]:
    value = section.plain(key)
    return tuple(map(str, value)) if isinstance(value, list | tuple) else ()


def _count(value: JsonValue, default: int) -> int:
    return value if isinstance(value, int) else default


PLAN = _Plan()


# --- the contract of planners, which `plan:` steps use -------------------------------------------


class KeptPlan(Struct, frozen=True, kw_only=True):
    """The plan of a recorded run that was carried out to its end, and what it was made for."""

    run_id: str
    plan: Plan
    inputs: Mapping[str, JsonValue]
    """The arguments of the call of `checking_tool` for its first draft."""


class PlanFit(Struct, frozen=True, kw_only=True):
    """Whether a kept plan serves another task."""

    plan: Plan | None
    """The plan for that task; None: it does not serve it."""
    reason: str
    """Why not; else what was replaced in it, empty where nothing was."""


class RecipePlanner(ABC):
    """Turns tasks into recipes, for `plan:` steps."""

    @property
    @abstractmethod
    def effects(self) -> Mapping[str, Effect]:
        """The effects of the tools of the toolsets that its recipes open, by full name: whether a
        call that a crash interrupted may simply be repeated.
        """

    @property
    @abstractmethod
    def drafting(self) -> AgentRecipe:
        """The recipe that writes a plan; the same at every access.

        Its inputs are those of the `plan:` step, and `earlier`, `done`, `completed`, `wish`,
        `given`; its output has `ok`, `plan`, `text`, `recipe`, `faults` and `notes`.
        """

    @property
    def checking_tool(self) -> str | None:
        """The tool that the recipe `drafting` calls with each draft: of its inputs the arguments
        have at least `task`, `workspace`, `context`, `command` and `tools`. None: there is none,
        and no plan is used again.
        """
        return None

    def fit(self, kept: KeptPlan, inputs: Mapping[str, JsonValue]) -> PlanFit:
        """A plan of an earlier run for the task of these inputs of `drafting`; may look at the
        workspace, and asks no model.
        """
        return PlanFit(plan=None, reason="this planner uses no plan again")

    @abstractmethod
    def reads(self, text: str) -> bool:
        """Whether a text is a plan, in any form that an answer may have, rather than a wish."""

    @abstractmethod
    def recipe(self, text: str, tools: Mapping[str, ToolSpec]) -> AgentRecipe:
        """The recipe of a plan, of the text that `drafting` gave.

        Args:
            tools: Registered tools that its steps may be offered, by name.
        Raises:
            RecipeError: It has faults.
        """
