"""The offline model of `sales_report`: it reads the sums out of the question and judges them."""

from __future__ import annotations

import json

from minions import Prompt, ScriptedModel
from minions.testing import Answer


def read_figures(prompt: Prompt) -> Answer:
    """The trend of the last month, and the region with the least revenue."""
    question = prompt.messages[-1].content or ""
    figures = json.loads(question.splitlines()[-2])
    months, regions = figures["months"], figures["regions"]
    before, last = (months[-2:] if len(months) > 1 else months * 2)[:2]
    change = (last["revenue"] - before["revenue"]) / before["revenue"]
    trend = "up" if change >= 0.1 else "down" if change <= -0.1 else "steady"  # the rule
    ranked = sorted(regions, key=lambda each: each["revenue"])
    weak, strong = ranked[0]["region"], ranked[-1]["region"]
    return {
        "trend": trend,
        "needs_attention": weak,
        "summary": (
            f"Sales in {last['month']} changed by {change:+.0%} against {before['month']}. "
            f"{strong} sold most, {weak} least."
        ),
    }


sales = ScriptedModel(read_figures, name="scripted/sales_report")
