"""The quickstart on real folders: offline, and over HTTP with the recipe unchanged."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from command_line import Cli
from minions.contracts.calls import Prompt
from minions.contracts.messages import Message, ToolCallRequest
from minions.testing.endpoint import ChatEndpoint, Exchange, answer, call

ROOT = Path(__file__).parents[2]
RECIPE = str(ROOT / "recipes" / "quickstart.yaml")
MODEL = str(ROOT / "recipes" / "quickstart_model.py")
OFFLINE = ("-m", "scripted/quickstart", "--extensions", MODEL)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that the recipe has never seen."""
    place = tmp_path / "orchard"
    (place / "log").mkdir(parents=True)
    (place / "README.md").write_text("# Orchard\n\nNine apple trees. FIXME count again.\n")
    (place / "log" / "spring.txt").write_text("Pruned.\nFIXME: order nets.\n")
    (place / "picture.png").write_bytes(b"\x89PNG\x00\xff")
    return place


def test_the_report_is_true_for_any_folder(cli: Cli, folder: Path, here: Path) -> None:
    outcome = cli(
        "run", RECIPE, *OFFLINE, "--no-store", "--json",
        "-p", f"folder={folder}", "-p", "out=made", "-p", "marker=FIXME",
    )  # fmt: skip
    assert outcome.code == 0, outcome.err
    assert outcome.json["model"] == "scripted/quickstart"
    assert outcome.json["output"] == {
        "title": "Orchard",
        "files": 3,
        "open_items": 2,
        "report": "report.md",
    }
    report = (here / "made" / "report.md").read_text()
    assert report.startswith("# Orchard\n")
    assert "Read: README.md, log/spring.txt." in report


def test_an_empty_folder_is_passed_over_without_a_model_call(
    cli: Cli, tmp_path: Path, here: Path
) -> None:
    (tmp_path / "empty").mkdir()
    outcome = cli(
        "run", RECIPE, *OFFLINE, "--no-store", "--json",
        "-p", f"folder={tmp_path / 'empty'}", "-p", "out=made",
    )  # fmt: skip
    assert outcome.code == 0, outcome.err
    steps = json.loads(outcome.out)["steps"]
    assert [step["status"] for step in steps] == ["completed", "skipped", "skipped", "skipped"]
    assert not (here / "made").exists()


def test_a_folder_that_is_not_there_is_one_clear_error(cli: Cli) -> None:
    outcome = cli("run", RECIPE, *OFFLINE, "--no-store", "-p", "folder=nowhere")
    assert outcome.code == 1
    assert "nowhere" in outcome.err
    assert "Traceback" not in outcome.err


def _model_module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("quickstart_model", MODEL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def _answer_as_the_script_does(exchange: Exchange) -> None:
    """The scripted model behind a real HTTP endpoint."""
    messages = [_message(item) for item in json.loads(exchange.request.raw)["messages"]]
    reply = _model_module().answer(Prompt(tuple(messages)))
    if isinstance(reply, list):
        calls = [call(item.name, item.arguments, call_id=f"c{at}") for at, item in enumerate(reply)]
        await answer(tool_calls=calls)(exchange)
    else:
        await answer(json.dumps(reply))(exchange)


def _message(item: dict[str, Any]) -> Message:  # Any: JSON as it came in
    calls = tuple(
        ToolCallRequest(id=asked["id"], **asked["function"])
        for asked in item.pop("tool_calls", None) or []
    )
    return Message(tool_calls=calls, **item)


@pytest.mark.parametrize("model", ["openai/any", "ollama/any"])
async def test_the_same_recipe_runs_over_http_unchanged(
    here: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    async with ChatEndpoint(default=_answer_as_the_script_does) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
        monkeypatch.setenv("OLLAMA_HOST", server.host)
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "minions", "run", RECIPE, "-m", model, "--no-store", "--json",
            "-p", f"folder={folder}", "-p", "out=made", "-p", "marker=FIXME",
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, cwd=here,
        )  # fmt: skip
        out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    result = json.loads(out)
    assert result["model"] == model
    assert result["output"]["open_items"] == 2
    assert [request.headers.get("authorization") for request in server.requests] == (
        ["Bearer sk-test"] * len(server.requests)
        if model.startswith("openai")
        else [None] * len(server.requests)
    )
    first, last = (json.loads(server.requests[at].raw) for at in (0, -1))
    assert [tool["function"]["name"] for tool in first["tools"]] == ["files__read"]
    assert [message["role"] for message in last["messages"]].count("tool") == 2
