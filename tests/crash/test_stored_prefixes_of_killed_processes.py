"""Processes that have a provider store a beginning of prompts, and are killed at any moment."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from forked_commands import PROGRAM, ForkedCommand
from minions.data.json_values import JsonValue
from minions.testing.prefix_endpoint import PrefixEndpoint

RECIPE = """
id: notes
model: gem/gemini-2.5-flash
context: [{file: notes.md}]
steps: [{id: each, loop: [a, b, c, d, e, f], max_parallel: 1, goal: "Item {{ loop.item }}"}]
"""
SETTINGS = """
[providers.gem]
base_url = "URL"
api = "gemini"
prompt_cache = "gemini-explicit"
[prices."gem/gemini-2.5-flash"]
input_per_mtok = 0.3
output_per_mtok = 2.5
cached_input_per_mtok = 0.03
"""


class Commands:
    """`minions` in processes of their own, which may be killed."""

    def __init__(self, folder: Path, server: PrefixEndpoint) -> None:
        (folder / "notes.yaml").write_text(RECIPE, "utf-8")
        (folder / "notes.md").write_text("A note about parcels.\n" * 400, "utf-8")
        (folder / "minions.toml").write_text(SETTINGS.replace("URL", server.base_url), "utf-8")
        self.folder = folder
        self.process: ForkedCommand[bytes] | None = None
        self.said = b""

    async def __call__(self, *words: str) -> int:
        """The exit code."""
        root = str(Path(__file__).parents[2])
        with ForkedCommand[bytes](
            [*PROGRAM, *words, "--trust", "--db", "j.sqlite"],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": root},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        ) as self.process:
            self.said, _ = await asyncio.to_thread(self.process.communicate, timeout=60)
            return self.process.returncode

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()


async def test_a_process_killed_before_it_records_what_was_made_leaves_one_that_ends(
    tmp_path: Path,
) -> None:
    """A-176: the next one makes its own; the other ends by its time."""
    killed: list[str] = []

    def on_request(kind: str) -> None:
        if kind == "make" and not killed:
            killed.append(kind)
            minions.kill()

    async with PrefixEndpoint(on_request=on_request) as server:
        minions = Commands(tmp_path, server)
        assert await minions("run", "notes.yaml") == -signal.SIGKILL
        assert await minions("resume", "run_") == 0
        left, made = server.made
        assert list(server.held) == [left.name]
        assert (left.uses, made.uses) == (0, 6)


async def test_a_process_killed_later_leaves_one_that_the_next_process_uses(
    tmp_path: Path,
) -> None:
    """A-176: none is made twice that was recorded, and none is left."""
    uses: list[int] = []

    def say(body: Mapping[str, JsonValue]) -> str:
        uses.append(len(uses))
        if len(uses) in (2, 5):
            minions.kill()
        return "done"

    async with PrefixEndpoint(say=say) as server:
        minions = Commands(tmp_path, server)
        assert await minions("run", "notes.yaml") == -signal.SIGKILL
        assert await minions("resume", "run_") == -signal.SIGKILL
        assert await minions("resume", "run_", "--json") == 0
        (made,) = server.made
        read = made.tokens * (0.3 + 6 * 0.03) / 1e6 + 6 * 10 * 2.5 / 1e6
        cost = json.loads(minions.said)["usage"]["cost_usd"]
        assert cost == pytest.approx(read + made.tokens / 1e6 / 12, rel=0.02)
        assert await minions("sessions", "show", "run_") == 0
        words = f"a beginning of prompts was made as {made.name}: {made.tokens:,} tokens for 300 s"
        assert words in " ".join(minions.said.decode().split())
        assert not server.held
        assert server.counts == {"make": 1, "use": 8, "delete": 1}
