"""The benchmark of plans that are used again, with an estimate in place of the tokenizer."""

from __future__ import annotations

from benchmarks.plan_reuse import measured, page
from benchmarks.token_counting import estimate


async def test_a_second_task_of_the_kind_pays_nothing_for_its_plan() -> None:
    figures = await measured(estimate)
    assert [each.planning_calls for each in figures] == [1, 1, 0, 1]
    assert [each.calls for each in figures] == [4, 4, 3, 4]
    first, again, reused, other = figures
    assert reused.planning_tokens == 0
    assert min(each.planning_tokens for each in (first, again, other)) > 300
    assert reused.tokens < again.tokens - 300
    assert f"| {reused.title} | 0 | 0 | 3 | {reused.tokens:,} |" in page(figures, "estimated")
