"""The lists of the page: filters and pages stand in the address, and the server applies them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from minions.adapters.stores.memory_stores import RESERVED
from minions.adapters.stores.sqlite_side_tables import SqliteState
from minions.app.evaluating.background_scores import StoredWatch
from minions.app.evaluating.live_scores import WatchedScorer, WatchReport
from minions.contracts.executions import RunState
from minions.data.codec import encode
from minions.data.json_values import dumps
from minions.evaluation.statistics import Interval
from minions.recipe.recipe_files import project_of
from page_server import Served

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, Page, Request

pytest.importorskip("playwright.sync_api", reason="the Python package playwright is missing")

from playwright.sync_api import expect

expect.set_options(timeout=60_000)  # only a page that hangs takes so long


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A failed run, and behind it more runs than a page shows."""
    served = Served(tmp_path_factory.mktemp("many") / "project")
    served.start()
    served.record("rare", "failed", 1)
    served.record("common", "completed", 150)
    yield served
    served.kill()


def _open(window: BrowserContext, served: Served, place: str) -> Page:
    page = window.new_page()
    page.goto(served.at(place))
    return page


def _rows(page: Page, count: int, summary: str) -> None:
    expect(page.locator("tbody tr")).to_have_count(count)
    expect(page.get_by_role("status").filter(has_text=re.compile(r"\d"))).to_have_text(summary)


def test_a_run_behind_the_first_page_is_found_and_its_address_can_be_kept(
    window: BrowserContext, many: Served
) -> None:
    page = _open(window, many, "/runs")
    _rows(page, 100, "1–100 of 151 runs")
    page.get_by_label("Status").select_option("failed")
    _rows(page, 1, "1 run with these filters")
    page.get_by_label("Filter runs").fill("rare")
    page.wait_for_url(f"{many.url}/#/runs?status=failed&q=rare")
    for again in (page, window.new_page()):
        again.goto(many.at("/runs?status=failed&q=rare"))
        again.reload()
        _rows(again, 1, "1 run with these filters")
        expect(again.get_by_label("Status")).to_have_value("failed")
        expect(again.get_by_label("Filter runs")).to_have_value("rare")


def test_the_first_visit_is_small_and_a_view_is_loaded_when_it_is_wanted(
    window: BrowserContext, many: Served
) -> None:
    page = window.new_page()
    finished: list[Request] = []
    page.on("requestfinished", lambda request: finished.append(request))
    page.goto(many.at("/runs"))
    _rows(page, 100, "1–100 of 151 runs")
    page.wait_for_load_state("load")
    sizes = {each.url.removeprefix(many.url): each.sizes() for each in finished}
    assert "/run.js" not in sizes
    (listed,) = (size for path, size in sizes.items() if path.startswith("/api/v1/runs?"))
    assert listed["responseBodySize"] < 8_000  # of 100 runs, compressed
    sent = sum(each["responseBodySize"] + each["responseHeadersSize"] for each in sizes.values())
    assert 30_000 < sent < 50_000
    page.locator("tbody a").first.click()
    expect(page.get_by_role("region", name="Picture of the steps")).to_be_visible()
    assert f"{many.url}/run.js" in [each.url for each in finished]


def test_a_view_whose_script_does_not_come_is_shown_when_it_comes(
    window: BrowserContext, own_served: Served
) -> None:
    page = _open(window, own_served, "/runs")
    expect(page.get_by_role("heading", name="No runs yet")).to_be_visible()
    own_served.kill()
    page.get_by_role("link", name="Costs").click()
    expect(page.get_by_role("alert")).to_contain_text("The server does not answer")
    own_served.start()
    expect(page.get_by_role("heading", name="Costs", exact=True)).to_be_visible()
    expect(page.get_by_role("alert")).to_have_count(0)


def test_a_search_is_completed_and_stands_in_the_address(
    window: BrowserContext, many: Served
) -> None:
    page = _open(window, many, "/runs")
    _rows(page, 100, "1–100 of 151 runs")
    field = page.get_by_label("Filter runs")
    offered = page.locator("datalist option")
    field.press_sequentially("rare sta")
    expect(offered).to_have_count(1)
    expect(offered).to_have_attribute("value", "rare status:")
    field.press_sequentially("tus:f")
    expect(offered).to_have_attribute("value", "rare status:failed")
    field.press_sequentially("ailed")
    page.wait_for_url(f"{many.url}/#/runs?q=rare+status%3Afailed")
    _rows(page, 1, "1 run with these filters")
    field.fill("recipe:sto")
    expect(offered).to_have_attribute("value", "recipe:story")
    field.fill("stauts:failed")
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("character 1 of the search")
    expect(alert).to_contain_text("Did you mean 'status'?")


