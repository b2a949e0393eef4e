"""Requests to the server: any status but 500, and refusals that show nothing of its folders."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from attrs import frozen

from asgi_client import TOKEN, Client, Message, Reply, Stream
from fuzz.target import Target
from minions.adapters.models.scripted import ScriptedModel
from minions.app.settings.settings import Settings
from minions.contracts.tools import Effect, Toolbox
from minions.engine.compile.extensions import Extensions
from minions.engine.services.run_services import NullLog, Services
from minions.interfaces.http.http_answers import OPENAI_ROOT, is_of_a2a
from minions.interfaces.server.app import App, api_document, create_app
from minions.interfaces.server.server_options import ServerOptions
from patience import HANG_S
from served import RECIPES, Door, echo

__all__ = ["server_targets"]

_REQUESTS_PER_APP: Final = 50
"""After so many requests the app is made anew: runs that they began would be ever more."""
_CONTENT: Final = "the content of a file nearby"


def server_targets(folder: Path) -> Sequence[Target]:
    """The targets.

    Args:
        folder: An empty one, for the server's recipes.
    """
    served = _ServerTarget(folder)
    return (
        Target(
            name="server",
            check=served.check,
            close=served.close,
            seeds=_requests,
            words=(*_HEADERS, *_VALUES),
            few=200,
        ),
    )


_HEADERS: Final = (
    *("\nhost: ", "\norigin: ", "\nauthorization: Bearer x", "\ncontent-type: ", "\naccept: "),
    *(
        "\nidempotency-key: ",
        "\nlast-event-id: ",
        "\ntransfer-encoding: chunked",
        "\ncontent-length: ",
    ),
    *("GET ", "POST ", "DELETE ", "PATCH ", "HEAD ", "OPTIONS ", "/api/v1/", " HTTP/1.1", "\n\n"),
)
_VALUES: Final = (
    *(
        "?limit=",
        "&offset=",
        "start_seq=",
        "end_seq=",
        "after=",
        "address=",
        "parts=",
        "cut=",
        "at=",
    ),
    *(
        "text=",
        "status=",
        "format=svg",
        "tree=",
        "step=",
        "%2e%2e%2f",
        "%00",
        "%ff",
        "%",
        "+",
        "&&",
    ),
    *(
        "run_1",
        "run_2",
        "run_3",
        "ses_1",
        "adds",
        "signs",
        "asks",
        "chat",
        "broken",
        "sum",
        "sign/1",
    ),
    *(
        '"inputs"',
        '"recipe"',
        '"session"',
        '"message"',
        '"decision"',
        '"steps"',
        '"user"',
        '"task"',
        '"params"',
        '"parts"',
        '"taskId"',
        '"tools"',
        '"tool_calls"',
        '"tool_call_id"',
        '"function_call_output"',
    ),
)


def _requests() -> Sequence[bytes]:
    """Each operation with a plausible body, and a few requests for pages."""
    paths = api_document()["paths"]
    assert isinstance(paths, dict)
    found = [
        _request(method, path, operation)
        for path, operations in paths.items()
        for method, operation in operations.items()
    ]
    others = ["GET /", "GET /openapi.json", "GET /metrics", "GET /../x", "HEAD /app.js"]
    return [each.encode() for each in (*found, *(f"{each} HTTP/1.1\n\n" for each in others))]


_NAMES: Final = {
    "recipe_id": "adds",
    "name": "adds",
    "run_id": "run_1",
    "session_id": "ses_1",
    "sequence": "1",
    "approval_id": "run_2",
}
_QUERIES: Final = {"limit": "2", "offset": "0", "start_seq": "1", "text": "a", "address": "sum"}
_TOOL: Final = {"name": "weather", "description": "d", "parameters": {"type": "object"}}
_CALL: Final = {"id": "call_run_4.x", "type": "function"}
_OFFERS: Final = """
id: offers
inputs: {message: {type: string}}
steps: [{id: a, goal: "{{ inputs.message }}", memory: conversation, tools: {caller: true}}]
"""
_BODIES: Final[dict[str, object]] = {
    "createChatCompletion": {
        "model": "offers",
        "messages": [
            {"role": "user", "content": "a"},
            {
                "role": "assistant",
                "tool_calls": [{**_CALL, "function": {"name": "weather", "arguments": "{}"}}],
            },
            {"role": "tool", "tool_call_id": "call_run_4.x", "content": "b"},
            {"role": "user", "content": "c"},
        ],
        "tools": [{"type": "function", "function": _TOOL}],
        "tool_choice": "auto",
    },
    "createResponse": {
        "model": "offers",
        "input": [
            {"type": "function_call", "call_id": "c", "name": "weather", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "call_run_4.x", "output": "b"},
        ],
        "tools": [{"type": "function", **_TOOL}],
    },
    "runAgUi": {
        "threadId": "t",
        "runId": "r",
        "messages": [{"id": "1", "role": "tool", "toolCallId": "call_run_4.x", "content": "b"}],
        "tools": [_TOOL],
    },
    "startRun": {"recipe": "adds", "inputs": {"a": 1, "b": 2}, "session": None, "user": "u"},
    "runAgent": {"task": "add", "inputs": {"a": 1}},
    "startPlan": {"task": "make a shop", "workspace": "."},
    "createSession": {"recipe": "chat"},
    "forkSession": {"at": 1},
    "retryRun": {"from_step": "sum"},
    "rollBackFiles": {"dry_run": True},
    "sendMessage": {"message": "hello"},
    "retrySession": {"sequence": 1},
    "decide": {"decision": "approve"},
    "callA2a": {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "SendMessage",
        "params": {
            "message": {
                "messageId": "m",
                "role": "ROLE_USER",
                "parts": [{"data": {"a": 1}}],
                "metadata": {"skill": "adds"},
            }
        },
    },
    "callRecipeA2a": {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "GetTask",
        "params": {"id": "run_1", "historyLength": 2},
    },
    "decideRun": {"key": "sign/1/0", "decision": "answer", "value": 3},
}


def _request(method: str, path: str, operation: dict[str, object]) -> str:
    asked = operation.get("parameters", [])
    assert isinstance(asked, list)
    names = [each["name"] for each in asked if each["in"] == "query"]
    query = "&".join(f"{name}={_QUERIES[name]}" for name in names if name in _QUERIES)
    path = re.sub(r"\{(\w+)\}", lambda found: _NAMES.get(found[1], "x"), path)
    target = f"{path}?{query}" if query else path
    body = _BODIES.get(str(operation["operationId"]))
    sent = "" if body is None else json.dumps(body)
    kind = "content-type: application/json\n" if body is not None else ""
    kind += "a2a-version: 1.0\n" if "A2a" in str(operation["operationId"]) else ""
    return f"{method.upper()} {target} HTTP/1.1\n{kind}\n{sent}"


@frozen
class _Served:
    """An app with a finished run, one that waits for an approval, and a session."""

    app: App
    client: Client


class _ServerTarget:
    """An app in this process."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "a-folder-of-the-server"
        self._runner: asyncio.Runner | None = None
        self._served: _Served | None = None
        self._left = 0

    def check(self, data: bytes) -> None:
        """One request."""
        scope, body = _scope(data)
        if scope is None:
            return
        if self._runner is None:
            self._runner = asyncio.Runner()
        reply = self._runner.run(self._asked(scope, body))
        self._check_reply(str(scope["method"]), str(scope["path"]), reply)

    def close(self) -> None:
        """Close the app, and the event loop."""
        if self._runner is None:
            return
        if self._served is not None:
            self._runner.run(self._served.app.aclose())
        self._runner.close()

    def _check_reply(self, method: str, path: str, reply: Reply) -> None:
        is_openai = path.startswith(OPENAI_ROOT)
        # There a run that failed is 500, which says that it is not to be asked for again.
        is_failed_run = is_openai and reply.headers.get("x-should-retry") == "false"
        assert reply.status != 500 or is_failed_run, reply.body
        if reply.status < 400:
            return
        text = reply.body.decode()
        assert str(self._folder) not in text, text
        assert _CONTENT not in text, text
        assert "Traceback" not in text, text
        if method == "HEAD":
            return
        if is_openai:
            assert set(reply.json) == {"error"}, reply
            assert {"message", "type", "param", "code"} == set(reply.json["error"])
        elif is_of_a2a(path):
            assert set(reply.json) == {"jsonrpc", "id", "error"}, reply
            assert {"code", "message", "data"} == set(reply.json["error"])
        else:
            assert reply.headers.get("content-type") == "application/problem+json", reply
            assert {"type", "title", "status", "detail", "code"} <= set(reply.json)

    async def _asked(self, scope: Message, body: bytes) -> Reply:
        if self._served is None or self._left == 0:
            await self._renew()
        self._left -= 1
        assert self._served is not None
        async with Stream(self._served.client, scope, body) as stream:
            if stream.headers.get("content-type", "").startswith("text/event-stream"):
                return Reply(stream.status, stream.headers, b"")  # it may never end
            whole = await asyncio.wait_for(stream.read(), HANG_S)
            return Reply(stream.status, stream.headers, whole)

    async def _renew(self) -> None:
        if self._served is not None:
            await self._served.app.aclose()
        self._served = await self._made()
        self._left = _REQUESTS_PER_APP

    async def _made(self) -> _Served:
        recipes = self._folder / "recipes"
        recipes.mkdir(parents=True, exist_ok=True)
        for name, text in {**RECIPES, "offers": _OFFERS}.items():
            (recipes / f"{name}.yaml").write_text(text, "utf-8")
        (self._folder / "near.txt").write_text(_CONTENT, "utf-8")
        numbers: dict[str, itertools.count[int]] = {}

        def next_id(prefix: str) -> str:
            return f"{prefix}_{next(numbers.setdefault(prefix, itertools.count(1)))}"

        tools = (Door().tool(), echo("look", Effect.PURE), echo("sign", Effect.ONCE))
        app = create_app(
            ServerOptions(
                token=TOKEN,
                grace_s=0.0,
                recover_s=3_600,
                allow_recipe_bodies=True,
                plan_workspaces=(str(self._folder),),
            ),
            recipes=[recipes],
            settings=Settings(no_store=True),
            models=ScriptedModel(lambda prompt: "said", name="scripted/answers"),
            services=Services(ids=next_id),
            extensions=Extensions(tools=Toolbox(tools)),
            environ={},
            log=NullLog(),
        )
        client = Client(app)
        for body in (
            {"recipe": "adds", "inputs": {"a": 1}},
            {"recipe": "signs"},
            {"recipe": "asks"},
        ):
            begun = await client.post("/runs", body)
            assert begun.status == 202, begun
            await client.ended(begun.json["run_id"])
        return _Served(app, client)


_LINE: Final = re.compile(rb"([A-Z]{1,16}) (/[!-~]*)(?: HTTP/1\.[01])?")


def _scope(data: bytes) -> tuple[Message | None, bytes]:
    """The request as an ASGI server hands it on; None: no server would."""
    head, _, body = data.partition(b"\n\n")
    first, *lines = head.split(b"\n")
    found = _LINE.fullmatch(first)
    if found is None:
        return None, body
    raw, _, query = found[2].partition(b"?")
    headers = {b"host": b"localhost", b"authorization": f"Bearer {TOKEN}".encode()}
    for line in lines:
        name, colon, value = line.partition(b":")
        if colon and re.fullmatch(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name):
            headers[name.lower()] = re.sub(rb"[\x00-\x08\x0a-\x1f\x7f]", b"", value).strip()
    scope: Message = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": found[1].decode(),
        "scheme": "http",
        "path": unquote(raw.decode()),
        "raw_path": raw,
        "root_path": "",
        "query_string": query,
        "headers": list(headers.items()),
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
    }
    return scope, body
