"""The page about captured recipes is what its command measures."""

from __future__ import annotations

import pytest

from benchmarks.capture import PAGE, measure
from recorded_kinds import KINDS


@pytest.mark.parametrize("name", ["discount", "copy_file", "loop_over_nothing"])
async def test_the_page_about_captures_has_what_is_measured(name: str) -> None:
    (work,) = (each for each in KINDS if each.name == name)
    assert str(await measure(work)) in PAGE.read_text("utf-8").splitlines()
