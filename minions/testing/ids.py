"""Ids that count up instead of being random."""

from __future__ import annotations

from collections import Counter

from minions.contracts.runtime import Ids

__all__ = ["counting_ids"]


def counting_ids() -> Ids:
    """`run_1`, `run_2`, `exe_1` …: for `Services(ids=counting_ids())`."""
    counts: Counter[str] = Counter()

    def next_id(prefix: str) -> str:
        counts[prefix] += 1
        return f"{prefix}_{counts[prefix]}"

    return next_id
