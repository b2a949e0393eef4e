"""The health of a worker over HTTP: `/health` and `/ready`, and nothing else."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Final

from minions import __version__
from minions.contracts.errors import EnvironmentRefusedError
from minions.contracts.json_values import JsonValue, dumps
from minions.interfaces.worker.worker import Worker

__all__ = ["serving_health"]

_LONGEST_LINE: Final = 4_096
_REQUEST_S: Final = 5.0
_MOST_LINES: Final = 100


@asynccontextmanager
async def serving_health(worker: Worker, host: str, port: int) -> AsyncIterator[int]:
    """Answer within the block; gives the port, which is a free one for 0.

    Raises:
        EnvironmentRefusedError: `port-taken`; nothing can listen there.
    """

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(TimeoutError, OSError, ValueError, asyncio.IncompleteReadError):
            async with asyncio.timeout(_REQUEST_S):
                writer.write(await _answer(worker, await _target(reader)))
                await writer.drain()
        writer.close()

    try:
        server = await asyncio.start_server(answer, host, port, limit=_LONGEST_LINE)
    except (OSError, OverflowError) as error:
        raise EnvironmentRefusedError(
            f"The worker cannot listen on {host}:{port}: {error}. Give another port with --health.",
            code="port-taken",
        ) from error
    async with server:
        found: int = server.sockets[0].getsockname()[1]
        yield found


async def _target(reader: asyncio.StreamReader) -> str:
    """The path of a request, whose headers are read and not looked at.

    Raises:
        ValueError: It is no GET or HEAD, or too long.
    """
    method, target, _ = (await reader.readline()).decode("latin-1").split(" ", 2)
    for _number in range(_MOST_LINES):
        if (await reader.readline()).strip() == b"":
            break
    else:
        raise ValueError("too many headers")
    if method not in ("GET", "HEAD"):
        raise ValueError(method)
    return target.partition("?")[0]


async def _answer(worker: Worker, path: str) -> bytes:
    if path == "/health":
        status = "stopping" if worker.is_stopping else "ok"
        return _response(HTTPStatus.OK, {"status": status, "version": __version__})
    if path == "/ready":
        problem = await worker.problem()
        if problem is None:
            return _response(HTTPStatus.OK, {"status": "ready", "worker": worker.plan.name})
        return _response(HTTPStatus.SERVICE_UNAVAILABLE, {"status": problem})
    return _response(HTTPStatus.NOT_FOUND, {"status": "there is /health and /ready"})


def _response(status: HTTPStatus, document: JsonValue) -> bytes:
    body = dumps(document).encode()
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body
