"""A plan on the page: shown as it is, edited, planned again, carried out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, Page, Route

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


# --- a plan after a failure ----------------------------------------------------------------------


def _carried_out_once(window: BrowserContext, served: Served) -> Page:
    run = served.begin("replanned")
    page = window.new_page()
    page.goto(served.at(f"/runs/{run}"))
    page.get_by_role("button", name="Carry it out", exact=True).click()
    expect(page.get_by_role("region", name="What differs from the plan before")).to_be_visible()
    return page


@pytest.mark.parametrize("width", [1280, 400])
def test_a_plan_after_a_failure_is_shown_as_what_differs(
    window: BrowserContext, served: Served, width: int
) -> None:
    page = _carried_out_once(window, served)
    page.set_viewport_size({"width": width, "height": 800})
    diff = page.get_by_role("region", name="What differs from the plan before")
    expect(diff).to_contain_text("4 steps: 1 done, 1 added, 1 removed, 1 changed")
    changed = diff.locator("li[data-change=changed]")
    expect(changed).to_contain_text("it failed")
    expect(changed.locator("del")).to_have_text("Sum up all that stands in the notes")
    expect(changed.locator("ins")).to_have_text(
        "Sum up the first half of the notes, in a few words"
    )
    expect(diff.locator("li[data-change=added]")).to_contain_text("other.md")
    expect(diff.locator("li[data-change=removed]")).to_contain_text("print")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.get_by_text("The whole plan").click()
    expect(page.get_by_role("region", name="Plan", exact=True)).to_contain_text("END_PLAN")
    page.get_by_role("button", name="Carry it out", exact=True).click()
    expect(page.locator("h1 .chip")).to_have_text("completed")


def test_what_differs_is_shown_also_where_nobody_is_asked(
    window: BrowserContext, served: Served
) -> None:
    run = served.begin("unasked")
    page = window.new_page()
    page.goto(served.at(f"/runs/{run}"))
    expect(page.get_by_text("was planned again")).to_be_visible()
    expect(page.locator("li[data-change=done]")).to_contain_text("write")


# --- several people ------------------------------------------------------------------------------


def test_of_two_people_at_one_plan_the_first_counts_and_the_second_sees_it(
    window: BrowserContext, served: Served
) -> None:
    ann = _waiting_plan(window, served)
    bob = window.new_page()
    bob.goto(served.at(f"/runs/{ann.url.rpartition('/')[2]}"))
    bob.get_by_text("Edit the plan").click()
    editor = bob.get_by_label("Edited plan")
    editor.fill(editor.input_value().replace("notes.md", "bobs.md"))
    ann.get_by_label("Your name").fill("Ann")
    ann.get_by_role("button", name="Carry it out", exact=True).click()
    expect(ann.locator("h1 .chip")).to_have_text("completed")
    told = bob.get_by_role("alert").filter(has_text="Somebody else decided")
    expect(told).to_contain_text("Ann decided at")
    expect(told).to_contain_text("yes")
    told.get_by_text("What you had written was not sent").click()
    expect(told).to_contain_text("bobs.md")
    expect(bob.locator("h1 .chip")).to_have_text("completed")
    expect(ann.get_by_text("Somebody else decided")).to_have_count(0)
    assert not (served.folder / "work" / "bobs.md").exists()


def test_an_answer_that_comes_too_late_is_refused_with_who_and_when(
    window: BrowserContext, served: Served
) -> None:
    # The page does not learn of the decision before it sends its own: an open stream would tell it.
    window.route("**/changes", lambda route: route.abort())
    window.route("**/events", lambda route: route.abort())
    page = _waiting_plan(window, served)
    run = page.url.rpartition("/")[2]

    def second(route: Route) -> None:
        """Ann decides after this person did, before the server knows."""
        served.decide(run, "no", by="Ann")
        route.continue_()

    page.route("**/approvals/*", second)
    page.get_by_role("button", name="Carry it out", exact=True).click()
    expect(page.locator("#notes")).to_contain_text("This was decided by Ann at 20")
    expect(page.locator("h1 .chip")).to_have_text("failed")


def test_a_plan_is_a_row_for_each_of_its_steps(window: BrowserContext, served: Served) -> None:
    run = served.begin("unasked")
    page = window.new_page()
    page.goto(served.at(f"/runs/{run}"))
    expect(page.locator("h1 .chip")).to_have_text("completed")
    rows = page.locator(".fall-row .name")
    expect(rows).to_have_text(["work", "planning", "write", "sum", "print", "other"])
    expect(page.locator(".fall-row").nth(3).locator(".mark")).to_have_class("mark good")
    page.get_by_role("button", name="inner steps").click()
    expect(page.get_by_role("button", name="write__changes")).to_be_visible()
    page.get_by_role("button", name="Show the plan's steps").click()
    expect(rows).to_have_count(6)
