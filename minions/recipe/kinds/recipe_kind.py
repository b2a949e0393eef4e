"""`recipe:` — another recipe, run as a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from attrs import field, frozen

from minions.data.json_values import JsonValue
from minions.recipe.drafts import StepDraft
from minions.recipe.kinds.kind import CommonKeys, Look, StepKind, given_mapping
from minions.recipe.model import AgentRecipe, StepSpec
from minions.recipe.text.key_types import CACHE_KEY, Table, mapping_key, text_key


@frozen(kw_only=True)
class RecipeSpec(StepSpec):
    """Another recipe, run as a step."""

    kind: ClassVar[str] = "recipe"
    calls_tools: ClassVar[bool] = True

    name: str
    """The nested recipe's name or path, as written."""
    recipe: AgentRecipe
    given: Mapping[str, JsonValue] = field(factory=dict)
    """Templates of the nested recipe's inputs (YAML key `with`), by name."""

    @property
    def sources(self) -> Sequence[JsonValue]:
        return (self.given,)

    @property
    def inner(self) -> AgentRecipe | None:
        return self.recipe

    @property
    def inner_inputs(self) -> Mapping[str, JsonValue]:
        return self.given

    @property
    def label(self) -> str:
        """The nested recipe's id, which says more than a description."""
        return self.recipe.id


class _Recipe(StepKind):
    name = "recipe"
    spec = RecipeSpec
    table = Table(
        "a recipe step",
        (
            text_key(
                "recipe",
                "Another recipe: its file beside this one, its id there or under `recipes`, or a "
                "registered one.",
                is_required=True,
            ),
            mapping_key("with", "Its inputs; templates are rendered."),
            CACHE_KEY,
        ),
    )
    templates = ("with",)
    look = Look(light="#4338ca", dark="#818cf8", outline="#4f46e5", brackets=("[/", "\\]"))

    def build(self, step: StepDraft, common: CommonKeys) -> RecipeSpec:
        """The spec, with the recipe that was loaded for it."""
        assert step.recipe is not None  # noqa: S101  # a recipe that is not found is a fault
        return RecipeSpec(
            **common,
            name=step.section.text("recipe") or "",
            recipe=step.recipe,
            given=given_mapping(step.section, "with"),
        )


RECIPE_STEP = _Recipe()
