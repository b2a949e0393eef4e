"""Mends the text of a recipe: words of other tools, misspelt keys, templates without quotes.

Only the faulty words are replaced, so that comments and layout stay. What has several meanings is
left for a person.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from attrs import frozen

from minions.data.errors import Fault, RecipeError
from minions.planning.recipe_diff import recipe_diff
from minions.recipe.catalog import Catalog
from minions.recipe.reading.load import check_recipe_text
from minions.recipe.text.foreign_words import NAME_WORDS, TYPE_WORDS

_MOST_ROUNDS: Final = 20
"""A mended word may show faults that it hid; each round mends what the one before it showed."""
_KEY_LABEL: Final = re.compile(r"(?:write|did you mean) '([A-Za-z_]\w*)'\??")
_TYPE_LABEL: Final = re.compile(r"write ([a-z]+)(?:, or .*)?")
_COMMENT: Final = re.compile(r"\s#.*")


@frozen(kw_only=True)
class Mending:
    """One word that was replaced."""

    line: int
    """Line number in the mended text, from 1."""
    before: str
    after: str


@frozen(kw_only=True)
class MendedRecipe:
    """A recipe's text with its mendings, and the faults that are left."""

    before: str
    text: str
    mendings: tuple[Mending, ...]
    left: tuple[Fault, ...]
    """Faults and warnings, in the order of the mended text."""

    @property
    def errors(self) -> tuple[Fault, ...]:
        """The faults that a person has to mend."""
        return tuple(fault for fault in self.left if not fault.is_warning)

    def diff(self, name: str) -> str:
        """The change as a unified diff; empty where nothing was mended.

        Args:
            name: The name of the file.
        """
        return recipe_diff(self.before, self.text, name)


def mend_recipe(text: str, file: str, catalog: Catalog) -> MendedRecipe:
    """Mend what has one meaning; the text stays as it is where that makes it no better.

    Args:
        file: Name of the file, for places; relative paths start from its folder.
    """
    before, mendings = text, list[Mending]()
    faults = _faults(text, file, catalog)
    for _ in range(_MOST_ROUNDS):
        changes = list(_changes(text, faults))
        if not changes:
            break
        mended = _applied(text, changes)
        now = _faults(mended, file, catalog)
        if _same(faults, now):
            break
        text, faults = mended, now
        mendings += [Mending(line=each.line, before=each.old, after=each.new) for each in changes]
    mendings.sort(key=lambda each: each.line)
    return MendedRecipe(before=before, text=text, mendings=tuple(mendings), left=faults)


def _faults(text: str, file: str, catalog: Catalog) -> tuple[Fault, ...]:
    try:
        return check_recipe_text(text, file, catalog).faults
    except RecipeError as error:  # it is no YAML
        return error.faults


def _same(before: Sequence[Fault], after: Sequence[Fault]) -> bool:
    """Whether a round changed no fault."""
    return [(each.where, each.message) for each in before] == [
        (each.where, each.message) for each in after
    ]


@frozen(kw_only=True)
class _Change:
    """One replacement in a line."""

    line: int
    start: int
    """Column of the first character, from 0."""
    old: str
    new: str


def _changes(text: str, faults: Sequence[Fault]) -> Iterator[_Change]:
    """The replacements that these faults suggest, at most one for each place."""
    lines = text.splitlines()
    taken: set[tuple[int, int]] = set()
    for fault in faults:
        if fault.line > len(lines) or (fault.line, fault.column) in taken:
            continue
        line, start = lines[fault.line - 1], fault.column - 1
        old = line[start : start + fault.length]
        if fault.code == "bad-yaml":
            old = _COMMENT.sub("", line[start:]).rstrip()
        new = _replacement(fault, old)
        if new is not None and new != old:
            taken.add((fault.line, fault.column))
            yield _Change(line=fault.line, start=start, old=old, new=new)


def _replacement(fault: Fault, old: str) -> str | None:
    """What stands for the underlined words; None: a person has to say."""
    label = fault.label or ""
    if fault.code == "unknown-key":
        found = _KEY_LABEL.fullmatch(label)
        return _as_written(old, found[1]) if found is not None else None
    if fault.code == "bad-schema" and old.strip("\"'").casefold() in TYPE_WORDS:
        found = _TYPE_LABEL.fullmatch(label)
        return _as_written(old, found[1]) if found is not None else None
    if fault.code == "unknown-reference" and "in a step with 'loop'" in label:
        return NAME_WORDS.get(old)
    if fault.code == "bad-yaml" and fault.message == "a template is not quoted":
        return _quoted(old)
    return None


def _as_written(old: str, new: str) -> str:
    """The new word in the quotes of the old one."""
    quote = old[:1] if old[:1] in ("'", '"') else ""
    return f"{quote}{new}{quote}"


def _quoted(value: str) -> str | None:
    """The value in quotes; None: both kinds stand in it."""
    quotes = [quote for quote in ('"', "'") if quote not in value]
    return f"{quotes[0]}{value}{quotes[0]}" if quotes and "\\" not in value else None


def _applied(text: str, changes: Sequence[_Change]) -> str:
    """The text with the changes; those further right come first, so that columns stay right."""
    lines = text.splitlines(keepends=True)
    for each in sorted(changes, key=lambda change: (change.line, change.start), reverse=True):
        line = lines[each.line - 1]
        end = each.start + len(each.old)
        lines[each.line - 1] = f"{line[: each.start]}{each.new}{line[end:]}"
    return "".join(lines)
