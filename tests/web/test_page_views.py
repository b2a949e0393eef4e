"""The views beside the runs: the inbox, and what works in a project."""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from forked_commands import PROGRAM, ForkedCommand
from minions.adapters.stores.memory_stores import RESERVED
from minions.adapters.stores.sqlite_side_tables import SqliteState
from minions.app.runs.left_runs import WorkerRecord
from minions.engine.services.run_services import worker_name

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


def _run(served: Served, *arguments: str, code: int = 0) -> None:
    """A command of the project's folder, to its end with that exit code."""
    command = ForkedCommand([*PROGRAM, *arguments], cwd=served.folder, env=dict(os.environ))
    assert command.wait() == code


def _store(served: Served, key: str, text: str) -> None:
    """A text beside the journal."""

    async def put() -> None:
        state = SqliteState(served.folder / "j.db")
        await state.put(f"{RESERVED}{key}", text)
        await state.aclose()

    with ThreadPoolExecutor(1) as threads:  # a browser's test has an event loop in this one
        threads.submit(asyncio.run, put()).result()


def test_workers_and_queues_say_what_waits_and_why(
    window: BrowserContext, own_served: Served
) -> None:
    page = _open(window, own_served, "/work")
    expect(page.get_by_role("heading", name="No workers")).to_be_visible()
    inputs = ("-p", "about=bees", "-p", "length=2")
    detached = ("--detach", "--queue", "nightly", "--db", "j.db")
    _run(own_served, "run", "recipes/story.yaml", *inputs, *detached)
    waiting = page.get_by_role("region", name="What waits").get_by_role("row", name="story")
    expect(waiting).to_contain_text("no living worker takes the queue 'nightly'")
    queue = page.get_by_role("region", name="Queues").get_by_role("row", name="nightly")
    expect(queue).to_contain_text("no worker")
    name = worker_name("w")
    record = WorkerRecord(
        name=name,
        queues=("nightly",),
        version="1.2",
        slots=4,
        started_at=datetime(2026, 1, 2, tzinfo=UTC),
        lacks={"any": ("the tool 'price'",)},
    )
    _store(own_served, f"worker:{name}", record.to_text())
    worker = page.get_by_role("region", name="Workers").get_by_role("row", name=name)
    expect(worker).to_contain_text("0 of 4")
    expect(worker).to_contain_text("1.2")
    expect(worker).to_contain_text("the tool 'price'")
    expect(waiting).to_contain_text("waits for a free worker")
    waiting.get_by_role("link", name="story").click()
    expect(page.locator("h1 .chip")).to_have_text("queued")


def test_a_schedule_is_paused_and_resumed_by_keys(
    window: BrowserContext, own_served: Served
) -> None:
    recipe = "id: often\nschedule: '0 8 * * *'\nsteps: [{id: a, set: {x: 1}}]\n"
    (own_served.folder / "recipes" / "often.yaml").write_text(recipe, "utf-8")
    page = _open(window, own_served, "/schedules")
    expect(page.get_by_role("heading", name="No schedules")).to_be_visible()
    _run(own_served, "schedules", "add", "recipes/often.yaml", "--db", "j.db")
    row = page.get_by_role("row", name="often")
    expect(row).to_contain_text("active")
    expect(row.locator("time")).to_have_count(3)
    button = page.get_by_role("button", name="Pause often")
    button.focus()
    page.keyboard.press("Enter")
    expect(row).to_contain_text("paused")
    expect(row.locator("time")).to_have_count(0)
    expect(page.get_by_role("button", name="Resume often")).to_be_focused()
    page.keyboard.press("Enter")
    expect(row).to_contain_text("active")


def test_an_address_of_a_recipe_shows_it_or_says_that_there_is_none(
    window: BrowserContext, served: Served
) -> None:
    page = _open(window, served, "/recipes/anything")
    alert = page.get_by_role("alert").filter(has_text="There is no recipe 'anything'")
    expect(alert).to_be_visible()
    expect(page.get_by_role("row", name="story")).to_be_visible()
    alert.get_by_role("link", name="All recipes").click()
    expect(page.get_by_role("row", name="story")).to_be_visible()
    expect(alert).to_have_count(0)
    page.goto(f"{served.url}/#/recipes/story")
    expect(page.get_by_label("Filter recipes")).to_have_value("story")
    expect(page.get_by_role("row", name="story")).to_be_visible()
    expect(alert).to_have_count(0)


