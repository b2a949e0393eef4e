"""An answer that comes in two thousand pieces, against the SDK's stream."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.clients import GOAL, MESSAGES, SYSTEM, executor_of, model_at, recipe_of, sdk_at
from benchmarks.endpoint import Endpoint
from benchmarks.measuring import Effort, Row, least_cpu_s, ratio_row
from minions import AgentExecutor, Message, OpenAIModel, Prompt
from minions.contracts.calls import ModelDelta
from minions.contracts.messages import MessageRole

if TYPE_CHECKING:
    from openai import AsyncOpenAI

RECIPE = recipe_of(f"id: one\nsteps: [{{id: ask, system_prompt: {SYSTEM}, goal: {GOAL}}}]\n")


async def measure(effort: Effort, endpoint: Endpoint) -> list[Row]:
    """Per delta: as the model gives it, and as an event of a run."""
    deltas = effort.count(2_000)
    base_url = endpoint.base_url(f"stream-{deltas}")
    async with model_at(base_url) as model, sdk_at(base_url) as client:
        executor = executor_of(model)
        taken = await least_cpu_s(
            effort,
            {
                "sdk": lambda: _with_sdk(client, deltas),
                "model": lambda: _with_model(model, deltas),
                "events": lambda: _with_events(executor, deltas),
            },
        )
    return [
        _row("streaming", "a streamed delta", taken, "model", deltas),
        _row("streaming-events", "a streamed delta as an event of a run", taken, "events", deltas),
    ]


def _row(key: str, work: str, taken: dict[str, float], name: str, deltas: int) -> Row:
    own, sdk = taken[name] / deltas, taken["sdk"] / deltas
    return ratio_row(
        key,
        work,
        ratio=own / sdk,
        most=0.25,
        of="SDK delta",
        absolute=f"{own * 1e6:.1f} µs; SDK {sdk * 1e6:.1f} µs",
    )


async def _with_model(model: OpenAIModel, deltas: int) -> None:
    got: list[ModelDelta] = []
    messages = (
        Message(role=MessageRole.SYSTEM, content=SYSTEM),
        Message(role=MessageRole.GOAL, content=GOAL),
    )
    answer = await model.complete(Prompt(messages), got.append)
    assert len(answer.unwrap().text or "") == sum(len(delta.content or "") for delta in got)
    assert len(got) >= deltas


async def _with_events(executor: AgentExecutor, deltas: int) -> None:
    count = 0
    async for _ in executor.stream(RECIPE):
        count += 1
    assert count > deltas


async def _with_sdk(client: AsyncOpenAI, deltas: int) -> None:
    messages: list[Any] = list(MESSAGES)  # Any: the SDK's many kinds of messages
    stream = await client.chat.completions.create(model="fake", messages=messages, stream=True)
    pieces = [chunk.choices[0].delta.content async for chunk in stream]
    assert len([piece for piece in pieces if piece]) == deltas
