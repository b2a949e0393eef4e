"""What processes know of a wave of model calls: a text beside the journal, replaced at each step.

A step is recorded before what it says may happen, so whoever finds the record after a crash knows
what may have been sent.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final, Self

import msgspec
from msgspec import Struct

from minions.contracts.budgets import BudgetStore
from minions.contracts.runtime import IsWorkerGone

RECORDS: Final = "minions:wave:"
"""The first part of the keys of records."""
_STALE_S: Final = 1_200.0
"""Seconds after which a process that was about to create a batch counts as dead."""
_KEPT: Final = timedelta(days=30)
"""How long records stay: providers keep answers no longer."""


class WaveState(StrEnum):
    """How far a wave came."""

    PREPARED = "prepared"
    """Its calls are told of it; nothing is sent."""
    CREATING = "creating"
    """The batch is being created, or was, and nobody heard of it."""
    CREATED = "created"
    DROPPED = "dropped"
    """The batch was not created, and never will be."""


class WaveRecord(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is known of a wave."""

    id: str
    """It begins with the time at which the wave was made."""
    state: WaveState
    model: str
    owner: str
    """Who may create the batch; empty: nobody does, and any process may find out what became of it.
    """
    at: datetime
    """When the owner was last heard of."""
    sent_at: datetime | None = None
    """When the creation of the batch began; None: it did not."""
    custom_ids: tuple[str, ...] = ()
    """In the order of the requests."""
    uploaded: str | None = None
    batch_id: str | None = None

    def is_left(self, now: datetime, is_worker_gone: IsWorkerGone) -> bool:
        """Whether nobody creates the batch any more."""
        is_stale = (now - self.at).total_seconds() > _STALE_S
        return not self.owner or is_stale or is_worker_gone(self.owner)


class StoredWave(Struct, eq=False):
    """A record, with the text that is stored of it as far as this process knows."""

    store: BudgetStore
    record: WaveRecord
    text: str | None = None
    """None: nothing is stored."""

    @classmethod
    async def find(cls, store: BudgetStore, wave_id: str) -> Self | None:
        """The record of that wave; None: there is none, or it is of another version."""
        text = await store.get(f"{RECORDS}{wave_id}")
        if text is None:
            return None
        try:
            return cls(store, msgspec.json.decode(text, type=WaveRecord), text)
        except msgspec.DecodeError:
            return None

    async def replace(self, record: WaveRecord) -> bool:
        """Store another record of the wave; whether the stored one was still the known one."""
        text = msgspec.json.encode(record).decode()
        is_stored = await self.store.replace(f"{RECORDS}{record.id}", self.text, text)
        if is_stored:
            self.record, self.text = record, text
        return is_stored


_WATCHES: Final = "minions:wave-watch:"
"""The first part of the keys that say who looks at the batch of a wave."""


class WaveWatch(Struct, frozen=True):
    """Who tells the runs that wait for a wave without being executed."""

    owner: str
    at: datetime
    """When it looked last."""


class StoredWatch(Struct, eq=False):
    """The watch over one wave, as far as this process knows what is stored."""

    store: BudgetStore
    wave_id: str
    text: str | None = None

    async def keep(self, watch: WaveWatch) -> None:
        """Store that this process looks at the wave, whoever did before."""
        text = msgspec.json.encode(watch).decode()
        if not await self.store.replace(f"{_WATCHES}{self.wave_id}", self.text, text):
            known = await self.store.get(f"{_WATCHES}{self.wave_id}")
            if not await self.store.replace(f"{_WATCHES}{self.wave_id}", known, text):
                return  # another process looks at it, too
        self.text = text

    async def end(self) -> None:
        """There is nothing to wait for any more."""
        if self.text is not None:
            self.text = None
            await self.store.remove(f"{_WATCHES}{self.wave_id}")


async def is_watched(
    store: BudgetStore, wave_id: str, now: datetime, is_worker_gone: IsWorkerGone
) -> bool:
    """Whether a process looks at the batch of the wave, which has not ended."""
    text = await store.get(f"{_WATCHES}{wave_id}")
    if text is None:
        return False
    try:
        watch = msgspec.json.decode(text, type=WaveWatch)
    except msgspec.DecodeError:
        return False
    is_stale = (now - watch.at).total_seconds() > _STALE_S
    return not (is_stale or is_worker_gone(watch.owner))


async def remove_old_waves(store: BudgetStore, now: datetime) -> None:
    """Remove records whose answers no provider has any more."""
    oldest = wave_start(now - _KEPT)
    for start in (RECORDS, _WATCHES):
        for key in await store.keys(start):
            if key >= f"{start}{oldest}":
                break
            await store.remove(key)


def wave_start(now: datetime) -> str:
    """How ids of waves begin that are made at that time: ids are in the order of time."""
    return f"{now:%Y%m%d%H%M%S}"
