"""`OpenAIModel`: any server that speaks OpenAI's chat completions, through the `openai` SDK.

Here is the HTTP: one client, time limits, what was lost on the way. What a request says and
what an answer means is in `chat_request`, `chat_response` and `chat_failures`.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, cast

from returns.pipeline import is_successful
from returns.result import Failure, Result

from minions.adapters.chat_failures import ChatPeer, status_failure
from minions.adapters.chat_request import encode_body, request_body
from minions.adapters.chat_response import AnswerReader, PlainAnswer, StreamedAnswer
from minions.adapters.daemon_thread import run_in_daemon_thread
from minions.adapters.model_endpoints import check_key, is_loopback_url
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

if TYPE_CHECKING:
    import httpx2
    from openai import APIConnectionError, AsyncOpenAI

__all__ = ["OpenAIModel"]

_MOST_BYTES: Final = 20 * 1_048_576
"""Of one answer; more is refused."""

_MOST_ERROR_BYTES: Final = 65_536
"""Of the body behind an error status; the rest is not read."""

_CONNECT_S: Final = 10.0
_MOST_CONNECTIONS: Final = 256
_KEPT_CONNECTIONS: Final = 64
_KEPT_S: Final = 15.0


def _load_sdk() -> None:
    import httpx2  # noqa: F401  # loaded here so that the first call need not
    from openai import AsyncOpenAI

    AsyncOpenAI(api_key="none").chat  # noqa: B018  # imports the module behind it


def _utc_now() -> datetime:
    return datetime.now(UTC)


class OpenAIModel(ChatModel):
    """One model behind one base URL. The client is made at the first call and kept.

    Raises:
        UsageError: `base_url` is no base URL.
        EnvironmentRefusedError: No HTTP header can carry `api_key`.
    """

    def __init__(
        self,
        *,
        provider: str,
        model: str,
        base_url: str,
        api_key: str | None,
        capabilities: ModelCapabilities | None = None,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = _utc_now,
    ) -> None:
        self._peer = ChatPeer(
            provider=provider,
            model=model,
            base_url=check_base_url(base_url, "`base_url`"),
            secret=check_key(api_key, "`api_key`") if api_key else None,
        )
        self._capabilities = capabilities or ModelCapabilities()
        self._clock = clock
        self._now = now
        self._client: AsyncOpenAI | None = None
        self._client_loop: asyncio.AbstractEventLoop | None = None

    @property
    def name(self) -> str:
        """`provider/model`."""
        return self._peer.name

    @property
    def capabilities(self) -> ModelCapabilities:
        """As given."""
        return self._capabilities

    async def complete(
        self, prompt: Prompt, on_delta: DeltaSink | None = None
    ) -> Result[ModelCallResponse, ModelFailure]:
        """One POST to `chat/completions`. Follows no redirect; cancelling closes the connection."""
        peer, options = self._peer, prompt.options
        body = request_body(
            prompt, provider=peer.provider, model=peer.model, stream=on_delta is not None
        )
        try:
            content = encode_body(body)
        except (TypeError, ValueError, RecursionError) as error:
            what = f"The request to '{peer.name}' cannot be written as JSON: {error}."
            return Failure(ModelFailure(code="bad-request", message=what))
        client = self._open_client()
        limit = asyncio.timeout(options.timeout_s)
        try:
            async with limit:
                return await self._exchange(client, content, options, on_delta)
        except TimeoutError:
            if not limit.expired():
                raise
        what = "gave no whole answer within"
        return Failure(peer.timed_out(what, options.timeout_s, "timeout_s"))

    async def aclose(self) -> None:
        """Closes the connections. A later call opens new ones."""
        client, self._client = self._client, None
        # The sockets of a loop that has ended went with it, and cannot be closed on another.
        if client is not None and self._client_loop is asyncio.get_running_loop():
            await client.close()

    async def warm_up(self) -> None:
        """Import the SDK and what its first request pulls in: about a second, in a thread."""
        await run_in_daemon_thread(_load_sdk)

    def _open_client(self) -> AsyncOpenAI:
        """The client; a new one where another event loop runs now, which cannot share sockets."""
        loop = asyncio.get_running_loop()
        if self._client is None or self._client_loop is not loop:
            self._client = _new_client(self._peer.base_url, self._peer.secret)
            self._client_loop = loop
        return self._client

    async def _exchange(
        self, client: AsyncOpenAI, content: bytes, options: ModelOptions, on_delta: DeltaSink | None
    ) -> Result[ModelCallResponse, ModelFailure]:
        import httpx2
        from openai import APIConnectionError, APIStatusError

        started = self._clock()
        try:
            response = await _post(client, content, has_key=self._peer.secret is not None)
        except APIStatusError as error:
            return Failure(self._status_failure(error.response))
        except APIConnectionError as error:
            return Failure(self._peer.unreachable(_cause(error)))
        except httpx2.HTTPError as error:  # while the SDK read the body behind an error status
            return Failure(self._peer.interrupted(self._peer.clean(str(error))))
        try:
            kind = response.headers.get("content-type", "")
            if on_delta is None or "json" in kind or "html" in kind:
                return await self._read(response, PlainAnswer(self._peer), options, on_delta)
            reader = StreamedAnswer(self._peer, self._clock, started)
            return await self._read(response, reader, options, on_delta)
        finally:
            await response.aclose()

    def _status_failure(self, response: httpx2.Response) -> ModelFailure:
        return status_failure(
            self._peer, response.status_code, response.headers, response.content, self._now()
        )

    async def _read(
        self,
        response: httpx2.Response,
        reader: AnswerReader,
        options: ModelOptions,
        on_delta: DeltaSink | None,
    ) -> Result[ModelCallResponse, ModelFailure]:
        """The body, to its end or until the answer is known."""
        import httpx2

        silence = asyncio.timeout(None)
        broken: str | None = None
        try:
            async with silence:
                if not await _feed(response, reader, silence, options.idle_timeout_s, on_delta):
                    return Failure(self._peer.too_large(_MOST_BYTES))
        except TimeoutError:
            if not silence.expired():
                raise
            if not reader.is_complete:
                what, seconds = "fell silent in mid-answer for", options.idle_timeout_s
                return Failure(self._peer.timed_out(what, seconds, "idle_timeout_s"))
        except (httpx2.HTTPError, httpx2.StreamError) as error:
            broken = self._peer.clean(str(error) or type(error).__name__)
        result = reader.result(broken)
        if on_delta is not None and isinstance(reader, PlainAnswer) and is_successful(result):
            _show(result.unwrap(), on_delta)
        return result


async def _feed(
    response: httpx2.Response,
    reader: AnswerReader,
    silence: asyncio.Timeout,
    idle_timeout_s: float,
    on_delta: DeltaSink | None,
) -> bool:
    """Bytes to the reader; False when there are too many.

    The silence is counted from the first byte on: before it, the model may be thinking.
    """
    loop = asyncio.get_running_loop()
    size = 0
    async with contextlib.aclosing(_chunks(response)) as chunks:
        async for chunk in chunks:
            if reader.is_done:
                break
            size += len(chunk)
            if size > _MOST_BYTES:
                return False
            for delta in reader.feed(chunk):
                if on_delta is not None:
                    on_delta(delta)
            silence.reschedule(loop.time() + reader.longest_silence(idle_timeout_s))
    return True


async def _chunks(response: httpx2.Response) -> AsyncGenerator[bytes, None]:
    async for chunk in response.aiter_bytes():
        yield chunk


def _show(response: ModelCallResponse, on_delta: DeltaSink) -> None:
    """The whole answer at once, where a server answered a streaming request without a stream."""
    if response.text is not None:
        on_delta(ModelDelta(content=response.text))
    for index, call in enumerate(response.tool_calls):
        on_delta(ModelDelta(tool_call={"index": index, **call.to_message_dict()}))


# --- the SDK ---------------------------------------------------------------------------------


def _new_client(base_url: str, api_key: str | None) -> AsyncOpenAI:
    import httpx2
    from openai import AsyncOpenAI, Omit

    class Client(AsyncOpenAI):
        """The SDK's client without what it adds from the surroundings.

        OPENAI_ORG_ID, OPENAI_PROJECT_ID and OPENAI_CUSTOM_HEADERS are meant for OpenAI; here
        they would go to whichever server a recipe names.
        """

        @property
        def default_headers(self) -> dict[str, str | Omit]:
            return {
                "Accept": "application/json, text/event-stream",
                "Accept-Encoding": "identity",
                "Content-Type": "application/json",
                "User-Agent": self.user_agent,
            }

    http_client = httpx2.AsyncClient(
        # The prompt would follow a redirect to any host, and the key to some.
        follow_redirects=False,
        # Waiting for an answer is limited per call; here only the way to the server is.
        timeout=httpx2.Timeout(None, connect=_CONNECT_S),
        limits=httpx2.Limits(
            max_connections=_MOST_CONNECTIONS,
            max_keepalive_connections=_KEPT_CONNECTIONS,
            keepalive_expiry=_KEPT_S,
        ),
        # A proxy from the environment cannot reach this machine's own servers.
        trust_env=not is_loopback_url(base_url),
        # Reading the certificates takes 30 ms; plain HTTP gets a context that trusts nobody.
        verify=base_url.startswith("https:") or ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
        event_hooks={"response": [_shorten_error]},
    )
    return Client(
        api_key=api_key or "none", base_url=base_url, max_retries=0, http_client=http_client
    )


async def _post(client: AsyncOpenAI, content: bytes, *, has_key: bool) -> httpx2.Response:
    """The response with its body unread."""
    import httpx2
    from openai import AsyncStream, Omit

    headers: Mapping[str, str | Omit] = {} if has_key else {"Authorization": Omit()}
    response = await client.post(
        "/chat/completions",
        content=content,
        cast_to=httpx2.Response,
        options={"headers": headers},
        stream=True,
        stream_cls=AsyncStream[object],
    )
    return cast("httpx2.Response", response)  # what `cast_to` makes of every stream


async def _shorten_error(response: httpx2.Response) -> None:
    """Let no error body grow beyond what is shown of it: the SDK reads it to its end."""
    import httpx2

    if response.is_success:
        return
    whole = cast("httpx2.AsyncByteStream", response.stream)  # the client is an async one

    class Head(httpx2.AsyncByteStream):
        """The first bytes of a body."""

        async def __aiter__(self) -> AsyncIterator[bytes]:
            size = 0
            async for chunk in whole:
                yield chunk
                size += len(chunk)
                if size >= _MOST_ERROR_BYTES:
                    return

        async def aclose(self) -> None:
            await whole.aclose()

    response.stream = Head()


def _cause(error: APIConnectionError) -> str:
    """What happened to the connection."""
    import httpx2

    cause = error.__cause__
    if isinstance(cause, httpx2.ConnectTimeout):
        return f"no connection within {_CONNECT_S:g} s"
    if isinstance(cause, httpx2.LocalProtocolError):
        return "the request could not be written"  # its text may quote the headers
    if isinstance(cause, httpx2.RemoteProtocolError | httpx2.ReadError):
        return f"the connection was closed before an answer came ({cause})"
    return str(cause) or type(cause).__name__
