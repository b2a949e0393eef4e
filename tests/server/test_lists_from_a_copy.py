"""Which requests a server reads where the journal reads lists: a copy, if it has one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from asgi_client import Client
from journals import JournalInFront
from minions.contracts.journal.journal import Journal
from minions.contracts.runtime import SystemClock
from minions.engine.services.memory_journal import MemoryJournal
from served import MakeApp

T = TypeVar("T")


class _WithCopy(JournalInFront):
    """A journal whose copy has nothing."""

    async def read_lists(self, read: Callable[[Journal], Awaitable[T]]) -> T:
        return await read(MemoryJournal(SystemClock()))


@pytest.mark.parametrize("path", ["/runs", "/sessions"])
async def test_lists_and_their_numbers_are_read_from_the_copy(make_app: MakeApp, path: str) -> None:
    client = Client(make_app(journal=_WithCopy(MemoryJournal(SystemClock()))))
    run = await client.post("/runs", {"recipe": "adds", "inputs": {"a": 1}})
    assert run.status < 300, run.json
    assert (await client.get(f"/runs/{run.json['run_id']}")).status == 200
    listed = (await client.get(path)).json
    assert (listed[path.strip("/")], listed["total"]) == ([], 0)


async def test_costs_are_read_from_the_copy(make_app: MakeApp) -> None:
    client = Client(make_app(journal=_WithCopy(MemoryJournal(SystemClock()))))
    await client.post("/runs", {"recipe": "adds", "inputs": {"a": 1}})
    assert (await client.get("/costs")).json["groups"] == []
