"""`assert:` — conditions that must hold, or the step fails."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from attrs import frozen

from minions.data.json_values import JsonValue
from minions.recipe.drafts import StepDraft, read_condition
from minions.recipe.kinds.kind import CommonKeys, KindReader, Look, StepKind
from minions.recipe.model import StepSpec
from minions.recipe.text.key_types import TEXTS, Key, Table, text_key
from minions.recipe.text.nodes import ScalarNode, SequenceNode


@frozen(kw_only=True)
class AssertSpec(StepSpec):
    """Conditions that must hold, or the step fails."""

    kind: ClassVar[str] = "assert"

    conditions: tuple[str, ...]
    message: str | None = None
    """The error message if a condition does not hold; a template."""

    @property
    def sources(self) -> Sequence[JsonValue]:
        return (self.message,)

    @property
    def checks(self) -> Sequence[str]:
        return self.conditions

    @property
    def content(self) -> str:
        return " and ".join(self.conditions)


class _Assert(StepKind):
    name = "assert"
    spec = AssertSpec
    table = Table(
        "an assert step",
        (
            Key(
                name="assert",
                description="A condition that must hold, or several.",
                types=("string", "array"),
                is_required=True,
                shape=TEXTS,
            ),
            text_key("message", "Error message if it does not hold; a template."),
        ),
    )
    templates = ("message",)
    look = Look(light="#b45309", dark="#fbbf24", outline="#d97706", brackets=("{{", "}}"))

    def read(self, step: StepDraft, reader: KindReader) -> None:
        """Compiles each condition."""
        node = step.section.node("assert")
        nodes = node.items if isinstance(node, SequenceNode) else [node] if node is not None else []
        for item in nodes:
            if isinstance(item, ScalarNode) and isinstance(item.value, str):
                read = read_condition(item, reader.report, reader.recipe_templates)
                reader.templates.extend(read)
            else:
                message = "a condition is a text such as 'a == 1'"
                reader.report(item.place.fault("wrong-type", message))
        step.conditions = tuple(str(item.value) for item in nodes if isinstance(item, ScalarNode))

    def build(self, step: StepDraft, common: CommonKeys) -> AssertSpec:
        message = step.section.text("message")
        return AssertSpec(**common, conditions=step.conditions, message=message)


ASSERT = _Assert()
