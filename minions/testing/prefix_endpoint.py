"""`PrefixEndpoint`: Gemini's server on 127.0.0.1 with explicit caches (`cachedContents`), as strict
as the real one, and its faults.

    async with PrefixEndpoint(now=clock.now) as server:
        model = GeminiModel("gemini-2.5-flash", base_url=server.base_url, ...)
        ...
    assert len(server.made) == 1 and not server.held

Tokens are counted as a quarter of the characters of all texts. Time passes by the clock that is
handed in.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, TypeAlias
from urllib.parse import urlsplit

from attrs import field, frozen, mutable

from minions.data.json_values import JsonValue, as_object, as_objects
from minions.testing.endpoint import ChatEndpoint
from minions.testing.exchange import Exchange

__all__ = ["HeldPrefix", "PrefixEndpoint", "PrefixFaults"]

_Object: TypeAlias = Mapping[str, JsonValue]
_MADE_OF: Final = frozenset(
    {"model", "displayName", "ttl", "systemInstruction", "tools", "toolConfig", "contents"}
)
_IN_CACHE: Final = ("systemInstruction", "tools", "toolConfig")
_TTL: Final = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)s")


@frozen(kw_only=True)
class PrefixFaults:
    """What goes wrong."""

    refusals: Mapping[str, Sequence[int]] = field(factory=dict)
    """By `make`, `renew`, `delete` and `use`: HTTP statuses of the first requests of that kind, 0
    for one that is carried out and whose answer is lost."""
    vanishes: Callable[[int], bool] = lambda _use: False
    """Whether what is used is gone before the request with that number, from 0, of all uses."""


@mutable(kw_only=True)
class HeldPrefix:
    """One that was made."""

    name: str
    model: str
    tokens: int
    until: datetime
    uses: int = 0
    renewals: int = 0


class _RefusalError(Exception):
    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


class PrefixEndpoint(ChatEndpoint):
    """A server for `async with`."""

    def __init__(
        self,
        *,
        minimum_tokens: int = 1_024,
        say: Callable[[_Object], str] = lambda _body: "done",
        faults: PrefixFaults | None = None,
        on_request: Callable[[str], None] = lambda _kind: None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        port: int = 0,
    ) -> None:
        """Prepare; it listens within `async with`.

        Args:
            minimum_tokens: Fewer are refused.
            say: What the model answers to the body of a request.
            on_request: Called with `make`, `renew`, `delete`, `use` or `plain`, after the request
                was carried out and before it is answered.
            now: The time, as the client knows it.
        """
        super().__init__(default=self._respond, port=port)
        self.held: dict[str, HeldPrefix] = {}
        """What it keeps, by name; what has ended may still be among them."""
        self.made: list[HeldPrefix] = []
        """All that were made."""
        self.counts: Counter[str] = Counter()
        """How many requests of each kind came."""
        self.read_whole = 0
        """Tokens of prompts that were read at the full price, those of `make` included."""
        self.read_cached = 0
        self._minimum_tokens = minimum_tokens
        self._say = say
        self._faults = faults or PrefixFaults()
        self._refusals = self._faults.refusals
        self._on_request = on_request
        self._now = now

    async def _respond(self, exchange: Exchange) -> None:
        kind = self._kind_of(exchange)
        number = self.counts[kind]
        self.counts[kind] += 1
        statuses = self._refusals.get(kind, ())
        fault = statuses[number] if number < len(statuses) else 200
        if fault not in (0, 200):
            await _refuse(exchange, fault, "The fault that was asked for.")
            return
        try:
            found = self._carry_out(kind, exchange)
        except _RefusalError as refusal:
            await _refuse(exchange, refusal.status, str(refusal))
            return
        self._on_request(kind)
        if fault == 0:
            exchange.reset()
            return
        if ":streamGenerateContent" not in exchange.request.path:
            await exchange.send(json.dumps(found).encode())
            return
        await exchange.begin_stream()
        await exchange.send_piece(f"data: {json.dumps(found)}\r\n\r\n".encode())
        await exchange.end_stream()

    def _kind_of(self, exchange: Exchange) -> str:
        request = exchange.request
        if "/cachedContents" in request.path:
            return {"POST": "make", "PATCH": "renew", "DELETE": "delete"}.get(
                request.method, "look"
            )
        return "use" if "cachedContent" in request.body else "plain"

    def _carry_out(self, kind: str, exchange: Exchange) -> JsonValue:
        request = exchange.request
        place = urlsplit(request.path)
        match kind:
            case "make":
                return self._make(request.body)
            case "renew":
                if place.query != "updateMask=ttl" or set(request.body) != {"ttl"}:
                    raise _RefusalError("Only ttl can be updated")
                held = self._find(f"cachedContents/{place.path.rpartition('/')[2]}")
                held.until = self._now() + _duration(request.body["ttl"])
                held.renewals += 1
                return _document(held)
            case "delete":
                self.held.pop(self._find(f"cachedContents/{place.path.rpartition('/')[2]}").name)
                return {}
            case "use" | "plain":
                return self._generate(place.path, request.body)
        raise _RefusalError("Not found", 404)

    def _make(self, body: _Object) -> JsonValue:
        for name in body:
            if name not in _MADE_OF:
                raise _RefusalError(f"Invalid JSON payload received. Unknown name {name!r}")
        model = body.get("model")
        if not isinstance(model, str) or not model.startswith(("models/", "tunedModels/")):
            raise _RefusalError("CachedContent.model: it has the form models/{model}")
        tokens = _tokens({name: body.get(name) for name in (*_IN_CACHE, "contents")})
        if tokens < self._minimum_tokens:
            raise _RefusalError(
                f"Cached content is too small. total_token_count={tokens}, "
                f"min_total_token_count={self._minimum_tokens}"
            )
        name = f"cachedContents/made{len(self.made)}"
        until = self._now() + _duration(body.get("ttl"))
        held = HeldPrefix(name=name, model=model, tokens=tokens, until=until)
        self.held[name] = held
        self.made.append(held)
        self.read_whole += tokens
        return _document(held)

    def _find(self, name: str) -> HeldPrefix:
        held = self.held.get(name)
        if held is None or held.until <= self._now():
            raise _RefusalError("CachedContent not found (or permission denied)", 403)
        return held

    def _generate(self, path: str, body: _Object) -> JsonValue:
        tokens = _tokens({name: body.get(name) for name in (*_IN_CACHE, "contents")})
        stored = 0
        if "cachedContent" in body:
            if any(name in body for name in _IN_CACHE):
                raise _RefusalError(
                    "CachedContent can not be used with GenerateContent request setting "
                    "system_instruction, tools or tool_config."
                )
            name = str(body["cachedContent"])
            if self._faults.vanishes(self.counts["use"] - 1):
                self.held.pop(name, None)
            held = self._find(name)
            if f"/{held.model}:" not in path:
                raise _RefusalError(
                    f"Model used by GenerateContent request and CachedContent ({held.model}) has "
                    "to be the same."
                )
            held.uses += 1
            stored = held.tokens
        if not as_objects(body.get("contents") or []):
            raise _RefusalError("GenerateContentRequest.contents: contents is not specified")
        self.read_whole += tokens
        self.read_cached += stored
        usage: dict[str, JsonValue] = {
            "promptTokenCount": tokens + stored,
            "candidatesTokenCount": 10,
            "totalTokenCount": tokens + stored + 10,
        }
        if stored:
            usage["cachedContentTokenCount"] = stored
        content: JsonValue = {"role": "model", "parts": [{"text": self._say(body)}]}
        return {
            "candidates": [{"content": content, "finishReason": "STOP", "index": 0}],
            "usageMetadata": usage,
            "modelVersion": "fake",
        }


def _tokens(value: JsonValue) -> int:
    return sum(map(len, _texts(value))) // 4


def _texts(value: JsonValue) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _texts(each)
    elif isinstance(value, Sequence):
        for each in value:
            yield from _texts(each)


def _duration(ttl: JsonValue) -> timedelta:
    found = _TTL.fullmatch(ttl) if isinstance(ttl, str) else None
    if found is None:
        raise _RefusalError("ttl: a duration in seconds that ends with 's' is expected")
    return timedelta(seconds=float(found[1]))


def _document(held: HeldPrefix) -> dict[str, JsonValue]:
    return {
        "name": held.name,
        "model": held.model,
        "expireTime": held.until.isoformat(),
        "usageMetadata": {"totalTokenCount": held.tokens},
    }


async def _refuse(exchange: Exchange, status: int, message: str) -> None:
    name = {403: "PERMISSION_DENIED", 404: "NOT_FOUND"}.get(status, "INVALID_ARGUMENT")
    error: JsonValue = {"error": {"code": status, "message": message, "status": name}}
    await exchange.send(json.dumps(as_object(error)).encode(), status=status)
