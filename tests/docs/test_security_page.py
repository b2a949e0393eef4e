"""Each promise of the page about security names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text("utf-8")
NAMED = re.compile(r"`((?:tests|minions)/[\w/]+\.py)::(test_\w+)`")


def test_every_promise_names_a_test_and_each_test_exists() -> None:
    rows = [
        line
        for section in re.split(r"^### ", PAGE, flags=re.MULTILINE)[1:]
        for line in section.splitlines()
        if line.startswith("| ") and not line.startswith(("| promise", "| ---"))
    ]
    assert len(rows) > 20
    for row in rows:
        named = NAMED.findall(row)
        assert named, row
        for file, test in named:
            assert re.search(rf"def {test}\(", (ROOT / file).read_text("utf-8")), (file, test)
