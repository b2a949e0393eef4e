"""`--by` and `--patience`: commands whose model calls go through batches."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import pytest
from attrs import frozen

from command_line import Cli, Outcome, Write
from minions import Minions
from minions.app.wiring.patient_runtime import deadline_of
from minions.data.errors import UsageError
from minions.data.json_values import JsonValue
from minions.engine.services.waves import wave_calls
from minions.testing import BatchEndpoint

RECIPE: Final = """
id: letters
inputs: {name: string}
steps:
  - {id: greet, goal: "Greet {{ inputs.name }}"}
output: {text: "{{ greet }}"}
"""
LOOP: Final = """
id: letters
inputs: {names: {type: array, items: {type: string}}}
steps:
  - {id: greet, loop: "{{ inputs.names }}", distribute: true, goal: "Greet {{ loop.item }}"}
output: {count: "{{ greet.successful }}"}
"""
SETTINGS: Final = """
model = "own/m"
[providers.own]
base_url = "%s"
[prices."own/m"]
input_per_mtok = 1000
output_per_mtok = 2000
batch_factor = 0.5
"""
NAMES: Final = ("Ada", "Bo", "Cy", "Di")


@frozen(kw_only=True)
class Place:
    """A folder whose model is at a server with batches."""

    cli: Cli
    write: Write
    server: BatchEndpoint

    def run(self, *words: str) -> Outcome:
        """One command, with its journal in a file."""
        return self.cli(*words, "--db", "j.sqlite")

    @property
    def in_batches(self) -> int:
        """Calls that were answered in batches; none was paid twice."""
        self.server.settle()
        assert set(self.server.paid.values()) <= {1}
        return self.server.paid.total()


@pytest.fixture
def place(cli: Cli, write: Write, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """A server beside the command, in a thread, and waits that take no time."""
    monkeypatch.setattr(wave_calls, "QUIET_S", 0.1)
    monkeypatch.setattr(wave_calls, "FIRST_POLL_S", 0.1)
    server, loop = BatchEndpoint(takes_s=0.1), asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    asyncio.run_coroutine_threadsafe(server.__aenter__(), loop).result()
    write("letters.yaml", RECIPE)
    write("items.jsonl", "".join(f"{json.dumps({'name': name})}\n" for name in NAMES))
    write("minions.toml", SETTINGS % server.base_url)
    try:
        yield Place(cli=cli, write=write, server=server)
    finally:
        asyncio.run_coroutine_threadsafe(server.__aexit__(None, None, None), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def test_a_batch_with_patience_costs_half_to_the_cent_and_says_so(place: Place) -> None:
    """A-177."""
    done = place.run("batch", "letters.yaml", "items.jsonl", "--patience", "24h", "-o", "out.jsonl")
    assert done.code == 0
    assert "own/m: 4 calls in batch batch_0" in done.err
    assert "cost $0.28" in done.err
    lines = [json.loads(line) for line in Path("out.jsonl").read_text("utf-8").splitlines()]
    assert [each["cost_usd"] for each in lines] == [0.07] * 4
    assert place.in_batches == 4
    shown = place.run("sessions", "show", lines[0]["run_id"]).out
    assert "greet: 1 answer in batch batch_0" in shown
    live = place.run("batch", "letters.yaml", "items.jsonl", "--name", "live", "-o", "live.jsonl")
    assert "cost $0.56" in live.err


def test_a_time_that_is_too_near_is_told_and_the_live_price_paid(place: Place) -> None:
    done = place.run("batch", "letters.yaml", "items.jsonl", "--patience", "60s", "-o", "out.jsonl")
    assert done.code == 0
    assert "own/m: calls are made at once from now on" in done.err
    assert "cost $0.56" in done.err
    assert len(place.server.live) == 4
    assert not place.server.batches


def test_evaluations_wait_too(place: Place) -> None:
    cases = ({"name": name, "expected": {"text": "done"}} for name in NAMES)
    place.write("cases.jsonl", "".join(f"{json.dumps(each)}\n" for each in cases))
    done = place.run("eval", "letters.yaml", "cases.jsonl", "--samples", "2", "--patience", "24h")
    assert done.code == 0, done.err
    assert place.in_batches == 8
    assert [len(each.requests) for each in place.server.batches.values()] == [8]


def test_learning_and_tuning_wait_too(place: Place) -> None:
    """A-177: their tests and cases are asked in batches alone."""
    tested = (
        RECIPE
        + """
tests:
  - {name: one, inputs: {name: Ada}, expect: {output: {text: done}}}
  - {name: two, inputs: {name: Bo}, expect: {output: {text: done}}}
