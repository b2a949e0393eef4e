"""Pages of other origins: which may ask, what they may send, and what they may read."""

from __future__ import annotations

from typing import Final

import pytest
from attrs import evolve

from asgi_client import TOKEN, Client, Reply
from minions.data.errors import UsageError
from minions.interfaces.server.app import App
from minions.interfaces.server.projects import ProjectServer
from minions.interfaces.server.server_options import ServerOptions
from served import MakeApp

BOARD: Final = "http://board.example:3000"
CHAT: Final = "chrome-extension://abcdefgh"
ASKED: Final = (
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/responses"),
    ("GET", "/v1/models"),
    ("POST", "/api/v1/agents/adds/ag-ui"),
    ("GET", "/api/v1/runs/run_1/events"),
    ("DELETE", "/api/v1/sessions/s1"),
    ("POST", "/a2a"),
)


@pytest.fixture
def client(make_app: MakeApp) -> Client:
    return Client(make_app(answers=["said"], origins={BOARD, CHAT}))


async def preflight(
    client: Client, path: str, *, origin: str = BOARD, method: str = "POST", headers: str = ""
) -> Reply:
    """The answer to what a browser asks before it sends a request: without a token."""
    asked = {
        "authorization": None,
        "origin": origin,
        "access-control-request-method": method,
        "access-control-request-headers": headers or None,
    }
    return await client.ask("OPTIONS", path, None, asked)


def cross_origin(reply: Reply) -> dict[str, str]:
    """The headers that are for pages of other origins alone."""
    return {
        name.removeprefix("access-control-"): text
        for name, text in reply.headers.items()
        if name.startswith("access-control-")
    }


@pytest.mark.parametrize(("method", "path"), ASKED)
async def test_a_page_of_a_listed_origin_may_ask_for_each_api(
    client: Client, method: str, path: str
) -> None:
    sent = "authorization,content-type,x-minions-session,x-stainless-os,x-stainless-retry-count"
    reply = await preflight(client, path, method=method, headers=sent)
    assert (reply.status, reply.body, reply.headers["vary"]) == (204, b"", "origin")
    found = cross_origin(reply)
    assert found["allow-origin"] == BOARD
    assert method in found["allow-methods"].split(", ")
    assert set(sent.split(",")) <= set(found["allow-headers"].lower().split(", "))
    assert "allow-credentials" not in found


async def test_a_preflight_names_what_there_is_and_not_what_was_asked_for(client: Client) -> None:
    asked = "x-own, cookie, x-stainless-, x-stainless-a\r\nb, x-forwarded-user"
    found = cross_origin(await preflight(client, "/v1/models", method="PUT", headers=asked))
    assert found["allow-methods"] == "GET, OPTIONS"
    allowed = found["allow-headers"].lower()
    assert not [each for each in ("x-own", "cookie", "forwarded", "stainless") if each in allowed]
    assert found["max-age"] == "600"


@pytest.mark.parametrize("path", ["/v1/nothing", "/api/v2/runs", "/", "/index.html", "/../x"])
async def test_a_preflight_of_an_unknown_path_is_refused(client: Client, path: str) -> None:
    reply = await preflight(client, path)
    assert reply.status == 404
    assert "access-control-allow-methods" not in reply.headers


@pytest.mark.parametrize(
    "origin", ["http://board.example", f"{BOARD}/", f"{BOARD}0", "null", "", "HTTP://BOARD:3000"]
)
async def test_an_origin_that_is_not_listed_gets_nothing(client: Client, origin: str) -> None:
    for reply in (
        await preflight(client, "/v1/models", origin=origin),
        await client.ask("GET", "/v1/models", None, {"origin": origin}),
        await client.ask("GET", "/api/v1/health", None, {"origin": origin}),
    ):
        assert (reply.status, cross_origin(reply)) == (403, {})
        assert reply.headers["vary"] == "origin"


async def test_a_preflight_is_no_way_round_the_token_or_the_host(client: Client) -> None:
    plain = {"authorization": None, "origin": BOARD}
    asks = {**plain, "access-control-request-method": "POST"}
    assert (await client.ask("OPTIONS", "/api/v1/runs", None, plain)).status == 401
    assert (await client.ask("POST", "/api/v1/runs", {"recipe": "adds"}, asks)).status == 401
    assert (await client.ask("GET", "/api/v1/runs", None, asks)).status == 401
    reply = await client.ask("OPTIONS", "/api/v1/runs", None, {**asks, "host": "evil.example"})
    assert reply.status == 421
    assert "access-control-allow-methods" not in reply.headers
    twice = Client(_with_header_twice(client.app, b"origin", BOARD.encode()))
    assert (await preflight(twice, "/api/v1/runs")).status == 403


def _with_header_twice(app: App, name: bytes, value: bytes) -> object:
    async def host(scope: dict[str, object], receive: object, send: object) -> None:
        headers = [*scope["headers"], (name, value)]  # type: ignore[misc]  # as ASGI has it
        await app({**scope, "headers": headers}, receive, send)  # type: ignore[arg-type]  # as above

    return host


