"""What callers may reach: every input of every operation is in the table of `docs/http.md`, and is
tried with files, variables, hosts, templates and secrets that it must not reach.
"""

from __future__ import annotations

import re
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple, cast
from urllib.parse import quote

import pytest
import pytest_asyncio

from asgi_client import Client, Reply
from minions.adapters.models.scripted import ScriptedModel
from minions.app.settings.settings import Settings
from minions.contracts.journal.journal import Journal
from minions.contracts.tools import Effect, Toolbox
from minions.engine.compile.extensions import Extensions
from minions.engine.services.run_services import Services
from minions.interfaces.server.app import api_document, create_app
from minions.interfaces.server.server_options import ServerOptions
from served import echo

TOKEN: Final = "a-token-of-the-tests"
DOCUMENT: Final = Path(__file__).parents[2] / "docs" / "http.md"
WORDS: Final = "words-that-nobody-may-see"
VARIABLE: Final = "CANARY_OF_THE_TESTS"
HOST: Final = "canary.invalid"

TAKES = """
id: takes
permissions: {allow_write: true, requires_approval: [sign]}
inputs:
  text: {type: string, default: a treaty}
  folder: {type: string, format: path, default: inner}
  token: {type: string, secret: true, default: "env:GIVEN"}
tools: [{files: {root: "{{ inputs.folder }}", as: own}}]
steps:
  - {id: look, tool: own__list, params: {}}
  - {id: sign, tool: sign, params: {text: "{{ inputs.text }}"}}
output: "{{ sign }}"
"""
CHAT = """
id: chat
inputs: {message: {type: string}}
steps: [{id: answer, goal: Answer the user., memory: conversation}]
"""


class Cell(NamedTuple):
    """One input of one operation."""

    operation: str
    place: str
    name: str


class Operation(NamedTuple):
    """One operation as the document has it."""

    method: str
    path: str


_DOCUMENT: Final = cast("Mapping[str, Any]", api_document())  # Any: JSON


def _operations() -> Iterator[tuple[str, Operation, Mapping[str, Any]]]:  # Any: as above
    for path, methods in _DOCUMENT["paths"].items():
        for method, operation in methods.items():
            yield operation["operationId"], Operation(method.upper(), path), operation


def _cells() -> Iterator[Cell]:
    for operation_id, _, operation in _operations():
        for each in operation.get("parameters", ()):
            yield Cell(operation_id, each["in"], each["name"])
        for content in operation.get("requestBody", {}).get("content", {}).values():
            kind = _schema_at(content["schema"])
            variants = [_schema_at(each) for each in kind.get("oneOf", ())] or [kind]
            for name in dict.fromkeys(name for each in variants for name in each["properties"]):
                yield Cell(operation_id, "body", name)


def _schema_at(reference: Mapping[str, str]) -> Mapping[str, Any]:  # Any: as above
    schemas: Mapping[str, Any] = _DOCUMENT["components"]["schemas"]
    found: Mapping[str, Any] = schemas[reference["$ref"].rpartition("/")[2]]
    return found


OPERATIONS: Final = {name: operation for name, operation, _ in _operations()}
CELLS: Final = sorted(_cells())
NUMBERS: Final = {
    Cell(operation_id, each["in"], each["name"])
    for operation_id, _, operation in _operations()
    for each in operation.get("parameters", ())
    if each["schema"].get("type") == "integer"
}
"""Inputs that no text gets into: few are tried."""


def _documented() -> Iterator[Cell]:
    section = DOCUMENT.read_text("utf-8").partition("## What a caller may reach")[2]
    for line in section.partition("\n## ")[0].splitlines():
        if (row := re.fullmatch(r"\| (\w+) \| (`[^|]+`) \| ([^|]*) \| (.+) \|", line)) is not None:
            for operation in re.findall(r"`(\w+)`", row[3]):
                for name in re.findall(r"`([\w-]+)`", row[2]):
                    yield Cell(operation, row[1], name)


def test_every_input_of_every_operation_is_documented_once() -> None:
    """A-122."""
    assert sorted(_documented()) == CELLS


# --- what each of them is tried with --------------------------------------------------------------

_REACHING: Final = ("open", "os.", "socket.", "subprocess.")


class _Watch:
    """Notes when the interpreter is asked for a marked file or host."""

    def __init__(self) -> None:
        self.marks: tuple[str, ...] = ()
        """What must not occur in arguments; empty: no test looks."""
        self.reached: list[str] = []

    def __call__(self, event: str, arguments: tuple[object, ...]) -> None:
        if self.marks and event.startswith(_REACHING):
            said = repr(arguments)
            if any(mark in said for mark in self.marks):
                self.reached.append(f"{event} {said[:300]}")


