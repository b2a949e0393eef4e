"""`python -m typos`: misspells every name of every recipe, and writes `docs/design/typos.md`."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from typos.measure import ROOT, Outcome, outcome_of, rates_of, recipe_texts, typos_of
from typos.sites import Kind

_PAGE: Final = ROOT / "docs" / "design" / "typos.md"
_REASONS: Final[Mapping[Kind, str]] = {
    "fields": "the type of the value is not known before the run",
    "fields of tool results": "the tool declares no type of its result",
    "declared fields": "what reads it takes any name",
    "enum values": "any text is right there: an expected output, or the code of an error",
    "parameters": "a variable that code reads, which is not looked into",
    "types": "a word that is a default as well",
    "schema keywords": "in the short form it is the name of a field",
    "keys": "in the short form it is the name of a field",
}

_HEAD: Final = """# Every name misspelt

A recipe is checked before anything is asked of a model. How many of a person's slips that finds
is measured: `make typos` takes every recipe in `recipes/`, on the pages of this documentation and
of the tests that has no fault, misspells each name once (a letter dropped, doubled, swapped with
its neighbour or replaced, by a fixed seed), and checks the result as `minions validate` does.
Names that are free, such as the id of a step that nothing refers to, are left alone: another
spelling of them is another recipe, not a mistake.

*Refused*: there is an error, not a warning. *With the right suggestion*: the first error says "did
you mean" with the word that was there; where a declaration was misspelt, the error stands at what
reads it, and names both words. One mistake is one error: an unknown parameter is not reported as a
missing one, too. The test suite tries a sample, and holds the rates
(`tests/typos/test_typos.py`).

"""


def _page(outcomes: Sequence[Outcome], recipes: int) -> str:
    rates = rates_of(outcomes)
    lines = [
        f"{len(outcomes):,} misspellings of {recipes} recipes:",
        "",
        "| kind of name | tried | refused | with the right suggestion |",
        "| --- | ---: | ---: | ---: |",
    ]
    for kind, each in rates.items():
        lines.append(_row(kind, each.tried, each.refused, each.suggested))
    refused = sum(each.is_refused for each in outcomes)
    suggested = sum(each.is_suggested for each in outcomes)
    lines.append(_row("**all**", len(outcomes), refused, suggested))
    lines += [
        "",
        "## Not refused",
        "",
        "| name | written | where | reason |",
        "| --- | --- | --- | --- |",
    ]
    for outcome in outcomes:
        if not outcome.is_refused:
            typo = outcome.typo
            reason = _REASONS.get(typo.site.kind, "it is a name of its own")
            lines.append(f"| `{typo.site.word}` | `{typo.misspelt}` | {typo.place} | {reason} |")
    lines += ["", "## Refused with another suggestion, or none", ""]
    lines += ["| name | written | where | what was said |", "| --- | --- | --- | --- |"]
    for outcome in outcomes:
        if outcome.is_refused and not outcome.is_suggested:
            typo = outcome.typo
            said = outcome.message.replace("|", "\\|").removesuffix(" ()")
            said = said.replace("{{", "{").replace("}}", "}")
            lines.append(f"| `{typo.site.word}` | `{typo.misspelt}` | {typo.place} | {said} |")
    return _HEAD + "\n".join(lines) + "\n"


def _row(name: str, tried: int, refused: int, suggested: int) -> str:
    share = suggested / refused if refused else 0
    return f"| {name} | {tried:,} | {refused / tried:.1%} | {share:.1%} |"


def main() -> None:
    """Try all, and write the page."""
    with tempfile.TemporaryDirectory() as folder:
        recipes = list(recipe_texts(Path(folder)))
        outcomes = [outcome_of(typo) for typo in typos_of(recipes)]
    _PAGE.write_text(_page(outcomes, len(recipes)), "utf-8")
    refused = sum(each.is_refused for each in outcomes)
    suggested = sum(each.is_suggested for each in outcomes)
    tried = len(outcomes)
    rates = f"{refused / tried:.1%} refused, {suggested / refused:.1%} with the right suggestion"
    sys.stdout.write(f"{tried} tried, {rates}\n")


if __name__ == "__main__":
    main()
