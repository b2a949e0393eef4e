"""Outputs on the page: a person marks that of a run or of a step, and sees what was said of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from forked_commands import PROGRAM, run_forked

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext

    from page_server import Served

pytest.importorskip("playwright.sync_api", reason="the Python package playwright is missing")

from playwright.sync_api import expect

expect.set_options(timeout=30_000)


@pytest.mark.parametrize("width", [1280, 400])
def test_the_outputs_of_a_run_and_of_a_step_are_marked(
    window: BrowserContext, served: Served, width: int
) -> None:
    run = served.begin("changing")
    page = window.new_page()
    page.set_viewport_size({"width": width, "height": 800})
    page.goto(served.at(f"/runs/{run}"))
    expect(page.locator("h1 .chip")).to_have_text("completed")
    whole = page.get_by_role("group", name="Mark of the output").first
    whole.get_by_label("Why it is good or bad").fill("<b>As it should be.</b>")
    whole.get_by_role("button", name="Mark good").click()
    expect(whole).to_contain_text("Marked good")
    expect(whole).to_contain_text("<b>As it should be.</b>")
    expect(whole.get_by_label("Why it is good or bad")).to_have_value("")
    whole.get_by_role("button", name="Mark bad").click()
    expect(whole).to_contain_text("Marked bad")

    page.locator(".fall-row").first.click()
    step = page.get_by_role("dialog").get_by_role("group", name="Mark of the output")
    expect(step).not_to_contain_text("Marked")
    step.get_by_role("button", name="Mark good").click()
    expect(step).to_contain_text("Marked good")
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_scores_stand_beside_the_output(window: BrowserContext, served: Served) -> None:
    run = served.begin("changing")
    page = window.new_page()
    page.goto(served.at(f"/runs/{run}"))
    expect(page.locator("h1 .chip")).to_have_text("completed")
    (served.folder / "watched.yaml").write_text(
        "id: changing\nwatch: {sample: 1, scorers: [{holds: 'false'}, {holds: 'true'}]}\n"
        "steps: [{id: a, set: {x: 1}}]\n",
        "utf-8",
    )
    command = [*PROGRAM, "watch", "watched.yaml", "--db", "j.db"]
    assert run_forked(command, cwd=served.folder).returncode == 0
    page.reload()
    scores = page.locator("section.panel").filter(has_text="Scores")
    expect(scores).to_contain_text("holds false")
    expect(scores.locator("li")).to_have_count(2)
