"""`OpenAIModel`: any server that implements OpenAI's chat completions.

The exchange is in `http_model`, the content of requests in `chat_request`; answers are read here.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Self

from attrs import evolve
from returns.result import Failure, Result, Success

from minions.adapters.models.answer_assembly import (
    AnswerAssembly,
    MalformedAnswerError,
    usual_response,
)
from minions.adapters.models.answer_reader import AnswerReader, EventAnswer, WireForm
from minions.adapters.models.cache_rules import cache_key_of
from minions.adapters.models.chat_failures import ChatPeer, error_failure
from minions.adapters.models.chat_request import RequestWriter
from minions.adapters.models.chat_shapes import read_completion, read_piece
from minions.adapters.models.http_model import (
    MAX_REQUESTS,
    HttpModel,
    account_of,
    check_max_requests,
    peer_of,
    utc_now,
)
from minions.adapters.models.peer_model import SentSecrets
from minions.adapters.models.server_route import (
    openai_itself,
    route_of_client,
    sdk_client,
    secrets_in,
)
from minions.contracts.calls import (
    ModelCallResponse,
    ModelCapabilities,
    ModelDelta,
    ModelFailure,
    Prompt,
)
from minions.contracts.messages import CUT_AT_LIMIT, TokenUsage
from minions.contracts.model_endpoints import EndpointLimits, ModelApi
from minions.data.json_values import json_type

if TYPE_CHECKING:
    from instructor import Instructor
    from openai import AsyncOpenAI, OpenAI

    from minions.adapters.models.answer_confidence import Token


class OpenAIModel(HttpModel):
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
        now: Callable[[], datetime] = utc_now,
        max_requests: int = MAX_REQUESTS,
        limits: EndpointLimits | None = None,
        warn: Callable[[str], None] | None = None,
        trace_headers: Callable[[], Mapping[str, str]] | None = None,
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
            trace_headers: Gives the headers that join a request to the trace of its run.
        """
        check_max_requests(max_requests)
        if base_url is None:
            base_url, api_key = openai_itself(model, api_key)
        wire = ChatWire(
            provider=provider,
            model=model,
            takes_strict=capabilities is None or capabilities.takes_strict,
            most_conversations=max_requests,
        )
        super().__init__(
            wire,
            peer_of(provider, model, base_url, api_key),
            capabilities=capabilities,
            headers=headers,
            clock=clock,
            now=now,
            max_requests=max_requests,
            limits=limits,
            warn=warn,
            trace_headers=trace_headers,
        )

    @classmethod
    def from_client(
        cls,
        client: AsyncOpenAI | OpenAI | Instructor,
        *,
        model: str,
        provider: str = "openai",
        capabilities: ModelCapabilities | None = None,
    ) -> Self:
        """The model behind an SDK client that the application has configured.

        The base URL, the key, the headers and the query of every request (organization and project
        among them) and the time limits are taken over: `timeout` ends a call that has a longer
        `timeout_s`. The client's retries and its own transport are not used: the engine retries,
        and the connections are those of every `OpenAIModel`. Neither is what `instructor` does
        around it: how an output is asked for and checked is the engine's.

        Args:
            client: Of the SDK, or of `instructor` around one. Later changes to it have no effect.
            model: The server's name of the model.
            provider: The server's name in names, messages and metrics.
        Raises:
            UsageError: `unknown-client`: it has no plain key (a key function, a workload identity),
                or addresses models in another way, as those for Azure and Bedrock do.
            EnvironmentRefusedError: Its key or its headers are not valid in HTTP.
        """
        configured = sdk_client(client)
        made = cls(
            provider=provider,
            model=model,
            base_url=str(configured.base_url),
            api_key=configured.api_key,
            capabilities=capabilities,
        )
        made._route = route_of_client(configured, made._peer.base_url)
        made._peer = evolve(made._peer, other_secrets=secrets_in(made._route.headers))
        made._sent = SentSecrets((made._peer.secret, *made._peer.other_secrets))
        made.endpoint = evolve(made.endpoint, account=account_of(made._route.headers))
        return made


# --- `ChatWire` ----------------------------------------------------------------------------------


class ChatWire(WireForm):
    """The form of OpenAI's chat completions."""

    api: ClassVar[ModelApi] = ModelApi.CHAT

    def __init__(
        self, *, provider: str, model: str, takes_strict: bool, most_conversations: int
    ) -> None:
        """Requests to one model; the arguments are those of `RequestWriter`."""
        self._requests = RequestWriter(
            provider=provider,
            model=model,
            takes_strict=takes_strict,
            most_conversations=most_conversations,
        )

    @property
    def path(self) -> str:
        return "/chat/completions"

    def write(self, prompt: Prompt, *, stream: bool) -> bytes:
        has_key = self.sends_cache_key and "prompt_cache_key" not in prompt.options.extra
        cache_key = cache_key_of(prompt) if has_key else None
        return self._requests.write(
            prompt, stream=stream, cache_key=cache_key, keeps_long=self.keeps_long
        )

    def plain_reader(self, peer: ChatPeer, prompt: Prompt) -> AnswerReader:
        return plain_answer(peer, prompt)

    def stream_reader(
        self, peer: ChatPeer, prompt: Prompt, clock: Callable[[], float], started: float
    ) -> AnswerReader:
        return streamed_answer(peer, prompt, clock, started)

    def forget(self) -> None:
        self._requests.forget()


