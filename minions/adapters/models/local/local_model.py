"""`LocalModel`: a model in a GGUF file, asked through the engine that serves it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from attrs import evolve
from returns.pipeline import is_successful
from returns.result import Failure, Result

from minions.adapters.models.cache_rules import LLAMA_CACHE
from minions.adapters.models.local.engines import LocalEngine, Server
from minions.contracts.calls import (
    ChatModel,
    DeltaSink,
    ModelCallResponse,
    ModelCapabilities,
    ModelFailure,
    Prompt,
)
from minions.contracts.model_endpoints import EndpointLimits, ModelEndpoint
from minions.contracts.prompt_caches import PromptCache
from minions.data.errors import UNREACHABLE

MakeClient = Callable[[Server], ChatModel]
"""Makes the model that speaks to a started server."""

_LOST: Final = frozenset({UNREACHABLE, "stream-interrupted"})
"""Codes of calls whose server may have ended."""


class LocalModel(ChatModel):
    """A model whose engine is started at the first call, and again after a crash."""

    def __init__(
        self, engine: LocalEngine, make_client: MakeClient, capabilities: ModelCapabilities
    ) -> None:
        """Nothing is started yet."""
        self._engine = engine
        self._spec = engine.spec
        self._weights = engine.spec.weights
        self._make_client = make_client
        self._capabilities = evolve(capabilities, context_tokens=engine.spec.context_tokens)
        self._client: tuple[Server, ChatModel] | None = None

    @property
    def name(self) -> str:
        return f"local/{self._spec.name}"

    @property
    def base_url(self) -> str:
        """The file of the weights: it tells models of one name apart, and has no price."""
        return self._weights.as_uri()

    @property
    def endpoint(self) -> ModelEndpoint:
        """As many calls at a time as the engine has slots; others wait before their time begins."""
        limits = EndpointLimits(max_concurrency=self._spec.slots)
        return ModelEndpoint(origin=self.name, account=self._spec.digest, limits=limits)

    @property
    def capabilities(self) -> ModelCapabilities:
        return self._capabilities

    @property
    def prompt_cache(self) -> PromptCache:
        return LLAMA_CACHE

    async def warm_up(self) -> None:
        """Starts the engine; what is wrong with it is told by the first call."""
        await self._engine.server()

    async def complete(
        self, prompt: Prompt, on_delta: DeltaSink | None = None
    ) -> Result[ModelCallResponse, ModelFailure]:
        """One request to the engine; one that ended in mid-call is a failure to be retried."""
        server = await self._engine.server()
        if isinstance(server, ModelFailure):
            return Failure(server)
        outcome = await (await self._client_of(server)).complete(prompt, on_delta)
        if is_successful(outcome):
            self._engine.answered()
            return outcome
        failure = outcome.failure()
        if failure.code not in _LOST or not await server.has_ended():
            return outcome
        return Failure(evolve(self._engine.crashed(server), usage=failure.usage))

    async def aclose(self) -> None:
        """Closes the connections; the engine belongs to others as well."""
        client, self._client = self._client, None
        if client is not None:
            await client[1].aclose()

    async def _client_of(self, server: Server) -> ChatModel:
        known = self._client
        if known is not None and known[0] is server:
            return known[1]
        client = self._make_client(server)
        self._client = server, client
        if known is not None:
            await known[1].aclose()
        return client
