"""The recipes in folders as agents that can be run by name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from attrs import frozen

from minions.app.wiring.compiled_recipes import CompiledRecipes
from minions.engine.compile.named_agents import NamedAgents, unknown_agent
from minions.recipe.library import recipe_ids
from minions.recipe.model import AgentRecipe
from minions.recipe.project_folders import USUAL_FOLDER, NamedFiles

__all__ = ["FolderAgents"]


@frozen
class FolderAgents(NamedAgents):
    """The recipes in some folders, by id: a name is never taken as a path."""

    recipes: CompiledRecipes
    """Reads the files; each once, as long as it does not change."""
    folders: tuple[Path, ...] = ()
    """The server's folders of recipes; empty: `recipes` below the current folder."""

    def names(self) -> Sequence[str]:
        """The ids of all recipes there; of each file only its head is read."""
        return tuple(self._paths())

    def find(self, name: str) -> AgentRecipe:
        """The recipe of that id."""
        paths = self._paths()
        if name not in paths:
            raise unknown_agent(name, tuple(paths))
        self._allowed().check(paths[name], name)  # a link may lead elsewhere
        return self.recipes.get(paths[name])

    def _paths(self) -> dict[str, Path]:
        return recipe_ids(self.folders or (USUAL_FOLDER,), self._allowed().hold)

    def _allowed(self) -> NamedFiles:
        return NamedFiles(Path.cwd(), self.folders)
