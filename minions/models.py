"""Models in the form of their provider's own API, recorded models, images in messages, redaction.

`minions.OpenAIModel` is for OpenAI's chat completions and all servers that implement them.

Each name is imported when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from minions._lazy import home_of, lazy_names

if TYPE_CHECKING:
    from minions.adapters.models.anthropic import AnthropicModel
    from minions.adapters.models.cassette_models import (
        Cassette,
        CassetteRecorder,
        RecordingModel,
        ReplayModel,
    )
    from minions.adapters.models.gemini import GeminiModel
    from minions.adapters.models.litellm_model import LiteLLMModel
    from minions.adapters.models.responses import ResponsesModel
    from minions.contracts.messages import Attachment, ProviderData, image_of
    from minions.contracts.model_endpoints import ModelApi
    from minions.contracts.redaction import Finding, Redacted, Redactor


__all__ = [
    "AnthropicModel",
    "Attachment",
    "Cassette",
    "CassetteRecorder",
    "Finding",
    "GeminiModel",
    "LiteLLMModel",
    "ModelApi",
    "ProviderData",
    "RecordingModel",
    "Redacted",
    "Redactor",
    "ReplayModel",
    "ResponsesModel",
    "image_of",
]

_HOMES: Final = {
    "minions.adapters.models.anthropic": ("AnthropicModel",),
    "minions.adapters.models.gemini": ("GeminiModel",),
    "minions.adapters.models.litellm_model": ("LiteLLMModel",),
    "minions.adapters.models.cassette_models": (
        "Cassette",
        "CassetteRecorder",
        "RecordingModel",
        "ReplayModel",
    ),
    "minions.adapters.models.responses": ("ResponsesModel",),
    "minions.contracts.messages": ("Attachment", "ProviderData", "image_of"),
    "minions.contracts.model_endpoints": ("ModelApi",),
    "minions.contracts.redaction": ("Finding", "Redacted", "Redactor"),
}
_HOME_OF: Final = home_of(_HOMES)

if not TYPE_CHECKING:  # a checker shall find a misspelled name
    __getattr__, __dir__ = lazy_names(__name__, _HOME_OF)