def test_a_search_that_is_still_typed_is_not_asked_for(
    window: BrowserContext, many: Served
) -> None:
    page = _open(window, many, "/runs?q=status%3Afailed")
    _rows(page, 1, "1 run with these filters")
    field = page.get_by_label("Filter runs")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if "q=" in request.url else None)
    field.fill('status:failed "ra')
    field.press_sequentially('re"')
    page.wait_for_url(f"{many.url}/#/runs?q=status%3Afailed+%22rare%22")
    _rows(page, 1, "1 run with these filters")
    assert [url for url in asked if "%22ra&" in url] == []


def test_a_view_is_saved_under_a_name_and_opened_from_the_navigation(
    window: BrowserContext, many: Served
) -> None:
    page = _open(window, many, "/runs?q=status%3Afailed&page=1")
    _rows(page, 1, "1 run with these filters")
    page.get_by_role("button", name="Save this view").click()
    name = page.get_by_label("Name of the view")
    expect(name).to_be_focused()
    name.press("Enter")
    expect(page.get_by_text("The view needs a name.")).to_be_visible()
    name.fill("Failed <b>")
    name.press("Enter")
    expect(page.get_by_role("button", name="Save this view")).to_be_focused()
    views = page.get_by_role("group", name="Saved views")
    link = views.get_by_role("link", name="Failed <b>")
    expect(link).to_have_attribute("aria-current", "page")
    page.get_by_role("link", name="Recipes", exact=True).click()
    expect(link).not_to_have_attribute("aria-current", "page")
    page.reload()
    link.click()
    page.wait_for_url(f"{many.url}/#/runs?q=status%3Afailed")
    _rows(page, 1, "1 run with these filters")
    other = _open(window, many, "/recipes")
    expect(other.get_by_role("group", name="Saved views").get_by_role("link")).to_have_count(1)
    views.get_by_role("button", name="Remove the saved view Failed <b>").click()
    expect(views).to_be_hidden()
    expect(other.get_by_role("group", name="Saved views")).to_be_hidden()


def test_a_list_that_is_empty_because_of_its_filters_says_so_and_clears_them(
    window: BrowserContext, many: Served
) -> None:
    page = _open(window, many, "/runs?recipe=common")
    page.get_by_label("Status").select_option("failed")
    expect(page.get_by_role("heading", name="No runs with these filters")).to_be_visible()
    expect(page.locator(".empty li")).to_have_text(["status: failed", "recipe: common"])
    page.get_by_role("button", name="Clear the filters").click()
    _rows(page, 100, "1–100 of 151 runs")
    expect(page.get_by_label("Status")).to_have_value("")
    assert page.url == f"{many.url}/#/runs"
    page.go_back()
    expect(page.get_by_label("Status")).to_have_value("failed")
    expect(page.locator(".empty li")).to_have_count(2)


def test_a_filtered_list_is_turned_page_by_page(window: BrowserContext, many: Served) -> None:
    page = _open(window, many, "/runs?recipe=common")
    _rows(page, 100, "1–100 of 150 runs with these filters")
    expect(page.get_by_role("button", name="Newer")).to_be_hidden()
    page.get_by_role("button", name="Older").click()
    _rows(page, 50, "101–150 of 150 runs with these filters")
    assert page.url == f"{many.url}/#/runs?recipe=common&page=2"
    expect(page.get_by_role("button", name="Older")).to_be_hidden()
    page.get_by_role("button", name="Newer").click()
    _rows(page, 100, "1–100 of 150 runs with these filters")
    page.goto(f"{many.url}/#/runs?page=9")
    _rows(page, 51, "101–151 of 151 runs")
    assert page.url == f"{many.url}/#/runs?page=2"


def test_sessions_are_filtered_likewise_and_lead_to_their_runs(
    window: BrowserContext, many: Served
) -> None:
    page = _open(window, many, "/sessions")
    _rows(page, 100, "1–100 of 151 sessions")
    page.get_by_label("Filter sessions").fill("rare")
    _rows(page, 1, "1 session with these filters")
    assert page.url == f"{many.url}/#/sessions?text=rare"
    page.locator("tbody a").first.click()
    page.get_by_role("main").get_by_role("link", name="Runs", exact=True).click()
    _rows(page, 1, "1 run with these filters")
    page.get_by_role("button", name="Remove the filter session: ses_rare_000").click()
    _rows(page, 100, "1–100 of 151 runs")


