from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import SplitResult

import pytest

from minions.adapters.http.http_pool import (
    ExchangeTimeoutError,
    HttpConnection,
    HttpPool,
    NoAnswerError,
    proxy_for,
    trusted_certificates,
)
from minions.adapters.models.openai import OpenAIModel
from minions.contracts.calls import ModelFailure, Prompt
from minions.contracts.messages import user
from minions.testing import endpoint as fake
from minions.testing.endpoint import ChatEndpoint
from patience import HANG_S, leap

HELLO = Prompt((user("hello"),))
ELSEWHERE = "http://model.example/v1"


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


async def failure_at(base_url: str) -> ModelFailure:
    model = OpenAIModel(provider="fake", model="m", base_url=base_url, api_key=None)
    outcome = await model.complete(HELLO)
    await model.aclose()
    return outcome.failure()


# --- proxies ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "known", "expected"),
    [
        ("http://h.example/v1", {}, None),
        ("http://h.example/v1", {"http": "http://p:1"}, "http://p:1"),
        ("https://h.example/v1", {"http": "http://p:1"}, None),
        ("https://h.example/v1", {"https": "http://p:1", "all": "http://q:1"}, "http://p:1"),
        ("https://h.example/v1", {"all": "q:1"}, "http://q:1"),
        ("https://h.example/v1", {"all": "HTTPS://u:pw@q:1"}, "HTTPS://u:pw@q:1"),
    ],
)
def test_the_proxy_is_the_one_for_the_scheme_or_for_all(
    url: str, known: dict[str, str], expected: str | None
) -> None:
    assert proxy_for(url, known) == expected


@pytest.mark.parametrize(
    ("no", "url", "is_direct"),
    [
        ("*", "http://h.example/v1", True),
        ("h.example", "http://h.example/v1", True),
        ("h.example", "http://a.h.example/v1", True),
        ("h.example", "http://noth.example/v1", False),
        (".h.example", "http://h.example/v1", False),
        (".h.example", "http://a.h.example/v1", True),
        ("*.h.example", "http://a.h.example/v1", True),
        ("x, H.EXAMPLE ,y", "http://h.example/v1", True),
        ("h.example:8080", "http://h.example:8080/v1", True),
        ("h.example:8080", "http://h.example/v1", False),
        ("h.example:80", "http://h.example/v1", True),
        ("http://h.example", "http://h.example/v1", True),
        ("http://h.example", "http://a.h.example/v1", False),
        ("https://h.example", "http://h.example/v1", False),
        ("10.0.0.0/8", "http://10.2.3.4:1/v1", True),
        ("10.0.0.0/8", "http://11.2.3.4:1/v1", False),
        ("10.0.0.0/8", "http://h.example/v1", False),
        ("2001:db8::/32", "http://[2001:db8::1]/v1", True),
        ("[2001:db8::1]", "http://[2001:db8::1]/v1", True),
        ("", "http://h.example/v1", False),
    ],
)
def test_no_proxy_is_read_in_all_its_forms(no: str, url: str, is_direct: bool) -> None:
    assert (proxy_for(url, {"http": "http://p:1", "no": no}) is None) is is_direct


async def test_a_call_goes_through_the_proxy_of_the_environment_with_its_password(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with ChatEndpoint(default=fake.answer("by proxy")) as proxy:
        monkeypatch.setenv("HTTP_PROXY", f"http://u:pw@{proxy.host}")
        model = OpenAIModel(provider="fake", model="m", base_url=ELSEWHERE, api_key=None)
        for _ in range(2):
            assert (await model.complete(HELLO)).unwrap().text == "by proxy"
        await model.aclose()
    for request in proxy.requests:
        assert request.path == f"{ELSEWHERE}/chat/completions"
        assert request.headers["host"] == "model.example"
        assert request.headers["proxy-authorization"] == "Basic dTpwdw=="
    assert proxy.connections == 1


async def test_a_proxy_that_refuses_is_named_with_its_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with ChatEndpoint(default=fake.status(407)) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", f"http://u:pw@{proxy.host}")
        failure = await failure_at("https://model.example/v1")
        assert (proxy.requests[0].method, proxy.requests[0].path) == (
            "CONNECT",
            "model.example:443",
        )
    assert (failure.code, failure.is_retryable) == ("model-unreachable", True)
    assert "the proxy answered HTTP 407 Scripted" in failure.message
    assert "pw" not in failure.message


async def test_a_proxy_that_does_not_run_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    async with ChatEndpoint() as gone:
        monkeypatch.setenv("HTTP_PROXY", f"http://u:pw@{gone.host}")
    failure = await failure_at(ELSEWHERE)
    assert "the proxy cannot be reached" in failure.message
    assert "pw" not in failure.message


async def test_a_proxy_of_a_kind_that_is_not_served_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ALL_PROXY", "socks5://u:pw@127.0.0.1:1080")
    failure = await failure_at(ELSEWHERE)
    assert failure.code == "model-unreachable"
    assert "a socks5:// proxy for it, and only http:// and https:// proxies" in failure.message
    assert "pw" not in failure.message


@pytest.mark.parametrize("proxy", ["http://u:pw@:1", "http://u:pw@h:no", "http://u:pw@h:0"])
async def test_a_proxy_without_an_address_is_told(
    monkeypatch: pytest.MonkeyPatch, proxy: str
) -> None:
    monkeypatch.setenv("ALL_PROXY", proxy)
    failure = await failure_at(ELSEWHERE)
    assert failure.code == "model-unreachable"
    assert "a proxy whose address cannot be read" in failure.message
    assert "pw" not in failure.message


async def test_this_machines_own_servers_are_not_asked_for_through_a_proxy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")
    async with ChatEndpoint(default=fake.answer("hi")) as server:
        model = OpenAIModel(provider="f", model="m", base_url=server.base_url, api_key=None)
        assert (await model.complete(HELLO)).unwrap().text == "hi"
        await model.aclose()


# --- TLS ----------------------------------------------------------------------------------------

CERTIFICATE = Path(__file__).with_name("localhost.pem")
"""Of nobody, with its key, for `localhost` and `model.example`; it signed itself."""


@pytest.fixture
def server_tls(monkeypatch: pytest.MonkeyPatch) -> ssl.SSLContext:
    """What a server shows whom everybody trusts here."""
    monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE)
    return context


