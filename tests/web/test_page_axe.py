"""Every view, by axe: what keeps people from reading or using it, in both colour schemes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from forked_commands import PROGRAM, ForkedCommand

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
LEADS = {
    "a run": ("/runs", 'tbody a[href^="#/runs/run_"]'),
    "a run that asks": ("/inbox", "article a"),
    "a run whose files can be restored": ("/runs", "tbody a >> text=changing"),
    "a batch": ("/batches", "tbody a"),
    "an evaluation": ("/evaluations", "tbody a"),
    "a session": ("/sessions", "tbody a"),
    "a conversation": ("/sessions", 'tbody tr:has-text("chat") a'),
    "a recipe to run": ("/recipes", "tbody a >> text=crowd"),
}
"""Further views, and from which view what leads there."""
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
    for recipe in ("mail", "planned", "changing"):
        served.begin(recipe)
    served.begin("chat", '{"message": "How is the weather?"}')
    (served.folder / "items.jsonl").write_text('{"letters": 20}\n', "utf-8")
    case = '{"letters": 5, "expected": "other words"}\n'
    (served.folder / "cases.jsonl").write_text(case, "utf-8")
    detached = ("--detach", "--queue", "nightly", "-p", "letters=5", "--user", "ada")
    for command in (
        ("batch", "recipes/essay.yaml", "items.jsonl"),
        ("eval", "recipes/essay.yaml", "cases.jsonl"),
        ("run", "recipes/essay.yaml", *detached),
    ):
        done = ForkedCommand(
            [*PROGRAM, *command, "--db", "j.db"], cwd=served.folder, env=dict(os.environ)
        )
        assert done.wait() == 0
    yield served
    served.kill()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(
    "place", [*VIEWS, *LEADS, "a part of a run's time", "a step", "two runs", "the token"]
)
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
        _open(page, filled, place)
        page.get_by_role("heading", level=1).wait_for()
        page.wait_for_function("!document.querySelector('.loading')")
        page.add_script_tag(path=axe)
        found = {width: _faults_at(page, width) for width in WIDTHS}
    finally:
        context.close()
    assert found == {width: [] for width in WIDTHS}


def _open(page: Page, filled: Served, place: str) -> None:
    if place in VIEWS:
        page.goto(filled.at(place))
        return
    if place == "the token":
        page.goto(filled.url)
        page.get_by_label("Token").wait_for()
        return
    if place == "two runs":
        page.goto(filled.at("/compare?a=run_common_000&b=run_rare_000"))
        page.get_by_role("table").first.wait_for()
        return
    view, link = LEADS.get(place, LEADS["a run"])
    page.goto(filled.at(view))
    page.locator(link).first.click()
    page.wait_for_url(lambda url: not url.endswith(f"#{view}"))
    if place == "a part of a run's time":
        page.get_by_role("button", name="Enlarge the timeline").click()
        page.wait_for_url("**?time=*")
    elif place == "a step":
        page.locator(".minions-steps .node").first.click()
        page.locator(".drawer").wait_for()


def _faults_at(page: Page, width: int) -> list[str]:
    page.set_viewport_size({"width": width, "height": 800})
    found: list[str] = page.evaluate(_FAULTS)
    if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
        found.append("the page is wider than its window")
    return found
