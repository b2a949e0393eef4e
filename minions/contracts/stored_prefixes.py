"""`PrefixStorage`: beginnings of prompts that a provider keeps under a name, paid by the hour."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from msgspec import Struct

from minions.contracts.calls import ChatModel, ModelFailure, Prompt

if TYPE_CHECKING:
    from returns.result import Result


class StoredPrefix(Struct, frozen=True, kw_only=True):
    """What the provider says of a beginning that it keeps."""

    name: str
    """Its name at the provider."""
    tokens: int
    """As the provider counted them."""


class PrefixStorage(ABC):
    """Where the provider of one model keeps beginnings of its prompts. It holds no state: whoever
    knows the name of one uses it, in any process with the same key.

    Methods that ask the server return a `ModelFailure` where it did not do what was asked; they
    retry nothing. A failure that is retryable leaves open whether it did.
    """

    lifetime_s: float
    """Seconds for which one is kept, from when it was made or renewed."""
    usd_per_mtok_hour: float
    """What a million tokens cost for an hour, in US dollars."""
    minimum_tokens: int
    """A shorter one is refused."""

    @abstractmethod
    def beginning_of(self, prompt: Prompt) -> bytes | None:
        """What of a prompt can be kept (tools, system texts, context), in the server's form; None:
        nothing, or it is the whole prompt. Equal beginnings are equal bytes.
        """

    @abstractmethod
    async def make(self, beginning: bytes) -> Result[StoredPrefix, ModelFailure]:
        """Keep a beginning for `lifetime_s`. A prompt with its name as `stored_prefix` is then sent
        without it.
        """

    @abstractmethod
    async def renew(self, name: str) -> Result[None, ModelFailure]:
        """Keep it for `lifetime_s` from now on."""

    @abstractmethod
    async def delete(self, name: str) -> Result[None, ModelFailure]:
        """Keep it no longer; one that is not there is no failure."""

    @abstractmethod
    def is_missing(self, failure: ModelFailure) -> bool:
        """Whether a call failed because the server has no such beginning any more."""


class PrefixStoreModel(ChatModel):
    """A model whose provider may keep beginnings of prompts under a name."""

    @property
    @abstractmethod
    def prefix_storage(self) -> PrefixStorage | None:
        """Where it keeps them; None: nowhere, or nobody asked for it."""