def plain_answer(peer: ChatPeer, prompt: Prompt) -> AnswerReader:
    """Reads the answer to the prompt that is one JSON document."""
    return _JudgedPlain(peer) if prompt.is_judged else PlainAnswer(peer)


def streamed_answer(
    peer: ChatPeer, prompt: Prompt, clock: Callable[[], float], started: float
) -> EventAnswer:
    """Reads the answer to the prompt that comes as events; the clock times its first fragment."""
    kind = _JudgedStream if prompt.is_judged else StreamedAnswer
    return kind(peer, clock, started)


class PlainAnswer(AnswerReader):
    """Reads an answer that is one JSON document."""

    def __init__(self, peer: ChatPeer) -> None:
        self._peer = peer
        self._chunks: list[bytes] = []

    @property
    def body(self) -> bytes:
        """All bytes so far."""
        return b"".join(self._chunks)

    def feed(self, chunk: bytes) -> Sequence[ModelDelta]:
        """Buffers the bytes; there is nothing to show before the end."""
        self._chunks.append(chunk)
        return ()

    def result(self, broken: str | None = None) -> Result[ModelCallResponse, ModelFailure]:
        if broken is not None:
            return Failure(self._peer.interrupted(broken))
        body = self.body
        completion = read_completion(body)
        if (
            completion is not None
            and (response := usual_response(completion, self._peer)) is not None
        ):
            return Success(response)
        assembly = AnswerAssembly()
        try:
            document: object = json.loads(body)
            if not isinstance(document, dict):
                raise MalformedAnswerError(f"it is a JSON {json_type(document)}")
            assembly.take_frame(document)
            if document.get("error"):
                failure = error_failure(self._peer, document["error"])
                return Failure(evolve(failure, usage=assembly.usage))
            assembly.take_message(document)
            return assembly.result(self._peer)
        except MalformedAnswerError as error:
            what = str(error)
        except (ValueError, RecursionError):
            what = "it is not JSON"
        failure = self._peer.malformed(what, body.decode("utf-8", errors="replace"))
        return Failure(evolve(failure, usage=assembly.usage))


class StreamedAnswer(EventAnswer):
    """Reads an answer of server-sent events, each a JSON document with a fragment."""

    def __init__(self, peer: ChatPeer, clock: Callable[[], float], started: float) -> None:
        super().__init__(peer, clock, started)
        self._assembly = AnswerAssembly()

    @property
    def usage(self) -> TokenUsage:
        return self._assembly.usage

    @property
    def finish_reason(self) -> str | None:
        return self._assembly.finish_reason

    def cut(self) -> None:
        self._assembly.finish_reason = CUT_AT_LIMIT

    def take_event(self, event: bytes) -> Sequence[ModelDelta]:
        if not self.is_done and (piece := read_piece(event)) is not None:
            try:
                return self._assembly.take_ordinary(piece)
            except MalformedAnswerError as error:
                self.stop(self._peer.malformed(str(error), event.decode("utf-8", "replace")))
                return ()
        return super().take_event(event)

    def take_document(self, document: Mapping[str, object]) -> Sequence[ModelDelta]:
        if document.get("error"):
            self._assembly.take_frame(document)
            self.stop(error_failure(self._peer, document["error"]))
            return ()
        return self._assembly.take_piece(document)

    def assembled(
        self, first_token_latency_ms: float | None
    ) -> Result[ModelCallResponse, ModelFailure]:
        return self._assembly.result(self._peer, first_token_latency_ms)


# --- with how sure the model was ----------------------------------------------------------------


class _JudgedPlain(PlainAnswer):
    """Reads an answer with the probabilities of its tokens."""

    def result(self, broken: str | None = None) -> Result[ModelCallResponse, ModelFailure]:
        from minions.adapters.models.answer_confidence import tokens_of

        return super().result(broken).map(partial(_with_confidence, tokens=tokens_of(self.body)))


class _JudgedStream(StreamedAnswer):
    """Reads a stream whose pieces have the probabilities of their tokens."""

    def __init__(self, peer: ChatPeer, clock: Callable[[], float], started: float) -> None:
        super().__init__(peer, clock, started)
        self._tokens: list[Token] = []

    def take_event(self, event: bytes) -> Sequence[ModelDelta]:
        from minions.adapters.models.answer_confidence import MOST_HELD, tokens_of

        if not self.is_done and b'"logprobs"' in event and len(self._tokens) < MOST_HELD:
            self._tokens += tokens_of(event)
        return super().take_event(event)

    def assembled(
        self, first_token_latency_ms: float | None
    ) -> Result[ModelCallResponse, ModelFailure]:
        found = super().assembled(first_token_latency_ms)
        return found.map(partial(_with_confidence, tokens=self._tokens))


def _with_confidence(response: ModelCallResponse, tokens: Sequence[Token]) -> ModelCallResponse:
    from minions.adapters.models.answer_confidence import confidence_of

    return evolve(response, confidence=confidence_of(response.text, tokens))
