"""`recipe:` steps: another recipe, run as a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from attrs import evolve, frozen

from minions.contracts.context import RunContext
from minions.contracts.steps import PythonStep, Step, StepScope
from minions.data.errors import UsageError
from minions.data.json_values import JsonValue
from minions.engine.compile.engine_scope import EngineScope, render_beside
from minions.engine.compile.kinds.compiler import BuildParts, Planner, StepCompiler
from minions.engine.compile.opening_rights import MadeOf
from minions.engine.compile.planned_step import PlannedStep
from minions.engine.compile.recipe_step import (
    CacheableStep,
    Fingerprint,
    RecordedInParts,
    WrittenStep,
)
from minions.recipe.expressions.template import Template
from minions.recipe.kinds.recipe_kind import RecipeSpec
from minions.recipe.model import AgentRecipe, StepSpec
from minions.recipe.nested_recipes import bundle_of, steps_within


@frozen(kw_only=True)
class RecipeStep(WrittenStep[object], PythonStep[object], RecordedInParts, CacheableStep):
    """A `recipe:` step: it runs another recipe with inputs of its own."""

    id: str
    spec: RecipeSpec
    given: Mapping[str, Template]
    recipe: AgentRecipe
    """The recipe that the step runs; inputs that get untrusted text here are declared so."""
    made_of: MadeOf
    """By its inputs: the inputs of the recipe around it that the value is made of."""

    @property
    def templates(self) -> Sequence[Template]:
        """The templates of the inputs."""
        return list(self.given.values())

    async def run(self, scope: StepScope) -> object:
        """Render the inputs, then run the recipe.

        Raises:
            MissingValueError: A template reads a value that does not exist.
            StepFailedError: The recipe failed.
        """
        assert isinstance(scope, EngineScope)  # noqa: S101  # the engine runs these steps
        values = scope.context.values
        inputs = await render_beside(
            scope,
            self.references,
            lambda: {name: template.render(values) for name, template in self.given.items()},
        )
        return await scope.run_recipe(self.recipe, inputs, self.made_of)

    def fingerprint(self, view: RunContext) -> Fingerprint:
        """The texts of the recipe and of its recipe steps, and the inputs.

        Raises:
            UsageError: `recipe-needed`; the recipe was made by code and has no text.
        """
        recipe = self.recipe
        if recipe.document is None:
            raise UsageError(f"The recipe '{recipe.id}' was made by code.", code="recipe-needed")
        asked: dict[str, JsonValue] = {
            "recipe": [recipe.document, recipe.directory, bundle_of(recipe)],
            "inputs": {name: template.render(view.values) for name, template in self.given.items()},
        }
        return Fingerprint(asked=asked, tools=sorted(_tools_in(recipe)))


def _tools_in(recipe: AgentRecipe) -> set[str]:
    """The names of all tools that steps of the recipe may call."""
    return {
        name
        for _, _, step in steps_within(recipe)
        if isinstance(step, StepSpec)
        for name in (*step.called_tools, *step.offered_tools)
    }


def _is_untrusted(spec: RecipeSpec, template: Template, parts: BuildParts) -> bool:
    return any(parts.untrusted.is_in(spec, term) for term in template.terms())


def _with_untrusted(
    recipe: AgentRecipe, untrusted: Sequence[str], influenced: Sequence[str]
) -> AgentRecipe:
    """The recipe with these inputs declared untrusted, so that its prompts show them so."""
    marked = {
        name: evolve(
            spec,
            is_untrusted=spec.is_untrusted or name in untrusted,
            is_influenced=spec.is_influenced or name in influenced,
        )
        for name, spec in recipe.inputs.items()
        if name in untrusted or name in influenced
    }
    return evolve(recipe, inputs={**recipe.inputs, **marked}) if marked else recipe


class _RecipeCompiler(StepCompiler[RecipeSpec]):
    def build(self, spec: RecipeSpec, parts: BuildParts) -> RecipeStep:
        given = {name: parts.templates.compile(value) for name, value in spec.given.items()}
        marked = [name for name, template in given.items() if _is_untrusted(spec, template, parts)]
        influenced = [name for name in given if parts.untrusted.influences(spec.id, name)]
        recipe = _with_untrusted(spec.recipe, marked, influenced)
        made_of = {name: template.inputs_read() for name, template in given.items()}
        return RecipeStep(id=spec.id, spec=spec, given=given, recipe=recipe, made_of=made_of)

    def plan(self, spec: RecipeSpec, step: Step[object], planner: Planner) -> PlannedStep:
        shown = {name: planner.shown(value) for name, value in spec.given.items()}
        return PlannedStep(step_id=spec.id, kind="recipe", target=spec.recipe.id, shown=shown)


COMPILER: Final = _RecipeCompiler()
