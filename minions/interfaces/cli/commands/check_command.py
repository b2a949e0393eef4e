"""`minions check --against`: what a change of a recipe breaks for its callers; nothing is run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click
from attrs import frozen

from minions.analysis.contract_changes import (
    ChangeLevel,
    ContractChange,
    RecipeVersion,
    contract_changes,
    level_of,
)
from minions.data.bounded_files import read_regular
from minions.data.errors import MinionsError, RecipeError, UsageError
from minions.data.json_values import JsonValue
from minions.interfaces.cli.console.console import json_text, say, tell
from minions.interfaces.cli.options import (
    CommandContext,
    ExtensionOptions,
    command_context,
    takes_options,
)
from minions.interfaces.cli.recipe_argument import checked_recipe
from minions.recipe.catalog import Catalog
from minions.recipe.model import AgentRecipe, StepSpec
from minions.recipe.nested_recipes import steps_within

_ENDINGS: Final = frozenset((".yaml", ".yml", ".json"))
_MOST_FILES: Final = 5_000
_MOST_BYTES: Final = 1_048_576
_SKIPPED: Final = frozenset(("node_modules", "__pycache__", "venv"))


@frozen(kw_only=True)
class _RecipeComparison:
    """A recipe that was compared."""

    name: str
    changes: tuple[ContractChange, ...]
    callers: tuple[str, ...] = ()
    """Recipes of the folder that run it, as `FILE (step ID)`, or what of them does not pass now."""

    @property
    def level(self) -> ChangeLevel:
        return level_of(self.changes)

    def to_json(self) -> dict[str, JsonValue]:
        return {
            "recipe": self.name,
            "level": self.level.value,
            "changes": [each.to_json() for each in self.changes],
            "callers": list(self.callers),
        }


@click.command("check")
@click.argument("recipe")
@click.option(
    "--against",
    "old",
    metavar="OLD",
    required=True,
    help="The version before: a file, or a folder where RECIPE is one.",
)
@takes_options(ExtensionOptions)
def check_command(options: ExtensionOptions, recipe: str, old: str) -> int:
    """Compare RECIPE with an OLDER version: what breaks for those who call it.

    Inputs, outputs, permissions, approvals and bounds are compared, in the words of semantic
    versioning, and the recipes beside it that run it are checked with it. Queued and waiting runs
    are not concerned: each holds its own recipe. Exit code 1 if a caller may break.
    """
    context = command_context(options)
    catalog = context.catalog()
    pairs = tuple(_pairs(Path(recipe), Path(old)))
    found = [_compare_pair(name, pair, context, catalog) for name, pair in pairs]
    checked = tuple(each for each in found if each is not None)
    if context.settings.json:
        level = level_of(tuple(change for each in checked for change in each.changes))
        say(json_text({"level": level.value, "recipes": [each.to_json() for each in checked]}))
    else:
        for each in checked:
            _print(each)
    return int(any(each.level is ChangeLevel.MAJOR for each in checked))


def _pairs(new: Path, old: Path) -> Iterator[tuple[str, tuple[Path | None, Path | None]]]:
    """Each recipe by its name, with its file now and its file before.

    Raises:
        UsageError: One is a folder and the other is not.
    """
    if new.is_dir() is not old.is_dir():
        raise UsageError(
            f"'{new}' and '{old}' cannot be compared: give two files, or two folders.",
            code="not-comparable",
        )
    if not new.is_dir():
        yield str(new), (new, old)
        return
    now, before = ({str(each.relative_to(top)): each for each in _files(top)} for top in (new, old))
    for name in sorted(now.keys() | before.keys()):
        yield name, (now.get(name), before.get(name))


def _files(top: Path) -> Iterator[Path]:
    """The files below that may be recipes."""
    seen = 0
    for path in sorted(top.rglob("*")):
        parts = path.relative_to(top).parts
        is_hidden = any(part.startswith(".") or part in _SKIPPED for part in parts)
        if is_hidden or path.suffix not in _ENDINGS or not path.is_file():
            continue
        seen += 1
        if seen > _MOST_FILES:
            raise UsageError(
                f"{top} has over {_MOST_FILES:,} files; compare a folder within it.",
                code="too-many-files",
            )
        yield path


def _compare_pair(
    name: str, pair: tuple[Path | None, Path | None], context: CommandContext, catalog: Catalog
) -> _RecipeComparison | None:
    """The comparison; None: neither file is a recipe."""
    new, old = pair
    is_of_folder = new is None or old is None or str(new) != name
    try:
        before = None if old is None else _version(str(old), context, catalog)
    except RecipeError:
        if is_of_folder:
            return None  # data, or a recipe that nobody could run
        raise
    try:
        after = None if new is None else _version(str(new), context, catalog)
    except RecipeError as error:
        if before is None:
            return None
        return _of_one(
            name, ChangeLevel.MAJOR, f"does not pass any more: {error.faults[0].message}"
        )
    if after is None or new is None:
        return _of_one(name, ChangeLevel.MAJOR, "is gone")
    if before is None:
        return _of_one(name, ChangeLevel.MINOR, "is new")
    changes = contract_changes(before, after, catalog, {})
    callers = tuple(_callers(new, after.recipe, context, catalog)) if changes else ()
    return _RecipeComparison(name=name, changes=changes, callers=callers)


def _of_one(name: str, level: ChangeLevel, message: str) -> _RecipeComparison:
    return _RecipeComparison(
        name=name, changes=(ContractChange(level=level, place="recipe", message=message),)
    )


def _version(name: str, context: CommandContext, catalog: Catalog) -> RecipeVersion:
    loaded = checked_recipe(name, context, catalog)
    return RecipeVersion(recipe=loaded.unwrap(), output=loaded.output)


def _callers(
    file: Path, recipe: AgentRecipe, context: CommandContext, catalog: Catalog
) -> Iterator[str]:
    """The recipes of the folder that run it, or would if they passed."""
    for other in _files(file.parent):
        if other.samefile(file) or not _may_name(other, file, recipe):
            continue
        try:
            loaded = checked_recipe(str(other), context, catalog)
        except MinionsError as error:
            yield f"{other}: {error.message}"
            continue
        for fault in loaded.errors:
            yield f"{fault.file}:{fault.line}: {fault.message}"
        found = loaded.recipe
        for path, _, step in steps_within(found) if found is not None else ():
            if isinstance(step, StepSpec) and step.inner is not None and step.inner.id == recipe.id:
                yield f"{other} (step {path})"


def _may_name(other: Path, file: Path, recipe: AgentRecipe) -> bool:
    try:
        text = read_regular(other, _MOST_BYTES).decode("utf-8", "replace")
    except OSError:
        return False
    return recipe.id in text or file.stem in text


def _print(checked: _RecipeComparison) -> None:
    words = {
        ChangeLevel.MAJOR: "breaks callers (major)",
        ChangeLevel.MINOR: "no caller breaks (minor)",
        ChangeLevel.PATCH: "no caller sees a change (patch)",
    }
    say(f"{checked.name}: {words[checked.level]}")
    for change in checked.changes:
        say(f"  {change.level.value}: {change.place} {change.message}")
    for caller in checked.callers:
        tell(f"  called by {caller}")
