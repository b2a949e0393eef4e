"""A plan on the page: shown as it is, edited, planned again, carried out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, Page

    from page_server import Served

pytest.importorskip("playwright.sync_api", reason="the Python package playwright is missing")

from playwright.sync_api import expect

expect.set_options(timeout=30_000)


def _waiting_plan(window: BrowserContext, served: Served) -> Page:
    run = served.begin("planned")
    page = window.new_page()
    page.goto(served.at(f"/runs/{run}"))
    expect(page.get_by_role("heading", name="Carry out this plan?")).to_be_visible()
    return page


def test_a_plan_is_carried_out(window: BrowserContext, served: Served) -> None:
    page = _waiting_plan(window, served)
    expect(page.get_by_text("ARTIFACTS: notes.md").first).to_be_visible()
    page.get_by_role("button", name="Carry it out", exact=True).click()
    expect(page.locator("h1 .chip")).to_have_text("completed")
    assert (served.folder / "work" / "notes.md").read_text() == "Written.\n"


def test_a_plan_is_edited_before_it_is_carried_out(window: BrowserContext, served: Served) -> None:
    page = _waiting_plan(window, served)
    page.get_by_text("Edit the plan").click()
    editor = page.get_by_label("Edited plan")
    editor.fill(editor.input_value().replace("notes.md", "edited.md"))
    page.get_by_role("button", name="Carry it out as edited").click()
    expect(page.locator("h1 .chip")).to_have_text("completed")
    assert (served.folder / "work" / "edited.md").exists()


def test_a_plan_is_made_again_as_somebody_wants_it(window: BrowserContext, served: Served) -> None:
    page = _waiting_plan(window, served)
    page.get_by_text("Let it be planned again").click()
    page.get_by_role("button", name="Plan again").click()
    expect(page.get_by_text("This must not be empty.")).to_be_visible()
    page.get_by_label("What to do differently").fill("Shorter")
    page.get_by_role("button", name="Plan again").click()
    expect(page.get_by_text("ARTIFACTS: terse.md").first).to_be_visible()
    page.get_by_role("button", name="Reject").click()
    expect(page.get_by_role("main").get_by_role("alert").first).to_contain_text("rejected")
