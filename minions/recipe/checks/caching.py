"""Checks of steps with `cache: true`: only steps without side effects may be cached."""

from __future__ import annotations

from collections.abc import Iterator

from minions.contracts.tools import Effect, ToolSpec
from minions.recipe.catalog import Catalog
from minions.recipe.drafts import RecipeDraft, StepDraft
from minions.recipe.kinds.registry import KINDS
from minions.recipe.model import AgentRecipe, StepSpec
from minions.recipe.text.sections import Report


def check_caching(draft: RecipeDraft, catalog: Catalog, report: Report) -> None:
    """Report cached steps that have side effects, which would be
    missing when the output is cached.
    """
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
    """Why the tool's calls may not be cached.

    Args:
        spec: None: the name is unknown, which was reported already.
    """
    if spec is not None and spec.effect is not Effect.PURE:
        yield f"the tool '{spec.name}' is not declared pure (it is {spec.effect.value})"


def _of_recipe(recipe: AgentRecipe, catalog: Catalog) -> Iterator[str]:
    if recipe.document is None:
        yield f"the recipe '{recipe.id}' was made by code, whose changes cannot be detected"
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
    """The spec of the tool that has that name in the recipe; None: there is no such tool."""
    for use in recipe.tools:
        toolset = catalog.toolsets.get(use.name)
        prefix = f"{use.prefix or use.name}__"
        if toolset is None or not name.startswith(prefix):
            continue
        for spec in toolset.specs:
            if spec.name == name.removeprefix(prefix):
                return spec
    return catalog.tools.get(name)
