"""A connection pooler that gives each transaction any of its connections is refused by name."""

from __future__ import annotations

import asyncio
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from minions.contracts.runtime import SystemClock
from minions.data.errors import JournalError
from minions.services import PostgresJournal
from minions.testing.journal_suite import holding
from postgres import PostgresServer


class _Pooler:
    """Speaks as much of the protocol as a connect, a query and a transaction need."""

    def __init__(self, socket: Path, backends: int) -> None:
        self._socket = socket
        self._free: asyncio.Queue[tuple[StreamReader, StreamWriter]] = asyncio.Queue()
        self._left = backends
        self._greeting = b""

    async def serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        size = await reader.readexactly(4)
        startup = size + await reader.readexactly(int.from_bytes(size) - 4)
        while self._left:
            self._left -= 1
            await self._open(startup)
        writer.write(self._greeting)
        try:
            while await self._transaction(reader, writer):
                pass
        finally:
            writer.close()

    async def aclose(self) -> None:
        while not self._free.empty():
            self._free.get_nowait()[1].close()

    async def _open(self, startup: bytes) -> None:
        server = await asyncio.open_unix_connection(self._socket)
        server[1].write(startup)
        parts = list[bytes]()
        while not parts or parts[-1][:1] != b"Z":
            parts.append(await _message(server[0]))
        key = b"K" + (12).to_bytes(4) + bytes(8)  # no backend's number
        self._greeting = b"".join(key if part[:1] == b"K" else part for part in parts)
        self._free.put_nowait(server)

    async def _transaction(self, reader: StreamReader, writer: StreamWriter) -> bool:
        """Until the server says that no transaction is open; False: the client has left."""
        held: tuple[StreamReader, StreamWriter] | None = None
        while True:
            try:
                asked = await _message(reader)
            except asyncio.IncompleteReadError:
                return False
            if asked[:1] == b"X":
                return False
            held = held or await self._free.get()
            held[1].write(asked)
            if asked[:1] not in b"QS":
                continue
            answer = b""
            while answer[:1] != b"Z":
                answer = await _message(held[0])
                writer.write(answer)
            if answer[-1:] == b"I":
                self._free.put_nowait(held)
                return True


async def _message(reader: StreamReader) -> bytes:
    head = await reader.readexactly(5)
    return head + await reader.readexactly(int.from_bytes(head[1:]) - 4)


@asynccontextmanager
async def pooled(
    server: PostgresServer, url: str, folder: Path, backends: int
) -> AsyncIterator[str]:
    """The URL of the same database behind a pooler with so many connections."""
    name = ".s.PGSQL.5432"
    pooler = _Pooler(server.folder / name, backends)
    async with await asyncio.start_unix_server(pooler.serve, folder / name):
        yield url.replace(str(server.folder), str(folder))
        await pooler.aclose()


async def test_a_pooler_that_gives_a_backend_to_the_next_client_is_refused_at_the_connect(
    postgres: PostgresServer, postgres_url: str, tmp_path: Path
) -> None:
    async with pooled(postgres, postgres_url, tmp_path, 1) as url:
        journal = PostgresJournal(url, SystemClock())
        with pytest.raises(JournalError, match="pool_mode = session") as refused:
            await journal.runs()
        await journal.aclose()
    assert refused.value.error_code == "pooler-mode"


async def test_one_with_another_backend_is_named_when_a_statement_is_missing(
    postgres: PostgresServer, postgres_url: str, tmp_path: Path
) -> None:
    async with pooled(postgres, postgres_url, tmp_path, 3) as url:
        journal = PostgresJournal(url, SystemClock())

        async def store() -> None:
            lease = await journal.acquire("ses_1", "run_1", "w", 60)
            for at in range(9):
                await journal.append(lease, holding({"n": at}, key=f"k{at}"))

        with pytest.raises(JournalError, match="pool_mode = session") as refused:
            await store()
        await journal.aclose()
    assert refused.value.error_code == "pooler-mode"
