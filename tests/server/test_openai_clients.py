"""OpenAI's own clients, of Python and of Node, against a server over a socket."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import openai
import pytest
from openai.types.chat import ChatCompletionFunctionToolParam, ChatCompletionMessageParam

from docs.markdown_blocks import Block, blocks_of
from patience import HANG_S
from served import RECIPES
from serving import Serving

HELLO: Final[list[ChatCompletionMessageParam]] = [{"role": "user", "content": "one two three"}]
TOOL: Final[ChatCompletionFunctionToolParam] = {"type": "function", "function": {"name": "f"}}

_TELLS = '''
from minions import ScriptedModel, tool

@tool(effect="pure")
def look(text: str = "") -> str:
    """Looks."""
    return "looked"

@tool(effect="once")
def sign(text: str) -> str:
    """Signs."""
    return f"sign: {text}"

@tool(effect="pure")
def gate() -> str:
    """Waits for nothing."""
    return "through"

def tell(prompt):
    seen = [each.content for each in prompt.messages if each.role in ("user", "assistant")]
    return " / ".join(seen[1:] if seen[0] == "Answer the user." else seen)

answers = ScriptedModel(tell, name="scripted/answers")
'''
_FAILS = """
id: fails
inputs: {message: {type: string}}
steps: [{id: a, assert: "1 == 2"}]
"""
_NODE: Final = Path(__file__).with_name("openai_client.mjs")


def _page() -> Iterator[Block]:
    return blocks_of(Path(__file__).parents[2] / "docs" / "chat-clients.md")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """A process; the clients come to it as to any other server."""
    folder = tmp_path_factory.mktemp("openai")
    (folder / "recipes").mkdir()
    (folder / ".git").mkdir()
    (folder / "own.py").write_text(_TELLS)
    guide = next(each.text for each in _page() if each.file == "recipes/guide.yaml")
    for name, text in {**RECIPES, "fails": _FAILS, "guide": guide}.items():
        (folder / "recipes" / f"{name}.yaml").write_text(text)
    with Serving(folder, "--extensions", "own.py", "--no-store", "--approve", "wait") as server:
        yield server


@pytest.fixture
def client(server: Serving) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=server.token) as client:
        yield client


def test_recipes_are_listed_as_models(client: openai.OpenAI) -> None:
    assert [each.id for each in client.models.list()] == ["chat", "fails", "guide", "signs"]
    assert client.models.retrieve("chat").owned_by == "minions"


def test_a_chat_completion_is_what_the_client_expects(client: openai.OpenAI) -> None:
    made = client.chat.completions.create(
        model="chat",
        messages=[
            {"role": "user", "content": "one"},
            {"role": "assistant", "content": "1"},
            {"role": "user", "content": [{"type": "text", "text": "two"}]},
        ],
    )
    assert made.choices[0].message.content == "one / 1 / two"
    assert (made.choices[0].finish_reason, made.model) == ("stop", "chat")
    assert made.usage is not None
    assert made.usage.total_tokens > 0


def test_a_streamed_chat_completion_is_put_together(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(
        model="chat",
        messages=HELLO,
        stream_options={"include_usage": True},
    ) as stream:
        pieces = [each.delta for each in stream if each.type == "content.delta"]
        whole = stream.get_final_completion()
    assert "".join(pieces) == "one two three"
    assert whole.choices[0].message.content == "one two three"
    assert whole.usage is not None


def test_responses_follow_each_other(client: openai.OpenAI) -> None:
    first = client.responses.create(model="chat", input="one")
    second = client.responses.create(
        model="chat",
        previous_response_id=first.id,
        input=[{"role": "user", "content": [{"type": "input_text", "text": "two"}]}],
    )
    assert (first.output_text, second.output_text) == ("one", "one / one / two")
    assert (second.status, second.previous_response_id) == ("completed", first.id)


def test_a_streamed_response_is_put_together(client: openai.OpenAI) -> None:
    """A-185."""
    with client.responses.stream(model="chat", input="one two three") as stream:
        events = list(stream)
        whole = stream.get_final_response()
    assert [each.sequence_number for each in events] == list(range(len(events)))
    pieces = [each.delta for each in events if each.type == "response.output_text.delta"]
    assert "".join(pieces) == "one two three"
    assert whole.output_text == "one two three"


def test_the_lines_of_the_page_about_chat_clients_run(
    server: Serving,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    program = next(each.text for each in _page() if each.language == "python")
    monkeypatch.setenv("TOKEN", server.token)
    exec(program.replace("http://127.0.0.1:8642", server.url), {})
    printed = capsys.readouterr().out
    assert "'guide'" in printed
    assert "Where do I start?" in printed
    assert printed.rstrip().endswith("And then? / And then? / And in the evening?")


def test_refusals_are_the_client_s_own_exceptions(client: openai.OpenAI, server: Serving) -> None:
    """A-185."""
    create = client.chat.completions.create
    with pytest.raises(openai.NotFoundError) as unknown:
        create(model="none", messages=HELLO)
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as tools:
        create(model="chat", messages=HELLO, tools=[TOOL])
    assert (tools.value.code, tools.value.param) == ("unsupported-parameter", "tools")
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="of nobody").models.list()


def test_a_run_that_failed_is_not_begun_again_by_the_client(
    client: openai.OpenAI, server: Serving
) -> None:
    before = server.ask("GET", "/runs?recipe=fails")["total"]
    with pytest.raises(openai.InternalServerError) as failed:
        client.with_options(max_retries=3).chat.completions.create(model="fails", messages=HELLO)
    with (
        pytest.raises(openai.APIError) as streamed,
        client.chat.completions.stream(model="fails", messages=HELLO) as stream,
    ):
        list(stream)
    assert failed.value.code == streamed.value.code
    assert server.ask("GET", "/runs?recipe=fails")["total"] == before + 2
    with client.responses.stream(model="fails", input="hi") as stream:
        last = list(stream)[-1]
    assert last.type == "response.failed"
    assert last.response.status == "failed"


async def test_the_asynchronous_client_does_the_same(server: Serving) -> None:
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key=server.token) as client:
        assert [each.id async for each in client.models.list()] == [
            "chat",
            "fails",
            "guide",
            "signs",
        ]
        chunks = await client.chat.completions.create(model="chat", messages=HELLO, stream=True)
        pieces = [each.choices[0].delta.content async for each in chunks]
        assert "".join(filter(None, pieces)) == "one two three"
        assert (await client.responses.create(model="chat", input="one")).output_text == "one"
        with pytest.raises(openai.NotFoundError):
            await client.models.retrieve("none")


def _node_folder() -> Path | None:
    """The folder in which Node finds OpenAI's package; None: there is none."""
    named = os.environ.get("MINIONS_NODE_MODULES")
    folder = Path(named) if named else Path(__file__).parents[2] / "node_modules"
    return folder if (folder / "openai").is_dir() and shutil.which("node") else None


@pytest.mark.skipif(
    _node_folder() is None,
    reason="Node, or its package openai in MINIONS_NODE_MODULES, is missing",
)
def test_the_client_of_node_does_the_same(server: Serving, tmp_path: Path) -> None:
    """A-185."""
    folder = _node_folder()
    assert folder is not None
    program = tmp_path / "client.mjs"
    program.write_text(_NODE.read_text())
    (tmp_path / "node_modules").symlink_to(folder)
    ran = subprocess.run(
        ["node", str(program), f"{server.url}/v1", server.token],
        capture_output=True,
        text=True,
        check=False,
        timeout=HANG_S,
    )
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout) == {
        "models": ["chat", "fails", "guide", "signs"],
        "whole": "one / 1 / two",
        "pieces": "one two",
        "response": "one / one / two",
        "streamed": "one two",
        "refusals": ["NotFoundError 404 model_not_found", "BadRequestError 400 tools"],
        "failed": "InternalServerError 500",
    }
