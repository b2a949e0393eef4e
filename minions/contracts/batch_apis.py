"""`BatchApi`: a provider's way to answer many requests together, later and at a lower price.

Which calls go there, when, and what happens after a crash is the engine's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from minions.contracts.calls import ChatModel, ModelCallResponse, ModelFailure, Prompt

if TYPE_CHECKING:
    from returns.result import Result


NO_BATCH_API: Final = "no-batch-api"
"""The code of the failure of a request about batches to a server that has none."""


class BatchLimits(Struct, frozen=True, kw_only=True):
    """How much one batch may hold, and how long the provider takes to cancel one."""

    max_requests: int
    max_bytes: int
    """Bytes of all requests of a batch together."""
    cancel_s: float
    """Seconds within which a batch that is cancelled usually ends."""


class BatchRequest(Struct, frozen=True):
    """One request of a batch."""

    custom_id: str
    """Names it among all requests of the account: 1 to 64 letters, digits, `_` and `-`."""
    body: bytes
    """As `BatchApi.write` gives it."""


class BatchStatus(Struct, frozen=True, kw_only=True):
    """What a provider says of a batch."""

    has_ended: bool
    """Whether no further request of it is answered; the answers can be read."""
    problem: str | None = None
    """Why the provider refused the batch as a whole; None: it did not."""
    done: int = 0
    """How many of its requests were answered or refused, as far as the provider says."""
    results: tuple[str, ...] = ()
    """Where the provider has the answers, in its own words."""


class LineEnd(StrEnum):
    """How one request of a batch ended."""

    ANSWERED = "answered"
    """There is a body as of a call that was made alone."""
    REFUSED = "refused"
    """There is an error as of a call that was made alone."""
    EXPIRED = "expired"
    """The batch ended before it was asked."""
    CANCELLED = "cancelled"
    """The batch was cancelled before it was asked."""


class BatchLine(Struct, frozen=True, kw_only=True):
    """The end of one request of a batch."""

    custom_id: str
    end: LineEnd
    body: bytes = b""
    """Of the answer or of the error, as UTF-8 JSON."""
    status: int = 200
    """The HTTP status that a call made alone would have had."""


class BatchApi(ABC):
    """The batch API of one model's server. It holds no state: whoever knows the id of a batch reads
    it, in any process with the same key.

    Methods that ask the server return a `ModelFailure` where it did not do what was asked; they
    retry nothing. A failure that is retryable leaves open whether it did.
    """

    @property
    @abstractmethod
    def limits(self) -> BatchLimits:
        """What one batch may hold."""

    @abstractmethod
    def write(self, prompt: Prompt) -> Result[bytes, ModelFailure]:
        """The body of the request with this prompt; or why it cannot be sent."""

    @abstractmethod
    def read(self, prompt: Prompt, line: BatchLine) -> Result[ModelCallResponse, ModelFailure]:
        """The answer, or the error, of a request that ended as ANSWERED or REFUSED."""

    async def upload(
        self, name: str, requests: Sequence[BatchRequest]
    ) -> Result[str | None, ModelFailure]:
        """Store the requests at the server, where it wants them before the batch is created.
        Nothing is answered and nothing paid for that.

        Returns:
            The server's name of the stored requests; None: they go with `create`.
        """
        from returns.result import Success

        return Success(None)

    @abstractmethod
    async def create(
        self, name: str, requests: Sequence[BatchRequest], uploaded: str | None
    ) -> Result[str, ModelFailure]:
        """Create the batch; returns the server's id of it.

        Args:
            name: Names the batch among all of the account, so that `find` finds it.
            uploaded: What `upload` returned.
        """

    @abstractmethod
    async def find(
        self, name: str, uploaded: str | None, custom_ids: Sequence[str], since: datetime
    ) -> Result[str | None, ModelFailure]:
        """The id of the batch that may have been created under that name; None: there is none.

        Where a server keeps no names it is the batch with the same custom ids. While such a batch
        is not answered, its ids cannot be read: then this fails as retryable.

        Args:
            since: A time before the batch may have been created.
        """

    @abstractmethod
    async def status(self, batch_id: str) -> Result[BatchStatus, ModelFailure]:
        """The present state of the batch."""

    @abstractmethod
    def results(
        self, batch_id: str, status: BatchStatus, custom_ids: Sequence[str]
    ) -> AsyncIterator[Result[BatchLine, ModelFailure]]:
        """How its requests ended, in any order, of a batch that has ended. Requests may be missing.
        A failure is that of reading, and the last.

        Args:
            custom_ids: Those of the batch, in the order in which it was created.
        """

    @abstractmethod
    async def cancel(self, batch_id: str) -> Result[None, ModelFailure]:
        """Ask the server to answer no further request of the batch; it ends soon afterwards. Does
        nothing where it has ended.
        """


class Batchable(ABC):
    """A `ChatModel` whose requests can also be answered in batches."""

    @property
    @abstractmethod
    def batch_api(self) -> BatchApi | None:
        """The batch API of its server; None: it has none."""


def batch_api_of(model: ChatModel) -> BatchApi | None:
    """The batch API of the model's server; None: there is none."""
    return model.batch_api if isinstance(model, Batchable) else None
