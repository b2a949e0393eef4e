"""What is done all the time costs the same in a database of a million runs as in a small one."""

from __future__ import annotations

import os
from typing import Final

import pytest

from benchmarks.postgres_growth import FEW, compare, fill, measure
from postgres import PostgresServer, reason_without_postgres

_LEVELS: Final = 4
"""Blocks more for each statement: an index has one level more for each hundredfold, and an
operation looks into some of them."""


def grown(few: int, many: int, lookups: int = _LEVELS) -> bool:
    """Whether an operation touches more than the levels that indexes have more."""
    return many > few * 1.2 + lookups


pass
