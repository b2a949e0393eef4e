"""One pool of HTTP connections to one server: proxies, certificates, and why no answer came.

What is sent and what an answer means is the caller's; how bytes become a response is
`http_connection` and `http_response`.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import ipaddress
import os
import platform
import re
import socket
import ssl
import weakref
from collections import deque
from collections.abc import AsyncGenerator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias, cast
from urllib.parse import SplitResult, quote, unquote, urlsplit

from minions.adapters.http.http_response import (
    BadResponseError,
    BrokenBodyError,
    ResponseHead,
    ResponseReader,
)

_KEPT_S: Final = 15.0
_NEXT_ADDRESS_S: Final = 0.25
"""Seconds after which the next address of a host name is tried, too (RFC 8305)."""
_PORTS: Final = {"http": 80, "https": 443}
_OF_PATHS: Final = "/%:@!$&'()*+,;=~"
"""Characters that stay unquoted in a path; `%`, so that what is quoted stays as it is."""
_CONTROL: Final = re.compile(r"[^\t -~]")
_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_OURS: Final = ("content-length", "transfer-encoding", "connection")
"""Headers that the connection sets itself; configured ones are ignored."""


class NoAnswerError(Exception):
    """The server could not be reached, or closed the connection before it answered; says why."""


class ExchangeTimeoutError(Exception):
    """The answer was not complete within the time of its exchange."""


class HttpResponse:
    """A response whose body is read as it arrives. The caller closes it."""

    def __init__(self, pool: HttpPool, connection: HttpConnection, head: ResponseHead) -> None:
        """Made by `HttpPool.post`."""
        self.status = head.status
        self.headers = head.headers
        """Header values by lower-case name."""
        self.read = connection.read
        """Awaited, it gives the next bytes of the body, as soon as any arrive; empty at its end. It
        raises as `HttpConnection.read`."""
        self._pool = pool
        self._connection = connection
        self._body = connection.body
        self._head = head
        self._is_closed = False

    @property
    def is_at_end(self) -> bool:
        """Whether the whole body was read."""
        return self._body.is_at_end

    def close(self) -> None:
        """Return the connection to the pool, or close it if the body was not read to its end."""
        if not self._is_closed and self._connection.finish(self._head):
            self._pool.keep(self._connection)
        self._is_closed = True


class RequestPlaces:
    """How many requests may be in flight; further ones wait, in the order of arrival.

    `asyncio.Semaphore` is not used: a request that need not wait would pay for it.
    """

    def __init__(self, count: int) -> None:
        """All are free."""
        self.free = count
        """Whoever finds one takes it by counting down."""
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def wait(self) -> None:
        """Wait until a place is handed over."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():  # it came at the same moment
                self.give_back()
            raise

    def give_back(self) -> None:
        """Hand a place to the next request that waits, or free it."""
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
        self.free += 1


