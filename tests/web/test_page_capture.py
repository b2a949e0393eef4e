"""Capture on the page: the recipe that does again what a run did."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from page_server import Served

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext

pytest.importorskip("playwright.sync_api", reason="the Python package playwright is missing")

from playwright.sync_api import expect

expect.set_options(timeout=30_000)


@pytest.mark.parametrize("width", [1280, 400])
def test_a_run_shows_the_recipe_that_it_would_be(
    window: BrowserContext, served: Served, width: int
) -> None:
    (served.folder / "changed").mkdir(exist_ok=True)
    run = served.begin("changing")
    page = window.new_page()
    page.set_viewport_size({"width": width, "height": 800})
    page.goto(served.at(f"/runs/{run}"))
    capture = page.get_by_role("region", name="Capture", exact=True)
    capture.get_by_role("button", name="Capture as a recipe…").click()
    expect(capture).to_contain_text("The agent made")
    expect(capture.get_by_label("Recipe", exact=True)).to_contain_text("id: changing-captured")
    expect(capture.get_by_label("Steps of the captured recipe")).to_be_visible()
    capture.get_by_text("Where its values come from").click()
    expect(capture.get_by_role("listitem").first).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
