"""Who comes in: token, host, origin, sizes and numbers."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest

from asgi_client import TOKEN, Client, Message
from minions.app.settings.settings import Settings
from minions.data.errors import UsageError
from minions.interfaces.server.app import api_document
from minions.interfaces.server.server_options import ServerOptions
from served import Door, MakeApp


async def test_every_method_and_path_but_health_and_the_page_takes_the_token(
    client: Client,
) -> None:
    paths = cast("Any", api_document()["paths"])  # Any: JSON of any form
    asked = [
        (method.upper(), path)
        for path, operations in paths.items()
        for method, operation in operations.items()
        if operation.get("security") != [{}]
    ]
    asked += [("GET", "/openapi.json"), ("OPTIONS", "/api/v1/runs"), ("POST", "/"), ("GET", "/x")]
    asked += [("GET", "/metrics"), ("HEAD", "/metrics")]
    asked += [("POST", "/api/v1/health"), ("HEAD", "/api/v1/runs"), ("DELETE", "/index.html")]
    for method, path in asked:
        for given in (None, "Bearer wrong-token-of-tests", f"Basic {TOKEN}", TOKEN, "Bearer "):
            reply = await client.ask(method, path, None, {"authorization": given})
            assert (reply.status, reply.headers["www-authenticate"]) == (401, "Bearer")
        in_query = await client.ask(method, f"{path}?token={TOKEN}", None, {"authorization": None})
        assert in_query.status == 401
    for path in ("/", "/index.html", "/api/v1/health"):
        assert (await client.ask("GET", path, None, {"authorization": None})).status == 200


async def test_other_hosts_are_turned_away(make_app: MakeApp) -> None:
    client = Client(make_app(hosts={"localhost", "example.org", "::1"}))
    for host in ("localhost", "LOCALHOST:8642", "example.org:1", "[::1]:8642"):
        assert (await client.ask("GET", "/api/v1/health", None, {"host": host})).status == 200
    for wrong in ("evil.example", "localhost.evil.example", "127.0.0.2", "", None):
        reply = await client.ask("GET", "/", None, {"host": wrong})
        assert (reply.status, reply.json["code"]) == (421, "wrong-host")


async def test_pages_of_other_origins_are_turned_away(make_app: MakeApp) -> None:
    client = Client(make_app(origins={"https://board.example"}))
    host = "localhost:8642"
    for origin in (f"http://{host}", f"https://{host}", "https://board.example"):
        reply = await client.ask("GET", "/api/v1/runs", None, {"host": host, "origin": origin})
        assert reply.status == 200
    for wrong in ("http://localhost", "http://localhost:1", "null", "", "http://evil.example"):
        reply = await client.ask("GET", "/api/v1/runs", None, {"host": host, "origin": wrong})
        assert (reply.status, reply.json["code"]) == (403, "wrong-origin")


async def test_every_answer_has_the_headers_that_keep_browsers_strict(client: Client) -> None:
    for path, caching in {"/": "no-cache", "/api/v1/runs": "no-store", "/x": "no-store"}.items():
        headers = (await client.ask("GET", path)).headers
        assert headers["cache-control"] == caching
        assert headers["x-content-type-options"] == "nosniff"
        policy = headers["content-security-policy"]
        assert "default-src 'self'" in policy
        assert "frame-ancestors 'none'" in policy


async def test_a_body_that_is_too_large_is_refused_unread(make_app: MakeApp) -> None:
    client = Client(make_app(max_body_bytes=100))
    body = {"recipe": "adds", "inputs": {"a": 1}}
    assert (await client.post("/runs", body)).status == 202
    for headers in ({}, {"content-length": "2000"}):
        reply = await client.ask("POST", "/api/v1/runs", b" " * 2000, headers)
        assert (reply.status, reply.json["code"]) == (413, "body-too-large")


async def test_more_connections_than_allowed_are_sent_away(make_app: MakeApp, door: Door) -> None:
    client = Client(make_app(max_connections=2))
    run_id = (await client.post("/runs", {"recipe": "waits"})).json["run_id"]
    path = f"/runs/{run_id}/events"
    async with client.follow(path), client.follow(path):
        reply = await client.get("/runs")
        assert (reply.status, reply.json["code"]) == (503, "too-many-connections")
        assert reply.headers["retry-after"] == "1"
    assert (await client.get("/runs")).status == 200
    door.opened.set()


async def test_more_followers_than_allowed_are_sent_away(make_app: MakeApp, door: Door) -> None:
    client = Client(make_app(max_followers=1))
    run_id = (await client.post("/runs", {"recipe": "waits"})).json["run_id"]
    async with client.follow(f"/runs/{run_id}/events"):
        reply = await client.get(f"/runs/{run_id}/events")
        assert (reply.status, reply.json["code"]) == (503, "too-many-followers")
        assert reply.headers["retry-after"] == "5"
    door.opened.set()
    assert (await client.get(f"/runs/{run_id}/events")).status == 200


async def test_unknown_paths_and_methods_are_problems_too(client: Client) -> None:
    for method, path, status, code in (
        ("GET", "/api/v1/nothing", 404, "no-such-path"),
        ("GET", "/../pyproject.toml", 404, "no-such-path"),
        ("GET", "/web/index.html", 404, "no-such-path"),
        ("PUT", "/api/v1/runs", 405, "method-not-allowed"),
    ):
        reply = await client.ask(method, path)
        assert (reply.status, reply.json["code"]) == (status, code)
        assert reply.headers["content-type"] == "application/problem+json"


async def test_a_websocket_is_closed(client: Client) -> None:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        return {"type": "websocket.connect"}

    await client.app({"type": "websocket", "path": "/", "headers": []}, receive, send)
    assert sent == [{"type": "websocket.close", "code": 1008}]


@pytest.mark.parametrize("token", ["", "short", "with a line\nbreak 12345", "ä" * 20])
def test_a_token_that_is_none_is_refused_and_not_repeated(token: str) -> None:
    with pytest.raises(UsageError) as refused:
        ServerOptions(token=token)
    assert refused.value.error_code == "bad-token"
    assert not token or token not in str(refused.value)


def test_options_do_not_show_the_token() -> None:
    assert TOKEN not in repr(ServerOptions(token=TOKEN))


@pytest.mark.parametrize("root", ["", "/tools/minions", "/a"])
@pytest.mark.parametrize("keeps_path", [True, False])
async def test_it_can_be_mounted_in_anyones_own_app(
    make_app: MakeApp, root: str, *, keeps_path: bool
) -> None:
    app = make_app()

    async def host(scope: Message, receive: object, send: object) -> None:
        """Frameworks differ: the path of a mounted app has the place it is mounted at, or not."""
        path = scope["path"] if keeps_path else scope["path"].removeprefix(root)
        await app({**scope, "root_path": root, "path": path}, receive, send)  # type: ignore[arg-type]  # the host's own

    client = Client(host, root)
    assert (await client.ask("GET", "/")).status == 200
    assert (await client.get("/health")).json["status"] == "ok"
    reply = await client.post("/runs", {"recipe": "adds", "inputs": {"a": 1}})
    assert reply.json["links"]["run"] == f"{root}/api/v1/runs/{reply.json['run_id']}"
    assert (await client.ended(reply.json["run_id"]))["output"] == 2
    document = (await client.ask("GET", "/openapi.json")).json
    assert document["servers"] == [{"url": root or "/"}]


async def test_a_lifespan_opens_and_closes_the_app(make_app: MakeApp, door: Door) -> None:
    app = make_app()
    asked: asyncio.Queue[Message] = asyncio.Queue()
    sent: asyncio.Queue[Message] = asyncio.Queue()
    life = asyncio.ensure_future(app({"type": "lifespan"}, asked.get, sent.put))
    asked.put_nowait({"type": "lifespan.startup"})
    assert (await sent.get())["type"] == "lifespan.startup.complete"
    run_id = (await Client(app).post("/runs", {"recipe": "waits"})).json["run_id"]
    await door.reached.wait()
    asked.put_nowait({"type": "lifespan.shutdown"})
    assert (await sent.get())["type"] == "lifespan.shutdown.complete"
    await life
    assert app.app_state.run_manager.find(run_id) is None
    refused = await Client(app).post("/runs", {"recipe": "waits"})
    assert (refused.status, refused.json["code"]) == (503, "stopping")


@pytest.mark.parametrize(
    "host", ["127.0.0.1:80@evil.com", "[::1]evil", "localhost:evil", "localhost:", "[localhost"]
)
async def test_what_follows_the_name_of_a_host_is_a_port_or_nothing(
    client: Client, host: str
) -> None:
    assert (await client.get("/system", host=host)).status == 421


async def test_a_whole_address_is_a_path_too(client: Client) -> None:
    reply = await client.ask("GET", "http://127.0.0.1:8642/api/v1/system")
    assert reply.status == 200


async def test_a_callers_wrong_secret_is_the_callers_fault(
    make_app: MakeApp, recipes: Path
) -> None:
    (recipes / "keyed.yaml").write_text(
        "id: keyed\ninputs: {key: {type: string, secret: true}}\nsteps: [{id: a, set: {n: 1}}]\n"
    )
    listed = Settings(no_store=True, caller_secrets=("env:NOPE_NOPE",))
    client = Client(make_app(settings=listed))
    reply = await client.post("/runs", {"recipe": "keyed", "inputs": {"key": "env:NOPE_NOPE"}})
    assert (reply.status, reply.json["code"]) == (422, "missing-secret")
