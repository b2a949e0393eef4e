"""Reads the pieces of answers of one run from the worker that executes it.

The worker's address was in a table, so whoever answers there is a stranger: what it sends is
bounded, has to be pieces of that run, and no redirect is followed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Final
from urllib.parse import quote

from attrs import frozen

from minions.adapters.http.http_pool import (
    HttpPool,
    HttpResponse,
    NoAnswerError,
    needs_certificates,
    trusted_certificates,
)
from minions.adapters.http.http_response import BrokenBodyError
from minions.contracts.model_endpoints import check_base_url
from minions.contracts.run_events import StepDeltaEvent
from minions.data.codec import decode
from minions.data.errors import UsageError
from minions.data.json_values import parse_json

_CONNECT_S: Final = 3.0
_ANSWER_S: Final = 5.0
"""Seconds until the response begins, with the connection."""
_SILENCE_S: Final = 35.0
"""Seconds without a byte; workers send a heartbeat every ten."""
_MOST_FRAME_BYTES: Final = 1024 * 1024
_TYPES: Final = (StepDeltaEvent.type, StepDeltaEvent.type)
_MOST_POSITION: Final = 2**63


@frozen(kw_only=True)
class Piece:
    """A piece of an answer, with its place among the stored events."""

    position: int
    """Of the newest stored event of the run before it; 0: there was none."""
    event: StepDeltaEvent


class StreamLostError(Exception):
    """There is no stream, or it has broken off; says why, and quotes nothing that was sent."""


async def read_pieces(
    url: str, token: str, *, session_id: str, run_id: str
) -> AsyncGenerator[Piece, None]:
    """The pieces that come from now on, until the worker no longer executes the run.

    Args:
        url: The base URL of the worker.
        token: Sent to that server alone.
    Raises:
        StreamLostError: The worker cannot be reached, refuses, is silent, or sends something else.
    """
    try:
        pool = _pool_of(check_base_url(url, "the address of a worker"), token, run_id)
    except UsageError as error:
        raise StreamLostError("its address is no http(s) URL") from error
    except NoAnswerError as error:
        raise StreamLostError(str(error)) from error
    try:
        response = await _answer(pool)
        try:
            frames = _Frames()
            while data := await _next(response):
                for frame in frames.feed(data):
                    piece = _piece_of(frame)
                    if (piece.event.session_id, piece.event.run_id) != (session_id, run_id):
                        raise StreamLostError("it sends pieces of another run")
                    yield piece
        finally:
            response.close()
    finally:
        await pool.close()


def _pool_of(url: str, token: str, run_id: str) -> HttpPool:
    """A pool for one request. Workers are reached directly: no proxy gets the token."""
    target = f"{url}/runs/{quote(run_id, safe='')}/deltas"
    return HttpPool(
        target,
        {"Authorization": f"Bearer {token}", "Accept": "text/event-stream"},
        connect_s=_CONNECT_S,
        certificates=trusted_certificates() if needs_certificates(target, None) else None,
        proxy=None,
        max_requests=1,
        method="GET",
    )


async def _answer(pool: HttpPool) -> HttpResponse:
    try:
        async with asyncio.timeout(_ANSWER_S):
            response = await pool.post(b"")
    except TimeoutError as error:
        raise StreamLostError(f"no answer within {_ANSWER_S:g} s") from error
    except NoAnswerError as error:
        raise StreamLostError(str(error)) from error
    is_stream = response.headers.get("content-type", "").startswith("text/event-stream")
    if response.status != 200 or not is_stream:
        response.close()
        why = f"HTTP {response.status}" if response.status != 200 else "it sends no event stream"
        raise StreamLostError(why)
    return response


async def _next(response: HttpResponse) -> bytes:
    try:
        async with asyncio.timeout(_SILENCE_S):
            return await response.read()
    except TimeoutError as error:
        raise StreamLostError(f"nothing came for {_SILENCE_S:g} s") from error
    except BrokenBodyError as error:
        raise StreamLostError(str(error)) from error


class _Frames:
    """Splits bytes into frames, without comments."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> Sequence[bytes]:
        """The frames that are now complete.

        Raises:
            StreamLostError: One is too long.
        """
        # Only what is new can have the end of a frame, but for the byte before it.
        begin = max(0, len(self._rest) - 1)
        self._rest += data
        last = self._rest.rfind(b"\n\n", begin)
        frames: list[bytes] = []
        if last >= 0:
            frames = bytes(self._rest[:last]).split(b"\n\n")
            del self._rest[: last + 2]
        if max((len(self._rest), *map(len, frames))) > _MOST_FRAME_BYTES:
            raise StreamLostError(f"a piece has more than {_MOST_FRAME_BYTES:,} bytes")
        return [frame for frame in frames if not frame.startswith(b":")]


def _piece_of(frame: bytes) -> Piece:
    """The piece of a frame in the form in which workers send it, and in no other.

    Raises:
        StreamLostError: The frame is something else.
    """
    try:
        lines = dict(line.split(": ", 1) for line in frame.decode().split("\n"))
        document = parse_json(lines["data"])
        if not isinstance(document, dict) or (document.pop("type"), lines["event"]) != _TYPES:
            raise ValueError("another event")
        position, event = int(lines["id"]), decode(document, StepDeltaEvent)
        if not 0 <= position < _MOST_POSITION or event.position is not None:
            raise ValueError("a stored event")
    except (ValueError, LookupError, RecursionError) as error:
        raise StreamLostError("it sends what is no piece of an answer") from error
    return Piece(position=position, event=event)
