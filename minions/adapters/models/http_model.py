"""`HttpModel`: the exchange with the server of a model, the same for every provider.

One pool of connections, time limits, lost connections, masking of keys, the server's word on its
limits. The content of requests and answers is a `WireForm`'s; connections are in `http_pool`.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, TypedDict

from attrs import evolve
from returns.pipeline import is_successful
from returns.result import Failure, Result, Success

from minions.adapters.daemon_thread import import_in_daemon_thread
from minions.adapters.http.http_pool import (
    ExchangeTimeoutError,
    HttpPool,
    HttpResponse,
    NoAnswerError,
    needs_certificates,
    proxy_for,
    trusted_certificates,
)
from minions.adapters.http.http_response import BrokenBodyError
from minions.adapters.http.request_rules import check_key, origin_of
from minions.adapters.models.answer_reader import AnswerReader, EventAnswer, WireForm
from minions.adapters.models.cache_rules import prompt_cache_of, takes_cache_key
from minions.adapters.models.chat_failures import ChatPeer
from minions.adapters.models.peer_model import MaskedDeltas, PeerModel, refused_attachments
from minions.adapters.models.rate_limit_headers import rate_limits_of
from minions.adapters.models.server_route import (
    ServerRoute,
    default_headers,
    secrets_in,
    with_headers,
)
from minions.contracts.batch_apis import Batchable, BatchApi
from minions.contracts.calls import (
    DeltaSink,
    ModelCallResponse,
    ModelCapabilities,
    ModelDelta,
    ModelFailure,
    ModelOptions,
    Prompt,
)
from minions.contracts.model_endpoints import (
    EndpointLimits,
    ModelEndpoint,
    PromptCacheRules,
    RateLimits,
    check_base_url,
    is_loopback_url,
)
from minions.data.errors import UsageError

if TYPE_CHECKING:
    import ssl

    from minions.adapters.models.llama_slots import LlamaSlots
    from minions.contracts.prompt_caches import PromptCache


_MOST_BYTES: Final = 20 * 1_048_576
"""Bytes of one answer; a larger one is refused."""

_MOST_ERROR_BYTES: Final = 65_536
"""Bytes of the body of an error status; the rest is not read."""


def utc_now() -> datetime:
    """The time of day."""
    return datetime.now(UTC)


MAX_REQUESTS: Final = 256
"""Default for the requests to one model that may be in flight at the same time."""


def _log_warning(text: str) -> None:
    logging.getLogger("minions.models").warning(text)


def check_max_requests(max_requests: int) -> None:
    """Refuse a limit under which no request could be sent.

    Raises:
        UsageError: `bad-limit`.
    """
    if max_requests < 1:
        raise UsageError(
            f"max_requests={max_requests}: at least one request has to be in flight at a time.",
            code="bad-limit",
        )


def peer_of(provider: str, model: str, base_url: str, api_key: str | None) -> ChatPeer:
    """The server of one model.

    Raises:
        UsageError: `base_url` is not a valid base URL.
        EnvironmentRefusedError: `api_key` is not valid in an HTTP header.
    """
    return ChatPeer(
        provider=provider,
        model=model,
        base_url=check_base_url(base_url, "`base_url`"),
        secret=check_key(api_key, "`api_key`") if api_key else None,
    )


class HttpModelOptions(TypedDict, total=False):
    """What every model behind HTTP may be given, whatever its wire form."""

    capabilities: ModelCapabilities | None
    headers: Mapping[str, str] | None
    """Further headers of every request, over those that are sent anyway. Their values are shown
    nowhere."""
    clock: Callable[[], float]
    now: Callable[[], datetime]
    max_requests: int
    """Requests that may be in flight at the same time, at least 1; others wait. Runs count those of
    all models of the server and key together."""
    limits: EndpointLimits | None
    """Further limits of the server, for the runs of a process together."""
    warn: Callable[[str], None] | None
    """Called once when a request has to wait; None: the logger `minions.models`."""
    trace_headers: Callable[[], Mapping[str, str]] | None
    """The headers that join a request to the trace of its run; None: it has none."""


class HttpModel(PeerModel, Batchable):
    """One model behind one base URL. Connections are opened at the first call and kept."""

    def __init__(
        self,
        wire: WireForm,
        peer: ChatPeer,
        *,
        capabilities: ModelCapabilities | None = None,
        headers: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = utc_now,
        max_requests: int = MAX_REQUESTS,
        limits: EndpointLimits | None = None,
        warn: Callable[[str], None] | None = None,
        trace_headers: Callable[[], Mapping[str, str]] | None = None,
    ) -> None:
        """Configure the model; nothing is opened yet. The options are those of `HttpModelOptions`.

        Args:
            wire: The form of requests and answers.
            peer: The server: its name, address and key.
        Raises:
            UsageError: `bad-limit`: no request could be in flight. `no-long-retention`: the server
                cannot keep beginnings of prompts for longer. `no-such-cache`: nor in that way.
            EnvironmentRefusedError: A header is not valid in HTTP.
        """
        check_max_requests(max_requests)
        self._wire = wire
        self._max_requests = max_requests
        self._warn = warn or _log_warning
        self._trace_headers = trace_headers
        self._is_told = False
        """Whether the warning about waiting requests was given."""
        usual = {**default_headers(None), **wire.headers(peer.secret)}
        self._route = ServerRoute(
            url=f"{peer.base_url}{wire.path}", headers=with_headers(usual, headers or {})
        )
        asked = evolve(wire.peer(peer), other_secrets=secrets_in(headers or {}))
        own = EndpointLimits(max_concurrency=max_requests)
        endpoint = ModelEndpoint(
            origin=origin_of(asked.base_url),
            account=account_of(self._route.headers),
            limits=own if limits is None else own.tightened(limits),
        )
        super().__init__(asked, endpoint, capabilities)
        chosen, retention = self.capabilities.prompt_cache, self.capabilities.prompt_cache_retention
        cache = prompt_cache_of(peer.model, peer.base_url, wire.api, chosen, retention)
        self._prompt_cache = cache
        wire.sends_cache_key = takes_cache_key(cache)
        wire.keeps_long = cache is not None and cache.is_long
        self._slots: LlamaSlots | None = None
        if chosen is PromptCacheRules.LLAMA_CPP:
            from minions.adapters.models.llama_slots import LlamaSlots

            self._slots = LlamaSlots(peer.base_url, self.open_get, self._warn)
        self._clock = clock
        self._now = now
        self._certificates: ssl.SSLContext | None = None
        self._pools: dict[asyncio.AbstractEventLoop, HttpPool] = {}
        self._batch_api: BatchApi | None = None

    @property
    def peer(self) -> ChatPeer:
        """The server, which words failures."""
        return self._peer

    @property
    def wire(self) -> WireForm:
        """The form of its requests and answers."""
        return self._wire

    @property
    def base_url(self) -> str:
        return self._peer.base_url

    @property
    def prompt_cache(self) -> PromptCache | None:
        return self._prompt_cache

    async def complete(
        self, prompt: Prompt, on_delta: DeltaSink | None = None
    ) -> Result[ModelCallResponse, ModelFailure]:
        """One POST. Follows no redirects; cancelling closes the connection. Waiting for one of
        `max_requests` is no time of the model's.
        """
        if self._slots is not None and self._slots.chooses_for(prompt):
            return await self._slots.complete(self.complete, prompt, on_delta)
        if (refused := refused_attachments(prompt, self.capabilities, self._peer)) is not None:
            return Failure(refused)
        try:
            content = self._wire.write(prompt, stream=on_delta is not None)
        except (TypeError, ValueError, RecursionError) as error:
            return Failure(self._peer.unwritable(error))
        try:
            pool = self._open_pool()
            places = pool.places
            if places.free:
                places.free -= 1
            else:
                self._tell_of_waiting()
                await places.wait()
            try:
                options = prompt.options
                seconds = min(options.timeout_s, self._route.most_s)
                url = None if on_delta is None else self._stream_url
                joined = None if self._trace_headers is None else self._trace_headers()
                started = self._clock()
                response = await pool.post(content, url, joined, within_s=seconds)
                try:
                    return await self._answer(response, started, prompt, on_delta)
                finally:
                    response.close()
            finally:
                places.give_back()
        except NoAnswerError as error:
            return Failure(self._peer.unreachable(str(error)))
        except ExchangeTimeoutError:
            what = "did not complete its answer within"
            option = "timeout_s" if seconds == options.timeout_s else "the client's timeout"
            return Failure(self._peer.timed_out(what, seconds, option))

    @property
    def batch_api(self) -> BatchApi | None:
        """That of its wire form, whether the server has it or not, unless `takes_batches` says so;
        nothing is asked before it is used.
        """
        if self._batch_api is None and self.capabilities.takes_batches:
            from minions.adapters.models.provider_batches import provider_batches

            self._batch_api = provider_batches(self)
        return self._batch_api

    def write_plain(self, prompt: Prompt) -> Result[bytes, ModelFailure]:
        """The body of a request whose answer is not streamed; or why it cannot be sent."""
        if (refused := refused_attachments(prompt, self.capabilities, self._peer)) is not None:
            return Failure(refused)
        try:
            return Success(self._wire.write(prompt, stream=False))
        except (TypeError, ValueError, RecursionError) as error:
            return Failure(self._peer.unwritable(error))

    def read_plain(self, prompt: Prompt, body: bytes) -> Result[ModelCallResponse, ModelFailure]:
        """The answer with this body, to a request that `write_plain` gave."""
        reader = self._wire.plain_reader(self._peer, prompt)
        reader.feed(body)
        return self._sent.outcome(reader.result())

    def refusal(self, status: int, headers: Mapping[str, str], body: bytes) -> ModelFailure:
        """The failure behind a status other than 2xx."""
        return self._wire.failure(self._peer, status, headers, body, self._now())

    async def aclose(self) -> None:
        """Closes the connections; a later call opens new ones."""
        self._wire.forget()
        pool = self._pools.pop(asyncio.get_running_loop(), None)
        if pool is not None:
            await pool.close()

    async def warm_up(self) -> None:
        """Read the certificates that the first call needs, in a thread."""
        if self._route.is_encrypted and self._certificates is None:
            await import_in_daemon_thread(self._load)

    def _load(self) -> None:
        with contextlib.suppress(NoAnswerError):  # reported by the first call
            self._certificates = trusted_certificates()

    @property
    def _stream_url(self) -> str | None:
        """The URL of streamed requests; None: that of all requests."""
        path = self._wire.stream_path
        return None if path == self._wire.path else f"{self._peer.base_url}{path}"

    def _open_pool(self) -> HttpPool:
        """The pool of this event loop; loops cannot share sockets.

        Raises:
            NoAnswerError: Proxy or certificates cannot be used.
        """
        loop = asyncio.get_running_loop()
        pool = self._pools.get(loop)
        if pool is None:
            self._pools = {own: kept for own, kept in self._pools.items() if not own.is_closed()}
            pool = self._pools[loop] = self._new_pool()
        return pool

    @property
    def server_name(self) -> str:
        """The server's own name of the model."""
        return self._peer.model

    def open_get(self, url: str) -> HttpPool:
        """A pool that asks the same server for `url` by GET, with the headers of every request.

        Raises:
            NoAnswerError: Proxy or certificates cannot be used.
            ValueError: The URL is of another server, which would be sent the key.
        """
        return self.open_other(url, method="GET")

    def open_other(
        self, url: str, *, method: str, headers: Mapping[str, str] | None = None
    ) -> HttpPool:
        """A pool that asks the same server for another URL.

        Args:
            headers: Over those of every request.
        Raises:
            NoAnswerError: Proxy or certificates cannot be used.
            ValueError: The URL is of another server, which would be sent the key.
        """
        if origin_of(url) != origin_of(self._peer.base_url):
            raise ValueError(f"{origin_of(url)} is another server")
        return self._new_pool(url, method=method, headers=headers)

    def _new_pool(
        self,
        url: str | None = None,
        *,
        method: str = "POST",
        headers: Mapping[str, str] | None = None,
    ) -> HttpPool:
        proxy = self._proxy()
        if self._certificates is None and needs_certificates(self._route.url, proxy):
            self._certificates = trusted_certificates()
        sent = self._route.headers
        return HttpPool(
            url or self._route.url,
            sent if headers is None else with_headers(sent, headers),
            connect_s=self._route.connect_s,
            certificates=self._certificates,
            proxy=proxy,
            max_requests=self._max_requests,
            method=method,
        )

    def _proxy(self) -> str | None:
        # A proxy from the environment cannot reach this machine's own servers.
        if is_loopback_url(self._peer.base_url):
            return None
        from urllib.request import getproxies

        return proxy_for(self._peer.base_url, getproxies())

    def _tell_of_waiting(self) -> None:
        if not self._is_told:
            self._is_told = True
            self._warn(
                f"{self._max_requests} requests to '{self.name}' are in flight; further ones wait "
                "for their turn. Raise max_model_requests (of OpenAIModel: max_requests) if the "
                "server takes more."
            )

    async def _answer(
        self,
        response: HttpResponse,
        started: float,
        prompt: Prompt,
        on_delta: DeltaSink | None,
    ) -> Result[ModelCallResponse, ModelFailure]:
        if not 200 <= response.status < 300:
            return Failure(await self._refusal(response))
        kind = response.headers.get("content-type", "")
        is_plain = on_delta is None or "json" in kind or "html" in kind
        shown = MaskedDeltas(self._sent, on_delta) if on_delta and self._sent else None
        reader: AnswerReader = (
            self._wire.plain_reader(self._peer, prompt)
            if is_plain
            else self._wire.stream_reader(self._peer, prompt, self._clock, started)
        )
        if prompt.output_request is not None and isinstance(reader, EventAnswer):
            reader.end_repetition()
        sink = shown or on_delta
        outcome = await self._read(response, reader, prompt.options, sink)
        if is_plain and sink is not None and is_successful(outcome):
            _show(outcome.unwrap(), sink)
        if shown is not None:
            shown.flush()
        limits = rate_limits_of(response.headers, self._now)
        return outcome if limits is None else _with_limits(outcome, limits)

    async def _refusal(self, response: HttpResponse) -> ModelFailure:
        """The failure behind another status than 2xx."""
        body = b""
        try:
            while len(body) < _MOST_ERROR_BYTES and (chunk := await response.read()):
                body += chunk
        except BrokenBodyError as error:
            return self._peer.interrupted(self._peer.clean(str(error)))
        return self._wire.failure(self._peer, response.status, response.headers, body, self._now())

    async def _read(
        self,
        response: HttpResponse,
        reader: AnswerReader,
        options: ModelOptions,
        on_delta: DeltaSink | None,
    ) -> Result[ModelCallResponse, ModelFailure]:
        """Read the body to its end, or until the answer is complete."""
        silence: asyncio.Timeout | None = None
        broken: str | None = None
        try:
            chunk = await response.read()  # before it, the model may be thinking
            if len(chunk) > _MOST_BYTES:
                raise _TooLargeError
            for delta in reader.feed(chunk) if chunk else ():
                if on_delta is not None:
                    on_delta(delta)
            if chunk and not response.is_at_end:
                async with (silence := asyncio.timeout(None)):
                    watch = _Watch(silence, options.idle_timeout_s)
                    await _feed(response, reader, watch, on_delta, len(chunk))
        except TimeoutError:
            if silence is None or not silence.expired():
                raise
            if not reader.is_complete:
                what, seconds = (
                    "stopped sending in the middle of its answer for",
                    options.idle_timeout_s,
                )
                failure = self._peer.timed_out(what, seconds, "idle_timeout_s")
                return Failure(evolve(failure, usage=reader.usage))
        except _TooLargeError:
            return Failure(self._peer.too_large(_MOST_BYTES))
        except BrokenBodyError as error:
            broken = self._peer.clean(str(error))
        return self._sent.outcome(reader.result(broken))