@cache  # audit hooks cannot be removed, and cost each test that comes after
def _watch() -> _Watch:
    watch = _Watch()
    sys.addaudithook(watch)
    return watch


class NotedEnvironment(dict[str, str]):
    """The environment of a server, which notes what was looked for."""

    def __init__(self, **variables: str) -> None:
        super().__init__(variables)
        self.asked: set[object] = set()

    def __getitem__(self, name: str) -> str:
        self.asked.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:  # Any: as `dict` has it
        self.asked.add(name)
        return super().get(name, default)


class Served(NamedTuple):
    """A server with runs and sessions, and what it must not reach."""

    client: Client
    canary: Path
    environment: NotedEnvironment
    journal: Journal


@pytest_asyncio.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    recipes = tmp_path / "recipes"
    (recipes / "inner").mkdir(parents=True)
    (tmp_path / "work").mkdir()
    (recipes / "takes.yaml").write_text(TAKES)
    (recipes / "chat.yaml").write_text(CHAT)
    canary = tmp_path / "canary" / "canary.yaml"
    canary.parent.mkdir()
    canary.write_text(f"id: canary\ndescription: {WORDS}\nsteps: [{{id: a, set: {{n: 1}}}}]\n")
    environment = NotedEnvironment(**{VARIABLE: WORDS, "GIVEN": "a-secret-that-is-given"})
    app = create_app(
        ServerOptions(token=TOKEN, grace_s=1.0, plan_workspaces=(str(tmp_path / "work"),)),
        recipes=[recipes],
        settings=Settings(no_store=True),
        models=ScriptedModel(lambda prompt: "said"),
        extensions=Extensions(tools=Toolbox([echo("sign", Effect.ONCE)])),
        services=Services(secrets=lambda ref: str(environment.get(ref.name))),
        environ=environment,
        note={"cwd": str(recipes)},
    )
    yield Served(Client(app), canary, environment, app.app_state.journal)
    await app.aclose()


def hostile(canary: Path) -> list[str]:
    """Texts with which somebody might reach what they must not."""
    up = "../" * 12
    return [
        str(canary),
        str(canary.parent),
        f"{up}{str(canary).lstrip('/')}",
        f"../{canary.parent.name}/{canary.name}",
        canary.as_uri(),
        f"file:{canary}",
        f"env:{VARIABLE}",
        f"@{canary}",
        f"${{{VARIABLE}}}",
        f"$(secret:env:{VARIABLE})",
        f"{{{{ env.{VARIABLE} }}}}",
        f"http://{HOST}/",
        f"openai/gpt@http://{HOST}/v1",
        f"{canary}\0.yaml",
    ]


async def _begun(client: Client) -> Mapping[str, str]:
    """A run that waits for its approval, and a session."""
    run = await client.post("/runs", {"recipe": "takes"})
    assert run.status == 202, run.body
    await client.ended(run.json["run_id"])
    approvals = (await client.get("/approvals")).json["approvals"]
    mine = next(each for each in approvals if each["run_id"] == run.json["run_id"])
    session = await client.post("/sessions", {"recipe": "chat"})
    return {
        "run_id": run.json["run_id"],
        "session_id": session.json["id"],
        "approval_id": mine["id"],
        "digest": mine["digest"],
        "recipe_id": "takes",
        "name": "takes",
        "model_id": "chat",
        "sequence": "1",
        "schedule": "none",
        "batch_id": "none",
        "evaluation_id": "none",
    }


def _bodies(known: Mapping[str, str]) -> Mapping[str, dict[str, object]]:
    """A body for each operation that takes one, with what it has to have."""
    approval: dict[str, object] = {"decision": "approve", "digest": known["digest"]}
    return {
        "runAgent": {},
        "startPlan": {"requirements": "Write."},
        "startRun": {"recipe": "takes"},
        "createSession": {"recipe": "takes"},
        "forkSession": {"sequence": 1},
        "retrySession": {"sequence": 1},
        "sendMessage": {"content": "Hello."},
        "decide": approval,
        "decideRun": dict(approval),
        "retryRun": {},
        "rollBackFiles": {},
        "captureRun": {},
        "runAgUi": {"threadId": "t", "runId": "r", "messages": [_said("Hello.")]},
        "callA2a": _sent(metadata={"skill": "takes"}),
        "callRecipeA2a": _sent(),
        "createChatCompletion": {"model": "takes", "messages": [_said("Hello.")]},
        "createResponse": {"model": "takes", "input": "Hello."},
    }


