"""Nothing on the page covers its neighbour or is cut, on screens of three widths."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from forked_commands import PROGRAM, ForkedCommand

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, Page

    from page_server import Served

pytest.importorskip("playwright.sync_api", reason="the Python package playwright is missing")

from playwright.sync_api import expect

WIDTHS = (1280, 768, 390)
# Pairs of cells of a row that share more than an edge, each as large as what it shows; `.about`
# cuts its text itself.
_COVERED_CELLS = """() => [...document.querySelectorAll("tbody tr")].flatMap((row) => {
    const areas = [...row.querySelectorAll("td:not(.about)")].map((cell) => {
        const boxes = [cell, ...cell.querySelectorAll("*")].map((el) => el.getBoundingClientRect());
        const [left, top] = ["left", "top"].map((side) => boxes[0][side]);
        const [right, bottom] = ["right", "bottom"].map(
            (side) => Math.max(...boxes.map((box) => box[side])));
        return {left, top, right, bottom, name: cell.dataset.label};
    });
    const isCovered = (one, other) => one !== other && one.left <= other.left
        && one.right > other.left + 1 && one.top < other.bottom - 1 && other.top < one.bottom - 1;
    return areas.flatMap((one) => areas.filter((other) => isCovered(one, other))
        .map((other) => `${one.name} over ${other.name}`));
})"""
_BROKEN_WORDS = """() => [...document.querySelectorAll("td time, td a, td code")]
    .filter((el) => el.matches("time") || /^\\S{1,20}$/.test(el.textContent))
    .filter((el) => el.getClientRects().length > 1).map((el) => el.textContent)"""
_CUT_BADGES = """() => {
    const {left, right} = document.querySelector(".minions-steps").getBoundingClientRect();
    return [...document.querySelectorAll(".badge rect")]
        .map((el) => [el.getBoundingClientRect(), el.parentNode.textContent])
        .filter(([box]) => box.left < left || box.right > right).map(([, text]) => text);
}"""


def _run(served: Served, *arguments: str, code: int = 0) -> None:
    """A command of the project's folder, to its end with that exit code."""
    command = ForkedCommand([*PROGRAM, *arguments], cwd=served.folder, env=dict(os.environ))
    assert command.wait() == code


def _at_each_width(page: Page, script: str) -> dict[int, object]:
    found: dict[int, object] = {}
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 800})
        found[width] = page.evaluate(script)
    return found


def test_no_cell_of_a_list_covers_the_next(window: BrowserContext, own_served: Served) -> None:
    (own_served.folder / "sizes.jsonl").write_text('{"letters": 20}\n{"letters": 40}\n', "utf-8")
    case = '{"name": "one", "letters": 5, "expected": "word The end."}\n'
    (own_served.folder / "cases.jsonl").write_text(case, "utf-8")
    _run(own_served, "batch", "recipes/essay.yaml", "sizes.jsonl", "--db", "j.db")
    _run(own_served, "eval", "recipes/essay.yaml", "cases.jsonl", "--db", "j.db")
    page = window.new_page()
    nothing: dict[int, object] = {width: [] for width in WIDTHS}
    page.goto(own_served.at("/batches"))
    batch = page.get_by_role("link", name="sizes.jsonl").get_attribute("href")
    for place in ("/batches", f"{batch}"[1:], "/evaluations", "/runs", "/recipes"):
        page.goto(own_served.at(place))
        expect(page.locator("tbody tr").first).to_be_visible()
        assert _at_each_width(page, _COVERED_CELLS) == nothing, place
        assert _at_each_width(page, _BROKEN_WORDS) == nothing, place


def test_what_became_of_a_step_stands_whole_in_the_picture(
    window: BrowserContext, served: Served
) -> None:
    run = served.begin("crowd", '{"names": ["Ada", "nobody", "Bo"]}')
    page = window.new_page()
    page.goto(served.at(f"/runs/{run}"))
    expect(page.locator(".badge").first).to_contain_text("partial 1 of 3 failed")
    assert page.evaluate(_CUT_BADGES) == []


def test_the_chosen_view_is_in_sight_on_a_phone(window: BrowserContext, own_served: Served) -> None:
    own_served.begin("mail")
    page = window.new_page()
    page.set_viewport_size({"width": 390, "height": 800})
    for place in ("/recipes", "/costs", "/work"):
        page.goto(own_served.at(place))
        expect(page.locator(".side .count")).to_have_text("1")
        link = page.locator(".side [aria-current]")
        expect(link).to_have_attribute("href", f"#{place}")
        chosen = link.bounding_box()
        assert chosen is not None
        assert chosen["x"] >= 0, place
        assert chosen["x"] + chosen["width"] <= 390, place
