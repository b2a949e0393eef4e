"""The http tools against servers on this machine: what they give, and what they refuse to ask."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path

import pytest
from aiohttp import web

import minions as m
from builders import result_of
from minions.adapters.http.request_rules import (
    AllowedHost,
    Resolve,
    check_address,
    resolve_by_system,
)
from minions.adapters.tools.http_toolset import (
    _CHARSETS,
    HttpStatusError,
    _media_type,
    http_toolset,
)
from minions.contracts.tools import Effect, Tool, ToolScope
from minions.data.errors import ToolError, UsageError
from minions.data.json_values import JsonValue
from minions.data.schema import SchemaValidator, check_schema
from minions.testing.virtual_time import FakeClock

CERTIFICATE = Path(__file__).with_name("localhost.pem")
SCOPE = ToolScope(run_id="run_1", step_id="a", call_id="call_1", idempotency_key="run_1/a/1")
Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class Server:
    """One on a free port of 127.0.0.1 that remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, Mapping[str, str], str]] = []
        self.answer: Handler = self._plain
        self.port = 0
        self.closing = asyncio.Event()

    @staticmethod
    async def _plain(request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(text="hi", headers={"X-One": "1", "Set-Cookie": "a=b"})

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        body = await request.text()
        self.asked.append((request.method, request.path_qs, dict(request.headers), body))
        return await self.answer(request)

    def url(self, path: str = "/", host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{path}"

    @contextlib.asynccontextmanager
    async def running(self, tls: ssl.SSLContext | None = None) -> AsyncIterator[Server]:
        runner = web.ServerRunner(web.Server(self.handle), shutdown_timeout=0)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
        await site.start()
        self.port = runner.addresses[0][1]
        yield self
        self.closing.set()
        await runner.cleanup()


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with Server().running() as running:
        yield running


@pytest.fixture
async def other() -> AsyncIterator[Server]:
    async with Server().running() as running:
        yield running


def tools(
    *allow: str, resolve: Resolve = resolve_by_system, **options: JsonValue
) -> Mapping[str, Tool]:
    given: dict[str, JsonValue] = {"allow": list(allow), **options}
    toolset = http_toolset(resolve)
    assert SchemaValidator(toolset.options).errors(given) == ()
    return {tool.spec.name.removeprefix("http__"): tool for tool in toolset.open(given, "http")}


async def ask(
    server: Server | str,
    name: str = "get",
    path: str = "/",
    options: Mapping[str, JsonValue] | None = None,
    resolve: Resolve = resolve_by_system,
    allow: Sequence[str] = (),
    **arguments: JsonValue,
) -> Mapping[str, JsonValue]:
    url = server if isinstance(server, str) else server.url(path)
    hosts = allow or ([] if isinstance(server, str) else [f"127.0.0.1:{server.port}"])
    known = tools(*hosts, resolve=resolve, **{"allow_private": True, **(options or {})})
    result = await result_of(known[name], {"url": url, **arguments}, SCOPE)
    assert isinstance(result, Mapping)
    return result


async def refusal(*args: Server | str, **kwargs: JsonValue) -> str:
    with pytest.raises(ToolError) as caught:
        await ask(*args, **kwargs)  # type: ignore[arg-type]  # as ask takes them
    return caught.value.error_code


def redirect(*places: str, status: int = 302) -> Handler:
    """To each of them in turn, then an answer."""
    left = list(places)

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        if left:
            return web.Response(status=status, headers={"Location": left.pop(0)})
        return web.Response(text="there")

    return answer


# --- the toolset -----------------------------------------------------------------------------


def test_getting_is_pure_and_posting_once_unless_the_servers_know_keys() -> None:
    toolset = http_toolset()
    effects = {"get": Effect.PURE, "post": Effect.ONCE}
    assert {spec.name: spec.effect for spec in toolset.specs} == effects
    for spec in toolset.specs:
        check_schema(spec.parameters)
        assert "scope" not in json.dumps(spec.parameters)
    assert tools("a.b", idempotent=True)["post"].spec.effect is Effect.IDEMPOTENT


@pytest.mark.parametrize(
    "options",
    [
        {}, {"allow": []}, {"allow": ["*"]}, {"allow": ["*."]}, {"allow": ["https://a.b"]},
        {"allow": ["a.b/c"]}, {"allow": ["a.*.b"]}, {"allow": [""]},
        {"allow": ["a.b"], "max_bytes": 0},
        {"allow": ["a.b"], "timeout_s": 0}, {"allow": ["a.b"], "alow": 1},
        {"allow": ["a.b"], "answer_headers": ["x y"]},
    ],
)  # fmt: skip
def test_hosts_must_be_named(options: Mapping[str, JsonValue]) -> None:
    assert SchemaValidator(http_toolset().options).errors(options) != ()


@pytest.mark.parametrize(
    ("entry", "scheme", "host", "port", "covered"),
    [
        ("api.example.com", "https", "api.example.com", 443, True),
        ("API.example.com", "http", "api.EXAMPLE.com.", 80, True),
        ("api.example.com", "https", "api.example.com", 8443, False),
        ("api.example.com", "https", "api.example.com.evil.org", 443, False),
        ("api.example.com", "https", "x.api.example.com", 443, False),
        ("*.example.org:8443", "https", "a.b.example.org", 8443, True),
        ("*.example.org:8443", "https", "example.org", 8443, False),
        ("*.example.org:8443", "https", "evilexample.org", 8443, False),
        ("*.example.org:8443", "https", "a.example.org", 443, False),
        ("[::1]:80", "http", "::1", 80, True),
        ("[::1]", "https", "::1", 443, True),
        ("127.0.0.1:5", "http", "127.0.0.1", 5, True),
    ],
)
def test_an_entry_covers_a_host_and_port(
    entry: str, scheme: str, host: str, port: int, covered: bool
) -> None:
    assert AllowedHost.of(entry).covers(scheme, host, port) is covered


# --- asking ----------------------------------------------------------------------------------


async def test_a_text_is_fetched_with_its_url_and_without_the_query(server: Server) -> None:
    query: dict[str, JsonValue] = {"q": "a b&c", "n": 1, "yes": True}
    answer = await ask(server, path="/x?a=1", headers={"X-Mine": "v"}, query=query)
    assert {name: answer[name] for name in ("status", "url", "json", "body")} == {
        "status": 200,
        "url": server.url("/x"),
        "json": None,
        "body": "hi",
    }
    ((method, path, sent, body),) = server.asked
    assert (method, path, body) == ("GET", "/x?a=1&q=a+b%26c&n=1&yes=true", "")
    assert (sent["X-Mine"], sent["Host"]) == ("v", f"127.0.0.1:{server.port}")


async def headers_of(answer: web.Response, server: Server, *wanted: str) -> object:
    async def give(request: web.BaseRequest) -> web.StreamResponse:
        return answer

    server.answer = give
    return (await ask(server, options={"answer_headers": list(wanted)}))["headers"]


async def test_headers_that_differ_from_answer_to_answer_are_left_out(server: Server) -> None:
    """A-137: what a model reads of two equal answers is equal, so that its call can be replayed."""
    told = {"Date": "now", "Age": "7", "X-Request-Id": "r1", "Set-Cookie": "a=b", "X-One": "1"}
    kept = {"ETag": '"v1"', "Link": "</2>; rel=next", "Last-Modified": "then"}
    answer = web.Response(text="hi", headers={**told, **kept})
    answer.headers.add("Link", "</9>; rel=last")
    assert await headers_of(answer, server) == {
        "content-type": "text/plain; charset=utf-8",
        "etag": '"v1"',
        "link": "</2>; rel=next, </9>; rel=last",
        "last-modified": "then",
    }


async def test_a_recipe_gets_the_headers_that_it_names_and_no_cookies(server: Server) -> None:
    answer = web.Response(text="hi", headers={"X-Total-Count": "70", "Set-Cookie": "a=b"})
    given = await headers_of(answer, server, "x-total-COUNT", "x-none")
    assert given == {"content-type": "text/plain; charset=utf-8", "x-total-count": "70"}
    with pytest.raises(UsageError, match="no recipe gets cookies"):
        tools("a.b", answer_headers=["Set-Cookie"])


@pytest.mark.parametrize(
    ("kind", "body", "value", "text"),
    [
        ("application/json", '{"a": [1]}', {"a": [1]}, None),
        ("application/problem+json; charset=utf-8", "null", None, None),
        ("application/json", "oops", None, "oops"),
        ("application/json", "NaN", None, "NaN"),
        ("application/xml", "<é/>", None, "<é/>"),
    ],
)
async def test_json_is_read_and_other_text_kept(
    server: Server, kind: str, body: str, value: JsonValue, text: str | None
) -> None:
    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(body=body.encode(), headers={"Content-Type": kind})

    server.answer = answer
    got = await ask(server)
    assert (got["json"], got["body"]) == (value, text)


@pytest.mark.parametrize(
    ("charset", "body", "text"),
    [
        ("windows-1252", b"\x80", "€"),
        ("ISO_8859-1", b"\xe9", "é"),
        ("Shift_JIS", b"\x83\x65", "テ"),
        ("utf-16le", b"a\0", "a"),
        ("utf8", "é".encode(), "é"),
        *[
            (charset, "é-x".encode(), "é-x")
            for charset in (
                "punycode", "idna", "utf-7", "unicode_escape", "rot13", "undefined", "base64",
                "mbcs", "antigravity", "x" * 500,
            )
        ],
    ],
)  # fmt: skip
async def test_a_text_is_read_by_a_listed_charset_or_as_utf_8(
    server: Server, charset: str, body: bytes, text: str
) -> None:
    """A server must not choose a codec that holds the whole process up."""

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(body=body, headers={"Content-Type": f"text/plain; charset={charset}"})

    server.answer = answer
    assert (await ask(server))["body"] == text


def test_every_listed_charset_is_known() -> None:
    assert all(codecs.lookup(codec).name for codec in _CHARSETS.values())


async def test_what_is_no_text_is_refused(server: Server) -> None:
    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(body=b"\xff\x00")

    server.answer = answer
    assert await refusal(server) == "not-text"


async def test_json_and_texts_are_posted(server: Server) -> None:
    await ask(server, "post", json={"a": "é"})
    await ask(server, "post", body="x=é", headers={"Content-Type": "text/x"})
    await ask(server, "post", options={"idempotent": True})
    assert [(asked[0], asked[3], asked[2].get("Content-Type")) for asked in server.asked[:2]] == [
        ("POST", '{"a":"\\u00e9"}', "application/json"),
        ("POST", "x=é", "text/x"),
    ]
    keys = [asked[2].get("Idempotency-Key") for asked in server.asked]
    assert keys == [None, None, "run_1/a/1"]
    assert await refusal(server, "post", json=1, body="x") == "bad-arguments"


@pytest.mark.parametrize("status", [500, 503, 429, 408])
async def test_statuses_that_may_pass_are_told_by_number(server: Server, status: int) -> None:
    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(status=status, text="busy")

    server.answer = answer
    with pytest.raises(HttpStatusError, match=f"status {status}: busy") as caught:
        await ask(server)
    assert caught.value.status_code == status


async def test_a_refusal_is_the_callers_to_mend_and_quotes_nothing_that_was_sent(
    server: Server,
) -> None:
    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        sent = request.headers["Authorization"]
        return web.Response(status=404, text=f"no such\nthing for {sent}, {sent[7:]} {'x' * 9999}")

    server.answer = answer
    with pytest.raises(ToolError) as caught:
        await ask(server, path="/x?key=hush", headers={"Authorization": "Bearer s3cret"})
    text = str(caught.value)
    assert caught.value.error_code == "http-404"
    assert "no such thing for …" in text
    assert "s3cret" not in text
    assert "hush" not in text
    assert len(text) < 400


async def test_an_answer_over_the_cap_is_refused_also_when_it_was_packed(server: Server) -> None:
    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        response = web.Response(text="x" * 5_000)
        response.enable_compression(force=web.ContentCoding.gzip)
        return response

    server.answer = answer
    assert await refusal(server, options={"max_bytes": 4_999}) == "answer-too-large"
    assert (await ask(server, options={"max_bytes": 5_000}))["body"] == "x" * 5_000


async def test_an_answer_with_a_very_long_header_is_refused(server: Server) -> None:
    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(text="hi", headers={"ETag": "x" * size})

    server.answer = answer
    size = 8_190
    assert (await ask(server))["headers"]["etag"] == "x" * size  # type: ignore[index,call-overload]  # a mapping
    size += 1
    with pytest.raises(ConnectionError, match="a header of the answer is too long"):
        await ask(server)


async def test_an_answer_in_a_coding_that_was_not_asked_for_is_refused(server: Server) -> None:
    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(body=b"hi", headers={"Content-Encoding": "br"})

    server.answer = answer
    with pytest.raises(ConnectionError, match="content encoding was not asked for"):
        await ask(server)


async def test_a_server_that_closes_in_the_middle_of_an_answer_is_told(server: Server) -> None:
    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "100"})
        await response.prepare(request)
        await response.write(b"half")
        assert request.transport is not None
        request.transport.abort()
        return response

    server.answer = answer
    with pytest.raises(ConnectionError, match="closed before its end"):
        await ask(server)


