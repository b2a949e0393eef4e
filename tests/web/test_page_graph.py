"""The picture of a run: zoomed, moved, with numbers in its boxes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, Page

    from page_server import Served

pytest.importorskip("playwright.sync_api", reason="the Python package playwright is missing")

from playwright.sync_api import expect

expect.set_options(timeout=30_000)


def _size_of_text(page: Page) -> float:
    """The height of the first step's name on the screen, in pixels."""
    return float(
        page.evaluate(
            "document.querySelector('.minions-steps text.id').getBoundingClientRect().height"
        )
    )


def test_a_picture_of_forty_steps_is_readable_and_fits_when_that_is_wanted(
    window: BrowserContext, served: Served
) -> None:
    run = served.begin("forty")
    page = window.new_page()
    page.goto(served.at(f"/runs/{run}"))
    picture = page.get_by_role("region", name="Picture of the steps")
    expect(picture.get_by_role("button")).to_have_count(40)
    readable = _size_of_text(page)
    assert readable >= 12
    page.get_by_role("button", name="Fit all steps").click()
    assert picture.evaluate("box => box.scrollHeight - box.clientHeight") <= 0
    assert picture.evaluate("box => box.scrollWidth - box.clientWidth") <= 0
    picture.focus()
    page.keyboard.press("1")
    expect(page.get_by_role("status", name="Zoom")).to_have_text("100 %")
    page.keyboard.press("+")
    expect(page.get_by_role("status", name="Zoom")).to_have_text("125 %")


def test_a_wide_picture_begins_within_its_box(window: BrowserContext, own_served: Served) -> None:
    branches = "".join(f"  - {{id: branch_{n}, set: {{n: {n}}}}}\n" for n in range(12))
    names = ", ".join(f"branch_{n}" for n in range(12))
    text = f"id: wide\nsteps:\n{branches}  - {{id: join, depends_on: [{names}], set: {{all: 1}}}}\n"
    (own_served.folder / "recipes" / "wide.yaml").write_text(text, "utf-8")
    page = window.new_page()
    page.goto(own_served.at(f"/runs/{own_served.begin('wide')}"))
    picture = page.get_by_role("region", name="Picture of the steps")
    expect(picture.get_by_role("button")).to_have_count(13)
    fits = "box => box.scrollWidth === box.clientWidth"
    drawn = picture.locator("svg.minions-steps").evaluate("svg => svg.viewBox.baseVal.width")
    assert picture.evaluate(fits)
    assert picture.evaluate("box => box.clientWidth") < drawn
    page.set_viewport_size({"width": 700, "height": 800})
    for _ in range(500):  # the page's policy lets nothing poll within it
        if picture.evaluate(fits):
            break
        page.wait_for_timeout(20)
    assert picture.evaluate(fits)
    page.get_by_role("button", name="1:1, as drawn").click()
    expect(page.get_by_role("status", name="Zoom")).to_have_text("100 %")


def test_a_picture_is_dragged_without_opening_a_step(
    window: BrowserContext, served: Served
) -> None:
    run = served.begin("forty")
    page = window.new_page()
    page.goto(served.at(f"/runs/{run}"))
    picture = page.get_by_role("region", name="Picture of the steps")
    page.get_by_role("button", name="Zoom in").click()
    before = picture.evaluate("box => box.scrollTop")
    box, frame = picture.get_by_role("button").nth(8).bounding_box(), picture.bounding_box()
    assert box is not None
    assert frame is not None
    x = max(box["x"], frame["x"]) + 40  # what is left of the frame is hidden
    assert x < box["x"] + box["width"]
    page.mouse.move(x, box["y"] + 20)
    page.mouse.down()
    page.mouse.move(x, box["y"] - 80, steps=4)
    page.mouse.up()
    assert picture.evaluate("box => box.scrollTop") == before + 100
    expect(page.get_by_role("dialog")).to_have_count(0)
    picture.get_by_role("button").nth(8).click()
    expect(page.get_by_role("dialog", name="step_08")).to_be_visible()


def test_boxes_tell_state_time_and_tokens(window: BrowserContext, served: Served) -> None:
    run = served.begin("essay", '{"letters": 50000}')
    page = window.new_page()
    page.goto(served.at(f"/runs/{run}"))
    picture = page.get_by_role("region", name="Picture of the steps")
    box = picture.get_by_role("button", name="Step write: completed")
    expect(box.locator(".badge")).to_contain_text("12.5k tok")
    expect(box.locator(".badge")).to_contain_text("s · ")
