"""What a person sees of a run some of whose items failed."""

from __future__ import annotations

import re
from typing import Final

from command_line import Cli, Write

PRICES: Final = """
id: prices
steps:
  - id: price
    loop: [12, -1, 7]
    assert: loop.item > 0
    on_item_error: collect
  - id: report
    set: {good: "{{ price.successful }} of {{ price.total }}"}
"""


def test_a_partial_step_is_marked_and_the_failed_items_can_be_retried(
    cli: Cli, write: Write
) -> None:
    write("prices.yaml", PRICES)
    done = cli("run", "prices.yaml", "--db", "j.sqlite")
    assert (done.code, done.json) == (0, {"good": "2 of 3"})
    lines = [line.strip() for line in done.err.splitlines()]
    assert any(line.startswith("✗ price[1]") for line in lines)
    assert any(line.startswith("◐ price (") and "partial" in line for line in lines)
    assert any(
        re.fullmatch(r"partial · 1 partial, 1 completed · \d+ ms · no tokens", line)
        for line in lines
    )
    assert "retry: minions retry run_" in lines[-1]


def test_json_has_every_item_of_a_partial_step(cli: Cli, write: Write) -> None:
    """A-113."""
    write("prices.yaml", PRICES)
    result = cli("run", "prices.yaml", "--db", "j.sqlite", "--json").json
    assert result["status"] == "partial"
    steps = result["steps"]
    assert isinstance(steps, list)
    price = steps[0]
    assert isinstance(price, dict)
    assert price["partial"] is True
    iterations = price["iterations"]
    assert isinstance(iterations, list)
    assert [each["status"] for each in iterations if isinstance(each, dict)] == [
        "completed",
        "failed",
        "completed",
    ]


def test_show_lists_the_items_of_a_loop_and_of_a_long_one_those_that_failed(
    cli: Cli, write: Write
) -> None:
    write("prices.yaml", PRICES)
    cli("run", "prices.yaml", "--db", "j.sqlite")
    run = "run_"
    lines = [
        line.strip() for line in cli("sessions", "show", run, "--db", "j.sqlite").out.splitlines()
    ]
    assert "3/3, 1 failed" in lines
    assert [line.split(" · ")[0] for line in lines if line.startswith("price[")] == [
        "price[0]: completed", "price[1]: failed", "price[2]: completed",
    ]  # fmt: skip
    write("long.yaml", PRICES.replace("[12, -1, 7]", str([1] * 30 + [-1])))
    cli("run", "long.yaml", "--db", "k.sqlite")
    run = "run_"
    shown = cli("sessions", "show", run, "--db", "k.sqlite").out
    assert shown.count("price[") == 1
    assert "… 30 more; --items shows all" in shown
    assert cli("sessions", "show", run, "--db", "k.sqlite", "--items").out.count("price[") == 31
