"""`LiteLLMModel`: the providers of LiteLLM's SDK, which is asked in OpenAI's form.

The package is heavy (seconds to import) and an extra: it is loaded in a thread before the first
call, and by nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import importlib.util
import os
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, Final, Protocol, TypeAlias, cast

from attrs import evolve
from msgspec.json import Encoder
from returns.result import Failure, Result

from minions.adapters.daemon_thread import import_in_daemon_thread
from minions.adapters.models.answer_reader import AnswerReader
from minions.adapters.models.chat_failures import ChatPeer, retry_after_s, status_failure
from minions.adapters.models.chat_request import request_body
from minions.adapters.models.http_model import MAX_REQUESTS, utc_now
from minions.adapters.models.openai import plain_answer, streamed_answer
from minions.adapters.models.peer_model import MaskedDeltas, PeerModel, refused_attachments
from minions.contracts.calls import (
    DeltaSink,
    ModelCallResponse,
    ModelCapabilities,
    ModelFailure,
    ModelOptions,
    Prompt,
    context_exceeded,
)
from minions.contracts.model_endpoints import EndpointLimits, ModelEndpoint
from minions.data.errors import EnvironmentRefusedError, UsageError

PROVIDER: Final = "litellm"
_PACKAGE: Final = "litellm"
_NAME: Final = re.compile(r"[A-Za-z0-9_.@:+-]+(/[A-Za-z0-9_.@:+-]+)+")
_MOST_BYTES: Final = 20 * 1_048_576
"""Bytes of one answer; a larger one is refused."""
_SECRET_ENDS: Final = ("_KEY", "_TOKEN", "_SECRET", "_PASSWORD", "_CREDENTIALS")
_NO_ANSWER: Final = ("Connection error", "Cannot connect to host")
"""How LiteLLM words that nobody answered; its status then says 500."""
_QUIET: Final = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # else it fetches a list of prices when it is imported
    "LITELLM_MODE": "PRODUCTION",  # else it takes variables from a file `.env`
}

AskLiteLLM: TypeAlias = Callable[..., Awaitable[object]]
"""`litellm.acompletion`: an answer, or an async iterator of its pieces."""


class _Document(Protocol):
    """An answer or piece of LiteLLM: a model of pydantic."""

    def model_dump(self) -> Mapping[str, object]:
        """Its members, in OpenAI's form."""


def check_litellm_name(model: str) -> None:
    """Refuse a name that is not `PROVIDER/MODEL`: some providers of LiteLLM take an address for a
    model, and would send it the key.

    Raises:
        UsageError: `bad-model-name`.
    """
    if not _NAME.fullmatch(model) or "//" in model or ":/" in model:
        raise UsageError(
            f"'litellm/{model:.80}' is no model: write litellm/PROVIDER/MODEL, with LiteLLM's own "
            "names, such as litellm/groq/llama-3.3-70b-versatile.",
            code="bad-model-name",
        )


