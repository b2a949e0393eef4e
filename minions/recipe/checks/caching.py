"""Steps that say `cache: true`: only what changes nothing outside may be left out."""

from __future__ import annotations

from collections.abc import Iterator

from minions.contracts.tools import Effect, ToolSpec
from minions.recipe.catalog import Catalog
from minions.recipe.drafts import RecipeDraft, StepDraft
from minions.recipe.kinds.registry import KINDS
from minions.recipe.model import AgentRecipe, StepSpec
from minions.recipe.text.sections import Report

__all__ = ["check_caching"]


def check_caching(draft: RecipeDraft, catalog: Catalog, report: Report) -> None:
    """A cached step does nothing the second time: report those of which more is expected."""
    for step in draft.steps:
        if step.section.plain("cache") is not True:
            continue
        problems = list(dict.fromkeys(_problems(draft, step, catalog)))
        if problems:
            report(
                step.section.place_of("cache").fault(
                    "cache-skips-effect",
                    f"step {step.title} cannot be cached: {'; '.join(problems)}",
                    help="leave out 'cache', or declare a tool pure that changes nothing",
                )
            )


def _problems(draft: RecipeDraft, step: StepDraft, catalog: Catalog) -> Iterator[str]:
    kind = KINDS[step.kind] if step.kind is not None else None
    if kind is not None:
        yield from kind.cache_problems(step)
        for name in kind.tool_names(step):
            yield from _of_tool(draft.tools.specs.get(name))
    if step.recipe is not None:
        yield from _of_recipe(step.recipe, catalog)


def _of_tool(spec: ToolSpec | None) -> Iterator[str]:
    """None: a name that was reported as unknown."""
    if spec is not None and spec.effect is not Effect.PURE:
        yield f"the tool '{spec.name}' is not declared pure (it is {spec.effect.value})"


def _of_recipe(recipe: AgentRecipe, catalog: Catalog) -> Iterator[str]:
    if recipe.document is None:
        yield f"the recipe '{recipe.id}' was made by code, which nobody can compare"
        return
    for step in recipe.steps:
        if not isinstance(step, StepSpec):
            continue
        if step.inner is not None:
            yield from _of_recipe(step.inner, catalog)
        if step.asks_person:
            yield f"step '{step.id}' of the recipe '{recipe.id}' asks a person"
        for name in (*step.called_tools, *step.offered_tools):
            yield from _of_tool(_spec(name, recipe, catalog))


def _spec(name: str, recipe: AgentRecipe, catalog: Catalog) -> ToolSpec | None:
    """Of a tool as that recipe calls it."""
    for use in recipe.tools:
        toolset = catalog.toolsets.get(use.name)
        prefix = f"{use.prefix or use.name}__"
        if toolset is None or not name.startswith(prefix):
            continue
        for spec in toolset.specs:
            if spec.name == name.removeprefix(prefix):
                return spec
    return catalog.tools.get(name)
