"""`tool:` — one tool call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from attrs import field, frozen

from minions.contracts.json_values import JsonValue
from minions.contracts.tools import ToolSpec
from minions.recipe.drafts import StepDraft
from minions.recipe.expressions.template import Reference, Template, compile_template
from minions.recipe.kinds.kind import CommonKeys, Look, StepKind, given_mapping
from minions.recipe.model import StepSpec
from minions.recipe.text.key_types import CACHE_KEY, Key, Table, mapping_key

__all__ = ["TOOL", "ToolSpecStep"]


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

    def may_ask_model(self, tools: Mapping[str, ToolSpec]) -> bool:
        """Whether a required parameter has no argument, or a template's value may be missing."""
        given = self.given
        required = tools[self.tool].parameters.get("required")
        if isinstance(required, list | tuple) and not set(map(str, required)) <= set(given):
            return True
        return any(_may_be_missing(compile_template(value)) for value in given.values())


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
            CACHE_KEY,
        ),
    )
    templates = ("params", "params_template")
    look = Look(light="#0369a1", dark="#38bdf8", outline="#0284c7", brackets=("[", "]"))

    def build(self, step: StepDraft, common: CommonKeys) -> ToolSpecStep:
        section = step.section
        return ToolSpecStep(
            **common,
            tool=section.text("tool") or "",
            params=given_mapping(section, "params"),
            params_template=given_mapping(section, "params_template"),
        )

    def tool_names(self, step: StepDraft) -> Sequence[str]:
        name = step.section.text("tool")
        return () if name is None else (name,)


TOOL = _Tool()
