"""Where a browser comes back to after a login: a page on this machine, while somebody waits."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Final
from urllib.parse import parse_qsl, urlsplit

from attrs import define, field
from mcp.client.auth import OAuthFlowError
from mcp.shared.auth import AuthorizationCodeResult

from minions.adapters.tools.mcp.login import Visitor
from minions.adapters.tools.mcp.login_store import LoginStore
from minions.data.texts import shown_text

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
    waiting = _Waiting()

    async def shown(url: str) -> None:
        waiting.state = dict(parse_qsl(urlsplit(url).query)).get("state")
        await show(url)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, ValueError, asyncio.IncompleteReadError):
            async with asyncio.timeout(_HEAD_S):
                status, text = await _answered(reader, waiting)
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
class _Waiting:
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


async def _answered(reader: asyncio.StreamReader, waiting: _Waiting) -> tuple[str, str]:
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
