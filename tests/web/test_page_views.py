"""The views beside the runs: the inbox, and what works in a project."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, Page

    from page_server import Served

pytest.importorskip("playwright.sync_api", reason="the Python package playwright is missing")

from playwright.sync_api import expect

expect.set_options(timeout=60_000)  # only a page that hangs takes so long


def _open(window: BrowserContext, served: Served, place: str) -> Page:
    page = window.new_page()
    page.goto(served.at(place))
    return page


def test_the_inbox_is_filtered_and_keeps_its_filters_in_the_address(
    window: BrowserContext, own_served: Served
) -> None:
    own_served.begin("mail")
    own_served.begin("planned")
    page = _open(window, own_served, "/approvals")  # where links of earlier notices lead
    cards = page.get_by_role("article")
    expect(cards).to_have_count(2)
    assert page.url == f"{own_served.url}/#/inbox"
    page.get_by_label("Kind").select_option("plan")
    expect(cards).to_have_count(1)
    expect(cards).to_contain_text("Carry out this plan?")
    page.reload()
    expect(page.get_by_label("Kind")).to_have_value("plan")
    page.get_by_label("Recipe").select_option("mail")
    expect(page.get_by_role("heading", name="Nothing waits with these filters")).to_be_visible()
    page.get_by_role("button", name="Clear the filters").click()
    expect(cards).to_have_count(2)
