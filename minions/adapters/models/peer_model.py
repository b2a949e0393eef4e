"""`PeerModel`: what models have in common that ask a server."""

from __future__ import annotations

from minions.adapters.models.chat_failures import ChatPeer
from minions.adapters.models.sent_secrets import SentSecrets
from minions.contracts.calls import ChatModel, ModelCapabilities, OutputParser
from minions.contracts.model_endpoints import ModelEndpoint


class PeerModel(ChatModel):
    """A model behind a server, whose name and secrets are those of its `ChatPeer`."""

    # Slots, as the contract has properties of these names, and each call reads them.
    __slots__ = ("capabilities", "endpoint", "name")
    name: str
    endpoint: ModelEndpoint
    capabilities: ModelCapabilities

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
        self.name = peer.name
        self.endpoint = endpoint
        self.capabilities = capabilities or ModelCapabilities()

    @property
    def output_parser(self) -> OutputParser:
        """Loaded when it is asked for."""
        from minions.adapters.models.structured_output import InstructorParser

        return InstructorParser()
