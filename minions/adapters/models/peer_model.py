"""`PeerModel`: what models have in common that ask a server."""

from __future__ import annotations

from minions.adapters.models.chat_failures import ChatPeer
from minions.adapters.models.sent_secrets import SentSecrets
from minions.contracts.calls import ChatModel, ModelCapabilities, OutputParser
from minions.contracts.model_endpoints import ModelEndpoint


class PeerModel(ChatModel):
    """A model behind a server, whose name and secrets are those of its `ChatPeer`."""

    def __init__(
        self, peer: ChatPeer, endpoint: ModelEndpoint, capabilities: ModelCapabilities | None
    ) -> None:
        """Name the server.

        Args:
            endpoint: What counts its requests.
            capabilities: None: those of any model.
        """
        self._peer = peer
        self._sent = SentSecrets((peer.secret, *peer.other_secrets))
        self._endpoint = endpoint
        self._capabilities = capabilities or ModelCapabilities()

    @property
    def name(self) -> str:
        return self._peer.name

    @property
    def endpoint(self) -> ModelEndpoint:
        return self._endpoint

    @property
    def capabilities(self) -> ModelCapabilities:
        return self._capabilities

    @property
    def output_parser(self) -> OutputParser:
        """Loaded when it is asked for."""
        from minions.adapters.models.structured_output import InstructorParser

        return InstructorParser()
