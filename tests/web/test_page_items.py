"""The items of a loop on the page: rows in the drawer, with totals that are true while it runs."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext

    from page_server import Served

pytest.importorskip("playwright.sync_api", reason="the Python package playwright is missing")

from playwright.sync_api import expect

expect.set_options(timeout=30_000)


def test_items_are_rows_with_totals_while_the_loop_runs_and_lead_to_prompt_and_answer(
    window: BrowserContext, served: Served
) -> None:
    """A-115: the page names an item by its address."""
    names = ["Ada", "nobody", "slow owl", "Ida"]
    run = served.begin("crowd", json.dumps({"names": names}))
    page = window.new_page()
    page.goto(served.at(f"/runs/{run}?step=greet"))
    drawer = page.get_by_role("dialog", name="greet")
    totals = drawer.locator(".items strong")
    expect(totals).to_contain_text("2/4, 1 failed")
    rows = drawer.locator(".items-table tbody tr")
    expect(rows.nth(0)).to_contain_text("cannot greet")
    expect(rows.nth(1)).to_contain_text("Ada.")
    expect(page.get_by_role("button", name="Step greet: running").first).to_contain_text("2/4")
    served.let("owl.one")
    served.let("owl.two")
    expect(totals).to_contain_text("4/4, 1 failed")
    drawer.get_by_label("Which items").select_option("failed")
    expect(rows).to_have_count(1)
    drawer.get_by_label("Which items").select_option("")
    rows.nth(3).get_by_role("link").click()
    item = page.get_by_role("dialog", name="greet[3]")
    expect(item.locator(".said.assistant")).to_contain_text("greeting to Ida.")
    item.get_by_role("tab", name="Prompt").click()
    expect(item.locator(".said")).to_contain_text("greeting to Ida.")
    expect(item.locator(".said")).not_to_contain_text("Ada")
    item.get_by_role("link", name="All items").click()
    expect(rows).to_have_count(4)


def test_a_loop_of_many_items_is_shown_in_pages(window: BrowserContext, served: Served) -> None:
    names = [f"person {number}" for number in range(230)]
    run = served.begin("crowd", json.dumps({"names": names}))
    page = window.new_page()
    page.goto(served.at(f"/runs/{run}?step=greet"))
    drawer = page.get_by_role("dialog", name="greet")
    expect(drawer.locator(".items strong")).to_contain_text("230/230")
    rows = drawer.locator(".items-table tbody tr")
    expect(rows).to_have_count(100)
    drawer.get_by_role("button", name="Next").click()
    drawer.get_by_role("button", name="Next").click()
    expect(rows).to_have_count(30)
    expect(rows.last).to_contain_text("person 229.")
    expect(drawer).to_contain_text("201–230 of 230 items")


def test_the_readers_page_of_items_outlives_a_moment_with_fewer_of_them(
    window: BrowserContext, served: Served
) -> None:
    """A run that is read again begins without items."""
    page = window.new_page()
    page.goto(served.at("/"))
    parts = page.evaluate(
        """async () => {
          const { ItemTable } = await import("/items.js");
          const table = new ItemTable("/api/v1/runs/none", "greet", null, () => "/");
          const item = { status: "completed" }, parts = [];
          const show = (many) => {
            const items = new Map(Array.from({ length: many }, (_, index) => [index, item]));
            table.show(items, { total: 230, completed: 230, failed: 0, running: 0, usage: {} });
            parts.push(table.part.textContent);
          };
          show(230); table.turn(2); show(230); show(40); show(230);
          return parts;
        }"""
    )
    assert parts == ["1–100 of 230 items", "201–230 of 230 items", "", "201–230 of 230 items"]


def test_an_item_runs_again_from_its_drawer(window: BrowserContext, served: Served) -> None:
    """A-115: the page hands on its address; the other items are kept."""
    run = served.begin("crowd", json.dumps({"names": ["Ada", "Ida"]}))
    page = window.new_page()
    page.goto(served.at(f"/runs/{run}?step=greet%5B1%5D"))
    expect(page.locator("h1 .chip")).to_have_text("completed")
    page.get_by_role("button", name="Retry from here").click()
    expect(page.locator("dl.facts")).to_contain_text("Begun2 times")
    expect(page.locator("h1 .chip")).to_have_text("completed")
    page.goto(served.at(f"/runs/{run}?step=greet&tab=items"))
    rows = page.get_by_role("dialog", name="greet").locator(".items-table tbody tr")
    expect(rows).to_have_count(2)


def test_a_loop_with_failed_items_is_partial_everywhere_and_shows_them_first(
    window: BrowserContext, served: Served
) -> None:
    run = served.begin("crowd", json.dumps({"names": ["Ada", "Bo", "nobody", "Cy"]}))
    page = window.new_page()
    page.goto(served.at(f"/runs/{run}"))
    expect(page.locator("h1 .chip")).to_have_text("partial")
    node = page.locator("svg g.node").first
    expect(node).to_have_class(re.compile("is-waiting"))
    expect(node).to_contain_text("1 of 4 failed")
    row = page.locator(".fall-row").first
    expect(row.locator(".mark")).to_have_class("mark part")
    expect(row.locator(".bar")).to_have_class("bar part")
    row.click()
    drawer = page.get_by_role("dialog", name="greet")
    expect(drawer.locator(".drawer-head .chip")).to_have_text("partial")
    first = drawer.locator(".items-table tbody tr").first
    expect(first.locator("td").first).to_have_text("2")


def test_what_is_read_aloud_of_a_step_has_what_is_seen(
    window: BrowserContext, served: Served
) -> None:
    run = served.begin("story", '{"about": "bees"}')
    page = window.new_page()
    page.goto(served.at(f"/runs/{run}"))
    expect(page.locator("h1 .chip")).to_have_text("completed")
    for name, seen in page.evaluate(
        """() => [...document.querySelectorAll("svg g.node, .fall-row")].map((each) => [
            each.getAttribute("aria-label"),
            [...each.querySelectorAll("text, .name, .totals, .took")].map(
                (part) => part.textContent)])"""
    ):
        words = " ".join(part.strip() for part in seen if part.strip())
        assert words in name, (words, name)