async def test_answers_and_refusals_may_be_read_by_a_listed_page(client: Client) -> None:
    for path, status in {
        "/v1/models": 200,
        "/v1/models/none": 404,
        "/api/v1/runs?x=1": 400,
    }.items():
        reply = await client.ask("GET", path, None, {"origin": BOARD})
        assert (reply.status, cross_origin(reply)["allow-origin"]) == (status, BOARD)
        exposed = cross_origin(reply)["expose-headers"].lower().split(", ")
        assert {"x-minions-run", "x-minions-session", "x-minions-status"} <= set(exposed)
        assert {"x-minions-ignored", "retry-after", "x-should-retry"} <= set(exposed)
    reply = await client.ask("GET", "/v1/models", None, {"origin": BOARD, "authorization": None})
    assert (reply.status, cross_origin(reply)["allow-origin"]) == (401, BOARD)
    reply = await client.ask("GET", "/api/v1/health", None, {"origin": CHAT})
    assert (reply.status, cross_origin(reply)["allow-origin"]) == (200, CHAT)


async def test_a_stream_may_be_read_by_a_listed_page(client: Client) -> None:
    body = {"model": "chat", "messages": [{"role": "user", "content": "one"}], "stream": True}
    async with client.stream("POST", "/v1/chat/completions", body, {"origin": BOARD}) as stream:
        assert stream.status == 200
        assert stream.headers["access-control-allow-origin"] == BOARD
        assert "x-minions-run" in stream.headers
        assert (await stream.read()).endswith(b"data: [DONE]\n\n")


async def test_too_many_requests_are_told_to_a_listed_page(make_app: MakeApp) -> None:
    client = Client(make_app(origins={BOARD}, max_connections=1))
    async with client.follow("/changes"):
        reply = await client.ask("GET", "/api/v1/runs", None, {"origin": BOARD})
        assert (reply.status, cross_origin(reply)["allow-origin"]) == (503, BOARD)
        assert (await preflight(client, "/api/v1/runs")).status == 503


async def test_the_page_s_own_files_and_its_own_requests_stay_as_they_were(
    client: Client, make_app: MakeApp
) -> None:
    assert cross_origin(await client.ask("GET", "/", None, {"origin": BOARD})) == {}
    own = await client.ask("GET", "/api/v1/runs", None, {"origin": "http://localhost"})
    assert (own.status, cross_origin(own), own.headers["vary"]) == (200, {}, "origin")
    unlisted = Client(make_app())
    reply = await unlisted.ask("GET", "/api/v1/runs")
    assert (reply.status, cross_origin(reply), reply.headers.get("vary")) == (200, {}, None)
    assert (await preflight(unlisted, "/api/v1/runs")).status == 403


async def test_the_lists_of_all_projects_may_be_asked_for_too(make_app: MakeApp) -> None:
    app = make_app(origins={BOARD})
    served = ProjectServer({"shop": app}, "shop", app.options, app.log)
    client = Client(served)
    for path in ("/api/v1/projects", "/projects/shop/api/v1/projects/runs"):
        found = cross_origin(await preflight(client, path, method="GET"))
        assert (found["allow-origin"], found["allow-methods"]) == (BOARD, "GET, HEAD")
    reply = await preflight(client, "/projects/shop/api/v1/runs")
    assert "POST" in reply.headers["access-control-allow-methods"]
    assert (await preflight(client, "/projects/none/api/v1/runs")).status in (404, 405)
    await served.aclose()


@pytest.mark.parametrize(
    ("origin", "words"),
    [
        ("*", "every page that somebody opens could ask then"),
        ("null", "files and sandboxed frames of anybody have it"),
        ("http://localhost:3000/", "such as http://localhost:3000."),
        ("https://Board.Example", "such as https://board.example."),
        ("https://board.example/chat?x=1", "such as https://board.example."),
        ("https://board.example:443", "browsers leave this port out"),
        ("http://board.example:80", "such as http://board.example."),
        ("https://*.board.example", "such as http://localhost:3000."),
        ("localhost:3000", "scheme://host"),
        ("file://", "scheme://host"),
        ("", "scheme://host"),
        ("http://a b", "scheme://host"),
        ("http://user@board.example", "scheme://host"),
        ("http://board.example\n", "scheme://host"),
    ],
)
def test_an_origin_that_no_browser_sends_or_that_anybody_has_is_refused(
    origin: str, words: str
) -> None:
    with pytest.raises(UsageError) as refused:
        ServerOptions(token=TOKEN, origins={origin})
    assert refused.value.error_code == "bad-origin"
    assert words in refused.value.message


def test_origins_as_browsers_send_them_are_taken() -> None:
    origins = {
        "http://localhost:3000",
        "https://b.example",
        "http://[::1]:8080",
        "app://obsidian.md",
    }
    assert ServerOptions(token=TOKEN, origins=origins).origins == origins
    assert evolve(ServerOptions(token=TOKEN), origins=origins).origins == origins
