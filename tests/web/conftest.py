"""Debian's Chromium, and a server whose page it looks at."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from page_server import Served

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, ConsoleMessage

_BROWSERS = (
    Path("/usr/bin/chromium-headless-shell"),  # without the windows: a third of the other's time
    Path("/usr/bin/chromium"),
)
_FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """Headless; skipped where something is missing."""
    if importlib.util.find_spec("playwright") is None:
        pytest.skip("the Python package playwright is not installed")
    chromium = next((each for each in _BROWSERS if each.exists()), None)
    if chromium is None:
        pytest.skip(f"there is no {_BROWSERS[0]}: apt-get install chromium-headless-shell")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=_FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="package")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One for all tests of the page that neither kill it nor need its folder as it was."""
    served = Served(tmp_path_factory.mktemp("served") / "project")
    served.start()
    yield served
    served.kill()


@pytest.fixture
def own_served(tmp_path: Path) -> Iterator[Served]:
    """One for this test alone."""
    served = Served(tmp_path / "project")
    served.start()
    yield served
    served.kill()


@pytest.fixture
def window(browser: Browser) -> Iterator[BrowserContext]:
    """Nothing that is kept from others; at its end no script has failed or been refused."""
    context = browser.new_context(
        viewport={"width": 1280, "height": 800},
        reduced_motion="reduce",  # what turns is drawn sixty times a second, by the processor
    )
    context.set_default_timeout(60_000)  # only a page that hangs takes so long
    problems: list[str] = []

    def note(message: ConsoleMessage) -> None:
        if message.type == "error" and "Failed to load resource" not in message.text:
            problems.append(message.text)

    context.on("console", note)
    context.on("weberror", lambda error: problems.append(str(error.error)))
    yield context
    context.close()
    assert problems == []