"""
    )
    place.write("letters.yaml", tested)
    first = place.run("run", "letters.yaml", "-p", "name=Cy")
    assert first.code == 0, first.err
    listed = json.loads(place.run("sessions", "list", "--json").out)
    run_id = listed[0]["run_id"]
    assert place.run("sessions", "mark", run_id, "good").code == 0
    learnt = place.run("learn", "letters.yaml", "--patience", "24h")
    assert learnt.code == 0, learnt.err
    assert place.in_batches == 4
    more = (*NAMES, "Ed", "Flo", "Gus", "Hal")
    cases = ({"name": name, "expected": {"text": "done"}} for name in more)
    place.write("cases.jsonl", "".join(f"{json.dumps(each)}\n" for each in cases))
    words = ("tune", "letters.yaml", "cases.jsonl", "-m", "own/m", "--over", "model")
    tuned = place.run(*words, "--max-cost", "50", "--patience", "24h")
    assert tuned.code in (0, 1), tuned.err
    assert place.in_batches > 4
    assert len(place.server.live) == 1  # the run that was marked


def test_a_run_waits_here_or_at_a_worker_with_all_items_of_its_loop(place: Place) -> None:
    place.write("loop.yaml", LOOP)
    names = json.dumps(NAMES)
    here = place.run("run", "loop.yaml", "-p", f"names={names}", "--patience", "24h")
    assert here.code == 0, here.err
    assert place.in_batches == 4
    queued = place.run("run", "loop.yaml", "-p", f"names={names}", "--patience", "24h", "--detach")
    assert queued.code == 0, queued.err
    for _ in range(5):  # one that finds nothing to do for a moment ends
        worked = place.run("worker", "--once", "--slots", "10")
        assert worked.code == 0, worked.err
        if place.in_batches == 8:
            break
    assert place.in_batches == 8
    assert not place.server.live
    shown = place.run("sessions", "show", queued.out.strip(), "--json").json
    assert shown["output"] == {"count": 4}


def test_lines_that_are_queued_wait_at_the_worker(place: Place) -> None:
    words = ("batch", "letters.yaml", "items.jsonl", "-o", "out.jsonl", "--patience", "24h")
    assert place.run(*words, "--detach").code == 0
    assert place.run("worker", "--once", "--slots", "10").code == 0
    assert place.in_batches == 4


@pytest.mark.parametrize(
    ("more", "code"),
    [
        (("--no-store",), "without"),
        (("--record", "tape.jsonl"), "cassette"),
        (("--by", "06:00"), "say the same"),
    ],
)
def test_what_does_not_go_with_patience_is_refused(
    place: Place, more: tuple[str, ...], code: str
) -> None:
    done = place.cli("batch", "letters.yaml", "items.jsonl", "--patience", "24h", *more)
    assert done.code == 2
    assert code in done.err or "leave out --no-store" in done.err
    assert not place.server.requests


def test_a_provider_without_batches_is_refused_before_a_line_starts(place: Place) -> None:
    place.write("minions.toml", SETTINGS % place.server.base_url + "[providers.own2]\n")
    text = (SETTINGS % place.server.base_url).replace("base_url", "batches = false\nbase_url", 1)
    place.write("minions.toml", text)
    done = place.run("batch", "letters.yaml", "items.jsonl", "--patience", "24h")
    assert done.code == 4
    assert "no-batch-api" in done.err
    assert not place.server.requests


async def test_an_application_gives_a_batch_a_time(place: Place) -> None:
    from minions import OpenAIModel

    model = OpenAIModel("m", base_url=place.server.base_url, provider="own")
    items: list[dict[str, JsonValue]] = [{"name": name} for name in NAMES]
    by = datetime.now(UTC) + timedelta(hours=20)
    async with Minions(journal="app.sqlite", model=model) as app:
        results = [each async for each in app.batch("letters.yaml", items, by=by)]
    await model.aclose()
    assert [each.output for each in results] == [{"text": "done"}] * 4
    assert place.in_batches == 4


NOW: Final = datetime(2026, 3, 1, 12, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    ("by", "patience", "expected"),
    [
        ("13:00", None, datetime(2026, 3, 1, 13, 0, tzinfo=UTC)),
        ("6:00", None, datetime(2026, 3, 2, 6, 0, tzinfo=UTC)),
        ("12:30", None, datetime(2026, 3, 2, 12, 30, tzinfo=UTC)),
        ("2026-03-04T06:00", None, datetime(2026, 3, 4, 6, 0, tzinfo=UTC)),
        ("2026-03-04T06:00+02:00", None, datetime(2026, 3, 4, 4, 0, tzinfo=UTC)),
        (None, "24h", datetime(2026, 3, 2, 12, 30, tzinfo=UTC)),
        (None, None, None),
    ],
)
def test_a_time_of_day_is_the_next_one(
    by: str | None, patience: str | None, expected: datetime | None
) -> None:
    assert deadline_of(by, patience, NOW) == expected


@pytest.mark.parametrize("by", ["tomorrow", "25:00", "2026-02-01T06:00", "6"])
def test_what_is_no_time_to_come_is_refused(by: str) -> None:
    with pytest.raises(UsageError) as refused:
        deadline_of(by, None, NOW)
    assert refused.value.error_code == "bad-deadline"