def _sent(**more: object) -> dict[str, object]:
    """A request of A2A that sends a message."""
    message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"data": {}}], **more}
    params = {"message": message}
    return {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": params}


def _params(request: dict[str, object]) -> dict[str, object]:
    params = request["params"]
    assert isinstance(params, dict)
    return params


def _said(text: str) -> dict[str, object]:
    return {"role": "user", "content": text}


_MANY: Final = 4
"""Of the values of an input that takes more, each is given every third text."""
_QUERIES: Final = {"searchRun": "text=a", "getRunStep": "address=look", "getRunValue": "at=/output",
                   "listRunItems": "step=look", "deleteSteps": "start_seq=1"}  # fmt: skip


def _values(cell: Cell, text: str) -> list[object]:
    """What an input is given, so that the text is in it."""
    if cell.name == "inputs":
        return [{name: text} for name in ("text", "folder", "token", text)]
    if cell.name == "arguments":
        return [{"text": text}, {text: text}]
    if cell.name == "messages":
        image = {"type": "image_url", "image_url": {"url": text}}
        return [[_said(text)], [{"role": "user", "content": [image]}]]
    if cell.name == "forwardedProps":
        return [{"inputs": {name: text}} for name in ("folder", "token", text)]
    if cell.name == "resume":
        return [[{"interruptId": text, "status": "resolved"}]]
    if cell.name == "params":
        inputs = [[{"data": {name: text}}] for name in ("text", "folder", "token", text)]
        files = [[{"url": text}], [{"text": text}], [{"data": {"decision": text}}]]
        changed: list[dict[str, object]] = [{"parts": parts} for parts in (*inputs, *files)]
        changed += ({"contextId": text}, {"taskId": text}, {"metadata": {"skill": text}})
        pushed: dict[str, object] = {"taskPushNotificationConfig": {"url": text}}
        sent = []
        for at, each in enumerate(changed):
            more = {"metadata": {"skill": "takes"}, "messageId": f"{text}{at}", **each}
            sent.append(_params(_sent(**more)))
        return [*sent, {"id": text}, {**sent[0], "configuration": pushed}]
    if cell.name == "metadata":
        return [{name: text} for name in ("folder", "token", text)]
    if cell.name in ("response_format", "text"):
        form = {"type": "json_schema", "schema": {"$ref": text}}
        return [form, {"format": form}]
    if cell.name == "recipe_text":
        return [text, TAKES.replace("inner", text).replace("\0", "")]
    if cell.name == "value":
        return [text, {"text": text}]
    return [text]


async def ask(client: Client, cell: Cell, known: Mapping[str, str], value: object) -> Reply:
    """The answer to a request that is as it should be, but for this input."""
    method, path = OPERATIONS[cell.operation]
    given = {**known, cell.name: str(value)} if cell.place == "path" else known
    for name, text in given.items():
        path = path.replace(f"{{{name}}}", quote(text, safe="") if cell.name == name else text)
    query = _QUERIES.get(cell.operation, "")
    if cell.place == "query":
        others = [each for each in query.split("&") if each and not each.startswith(cell.name)]
        query = "&".join([*others, f"{cell.name}={quote(str(value), safe='')}"])
    headers = {"a2a-version": "1.0"} if "A2a" in cell.operation else {}
    if cell.place == "header":
        headers = {cell.name: re.sub(r"[^ -~]", "", str(value))}
    if cell.operation in ("followRun", "followSession") and cell.place == "path":
        headers = {"last-event-id": "9999999"}  # a stream that has nothing to say
    body = _bodies(known).get(cell.operation)
    if cell.place == "body":
        body = {**(body or {}), cell.name: value}
        if cell.name == "recipe_text":
            del body["recipe"]
    return await client.ask(method, f"{path}?{query}", body, headers)


async def _settle(client: Client) -> None:
    """Wait for the runs that go on."""
    for run in (await client.get("/runs?limit=1000")).json["runs"]:
        if run["status"] == "running":
            await client.ended(run["run_id"])


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: "-".join(cell))
async def test_an_input_reaches_no_file_variable_host_or_recipe_that_nobody_listed(
    served: Served, cell: Cell
) -> None:
    """A-122."""
    client = served.client
    known = await _begun(client)
    served.environment.asked.clear()
    watch = _watch()
    watch.reached.clear()
    watch.marks = (f"'{served.canary.parent}", f"'{HOST}")
    try:
        for at, text in enumerate(hostile(served.canary)[:: 7 if cell in NUMBERS else 1]):
            values = _values(cell, text)
            for value in values[at % 3 :: 3] if len(values) > _MANY else values:
                reply = await ask(client, cell, known, value)
                assert reply.status < 500, (value, reply.body)
                assert WORDS not in reply.body.decode(), value
                if cell.operation in ("decide", "decideRun") and reply.status < 300:
                    known = await _begun(client)  # that approval is decided
        await _settle(client)
    finally:
        watch.marks = ()
    assert watch.reached == []
    assert VARIABLE not in served.environment.asked
    for run in (await client.get("/runs?limit=1000")).json["runs"]:
        rows = await served.journal.entries(run_id=run["run_id"])
        assert WORDS not in repr(rows)


