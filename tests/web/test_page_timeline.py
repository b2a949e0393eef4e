"""The waterfall of a run: enlarged, moved along, and kept in the address."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, Page

    from page_server import Served

pytest.importorskip("playwright.sync_api", reason="the Python package playwright is missing")

from playwright.sync_api import expect

expect.set_options(timeout=30_000)

STEPS = 40


def opened(window: BrowserContext, served: Served) -> Page:
    """The page of a run of forty steps, one after the other."""
    run = served.begin("forty")
    page = window.new_page()
    page.goto(served.at(f"/runs/{run}"))
    expect(page.locator("h1 .chip")).to_have_text("completed")
    expect(page.locator(".fall-row .bar")).to_have_count(STEPS)
    return page


_BARS = """bars => bars.map((bar) => [bar.hidden, ...[bar.style.left, bar.style.width]
    .map((text) => Number.parseFloat(text.replace("min(", "")) / 100)])"""


def bars(page: Page) -> list[tuple[bool, float, float]]:
    """Of each row whether its bar is hidden, where it begins and how wide it is, from 0 to 1."""
    found = page.locator(".fall-row .bar").evaluate_all(_BARS)
    return [(bool(hidden), float(left), float(width)) for hidden, left, width in found]


def part(page: Page) -> tuple[float, float]:
    """From when to when it is shown, as the address says."""
    found = re.search(r"[?&]time=([\d.]+)-([\d.]+)$", page.url)
    assert found is not None, page.url
    return float(found[1]), float(found[2])


def check_bars(page: Page, whole: list[tuple[bool, float, float]], total: float) -> None:
    """What lies in the part is shown, there where it lies; all else is hidden."""
    begin, end = part(page)
    for (hidden, left, width), (_, first, size) in zip(bars(page), whole, strict=True):
        at, until = ((each * total - begin) / (end - begin) for each in (first, first + size))
        if min(abs(until), abs(at - 1)) > 0.01:  # not at an edge
            assert hidden is (until < 0 or at > 1)
        if not hidden:
            assert left == pytest.approx(max(0.0, at), abs=0.01)
            assert left + width == pytest.approx(min(1.0, until), abs=0.01)


def test_buttons_enlarge_the_timeline_and_the_address_keeps_the_part(
    window: BrowserContext, served: Served
) -> None:
    page = opened(window, served)
    state = page.get_by_role("status", name="Timeline")
    expect(state).to_have_text("all")
    whole = bars(page)
    assert not any(hidden for hidden, _, _ in whole)
    for times in (2, 4):
        page.get_by_role("button", name="Enlarge the timeline").click()
        expect(state).to_have_text(f"{times} ×")
    begin, end = part(page)
    length = end - begin
    assert (begin, end) == pytest.approx((1.5 * length, 2.5 * length), abs=0.01)
    check_bars(page, whole, 4 * length)
    page.reload()
    expect(state).to_have_text("4 ×")
    expect(page.locator(".fall-row .bar")).to_have_count(STEPS)
    check_bars(page, whole, 4 * length)
    page.get_by_role("button", name="Later").click()
    expect(state).to_have_text("4 ×")
    assert part(page)[0] == pytest.approx(2 * length, abs=0.01)
    check_bars(page, whole, 4 * length)
    for _ in range(5):
        page.get_by_role("button", name="Earlier").click()
    assert part(page) == pytest.approx((0, length), abs=0.01)
    page.get_by_role("button", name="Shrink the timeline").click()
    expect(state).to_have_text("2 ×")
    page.get_by_role("button", name="All of the timeline").click()
    expect(state).to_have_text("all")
    assert bars(page) == whole
    assert "time=" not in page.url


def test_keys_enlarge_around_the_picked_step_and_the_step_stays_picked(
    window: BrowserContext, served: Served
) -> None:
    page = opened(window, served)
    last = page.locator(".fall-row").last
    name = last.get_attribute("data-step")
    last.click()
    expect(last).to_have_attribute("aria-pressed", "true")
    last.focus()
    for _ in range(3):
        page.keyboard.press("+")
    state = page.get_by_role("status", name="Timeline")
    expect(state).to_have_text("8 ×")
    assert not bars(page)[-1][0]
    expect(page).to_have_url(re.compile(rf"step={name}&time="))
    expect(last).to_have_attribute("aria-pressed", "true")
    expect(last).to_be_focused()
    begin, end = part(page)
    page.keyboard.press("ArrowLeft")
    earlier = max(0.0, begin - (end - begin) / 2)  # of a step that took long it is the beginning
    assert part(page)[0] == pytest.approx(earlier, abs=0.01)
    page.keyboard.press("Escape")  # closes the step, and leaves the part as it is
    expect(page).to_have_url(re.compile(r"/runs/[^?]+\?time="))
    expect(state).to_have_text("8 ×")
    page.keyboard.press("0")
    expect(state).to_have_text("all")


@pytest.mark.parametrize("written", ["5-1", "x", "1-", "-1-2", "99999999-999999999", "1e3-2e3"])
def test_a_part_that_does_not_exist_shows_the_whole_timeline(
    window: BrowserContext, served: Served, written: str
) -> None:
    run = served.begin("forty")
    page = window.new_page()
    page.goto(served.at(f"/runs/{run}?time={written}"))
    expect(page.locator("h1 .chip")).to_have_text("completed")
    expect(page.get_by_role("status", name="Timeline")).to_have_text("all")
    expect(page.locator(".fall-row .bar")).to_have_count(STEPS)
    assert not any(hidden for hidden, _, _ in bars(page))


_WRONG_CLOCK = """(() => {
    const Real = Date;
    globalThis.Date = class extends Real {
        constructor(...parts) { parts.length ? super(...parts) : super(Real.now() + %d); }
        static now() { return Real.now() + %d; }
    };
})()"""


@pytest.mark.parametrize("hours", [-2, 2])
def test_how_long_a_run_takes_is_told_by_the_clock_of_the_server(
    window: BrowserContext, served: Served, hours: int
) -> None:
    """The clock of a phone may be wrong."""
    bird = f"heron{hours}".replace("-", "_")
    run = served.begin("crowd", json.dumps({"names": [f"slow {bird}"]}))
    window.add_init_script(_WRONG_CLOCK % ((hours * 3_600_000,) * 2))
    page = window.new_page()
    page.goto(served.at(f"/runs/{run}"))
    expect(page.locator("h1 .chip")).to_have_text("running")
    seconds = re.compile(r"Duration(\d+ ms|[1-9][\d.]* s)")
    expect(page.locator("dl.facts")).to_contain_text(seconds)
    page.goto(served.at("/runs"))
    row = page.locator("tr", has=page.locator(f"a[href*='{run}']"))
    expect(row).to_contain_text(re.compile(r"\d ms|\d s"))
    expect(row).not_to_contain_text(re.compile(r"\d h"))
    served.let(f"{bird}.one")
    served.let(f"{bird}.two")
    page.goto(served.at(f"/runs/{run}"))
    expect(page.locator("h1 .chip")).to_have_text("completed")
