"""Misspells names of recipes one at a time, and tells what the checks say of each."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from attrs import frozen

from docs.markdown_blocks import blocks_of
from minions.app.wiring.built_in_extensions import built_in_extensions
from minions.app.wiring.extension_files import load_extensions
from minions.data.errors import MinionsError, RecipeError
from minions.recipe.catalog import Catalog
from minions.recipe.reading.load import LoadedRecipe, check_recipe_text
from recipe.sample_catalog import CATALOG
from typos.sites import Kind, Site, sites_of

ROOT: Final = Path(__file__).parents[2]
_SEED: Final = 1163
_LETTERS: Final = "abcdefghijklmnopqrstuvwxyz"


@frozen(kw_only=True)
class RecipeText:
    """A recipe without faults, and what it may name."""

    name: str
    file: str
    text: str
    catalog: Catalog

    def check(self, text: str) -> LoadedRecipe:
        """What `minions validate` checks, with another text."""
        return check_recipe_text(text, self.file, self.catalog)


@frozen(kw_only=True)
class Typo:
    """One name, misspelt once."""

    recipe: RecipeText
    site: Site
    misspelt: str

    @property
    def text(self) -> str:
        """The recipe with it."""
        text, at = self.recipe.text, self.site.offset
        return f"{text[:at]}{self.misspelt}{text[at + len(self.site.word) :]}"

    @property
    def place(self) -> str:
        """Where it stands."""
        line = self.recipe.text.count("\n", 0, self.site.offset) + 1
        return f"{self.recipe.name}:{line}"


@frozen(kw_only=True)
class Outcome:
    """What the checks said of it."""

    typo: Typo
    is_refused: bool
    is_suggested: bool
    """Whether the first fault names the right word first."""
    message: str
    """The first fault; else the warning that may be about it."""


def recipe_texts(folder: Path) -> Iterator[RecipeText]:
    """Shipped recipes, those of the documentation, and those of tests, that have no fault.

    Args:
        folder: Takes the files that pages name.
    """
    found = [*_shipped(), *_of_pages(folder), *_of_tests()]
    seen: set[str] = set()
    for each in found:
        if each.text not in seen and not _errors(each, each.text):
            seen.add(each.text)
            yield each


def _shipped() -> Iterator[RecipeText]:
    home = ROOT / "recipes"
    files = [f"recipes/{path.name}" for path in sorted(home.glob("*_model.py"))]
    files.append("recipes/activity_service.py")
    catalog = load_extensions(files, ROOT, built_in_extensions()).catalog()
    for path in sorted(home.rglob("*.yaml")):
        yield RecipeText(
            name=f"recipes/{path.name}", file=str(path), text=path.read_text(), catalog=catalog
        )


def _of_pages(folder: Path) -> Iterator[RecipeText]:
    for page in sorted((ROOT / "docs").rglob("*.md")):
        home = folder / page.relative_to(ROOT).with_suffix("")
        home.mkdir(parents=True, exist_ok=True)
        catalog: Catalog | None = None
        for block in blocks_of(page):
            if block.file is not None and block.is_right:
                (home / block.file).parent.mkdir(parents=True, exist_ok=True)
                (home / block.file).write_text(block.text, "utf-8")
                catalog = None if block.file.endswith(".py") else catalog
            is_recipe = block.language == "yaml" and re.search("^steps:", block.text, re.MULTILINE)
            if not is_recipe or not block.is_right:
                continue
            if catalog is None:
                names = sorted(path.name for path in home.glob("*.py"))
                try:
                    catalog = load_extensions(names, home, built_in_extensions()).catalog()
                except MinionsError:  # files that need what the page's blocks make
                    catalog = load_extensions([], home, built_in_extensions()).catalog()
            yield RecipeText(
                name=f"{page.relative_to(ROOT)} {block.file or f'at line {block.line}'}",
                file=str(home / (block.file or "recipe.yaml")),
                text=block.text,
                catalog=catalog,
            )


def _of_tests() -> Iterator[RecipeText]:
    for path in sorted((ROOT / "tests").rglob("*.yaml")):
        text = path.read_text("utf-8", errors="replace")
        if "\nsteps:" in text:
            name = str(path.relative_to(ROOT))
            yield RecipeText(name=name, file=str(path), text=text, catalog=CATALOG)


def _errors(recipe: RecipeText, text: str) -> bool:
    try:
        return bool(recipe.check(text).errors)
    except MinionsError:
        return True


def typos_of(recipes: Iterable[RecipeText]) -> Iterator[Typo]:
    """Each name of each recipe, misspelt once, by a fixed seed."""
    for recipe in recipes:
        words = set(re.findall(r"\w+", recipe.text))
        for site in sites_of(recipe.text):
            by_chance = random.Random(f"{_SEED} {recipe.name} {site.offset} {site.word}")
            yield Typo(recipe=recipe, site=site, misspelt=_misspelt(site.word, words, by_chance))


def _misspelt(word: str, taken: set[str], by_chance: random.Random) -> str:
    """The word with one edit that makes no other word of the recipe."""
    for _ in range(20):
        at = by_chance.randrange(len(word))
        edited = by_chance.choice(
            (
                word[:at] + word[at + 1 :],
                word[: at + 1] + word[at:],
                word[:at] + word[at + 1 : at + 2] + word[at] + word[at + 2 :],
                word[:at] + by_chance.choice(_LETTERS) + word[at + 1 :],
            )
        )
        if edited != word and edited not in taken and re.fullmatch(r"[A-Za-z_][\w-]*", edited):
            return edited
    return f"{word}{word[-1]}"


_MEANT: Final = re.compile(r"(?:[Dd]id you mean|write) (?:\w+\.)*'?(?:\w+\.)*([\w-]+)")


def outcome_of(typo: Typo) -> Outcome:
    """Check the recipe with it, as `minions validate` does."""
    try:
        loaded = typo.recipe.check(typo.text)
        errors, faults = loaded.errors, loaded.faults
    except RecipeError as error:
        errors = faults = error.faults
    first = next(iter(errors or faults), None)
    said = "" if first is None else f"{first.message} ({first.label or ''})"
    meant = _MEANT.search(f"{first.label or first.help or ''}") if first is not None else None
    word, other = typo.site.word, typo.misspelt
    # Where a declaration is misspelt, the fault stands at what reads it and names both words.
    is_suggested = meant is not None and (
        meant[1] == word or (meant[1] == other and first is not None and word in first.message)
    )
    return Outcome(
        typo=typo, is_refused=bool(errors), is_suggested=bool(errors) and is_suggested, message=said
    )


@frozen(kw_only=True)
class Rates:
    """How many misspellings of one kind of name there are, and what came of them."""

    tried: int
    refused: int
    suggested: int


def rates_of(outcomes: Iterable[Outcome]) -> Mapping[Kind, Rates]:
    """By kind, in the order of their names."""
    by_kind: dict[Kind, list[Outcome]] = {}
    for outcome in outcomes:
        by_kind.setdefault(outcome.typo.site.kind, []).append(outcome)
    return {
        kind: Rates(
            tried=len(each),
            refused=sum(one.is_refused for one in each),
            suggested=sum(one.is_suggested for one in each),
        )
        for kind, each in sorted(by_kind.items())
    }