@pytest.mark.parametrize(
    ("cell", "value", "refusal"),
    [
        (Cell("startRun", "body", "recipe"), "canary", (404, "recipe-not-found")),
        (Cell("startRun", "body", "recipe"), "step_executor", (404, "recipe-not-found")),
        (Cell("runAgent", "path", "name"), "canary", (404, "recipe-not-found")),
        (Cell("startRun", "body", "recipe_text"), TAKES, (403, "recipe-text-refused")),
        (Cell("startRun", "body", "inputs"), {"token": "env:PATH"}, (403, "secret-refused")),
        (Cell("startRun", "body", "inputs"), {"folder": "/etc"}, (403, "input-refused")),
        (Cell("retryRun", "body", "inputs"), {"folder": "/etc"}, (403, "input-refused")),
        (Cell("createSession", "body", "inputs"), {"folder": "/etc"}, (403, "input-refused")),
        (Cell("runAgent", "body", "inputs"), {"folder": "/etc"}, (403, "input-refused")),
        (Cell("startPlan", "body", "workspace"), "/etc", (403, "workspace-refused")),
        (Cell("startPlan", "body", "workspace"), "..", (403, "workspace-refused")),
        (Cell("sendMessage", "body", "model"), "openai/gpt-5", (403, "model-refused")),
        (Cell("startRun", "body", "patience"), "8h", (403, "patience-refused")),
        (Cell("startRun", "body", "by"), "06:00", (403, "patience-refused")),
        (Cell("startRun", "body", "session"), "ses_none", (404, "unknown-session")),
        (Cell("getRun", "path", "run_id"), "run_none", (404, "unknown-run")),
        (Cell("getModel", "path", "model_id"), "canary", (404, "model_not_found")),
        (Cell("createResponse", "body", "model"), "canary", (404, "model_not_found")),
        (
            Cell("createResponse", "body", "metadata"),
            {"token": "env:PATH"},
            (403, "secret-refused"),
        ),
        (
            Cell("callRecipeA2a", "body", "params"),
            _params(_sent(parts=[{"data": {"folder": "/etc"}}])),
            (403, -32600),
        ),
        (
            Cell("runAgUi", "body", "forwardedProps"),
            {"inputs": {"folder": "/etc"}},
            (403, "input-refused"),
        ),
        (Cell("createResponse", "body", "metadata"), {"folder": "/etc"}, (403, "input-refused")),
        (Cell("createResponse", "body", "previous_response_id"), "run_1", (404, "unknown-run")),
        (
            Cell("createChatCompletion", "header", "x-minions-session"),
            "ses_none",
            (404, "unknown-session"),
        ),
    ],
)
async def test_what_is_not_offered_is_refused(
    served: Served, cell: Cell, value: object, refusal: tuple[int, str]
) -> None:
    """A-122."""
    reply = await ask(served.client, cell, await _begun(served.client), value)
    assert (reply.status, reply.json.get("error", reply.json)["code"]) == refusal


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("x-forwarded-host", HOST),
        ("x-forwarded-for", "10.0.0.1"),
        ("forwarded", f"host={HOST}"),
        ("x-original-url", "/api/v1/health"),
        ("x-http-method-override", "DELETE"),
        ("cookie", f"token={TOKEN}"),
        ("x-api-key", TOKEN),
        ("range", "bytes=0-1"),
        ("accept", "text/html"),
    ],
)
async def test_another_header_changes_nothing(served: Served, name: str, value: str) -> None:
    """A-122."""
    usual = await served.client.ask("GET", "/api/v1/recipes", None, {})
    other = await served.client.ask("GET", "/api/v1/recipes", None, {name: value})
    assert (other.status, other.body) == (usual.status, usual.body)
    unknown = {"authorization": None, name: value}
    assert (await served.client.ask("GET", "/api/v1/recipes", None, unknown)).status == 401


async def test_the_watch_sees_what_is_reached(tmp_path: Path) -> None:
    watch = _watch()
    watch.marks = (f"'{tmp_path}",)
    try:
        (tmp_path / "a").write_text("")
    finally:
        watch.marks = ()
    assert any(each.startswith("open ") for each in watch.reached)
