"""`Patience`: model calls that may wait for a batch of their provider, and until when."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection
from datetime import datetime
from typing import TYPE_CHECKING, TypeAlias

from attrs import frozen
from msgspec import Struct

from minions.contracts.batch_apis import BatchApi
from minions.contracts.calls import ChatModel, ModelCallResponse, ModelFailure, Prompt
from minions.contracts.journal.facts import (
    BatchCallExpired,
    BatchCallFact,
    BatchCallQueued,
    BatchCallSubmitted,
)

if TYPE_CHECKING:
    from returns.result import Result

RecordBatchCall: TypeAlias = Callable[
    [BatchCallQueued | BatchCallSubmitted | BatchCallExpired], Awaitable[object]
]
"""Stores a fact of a call."""


class LateError(Exception):
    """The call can wait no longer: it is to be made at once."""


class ParkedError(Exception):
    """The answer comes with a wave: the run may end its execution, and is resumed when the answers
    of the wave are there.
    """

    def __init__(self, wave: str) -> None:
        super().__init__(wave)
        self.wave = wave


WakeRuns: TypeAlias = Callable[[Collection[str]], Awaitable[None]]
"""Lets runs that ended their execution for a wave be resumed now, by their ids."""


class PatientCall(Struct, frozen=True, kw_only=True, eq=False):
    """One model call that may wait."""

    run_id: str
    key: str
    step_id: str
    by: datetime
    """When its run is to be done."""
    recorded: BatchCallFact | None
    """The newest fact of the call that earlier executions of the run recorded; None: none did."""
    record: RecordBatchCall
    may_park: bool = False
    """Whether its run may end its execution as long as it waits."""


class PatientCalls(ABC):
    """Gets answers through the batches of providers, for all runs of a process."""

    @abstractmethod
    async def answer(
        self, model: ChatModel, api: BatchApi, prompt: Prompt, call: PatientCall
    ) -> Result[ModelCallResponse, ModelFailure]:
        """The answer to the prompt, when its batch has ended. A call that an earlier process sent
        is not sent again: its answer is awaited.

        Raises:
            LateError: There is no time to wait: the call is to be made at once.
            ParkedError: The answer is not there, and the run may end its execution.
            JournalError: A fact or a record could not be stored.
        """

    @abstractmethod
    def note_live(self, seconds: float) -> None:
        """Note how long a call took that was made alone: it says when others have to be."""

    @abstractmethod
    def note_without_batches(self, model: str) -> None:
        """Note that calls of that model cannot wait, as its provider has no batches."""

    @abstractmethod
    def expect_runs(self, count: int) -> None:
        """Note how many runs there will be, with those that have begun: all are to be in time."""

    @abstractmethod
    def wake_with(self, wake: WakeRuns) -> None:
        """Call `wake` when the answers of a wave are there, with the runs that parked for it."""

    @abstractmethod
    async def has_news(self, run_id: str, waves: Collection[str]) -> bool:
        """Whether a run that parked for these waves is to be resumed: the answers of one are there,
        or no process looks at its batch any more. Nothing is asked of a provider. Where this
        process looks at them, it wakes the run later.
        """

    @abstractmethod
    async def aclose(self) -> None:
        """Stop looking at batches. They continue at the provider: the next process that asks for
        their calls reads the answers.
        """


@frozen(kw_only=True, eq=False, repr=False)
class Patience:
    """That model calls of a run may wait, and until when."""

    calls: PatientCalls
    by: datetime
    """When the run is to be done."""
    is_required: bool = True
    """Whether calls fail whose provider has no batches; else they are made at once."""