async def test_texts_of_headers_are_utf_8_on_both_ways(server: Server) -> None:
    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(text="hi", headers={"ETag": f'"{request.headers["X-Name"]}"'})

    server.answer = answer
    given = await ask(server, headers={"X-Name": "Grüße €"})
    assert given["headers"] == {"content-type": "text/plain; charset=utf-8", "etag": '"Grüße €"'}


async def test_a_get_says_no_length_and_a_post_always(server: Server) -> None:
    await ask(server)
    await ask(server, "post")
    assert [sent.get("Content-Length") for _, _, sent, _ in server.asked] == [None, "0"]


@pytest.mark.parametrize(
    ("said", "kind", "charset"),
    [
        ("Text/HTML; Charset=Latin1", "text/html", "Latin1"),
        ('application/json;x=";";charset="utf-8"', "application/json", "utf-8"),
        ("json; charset=latin1", "application/octet-stream", "latin1"),
        ("", "application/octet-stream", None),
        ('text/plain; x="' + ";" * 60_000, "text/plain", None),
    ],
)
def test_the_type_of_a_body_is_read_in_bounded_time(
    said: str, kind: str, charset: str | None
) -> None:
    assert _media_type(said) == (kind, charset)


async def test_a_server_that_does_not_answer_is_given_up(server: Server) -> None:
    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        await server.closing.wait()
        return web.Response()

    server.answer = answer
    with pytest.raises(TimeoutError, match=r"within 0\.05 s"):
        await ask(server, options={"timeout_s": 0.05})


