"""`OpenAIModel`: any server that implements OpenAI's chat completions.

This module holds the exchange: one pool of connections, time limits, lost connections. The content
of requests and answers is in `chat_request`, `chat_response` and `chat_failures`; connections are
in `http_pool`.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, Self

from attrs import evolve
from returns.pipeline import is_successful
from returns.result import Failure, Result, Success

from minions.adapters.daemon_thread import import_in_daemon_thread
from minions.adapters.models.chat_failures import ChatPeer, status_failure
from minions.adapters.models.chat_request import RequestWriter
from minions.adapters.models.chat_response import AnswerReader, PlainAnswer, StreamedAnswer
from minions.adapters.models.endpoints import check_key, is_loopback_url, origin_of
from minions.adapters.models.http_pool import (
    BrokenBodyError,
    HttpPool,
    HttpResponse,
    NoAnswerError,
    needs_certificates,
    proxy_for,
    trusted_certificates,
)
from minions.adapters.models.rate_limit_headers import rate_limits_of
from minions.adapters.models.sent_secrets import MaskedDeltas, SentSecrets
from minions.adapters.models.server_route import (
    ServerRoute,
    client_base_url,
    default_headers,
    openai_itself,
    route_of_client,
    secrets_in,
    with_headers,
)
from minions.contracts.base_url import check_base_url
from minions.contracts.calls import (
    ChatModel,
    DeltaSink,
    ModelCallResponse,
    ModelCapabilities,
    ModelDelta,
    ModelFailure,
    ModelOptions,
    Prompt,
)
from minions.contracts.errors import UsageError
from minions.contracts.model_endpoints import EndpointLimits, ModelEndpoint, RateLimits

if TYPE_CHECKING:
    import ssl

    from openai import AsyncOpenAI

__all__ = ["OpenAIModel"]

_MOST_BYTES: Final = 20 * 1_048_576
"""Bytes of one answer; a larger one is refused."""

_MOST_ERROR_BYTES: Final = 65_536
"""Bytes of the body of an error status; the rest is not read."""


def _utc_now() -> datetime:
    return datetime.now(UTC)


MAX_REQUESTS: Final = 256
"""Default for the requests to one model that may be in flight at the same time."""


def _log_warning(text: str) -> None:
    logging.getLogger("minions.models").warning(text)


class OpenAIModel(ChatModel):
    """One model behind one base URL. Connections are opened at the first call and kept.

    Example:
        `OpenAIModel("qwen3:8b", base_url="http://127.0.0.1:11434/v1")`

    Raises:
        UsageError: `base_url` is not a valid base URL.
        EnvironmentRefusedError: `api_key` is not valid in an HTTP header; or the server is OpenAI
            itself and there is no key.
    """

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        provider: str = "openai",
        capabilities: ModelCapabilities | None = None,
        headers: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = _utc_now,
        max_requests: int = MAX_REQUESTS,
        limits: EndpointLimits | None = None,
        warn: Callable[[str], None] | None = None,
    ) -> None:
        """Configure the model; nothing is opened yet.

        Args:
            model: The server's name of the model.
            base_url: Base URL of any server that implements OpenAI's chat completions; None:
                OpenAI's, or that of the variable OPENAI_BASE_URL, with the key of OPENAI_API_KEY
                where none is given.
            api_key: None: with a `base_url`, no key is sent.
            provider: The server's name in names, messages and metrics.
            headers: Further headers of every request, over those that are sent anyway. Their values
                are shown nowhere.
            max_requests: Requests that may be in flight at the same time, at least 1; others wait.
                Runs count those of all models of the server and key together.
            limits: Further limits of the server, for the runs of a process together.
            warn: Called once when a request has to wait; None: the logger `minions.models`.
        """
        if max_requests < 1:
            raise UsageError(
                f"max_requests={max_requests}: at least one request has to be in flight at a time.",
                code="bad-limit",
            )
        if base_url is None:
            base_url, api_key = openai_itself(model, api_key)
        self._max_requests = max_requests
        self._warn = warn or _log_warning
        self._is_told = False
        """Whether the warning about waiting requests was given."""
        self._peer = ChatPeer(
            provider=provider,
            model=model,
            base_url=check_base_url(base_url, "`base_url`"),
            secret=check_key(api_key, "`api_key`") if api_key else None,
        )
        self._route = ServerRoute(
            url=f"{self._peer.base_url}/chat/completions",
            headers=with_headers(default_headers(self._peer.secret), headers or {}),
        )
        self._peer = evolve(self._peer, other_secrets=secrets_in(headers or {}))
        self._sent = SentSecrets((self._peer.secret, *self._peer.other_secrets))
        own = EndpointLimits(max_concurrency=max_requests)
        self._limits = own if limits is None else own.tightened(limits)
        self._endpoint = self._endpoint_of_route()
        self._capabilities = capabilities or ModelCapabilities()
        self._clock = clock
        self._now = now
        self._requests = RequestWriter(
            provider=provider,
            model=model,
            takes_strict=self._capabilities.takes_strict,
            most_conversations=max_requests,
        )
        self._certificates: ssl.SSLContext | None = None
        self._pools: dict[asyncio.AbstractEventLoop, HttpPool] = {}

    @classmethod
    def from_client(
        cls,
        client: AsyncOpenAI,
        *,
        model: str,
        provider: str = "openai",
        capabilities: ModelCapabilities | None = None,
    ) -> Self:
        """The model behind an SDK client that the application has configured.

        The base URL, the key, the headers and the query of every request (organization and project
        among them) and the time limits are taken over: `timeout` ends a call that has a longer
        `timeout_s`. The client's retries and its own transport are not used: the engine retries,
        and the connections are those of every `OpenAIModel`.

        Args:
            client: Later changes to it have no effect.
            model: The server's name of the model.
            provider: The server's name in names, messages and metrics.
        Raises:
            UsageError: `unknown-client`: it has no plain key (a key function, a workload identity),
                or addresses models in another way, as Azure's does.
            EnvironmentRefusedError: Its key or its headers are not valid in HTTP.
        """
        base_url = client_base_url(client)
        made = cls(
            provider=provider,
            model=model,
            base_url=base_url,
            api_key=client.api_key,
            capabilities=capabilities,
        )
        made._route = route_of_client(client, made._peer.base_url)
        made._peer = evolve(made._peer, other_secrets=secrets_in(made._route.headers))
        made._sent = SentSecrets((made._peer.secret, *made._peer.other_secrets))
        made._endpoint = made._endpoint_of_route()
        return made

    def _endpoint_of_route(self) -> ModelEndpoint:
        # A digest: the key itself shall not stand where endpoints are compared and listed.
        sent = "\n".join(
            f"{name.lower()}: {self._route.headers[name]}" for name in self._route.headers
        )
        digest = hashlib.sha256(sent.encode("utf-8", "surrogatepass")).hexdigest()
        return ModelEndpoint(
            origin=origin_of(self._peer.base_url), account=digest[:16], limits=self._limits
        )

    @property
    def name(self) -> str:
        return self._peer.name

    @property
    def base_url(self) -> str:
        return self._peer.base_url

    @property
    def endpoint(self) -> ModelEndpoint:
        return self._endpoint

    @property
    def capabilities(self) -> ModelCapabilities:
        return self._capabilities

    async def complete(
        self, prompt: Prompt, on_delta: DeltaSink | None = None
    ) -> Result[ModelCallResponse, ModelFailure]:
        """One POST to `chat/completions`. Follows no redirects; cancelling
        closes the connection. Waiting for one of `max_requests` is no time of the model's.
        """
        try:
            content = self._requests.write(prompt, stream=on_delta is not None)
        except (TypeError, ValueError, RecursionError) as error:
            what = f"The request to '{self._peer.name}' cannot be written as JSON: {error}."
            return Failure(ModelFailure(code="bad-request", message=what))
        try:
            pool = self._open_pool()
            if pool.places.locked():
                self._tell_of_waiting()
            async with pool.places:
                return await self._within_time(pool, content, prompt.options, on_delta)
        except NoAnswerError as error:
            return Failure(self._peer.unreachable(str(error)))

    async def aclose(self) -> None:
        """Closes the connections; a later call opens new ones."""
        self._requests.forget()
        pool = self._pools.pop(asyncio.get_running_loop(), None)
        if pool is not None:
            await pool.close()

    async def warm_up(self) -> None:
        """Read the certificates that the first call needs, in a thread."""
        if self._route.url.startswith("https:") and self._certificates is None:
            await import_in_daemon_thread(self._load)

    def _load(self) -> None:
        with contextlib.suppress(NoAnswerError):  # reported by the first call
            self._certificates = trusted_certificates()

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
        if origin_of(url) != origin_of(self._peer.base_url):
            raise ValueError(f"{origin_of(url)} is another server")
        return self._new_pool(url, method="GET")

    def _new_pool(self, url: str | None = None, *, method: str = "POST") -> HttpPool:
        proxy = self._proxy()
        if self._certificates is None and needs_certificates(self._route.url, proxy):
            self._certificates = trusted_certificates()
        return HttpPool(
            url or self._route.url,
            self._route.headers,
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

    async def _within_time(
        self, pool: HttpPool, content: bytes, options: ModelOptions, on_delta: DeltaSink | None
    ) -> Result[ModelCallResponse, ModelFailure]:
        seconds = min(options.timeout_s, self._route.most_s)
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                return await self._exchange(pool, content, options, on_delta)
        except TimeoutError:
            if not limit.expired():
                raise
        option = "timeout_s" if seconds == options.timeout_s else "the client's timeout"
        return Failure(self._peer.timed_out("did not complete its answer within", seconds, option))

    async def _exchange(
        self, pool: HttpPool, content: bytes, options: ModelOptions, on_delta: DeltaSink | None
    ) -> Result[ModelCallResponse, ModelFailure]:
        started = self._clock()
        response = await pool.post(content)
        try:
            return await self._answer(response, started, options, on_delta)
        finally:
            response.close()

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
        options: ModelOptions,
        on_delta: DeltaSink | None,
    ) -> Result[ModelCallResponse, ModelFailure]:
        if not 200 <= response.status < 300:
            return Failure(await self._refusal(response))
        kind = response.headers.get("content-type", "")
        is_plain = on_delta is None or "json" in kind or "html" in kind
        shown = MaskedDeltas(self._sent, on_delta) if on_delta and self._sent else None
        reader: AnswerReader = (
            PlainAnswer(self._peer)
            if is_plain
            else StreamedAnswer(self._peer, self._clock, started)
        )
        outcome = await self._read(response, reader, options, shown or on_delta)
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
        return status_failure(self._peer, response.status, response.headers, body, self._now())

    async def _read(
        self,
        response: HttpResponse,
        reader: AnswerReader,
        options: ModelOptions,
        on_delta: DeltaSink | None,
    ) -> Result[ModelCallResponse, ModelFailure]:
        """Read the body to its end, or until the answer is complete."""
        silence = asyncio.timeout(None)
        broken: str | None = None
        try:
            async with silence:
                watch = _Watch(silence, options.idle_timeout_s)
                await _feed(response, reader, watch, on_delta)
        except TimeoutError:
            if not silence.expired():
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
        result = self._sent.outcome(reader.result(broken))
        if on_delta is not None and isinstance(reader, PlainAnswer) and is_successful(result):
            _show(result.unwrap(), on_delta)
        return result


def _with_limits(
    outcome: Result[ModelCallResponse, ModelFailure], limits: RateLimits
) -> Result[ModelCallResponse, ModelFailure]:
    if is_successful(outcome):
        return Success(evolve(outcome.unwrap(), rate_limits=limits))
    return Failure(evolve(outcome.failure(), rate_limits=limits))


class _TooLargeError(Exception):
    """The answer has more than `_MOST_BYTES` bytes."""


class _Watch:
    """Limits the silence after the first byte; before it, the model may be thinking."""

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
    response: HttpResponse, reader: AnswerReader, watch: _Watch, on_delta: DeltaSink | None
) -> None:
    """Pass the bytes to the reader as they arrive.

    Raises:
        _TooLargeError: Too many.
        BrokenBodyError: They ended before their time.
    """
    size = 0
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
    if response.text is not None:
        on_delta(ModelDelta(content=response.text))
    for index, call in enumerate(response.tool_calls):
        on_delta(ModelDelta(tool_call={"index": index, **call.to_message_dict()}))