@asynccontextmanager
async def relay(
    target: ChatEndpoint | int, tls: ssl.SSLContext | None = None
) -> AsyncIterator[tuple[int, list[str]]]:
    """Passes everything on to a port, behind TLS or as a proxy, and notes what CONNECT said."""
    asked: list[str] = []

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65_536):
                writer.write(data)
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.append(asyncio.current_task())
        if tls is None:
            asked.extend((await reader.readuntil(b"\r\n\r\n")).decode().splitlines())
            writer.write(b"HTTP/1.1 200 Go on\r\n\r\n")
        behind = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(pump(reader, behind[1]), pump(behind[0], writer))
        await asyncio.gather(writer.wait_closed(), behind[1].wait_closed(), return_exceptions=True)

    served: list[asyncio.Task[None] | None] = []
    port = target if isinstance(target, int) else int(target.host.rpartition(":")[2])
    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    async with server:
        yield server.sockets[0].getsockname()[1], asked
        await asyncio.gather(*filter(None, served))


async def said_at(base_url: str) -> list[str | None]:
    model = OpenAIModel(provider="fake", model="m", base_url=base_url, api_key=None)
    outcomes = [await model.complete(HELLO) for _ in range(2)]
    await model.aclose()
    return [outcome.unwrap().text for outcome in outcomes]


async def test_a_call_is_encrypted_and_its_connection_kept(server_tls: ssl.SSLContext) -> None:
    async with (
        ChatEndpoint(default=fake.answer("in secret")) as server,
        relay(server, server_tls) as (port, _),
    ):
        assert await said_at(f"https://localhost:{port}/v1") == ["in secret"] * 2
        assert server.connections == 1


async def test_a_server_with_another_name_is_not_trusted(server_tls: ssl.SSLContext) -> None:
    async with ChatEndpoint() as server, relay(server, server_tls) as (port, _):
        failure = await failure_at(f"https://127.0.0.1:{port}/v1")
    assert failure.code == "model-unreachable"
    assert "CERTIFICATE_VERIFY_FAILED" in failure.message


async def test_a_call_is_encrypted_through_a_proxy(
    server_tls: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        ChatEndpoint(default=fake.answer("in secret")) as server,
        relay(server, server_tls) as (encrypted, _),
        relay(encrypted) as (proxy, asked),
    ):
        monkeypatch.setenv("HTTPS_PROXY", f"http://u:p%40w@127.0.0.1:{proxy}")
        assert await said_at("https://model.example/v1") == ["in secret"] * 2
    assert asked[:2] == ["CONNECT model.example:443 HTTP/1.1", "Host: model.example:443"]
    assert asked[2] == "Proxy-Authorization: Basic dTpwQHc="


async def test_the_proxy_may_be_spoken_to_in_secret_too(
    server_tls: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        ChatEndpoint(default=fake.answer("in secret")) as server,
        relay(server, server_tls) as (encrypted, _),
        relay(encrypted) as (proxy, asked),
        relay(proxy, server_tls) as (encrypted_proxy, _),
    ):
        monkeypatch.setenv("HTTPS_PROXY", f"https://localhost:{encrypted_proxy}")
        assert await said_at("https://model.example/v1") == ["in secret"] * 2
    assert asked[0] == "CONNECT model.example:443 HTTP/1.1"


