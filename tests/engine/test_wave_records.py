"""The records of waves, and who looks at them."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from msgspec.structs import replace

from minions.adapters.stores.memory_stores import MemoryState
from minions.engine.services.waves.wave_record import (
    StoredWatch,
    StoredWave,
    WaveRecord,
    WaveState,
    WaveWatch,
    is_watched,
)
from minions.testing.virtual_time import FakeClock

NOW = FakeClock().now()
STALE_S = 1_200.0


def record(**more: object) -> WaveRecord:
    made = WaveRecord(id="w", state=WaveState.PREPARED, model="m", owner="me", at=NOW)
    return replace(made, **more)


@pytest.mark.parametrize(
    ("owner", "passed_s", "is_gone", "expected"),
    [
        ("me", 0.0, False, False),
        ("me", STALE_S, False, False),
        ("me", STALE_S + 1, False, True),
        ("me", 0.0, True, True),
        ("", 0.0, False, True),
    ],
)
def test_a_wave_is_left_by_a_process_that_is_gone_late_or_says_so(
    owner: str, passed_s: float, *, is_gone: bool, expected: bool
) -> None:
    now = NOW + timedelta(seconds=passed_s)
    assert record(owner=owner).is_left(now, lambda _: is_gone) is expected


def test_a_record_is_replaced_by_who_knows_it() -> None:
    """A-177: of two processes that take a wave over, one does."""

    async def work() -> None:
        store = MemoryState()
        assert await StoredWave.find(store, "w") is None
        mine = StoredWave(store, record())
        assert await mine.replace(record())
        assert not await StoredWave(store, record()).replace(record(owner="other"))
        theirs = await StoredWave.find(store, "w")
        assert theirs is not None
        assert theirs.record == record()
        assert await theirs.replace(record(owner="other"))
        assert not await mine.replace(record(state=WaveState.CREATING))
        assert mine.record == record()
        found = await StoredWave.find(store, "w")
        assert found is not None
        assert found.record.owner == "other"

    asyncio.run(work())


def test_a_watch_that_could_not_be_stored_is_not_ended_by_who_tried() -> None:
    class Busy(MemoryState):
        """A store in which somebody else is always faster."""

        async def replace(self, key: str, known: str | None, text: str) -> bool:
            return False

    async def work() -> None:
        store = Busy()
        watch = StoredWatch(store, "w")
        await watch.keep(WaveWatch("me", NOW))
        assert watch.text is None

    asyncio.run(work())


def test_a_record_of_another_version_is_none() -> None:
    async def work() -> None:
        store = MemoryState()
        assert await store.replace("minions:wave:w", None, "{}")
        assert await StoredWave.find(store, "w") is None

    asyncio.run(work())


def test_a_watch_lasts_as_long_as_its_process() -> None:
    async def work() -> None:
        store = MemoryState()

        async def watched(passed_s: float = 0.0, *, is_gone: bool = False) -> bool:
            now = NOW + timedelta(seconds=passed_s)
            return await is_watched(store, "w", now, lambda _: is_gone)

        watch = StoredWatch(store, "w")
        assert not await watched()
        await watch.keep(WaveWatch("me", NOW))
        assert await watched()
        assert await watched(STALE_S)
        assert not await watched(STALE_S + 1)
        assert not await watched(is_gone=True)
        await watch.keep(WaveWatch("me", NOW + timedelta(seconds=STALE_S)))
        assert await watched(STALE_S + 1)
        other = StoredWatch(store, "w")
        await other.end()
        assert await watched()
        await other.keep(WaveWatch("other", NOW))
        assert '"other"' in (await store.get("minions:wave-watch:w") or "")
        await watch.keep(WaveWatch("me", NOW + timedelta(seconds=1)))
        assert '"me"' in (await store.get("minions:wave-watch:w") or "")
        await watch.keep(WaveWatch("me", NOW + timedelta(seconds=2)))
        assert '"me"' in (await store.get("minions:wave-watch:w") or "")
        assert await watched()
        await watch.end()
        await watch.end()
        assert not await watched()
        assert await store.replace("minions:wave-watch:w", None, "{}")
        assert not await watched()

    asyncio.run(work())
