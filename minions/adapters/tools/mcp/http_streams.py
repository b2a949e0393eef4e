"""A server that is asked over HTTP: its address, and the streams of its messages."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from minions.adapters.tools.mcp.mcp_failures import (
    FLOODED,
    MOST_MESSAGE_BYTES,
    Ending,
    Inflow,
    too_many_parts,
)
from minions.data.errors import UsageError

if TYPE_CHECKING:
    import httpx2
    from anyio.streams.memory import MemoryObjectSendStream
    from mcp.client._transport import ReadStream, TransportStreams
    from mcp.shared.message import SessionMessage


_CONNECT_S: Final = 10.0
_READ_S: Final = 600.0
"""Seconds without a byte; each call has a shorter limit of its own."""
_LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")


def check_url(url: str, source: str, *, has_headers: bool) -> str:
    """Validate the address of a server.

    Args:
        source: Where it was said, for the message.
        has_headers: Whether headers, which may hold a key, are sent along.
    Raises:
        UsageError: `bad-base-url`; `insecure-base-url`: a key would be sent in plain text.
    """
    from minions.contracts.model_endpoints import check_base_url

    checked = check_base_url(url, source)
    if has_headers and not is_private(checked):
        raise UsageError(
            f"{source[0].upper()}{source[1:]} is {checked!r}: headers are not sent over plain HTTP "
            "to another machine, since they may hold a key. Write https://.",
            code="insecure-base-url",
        )
    return checked


def is_private(url: str) -> bool:
    """Whether nobody on the way reads what is sent there: it is HTTPS, or this machine."""
    parts = urlsplit(url)
    return parts.scheme == "https" or parts.hostname in _LOOPBACK


@contextlib.asynccontextmanager
async def http_streams(
    url: str,
    headers: Mapping[str, str],
    ending: Ending,
    inflow: Inflow,
    auth: httpx2.Auth | None = None,
) -> AsyncIterator[TransportStreams]:
    """The streams of messages with a server. Only redirects within its own origin are followed.

    Args:
        auth: Adds tokens to requests; None: nothing does.
    """
    import anyio
    import httpx2
    from mcp.client.streamable_http import streamable_http_client
    from mcp.shared.message import SessionMessage

    from minions.adapters.tools.mcp.bounded_http import BoundedTransport

    timeout = httpx2.Timeout(_CONNECT_S, read=_READ_S)
    async with (
        httpx2.AsyncClient(
            headers=dict(headers),
            auth=auth,
            timeout=timeout,
            transport=BoundedTransport(ending, inflow),
            trust_env=False,
        ) as client,
        streamable_http_client(url, http_client=client, max_sse_event_size=MOST_MESSAGE_BYTES) as (
            received,
            outgoing,
        ),
    ):
        to_session, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        handing_on = asyncio.create_task(_hand_on(received, to_session, ending))
        try:
            yield incoming, outgoing
        finally:
            handing_on.cancel()
            await asyncio.wait([handing_on])
            incoming.close()


async def _hand_on(
    received: ReadStream[SessionMessage | Exception],
    to_session: MemoryObjectSendStream[SessionMessage | Exception],
    ending: Ending,
) -> None:
    """Hand on each message but one whose checks would hold the event loop: that is the last."""
    from anyio import BrokenResourceError, ClosedResourceError
    from mcp_types import JSONRPCResponse

    async with to_session:
        async for each in received:
            message = None if isinstance(each, Exception) else each.message
            if isinstance(message, JSONRPCResponse) and (what := too_many_parts(message.result)):
                ending.note(FLOODED, what)
                return
            try:
                await to_session.send(each)
            except (BrokenResourceError, ClosedResourceError):
                return  # the session is over
