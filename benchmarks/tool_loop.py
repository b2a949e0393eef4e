"""A step whose model calls a tool many times, against the same loop by hand on the SDK."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from attrs import evolve

from benchmarks.clients import GOAL, MESSAGES, SYSTEM, executor_of, model_at, recipe_of, sdk_at
from benchmarks.endpoint import Endpoint
from benchmarks.measuring import Effort, Row, least_cpu_s, ratio_row
from minions import AgentRecipe, OpenAIModel, tool

if TYPE_CHECKING:
    from openai import AsyncOpenAI


@tool(effect="pure")
async def echo(n: int) -> int:
    """The number.

    Args:
        n: Any number.
    """
    return n


async def measure(effort: Effort, endpoint: Endpoint) -> list[Row]:
    """Per turn, at 50 and at 200 turns."""
    few, many = effort.count(50), effort.count(200)
    few_url, many_url = endpoint.base_url(f"loop-{few}"), endpoint.base_url(f"loop-{many}")
    async with (
        model_at(few_url) as few_model,
        model_at(many_url) as many_model,
        sdk_at(many_url) as client,
    ):
        few_recipe, many_recipe = _recipe(few), _recipe(many)
        taken = await least_cpu_s(
            effort,
            {
                "few": lambda: _run(few_model, few_recipe),
                "many": lambda: _run(many_model, many_recipe),
            },
        )
        # Once is enough: the SDK's loop takes a hundred times as long, some twenty seconds.
        once = evolve(effort, rounds=1, warms_up=False)
        taken |= await least_cpu_s(once, {"sdk": lambda: _by_hand(client, many)})
    per_turn = {"sdk": taken["sdk"] / many, "few": taken["few"] / few, "many": taken["many"] / many}
    return [
        ratio_row(
            "tool-loop",
            f"a turn of a tool loop of {many}",
            ratio=per_turn["many"] / per_turn["sdk"],
            most=0.05,
            of="a turn of the SDK's loop",
            absolute=f"{per_turn['many'] * 1e6:.0f} µs; SDK {per_turn['sdk'] * 1e6:.0f} µs",
        ),
        ratio_row(
            "tool-loop-growth",
            f"a turn of {many}, against a turn of {few}",
            ratio=per_turn["many"] / per_turn["few"],
            most=1.3,
            of=f"a turn of {few}",
            absolute=f"{per_turn['many'] * 1e6:.0f} µs; {per_turn['few'] * 1e6:.0f} µs",
        ),
    ]


def _recipe(turns: int) -> AgentRecipe:
    return recipe_of(
        f"id: loop\nlimits: {{max_model_calls_per_step: {turns + 1}}}\n"
        f"steps: [{{id: ask, system_prompt: {SYSTEM}, goal: {GOAL}, tools: [echo]}}]\n",
        [echo],
    )


async def _run(model: OpenAIModel, recipe: AgentRecipe) -> None:
    result = await executor_of(model, tools=[echo]).execute(recipe)
    assert result.output == "All is well.", result.error


async def _by_hand(client: AsyncOpenAI, turns: int) -> None:
    """The loop that everyone writes first."""
    function = {
        "name": echo.spec.name,
        "description": echo.spec.description,
        "parameters": echo.spec.parameters,
    }
    messages: list[Any] = list(MESSAGES)  # Any: the SDK's many kinds of messages
    tools: list[Any] = [{"type": "function", "function": function}]  # Any: as above
    for _ in range(turns + 1):
        answer = await client.chat.completions.create(model="fake", messages=messages, tools=tools)
        message = answer.choices[0].message
        messages.append(message)
        for call in message.tool_calls or ():
            assert call.type == "function"
            value = int(json.loads(call.function.arguments)["n"])
            messages.append({"role": "tool", "tool_call_id": call.id, "content": str(value)})
    assert message.content == "All is well."