class HttpPool:
    """Connections to the one URL that is posted to, kept between calls; for one event loop.

    Follows no redirect, keeps no cookie, retries nothing.
    """

    def __init__(
        self,
        url: str,
        headers: Mapping[str, str],
        *,
        connect_s: float,
        certificates: ssl.SSLContext | None,
        proxy: str | None,
        max_requests: int,
        method: str = "POST",
        addresses: Sequence[str] | None = None,
    ) -> None:
        """Configure the pool; nothing is opened yet.

        Args:
            url: One that `check_base_url` accepts; path and query are kept.
            connect_s: Seconds for name resolution, connection and TLS; waiting for an answer is
                unlimited.
            certificates: The trusted ones; ignored where `needs_certificates` is false.
            proxy: As `proxy_for` returns it.
            max_requests: Requests that may be in flight at the same time.
            method: Of each request; without a content where it is GET.
            addresses: The only ones that are connected to, whatever a name server says; the host
                of the URL is what certificates are checked for. None: those of the host.
        Raises:
            NoAnswerError: A header name is invalid, or the proxy has no address.
        """
        self._target = urlsplit(url)
        self._proxy = None if proxy is None else _place_of(proxy)
        self._connect_s = connect_s
        self._certificates = certificates
        self.places = RequestPlaces(max_requests)
        """As many as there may be connections: one is held while a call lasts."""
        self._method = method
        self._addresses = addresses
        self._head = self._request_head(headers)
        self._loop = asyncio.get_running_loop()
        self._idle: list[HttpConnection] = []
        """Open connections without a request, the last used one last; it is used first."""
        self._has_alarm = False
        self._end: AsyncGenerator[None] | None = None
        """Closes the pool with its loop; None: nothing was opened yet."""
        self._other_heads: dict[str, bytes] = {}
        """Heads of requests to other URLs of the same server, by URL."""

    def __del__(self) -> None:
        # Never closed by its owner: closed here, also where its event loop is closed already.
        for connection in getattr(self, "_idle", ()):
            with contextlib.suppress(RuntimeError):
                connection.abort()

    async def post(
        self,
        content: bytes,
        url: str | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        within_s: float | None = None,
    ) -> HttpResponse:
        """Post the content; returns the response with its body unread. The caller closes it.

        Args:
            url: Another one of the same server; None: the pool's.
            headers: Of this request, beside those of every request.
            within_s: Seconds for the whole exchange, up to the last byte of the body that is read;
                None: unlimited.
        Raises:
            NoAnswerError: No response came, or a header is invalid.
            ExchangeTimeoutError: No response came in time; reading its body may raise it, too.
        """
        more = b"" if headers is None else _lines(headers)
        now = self._loop.time()
        until = None if within_s is None else now + within_s
        connection = self._take_idle(now) or await self._connect(until)
        try:
            begin = self._head if url is None else self._head_for(url)
            if content or self._method != "GET":
                begin += b"Content-Length: %d\r\n" % len(content)
            head = await connection.ask(begin + more + b"\r\n", content, until=until)
        except BaseException as error:
            connection.abort()
            if isinstance(error, BadResponseError):
                raise NoAnswerError(f"what came back is not HTTP ({error})") from error
            if isinstance(error, DisconnectedError):
                why = f"the connection was closed before an answer came ({error})"
                raise NoAnswerError(why) from error
            raise
        return HttpResponse(self, connection, head)

    def keep(self, connection: HttpConnection) -> None:
        """Keep a connection for the next request, for 15 s at most."""
        connection.idle_since = self._loop.time()
        self._idle.append(connection)
        self._set_alarm()

    async def close(self) -> None:
        """Close the connections that have no request."""
        self.drop()
        end, self._end = self._end, None
        if end is not None:
            await end.aclose()
        await asyncio.sleep(0)  # in which they are closed

    def drop(self) -> None:
        """Begin to close the connections that have no request."""
        while self._idle:
            self._idle.pop().abort()

    # --- connections that are kept ---------------------------------------------------------------

    def _take_idle(self, now: float) -> HttpConnection | None:
        soonest = now - _KEPT_S
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open and connection.idle_since >= soonest:
                return connection
            connection.abort()
        return None

    def _set_alarm(self) -> None:
        if not self._has_alarm:
            self._has_alarm = True
            # Weak: the timer must not keep a pool alive that its owner dropped.
            self._loop.call_later(_KEPT_S, _close_old, weakref.ref(self))

    def close_old(self) -> None:
        """Close the connections that had no request for 15 s."""
        self._has_alarm = False
        soonest = self._loop.time() - _KEPT_S
        for connection in self._idle:
            if connection.idle_since <= soonest:
                connection.abort()
        self._idle = [each for each in self._idle if each.is_open]
        if self._idle:
            self._set_alarm()

    # --- new connections -------------------------------------------------------------------------

    async def _connect(self, until: float | None) -> HttpConnection:
        end = self._loop.time() + self._connect_s
        is_of_exchange = until is not None and until < end
        limit = asyncio.timeout_at(until if is_of_exchange else end)
        try:
            async with limit:
                if self._proxy is None:
                    return await self._open(self._target)
                return await self._through(self._proxy)
        except TimeoutError as error:  # also an OSError of the system
            if limit.expired() and is_of_exchange:
                raise ExchangeTimeoutError from error
            if limit.expired():
                why = f"no connection within {self._connect_s:g} s"
                raise NoAnswerError(why) from error
            raise NoAnswerError(str(error)) from error
        except (OSError, UnicodeError) as error:  # UnicodeError: a name that no host can have
            raise NoAnswerError(str(error)) from error

    async def _through(self, proxy: SplitResult) -> HttpConnection:
        try:
            connection = await self._open(proxy)
        except OSError as error:
            raise NoAnswerError(f"the proxy cannot be reached ({error})") from error
        if self._target.scheme == "https":
            try:
                await self._tunnel(connection, proxy)
            except BaseException:
                connection.abort()
                raise
        return connection

    async def _tunnel(self, connection: HttpConnection, proxy: SplitResult) -> None:
        """Ask the proxy for a tunnel to the server, and start TLS within it."""
        place = _authority(self._target, with_port=True)
        lines = [f"CONNECT {place} HTTP/1.1", f"Host: {place}", *_authorization(proxy), "", ""]
        try:
            head = await connection.ask("\r\n".join(lines).encode("latin-1"), b"", has_body=False)
        except BadResponseError as error:
            raise NoAnswerError(f"what the proxy answered is not HTTP ({error})") from error
        except DisconnectedError as error:
            raise NoAnswerError(f"the proxy closed the connection ({error})") from error
        if not 200 <= head.status < 300:
            raise NoAnswerError(f"the proxy answered HTTP {head.status} {head.reason}")
        await connection.encrypt(self._tls(), self._target.hostname or "")

    async def _open(self, place: SplitResult) -> HttpConnection:
        await self._close_with_loop()
        host, port = place.hostname or "", place.port or _PORTS[place.scheme]
        tls = self._tls() if place.scheme == "https" else None
        # Where there is but one address, a race of one would cost a third of the connection.
        is_address = ":" in host or host.replace(".", "").isdecimal()
        if self._addresses is not None:
            found: Sequence[_Address] = [_numeric(each, port) for each in self._addresses]
            sock = await _race(self._loop, found)
            _, connection = await self._loop.create_connection(
                HttpConnection,
                sock=sock,
                ssl=tls,
                server_hostname=host.rstrip(".") if tls else None,
            )
        elif is_address:
            _, connection = await self._loop.create_connection(HttpConnection, host, port, ssl=tls)
        elif isinstance(self._loop, asyncio.BaseEventLoop):
            _, connection = await self._loop.create_connection(
                HttpConnection, host, port, ssl=tls, happy_eyeballs_delay=_NEXT_ADDRESS_S
            )
        else:  # such as uvloop, which tries one address after another
            found = await self._loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            sock = await _race(self._loop, found)
            _, connection = await self._loop.create_connection(
                HttpConnection, sock=sock, ssl=tls, server_hostname=host if tls else None
            )
        return connection

    async def _close_with_loop(self) -> None:
        """Have the kept connections closed when the event loop ends, if nobody does before.

        `asyncio.run`, like every runner, ends the loop's generators before it closes the loop.
        """
        if self._end is None:
            self._end = _until_loop_ends(weakref.ref(self))
            await anext(self._end)

    def _tls(self) -> ssl.SSLContext:
        return self._certificates or ssl.create_default_context()

    # --- the request -----------------------------------------------------------------------------

    def _head_for(self, url: str) -> bytes:
        head = self._other_heads.get(url)
        if head is None:
            method, _, rest = self._head.partition(b" ")
            target = self._request_target(urlsplit(url)).encode("latin-1")
            head = b" ".join((method, target, rest.partition(b" ")[2]))
            self._other_heads[url] = head
        return head

    def _request_head(self, headers: Mapping[str, str]) -> bytes:
        """Request line and headers, without `Content-Length`."""
        if not all(map(_NAME.fullmatch, headers)):
            raise NoAnswerError("a header of the request has a name that none can have")
        lines = [f"{self._method} {self._request_target()} HTTP/1.1"]
        lines += [] if "host" in map(str.lower, headers) else [f"Host: {_authority(self._target)}"]
        lines += [
            f"{name}: {value}" for name, value in headers.items() if name.lower() not in _OURS
        ]
        if self._proxy is not None and self._target.scheme == "http":
            lines += _authorization(self._proxy)
        return "\r\n".join([*lines, ""]).encode("latin-1")

    def _request_target(self, url: SplitResult | None = None) -> str:
        target = self._target if url is None else url
        path = quote(target.path or "/", safe=_OF_PATHS)
        query = f"?{quote(target.query, safe=f'{_OF_PATHS}?')}" if target.query else ""
        if self._proxy is None or target.scheme == "https":
            return path + query
        return f"http://{_authority(target)}{path}{query}"


