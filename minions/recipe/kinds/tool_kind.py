"""`tool:` — one tool call."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import ClassVar

from attrs import field, frozen

from minions.contracts.tools import Effect, ToolSpec
from minions.data.json_values import JsonValue
from minions.data.schema import JsonSchema
from minions.recipe.drafts import GoalParts, StepDraft
from minions.recipe.expressions.template import Template, compile_template
from minions.recipe.expressions.values import Reference
from minions.recipe.kinds.kind import CommonKeys, KindReader, Look, StepKind, given_mapping
from minions.recipe.model import StepSpec
from minions.recipe.text.key_types import CACHE_KEY, TEXTS, Key, Table, mapping_key
from minions.recipe.text.nodes import MappingNode, to_plain
from minions.recipe.text.schemas import read_output_schema, short_type


@frozen(kw_only=True)
class ToolSpecStep(StepSpec):
    """One tool call."""

    kind: ClassVar[str] = "tool"
    calls_tools: ClassVar[bool] = True
    fills_in: ClassVar[bool] = True

    tool: str
    """Full name of the tool."""
    params: Mapping[str, JsonValue] = field(factory=dict)
    params_template: Mapping[str, JsonValue] = field(factory=dict)
    """Templates that are merged over `params`."""
    fill: tuple[str, ...] = ()
    """Parameters without an argument that a model may fill in, whatever the tool changes."""
    returns: JsonSchema | None = None
    """What the result has to fit, besides what the tool declares; None: nothing more."""
    is_older: bool = False
    """Whether the recipe is of the older format, in which a model fills in every required parameter
    without an argument, and every one whose template has no value."""

    @property
    def given(self) -> Mapping[str, JsonValue]:
        """The arguments of the call: templates by name of the parameter."""
        return {**self.params, **self.params_template}

    @property
    def sources(self) -> Sequence[JsonValue]:
        return (self.given,)

    @property
    def called_tools(self) -> tuple[str, ...]:
        return (self.tool,)

    @property
    def label(self) -> str:
        """The tool's name, which says more than a description."""
        return self.tool

    def filled_in(self, tool: ToolSpec) -> tuple[str, ...]:
        """The parameters without an argument that a model fills in, in the tool's order."""
        may_fill = self.is_older or tool.effect is Effect.PURE
        left_out = without_argument(tool, self.given) if may_fill else ()
        return (*left_out, *(name for name in self.fill if name not in left_out))

    def may_ask_model(self, tools: Mapping[str, ToolSpec]) -> bool:
        """Whether a model fills in a parameter, or may where a template has no value."""
        if self.filled_in(tools[self.tool]):
            return True
        templates = map(compile_template, self.given.values()) if self.is_older else ()
        return any(map(_may_be_missing, templates))


def without_argument(tool: ToolSpec, given: Container[str]) -> tuple[str, ...]:
    """The required parameters of a tool that get no argument."""
    required = tool.parameters.get("required")
    names = map(str, required) if isinstance(required, list | tuple) else ()
    return tuple(name for name in names if name not in given)


def _may_be_missing(template: Template) -> bool:
    return template.is_whole and not all(map(_is_certain, template.references))


def _is_certain(reference: Reference) -> bool:
    """Whether the value exists whenever the step runs: a whole input, output or
    item does, a part of one may not.
    """
    path = reference.path
    return reference.is_guarded or len(path) <= (2 if path[0] in ("inputs", "loop", "run") else 1)


class _Tool(StepKind):
    name = "tool"
    spec = ToolSpecStep
    table = Table(
        "a tool step",
        (
            Key(
                name="tool",
                description="The tool's name.",
                types=("string",),
                is_required=True,
                shape={"not": {"const": "llm_analyze"}},
            ),
            mapping_key("params", "Its arguments; templates are rendered."),
            mapping_key("params_template", "Further arguments, merged over `params`."),
            Key(
                name="fill",
                description="Parameters without an argument that a model may fill in. Where the "
                "tool is declared pure, it fills in the required ones unasked.",
                types=("array",),
                shape=TEXTS,
            ),
            Key(
                name="returns",
                description="JSON Schema of the result, or in short `{field: type}`, `[type]` or a "
                "type: a result that does not fit fails the step. Default: what the tool declares.",
                types=("object", "array", "string"),
            ),
            CACHE_KEY,
        ),
    )
    templates = ("params", "params_template")
    look = Look(light="#0369a1", dark="#38bdf8", outline="#0284c7", brackets=("[", "]"))

    def read(self, step: StepDraft, reader: KindReader) -> None:
        """What `returns` says is the output; else it is known when the tool is."""
        returns = step.section.node("returns")
        if returns is None:
            return
        if isinstance(returns, MappingNode):
            schema = read_output_schema(returns, reader.report)
        else:
            schema = short_type(returns, reader.report)
        if schema is not None:
            step.goal = GoalParts(schema=schema)
            step.output = schema

    def build(self, step: StepDraft, common: CommonKeys) -> ToolSpecStep:
        section = step.section
        return ToolSpecStep(
            **common,
            tool=section.text("tool") or "",
            params=given_mapping(section, "params"),
            params_template=given_mapping(section, "params_template"),
            returns=step.goal.schema,
            fill=tuple(str(to_plain(each)) for each in section.items("fill")),
        )

    def tool_names(self, step: StepDraft) -> Sequence[str]:
        name = step.section.text("tool")
        return () if name is None else (name,)


TOOL = _Tool()
