"""What an evaluation costs beside the bare requests, at a server that takes 50 ms for each."""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path
from typing import Final

from benchmarks.clients import model_at, sdk_at
from benchmarks.endpoint import Endpoint
from benchmarks.measuring import Effort, Row, ratio_row
from minions import Minions
from minions.evaluations import Exact

_AT_ONCE: Final = 8
_RECIPE: Final = """
id: asked
inputs: {text: string}
steps:
  - {id: ask, goal: "{{ inputs.text }}", completion: {mode: text}}
"""


async def measure(effort: Effort, endpoint: Endpoint) -> list[Row]:
    """The same requests, eight at a time, by the SDK and as cases of an evaluation."""
    cases = effort.count(1_000)
    bare = evaluated = float("inf")
    for _ in range(min(2, effort.rounds)):
        bare = min(bare, await _bare(endpoint, cases))
        evaluated = min(evaluated, await _evaluated(endpoint, cases))
    return [
        ratio_row(
            "evaluation",
            f"an evaluation of {cases:,} cases on SQLite, 50 ms each, against the bare requests",
            ratio=evaluated / bare,
            most=1.2,
            of="the requests by the SDK",
            absolute=f"{evaluated:.2f} s; {bare:.2f} s",
        )
    ]


async def _bare(endpoint: Endpoint, cases: int) -> float:
    places = asyncio.Semaphore(_AT_ONCE)
    async with sdk_at(endpoint.base_url("delay-50")) as client:

        async def ask(number: int) -> None:
            async with places:
                messages = [{"role": "user", "content": f"case {number}"}]
                answer = await client.chat.completions.create(model="m", messages=messages)  # type: ignore[arg-type]  # as the SDK documents it
                assert answer.choices[0].message.content == "All is well."

        begin = time.perf_counter()
        await asyncio.gather(*map(ask, range(cases)))
        return time.perf_counter() - begin


async def _evaluated(endpoint: Endpoint, cases: int) -> float:
    asked = [{"text": f"case {number}", "expected": "All is well."} for number in range(cases)]
    with tempfile.TemporaryDirectory() as folder:
        journal = Path(folder) / "j.sqlite"
        async with (
            model_at(endpoint.base_url("delay-50")) as model,
            Minions(model=model, journal=journal) as app,
        ):
            begin = time.perf_counter()
            report = await app.evaluate(_RECIPE, asked, scorers=[Exact()], concurrency=_AT_ONCE)
            seconds = time.perf_counter() - begin
    rate = report.variants[0].rate
    assert rate is not None
    assert rate.value == 1
    return seconds
