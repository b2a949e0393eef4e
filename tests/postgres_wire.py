"""A journal on PostgreSQL whose connection can be cut at any message."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest
from attrs import field, mutable

from minions.adapters.stores.postgres_journal import PostgresJournal
from minions.testing.virtual_time import FakeClock

__all__ = ["Wire", "wire", "wired"]


@mutable
class Wire:
    """Between a journal and its server; it can be cut at any message."""

    server: str
    """Of the server's socket."""
    cuts_requests: int = 0
    """That many writes of the client from now on do not arrive, and end the connection."""
    cuts_answers: int = 0
    """That many answers from now on do not arrive, and end the connection."""
    spares_between: int = 0
    """How many pass between two that are cut."""
    connections: int = 0
    _spared: int = 0
    _writers: list[asyncio.StreamWriter] = field(factory=list)
    _tasks: set[asyncio.Task[None]] = field(factory=set)

    async def connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            far_reader, far_writer = await asyncio.open_unix_connection(self.server)
        except OSError:  # the server is gone; asyncio before 3.11.3 would keep the client
            writer.close()
            return
        self._writers += [writer, far_writer]
        for name, source, target in (
            ("cuts_requests", reader, far_writer),
            ("cuts_answers", far_reader, writer),
        ):
            task = asyncio.create_task(self._carry(name, source, target, (writer, far_writer)))
            self._tasks.add(task)

    async def _carry(
        self,
        name: str,
        source: asyncio.StreamReader,
        target: asyncio.StreamWriter,
        ends: tuple[asyncio.StreamWriter, ...],
    ) -> None:
        while data := await source.read(65_536):
            if left := getattr(self, name):
                if self._spared == 0:
                    setattr(self, name, left - 1)
                    self._spared = self.spares_between
                    break
                self._spared -= 1
            target.write(data)
        for end in ends:
            end.close()

    async def close(self) -> None:
        for writer in self._writers:
            writer.close()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@pytest.fixture
async def wire(postgres_url: str, tmp_path: Path) -> AsyncIterator[Wire]:
    made = Wire(f"{postgres_url.partition('host=')[2]}/.s.PGSQL.5432")
    server = await asyncio.start_unix_server(made.connect, tmp_path / ".s.PGSQL.5432")
    yield made
    server.close()
    await made.close()


@pytest.fixture
async def wired(postgres_url: str, wire: Wire, tmp_path: Path) -> AsyncIterator[PostgresJournal]:
    """A journal at the other end of the wire."""
    address = f"{postgres_url.partition('?')[0]}?host={tmp_path}"
    clock = FakeClock()
    async with aclosing(PostgresJournal(address, clock, sleep=clock.sleep)) as made:
        yield made
