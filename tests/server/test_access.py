"""What the access middleware passes on, answers itself and refuses, beside an app of one line."""

from __future__ import annotations

import gzip

import pytest

from asgi_client import TOKEN, Client, Message, Reply
from minions.contracts.runtime import SystemClock
from minions.data.errors import EnvironmentRefusedError, MinionsError
from minions.interfaces.http.http_answers import Answer, Receive, Scope, Send
from minions.interfaces.server.access import ROOT, AccessMiddleware, StaticFile
from minions.interfaces.server.server_options import ServerOptions

SCRIPT = b"// the same words again and again\n" * 20


class App:
    """Answers with the path and the root that it was asked for."""

    def __init__(self) -> None:
        self.fails_after: int | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.fails_after == 0:
            raise RuntimeError("secret words")
        if self.fails_after == 1:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            raise RuntimeError("secret words")
        await Answer(200, f"{scope['path']} {scope[ROOT]}".encode(), "text/plain")(
            scope, receive, send
        )


def shown(_error: Exception) -> MinionsError:
    return EnvironmentRefusedError("error 7", code="internal-error")


@pytest.fixture
def app() -> App:
    return App()


@pytest.fixture
def client(app: App) -> Client:
    files = {"/": StaticFile(b"page", "text/html")}
    return Client(
        AccessMiddleware(app, ServerOptions(token=TOKEN), files, shown, SystemClock().now)
    )


@pytest.fixture
def page(app: App) -> Client:
    files = {"/": StaticFile(SCRIPT, "text/javascript")}
    return Client(
        AccessMiddleware(app, ServerOptions(token=TOKEN), files, shown, SystemClock().now)
    )


async def asked(client: Client, path: str, *, root: str = "", **headers: str) -> Reply:
    """The answer where a framework says that the app is mounted at that root."""
    inner = client.app

    async def host(scope: Message, receive: object, send: object) -> None:
        await inner({**scope, "root_path": root}, receive, send)

    return await Client(host).ask("GET", path, None, headers)


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_a_file_of_the_page_is_for_everybody(client: Client, method: str) -> None:
    reply = await client.ask(method, "/", None, {"authorization": None})
    assert (reply.status, reply.headers["content-type"]) == (200, "text/html")


@pytest.mark.parametrize(
    ("accepted", "is_packed"),
    [("gzip, deflate, br", True), ("GZIP;q=0.5", True), ("gzip;q=0", False), ("br", False)],
)
async def test_a_file_of_the_page_is_sent_compressed_to_whoever_takes_that(
    page: Client, accepted: str, is_packed: bool
) -> None:
    plain = await page.ask("GET", "/")
    assert (plain.body, plain.headers.get("content-encoding")) == (SCRIPT, None)
    reply = await page.ask("GET", "/", None, {"accept-encoding": accepted})
    assert reply.headers["vary"] == plain.headers["vary"] == "accept-encoding"
    assert (reply.headers.get("content-encoding") == "gzip") is is_packed
    assert (gzip.decompress(reply.body) if is_packed else reply.body) == SCRIPT
    assert (len(reply.body) < len(SCRIPT)) is is_packed
    assert (reply.headers["etag"] == plain.headers["etag"]) is not is_packed


