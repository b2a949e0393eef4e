"""Blobs that a stranger's file may bring: what is no JSON, or nested too deep, is told."""

from __future__ import annotations

import pytest

from minions.data.errors import JournalError
from minions.engine.services.memory_journal import MemoryJournal
from minions.engine.views.lookup import json_of_blob
from minions.testing.virtual_time import FakeClock


@pytest.mark.parametrize(
    ("content", "why"),
    [(b"[" * 100_000, "nested too deep"), (b"{", "Expecting"), (b"\xff", "decode")],
    ids=["deep", "cut", "bytes"],
)
async def test_a_blob_that_holds_no_json_is_told_as_damage(content: bytes, why: str) -> None:
    journal = MemoryJournal(FakeClock())
    digest = await journal.put_blob(content)
    with pytest.raises(JournalError, match=why) as caught:
        await json_of_blob(journal, digest)
    assert caught.value.error_code == "corrupt-entry"


async def test_half_a_character_is_kept() -> None:
    journal = MemoryJournal(FakeClock())
    digest = await journal.put_blob('["\ud800"]'.encode("utf-8", "surrogatepass"))
    assert await json_of_blob(journal, digest) == ["\ud800"]
