"""How often a worker looks for what any worker of its database may do."""

from __future__ import annotations

from pathlib import Path

import pytest

from minions.adapters.dispatch.local_dispatch import LocalDispatch
from minions.engine.services.memory_journal import MemoryJournal
from timed_world import World


@pytest.mark.parametrize(("living", "looks"), [(1, 9), (8, 9), (16, 6), (1_000, 2)])
def test_many_workers_look_as_often_as_eight_and_each_once_a_minute_at_least(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, living: int, looks: int
) -> None:
    """Here for sessions that are too old; by chance up to a quarter sooner, as all are here."""
    seen: list[str] = []
    sessions = MemoryJournal.sessions

    async def counted(journal: MemoryJournal, *args: object, **named: object) -> object:
        seen.append("look")
        return await sessions(journal, *args, **named)  # type: ignore[arg-type]  # as it was called

    monkeypatch.setattr(MemoryJournal, "sessions", counted)
    monkeypatch.setattr(LocalDispatch, "living_workers", living)
    world = World(folder=tmp_path)
    world.time.run(world.work(95))
    assert len(seen) == looks
