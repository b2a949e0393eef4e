"""A run's events as a stream of another protocol, whose events are JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Final, Protocol

from minions.contracts.runtime import BlockingCalls
from minions.data.json_values import JsonValue
from minions.engine.services.event_loop import beside
from minions.interfaces.http.http_answers import (
    EVENT_STREAM,
    AsgiApp,
    Message,
    Receive,
    Scope,
    Send,
    json_bytes,
)
from minions.interfaces.server.live.channels import HEARTBEAT
from minions.interfaces.server.live.openai_answers import cut_in, events_in

ForeignEvent = dict[str, JsonValue]
"""An event of the other protocol."""
_LONG: Final = 16_384
"""Bytes of events that are translated at once."""


class EventTranslation(Protocol):
    """Translates the events of one run."""

    is_over: bool
    """Whether the end of the run was translated."""

    def begin(self) -> Iterable[ForeignEvent]:
        """What the stream begins with."""

    def take(self, event: Mapping[str, JsonValue]) -> Iterable[ForeignEvent]:
        """What an event means."""

    def fail(self, code: str, message: str) -> Iterable[ForeignEvent]:
        """The end of a stream that ends before its run does."""


class TranslatedStream:
    """Sends the events of a run as those of another protocol."""

    def __init__(
        self,
        stream: AsgiApp,
        events: EventTranslation,
        *,
        threads: BlockingCalls,
        headers: Mapping[str, str],
    ) -> None:
        """Nothing is sent yet.

        Args:
            stream: Sends the events of the run, as its followers get them.
            threads: Translate large events.
            headers: Of the answer.
        """
        self._stream = stream
        self._events = events
        self._threads = threads
        self._headers = headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the whole answer."""
        events, threads = self._events, self._threads

        def translated(body: bytes) -> bytes:
            found = chain.from_iterable(map(events.take, events_in(body)))
            return b"".join(map(_frame, found))

        async def translate(message: Message) -> None:
            if message["type"] == "http.response.start":
                named = {"content-type": EVENT_STREAM, "x-accel-buffering": "no", **self._headers}
                headers = [(name.encode(), text.encode("latin-1")) for name, text in named.items()]
                await send({**message, "headers": headers})
                body, has_more = b"".join(map(_frame, events.begin())), True
            else:
                given: bytes = message["body"]
                body = await beside(threads, len(given) > _LONG, lambda: translated(given))
                has_more = message.get("more_body", False)
                if not has_more and not events.is_over:
                    cut = cut_in(given)
                    words = f"The stream ends before its run does{cut.words}."
                    body += b"".join(map(_frame, events.fail(cut.code, words)))
                elif not body and HEARTBEAT.data in given:
                    body = HEARTBEAT.data
            if body or not has_more:
                await send({"type": "http.response.body", "body": body, "more_body": has_more})

        await self._stream(scope, receive, translate)


def _frame(event: ForeignEvent) -> bytes:
    return b"data: " + json_bytes(event) + b"\n\n"
