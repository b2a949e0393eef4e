"""Session files that somebody changed: refused, or taken in and readable, never in between."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator
from functools import cache

from hypothesis import given, settings
from hypothesis import strategies as st

from crash.played import Death, PlayedRun
from minions.data.errors import UsageError
from minions.data.json_values import JsonValue
from minions.engine.run.recorded_run import load_recorded_run
from minions.engine.services.run_services import Services
from minions.engine.sessions.archive import archive_lines, load_archive, read_archive, store_archive
from minions.engine.sessions.store import StepRepository
from minions.engine.views.lookup import list_runs
from minions.engine.views.run_detail import show_run
from older_archives import without_chain

VALUES: tuple[JsonValue, ...] = (
    None,
    True,
    -1,
    7,
    2**70,
    0.5,
    "",
    "x",
    "run_1",
    [],
    [1],
    {},
    {"a": {}},
)


@cache
def _lines(seed: int) -> tuple[str, ...]:
    """Of a random run that died once."""
    played = PlayedRun(seed)
    played.play(Death(at=9))
    session_id = played.entries()[0].session_id
    return tuple(archive_lines(asyncio.run(load_archive(played.journal, session_id))))


def _places(value: JsonValue) -> Iterator[tuple[dict[str, JsonValue] | list[JsonValue], str | int]]:
    """Everything that can be replaced or removed."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield value, key
            yield from _places(inner)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield value, index
            yield from _places(inner)


def _changed(seed: int, chance: random.Random) -> list[bytes]:
    lines = [json.loads(line) for line in _lines(seed)]
    row = chance.choice([line["row"] for line in lines if "row" in line])
    holder, at = chance.choice(list(_places(row["body"])) or [(row, "body")])
    if chance.random() < 0.4:
        del holder[at]
    else:
        holder[at] = chance.choice(VALUES)
    return [f"{json.dumps(line)}\n".encode() for line in lines]


async def _read_everything(services: Services) -> int:
    runs = await list_runs(services.journal)
    for run in runs:
        await show_run(services.journal, run)
        await load_recorded_run(services.journal, run.run_id)
    repository = StepRepository(services)
    for session in await repository.list_sessions():
        await repository.get_steps(session.id)
    return len(runs)


@given(seed=st.integers(0, 60), chance=st.randoms(use_true_random=False))
def test_a_changed_file_is_refused_or_can_be_read(seed: int, chance: random.Random) -> None:
    """A-123."""
    lines = _changed(seed, chance)
    services = Services()

    async def take() -> None:
        try:  # without chains: who knows how to change a file also knows how to chain its rows
            await store_archive(services.journal, read_archive(without_chain(lines)))
        except UsageError:
            return
        assert await _read_everything(services) == 1

    asyncio.run(take())


@given(seed=st.integers(0, 60), chance=st.randoms(use_true_random=False))
@settings(max_examples=50, deadline=None)
def test_a_changed_row_of_a_file_does_not_fit_its_chain(seed: int, chance: random.Random) -> None:
    """A-171."""
    lines = _changed(seed, chance)
    honest = read_archive(line.encode() + b"\n" for line in _lines(seed))
    try:
        read = read_archive(lines)
    except UsageError:
        return
    assert read == honest  # what was put there says the same
