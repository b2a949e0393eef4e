"""What every run needs from outside, in one value; defaults are the real clock and this process."""

from __future__ import annotations

import asyncio
import os
import random
import socket
import time
import uuid
from datetime import UTC, datetime

from attrs import field, frozen

from minions.contracts.calls import OutputParser
from minions.contracts.journal import Journal
from minions.contracts.runtime import Clock, Ids, Log, Random, Sleep
from minions.engine.memory_journal import MemoryJournal
from minions.engine.output_parsing import TextOutputParser

__all__ = ["NullLog", "Services", "SystemClock", "worker_name"]


class SystemClock(Clock):
    """The machine's clock."""

    def now(self) -> datetime:
        """UTC."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """`time.monotonic`."""
        return time.monotonic()


class NullLog:
    """Logs nothing: the library's default."""

    def info(self, event: str, /, **facts: object) -> None:
        """Nothing."""

    def warning(self, event: str, /, **facts: object) -> None:
        """Nothing."""


def _random_id(prefix: str) -> str:
    return f"{prefix}_{uuid.uuid4().hex[:16]}"


def worker_name() -> str:
    """`host:pid`, so that a person can see who holds a run."""
    return f"{socket.gethostname()}:{os.getpid()}"


def _new_random() -> Random:
    return random.Random().random  # noqa: S311  # jitter, not secrets


@frozen(kw_only=True)
class Services:
    """Handed to every run; replace a part to make runs repeatable or durable."""

    clock: Clock = field(factory=SystemClock)
    sleep: Sleep = asyncio.sleep
    random: Random = field(factory=_new_random)
    ids: Ids = _random_id
    journal: Journal = field()
    """Default: in memory."""
    parser: OutputParser = field(factory=TextOutputParser)
    log: Log = field(factory=NullLog)
    worker_id: str = field(factory=worker_name)
    lease_ttl_s: float = 60.0

    @journal.default
    def _default(self) -> Journal:
        return MemoryJournal(self.clock)