def _lines(headers: Mapping[str, str]) -> bytes:
    """Headers as they are sent, each with its line end."""
    lines = ""
    for name, value in headers.items():
        if not _NAME.fullmatch(name) or _CONTROL.search(value):
            raise NoAnswerError("a header of the request is none that can be sent")
        lines += f"{name}: {value}\r\n"
    return lines.encode("latin-1")


_Address: TypeAlias = tuple[int, int, int, str, Any]  # Any: as sockets of each family take it


def _numeric(address: str, port: int) -> _Address:
    """What connects to that address; nothing is looked up."""
    flags = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
    return socket.getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=flags)[0]


async def _race(loop: asyncio.AbstractEventLoop, found: Sequence[_Address]) -> socket.socket:
    """A socket to the first of these addresses that answers."""
    from aiohappyeyeballs import start_connection

    sock = await start_connection(found, happy_eyeballs_delay=_NEXT_ADDRESS_S, loop=loop)
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except BaseException:
        sock.close()
        raise
    return sock


async def _until_loop_ends(pool: weakref.ref[HttpPool]) -> AsyncGenerator[None]:
    try:
        yield
    finally:
        if (found := pool()) is not None:
            found.drop()
            await asyncio.sleep(0)  # in which they are closed


def _close_old(pool: weakref.ref[HttpPool]) -> None:
    if (found := pool()) is not None:
        found.close_old()


