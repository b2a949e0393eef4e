"""TOML of strangers, which the standard library parses in quadratic time for long keys."""

from __future__ import annotations

from typing import Any, Final

_MOST_DOTS: Final = 200
"""Dots of one line: a key `a.a.a…` of 50,000 parts takes half a minute."""


def parse_toml(text: str) -> dict[str, Any]:  # Any: what a TOML file may hold
    """The values of a TOML text.

    Raises:
        ValueError: It is not TOML, is nested too deep, or has a line of more than 200 dots.
    """
    import tomllib

    for number, line in enumerate(text.splitlines(), 1):
        if line.count(".") > _MOST_DOTS:
            raise ValueError(f"line {number} has more than {_MOST_DOTS} dots")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
