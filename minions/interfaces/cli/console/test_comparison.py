"""What a recipe's tests say before a change and after it, as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from minions.app.evaluating.learning import TestComparison, used_by
from minions.app.evaluating.recipe_tests import TestOutcome
from minions.interfaces.cli.console.render import dollars


def comparison_lines(compared: TestComparison, names: tuple[str, str]) -> Iterator[str]:
    """The lines of both sides, and the tests that differ.

    Args:
        names: What the recipe is called before the change and after it.
    """
    width = max(map(len, names)) + 1
    for name, outcomes in zip(names, (compared.before, compared.after), strict=True):
        yield f"tests {f'{name}:':{width}} {_side(outcomes)}"
    before = {each.test.name for each in compared.before if each.faults}
    after = {each.test.name for each in compared.after if each.faults}
    if better := before - after:
        yield f"  pass now: {', '.join(sorted(better))}"
    if worse := after - before:
        yield f"  fail now: {', '.join(sorted(worse))}"
    if compared.is_cut:
        yield "  not all tests were run: --max-cost is spent"


def _side(outcomes: Sequence[TestOutcome]) -> str:
    used, passed = used_by(outcomes), sum(not each.faults for each in outcomes)
    cost = dollars(used.cost_usd) if used.cost_usd is not None else "cost unknown"
    return (
        f"{passed} of {len(outcomes)} passed · {used.total_tokens:,} tokens "
        f"({used.input_tokens:,} in) · {cost}"
    )
