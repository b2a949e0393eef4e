"""One version of a recipe's text in an editor, with all that the checker knows of it."""

from __future__ import annotations

import bisect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from attrs import evolve, field, frozen

from minions.analysis.bounds import KnowModel, nothing_known
from minions.data.errors import Fault, MinionsError
from minions.recipe.catalog import Catalog
from minions.recipe.checks.sources import Sources
from minions.recipe.drafts import RecipeDraft
from minions.recipe.reading.load import LoadedRecipe, check_recipe_text
from minions.recipe.recipe_files import SUFFIXES
from minions.recipe.text.nodes import LINE_BREAKS


class Spot(NamedTuple):
    """A place of a text: line and column in characters, from 0; lines end as YAML says."""

    line: int
    column: int


class Stretch(NamedTuple):
    """A part of one line: its line and column from 0, and its characters."""

    line: int
    column: int
    length: int

    def holds(self, spot: Spot) -> bool:
        """Whether the cursor stands in it, or at its end."""
        return self.line == spot.line and 0 <= spot.column - self.column <= self.length


@frozen(kw_only=True)
class Project:
    """What the recipes of an editor's folder may name. Made without executing or connecting."""

    catalog: Catalog
    know: KnowModel = nothing_known
    """Looks up context length and price of a model."""
    has_unread_code: bool = False
    """Whether the configuration names Python files that a server of editors does not execute: what
    they define is not known, so that unknown names are warnings.
    """


OpenProject = Callable[[], Project]
"""Reads the configuration of the current folder."""


@frozen(kw_only=True, eq=False)
class CheckedText:
    """One version of the text of a recipe."""

    text: str
    path: Path
    project: Project
    loaded: LoadedRecipe
    known: RecipeDraft | None
    """What was read of this version, else of the last one of which anything could be."""
    lines: tuple[str, ...] = field(init=False)

    @lines.default
    def _lines(self) -> tuple[str, ...]:
        return tuple(LINE_BREAKS.split(self.text))

    @property
    def draft(self) -> RecipeDraft | None:
        """What was read of this very version, whose places are valid."""
        return self.loaded.draft

    def line(self, number: int) -> str:
        """The line of that number, from 0; empty where there is none."""
        return self.lines[number] if 0 <= number < len(self.lines) else ""

    def sources(self) -> Sources | None:
        """The values that the recipe's templates can read."""
        return Sources(self.known) if self.known is not None else None


def check_text(
    text: str, path: Path, project: Project, before: CheckedText | None = None
) -> CheckedText:
    """Check a version of a text as `minions validate` does.

    Args:
        before: The version before it.
    """
    loaded = check_recipe_text(text, str(path), project.catalog)
    if project.has_unread_code:
        loaded = evolve(loaded, faults=tuple(map(_of_unread_code, loaded.faults)))
    known = loaded.draft or (before.known if before is not None else None)
    return CheckedText(text=text, path=path, project=project, loaded=loaded, known=known)


def refused_text(text: str, path: Path, error: MinionsError) -> CheckedText:
    """A text that cannot be checked, with the reason as its one fault."""
    fault = Fault(code=error.error_code, message=error.message, file=str(path))
    loaded = LoadedRecipe(faults=(fault,))
    return CheckedText(
        text=text, path=path, project=Project(catalog=Catalog()), loaded=loaded, known=None
    )


_UNKNOWN_NAMES: Final = frozenset(
    {
        "unknown-link",
        "unknown-model",
        "unknown-recipe",
        "unknown-step-class",
        "unknown-tool",
        "unknown-toolset",
    }
)
_UNREAD: Final = (
    "the editor executes no Python: this may be a name of your extensions, which "
    "`minions validate` reads, or `minions lsp --extensions`"
)


def _of_unread_code(fault: Fault) -> Fault:
    if fault.code not in _UNKNOWN_NAMES or fault.is_warning:
        return fault
    more = f"{fault.help}; {_UNREAD}" if fault.help else _UNREAD
    return evolve(fault, is_warning=True, help=more)


_TOP_KEYS: Final = re.compile(
    r"^(steps|inputs|permissions|system_prompt|goal)[ \t]*:", re.MULTILINE
)


def is_recipe(text: str, path: Path, language: str) -> bool:
    """Whether the text is a recipe, and no other YAML: it has `steps`, or lies where recipes do.

    Args:
        language: What the editor calls its language; `minions` is always a recipe.
    """
    if language == "minions":
        return True
    if path.suffix not in SUFFIXES:
        return False
    keys = {found[1] for found in _TOP_KEYS.finditer(text)}
    return "steps" in keys or (bool(keys) and "recipes" in path.parts)


# --- where an editor counts ----------------------------------------------------------------------


_CLIENT_BREAKS: Final = re.compile(r"\r\n|\n|\r")


class ClientPlaces:
    """Turns places of the text into those of the editor, which knows fewer ends of lines, and
    counts other units than characters.
    """

    def __init__(self, text: str, units: Callable[[str], int]) -> None:
        """Args: units: How many units of the editor a text has."""
        self._units = units
        self._text = text
        self._own = [0, *(each.end() for each in LINE_BREAKS.finditer(text))]
        self._theirs = [0, *(each.end() for each in _CLIENT_BREAKS.finditer(text))]

    def to_client(self, spot: Spot) -> Spot:
        """The editor's line, and its column in its units."""
        if spot.line >= len(self._own):
            return self._of_offset(len(self._text))
        end = self._end(self._own, spot.line)
        return self._of_offset(min(self._own[spot.line] + spot.column, end))

    def of_client(self, line: int, column: int) -> Spot:
        """The place of what the editor calls so; the nearest one, if there is none."""
        offset = self.offset_of(line, column)
        own = bisect.bisect_right(self._own, offset) - 1
        return Spot(own, offset - self._own[own])

    def offset_of(self, line: int, column: int) -> int:
        """The characters of the text before that place of the editor."""
        if line >= len(self._theirs):
            return len(self._text)
        start, end = self._theirs[line], self._end(self._theirs, line)
        at = start
        while at < end and column > 0:
            column -= self._units(self._text[at])
            at += 1
        return at

    def _end(self, starts: list[int], line: int) -> int:
        end = starts[line + 1] if line + 1 < len(starts) else len(self._text)
        return len(self._text[starts[line] : end].rstrip("\r\n")) + starts[line]

    def _of_offset(self, offset: int) -> Spot:
        line = bisect.bisect_right(self._theirs, offset) - 1
        return Spot(line, self._units(self._text[self._theirs[line] : offset]))
