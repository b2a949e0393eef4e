"""`set:` — computes values from templates; the step's output is the mapping of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from attrs import frozen

from minions.data.json_values import JsonValue
from minions.recipe.drafts import StepDraft
from minions.recipe.kinds.kind import CommonKeys, KindReader, Look, StepKind, given_mapping
from minions.recipe.model import StepSpec
from minions.recipe.text.key_types import Table, mapping_key
from minions.recipe.text.schemas import shape_of_values


@frozen(kw_only=True)
class SetSpec(StepSpec):
    """Computes values from templates; the step's output is the mapping of them."""

    kind: ClassVar[str] = "set"

    set: Mapping[str, JsonValue]
    """Templates by the name of the value."""

    @property
    def sources(self) -> Sequence[JsonValue]:
        return (self.set,)

    @property
    def content(self) -> str:
        return ", ".join(self.set)


class _Set(StepKind):
    name = "set"
    spec = SetSpec
    table = Table("a set step", (mapping_key("set", "Names and values.", is_required=True),))
    templates = ("set",)
    look = Look(light="#64748b", dark="#94a3b8", outline="#64748b", brackets=("[/", "/]"))

    def read(self, step: StepDraft, reader: KindReader) -> None:
        """The output has exactly the names that the step sets."""
        if (values := step.section.mapping("set")) is not None:
            step.output = shape_of_values(values)

    def build(self, step: StepDraft, common: CommonKeys) -> SetSpec:
        return SetSpec(**common, set=given_mapping(step.section, "set"))


SET = _Set()