def _place_of(proxy: str) -> SplitResult:
    place = urlsplit(proxy)
    with contextlib.suppress(ValueError):  # of a port that is none
        if place.hostname and place.port != 0:
            return place
    raise NoAnswerError("the environment names a proxy whose address cannot be read")


def _authority(place: SplitResult, *, with_port: bool = False) -> str:
    """Host and port for the Host header; the default port only with `with_port`."""
    host = place.hostname or ""
    host = f"[{host}]" if ":" in host else host
    usual = _PORTS[place.scheme]
    port = place.port or usual
    return f"{host}:{port}" if with_port or port != usual else host


def _authorization(proxy: SplitResult) -> list[str]:
    """The proxy authorization header, if the URL of the proxy has a user name."""
    if proxy.username is None:
        return []
    name, password = unquote(proxy.username), unquote(proxy.password or "")
    encoded = base64.b64encode(f"{name}:{password}".encode()).decode("ascii")
    return [f"Proxy-Authorization: Basic {encoded}"]


# --- certificates ------------------------------------------------------------------------------

_CERTIFICATE_FILES: Final = (
    "/etc/ssl/cert.pem",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/pki/tls/cert.pem",
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/ssl/ca-bundle.pem",
)
"""Certificate files of systems other than the one that this Python was built on."""


def needs_certificates(url: str, proxy: str | None) -> bool:
    """Whether the server or the proxy is reached by TLS."""
    return any(each.lower().startswith("https:") for each in (url, proxy or ""))


def trusted_certificates(environ: Mapping[str, str] = os.environ) -> ssl.SSLContext:
    """The system's certificates, or those of SSL_CERT_FILE or SSL_CERT_DIR; 30 ms of reading.

    Raises:
        NoAnswerError: What the environment names cannot be read.
    """
    file, folder = environ.get("SSL_CERT_FILE"), environ.get("SSL_CERT_DIR")
    try:
        context = _certificates(file, folder)
    except OSError as error:
        said = f"SSL_CERT_FILE={file}" if file else f"SSL_CERT_DIR={folder}"
        raise NoAnswerError(f"the certificates of {said} cannot be read ({error})") from error
    context.set_alpn_protocols(["http/1.1"])
    return context


def _certificates(file: str | None, folder: str | None) -> ssl.SSLContext:
    if file:
        return ssl.create_default_context(cafile=file)
    if folder:
        return ssl.create_default_context(capath=folder)
    if platform.system() in ("Darwin", "Windows"):
        import truststore  # comes with the SDK; knows the certificate stores of these systems

        return truststore.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_default_verify_paths()
    if not _has_certificates(ssl.get_default_verify_paths()):
        found = next((name for name in _CERTIFICATE_FILES if Path(name).is_file()), None)
        if found is not None:
            context.load_verify_locations(found)
    return context


