"""The built-in recipes, each read when it is first needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib.resources import files
from typing import Final

from minions.recipe.catalog import Catalog
from minions.recipe.model import AgentRecipe

BUILT_IN_RECIPES: Final[Mapping[str, tuple[str, str]]] = {
    "StepExecutor": ("minions.planning", "step_executor.yaml"),
}
"""A new recipe is one line here: its name, which is its id, to its package and its file."""


class BuiltInRecipes(Mapping[str, AgentRecipe]):
    """The built-in recipes by name: registered like those of an operator, whose own come first."""

    def __init__(self, catalog: Callable[[], Catalog]) -> None:
        """Nothing is read yet.

        Args:
            catalog: Everything that they may name.
        """
        self._catalog = catalog
        self._read: dict[str, AgentRecipe] = {}

    def __getitem__(self, name: str) -> AgentRecipe:
        if name not in self._read:
            from minions.recipe.reading.load import load_recipe_text

            package, file = BUILT_IN_RECIPES[name]
            text = files(package).joinpath(file).read_text("utf-8")
            self._read[name] = load_recipe_text(text, file, self._catalog())
        return self._read[name]

    def __contains__(self, name: object) -> bool:
        return name in BUILT_IN_RECIPES

    def __iter__(self) -> Iterator[str]:
        return iter(BUILT_IN_RECIPES)

    def __len__(self) -> int:
        return len(BUILT_IN_RECIPES)
