"""The page of a server with several projects: which there are, and what is to be done in them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from served import RECIPES
from serving import EXTENSIONS, Serving

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext

pytest.importorskip("playwright", reason="the Python package playwright is not installed")
from playwright.sync_api import expect

expect.set_options(timeout=60_000)  # only a page that hangs takes so long

_TABLE = """
default = "shop"
[projects.shop]
db = "shop.sqlite"
[projects.lab]
db = "lab.sqlite"
"""


@pytest.fixture
def projects(tmp_path: Path) -> Iterator[Serving]:
    """A server of two projects."""
    (tmp_path / "own.py").write_text(EXTENSIONS, "utf-8")
    (tmp_path / "recipes").mkdir()
    for name in ("adds", "asks"):
        (tmp_path / "recipes" / f"{name}.yaml").write_text(RECIPES[name], "utf-8")
    (tmp_path / "projects.toml").write_text(_TABLE, "utf-8")
    options = ("--projects", "projects.toml", "--extensions", "own.py")
    with Serving(tmp_path, *options) as server:
        yield server


def test_the_page_shows_all_projects_and_leads_to_what_is_theirs(
    window: BrowserContext, projects: Serving
) -> None:
    shop, lab = projects.of_project("shop"), projects.of_project("lab")
    shop.ask("POST", "/runs", {"recipe": "adds", "inputs": {"a": 1}})
    lab.ask("POST", "/runs", {"recipe": "asks", "inputs": {}})
    page = window.new_page()
    page.goto(f"{projects.url}/projects/shop/#token={projects.token}")
    expect(page.get_by_title("The project of this page")).to_have_text("shop")
    page.get_by_role("link", name="All projects").click()
    rows = page.get_by_role("region", name="Projects").get_by_role("row")
    expect(rows.filter(has_text="shop")).to_contain_text("the default one")
    expect(rows.filter(has_text="lab")).to_contain_text("reachable")
    expect(page.get_by_role("button", name="Next")).to_have_count(0)  # all are here
    runs = page.get_by_role("region", name="Runs").get_by_role("row")
    expect(runs.filter(has_text="shop")).to_contain_text("adds")
    sessions = page.get_by_role("region", name="Sessions").get_by_role("row")
    expect(sessions.filter(has_text="lab")).to_contain_text("asks")
    decision = page.get_by_role("region", name="Decisions").get_by_role("row", name="asks")
    expect(decision).to_contain_text("lab")
    runs.filter(has_text="lab").get_by_role("link", name="asks").click()
    expect(page.locator("h1 .chip")).to_have_text("needs a decision")
    expect(page.get_by_title("The project of this page")).to_have_text("lab")
    page.go_back()
    page.wait_for_timeout(1500)
    page.screenshot(path="/tmp/fl/p.png", full_page=True)
    page.go_forward()
    page.wait_for_timeout(500)
    assert page.url.startswith(f"{projects.url}/projects/lab/#/runs/")


def test_a_server_of_one_database_has_no_list_of_projects(
    window: BrowserContext, tmp_path: Path
) -> None:
    with Serving(tmp_path, "--db", "j.sqlite") as server:
        page = window.new_page()
        page.goto(f"{server.url}/#token={server.token}")
        expect(page.get_by_role("link", name="Runs", exact=True)).to_be_visible()
        expect(page.get_by_role("link", name="All projects")).to_have_count(0)