def _has_certificates(paths: ssl.DefaultVerifyPaths) -> bool:
    """Whether OpenSSL finds any where this Python was built to look."""
    file, folder = Path(paths.openssl_cafile), Path(paths.openssl_capath)
    if file.is_file() or not folder.is_dir():
        return file.is_file()
    return any(re.fullmatch(r"[0-9a-f]{8}\.[0-9]+", path.name) for path in folder.iterdir())


# --- proxies -----------------------------------------------------------------------------------


def proxy_for(base_url: str, known: Mapping[str, str]) -> str | None:
    """The proxy on the way to `base_url`; None: none.

    Args:
        known: As `urllib.request.getproxies` gives them: `http`, `https`, `all`, `no`.
    Raises:
        NoAnswerError: The proxy is of a kind that is not served.
    """
    target = urlsplit(base_url)
    said = known.get(target.scheme) or known.get("all")
    exceptions = known.get("no", "").split(",")
    if not said or any(_is_exception(item.strip(), target) for item in exceptions):
        return None
    proxy = said if "://" in said else f"http://{said}"
    if re.match(r"https?://[^/]", proxy, re.IGNORECASE):
        return proxy
    kind = proxy.partition("://")[0]
    raise NoAnswerError(
        f"the environment names a {kind}:// proxy for it, and only http:// and https:// proxies "
        "are served"
    )


def _is_exception(item: str, target: SplitResult) -> bool:
    """Whether an entry of NO_PROXY means this host: name, `.domain`, address, network, with port.

    As curl and httpx read it.
    """
    if item == "*":
        return True
    scheme, separator, rest = item.rpartition("://")
    if separator and scheme not in ("all", target.scheme):
        return False
    host = (target.hostname or "").rstrip(".")
    if (network := _network(rest)) is not None:
        return _is_in(host, network)
    name, colon, port = rest.lower().partition(":")
    if colon and port != str(target.port or {"http": 80, "https": 443}[target.scheme]):
        return False
    if name == "localhost" or (separator and not name.startswith("*")):
        return host == name
    name = name.removeprefix("*")
    if name.startswith("."):
        return host.endswith(name)
    return bool(name) and f".{host}".endswith(f".{name}")


def _network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    try:
        return ipaddress.ip_network(text.strip("[]"), strict=False)
    except ValueError:
        return None


def _is_in(host: str, network: ipaddress.IPv4Network | ipaddress.IPv6Network) -> bool:
    try:
        return ipaddress.ip_address(host) in network
    except ValueError:
        return False


# --- one HTTP/1.1 connection ---------------------------------------------------------------------


_MOST_BUFFERED: Final = 262_144
"""Unread bytes of a body above which reading from the socket is paused."""
_JOINED_BYTES: Final = 65_536
"""Bytes of content up to which it is sent with the head: saves a system call and a packet."""


class DisconnectedError(Exception):
    """The connection ended or broke before a response came."""


