"""Every view, by axe: what keeps people from reading or using it, in both colour schemes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, Page

    from page_server import Served

pytest.importorskip("playwright.sync_api", reason="the Python package playwright is missing")

WIDTHS = (1280, 768, 390)
VIEWS = (
    *("/inbox", "/runs", "/runs?q=status:failed", "/sessions", "/batches", "/evaluations"),
    *("/schedules", "/work", "/recipes", "/recipes/mail", "/costs", "/costs?by=user", "/system"),
    *("/compare", "/new", "/nowhere"),
)
_FAULTS = """async () => (await axe.run(document)).violations.map(
    (each) => `${each.id}: ${each.nodes.map(({ target }) => target.join(" ")).join(", ")}`)"""


def _axe() -> Path | None:
    """The script of axe-core; None: it is not there."""
    named = os.environ.get("MINIONS_NODE_MODULES")
    folder = Path(named) if named else Path(__file__).parents[2] / "node_modules"
    found = folder / "axe-core" / "axe.min.js"
    return found if found.is_file() else None


pytestmark = pytest.mark.skipif(
    _axe() is None, reason="Node's package axe-core is not in MINIONS_NODE_MODULES"
)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A project with runs in several states, one of which waits for a person."""
    from page_server import Served

    served = Served(tmp_path_factory.mktemp("axe") / "project")
    served.start()
    served.record("common", "completed", 3)
    served.record("rare", "failed", 1)
    served.begin("mail")
    yield served
    served.kill()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("place", [*VIEWS, "a run", "a part of its time"])
def test_axe_finds_no_fault(browser: Browser, filled: Served, place: str, scheme: str) -> None:
    axe = _axe()
    assert axe is not None
    context = browser.new_context(
        color_scheme="dark" if scheme == "dark" else "light",
        bypass_csp=True,  # the page itself takes no script of others
        reduced_motion="reduce",
    )
    context.set_default_timeout(60_000)
    try:
        page = context.new_page()
        page.goto(filled.at(place if place in VIEWS else "/runs"))
        if place not in VIEWS:
            page.locator("tbody tr").first.get_by_role("link").first.click()
            page.wait_for_url("**/#/runs/*")
        if place == "a part of its time":
            page.get_by_role("button", name="Enlarge the timeline").click()
            page.wait_for_url("**?time=*")
        page.get_by_role("heading", level=1).wait_for()
        page.wait_for_function("!document.querySelector('.loading')")
        page.add_script_tag(path=axe)
        found = {width: _faults_at(page, width) for width in WIDTHS}
    finally:
        context.close()
    assert found == {width: [] for width in WIDTHS}


def _faults_at(page: Page, width: int) -> list[str]:
    page.set_viewport_size({"width": width, "height": 800})
    found: list[str] = page.evaluate(_FAULTS)
    if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
        found.append("the page is wider than its window")
    return found
