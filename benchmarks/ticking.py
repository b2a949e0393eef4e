"""What the benchmark serves: a model whose answer comes in pieces that tell the time, and a tool
with a large result.
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from returns.result import Result, Success

from minions import ChatModel, ModelCallResponse, ModelFailure, Prompt, tool
from minions.contracts.calls import ModelDelta
from minions.contracts.messages import assistant
from minions.guide import DeltaSink

PIECES = 10
PAUSE_S = float(os.environ.get("MINIONS_BENCHMARK_PAUSE_S", "0.3"))

LARGE = 1_000_000


@tool(effect="pure")
def large() -> str:
    """A text of a megabyte."""
    return "All is well. " * (LARGE // 13)


class Ticking(ChatModel):
    """Waits until the file `go` is there; then each piece is the machine's monotonic time."""

    @property
    def name(self) -> str:
        return "scripted/ticking"

    async def complete(
        self, prompt: Prompt, on_delta: DeltaSink | None = None
    ) -> Result[ModelCallResponse, ModelFailure]:
        go = Path(os.environ["MINIONS_BENCHMARK_GO"])
        while not await asyncio.to_thread(go.exists):  # noqa: ASYNC110  # another process makes it
            await asyncio.sleep(0.05)
        text = ""
        for _ in range(PIECES):
            await asyncio.sleep(PAUSE_S)
            piece = f"{time.monotonic():.6f} "
            text += piece
            if on_delta is not None:
                on_delta(ModelDelta(content=piece))
        return Success(ModelCallResponse(message=assistant(text)))


ticking = Ticking()
