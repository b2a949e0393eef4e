"""What an HTTP server may answer: a bounded transport. Imported only when a server is asked."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

import httpx2

from minions.adapters.tools.mcp.mcp_failures import (
    FLOODED,
    MOST_MESSAGE_BYTES,
    Ending,
    Inflow,
    count_signs,
    too_many_values,
)

CONNECT_TO: Final = "minions_connect_to"
"""Extension of a request: the address that its host is at."""


class BoundedTransport(httpx2.AsyncHTTPTransport):
    """Ends the connection where an answer, or a stream of events, is too large."""

    def __init__(self, ending: Ending, inflow: Inflow) -> None:
        """Requests are sent once: a tool may have had its effect."""
        super().__init__(retries=0)
        self._ending = ending
        self._inflow = inflow

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send the request; the answer is not packed, since it could be far larger than it came."""
        request.headers["Accept-Encoding"] = "identity"
        self._inflow.asked()
        response = await super().handle_async_request(_connecting_to(request))
        if response.status_code >= 400:
            self._ending.status = response.status_code
        stream = response.stream
        assert isinstance(stream, httpx2.AsyncByteStream)  # noqa: S101  # of an asynchronous client
        is_events = response.headers.get("content-type", "").startswith("text/event-stream")
        bounded = _EventBytes if is_events else _AnswerBytes
        response.stream = bounded(stream, self._ending, self._inflow)
        return response


def _connecting_to(request: httpx2.Request) -> httpx2.Request:
    """The request, where an address was checked for it: to that one, whatever its name means by
    now. Certificates are those of the name.
    """
    address = request.extensions.get(CONNECT_TO)
    if not isinstance(address, str):
        return request
    host = f"[{address}]" if ":" in address else address
    return httpx2.Request(
        request.method,
        request.url.copy_with(host=host),
        headers=request.headers,
        stream=request.stream,
        extensions={**request.extensions, "sni_hostname": request.url.host},
    )


class _AnswerBytes(httpx2.AsyncByteStream):
    """An answer in one piece."""

    def __init__(self, stream: httpx2.AsyncByteStream, ending: Ending, inflow: Inflow) -> None:
        self._stream = stream
        self._ending = ending
        self._inflow = inflow
        self._size = 0
        self._signs = 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._stream:
            if (flood := self._count_chunk(chunk)) is not None:
                self._ending.note(FLOODED, flood)
                return
            yield chunk

    def _count_chunk(self, chunk: bytes) -> str | None:
        """Why no more is read; None: more is."""
        self._size += len(chunk)
        self._signs += count_signs(chunk)
        if self._size > MOST_MESSAGE_BYTES:
            return f"answered with more than {MOST_MESSAGE_BYTES // 1_048_576} MiB"
        return too_many_values(self._size, self._signs)

    async def aclose(self) -> None:
        await self._stream.aclose()


class _EventBytes(_AnswerBytes):
    """A stream of events, each of which the SDK bounds; here their number is."""

    def _count_chunk(self, chunk: bytes) -> str | None:
        begun = chunk.count(b"data:")
        if begun:  # an event may come in many pieces; this is where another begins
            self._size = self._signs = 0
        self._size += len(chunk)
        self._signs += count_signs(chunk)
        for _ in range(begun):
            if (flood := self._inflow.message()) is not None:
                return flood
        return too_many_values(self._size, self._signs)
