"""`minions sessions follow`: an answer is seen while a worker in another process streams it."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from command_line import Cli, Write
from forked_commands import PROGRAM, ForkedCommand
from patience import HANG_S
from typed_answers import RECIPE, TOKEN

pytest.importorskip("dbos", reason="dbos is not installed: pip install 'minions-engine[dbos]'")

OWN = """
import asyncio
from pathlib import Path

from returns.result import Success

from minions import ChatModel, Extensions, Message, ModelCallResponse, ScriptedModel
from minions.guide import ModelDelta


class Repeats(ChatModel):
    name = "typing/model"
    capabilities = ScriptedModel([]).capabilities

    async def complete(self, prompt, on_delta=None):
        text = ""
        while not Path("heard").exists():
            text += "word "
            if on_delta is not None:
                on_delta(ModelDelta(content="word "))
            await asyncio.sleep(0.02)
        return Success(ModelCallResponse(message=Message(role="assistant", content=text)))


extensions = Extensions(models={"typing/model": Repeats()})
"""


@contextmanager
def process(*words: str, here: Path) -> Iterator[subprocess.Popen[str]]:
    """A process of the command line, killed at the end of the block."""
    started = ForkedCommand([*PROGRAM, *words], cwd=here, stdout=subprocess.PIPE, text=True)
    killer = threading.Timer(2 * HANG_S, started.kill)
    killer.start()
    try:
        yield started
    finally:
        killer.cancel()
        started.kill()
        started.communicate()


def test_an_answer_is_seen_in_another_process_while_it_is_streamed(
    cli: Cli, write: Write, here: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("own.py", OWN)
    write("says.yaml", RECIPE)
    (here / "token").write_text(TOKEN)
    (here / "token").chmod(0o600)
    monkeypatch.setenv("MINIONS_DB", postgres_url)
    monkeypatch.setenv("MINIONS_EXTENSIONS", str(here / "own.py"))
    monkeypatch.setenv("MINIONS_WORKER_TOKEN", f"file:{here / 'token'}")
    queued = cli("run", "says.yaml", "--detach", "--json")
    assert queued.code == 0, queued.err
    run_id = str(queued.json["run_id"])
    worker = ("worker", "--once", "--health", "0", "--token-file", "token")
    with (
        process(*worker, here=here) as working,
        process("sessions", "follow", run_id, "--events", here=here) as following,
    ):
        assert following.stdout is not None
        events: list[dict[str, Any]] = []  # Any: JSON of another process
        while not events or events[-1]["type"] != "step_delta":
            events.append(json.loads(following.stdout.readline()))
        (here / "heard").touch()
        events += [json.loads(line) for line in following.stdout]
        assert following.wait(HANG_S) == 0
        assert working.wait(HANG_S) == 0
    types = [event["type"] for event in events]
    pieces = [event for event in events if event["type"] == "step_delta"]
    assert {piece["delta"]["content"] for piece in pieces} == {"word "}
    assert {piece["run_id"] for piece in pieces} == {run_id}
    assert types.index("step_started") < types.index("step_delta")
    rest = types[types.index("step_delta") :]
    assert rest == ["step_delta"] * len(pieces) + types[-(len(rest) - len(pieces)) :]
    assert types[-1] == "run_completed"


def test_a_token_that_cannot_be_read_is_an_error(
    cli: Cli, write: Write, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("says.yaml", RECIPE.replace("goal: Say something.", "set: {a: 1}").replace("model", "#"))
    monkeypatch.setenv("MINIONS_DB", postgres_url)
    run_id = str(cli("run", "says.yaml", "--json").json["run_id"])
    assert cli("sessions", "follow", run_id).code == 0
    monkeypatch.setenv("MINIONS_WORKER_TOKEN", "env:NOT_THERE")
    missing = cli("sessions", "follow", run_id)
    assert (missing.code != 0, "NOT_THERE" in missing.err) == (True, True), missing.err
    monkeypatch.setenv("MINIONS_WORKER_TOKEN", TOKEN)
    literal = cli("sessions", "follow", run_id)
    assert (literal.code != 0, TOKEN in literal.err) == (True, False), literal.err
    assert "worker_token" in literal.err