def _with_limits(
    outcome: Result[ModelCallResponse, ModelFailure], limits: RateLimits
) -> Result[ModelCallResponse, ModelFailure]:
    if is_successful(outcome):
        return Success(evolve(outcome.unwrap(), rate_limits=limits))
    return Failure(evolve(outcome.failure(), rate_limits=limits))


class _TooLargeError(Exception):
    """The answer has more than `_MOST_BYTES` bytes."""


class _Watch:
    """Limits the silence after the first byte."""

    def __init__(self, silence: asyncio.Timeout, idle_timeout_s: float) -> None:
        self._silence = silence
        self._idle_timeout_s = idle_timeout_s
        self._now = asyncio.get_running_loop().time
        self._allowed_s = 0.0
        self._soonest = 0.0

    def heard(self, reader: AnswerReader) -> None:
        """Restart the timeout. It is moved in steps: a new timer for each
        fragment would cost too much.
        """
        now, allowed_s = self._now(), reader.longest_silence(self._idle_timeout_s)
        if now >= self._soonest or allowed_s != self._allowed_s:
            step_s = allowed_s / 50
            self._silence.reschedule(now + allowed_s + step_s)
            self._allowed_s, self._soonest = allowed_s, now + step_s


async def _feed(
    response: HttpResponse,
    reader: AnswerReader,
    watch: _Watch,
    on_delta: DeltaSink | None,
    size: int,
) -> None:
    """Pass the bytes behind the first ones to the reader as they arrive.

    Args:
        size: Bytes that it has.
    Raises:
        _TooLargeError: Too many.
        BrokenBodyError: They ended before their time.
    """
    watch.heard(reader)
    while chunk := await response.read():
        if reader.is_done:
            break
        size += len(chunk)
        if size > _MOST_BYTES:
            raise _TooLargeError
        for delta in reader.feed(chunk):
            if on_delta is not None:
                on_delta(delta)
        if not response.is_at_end:
            watch.heard(reader)


def _show(response: ModelCallResponse, on_delta: DeltaSink) -> None:
    """Pass the whole answer on as one fragment, if a server answered a
    streaming request without a stream.
    """
    if response.message.reasoning is not None:
        on_delta(ModelDelta(reasoning=response.message.reasoning))
    if response.text is not None:
        on_delta(ModelDelta(content=response.text))
    for index, call in enumerate(response.tool_calls):
        on_delta(ModelDelta(tool_call={"index": index, **call.to_message_dict()}))


def account_of(headers: Mapping[str, str]) -> str:
    """Of what is sent: the key itself shall not stand where endpoints are compared and listed."""
    sent = "\n".join(f"{name.lower()}: {headers[name]}" for name in headers)
    return hashlib.sha256(sent.encode("utf-8", "surrogatepass")).hexdigest()[:16]
