"""The options of commands that ask a recipe cases with known answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

import click

from minions.interfaces.deciders import POLICIES

__all__ = ["case_options"]

F = TypeVar("F", bound=Callable[..., int])

_OPTIONS: Final = (
    click.option(
        "--recorded",
        type=click.IntRange(min=1),
        metavar="N",
        help="The newest N runs of RECIPE that completed are the cases, and their outputs "
        "expected.",
    ),
    click.option(
        "--score",
        "words",
        multiple=True,
        metavar="SCORER",
        help="exact or fields; the default is fields.",
    ),
    click.option(
        "--samples",
        type=click.IntRange(1, 1_000),
        metavar="N",
        help="How often each case is asked; default 1.",
    ),
    click.option(
        "-j",
        "--jobs",
        type=click.IntRange(min=1),
        default=8,
        show_default=True,
        help="Runs at a time.",
    ),
    click.option(
        "-p", "--param", "pairs", multiple=True, metavar="NAME=VALUE", help="For each case."
    ),
    click.option("--params", metavar="FILE", help="Inputs for each case, YAML or JSON; -p wins."),
    click.option("--timeout", metavar="TIME", help="Most time for one run: 90, 90s, 10m."),
    click.option("--retry-failed", is_flag=True, help="Retry the runs that failed."),
    click.option(
        "--approve",
        type=click.Choice([policy for policy in POLICIES if policy != "ask"]),
        help="Who approves calls that need approval; default: the case waits.",
    ),
)


def case_options(function: F) -> F:
    """Add which cases are asked, how, and how an answer is scored."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function