def secrets_of(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Values that LiteLLM may send as keys: it reads the environment itself."""
    return tuple(value for name, value in environ.items() if name.endswith(_SECRET_ENDS))


class LiteLLMModel(PeerModel):
    """A model of one of LiteLLM's providers, with the key that LiteLLM finds in the environment.

    LiteLLM's own retries, and its fetching of price lists, are off; callbacks that an application
    registered with LiteLLM are called.

    Example:
        `LiteLLMModel("groq/llama-3.3-70b-versatile")`

    Raises:
        UsageError: The name is not `PROVIDER/MODEL`.
        EnvironmentRefusedError: `missing-extra`; LiteLLM is not installed.
    """

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        capabilities: ModelCapabilities | None = None,
        secrets: Iterable[str] = (),
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = utc_now,
        max_requests: int = MAX_REQUESTS,
        ask: AskLiteLLM | None = None,
    ) -> None:
        """Nothing is loaded yet.

        Args:
            model: `PROVIDER/MODEL`, as LiteLLM calls them.
            base_url: The provider's address; None: as LiteLLM knows it.
            api_key: None: LiteLLM looks for it in the environment.
            secrets: Further values that no answer or message may show.
            max_requests: Requests that may be in flight at the same time.
            ask: Asks in place of `litellm.acompletion`; None: that.
        """
        check_litellm_name(model)
        if ask is None and importlib.util.find_spec(_PACKAGE) is None:
            raise EnvironmentRefusedError(
                f"The model 'litellm/{model}' needs the package 'litellm', which is not installed. "
                "Type: pip install 'minions-engine[litellm]'. Or run LiteLLM's proxy, and set "
                "base_url under [providers.litellm] in minions.toml.",
                code="missing-extra",
                suggestions=("pip install 'minions-engine[litellm]'",),
            )
        where, _, _ = model.partition("/")
        self._model = model
        self._base_url, self._api_key = base_url, api_key
        peer = ChatPeer(
            provider=PROVIDER,
            model=model,
            base_url=base_url or f"LiteLLM ({where})",
            secret=api_key or "",  # not None: LiteLLM sends a key that it finds
            other_secrets=tuple(secrets),
        )
        endpoint = ModelEndpoint(
            origin=base_url or f"litellm:{where}",
            limits=EndpointLimits(max_concurrency=max_requests),
        )
        super().__init__(peer, endpoint, capabilities)
        self._clock, self._now = clock, now
        self._ask = ask

    @property
    def base_url(self) -> str:
        """The configured address, else a name of LiteLLM's provider: prices are not listed."""
        return self.endpoint.origin

    async def warm_up(self) -> None:
        """Import LiteLLM, in a thread."""
        if self._ask is None:
            self._ask = await import_in_daemon_thread(_load_litellm)

    async def complete(
        self, prompt: Prompt, on_delta: DeltaSink | None = None
    ) -> Result[ModelCallResponse, ModelFailure]:
        """One request; what LiteLLM raises is the failure."""
        options = prompt.options
        if (refused := refused_attachments(prompt, self.capabilities, self._peer)) is not None:
            return Failure(refused)
        try:
            request = self._request(prompt, stream=on_delta is not None)
        except (TypeError, ValueError, RecursionError) as error:
            what = f"The request to '{self.name}' cannot be written as JSON: {error}."
            return Failure(ModelFailure(code="bad-request", message=what))
        await self.warm_up()
        assert self._ask is not None  # noqa: S101  # it was loaded
        try:
            async with asyncio.timeout(options.timeout_s) as limit:
                answer = await self._ask(**request)
                reader = await self._read(answer, prompt, on_delta)
        except TimeoutError:
            if not limit.expired():
                return Failure(self._idle(options))
            what = "did not finish its answer within"
            return Failure(self._peer.timed_out(what, options.timeout_s, "timeout_s"))
        except Exception as error:  # noqa: BLE001  # LiteLLM raises classes of all its providers
            return Failure(self._failure(error, options))
        return self._sent.outcome(reader.result())

    def _idle(self, options: ModelOptions) -> ModelFailure:
        return self._peer.timed_out("sent nothing for", options.idle_timeout_s, "idle_timeout_s")

    def _request(self, prompt: Prompt, *, stream: bool) -> dict[str, Any]:  # Any: arguments
        """The arguments of `acompletion`. Further fields of a recipe go into the body alone: as
        arguments they could lead the key to another address.
        """
        extra = prompt.options.extra
        plain = evolve(prompt, options=evolve(prompt.options, extra={}))
        body = request_body(
            plain,
            provider=PROVIDER,
            model=self._model,
            stream=stream,
            takes_strict=self.capabilities.takes_strict,
        )
        return {
            **body,
            **({"extra_body": dict(extra)} if extra else {}),
            **({"api_base": self._base_url} if self._base_url is not None else {}),
            **({"api_key": self._api_key} if self._api_key is not None else {}),
            "timeout": prompt.options.timeout_s,
            "num_retries": 0,
            "max_retries": 0,
        }

    async def _read(
        self, answer: object, prompt: Prompt, on_delta: DeltaSink | None
    ) -> AnswerReader:
        """The reader of the whole answer; its fragments are passed on."""
        if on_delta is None:
            reader = plain_answer(self._peer, prompt)
            reader.feed(self._encode_document(answer))
            return reader
        reader = streamed_answer(self._peer, prompt, self._clock, self._clock())
        sink = MaskedDeltas(self._sent, on_delta) if self._sent else None
        pieces = cast("AsyncIterator[object]", answer)
        size = 0
        async with contextlib.AsyncExitStack() as stack:
            if (close := getattr(pieces, "aclose", None)) is not None:
                stack.push_async_callback(close)
            while (piece := await _next(pieces, prompt.options.idle_timeout_s)) is not None:
                data = self._encode_document(piece)
                size += len(data)
                if size > _MOST_BYTES:
                    raise _TooLargeError
                for delta in reader.feed(b"data: " + data + b"\n\n"):
                    (sink or on_delta)(delta)
        reader.feed(b"data: [DONE]\n\n")
        if sink is not None:
            sink.flush()
        return reader

    def _encode_document(self, document: object) -> bytes:
        data = _ENCODER.encode(cast("_Document", document).model_dump())
        if len(data) > _MOST_BYTES:
            raise _TooLargeError
        return data

    def _failure(self, error: Exception, options: ModelOptions) -> ModelFailure:
        """What LiteLLM raised as a failure, by the HTTP status that it names."""
        kinds = {each.__name__ for each in type(error).__mro__}
        said = self._peer.clean(str(error))
        if isinstance(error, _TooLargeError):
            return self._peer.too_large(_MOST_BYTES)
        if "Timeout" in kinds or "APITimeoutError" in kinds:
            return self._peer.timed_out("gave no answer within", options.timeout_s, "timeout_s")
        if "ContextWindowExceededError" in kinds:
            return context_exceeded(f"The prompt is longer than '{self.name}' takes: {said}")
        if "ContentPolicyViolationError" in kinds:
            return ModelFailure(code="content-filtered", message=said)
        if "APIConnectionError" in kinds or any(words in str(error) for words in _NO_ANSWER):
            return self._peer.unreachable(str(error))
        status = getattr(error, "status_code", None)
        if not isinstance(status, int) or not 300 <= status < 600:
            return ModelFailure(
                code="model-raised", message=f"LiteLLM raised {type(error).__name__}: {said}"
            )
        headers = _headers_of(error)
        failure = status_failure(self._peer, status, headers, str(error).encode(), self._now())
        return evolve(failure, retry_after_s=retry_after_s(headers, self._now()))


class _TooLargeError(Exception):
    """An answer is larger than is taken."""


_ENCODER: Final = Encoder(enc_hook=str)


async def _next(pieces: AsyncIterator[object], idle_timeout_s: float) -> object | None:
    """The next piece of a stream; None: it has ended.

    Raises:
        TimeoutError: None came in that time.
    """
    async with asyncio.timeout(idle_timeout_s):
        return await anext(pieces, None)


def _headers_of(error: Exception) -> Mapping[str, str]:
    headers = getattr(getattr(error, "response", None), "headers", None)
    if not isinstance(headers, Mapping):
        return {}
    return {str(name).lower(): str(value) for name, value in headers.items()}


def _load_litellm() -> AskLiteLLM:
    """`litellm.acompletion`, of a LiteLLM that fetches nothing and prints no advice."""
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    package = importlib.import_module(_PACKAGE)
    vars(package)["suppress_debug_info"] = True
    ask: AskLiteLLM = package.acompletion
    return ask
