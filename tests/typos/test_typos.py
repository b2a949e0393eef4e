"""A sample of what `make typos` tries in full: the rates that the page states hold."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

from typos.measure import Outcome, outcome_of, rates_of, recipe_texts, typos_of
from typos.sites import Kind, sites_of

ROOT: Final = Path(__file__).parents[2]
_SAMPLE: Final = 160
_MOST_MISSED: Final[dict[Kind, int]] = {}
"""Misspellings of the sample that are not refused, by kind; of others none."""


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Sequence[Outcome]:
    """What the checks say of the sample."""
    typos = typos_of(recipe_texts(tmp_path_factory.mktemp("pages")))
    # The same at every run; a page that is added changes a few of them alone.
    chosen = sorted(typos, key=lambda typo: random.Random(f"{typo.place} {typo.misspelt}").random())
    return [outcome_of(typo) for typo in chosen[:_SAMPLE]]


def test_99_of_100_misspelt_names_are_refused_before_anything_is_asked(
    outcomes: Sequence[Outcome],
) -> None:
    """Of a sample of all names; `make typos` tries each (A-163)."""
    missed = [f"{each.typo.place} {each.typo.misspelt}" for each in outcomes if not each.is_refused]
    assert len(missed) <= len(outcomes) / 100, missed
    for kind, rates in rates_of(outcomes).items():
        assert rates.tried - rates.refused <= max(1, _MOST_MISSED.get(kind, 0)), kind


def test_95_of_100_refused_names_come_with_the_right_suggestion_first(
    outcomes: Sequence[Outcome],
) -> None:
    """Of the same sample (A-163)."""
    refused = [each for each in outcomes if each.is_refused]
    others = [f"{each.typo.place} {each.message}" for each in refused if not each.is_suggested]
    assert len(others) <= 5 * len(refused) / 100, others


def test_the_readme_says_what_the_page_of_all_misspellings_counted() -> None:
    """A-163: 99 of 100 there, and so in the sample above."""
    readme = (ROOT / "README.md").read_text("utf-8")
    page = (ROOT / "docs" / "design" / "typos.md").read_text("utf-8")
    assert "of names misspelt one at a time in all our\n  recipes, 99 of 100 are refused" in readme
    counted = re.search(r"\*\*all\*\* \| [\d,]+ \| ([\d.]+)% \| ([\d.]+)%", page)
    assert counted is not None
    assert float(counted[1]) >= 99
    assert float(counted[2]) >= 95


def test_names_of_every_kind_are_found_in_a_recipe() -> None:
    text = """\
id: sample
inputs:
  mode: {type: string, enum: [fast, slow], format: path}
steps:
  - id: read
    tool: files__read
    params: {path: x}
  - id: told
    depends_on: [read]
    when: inputs.mode == 'fast'
    goal: "{{ read.text | upper }} {{ inputs.mode }}"
    output: {type: object, properties: {kind: {type: string}}, required: [kind]}
  - id: shown
    set: {kind: "{{ told.kind }}"}
"""
    found = {(site.kind, site.word) for site in sites_of(text)}
    wanted = {
        ("inputs", "mode"),
        ("enum values", "fast"),
        ("formats", "path"),
        ("ids", "read"),
        ("tools", "files__read"),
        ("parameters", "path"),
        ("references", "read"),
        ("fields of tool results", "text"),
        ("filters", "upper"),
        ("declared fields", "kind"),
        ("required", "kind"),
        ("fields", "kind"),
        ("types", "string"),
        ("keys", "depends_on"),
        ("schema keywords", "properties"),
    }
    assert wanted <= found
    assert ("ids", "shown") not in found  # nothing refers to it