class HttpConnection(asyncio.Protocol):
    """Serves one request at a time. Between two requests the server may only close it."""

    def __init__(self) -> None:
        """Made by the event loop, before the connection is open."""
        self.idle_since = 0.0
        """Time of the event loop at which the pool got it back."""
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport  # from `connection_made` on
        self.body = ResponseReader()
        """What came of the present response."""
        self._is_asked = False
        """Whether a request was sent whose response has not ended."""
        self._waiter: asyncio.Future[None] | None = None
        self._until: float | None = None
        """Time of the event loop at which the exchange has to be over; None: unlimited."""
        self._alarm: asyncio.TimerHandle | None = None
        """Goes off at the end of an exchange, or before; it serves those that follow as well."""
        self._alarm_at = 0.0
        self._is_late = False
        self._error: BadResponseError | None = None
        self._is_lost = False
        self._why_lost: Exception | None = None
        self._is_paused = False

    # --- asyncio ---------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Enable TCP keep-alive: a model may take minutes to answer."""
        self._transport = cast("asyncio.Transport", transport)  # as create_connection makes them
        plain = transport.get_extra_info("socket")
        if plain is not None:
            with contextlib.suppress(OSError):  # a help, no more
                plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def data_received(self, data: bytes) -> None:
        """Parse the bytes; a response that cannot be parsed closes the connection."""
        if not self._is_asked:
            self.abort()  # without a request no response is expected
            return
        try:
            self.body.feed(data)
        except BadResponseError as error:
            self._error = error
            self.abort()
        self._pause_if_full()
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wake the reader, which raises."""
        self._is_lost, self._why_lost = True, exc
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if exc is None:
            self.body.feed_end()
        self._wake()

    # --- one exchange ----------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether it can still be written to."""
        return not self._transport.is_closing()

    async def ask(
        self, head: bytes, content: bytes, *, has_body: bool = True, until: float | None = None
    ) -> ResponseHead:
        """Send a request; returns the head of its response.

        Args:
            until: Time of the event loop at which its whole body has to be read; None: unlimited.
        Raises:
            DisconnectedError: The server closed the connection instead.
            BadResponseError: The answer is not HTTP.
            ExchangeTimeoutError: The time is over.
        """
        self.body = reader = ResponseReader(has_body=has_body)
        self._is_asked, self._until, self._is_late = True, until, False
        if until is not None and (self._alarm is None or until < self._alarm_at):
            self._set_alarm(until)
        if len(content) <= _JOINED_BYTES:
            self._transport.write(head + content)
        else:
            self._transport.write(head)
            self._transport.write(content)
        while reader.head is None:
            if self._error is not None:
                raise self._error
            if self._is_lost:
                why = self._why_lost or "server disconnected"
                raise DisconnectedError(str(why)) from self._why_lost
            if self._is_late:
                raise ExchangeTimeoutError
            await self._news()
        return reader.head

    async def read(self) -> bytes:
        """The next bytes of the body, as soon as any arrive; empty at its end.

        Raises:
            BrokenBodyError: The connection ended before the body did, or it cannot be decoded.
            ExchangeTimeoutError: The time of the exchange is over.
        """
        while not (data := self.body.take()):
            if self.body.is_complete:
                return b""
            if self._error is not None:
                raise BrokenBodyError(str(self._error))
            if self._is_lost:
                why = f" ({self._why_lost})" if self._why_lost else ""
                raise BrokenBodyError(f"the connection was closed before its end{why}")
            if self._is_late:
                raise ExchangeTimeoutError
            self._resume()
            await self._news()
        return data

    def finish(self, head: ResponseHead) -> bool:
        """End the exchange; returns whether the connection is reusable, else it is closed."""
        self._is_asked = False
        is_reusable = (
            self.body.is_at_end
            and not self.body.has_leftover
            and head.keeps_connection
            and self._transport.get_write_buffer_size() == 0
            and self.is_open
        )
        if is_reusable:
            self._resume()
        else:
            self.abort()
        return is_reusable

    def abort(self) -> None:
        """Close at once; pending data is dropped."""
        self._transport.abort()

    async def encrypt(self, context: ssl.SSLContext, host: str) -> None:
        """Start TLS on this connection, within the tunnel of a proxy."""
        self._is_asked = False
        transport = await self._loop.start_tls(self._transport, self, context, server_hostname=host)
        self._transport = cast("asyncio.Transport", transport)

    # --- waiting ---------------------------------------------------------------------------------

    async def _news(self) -> None:
        """Wait for bytes, or for the end of the connection."""
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _set_alarm(self, at: float) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm_at = at
        self._alarm = self._loop.call_at(at, self._check_time)

    def _check_time(self) -> None:
        """End an exchange that is late; the alarm may be that of an earlier one."""
        self._alarm = None
        if not self._is_asked or self._until is None:
            return
        if self._loop.time() < self._until:
            self._set_alarm(self._until)
            return
        self._is_late = True
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _pause_if_full(self) -> None:
        is_full = self.body.buffered > _MOST_BUFFERED and not self.body.is_complete
        if is_full and not self._is_paused and self.is_open:
            self._transport.pause_reading()
            self._is_paused = True

    def _resume(self) -> None:
        if self._is_paused:
            self._is_paused = False
            if self.is_open:
                self._transport.resume_reading()
