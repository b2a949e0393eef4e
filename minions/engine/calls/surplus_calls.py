"""Tool calls beyond the limits of an answer and of a step: they are not made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from minions.contracts.calls import ToolFailure
from minions.contracts.context import Limits
from minions.contracts.messages import ToolCallRequest
from minions.engine.calls.trace import StepTrace
from minions.engine.compile.completion_links import FINAL_ANSWER


def surplus_calls(
    requests: Sequence[ToolCallRequest], trace: StepTrace, limits: Limits
) -> Mapping[int, ToolFailure]:
    """Index of each request that is not carried out to the words about it for the model.

    The first requests are carried out, in their order; they are taken off the step's budget. A
    call that ends the step is always carried out.
    """
    wanted = [index for index, each in enumerate(requests) if each.name != FINAL_ANSWER]
    given = trace.reserve_tool_calls(len(wanted))
    if given == len(wanted):
        return {}
    refusal = _refusal(limits, is_of_answer=given == limits.max_tool_calls_per_answer)
    return dict.fromkeys(wanted[given:], refusal)


def _refusal(limits: Limits, *, is_of_answer: bool) -> ToolFailure:
    if is_of_answer:
        most, name = limits.max_tool_calls_per_answer, "max_tool_calls_per_answer"
        words = f"At most {most} tool calls of one answer are made"
        remedy = "Ask for fewer at a time; this one is made if you ask for it again."
    else:
        most, name = limits.max_tool_calls_per_step, "max_tool_calls_per_step"
        words = f"At most {most} tool calls are made in this step, and they were"
        remedy = "Answer with what you know."
    return ToolFailure(
        code="too-many-tool-calls",
        message=f"{words} (limit {name}). This call was not made. {remedy}",
        is_mendable=True,
    )