def answering(body: bytes, kind: str, *, pieces: int = 1) -> Client:
    """A client of an app that answers each request so."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-type", kind.encode()), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        size = -(-len(body) // pieces)
        for at in range(pieces):
            piece = body[at * size : (at + 1) * size]
            more = at < pieces - 1
            await send({"type": "http.response.body", "body": piece, "more_body": more})

    options = ServerOptions(token=TOKEN)
    return Client(AccessMiddleware(app, options, {}, shown, SystemClock().now))


LIST = b'{"runs": [' + b'"one", ' * 500 + b'"last"]}'


async def test_a_list_is_sent_compressed_to_whoever_takes_that() -> None:
    client = answering(LIST, "application/json; charset=utf-8")
    plain = await client.ask("GET", "/x")
    assert (plain.body, plain.headers.get("content-encoding")) == (LIST, None)
    reply = await client.ask("GET", "/x", None, {"accept-encoding": "gzip, br"})
    assert (reply.headers["content-encoding"], reply.headers["vary"]) == ("gzip", "accept-encoding")
    assert gzip.decompress(reply.body) == LIST
    assert int(reply.headers["content-length"]) == len(reply.body) < len(LIST) / 5
    assert reply.headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    ("body", "kind", "pieces"),
    [
        pytest.param(LIST, "application/json", 2, id="in pieces"),
        pytest.param(LIST, "text/event-stream", 1, id="events"),
        pytest.param(LIST, "application/octet-stream", 1, id="a file"),
        pytest.param(LIST[:900], "application/json", 1, id="few bytes"),
        pytest.param(LIST * 200, "application/json", 1, id="very many bytes"),
    ],
)
async def test_other_answers_are_sent_as_they_are(body: bytes, kind: str, pieces: int) -> None:
    client = answering(body, kind, pieces=pieces)
    reply = await client.ask("GET", "/x", None, {"accept-encoding": "gzip"})
    assert (reply.body, reply.headers.get("content-encoding")) == (body, None)
    assert int(reply.headers["content-length"]) == len(body)


async def test_an_answer_to_another_method_is_not_compressed() -> None:
    client = answering(LIST, "application/json")
    reply = await client.ask("POST", "/x", None, {"accept-encoding": "gzip"})
    assert reply.body == LIST


async def test_a_file_that_compression_makes_larger_is_sent_as_it_is(client: Client) -> None:
    reply = await client.ask("GET", "/", None, {"accept-encoding": "gzip"})
    assert (reply.body, reply.headers.get("content-encoding")) == (b"page", None)


async def test_a_file_that_a_browser_has_is_not_sent_again(page: Client) -> None:
    tag = (await page.ask("GET", "/")).headers["etag"]
    for known in (tag, f'"other", W/{tag}', "*"):
        reply = await page.ask("GET", "/", None, {"if-none-match": known})
        assert (reply.status, reply.body, reply.headers["etag"]) == (304, b"", tag)
        assert "content-length" not in reply.headers
    assert (await page.ask("GET", "/", None, {"if-none-match": '"other"'})).status == 200


async def test_another_method_at_the_path_of_a_file_is_the_apps(client: Client) -> None:
    assert (await client.ask("POST", "/", None, {"authorization": None})).status == 401
    assert (await client.ask("POST", "/")).body == b"/ "


@pytest.mark.parametrize(
    ("path", "root", "seen"),
    [
        ("/x", "", b"/x "),
        ("", "", b"page"),
        ("/a", "/a", b"page"),
        ("/a/x", "/a", b"/x /a"),
        ("/a/x", "/a/", b"/x /a"),
        ("/ab", "/a", b"/ab /a"),
        ("http://h/a/b", "", b"/a/b "),
        ("https://h/", "", b"page"),
        ("http://h", "", b"page"),
        ("http://h/x", "", b"/x "),
    ],
)
async def test_a_path_is_taken_below_the_place_at_which_the_app_is_mounted(
    client: Client, path: str, root: str, seen: bytes
) -> None:
    assert (await asked(client, path, root=root)).body == seen


async def test_headers_have_a_limit_of_bytes_in_all(client: Client) -> None:
    used = len("host") + len("localhost") + len("authorization") + len(f"Bearer {TOKEN}")
    room = 32_768 - used - len("x-a")
    assert (await client.ask("GET", "/x", None, {"x-a": "v" * room})).status == 200
    reply = await client.ask("GET", "/x", None, {"x-a": "v" * (room + 1)})
    assert (reply.status, reply.json["code"]) == (431, "headers-too-large")


async def test_two_origins_are_none(client: Client) -> None:
    inner = client.app

    async def twice(scope: Message, receive: object, send: object) -> None:
        own = (b"origin", b"http://localhost")
        await inner({**scope, "headers": [*scope["headers"], own, own]}, receive, send)

    reply = await Client(twice).ask("GET", "/x")
    assert (reply.status, reply.json["code"]) == (403, "wrong-origin")


async def test_an_unexpected_error_is_answered_and_its_words_are_not(
    client: Client, app: App
) -> None:
    app.fails_after = 0
    reply = await client.ask("GET", "/x")
    assert (reply.status, reply.json["code"]) == (503, "internal-error")
    assert b"secret" not in reply.body


async def test_an_answer_that_fails_in_its_middle_has_no_second_beginning(
    client: Client, app: App
) -> None:
    app.fails_after = 1
    async with client.stream("GET", "/x") as stream:
        assert stream.status == 200
        assert await stream._messages.get() is None  # the end of what was sent
