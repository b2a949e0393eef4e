"""`AnthropicModel`: a model of Anthropic, or of a server that implements its messages API."""

from __future__ import annotations

from typing import Unpack

from minions.adapters.models.anthropic_wire import AnthropicWire
from minions.adapters.models.claude_names import takes_schema
from minions.adapters.models.http_model import HttpModel, HttpModelOptions, peer_of
from minions.adapters.models.server_route import provider_itself
from minions.contracts.calls import ModelCapabilities, OutputMode

__all__ = ["AnthropicModel"]


class AnthropicModel(HttpModel):
    """One model behind Anthropic's messages API.

    Example:
        `AnthropicModel("claude-sonnet-4-5")`, with the key of ANTHROPIC_API_KEY
    """

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        provider: str = "anthropic",
        **options: Unpack[HttpModelOptions],
    ) -> None:
        """Configure the model; nothing is opened yet.

        Args:
            model: The server's name of the model.
            base_url: Base URL of the server, with `/v1`; None: Anthropic's own, with the key of
                ANTHROPIC_API_KEY where none is given.
            api_key: None: with a `base_url`, no key is sent.
            provider: The server's name in names, messages and metrics.
            options: As `HttpModelOptions` lists them.
        """
        if base_url is None:
            base_url, api_key = provider_itself("anthropic", model, api_key)
        capabilities = options.get("capabilities") or ModelCapabilities(
            output_mode=OutputMode.JSON_SCHEMA if takes_schema(model) else OutputMode.TOOLS,
            tools_with_schema=True,
        )
        options["capabilities"] = capabilities
        wire = AnthropicWire(provider=provider, model=model, takes_strict=capabilities.takes_strict)
        super().__init__(wire, peer_of(provider, model, base_url, api_key), **options)
