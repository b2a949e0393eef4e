"""`uses:` — a `Step` class that the operator registered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from attrs import field, frozen

from minions.data.json_values import JsonValue
from minions.recipe.drafts import StepDraft
from minions.recipe.kinds.kind import CommonKeys, Look, StepKind, given_mapping
from minions.recipe.model import StepSpec
from minions.recipe.text.key_types import Table, mapping_key, text_key


@frozen(kw_only=True)
class UsesSpec(StepSpec):
    """A `Step` class that the operator registered."""

    kind: ClassVar[str] = "uses"
    calls_tools: ClassVar[bool] = True

    uses: str
    given: Mapping[str, JsonValue] = field(factory=dict)
    """Templates of the constructor's arguments (YAML key `with`), by name."""

    @property
    def sources(self) -> Sequence[JsonValue]:
        return (self.given,)

    @property
    def registered_class(self) -> str | None:
        return self.uses

    @property
    def content(self) -> str:
        return self.uses


class _Uses(StepKind):
    name = "uses"
    spec = UsesSpec
    table = Table(
        "a uses step",
        (
            text_key("uses", "A `Step` class that the operator registered.", is_required=True),
            mapping_key("with", "Its constructor's arguments; templates are rendered."),
        ),
    )
    templates = ("with",)
    look = Look(light="#0f766e", dark="#2dd4bf", outline="#0d9488", brackets=("[\\", "/]"))

    def build(self, step: StepDraft, common: CommonKeys) -> UsesSpec:
        section = step.section
        return UsesSpec(
            **common, uses=section.text("uses") or "", given=given_mapping(section, "with")
        )


USES = _Uses()
