"""Reads recipes by path or id, once; they are read again when one of their files has changed."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TypeAlias

from attrs import evolve, frozen

from minions.data.errors import UsageError
from minions.recipe.catalog import Catalog, FoundRecipe
from minions.recipe.library import SUFFIXES, find_recipe, is_recipe_text
from minions.recipe.model import AgentRecipe
from minions.recipe.project_folders import USUAL_FOLDER, NamedFiles
from minions.recipe.reading.load import load_recipe, load_recipe_text
from minions.recipe.reading.sub_recipes import recipe_files

__all__ = ["CompiledRecipes"]

_Stamp: TypeAlias = tuple[int, int, int]
"""A file's time of change in ns, its size in bytes, and its inode."""


@frozen
class _CompiledRecipe:
    """A recipe, and the stamps of its files when it was read."""

    recipe: AgentRecipe
    stamps: Mapping[str, _Stamp | None]

    def is_current(self) -> bool:
        """Whether none of its files has changed."""
        return all(_stamp(path) == stamp for path, stamp in self.stamps.items())


class CompiledRecipes:
    """The recipes that one runtime has read."""

    def __init__(self, catalog: Catalog) -> None:
        """Nothing is read yet.

        Args:
            catalog: Everything that recipes may name.
        """
        self.catalog = catalog
        self._compiled: dict[str, _CompiledRecipe] = {}

    def get(self, source: str | Path) -> AgentRecipe:
        """The recipe at that path, of that id under `recipes`, or with this YAML or JSON text.

        A text of several lines is YAML, one that begins with a brace JSON; it is read each time.

        Raises:
            RecipeError: Has every fault that was found.
            NotFoundError: There is no such file and no such id.
            UsageError: It cannot be read, or it is neither a text nor a path.
        """
        if not isinstance(source, str | Path):
            raise UsageError(
                f"{source!r:.80} is no recipe: give an AgentRecipe, a path, the id of one under "
                f"{USUAL_FOLDER}, YAML text of several lines, or JSON text.",
                code="no-recipe",
            )
        if isinstance(source, str) and is_recipe_text(source):
            return load_recipe_text(source, "<recipe>", self.catalog)
        path = os.path.abspath(_file(source))  # noqa: PTH100  # links are followed by no one here
        known = self._compiled.get(path)
        if known is None or not known.is_current():
            known = self._compiled[path] = self._read(path, str(source))
        return known.recipe

    def _read(self, path: str, source: str) -> _CompiledRecipe:
        files = [path]
        home = NamedFiles(Path(path).parent)

        def find(name: str, directory: str | None) -> FoundRecipe:
            found = recipe_files(name, directory, home)
            files.append(found.file)
            return found

        before = _stamps(files)  # a file that changes while it is read is read again
        named = source if source.endswith(SUFFIXES) else path
        recipe = load_recipe(named, evolve(self.catalog, find_recipe=find))
        return _CompiledRecipe(recipe, {**_stamps(files), **before})


def _file(source: str | Path) -> Path:
    if isinstance(source, Path):
        return source
    return find_recipe(source, [USUAL_FOLDER])


def _stamps(files: Iterable[str]) -> dict[str, _Stamp | None]:
    return {path: _stamp(path) for path in files}


def _stamp(path: str) -> _Stamp | None:
    """The stamp of a file; None: it does not exist."""
    try:
        known = os.stat(path)  # noqa: PTH116  # asked for at every run
    except OSError:
        return None
    return known.st_mtime_ns, known.st_size, known.st_ino
