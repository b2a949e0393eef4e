"""`ResponsesModel`: a model of OpenAI, or of a server that implements its responses API."""

from __future__ import annotations

from typing import Unpack

from minions.adapters.models.http_model import HttpModel, HttpModelOptions, peer_of
from minions.adapters.models.responses_wire import ResponsesWire
from minions.adapters.models.server_route import openai_itself
from minions.contracts.calls import ModelCapabilities

__all__ = ["ResponsesModel"]


class ResponsesModel(HttpModel):
    """One model behind OpenAI's responses API. Nothing is stored there.

    Example:
        `ResponsesModel("gpt-5-mini")`, with the key of OPENAI_API_KEY
    """

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        provider: str = "openai",
        **options: Unpack[HttpModelOptions],
    ) -> None:
        """Configure the model; nothing is opened yet.

        Args:
            model: The server's name of the model.
            base_url: Base URL of the server; None: OpenAI's, or that of OPENAI_BASE_URL, with the
                key of OPENAI_API_KEY where none is given.
            api_key: None: with a `base_url`, no key is sent.
            provider: The server's name in names, messages and metrics.
            options: As `HttpModelOptions` lists them.
        """
        if base_url is None:
            base_url, api_key = openai_itself(model, api_key)
        capabilities = options.get("capabilities") or ModelCapabilities(tools_with_schema=True)
        options["capabilities"] = capabilities
        wire = ResponsesWire(provider=provider, model=model, takes_strict=capabilities.takes_strict)
        super().__init__(wire, peer_of(provider, model, base_url, api_key), **options)