def test_each_state_is_offered_and_one_that_there_is_not_is_refused(
    window: BrowserContext, many: Served
) -> None:
    """A-128: the page has the same names."""
    page = _open(window, many, "/runs")
    options = page.get_by_label("Status").locator("option")
    expect(options).to_have_count(len(RunState) + 1)
    offered = [each.get_attribute("value") for each in options.all()]
    assert offered == ["", *(state.value for state in RunState)]
    expect(page.locator("tbody tr")).to_have_count(100)
    page.evaluate("location.hash = '#/runs?status=unfinished'")
    _refused_and_cleared(page)


def test_an_address_with_a_filter_that_there_is_not_is_refused_where_the_page_is_opened(
    window: BrowserContext, many: Served
) -> None:
    _refused_and_cleared(_open(window, many, "/runs?status=unfinished"))


def _refused_and_cleared(page: Page) -> None:
    expect(page.get_by_role("alert")).to_contain_text("'unfinished' is not one of ['queued'")
    page.get_by_role("button", name="Clear the filters").click()
    expect(page.locator("tbody tr")).to_have_count(100)


def test_on_a_narrow_screen_a_row_is_two_lines_and_nothing_is_cut_off(
    window: BrowserContext, many: Served
) -> None:
    page = _open(window, many, "/runs?status=failed")
    page.set_viewport_size({"width": 768, "height": 800})
    _rows(page, 1, "1 run with these filters")
    width, row, table = page.evaluate(
        """() => [document.documentElement.scrollWidth,
            document.querySelector("tbody tr").getBoundingClientRect().height,
            document.querySelector("table").getBoundingClientRect().right]"""
    )
    assert (width, row < 64, table <= 768) == (768, True, True)
    assert page.locator("tbody tr a, tbody tr input").count() == 2


def test_ids_that_begin_alike_are_told_apart(window: BrowserContext, many: Served) -> None:
    page = _open(window, many, "/runs?recipe=common")
    expect(page.locator("tbody tr")).to_have_count(100)
    shown = page.locator("tbody tr code").all_text_contents()
    assert len(set(shown)) == len(shown)


def test_a_conversation_opens_at_what_was_said_last(window: BrowserContext, served: Served) -> None:
    lines = "\\n".join(f"line {number}" for number in range(200))
    run = served.begin("chat", f'{{"message": "{lines}"}}')
    page = _open(window, served, f"/runs/{run}")
    expect(page.locator("h1 .chip")).to_have_text("completed")
    page.get_by_role("link", name="Session", exact=True).click()
    expect(page.locator(".bubble").last).to_be_in_viewport()
    assert page.evaluate("window.scrollY") > 400


def test_runs_that_got_worse_are_told_where_they_are_listed(
    window: BrowserContext, own_served: Served
) -> None:
    (own_served.folder / "recipes" / "watched.yaml").write_text(
        "id: watched\nwatch: {sample: 1, scorers: [{holds: 'true'}]}\n"
        "steps: [{id: a, set: {x: 1}}]\n",
        "utf-8",
    )
    now = datetime(2999, 1, 2, tzinfo=UTC)  # what is older than a week is not shown
    scorer = WatchedScorer(
        scorer="holds true",
        scored=40,
        failed=0,
        recent=Interval(0.25, 0.1, 0.4),
        before=Interval(0.9, 0.8, 1.0),
        is_alarm=True,
        worse_run="run_1",
        worse_session="ses_1",
    )
    found = StoredWatch(
        recipe="watched",
        project=project_of(own_served.folder),
        looked_at=now,
        worker="one",
        report=WatchReport(recipe="watched", sampled=40, scorers=(scorer,)),
        alarms={"holds true": now},
    )

    async def put() -> None:
        state = SqliteState(own_served.folder / "j.db")
        await state.put(f"{RESERVED}watch:1", dumps(encode(found)))
        await state.aclose()

    with ThreadPoolExecutor(1) as threads:  # a browser's test has an event loop in this one
        threads.submit(asyncio.run, put()).result()
    words = "holds true: 25 % of the newest pass (10 % to 40 %), at first 90 %."
    for place in ("/runs", "/new?recipe=watched"):
        page = _open(window, own_served, place)
        alarm = page.get_by_role("alert").filter(has_text="Runs of watched got worse")
        expect(alarm).to_contain_text(words)
        expect(alarm.get_by_role("link")).to_have_attribute("href", "#/runs/run_1")
    page = _open(window, own_served, "/recipes")
    expect(page.get_by_role("row", name="watched")).to_contain_text("runs got worse")
