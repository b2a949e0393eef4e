"""OpenAI's own clients, of Python and of Node, against a server over a socket."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from docs.markdown_blocks import Block, blocks_of
from patience import HANG_S
from served import RECIPES
from serving import Serving

if TYPE_CHECKING:  # loading it takes a second of each process that collects the tests
    import openai
    from openai.types.chat import (
        ChatCompletionAllowedToolChoiceParam,
        ChatCompletionFunctionToolParam,
        ChatCompletionMessageParam,
    )
    from openai.types.responses import FunctionToolParam, Response, ToolChoiceAllowedParam

HELLO: Final[list[ChatCompletionMessageParam]] = [{"role": "user", "content": "one two three"}]
TOOL: Final[ChatCompletionFunctionToolParam] = {"type": "function", "function": {"name": "f"}}
TOWN: Final[dict[str, object]] = {
    "type": "object",
    "properties": {"town": {"type": "string"}},
    "required": ["town"],
}
WEATHER: Final[ChatCompletionFunctionToolParam] = {
    "type": "function",
    "function": {"name": "weather", "description": "Of a town.", "parameters": TOWN},
}

_TELLS = '''
from minions import ScriptedModel, tool
from minions.testing import tool_request

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
    if any(each.name == "weather" for each in prompt.tools):
        last = prompt.messages[-1]
        return last.content if last.role == "tool" else tool_request("weather", {"town": "Bern"})
    seen = [each.content for each in prompt.messages if each.role in ("user", "assistant")]
    return " / ".join(seen[1:] if seen[0] == "Answer the user." else seen)

answers = ScriptedModel(tell, name="scripted/answers")
'''
_FAILS = """
id: fails
inputs: {message: {type: string}}
steps: [{id: a, assert: "1 == 2"}]
"""
_HELPS = """
id: helps
inputs: {message: {type: string}}
steps: [{id: answer, goal: "{{ inputs.message }}", tools: {caller: true}}]
"""
_NODE: Final = Path(__file__).with_name("openai_client.mjs")


def _page() -> Iterator[Block]:
    return blocks_of(Path(__file__).parents[2] / "docs" / "chat-clients.md")


def _recipe_of_page(name: str) -> str:
    return next(each.text for each in _page() if each.file == f"recipes/{name}.yaml")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """A process; the clients come to it as to any other server."""
    folder = tmp_path_factory.mktemp("openai")
    (folder / "recipes").mkdir()
    (folder / ".git").mkdir()
    (folder / "own.py").write_text(_TELLS)
    shown = {name: _recipe_of_page(name) for name in ("guide", "helper")}
    for name, text in {**RECIPES, "fails": _FAILS, "helps": _HELPS, **shown}.items():
        (folder / "recipes" / f"{name}.yaml").write_text(text)
    with Serving(folder, "--extensions", "own.py", "--no-store", "--approve", "wait") as server:
        yield server


@pytest.fixture
def client(server: Serving) -> Iterator[openai.OpenAI]:
    import openai

    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=server.token) as client:
        yield client


def test_recipes_are_listed_as_models(client: openai.OpenAI) -> None:
    assert [each.id for each in client.models.list()] == [
        "chat",
        "fails",
        "guide",
        "helper",
        "helps",
        "signs",
    ]
    assert client.models.retrieve("chat").owned_by == "minions"
    for name, takes_tools in {"chat": False, "helper": True}.items():
        taken = (client.models.retrieve(name).model_extra or {})["supported_parameters"]
        assert ("tools" in taken, "tool_choice" in taken) == (takes_tools, takes_tools)


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


def test_a_tool_of_the_client_is_called_and_its_result_is_told(client: openai.OpenAI) -> None:
    import openai

    said: list[ChatCompletionMessageParam] = [*HELLO]
    create = client.chat.completions.create
    first = create(model="helps", messages=said, tools=[WEATHER]).choices[0]
    assert first.finish_reason == "tool_calls"
    assert first.message.tool_calls is not None
    [call] = first.message.tool_calls
    assert call.type == "function"
    assert (call.function.name, call.function.arguments) == ("weather", '{"town":"Bern"}')
    said.append(first.message.to_dict())  # type: ignore[arg-type]  # as its own guide does it
    said.append({"role": "tool", "tool_call_id": call.id, "content": "sunny"})
    second = create(model="helps", messages=said, tools=[WEATHER])
    assert second.choices[0].message.content == "sunny"
    assert create(model="helps", messages=said).choices[0].message.content == "sunny"
    said[-1] = {"role": "tool", "tool_call_id": call.id, "content": "rain"}
    with pytest.raises(openai.ConflictError) as other:
        create(model="helps", messages=said)
    assert other.value.code == "already-decided"


def test_a_streamed_call_of_the_client_s_tool_is_put_together(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(model="helps", messages=HELLO, tools=[WEATHER]) as stream:
        kinds = {each.type for each in stream}
        message = stream.get_final_completion().choices[0].message
    assert "tool_calls.function.arguments.done" in kinds
    assert message.tool_calls is not None
    [call] = message.tool_calls
    assert call.function.arguments == '{"town":"Bern"}'
    result: ChatCompletionMessageParam = {
        "role": "tool",
        "tool_call_id": call.id,
        "content": "sunny",
    }
    with client.chat.completions.stream(model="helps", messages=[result]) as stream:
        assert stream.get_final_completion().choices[0].message.content == "sunny"


def test_a_response_calls_a_tool_of_the_client(client: openai.OpenAI) -> None:
    """A-185."""
    tool: FunctionToolParam = {
        "type": "function",
        "name": "weather",
        "parameters": TOWN,
        "strict": False,
    }
    for is_streamed in (False, True):
        if is_streamed:
            with client.responses.stream(model="helps", input="hi", tools=[tool]) as stream:
                kinds = [each.type for each in stream]
                first: Response = stream.get_final_response()
            assert "response.function_call_arguments.done" in kinds
        else:
            first = client.responses.create(model="helps", input="hi", tools=[tool])
        [call] = first.output
        assert call.type == "function_call"
        assert call.arguments == '{"town":"Bern"}'
        second = client.responses.create(
            model="helps",
            previous_response_id=first.id,
            input=[{"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}],
        )
        assert second.output_text == "sunny"


def test_the_client_allows_some_of_its_tools(client: openai.OpenAI) -> None:
    """A-185."""
    weather: ToolChoiceAllowedParam = {
        "type": "allowed_tools",
        "mode": "required",
        "tools": [{"type": "function", "name": "weather"}],
    }
    flat: list[FunctionToolParam] = [
        {"type": "function", "name": name, "parameters": TOWN, "strict": False}
        for name in ("f", "weather")
    ]
    made = client.responses.create(model="helps", input="hi", tools=flat, tool_choice=weather)
    assert [each.type for each in made.output] == ["function_call"]
    assert [each.type == "function" and each.name for each in made.tools] == ["weather"]
    none: ChatCompletionAllowedToolChoiceParam = {
        "type": "allowed_tools",
        "allowed_tools": {
            "mode": "auto",
            "tools": [{"type": "function", "function": {"name": "f"}}],
        },
    }
    create = client.chat.completions.create
    said = create(model="helper", messages=HELLO, tools=[TOOL, WEATHER], tool_choice=none)
    assert said.choices[0].message.content == "one two three"


def test_the_lines_of_the_page_about_chat_clients_run(
    server: Serving,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("TOKEN", server.token)
    asking, calling = [
        each.text for each in _page() if each.language == "python" and "OpenAI" in each.text
    ]
    exec(calling.replace("http://127.0.0.1:8642", server.url), {})
    assert capsys.readouterr().out == "It is sunny in Bern.\n"
    exec(asking.replace("http://127.0.0.1:8642", server.url), {})
    printed = capsys.readouterr().out
    assert "'guide'" in printed
    assert "Where do I start?" in printed
    assert printed.rstrip().endswith("And then? / And then? / And in the evening?")


def test_refusals_are_the_client_s_own_exceptions(client: openai.OpenAI, server: Serving) -> None:
    """A-185."""
    import openai

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
    import openai

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
    import openai

    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key=server.token) as client:
        assert [each.id async for each in client.models.list()] == [
            "chat",
            "fails",
            "guide",
            "helper",
            "helps",
            "signs",
        ]
        chunks = await client.chat.completions.create(model="chat", messages=HELLO, stream=True)
        pieces = [each.choices[0].delta.content async for each in chunks]
        assert "".join(filter(None, pieces)) == "one two three"
        assert (await client.responses.create(model="chat", input="one")).output_text == "one"
        with pytest.raises(openai.NotFoundError):
            await client.models.retrieve("none")


def _node_folder(*packages: str) -> Path | None:
    """The folder in which Node finds these packages; None: there is none."""
    named = os.environ.get("MINIONS_NODE_MODULES")
    folder = Path(named) if named else Path(__file__).parents[2] / "node_modules"
    has_all = all((folder / each).is_dir() for each in packages)
    return folder if has_all and shutil.which("node") else None


def _run_node(program: Path, folder: Path, server: Serving, tmp_path: Path) -> Any:  # Any: JSON
    """What the program prints."""
    (tmp_path / "client.mjs").write_text(program.read_text())
    (tmp_path / "node_modules").symlink_to(folder)
    ran = subprocess.run(
        ["node", str(tmp_path / "client.mjs"), f"{server.url}/v1", server.token],
        capture_output=True,
        text=True,
        check=False,
        timeout=HANG_S,
    )
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


@pytest.mark.skipif(
    _node_folder("openai") is None,
    reason="Node, or its package openai in MINIONS_NODE_MODULES, is missing",
)
def test_the_client_of_node_does_the_same(server: Serving, tmp_path: Path) -> None:
    """A-185."""
    folder = _node_folder("openai")
    assert folder is not None
    assert _run_node(_NODE, folder, server, tmp_path) == {
        "models": ["chat", "fails", "guide", "helper", "helps", "signs"],
        "whole": "one / 1 / two",
        "pieces": "one two",
        "response": "one / one / two",
        "streamed": "one two",
        "called": ["sunny in Bern", "sunny in Bern"],
        "refusals": ["NotFoundError 404 model_not_found", "BadRequestError 400 tools"],
        "failed": "InternalServerError 500",
    }


_AI: Final = Path(__file__).with_name("ai_client.mjs")
_AI_PACKAGES: Final = ("ai", "@ai-sdk/openai", "@ai-sdk/openai-compatible")


@pytest.mark.skipif(
    _node_folder(*_AI_PACKAGES) is None,
    reason="Node, or its packages ai, @ai-sdk/openai and @ai-sdk/openai-compatible in "
    "MINIONS_NODE_MODULES, are missing",
)
def test_the_client_of_many_chat_uis_calls_its_tools(server: Serving, tmp_path: Path) -> None:
    """A-185."""
    folder = _node_folder(*_AI_PACKAGES)
    assert folder is not None
    said = _run_node(_AI, folder, server, tmp_path)
    assert said == {name: ["sunny in Bern"] * 2 for name in ("compatible", "chat", "responses")}