def test_costs_are_drawn_over_time_and_told_apart(
    window: BrowserContext, own_served: Served
) -> None:
    page = _open(window, own_served, "/costs")
    expect(page.get_by_role("heading", name="No runs in this time")).to_be_visible()
    own_served.record("common", "completed", 3)
    own_served.record("rare", "failed", 1)
    failures = page.get_by_role("region", name="Failures")
    expect(failures).to_contain_text("25 %")
    expect(failures).to_contain_text("1 of 4 runs")
    plot = failures.get_by_role("img", name="Failures by hour; highest at")
    expect(plot.locator("rect.whole")).to_have_count(1)
    expect(plot.locator("title").last).to_contain_text("1 of 4 runs")
    table = page.get_by_role("table", name="Figures by recipe")
    expect(table.get_by_role("row", name="rare")).to_contain_text("1 (100 %)")
    page.get_by_label("Recipe", exact=True).select_option("story")
    expect(page.get_by_role("heading", name="No runs in this time")).to_be_visible()
    page.go_back()
    page.get_by_label("Period").select_option("month")
    page.get_by_label("Told apart").select_option("model")
    page.wait_for_url(f"{own_served.url}/#/costs?period=month&by=model")
    page.reload()
    expect(page.get_by_label("Period")).to_have_value("month")
    expect(page.get_by_role("row", name="no model")).to_contain_text("4")
    page.get_by_label("Told apart").select_option("user")
    expect(page.get_by_role("row", name="no user")).to_contain_text("4")
    page.get_by_text("Each part as a table").click()
    expect(page.get_by_role("table", name="Figures of each part").locator("tr")).to_have_count(31)


def test_a_batch_is_one_row_and_leads_to_its_runs(
    window: BrowserContext, own_served: Served
) -> None:
    page = _open(window, own_served, "/batches")
    expect(page.get_by_role("heading", name="No batches")).to_be_visible()
    lines = [f'{{"names": ["{name}"]}}' for name in ("Ada", "nobody", "Bo")]
    (own_served.folder / "people.jsonl").write_text("\n".join(lines), "utf-8")
    _run(own_served, "batch", "recipes/crowd.yaml", "people.jsonl", "--db", "j.db", code=1)
    row = page.get_by_role("row", name="people.jsonl")
    expect(row).to_contain_text("3 of 3 ended")
    row.get_by_role("link", name="people.jsonl").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("people.jsonl")
    expect(page.locator("tbody tr")).to_have_count(3)
    page.get_by_label("Status").select_option("failed")
    expect(page.locator("tbody tr")).to_have_count(1)
    expect(page.locator("tbody tr")).to_contain_text("nobody")
    page.reload()
    expect(page.get_by_label("Status")).to_have_value("failed")
    page.locator("tbody a").click()
    expect(page.locator("h1 .chip")).to_have_text("failed")


def test_an_evaluation_is_one_row_and_leads_to_its_cases(
    window: BrowserContext, own_served: Served
) -> None:
    page = _open(window, own_served, "/evaluations")
    expect(page.get_by_role("heading", name="No evaluations")).to_be_visible()
    folder = own_served.folder
    for name, text in (("plain", "{{ inputs.text }}"), ("loud", "{{ inputs.text | upper }}")):
        (folder / f"{name}.yaml").write_text(
            f'id: {name}\ninputs: {{text: string}}\nsteps: [{{id: a, set: {{text: "{text}"}}}}]\n'
            "output: '{{ a.text }}'\n",
            "utf-8",
        )
    cases = [f'{{"name": "{each}", "text": "{each}", "expected": "{each}"}}' for each in "aB"]
    (folder / "cases.jsonl").write_text("\n".join(cases), "utf-8")
    _run(own_served, "eval", "plain.yaml", "cases.jsonl", "--against", "loud.yaml", "--db", "j.db")
    page.reload()
    row = page.get_by_role("row", name="plain.yaml on cases.jsonl")
    expect(row).to_contain_text("50 %")
    row.get_by_role("link", name="plain.yaml on cases.jsonl").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("plain.yaml on cases.jsonl")
    shown = page.locator("table.cases tbody tr")
    expect(shown).to_have_count(2)
    page.get_by_label("Cases", exact=True).first.select_option("different")
    expect(shown).to_have_count(1)
    expect(shown).to_contain_text("not passed")
    page.reload()
    expect(shown).to_have_count(1)
    shown.get_by_role("link", name="Compare").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("Compare")
