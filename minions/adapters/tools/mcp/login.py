"""OAuth towards an MCP server. Imported only when a server is asked that is logged in to.

A person logs in once, by `minions mcp login`; runs send the tokens that this left, and renew them.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from ipaddress import ip_address
from typing import Final, TypeVar
from urllib.parse import SplitResult, parse_qsl, urlsplit

import httpx2
from attrs import define, field, frozen
from mcp.client.auth import OAuthClientProvider, OAuthFlowError
from mcp.client.auth.extensions.client_credentials import (
    ClientCredentialsOAuthProvider,
    PrivateKeyJWTOAuthProvider,
    SignedJWTParameters,
)
from mcp.shared.auth import (
    AuthorizationCodeResult,
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthMetadata,
    OAuthToken,
    ProtectedResourceMetadata,
)
from pydantic import AnyUrl, BaseModel, ValidationError

from minions.adapters.http.request_rules import is_loopback, is_public, resolve_by_system
from minions.adapters.tools.mcp.bounded_http import CONNECT_TO
from minions.adapters.tools.mcp.login_store import LoginStore
from minions.adapters.tools.mcp.mcp_failures import LOGIN, Ending
from minions.contracts.tool_servers import Grant, ServerLogin
from minions.data.errors import words_of
from minions.data.json_values import JsonValue
from minions.data.texts import shown_text

M = TypeVar("M", bound=BaseModel)

_PRODUCT: Final = "minions"
_LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")
_NO_VISITOR: Final = "http://127.0.0.1/callback"
"""Where no browser is ever sent: runs log nobody in."""
_MOST_WORDS: Final = 300
_CURVES: Final = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}
_METHODS: Final = {True: "client_secret_basic", False: "none"}
"""How a client with and without a secret says who it is; RFC 6749, 2.3.1: all servers take it."""


@frozen(kw_only=True)
class Visitor:
    """A person with a browser."""

    redirect_uri: str
    """Where the browser comes back to."""
    show: Callable[[str], Awaitable[None]]
    """Send the browser there."""
    answer: Callable[[], Awaitable[AuthorizationCodeResult]]
    """What it came back with."""


def login_of(
    url: str,
    login: ServerLogin,
    store: LoginStore,
    ending: Ending,
    visitor: Visitor | None = None,
) -> httpx2.Auth | None:
    """What adds tokens to requests; None: nobody has logged in, and none are sent.

    Args:
        login: Secrets are in the place of references.
        ending: Told why there is no token.
        visitor: Logs in where the tokens that are stored do not do; None: nobody does.
    Raises:
        ValueError: The private key cannot be used.
    """
    if login.grant is Grant.CLIENT_CREDENTIALS and login.private_key is not None:
        return _SignedLogin(url, login, login.private_key, ending)
    if login.grant is Grant.CLIENT_CREDENTIALS:
        return _ProgramLogin(url, login, ending)
    stored = store.read()
    if visitor is None and not stored:
        return None
    return _PersonLogin(url, login, store, ending, visitor)


class _GuardedLogin(OAuthClientProvider):
    """Asks nobody in plain text but this machine, nobody nearer to this machine than the server is,
    and tells why there is no token.
    """

    _ending: Ending
    _peer: str | None = None
    """The address of the server, from which its answer came; None: it has not answered yet."""

    async def _auth_flow(
        self, request: httpx2.Request
    ) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        flow = super()._auth_flow(request)
        try:
            outgoing = await anext(flow)
            while True:
                if outgoing is not request:
                    at = await self._checked_address(str(outgoing.url))
                    if at is not None:  # what is looked up again may be another address
                        outgoing.extensions = {**outgoing.extensions, CONNECT_TO: at}
                response = yield outgoing
                if outgoing is request:
                    self._peer = _peer_of(response) or self._peer
                outgoing = await flow.asend(response)
        except StopAsyncIteration:
            return
        except (OAuthFlowError, ValidationError, ValueError) as error:
            self._ending.note(LOGIN, f"cannot be logged in to: {_describe_error(error)}")
            raise
        finally:
            await flow.aclose()

    async def _checked_address(self, url: str) -> str | None:
        """Where to connect for that URL; None: to the server itself, wherever that is.

        The server says who gives out tokens; it shall not send us round the inner network.

        Raises:
            OAuthFlowError: It is neither of its own origin, nor HTTPS, nor from this machine to
                this one; or it is at an address nearer to this machine than the server.
        """
        asked, own = urlsplit(url), urlsplit(self.context.server_url)
        if (asked.scheme, asked.netloc) == (own.scheme, own.netloc):
            return None
        is_local = asked.hostname in _LOOPBACK and own.hostname in _LOOPBACK
        if asked.scheme != "https" and not is_local:
            raise OAuthFlowError(f"it names {url[:200]!r}, which is not https")
        addresses = await _addresses_of(asked)
        nearest = max(map(_nearness, addresses))
        of_server = [self._peer] if self._peer is not None else await _addresses_of(own)
        if nearest > min(map(_nearness, of_server)):
            raise OAuthFlowError(
                f"it names {url[:200]!r}, which is at an inner address ({addresses[0]}), and the "
                "server is elsewhere"
            )
        return addresses[0]


async def _addresses_of(url: SplitResult) -> Sequence[str]:
    """The addresses of the URL's host.

    Raises:
        OAuthFlowError: There is none.
    """
    try:
        port = url.port or (443 if url.scheme == "https" else 80)
        found = await resolve_by_system(url.hostname or "", port)
    except (OSError, ValueError) as error:  # ValueError: no name that can be looked up
        raise OAuthFlowError(f"{url.hostname!r:.100} is not found ({words_of(error)})") from None
    if not found:
        raise OAuthFlowError(f"{url.hostname!r:.100} is not found")
    return found


def _nearness(address: str) -> int:
    """How near to this machine: 0 public, 1 private, 2 this machine, 3 what only machines on the
    same wire reach, such as a cloud's metadata, or what is no address of one machine.
    """
    found = ip_address(address.partition("%")[0])
    found = getattr(found, "ipv4_mapped", None) or found
    if is_public(found):
        return 0
    if is_loopback(found):
        return 2
    is_odd = found.is_link_local or found.is_unspecified or found.is_multicast
    return 3 if is_odd or found in _METADATA else 1


_METADATA: Final = frozenset(map(ip_address, ("168.63.129.16", "100.100.100.200", "fd00:ec2::254")))
"""Metadata services of clouds at addresses that are not link-local."""


def _peer_of(response: httpx2.Response) -> str | None:
    """The address that an answer came from."""
    stream = response.extensions.get("network_stream")
    about = stream.get_extra_info("server_addr") if stream is not None else None
    return str(about[0]) if isinstance(about, tuple) else None


class _ProgramLogin(_GuardedLogin, ClientCredentialsOAuthProvider):
    """The program logs in itself, with its own name and secret; tokens are not stored."""

    def __init__(self, url: str, login: ServerLogin, ending: Ending) -> None:
        super().__init__(
            server_url=url,
            storage=_NoTokens(),
            client_id=login.client_id or "",
            client_secret=login.client_secret or "",
            scope=login.scope,
            issuer=login.issuer,
        )
        self._ending = ending


class _SignedLogin(_GuardedLogin, PrivateKeyJWTOAuthProvider):
    """The program logs in itself, by what its key signed (RFC 7523); tokens are not stored."""

    def __init__(self, url: str, login: ServerLogin, key: str, ending: Ending) -> None:
        own = login.client_id or ""
        signed = SignedJWTParameters(
            issuer=own, subject=own, signing_key=key, signing_algorithm=_algorithm_of(key)
        )
        super().__init__(
            server_url=url,
            storage=_NoTokens(),
            client_id=own,
            assertion_provider=signed.create_assertion_provider(),
            scope=login.scope,
            issuer=login.issuer,
        )
        self._ending = ending


def _algorithm_of(key: str) -> str:
    """How that key signs, as RFC 7518 names it.

    Raises:
        ValueError: It is no private key, or one of another kind.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    wanted = "expected PEM of an RSA, P-256, P-384, P-521 or Ed25519 key without a passphrase"
    try:
        read = load_pem_private_key(key.encode(), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise ValueError(f"its private key cannot be read: {wanted}") from None
    if isinstance(read, rsa.RSAPrivateKey):
        return "RS256"
    if isinstance(read, ed25519.Ed25519PrivateKey):
        return "EdDSA"
    curve = read.curve.name if isinstance(read, ec.EllipticCurvePrivateKey) else ""
    if curve not in _CURVES:
        raise ValueError(f"its private key is of another kind: {wanted}")
    return _CURVES[curve]


class _PersonLogin(_GuardedLogin):
    """A person logged in, or does so now."""

    def __init__(
        self,
        url: str,
        login: ServerLogin,
        store: LoginStore,
        ending: Ending,
        visitor: Visitor | None,
    ) -> None:
        redirect = AnyUrl(visitor.redirect_uri if visitor is not None else _NO_VISITOR)
        described = login.client_id is not None and login.client_id.startswith("https://")
        metadata = OAuthClientMetadata(
            client_name=_PRODUCT, redirect_uris=[redirect], scope=login.scope
        )
        super().__init__(
            url,
            metadata,
            _StoredTokens(store, self._described),
            self._show,
            self._answer,
            client_metadata_url=login.client_id if described else None,
        )
        self._ending = ending
        self._store = store
        self._login = login
        self._is_described = described
        self._visitor = visitor

    async def _initialize(self) -> None:
        """The client, its tokens and who gave them, as they were left."""
        await super()._initialize()
        stored, context = self._store.read(), self.context
        if self._login.client_id is not None and not self._is_described:
            context.client_info = OAuthClientInformationFull(
                redirect_uris=context.client_metadata.redirect_uris,
                client_id=self._login.client_id,
                client_secret=self._login.client_secret,
                token_endpoint_auth_method=_METHODS[self._login.client_secret is not None],
            )
        expires_at = stored.get("expires_at")
        if isinstance(expires_at, int | float):
            context.token_expiry_time = float(expires_at)
        issuer = stored.get("issuer")
        context.auth_server_url = issuer if isinstance(issuer, str) else None
        context.oauth_metadata = _read(OAuthMetadata, stored.get("issuer_metadata"))
        context.protected_resource_metadata = _read(
            ProtectedResourceMetadata, stored.get("resource_metadata")
        )

    def _described(self) -> dict[str, JsonValue]:
        """What has to be known to renew the tokens in another process."""
        context = self.context
        return {
            "expires_at": context.token_expiry_time,
            "issuer": context.auth_server_url,
            "issuer_metadata": _write(context.oauth_metadata),
            "resource_metadata": _write(context.protected_resource_metadata),
        }

    async def _show(self, url: str) -> None:
        if self._visitor is None:
            raise OAuthFlowError("nobody is logged in any more")
        await self._checked_address(url)
        await self._visitor.show(url)

    async def _answer(self) -> AuthorizationCodeResult:
        assert self._visitor is not None  # noqa: S101  # it was shown the address
        return await self._visitor.answer()


class _NoTokens:
    """Stores no tokens."""

    async def get_tokens(self) -> OAuthToken | None:
        return None

    async def set_tokens(self, tokens: OAuthToken) -> None:
        """Kept in the connection alone."""

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return None

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        """It is configured."""


class _StoredTokens:
    """Tokens and the registered client in the user's folder."""

    def __init__(self, store: LoginStore, described: Callable[[], dict[str, JsonValue]]) -> None:
        self._store = store
        self._described = described

    async def get_tokens(self) -> OAuthToken | None:
        return _read(OAuthToken, self._store.read().get("tokens"))

    async def set_tokens(self, tokens: OAuthToken) -> None:
        stored = {**self._store.read(), **self._described(), "tokens": _write(tokens)}
        self._store.write(stored)

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return _read(OAuthClientInformationFull, self._store.read().get("client"))

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self._store.write({**self._store.read(), "client": _write(client_info)})


def _read(kind: type[M], value: JsonValue) -> M | None:
    """The value as a model of the SDK; None where it is none, as if it had not been stored."""
    if not isinstance(value, Mapping):
        return None
    try:
        return kind.model_validate(value)
    except ValidationError:
        return None


def _write(model: BaseModel | None) -> JsonValue:
    found: JsonValue = None if model is None else model.model_dump(mode="json", exclude_none=True)
    return found


def _describe_error(error: Exception) -> str:
    return shown_text(words_of(error)[:_MOST_WORDS])


# --- where a browser comes back to after a login -------------------------------------------------


_HOST: Final = "127.0.0.1"
_PATH: Final = "/callback"
_MOST_BYTES: Final = 16_384
_MOST_FIELDS: Final = 32
_HEAD_S: Final = 5.0
_DONE: Final = "You are logged in, and can close this page."
_NOT_DONE: Final = "There was no login. The terminal says why; you can close this page."


@contextlib.asynccontextmanager
async def returning_browser(
    store: LoginStore, show: Callable[[str], Awaitable[None]]
) -> AsyncIterator[Visitor]:
    """Listen on this machine for the browser of a person.

    Args:
        store: If a client was registered with an address that is free, that is taken again; else
            the client is forgotten, and a new one is registered.
        show: Shows the address of the login.
    """
    waiting = _LoginCallback()

    async def shown(url: str) -> None:
        waiting.state = dict(parse_qsl(urlsplit(url).query)).get("state")
        await show(url)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, ValueError, asyncio.IncompleteReadError):
            async with asyncio.timeout(_HEAD_S):
                status, text = await _answer_request(reader, waiting)
                writer.write(_page(status, text))
                await writer.drain()
        writer.close()

    server = await _listening(store, serve)
    port = server.sockets[0].getsockname()[1]
    try:
        uri = f"http://{_HOST}:{port}{_PATH}"
        yield Visitor(redirect_uri=uri, show=shown, answer=waiting.result)
    finally:
        server.close()


