"""Asks an ASGI app in this process, streams too; and reads server-sent events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Mapping, MutableMapping
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Self, TypeAlias, cast

from attrs import frozen

from patience import HANG_S

Message: TypeAlias = MutableMapping[str, Any]  # Any: as ASGI has it
TOKEN = "a-token-of-the-tests"


@frozen
class Reply:
    """A whole answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:  # Any: what the test expects of it is compared
        """The body."""
        return json.loads(self.body)


@frozen
class Event:
    """One server-sent event."""

    type: str
    data: Mapping[str, Any]  # Any: as above
    id: int | None = None


class Stream:
    """An answer that is being sent."""

    def __init__(self, client: Client, scope: Message, body: bytes) -> None:
        self._client = client
        self._scope = scope
        self._body: bytes | None = body
        self._gone = asyncio.Event()
        self._messages: asyncio.Queue[Message | None] = asyncio.Queue()
        self._text = ""
        self.comments: list[str] = []
        self.is_blocked = asyncio.Event()
        self.is_blocked.set()  # set: it takes what is sent

    async def __aenter__(self) -> Self:
        self._task = asyncio.ensure_future(self._run())
        first = await self._messages.get()
        assert first is not None, self._task.exception() if self._task.done() else "no answer"
        self.status: int = first["status"]
        self.headers = {key.decode(): value.decode() for key, value in first["headers"]}
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._gone.set()
        self.is_blocked.set()
        await asyncio.wait_for(self._task, HANG_S)

    async def _run(self) -> None:
        try:
            await self._client.app(self._scope, self._receive, self._send)
        finally:
            self._messages.put_nowait(None)

    async def _receive(self) -> Message:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        await self.is_blocked.wait()
        self._messages.put_nowait(message)

    async def chunks(self) -> AsyncIterator[bytes]:
        """As they are sent."""
        while (message := await asyncio.wait_for(self._messages.get(), HANG_S)) is not None:
            yield message.get("body", b"")
            if not message.get("more_body", False):
                return

    async def read(self) -> bytes:
        """All of it."""
        return b"".join([chunk async for chunk in self.chunks()])

    async def events(self) -> AsyncIterator[Event]:
        """As they come."""
        async for chunk in self.chunks():
            self._text += chunk.decode()
            while "\n\n" in self._text:
                block, _, self._text = self._text.partition("\n\n")
                if block.startswith(":"):
                    self.comments.append(block)
                else:
                    yield event_of(block)


def event_of(block: str) -> Event:
    """What stands between two empty lines."""
    fields = dict(line.split(": ", 1) for line in block.splitlines())
    place = fields.get("id")
    data = cast("Mapping[str, Any]", json.loads(fields["data"]))  # Any: as above
    assert fields["event"] == data["type"]
    return Event(fields["event"], data, None if place is None else int(place))


def events_in(text: str) -> Iterator[Event]:
    """All of a whole stream."""
    for block in text.split("\n\n"):
        if block.strip() and not block.startswith(":"):
            yield event_of(block)


class Client:
    """Asks with the token, as the host itself, unless said otherwise."""

    def __init__(self, app: Any, root: str = "") -> None:  # Any: whatever speaks ASGI
        self.app = app
        self.root = root

    def stream(
        self,
        method: str,
        path: str,
        body: object = None,
        headers: Mapping[str, str | None] | None = None,
    ) -> Stream:
        """An answer that comes in pieces."""
        named: dict[str, str | None] = {
            "host": "localhost",
            "authorization": f"Bearer {TOKEN}",
            **({"content-type": "application/json"} if body is not None else {}),
            **(headers or {}),
        }
        path, _, query = path.partition("?")
        scope: Message = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": f"{self.root}{path}",
            "raw_path": f"{self.root}{path}".encode(),
            "root_path": "",
            "query_string": query.encode(),
            "headers": [(k.encode(), v.encode()) for k, v in named.items() if v is not None],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 80),
        }
        sent = body if isinstance(body, bytes) else b"" if body is None else _json(body)
        return Stream(self, scope, sent)

    async def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        headers: Mapping[str, str | None] | None = None,
    ) -> Reply:
        """A whole answer."""
        async with self.stream(method, path, body, headers) as stream:
            return Reply(
                stream.status, stream.headers, await asyncio.wait_for(stream.read(), HANG_S)
            )

    async def get(self, path: str, **headers: str | None) -> Reply:
        """GET under `/api/v1`; `_` in names of headers stands for `-`."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.ask("GET", f"/api/v1{path}", None, named)

    async def post(self, path: str, body: object = None, **headers: str | None) -> Reply:
        """POST under `/api/v1`, likewise."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.ask("POST", f"/api/v1{path}", body, named)

    async def ended(self, run_id: str) -> Mapping[str, Any]:  # Any: as above
        """The run after its end."""
        async with self.follow(f"/runs/{run_id}/events") as stream:
            async for _ in stream.events():
                pass
        while (run := (await self.get(f"/runs/{run_id}")).json)["is_active"]:
            continue  # it ends by itself a moment later
        return cast("Mapping[str, Any]", run)  # Any: as above

    @asynccontextmanager
    async def follow(self, path: str, **headers: str | None) -> AsyncIterator[Stream]:
        """A stream under `/api/v1`."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.stream("GET", f"/api/v1{path}", None, named) as stream:
            assert stream.status == 200
            yield stream


def _json(body: object) -> bytes:
    return json.dumps(body).encode()
