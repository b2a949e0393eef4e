"""One pool of HTTP connections to one server: proxies, certificates, and why no answer came.

What is sent and what an answer means is the caller's.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import io
import ipaddress
import os
import platform
import re
import ssl
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import SplitResult, urlsplit

if TYPE_CHECKING:
    from aiohttp import ClientResponse, ClientSession

__all__ = [
    "HttpPool",
    "NoAnswerError",
    "is_http_loaded",
    "load_http",
    "lost_errors",
    "lost_words",
    "proxy_for",
    "trusted_certificates",
]

_KEPT_S: Final = 15.0
_MOST_HEADER_BYTES: Final = 102_400
_LARGE_BYTES: Final = 1_048_576
"""A larger body is handed over in pieces."""


class NoAnswerError(Exception):
    """The server could not be reached, or closed the connection without an answer; says why."""


def load_http() -> None:
    """Import the HTTP library, a fifth of a second that the first call need not take."""
    import aiohttp  # noqa: F401  # see above


def is_http_loaded() -> bool:
    """Whether that is done."""
    return hasattr(sys.modules.get("aiohttp"), "ClientSession")


@functools.cache  # the classes, once they are loaded
def lost_errors() -> tuple[type[Exception], ...]:
    """What reading a body may raise."""
    from aiohttp import ClientError
    from aiohttp.http import HttpProcessingError

    return ClientError, HttpProcessingError, OSError


def lost_words(error: Exception) -> str:
    """How reading a body ended too soon."""
    inner: object = getattr(error.__cause__ or error, "message", None)
    words = inner if isinstance(inner, str) else str(error) or type(error).__name__
    return words.rstrip(".")


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
    ) -> None:
        """Configure; nothing is opened yet.

        Args:
            connect_s: Name, connection and TLS together; waiting for an answer is not limited.
            certificates: None for plain HTTP.
            proxy: As `proxy_for` gives it.
            max_requests: In flight at a time.
        """
        from aiohttp import ClientSession, ClientTimeout, DummyCookieJar, TCPConnector
        from aiohttp.resolver import ThreadedResolver
        from yarl import URL

        self._url = URL(url)
        self._proxy = proxy
        self._connect_s = connect_s
        self._places = asyncio.Semaphore(max_requests)
        self._session = ClientSession(
            connector=TCPConnector(
                limit=0,  # the places are ours: waiting for one is no trouble with the server
                keepalive_timeout=_KEPT_S,
                resolver=ThreadedResolver(),
                ssl=certificates or True,
            ),
            headers=headers,
            cookie_jar=DummyCookieJar(),
            timeout=ClientTimeout(total=None, connect=connect_s),
            max_line_size=_MOST_HEADER_BYTES,
            max_field_size=_MOST_HEADER_BYTES,
        )

    def __del__(self) -> None:
        # Nobody closed it: so quietly now, for the session would complain on the console.
        session: ClientSession | None = getattr(self, "_session", None)
        if session is not None and not session.closed:
            closing = session.close()
            with contextlib.suppress(StopIteration, RuntimeError):
                closing.send(None)
            closing.close()

    @property
    def places(self) -> asyncio.Semaphore:
        """As many as there may be connections: to be held while a call lasts."""
        return self._places

    async def post(self, content: bytes) -> ClientResponse:
        """Send; the response with its body unread. The caller closes it.

        Raises:
            NoAnswerError: There is none.
        """
        from aiohttp import ClientError

        data = content if len(content) <= _LARGE_BYTES else io.BytesIO(content)
        try:
            return await self._session.post(
                self._url, data=data, allow_redirects=False, proxy=self._proxy
            )
        except (ClientError, OSError, ValueError) as error:
            raise NoAnswerError(self._reason(error)) from error

    async def close(self) -> None:
        """Close the connections."""
        await self._session.close()

    def _reason(self, error: Exception) -> str:
        import aiohttp

        cause = str(error.__cause__ or error)
        if isinstance(error, aiohttp.ConnectionTimeoutError):
            return f"no connection within {self._connect_s:g} s"
        if isinstance(error, aiohttp.ClientHttpProxyError):
            return f"the proxy answered HTTP {error.status} {error.message}"
        if isinstance(error, aiohttp.ClientProxyConnectionError):
            return f"the proxy cannot be reached ({cause})"
        if isinstance(error, aiohttp.ClientConnectorError):
            return cause
        if isinstance(error, aiohttp.ClientResponseError):
            return f"what came back is no HTTP ({error.message})"
        if isinstance(error, UnicodeError):
            return cause
        if isinstance(error, ValueError):
            return "the request could not be sent"  # its text may quote the headers
        if isinstance(error, aiohttp.ServerDisconnectedError):
            cause = "server disconnected"  # its text may be half an answer
        return f"the connection was closed before an answer came ({cause})"


# --- certificates ------------------------------------------------------------------------------

_CERTIFICATE_FILES: Final = (
    "/etc/ssl/cert.pem",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/pki/tls/cert.pem",
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/ssl/ca-bundle.pem",
)
"""Where systems keep them that this Python was not built on."""


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
