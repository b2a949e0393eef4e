"""What examples that are chosen for each question are worth, as the page about them says."""

from __future__ import annotations

from pathlib import Path

from benchmarks.example_choice import CHOICES, measured, rows

PAGE = Path(__file__).parents[2] / "docs" / "step-examples.md"


async def test_two_near_examples_show_the_right_label_more_often_than_four_fixed_ones() -> None:
    found = {choice.name: await measured(choice) for choice in CHOICES}
    fixed, near = found["fixed, 4"], found["nearest, 2"]
    assert near.questions == 72
    assert near.shown > 2 * fixed.shown
    assert near.right > 2 * fixed.right
    assert near.tokens < 0.75 * fixed.tokens
    assert near.equal < fixed.equal, "the price: a cache of prompts serves less"


async def test_the_page_has_what_is_measured() -> None:
    lines = PAGE.read_text("utf-8").splitlines()
    assert [row for row in await rows() if row not in lines] == []