@define(eq=False)
class _LoginCallback:
    """What the browser brings back."""

    state: str | None = None
    """The random text that was sent along; only who brings it back is heard."""
    said: Mapping[str, str] | None = None
    _came: asyncio.Event = field(factory=asyncio.Event)

    def take(self, said: Mapping[str, str]) -> bool:
        """Take what a browser says; False where it is not the one that was sent."""
        if self.state is None or not secrets.compare_digest(
            said.get("state", "").encode(), self.state.encode()
        ):
            return False
        self.said = said
        self._came.set()
        return True

    async def result(self) -> AuthorizationCodeResult:
        """Wait for it.

        Raises:
            OAuthFlowError: The login was refused.
        """
        await self._came.wait()
        said = self.said or {}
        if "code" not in said:
            why = said.get("error_description") or said.get("error") or "there is no code"
            raise OAuthFlowError(f"the login was refused: {shown_text(why[:300])}")
        return AuthorizationCodeResult(
            code=said["code"], state=said.get("state"), iss=said.get("iss")
        )


async def _listening(
    store: LoginStore,
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> asyncio.Server:
    stored = store.read()
    if port := _registered_port(stored.get("client")):
        with contextlib.suppress(OSError):
            return await asyncio.start_server(serve, _HOST, port, limit=_MOST_BYTES)
    if "client" in stored:
        store.write({key: value for key, value in stored.items() if key != "client"})
    return await asyncio.start_server(serve, _HOST, 0, limit=_MOST_BYTES)


def _registered_port(client: object) -> int | None:
    uris = client.get("redirect_uris") if isinstance(client, dict) else None
    first = uris[0] if isinstance(uris, list) and uris else None
    if not isinstance(first, str) or not first.startswith(f"http://{_HOST}:"):
        return None
    return urlsplit(first).port


async def _answer_request(reader: asyncio.StreamReader, waiting: _LoginCallback) -> tuple[str, str]:
    """The status and the words of the page that a request is answered with."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        return "431 Request Header Fields Too Large", "Too long."
    method, _, rest = head.decode("latin-1").partition("\r\n")[0].partition(" ")
    target = urlsplit(rest.partition(" ")[0])
    if method != "GET" or target.path != _PATH:
        return "404 Not Found", "There is nothing here."
    said = dict(parse_qsl(target.query, max_num_fields=_MOST_FIELDS))
    if waiting.said is not None:
        return "410 Gone", "The login is over."
    if not waiting.take(said):
        return "400 Bad Request", "This is no answer to the login that is waited for."
    return "200 OK", _DONE if "code" in said else _NOT_DONE


def _page(status: str, text: str) -> bytes:
    body = f"<!doctype html><title>minions</title><p>{text}</p>".encode()
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: text/html; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\nReferrer-Policy: no-referrer\r\n"
        "Content-Security-Policy: default-src 'none'\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body
