"""What the strict servers share: a planned answer, its delivery, and refusals in order."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from attrs import frozen

from minions.adapters.models.http_model import HttpModel
from minions.data.json_values import JsonValue
from minions.testing.endpoint import Behaviour, Exchange, RecordedRequest

__all__ = ["KEY", "Planned", "Refusal", "StrictServer", "allow", "signature_of"]

KEY = "sk-of-the-strict-servers-0123456789"

Json = dict[str, Any]  # Any: requests are looked at without knowing their form


@frozen(kw_only=True)
class Planned:
    """An answer, whatever the wire form."""

    text: str | None = None
    calls: tuple[tuple[str, Mapping[str, JsonValue]], ...] = ()
    thought: str | None = None
    finish: str = "stop"
    """`stop`, `length`, `refusal` or `filtered`."""


@frozen
class Refusal(Exception):  # it is an answer, too
    """The request is wrong."""

    message: str
    status: int = 400


def signature_of(*parts: object) -> str:
    """What the server signs its thoughts with."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:24]


def allow(value: Mapping[str, object], names: Collection[str], place: str) -> None:
    """Refuse members that the API does not know."""
    for name in value:
        if name not in names:
            raise Refusal(f"{place}.{name}: Extra inputs are not permitted")


class StrictServer(ABC):
    """A wire form as its real server checks and answers it."""

    name: ClassVar[str]
    cache_write_tokens: ClassVar[int] = 0
    """What each answer says of the tokens that were stored in the provider's cache."""

    @abstractmethod
    def model(self, base_url: str, model: str | None = None) -> HttpModel:
        """A model behind a server of this form."""

    @abstractmethod
    def check(self, request: RecordedRequest) -> None:
        """Refuse a request that the real server would refuse.

        Raises:
            Refusal: It would.
        """

    @abstractmethod
    def document(self, planned: Planned) -> JsonValue:
        """The plain answer."""

    @abstractmethod
    def events(self, planned: Planned) -> Iterator[JsonValue | str]:
        """The documents of the streamed answer."""

    @abstractmethod
    def error(self, status: int, message: str) -> JsonValue:
        """The body of an error."""

    def wants_stream(self, request: RecordedRequest) -> bool:
        """Whether the answer shall be streamed."""
        return request.wants_stream

    def stream_bytes(self, planned: Planned) -> bytes:
        """The streamed answer as bytes."""
        return b"".join(self.framed(each) for each in self.events(planned))

    def framed(self, document: JsonValue | str) -> bytes:
        """One event; those with a type name it."""
        data = document if isinstance(document, str) else json.dumps(document)
        kind = document.get("type") if isinstance(document, Mapping) else None
        return (f"event: {kind}\n" if kind else "").encode() + f"data: {data}\n\n".encode()

    def answer(self, planned: Planned) -> Behaviour:
        """Check the request, then answer as planned."""

        async def behave(exchange: Exchange) -> None:
            try:
                self.check(exchange.request)
            except Refusal as refusal:
                body = json.dumps(self.error(refusal.status, refusal.message)).encode()
                await exchange.send(body, status=refusal.status)
                return
            if not self.wants_stream(exchange.request):
                await exchange.send(json.dumps(self.document(planned)).encode())
                return
            await exchange.begin_stream()
            for each in self.events(planned):
                await exchange.send_piece(self.framed(each))
            await exchange.end_stream()

        return behave


def bearer(request: RecordedRequest) -> None:
    """Check the key of OpenAI's APIs."""
    if request.headers.get("authorization") != f"Bearer {KEY}":
        raise Refusal("Incorrect API key provided", 401)


def halves(text: str) -> Sequence[str]:
    """The text in two pieces."""
    middle = len(text) // 2
    return [each for each in (text[:middle], text[middle:]) if each]
