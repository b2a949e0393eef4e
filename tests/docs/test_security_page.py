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


def test_the_page_says_what_was_counted_of_injections() -> None:
    """A-167: `make agent-dojo` counts again; no pair may be let through."""
    page = (ROOT / "benchmarks" / "agent_dojo.md").read_text("utf-8")
    played, _, attacked = page.partition("## An attacker")
    adaptive, _, planned = attacked.partition("## An attacker")
    rows = [line.split("|")[1:-1] for line in played.splitlines() if line.startswith("| ")][1:]
    pairs = {
        policies: sum(int(row[2]) for row in rows if row[1].strip() == policies)
        for policies in ("none", "where", "each word", "planned")
    }
    unasked = {
        policies: [row[6].strip().removesuffix("%") for row in rows if row[1].strip() == policies]
        for policies in ("where", "planned")
    }
    assert (len(rows), len({*pairs.values()})) == (16, 1)
    assert [int(row[3]) for row in rows] == [0] * 16
    assert all(row[8:9] == row[9:10] for row in rows), "who hands the decision over is asked"
    known = [line.split("|")[1:-1] for line in adaptive.splitlines() if line.startswith("| ")][1:]
    assert [int(row[3]) for row in known if row[1].strip() != "where"] == [0] * 8
    text = (ROOT / "docs" / "security.md").read_text("utf-8").replace("\n", " ")
    assert f"of {pairs['none']} pairs of a task and an injection none is let through" in text
    shares = sorted(map(int, unasked["where"]))
    assert f"{shares[0]} to {shares[-1]} % of a suite ask nobody as one step" in text
    *first, last = unasked["planned"]
    assert f"{', '.join(first)} and {last} %" in text
    told = [line.split("|")[1:-1] for line in planned.splitlines() if line.startswith("| ")][1:]
    assert [row[0].strip() for row in told if int(row[2])] == ["banking", "slack"]
