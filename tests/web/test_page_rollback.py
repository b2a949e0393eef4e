"""Files on the page: what a rollback would do, what it did, and the question before it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from page_server import Served

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, Page

pytest.importorskip("playwright.sync_api", reason="the Python package playwright is missing")

from playwright.sync_api import expect

expect.set_options(timeout=30_000)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Whose folder no other module's runs have changed."""
    served = Served(tmp_path_factory.mktemp("changes") / "project")
    served.start()
    yield served
    served.kill()


def _changed(window: BrowserContext, served: Served) -> Page:
    folder = served.folder / "changed"
    folder.mkdir(exist_ok=True)
    (folder / "one.md").write_text("old")
    run = served.begin("changing")
    page = window.new_page()
    page.goto(served.at(f"/runs/{run}"))
    expect(page.locator("h1 .chip")).to_have_text("completed")
    return page


@pytest.mark.parametrize("width", [1280, 400])
def test_the_files_of_a_run_are_rolled_back_after_a_question(
    window: BrowserContext, served: Served, width: int
) -> None:
    page = _changed(window, served)
    folder = served.folder / "changed"
    page.set_viewport_size({"width": width, "height": 800})
    files = page.get_by_role("region", name="Files")
    files.get_by_role("button", name="Roll back files…").click()
    expect(files).to_contain_text("This would be done")
    expect(files).to_contain_text("Not reversible")
    assert (folder / "one.md").read_text() == "new"
    files.get_by_role("button", name="Cancel").click()
    expect(files.get_by_role("button", name="Roll back files…")).to_be_focused()
    (folder / "deep" / "two.md").write_text("somebody else's")
    files.get_by_role("button", name="Roll back files…").click()
    files.get_by_role("button", name="Roll back 1 file", exact=True).click()
    expect(files.get_by_text("Rolled back", exact=True)).to_be_visible()
    rows = files.get_by_role("listitem")
    expect(rows.filter(has_text="one.md")).to_contain_text("put back")
    expect(rows.filter(has_text="two.md")).to_contain_text("left")
    expect(rows.filter(has_text="letter")).to_contain_text("once")
    expect(files.get_by_role("heading", name="Files")).to_be_focused()
    assert (folder / "one.md").read_text() == "old"
    assert (folder / "deep" / "two.md").read_text() == "somebody else's"
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    (folder / "deep" / "two.md").unlink()


def test_a_run_that_changed_no_files_offers_no_rollback(
    window: BrowserContext, served: Served
) -> None:
    run = served.begin("fragile")
    page = window.new_page()
    page.goto(served.at(f"/runs/{run}"))
    expect(page.locator("h1 .chip")).to_have_text("failed")
    expect(page.get_by_role("region", name="Files")).to_have_count(0)


def test_a_run_that_waits_offers_no_rollback(window: BrowserContext, served: Served) -> None:
    run = served.begin("replanned")
    page = window.new_page()
    page.goto(served.at(f"/runs/{run}"))
    page.get_by_role("button", name="Carry it out", exact=True).click()
    expect(page.get_by_role("region", name="What differs from the plan before")).to_be_visible()
    expect(page.get_by_role("button", name="Roll back files…")).to_have_count(0)
    page.get_by_role("button", name="Reject").click()
    expect(page.get_by_role("button", name="Roll back files…")).to_be_visible()