async def test_a_server_that_is_not_there_is_told(server: Server) -> None:
    secret = {"Authorization": "s3cret"}
    with pytest.raises(ConnectionError, match=r"http://127\.0\.0\.1:1/x cannot be asked"):
        await ask("http://127.0.0.1:1/x?y=1", allow=["127.0.0.1:1"], headers=secret)


@pytest.mark.parametrize(
    ("name", "value"),
    [("Host", "evil"), ("a b", "x"), ("X", "a\r\nY: b"), ("X", "\ud83d"), ("content-length", "1")],
)
async def test_odd_headers_are_refused(server: Server, name: str, value: str) -> None:
    assert await refusal(server, headers={name: value}) == "bad-header"
    assert server.asked == []


@pytest.mark.parametrize(
    "url",
    ["", "/x", "ftp://a.b/", "file:///etc/passwd", "http://", "http://u:p@a.b/", "http://[::1/",
     "http://a.b:99999/", "http://127.1/", "http://2130706433/", "http://0.0.0.0.0/", "a\0b",
     "http://2.0.0.1%\udcda2", "http://2.0.0.1%eth0/", "http://[fe80::1%\udcda]/",
     "http://[]@", "http://[:]:8", "http://[:\x7f:1]:80/x"],
)  # fmt: skip
async def test_what_is_no_web_address_is_refused(url: str) -> None:
    assert await refusal(url, allow=["a.b", "127.1", "2130706433"]) == "bad-url"


