"""The child runs of a distributed step, in words for the terminal."""

from __future__ import annotations

from collections.abc import Iterator

from minions.engine.views.child_run_states import ChildRun, ChildRunStates


def child_run_lines(children: ChildRunStates) -> Iterator[str]:
    """A line with the counts by state, and a line for each of the first that failed or wait."""
    yield _totals(children)
    for each in children.listed:
        yield _listed(each)
    if children.unlisted:
        yield f"and {children.unlisted} more"


def _totals(children: ChildRunStates) -> str:
    count = sum(children.counts.values())
    runs = f"{count} child run{'' if count == 1 else 's'}"
    if children.total is not None and count < children.total:
        runs += f" of {children.total} items"
    states = ", ".join(f"{number} {status}" for status, number in children.counts.items())
    return f"{runs}: {states}" if states else runs


def _listed(child: ChildRun) -> str:
    reason = f" · {' '.join(child.reason.split())}" if child.reason else ""
    return f"{child.address}: {child.status} · {child.run_id}{reason}"
