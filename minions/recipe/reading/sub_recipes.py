"""Recipes that run as steps: looked up, loaded, and checked against their inputs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeAlias

from msgspec.structs import replace

from minions.data.errors import Fault, MinionsError, NotFoundError, near_names
from minions.data.json_values import JsonValue
from minions.data.schema import JsonSchema
from minions.data.texts import shell_word
from minions.recipe.catalog import Catalog, FindRecipe, FoundRecipe
from minions.recipe.checks.tool_checks import check_against_schema, is_constant, names_misspelt
from minions.recipe.drafts import RecipeDraft, StepDraft
from minions.recipe.expressions.template import Templates
from minions.recipe.expressions.terms import Path as ValuePath
from minions.recipe.expressions.values import TemplateError
from minions.recipe.model import AgentRecipe
from minions.recipe.recipe_files import (
    SUFFIXES,
    USUAL_FOLDER,
    NamedFiles,
    is_file,
    recipe_ids,
    recipe_ids_beside,
)
from minions.recipe.text.nodes import Entry, Node, Place, to_plain
from minions.recipe.text.sections import Report, masked
from minions.recipe.text.yaml_reader import read_source

Check: TypeAlias = Callable[
    [FoundRecipe, "SubRecipes"], "tuple[AgentRecipe | None, tuple[Fault, ...]]"
]
"""Loads a recipe that was looked up, given the look-up for its own nested recipes."""


def recipe_files(name: str, directory: str | None, files: NamedFiles | None = None) -> FoundRecipe:
    """The recipe file of that path or id: beside the recipe that names it, else under
    `recipes`.

    Args:
        files: The files that may be named; None: those that a recipe in that directory may name.
    Raises:
        NotFoundError: There is no such file.
        UsageError: It is outside of the project (`outside-project`), or cannot be read.
    """
    home = Path(directory) if directory is not None else Path.cwd()
    files = files or NamedFiles(home)
    path = _path(name, home, files) if name.endswith(SUFFIXES) else _by_id(name, home, files)
    return FoundRecipe(
        identity=str(path.resolve()),
        file=str(path),
        text=read_source(path),
        directory=str(path.absolute().parent),
    )


def _path(name: str, home: Path, files: NamedFiles) -> Path:
    path = home / name
    files.check(
        path, name
    )  # checked first: the error must not reveal whether such a file exists elsewhere
    if not is_file(path):
        raise NotFoundError(
            f"There is no recipe file '{name:.200}' beside this one.",
            code="recipe-not-found",
            suggestions=_near_paths(home, name, files),
        )
    return path


def _near_paths(home: Path, name: str, files: NamedFiles) -> tuple[str, ...]:
    """Recipes with similar names in the folder of `name`, as paths in the form of `name`."""
    path = Path(name)
    if not files.hold(home / path):
        return ()
    beside = recipe_ids_beside(home / path.parent, files.hold)
    by_stem = {other.stem: other.name for other in beside.values()}
    wanted = path.stem if path.suffix in SUFFIXES else path.name
    near = near_names(wanted, by_stem)
    return tuple(str(path.with_name(by_stem[stem])) for stem in near)


def _by_id(name: str, home: Path, files: NamedFiles) -> Path:
    """The recipe of that id beside the naming recipe, else under
    `recipes`; never taken as a path.
    """
    beside = recipe_ids_beside(home, files.hold)
    known = beside if name in beside else recipe_ids([USUAL_FOLDER], files.hold)
    if name not in known:
        near = near_names(name, beside) or near_names(name, known)
        if "/" in name:
            near = _near_paths(home, name, files) or near
        message = f"There is no recipe '{name:.200}' beside this one or under {USUAL_FOLDER}."
        raise NotFoundError(message, code="recipe-not-found", suggestions=near)
    files.check(known[name], name)
    return known[name]


def _finder(directory: str | None, folders: tuple[Path, ...]) -> FindRecipe:
    """The look-up for a recipe in that directory and for its nested recipes."""
    home = Path(directory) if directory is not None else Path.cwd()
    return functools.partial(recipe_files, files=NamedFiles(home, folders))


class SubRecipes:
    """Loads the nested recipes of one recipe; recipes at all levels share what was loaded."""

    def __init__(
        self,
        catalog: Catalog,
        directory: str | None,
        check: Check,
        *,
        trail: tuple[str, ...] = (),
        loaded: dict[str, tuple[AgentRecipe | None, tuple[Fault, ...]]] | None = None,
    ) -> None:
        """Prepare the look-up; no file is accessed.

        Args:
            trail: Identities of the outer recipes, outermost first.
            loaded: Recipes that were loaded already, by identity.
        """
        self._catalog = catalog
        self._recipes = catalog.recipes
        self._find = catalog.find_recipe or _finder(directory, catalog.recipe_folders)
        self._directory = directory
        self._check = check
        self._trail = trail
        self._loaded = loaded if loaded is not None else {}

    def link(self, draft: RecipeDraft, report: Report) -> None:
        """Load the recipe of every recipe step; report wrong names and inputs."""
        for step in draft.steps:
            name = step.section.text("recipe") if step.kind == "recipe" else None
            if name is None:
                continue
            place = step.section.place_of("recipe")
            step.recipe = self.find(name, place, report)
            if step.recipe is not None:
                check_given(draft, step, step.recipe, report)

    def find(self, name: str, place: Place, report: Report) -> AgentRecipe | None:
        """The recipe of that name; None: there is none, or it has faults, which was reported."""
        if (registered := self._recipes.get(name)) is not None:
            return registered
        try:
            found = self._find(name, self._directory)
        except NotFoundError as error:
            near = error.suggestions or near_names(name, self._recipes)
            label = f"did you mean '{near[0]}'?" if near else None
            report(place.fault("unknown-recipe", error.message.rstrip("."), label=label))
            return None
        except MinionsError as error:
            outside = error.error_code == "outside-project"
            code = error.error_code if outside else "unknown-recipe"
            report(place.fault(code, error.message.rstrip(".")))
            return None
        if found.identity in self._trail:
            report(_cycle(place, (*self._trail, found.identity)))
            return None
        recipe, faults = self._load(found)
        if recipe is None:
            report(_faulty(name, found, faults, place))
        return recipe

    def _load(self, found: FoundRecipe) -> tuple[AgentRecipe | None, tuple[Fault, ...]]:
        known = self._loaded.get(found.identity)
        if known is not None:
            return known
        inner = SubRecipes(
            replace(self._catalog, find_recipe=found.recipes or self._find),
            found.directory,
            self._check,
            trail=(*self._trail, found.identity),
            loaded=self._loaded if found.recipes is None else None,
        )
        result = self._loaded[found.identity] = self._check(found, inner)
        return result


def _cycle(place: Place, trail: tuple[str, ...]) -> Fault:
    first = trail.index(trail[-1])
    names = " → ".join(f"'{Path(each).stem}'" for each in trail[first:])
    return place.fault("recipe-cycle", f"recipes run each other in a cycle: {names}")


def _faulty(name: str, found: FoundRecipe, faults: tuple[Fault, ...], place: Place) -> Fault:
    errors = [fault for fault in faults if not fault.is_warning]
    count = "a fault" if len(errors) == 1 else f"{len(errors)} faults"
    first = errors[0]
    return place.fault(
        "bad-recipe",
        f"the recipe '{name:.60}' has {count}: {first.message}",
        label=f"at {first.file}:{first.line}:{first.column}",
        help=f"minions validate {shell_word(found.file)}",
    )


# --- checks of recipes that run as steps ---------------------------------------------------------


def check_given(draft: RecipeDraft, step: StepDraft, recipe: AgentRecipe, report: Report) -> None:
    """Report unknown, missing and mismatched inputs of one recipe step, and
    secrets that are not secret inputs.
    """
    owner = f"the recipe '{recipe.id}'"
    node = step.section.mapping("with")
    given: dict[str, Entry] = {entry.key: entry for entry in node.entries} if node else {}
    properties: dict[str, JsonValue] = {
        name: {} if spec.is_secret else dict(spec.schema) for name, spec in recipe.inputs.items()
    }
    schema: JsonSchema = {"type": "object", "properties": properties, "additionalProperties": False}
    check_against_schema(schema, given, owner, report, {}, recipe.id)
    for name, entry in given.items():
        if name in recipe.inputs and recipe.inputs[name].is_secret:
            _check_secret(draft, owner, entry, report)
    if "with" not in step.section.refused:
        _check_missing(step, recipe, given, report)


def check_rights(draft: RecipeDraft, report: Report) -> None:
    """Warn where a nested recipe writes and the outer one does not allow it."""
    for step in draft.steps:
        inner = step.recipe
        if inner is None or not inner.permissions.allow_write or draft.permissions.allow_write:
            continue
        report(
            step.section.place_of("recipe").fault(
                "write-not-allowed",
                f"the recipe '{inner.id}' changes something, and in this one that will be refused",
                help="set permissions: {allow_write: true}",
                is_warning=True,
            )
        )


def _check_secret(draft: RecipeDraft, owner: str, entry: Entry, report: Report) -> None:
    """Report a secret of the nested recipe that is not bound to a secret input of this recipe.

    Secrets are chosen by whoever starts the run: no recipe picks a variable or a file.
    """
    secrets = [name for name, spec in draft.inputs.items() if spec.is_secret]
    name = _input_named_by(entry.value, draft.templates)
    if name in secrets or (name is not None and name not in draft.inputs):
        return  # an unknown input was reported already
    written = f"{{{{ inputs.{secrets[0]} }}}}" if secrets else "{{ inputs.NAME }}"
    declare = "" if secrets else "declare an input {type: string, secret: true} and "
    fault = entry.value.place.fault(
        "literal-secret",
        f"'{entry.key}' of {owner} is a secret, and takes only a secret input of this recipe",
        help=f'{declare}write "{written}"',
    )
    report(masked(fault) if is_constant(entry.value) else fault)


def _input_named_by(node: Node, compiled: Templates) -> str | None:
    """The input that the value consists of; None: the value is anything else."""
    value = to_plain(node)
    try:
        term = compiled.compile(value).term if isinstance(value, str) else None
    except TemplateError:
        return None
    path = term.reference.path if isinstance(term, ValuePath) else ()
    return str(path[1]) if len(path) == 2 and path[0] == "inputs" else None


def _check_missing(
    step: StepDraft, recipe: AgentRecipe, given: Mapping[str, Entry], report: Report
) -> None:
    """Report inputs without a value. A secret's default counts only
    when its recipe is run by itself.
    """
    missing = [
        name
        for name, spec in recipe.inputs.items()
        if name not in given and (spec.is_secret or not spec.has_default)
    ]
    properties: dict[str, JsonValue] = {name: {} for name in recipe.inputs}
    schema: JsonSchema = {"properties": properties, "required": [*missing]}
    misspelt = names_misspelt(schema, given)
    missing = [name for name in missing if name not in misspelt]
    if missing:
        listed = ", ".join(f"'{name}'" for name in missing)
        report(
            step.section.place_of("recipe").fault(
                "missing-input",
                f"the recipe '{recipe.id}' needs {listed}",
                help=f"write it under with:; its inputs are: {', '.join(recipe.inputs)}",
            )
        )