@pytest.fixture
async def plain_server() -> AsyncIterator[str]:
    """Speaks at once and no TLS."""

    async def speak(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()
        await asyncio.gather(writer.wait_closed(), return_exceptions=True)

    server = await asyncio.start_server(speak, "127.0.0.1", 0)
    yield f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    server.close()
    await server.wait_closed()


async def test_what_tls_refuses_is_named(plain_server: str) -> None:
    failure = await failure_at(plain_server)
    assert (failure.code, failure.is_retryable) == ("model-unreachable", True)
    assert "[SSL: " in failure.message


async def test_certificates_that_cannot_be_read_are_named(
    plain_server: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    missing = tmp_path / "none.pem"
    monkeypatch.setenv("SSL_CERT_FILE", str(missing))
    failure = await failure_at(plain_server)
    assert f"the certificates of SSL_CERT_FILE={missing} cannot be read" in failure.message


def test_the_environment_says_whom_to_trust(tmp_path: Path) -> None:
    assert trusted_certificates({}).check_hostname
    assert trusted_certificates({"SSL_CERT_DIR": str(tmp_path)}).cert_store_stats()["x509"] == 0
    with pytest.raises(NoAnswerError, match="SSL_CERT_FILE="):
        trusted_certificates({"SSL_CERT_FILE": str(tmp_path / "none"), "SSL_CERT_DIR": "x"})


# --- what is no HTTP ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (b"SSH-2.0-OpenSSH_9.7\r\n\r\n", "what came back is not HTTP ("),
        (b"HTTP/1.1 200 OK\r\nSet-Cookie: secret\r\n", "(server disconnected)"),
    ],
)
async def test_a_server_that_speaks_otherwise_is_unreachable(said: bytes, words: str) -> None:
    async def speak(exchange: fake.Exchange) -> None:
        await exchange.write(said)
        exchange.drop()

    async with ChatEndpoint(speak) as server:
        failure = await failure_at(server.base_url)
    assert (failure.code, failure.is_retryable) == ("model-unreachable", True)
    assert words in failure.message
    assert "secret" not in failure.message


# --- connections that are not made in time --------------------------------------------------------


class UnconnectedPool(HttpPool):
    """One whose server never takes a connection."""

    async def _open(self, place: SplitResult) -> HttpConnection:
        await asyncio.get_running_loop().create_future()
        raise AssertionError(place)


@pytest.mark.parametrize(
    ("within_s", "after_s", "error"),
    [(10, 11, ExchangeTimeoutError), (100, 31, NoAnswerError), (None, 31, NoAnswerError)],
)
@pytest.mark.asyncio(loop_factories=["asyncio"])  # its clock leaps
async def test_what_is_over_first_ends_the_wait_for_a_connection(
    within_s: float | None, after_s: float, error: type[Exception]
) -> None:
    pool = UnconnectedPool(
        ELSEWHERE, {}, connect_s=30, certificates=None, proxy=None, max_requests=1
    )
    asked = asyncio.ensure_future(pool.post(b"{}", within_s=within_s))
    await asyncio.sleep(0)
    leap(after_s)
    with pytest.raises(error):
        await asked


# --- connections that are kept ------------------------------------------------------------------


async def test_a_connection_that_nobody_uses_is_closed_after_a_while() -> None:
    async def answer_and_wait(exchange: fake.Exchange) -> None:
        await fake.answer("hi")(exchange)
        await exchange.until_client_leaves()

    async with ChatEndpoint(default=answer_and_wait) as server:
        model = OpenAIModel(provider="f", model="m", base_url=server.base_url, api_key=None)
        await model.complete(HELLO)
        leap(16)
        await asyncio.wait_for(server.left.wait(), HANG_S)
        await model.aclose()


@pytest.mark.parametrize(("name", "connections"), [("llama.cpp", 3), ("nginx", 1)])
async def test_a_connection_that_llama_cpp_closes_after_a_stream_is_not_used_again(
    name: str, connections: int
) -> None:
    """It does not say so, and the next request would be lost on its way."""

    async def say(exchange: fake.Exchange) -> None:
        kind = {"Content-Type": "text/event-stream", "Transfer-Encoding": "chunked"}
        await exchange.send_head(200, {**kind, "Server": name})
        for chunk in fake.chunks(fake.completion("hi")):
            await exchange.send_piece(fake.event(chunk))
        await exchange.send_piece(fake.event("[DONE]"))
        await exchange.end_stream()
        if name == "llama.cpp":
            exchange.drop()

    async with ChatEndpoint(default=say) as server:
        model = OpenAIModel(provider="f", model="m", base_url=server.base_url, api_key=None)
        for _ in range(3):
            assert (await model.complete(HELLO, lambda _: None)).unwrap().text == "hi"
        await model.aclose()
        assert server.connections == connections


async def test_a_connection_on_which_more_came_than_was_asked_for_is_not_used_again() -> None:
    async def say_more(exchange: fake.Exchange) -> None:
        body = json.dumps(fake.completion("hi")).encode()
        head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body)
        await exchange.write(head + body + b"HTTP/1.1 200 OK\r\n\r\n")

    async with ChatEndpoint(default=say_more) as server:
        assert await said_at(server.base_url) == ["hi"] * 2
        assert server.connections == 2


async def test_a_server_that_is_faster_than_its_reader_has_to_wait() -> None:
    text = "x" * 3_000_000
    async with ChatEndpoint(default=fake.answer(text)) as server:
        assert await said_at(server.base_url) == [text] * 2
        assert server.connections == 1