# --- where it may go -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "127.8.8.8", "::1", "0.0.0.0", "::", "10.1.2.3", "172.16.0.1", "192.168.1.1",
        "169.254.169.254", "fe80::1", "fe80::1%eth0", "fd00:ec2::254", "100.64.0.1", "224.0.0.1",
        "ff02::1", "255.255.255.255", "240.0.0.1", "192.0.2.1", "::ffff:127.0.0.1",
        "::ffff:169.254.169.254", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "2002:7f00:1::",
        "2002:0a00:0001::1", "::7f00:1", "168.63.129.16", "64:ff9b:1::1", "fec0::1", "2001:db8::1",
        "198.18.0.1",
    ],
)  # fmt: skip
async def test_addresses_that_are_not_public_are_refused(address: str) -> None:
    async def resolve(host: str, port: int) -> Sequence[str]:
        return ["93.184.216.34", address]

    get = tools("inside.example.com", resolve=resolve)["get"]
    with pytest.raises(ToolError) as caught:
        await get.invoke({"url": "http://inside.example.com/"}, SCOPE)
    assert caught.value.error_code == "address-refused"
    assert "allow_private" in str(caught.value)


@pytest.mark.parametrize(
    "address", ["93.184.216.34", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"]
)
def test_public_addresses_are_taken(address: str) -> None:
    check_address("a.b", address)


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", "[::ffff:127.0.0.1]", "169.254.169.254"])
async def test_addresses_in_the_url_are_refused_too(host: str) -> None:
    get = tools(host)["get"]
    with pytest.raises(ToolError) as caught:
        await get.invoke({"url": f"http://{host}/"}, SCOPE)
    assert caught.value.error_code == "address-refused"


async def test_the_connection_goes_to_the_address_that_was_checked(server: Server) -> None:
    asked: list[str] = []

    async def resolve(host: str, port: int) -> Sequence[str]:
        asked.append(host)
        return ["127.0.0.1"]

    host = "nowhere.invalid"
    url = server.url(host=host)
    assert (await ask(url, allow=[f"{host}:{server.port}"], resolve=resolve))["body"] == "hi"
    assert asked == [host]
    assert server.asked[0][2]["Host"] == f"{host}:{server.port}"


async def test_the_address_that_was_checked_has_to_show_the_certificate_of_the_host(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The address alone proves nothing: a certificate is checked for the host of the URL."""
    monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE))
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(CERTIFICATE)

    async def resolve(host: str, port: int) -> Sequence[str]:
        return ["127.0.0.1"]

    async with Server().running(tls) as secret:
        port = secret.port
        url = f"https://model.example:{port}/"
        asked = await ask(url, allow=[f"model.example:{port}"], resolve=resolve)
        assert (asked["body"], secret.asked[0][2]["Host"]) == ("hi", f"model.example:{port}")
        with pytest.raises(ConnectionError, match="CERTIFICATE_VERIFY_FAILED"):
            await ask(f"https://a.b:{port}/", allow=[f"a.b:{port}"], resolve=resolve)
    assert len(secret.asked) == 1


async def test_the_next_checked_address_is_asked_where_the_first_does_not_answer(
    server: Server,
) -> None:
    async def resolve(host: str, port: int) -> Sequence[str]:
        return ["127.0.0.2", "127.0.0.1"]

    asked = await ask(server.url(host="a.b"), allow=[f"a.b:{server.port}"], resolve=resolve)
    assert asked["body"] == "hi"


async def test_no_proxy_of_the_environment_sees_a_request(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert (await ask(server))["body"] == "hi"


async def test_a_name_without_an_address_is_told() -> None:
    async def resolve(host: str, port: int) -> Sequence[str]:
        raise OSError("no such name")

    async def nothing(host: str, port: int) -> Sequence[str]:
        return []

    for way in (resolve, nothing):
        with pytest.raises(ConnectionError, match=r"a\.b was not found"):
            await ask("http://a.b/", allow=["a.b"], resolve=way)


async def test_a_host_that_is_not_listed_is_refused_before_it_is_looked_up() -> None:
    async def resolve(host: str, port: int) -> Sequence[str]:
        raise AssertionError

    assert await refusal("http://b.a/", allow=["a.b"], resolve=resolve) == "host-refused"  # type: ignore[arg-type]  # no JSON


# --- redirects -------------------------------------------------------------------------------


async def test_a_redirect_to_a_path_in_utf_8_is_followed_there(server: Server) -> None:
    server.answer = redirect("/grüße")
    assert (await ask(server))["body"] == "there"
    assert server.asked[1][1] == "/gr%C3%BC%C3%9Fe"


async def test_five_redirects_are_followed_and_no_more(server: Server) -> None:
    server.answer = redirect("/1", "2", f"//127.0.0.1:{server.port}/3", "/4", "/5?q=1")
    answer = await ask(server)
    assert (answer["body"], answer["url"]) == ("there", server.url("/5"))
    server.answer = redirect(*["/x"] * 6)
    assert await refusal(server) == "too-many-redirects"


@pytest.mark.parametrize(
    ("place", "code"),
    [
        ("http://other.example.com/", "host-refused"),
        ("http://127.0.0.1:1/", "host-refused"),
        ("ftp://127.0.0.1/", "bad-url"),
        ("http://[", "bad-url"),
        ("//[]@", "bad-url"),
        ("http://u:p@127.0.0.1/", "bad-url"),
    ],
)
async def test_a_redirect_is_checked_as_any_other_url(
    server: Server, place: str, code: str
) -> None:
    server.answer = redirect(place)
    assert await refusal(server) == code
    assert len(server.asked) == 1


async def test_a_redirect_into_a_private_network_is_refused(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(host: str, address: str) -> None:
        if host != "out.example.com":  # for the test, that one is public
            check_address(host, address)

    async def resolve(host: str, port: int) -> Sequence[str]:
        return ["127.0.0.1"]

    monkeypatch.setattr("minions.adapters.tools.http_toolset.check_address", check)
    server.answer = redirect(server.url(host="in.example.com"))
    known = tools(f"*.example.com:{server.port}", resolve=resolve)
    with pytest.raises(ToolError, match=r"in\.example\.com is at 127\.0\.0\.1") as caught:
        await known["get"].invoke({"url": server.url(host="out.example.com")}, SCOPE)
    assert caught.value.error_code == "address-refused"
    assert len(server.asked) == 1


async def test_another_server_sees_no_header_that_may_be_a_secret(
    server: Server, other: Server
) -> None:
    server.answer = redirect(other.url("/o"))
    secrets: dict[str, JsonValue] = {"X-Api-Key": "s3cret", "Cookie": "a=b", "Accept": "text/x"}
    allow = [f"127.0.0.1:{server.port}", f"127.0.0.1:{other.port}"]
    answer = await ask(server, allow=allow, headers=secrets)
    assert answer["url"] == other.url("/o")
    assert server.asked[0][2]["X-Api-Key"] == "s3cret"
    sent = other.asked[0][2]
    assert (sent["Accept"], "X-Api-Key" in sent, "Cookie" in sent) == ("text/x", False, False)


@pytest.mark.parametrize(
    ("status", "second"),
    [(302, ("GET", "")), (303, ("GET", "")), (307, ("POST", "[1]")), (308, ("POST", "[1]"))],
)
async def test_a_redirected_post_is_repeated_only_where_the_status_says_so(
    server: Server, status: int, second: tuple[str, str]
) -> None:
    server.answer = redirect("/there", status=status)
    await ask(server, "post", json=[1])
    assert [(asked[0], asked[3]) for asked in server.asked] == [("POST", "[1]"), second]


# --- in a recipe -----------------------------------------------------------------------------

RECIPE = """
id: r
permissions: {{allow_write: true}}
inputs:
  token: {{type: string, secret: true, default: "env:HTTP_TEST_TOKEN"}}
tools:
  - http: {{allow: ["127.0.0.1:{port}"], allow_private: true, idempotent: true}}
steps:
  - id: sent
    tool: http__post
    params:
      url: "http://127.0.0.1:{port}/x"
      json: {{a: 1}}
      headers: {{Authorization: "Bearer {{{{ inputs.token }}}}"}}
output: "{{{{ sent.json }}}}"
"""


async def test_a_recipe_sends_its_secret_and_the_same_key_at_each_attempt(
    server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        if len(server.asked) == 1:
            return web.Response(status=503, text="busy")
        return web.json_response({"you": request.headers["Authorization"]})

    server.answer = answer
    monkeypatch.setenv("HTTP_TEST_TOKEN", "s3cret-value")
    path = tmp_path / "r.yaml"
    path.write_text(RECIPE.format(port=server.port))
    services = m.Services(sleep=FakeClock().sleep)
    result = await asyncio.to_thread(m.run, path, services=services)
    assert result.unwrap() == {"you": "Bearer ${secret:env:HTTP_TEST_TOKEN}"}
    first, second = (asked[2] for asked in server.asked)
    assert first["Authorization"] == "Bearer s3cret-value"
    assert first["Idempotency-Key"] == second["Idempotency-Key"]
