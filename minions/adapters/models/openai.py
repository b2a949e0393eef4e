"""`OpenAIModel`: any server that implements OpenAI's chat completions.

The exchange is in `http_model`; the content of requests and answers in `chat_wire`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, ClassVar, Self

from attrs import evolve

from minions.adapters.models.answer_reader import AnswerReader, WireForm
from minions.adapters.models.chat_failures import ChatPeer
from minions.adapters.models.chat_request import RequestWriter
from minions.adapters.models.chat_response import PlainAnswer, StreamedAnswer
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
from minions.contracts.calls import ModelCapabilities, Prompt
from minions.contracts.model_endpoints import EndpointLimits, ModelApi

if TYPE_CHECKING:
    from instructor import Instructor
    from openai import AsyncOpenAI, OpenAI


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
        return self._requests.write(prompt, stream=stream)

    def plain_reader(self, peer: ChatPeer, prompt: Prompt) -> AnswerReader:
        return PlainAnswer(peer)

    def stream_reader(
        self, peer: ChatPeer, prompt: Prompt, clock: Callable[[], float], started: float
    ) -> AnswerReader:
        return StreamedAnswer(peer, clock, started)

    def forget(self) -> None:
        self._requests.forget()
