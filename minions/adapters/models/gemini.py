"""`GeminiModel`: a model of Google's Gemini API."""

from __future__ import annotations

from typing import Unpack

from minions.adapters.models.gemini_wire import GeminiWire
from minions.adapters.models.http_model import HttpModel, HttpModelOptions, peer_of
from minions.adapters.models.server_route import provider_itself

__all__ = ["GeminiModel"]


class GeminiModel(HttpModel):
    """One model behind Gemini's generateContent.

    Example:
        `GeminiModel("gemini-2.5-flash")`, with the key of GEMINI_API_KEY
    """

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        provider: str = "gemini",
        **options: Unpack[HttpModelOptions],
    ) -> None:
        """Configure the model; nothing is opened yet.

        Args:
            model: The server's name of the model.
            base_url: Base URL of the server, with `/v1beta`; None: Google's own, with the key of
                GEMINI_API_KEY where none is given.
            api_key: None: with a `base_url`, no key is sent.
            provider: The server's name in names, messages and metrics.
            options: As `HttpModelOptions` lists them.
        """
        if base_url is None:
            base_url, api_key = provider_itself("gemini", model, api_key)
        wire = GeminiWire(provider=provider, model=model)
        super().__init__(wire, peer_of(provider, model, base_url, api_key), **options)
