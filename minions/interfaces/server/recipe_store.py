"""The stored recipes that the server offers, by id, never by path: a caller names no files."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Final

from attrs import frozen
from msgspec.structs import replace

from minions.app.wiring.built_in_extensions import BUILT_IN_RECIPES
from minions.contracts.runtime import Log
from minions.data.errors import (
    Fault,
    MinionsError,
    NotFoundError,
    RecipeError,
    UsageError,
    near_hint,
    near_names,
)
from minions.interfaces.http.http_answers import RefusedError
from minions.recipe.catalog import Catalog
from minions.recipe.model import AgentRecipe, StepSpec
from minions.recipe.reading.load import check_recipe, load_recipe_text
from minions.recipe.recipe_files import NamedFiles, recipe_ids

_OF_REQUEST: Final = "<recipe of the request>"
_NOT_CHECKED: Final = "recipe-not-checked"
_MOST_LOGGED: Final = 5_000


@frozen(kw_only=True)
class StoredRecipe:
    """One recipe of the store."""

    id: str
    recipe: AgentRecipe | None = None
    error: MinionsError | None = None
    """Why it cannot run; None: it can."""
    warnings: tuple[Fault, ...] = ()
    """What the check of one that can run found, beside errors."""

    @property
    def fault_count(self) -> int:
        """How many faults keep it from running."""
        if self.error is None:
            return 0
        return len(self.error.faults) if isinstance(self.error, RecipeError) else 1


@frozen
class _LoadedFile:
    mark: tuple[str, int, int]
    stored: StoredRecipe


class RecipeStore:
    """Looks into its folders at every request; a file that has not changed is read once.

    It reads files: call it in a thread.
    """

    def __init__(
        self,
        folders: Sequence[Path],
        catalog: Catalog,
        bound: Callable[[AgentRecipe], AgentRecipe],
        log: Log,
    ) -> None:
        """Nothing is read yet.

        Args:
            bound: Returns a recipe with the operator's limits.
            log: The server's log.
        """
        self._log = log
        self._folders = tuple(folders)
        self._catalog = replace(catalog, recipe_folders=self._folders)
        self._bound = bound
        self._loaded: dict[str, _LoadedFile] = {}
        self._reading = threading.Lock()

    @property
    def _registered(self) -> Mapping[str, AgentRecipe]:
        """The recipes that the operator registered. Those that come along are for recipes and the
        command line: what they may do, a caller must not choose.
        """
        recipes = self._catalog.recipes
        return {each: recipes[each] for each in recipes if each not in BUILT_IN_RECIPES}

    def all(self) -> Sequence[StoredRecipe]:
        """Every recipe, ordered by id."""
        with self._reading:
            paths = recipe_ids(self._folders, self._may_read)
            stored = [self._load_stored(recipe_id, path) for recipe_id, path in paths.items()]
        made = [
            StoredRecipe(id=recipe_id, recipe=self._bound(recipe))
            for recipe_id, recipe in self._registered.items()
            if recipe_id not in paths
        ]
        return sorted((*stored, *made), key=lambda each: each.id)

    def get(self, recipe_id: str) -> AgentRecipe:
        """The recipe with that id.

        Raises:
            NotFoundError: There is none.
            RefusedError: It has faults.
        """
        recipe = self.find(recipe_id).recipe
        assert recipe is not None  # noqa: S101  # `find` refuses the others
        return recipe

    def find(self, recipe_id: str) -> StoredRecipe:
        """The recipe with that id, and what its check warned of.

        Raises:
            NotFoundError: There is none.
            RefusedError: It has faults, of which only the number is told: a caller does not own the
                file. The log has all of it.
        """
        with self._reading:
            paths = recipe_ids(self._folders, self._may_read)
            path = paths.get(recipe_id)
            stored = None if path is None else self._load_stored(recipe_id, path)
        if stored is None:
            made = self._registered
            if recipe_id in made:
                return StoredRecipe(id=recipe_id, recipe=self._bound(made[recipe_id]))
            raise _unknown(recipe_id, (*paths, *made))
        if stored.error is not None:
            raise _faulty(stored, stored.error)
        return stored

    def read_text(self, text: str) -> AgentRecipe:
        """The checked recipe of a request's text.

        Raises:
            RecipeError: It has faults. Those of stored files that it uses are not told.
        """
        try:
            return self._bound(load_recipe_text(text, _OF_REQUEST, self._catalog))
        except RecipeError as error:
            self._log.warning("faults_of_recipe_in_request", faults=str(error)[:_MOST_LOGGED])
            raise _own_faults(error) from None

    def _load_stored(self, recipe_id: str, path: Path) -> StoredRecipe:
        try:
            state = path.stat()
            mark = (str(path), state.st_mtime_ns, state.st_size)
        except OSError:
            mark = (str(path), 0, 0)
        known = self._loaded.get(recipe_id)
        if known is None or known.mark != mark or not _is_one_file(known.stored):
            read = _LoadedFile(mark, self._read(recipe_id, path))
            if read.stored.error is not None and _differs(read, known):
                said = str(read.stored.error)[:_MOST_LOGGED]
                self._log.warning("recipe_has_faults", recipe=recipe_id, faults=said)
            known = self._loaded[recipe_id] = read
        return known.stored

    def _named_files(self, path: Path) -> NamedFiles:
        return NamedFiles(path.parent, self._folders)

    def _may_read(self, path: Path) -> bool:
        return self._named_files(path).hold(path)

    def _read(self, recipe_id: str, path: Path) -> StoredRecipe:
        try:
            self._named_files(path).check(path, path.name)  # a link may lead anywhere
            checked = check_recipe(path, self._catalog)
            recipe = self._bound(checked.unwrap())
            if recipe.id != recipe_id:
                raise _make_taken_error(recipe.id, path)
            return StoredRecipe(id=recipe_id, recipe=recipe, warnings=checked.faults)
        except MinionsError as error:
            return StoredRecipe(id=recipe_id, error=error)
        except Exception as error:  # noqa: BLE001  # an error in one recipe must not hide the others
            self._log.warning("recipe_not_checked", recipe=recipe_id, error=repr(error)[:500])
            return StoredRecipe(id=recipe_id, error=_not_checked(recipe_id, error))


def _make_taken_error(recipe_id: str, path: Path) -> UsageError:
    return UsageError(
        f"{path.name} says that its id is '{recipe_id}', which is that of another file. Give it an "
        "id of its own.",
        code="duplicate-recipe",
    )


def _not_checked(recipe_id: str, error: Exception) -> MinionsError:
    return MinionsError(
        f"The recipe '{recipe_id}' cannot be checked: {type(error).__name__}. That is an error of "
        "this server; its log says more.",
        code=_NOT_CHECKED,
    )


def _differs(read: _LoadedFile, known: _LoadedFile | None) -> bool:
    return known is None or str(read.stored.error) != str(known.stored.error)


def _faulty(stored: StoredRecipe, error: MinionsError) -> RefusedError:
    """The refusal of a recipe that cannot run, without what its file says."""
    count = stored.fault_count
    if error.error_code == _NOT_CHECKED:
        return RefusedError(HTTPStatus.INTERNAL_SERVER_ERROR, _NOT_CHECKED, error.message)
    return RefusedError(
        HTTPStatus.UNPROCESSABLE_ENTITY,
        error.error_code,
        f"The recipe '{stored.id}' of this server has {count} fault{'s' if count > 1 else ''}. The "
        "server's log has them, and `minions validate` says them to whoever has the file.",
    )


def _own_faults(error: RecipeError) -> RecipeError:
    """The faults of the request's own text; of recipes that it uses only that they have some."""
    return RecipeError(map(_own_fault, error.faults))


def _own_fault(fault: Fault) -> Fault:
    if fault.file == _OF_REQUEST and fault.code != "bad-recipe":
        return fault
    words = "a recipe of this server that it uses has faults; the server's log has them"
    is_own = fault.file == _OF_REQUEST
    return Fault(
        code="bad-recipe",
        message=words,
        file=_OF_REQUEST,
        line=fault.line if is_own else 1,
        column=fault.column if is_own else 1,
    )


def _is_one_file(stored: StoredRecipe) -> bool:
    """Whether the recipe depends on no other file than its own."""
    if stored.recipe is None:
        return False
    steps = stored.recipe.steps
    return not any(isinstance(step, StepSpec) and step.inner is not None for step in steps)


def _unknown(recipe_id: str, ids: Sequence[str]) -> NotFoundError:
    near = near_names(recipe_id, ids)
    hint = near_hint(near)
    return NotFoundError(
        f"There is no recipe '{recipe_id[:100]}' here.{hint} GET /api/v1/recipes lists all.",
        code="recipe-not-found",
        suggestions=near,
    )
