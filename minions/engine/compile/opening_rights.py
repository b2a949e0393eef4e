"""What a recipe may open in a run that a caller began: checked where toolsets are opened.

Nothing here looks at how a value came about: what the recipes of the operator say is known by its
template, and everything else has to lie within the offer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from minions.contracts.journal.start_note import Offer
from minions.contracts.tools import Toolset
from minions.data.errors import EnvironmentRefusedError
from minions.data.json_values import JsonValue, dumps
from minions.recipe.expressions.template import Template
from minions.recipe.inputs import operators_inputs
from minions.recipe.model import AgentRecipe, StepSpec, ToolsetUse
from minions.recipe.model_config import ModelConfig

MadeOf: TypeAlias = Mapping[str, frozenset[str] | None]
"""By the inputs of a recipe that is a step: the inputs of the recipe around it that the value is
made of; None or absent: it is made of something else, too."""


class OpeningRights(Struct, frozen=True):
    """What a recipe may open in a run that a caller began, wherever its values come from."""

    offer: Offer
    inputs: frozenset[str]
    """The names of its inputs whose values the operator's recipes say: not the caller, no model, no
    tool, and nothing that was computed from what these said."""

    @classmethod
    def of_run(
        cls, offer: Offer, recipe: AgentRecipe, inputs: Mapping[str, JsonValue]
    ) -> OpeningRights:
        """The rights of the recipe of a run with these inputs, checked."""
        said = frozenset[str]() if offer.brings_recipe else operators_inputs(recipe, inputs)
        return cls(offer, said)

    def within(
        self, recipe: AgentRecipe, inputs: Mapping[str, JsonValue], made_of: MadeOf
    ) -> OpeningRights:
        """The rights of a recipe that is a step of this one, with these inputs, checked."""
        own, offer = operators_inputs(recipe, inputs), self.offer
        if offer.brings_recipe:  # what it says, the caller says; recipes within are the operator's
            return OpeningRights(replace(offer, brings_recipe=False), own)
        said = (n for n, names in made_of.items() if names is not None and names <= self.inputs)
        return OpeningRights(offer, own.union(said))

    def check_recipe(self, recipe: AgentRecipe, inputs: Mapping[str, JsonValue]) -> None:
        """Refuse inputs with `format: path` that lead elsewhere, wherever the recipe uses them, and
        in a recipe of the caller servers of models that the operator did not configure.

        Raises:
            EnvironmentRefusedError: `input-refused`.
        """
        for config in _models_in(recipe) if self.offer.brings_recipe else ():
            if config.base_url is not None:
                raise self._refusal(f"`base_url` in the recipe '{recipe.id}'", config.base_url)
        for name in inputs.keys() - self.inputs:
            spec = recipe.inputs[name]
            if spec.schema.get("format") == "path" and self.offer.place_of(inputs[name]) is None:
                raise self._refusal(f"The input '{name}' of the recipe '{recipe.id}'", inputs[name])

    def checked(
        self,
        recipe: AgentRecipe,
        use: ToolsetUse,
        toolset: Toolset,
        options: Mapping[str, JsonValue],
    ) -> Mapping[str, JsonValue]:
        """The options of a toolset; folders among them as they were resolved for this check.

        Raises:
            EnvironmentRefusedError: `input-refused`; an option opens what was not offered.
        """
        checked = dict(options)
        for name, value in options.items():
            what = f"The option `{name}` of the tools '{use.name}' in the recipe '{recipe.id}'"
            if self.offer.brings_recipe and name in toolset.operator_options and value:
                raise self._refusal(what, value)
            is_folder = name in toolset.folder_options
            written = recipe.templates.compile(use.options[name])
            if self._is_said(written) and not (self.offer.brings_recipe and is_folder):
                continue
            if is_folder and (place := self.offer.place_of(value)) is not None:
                checked[name] = place
            elif value is not None and type(value) not in (int, float):
                raise self._refusal(what, value)
        return checked

    def _is_said(self, option: Template) -> bool:
        names = option.inputs_read()
        return self.offer.brings_recipe or (names is not None and names <= self.inputs)

    def _refusal(self, what: str, value: JsonValue) -> EnvironmentRefusedError:
        ways = "A server offers folders with `--allow-folder DIR`; other values stand in the recipe"
        return EnvironmentRefusedError(
            f"{what} is {dumps(value)[:200]}, which the caller who began this run was not "
            f"offered. {ways} itself, as a default or under `enum`.",
            code="input-refused",
        )


def _models_in(recipe: AgentRecipe) -> Iterator[ModelConfig]:
    own = (step.own_model for step in recipe.steps if isinstance(step, StepSpec))
    for config in (recipe.model, *own):
        if config is not None:
            yield from (config, *config.others)
