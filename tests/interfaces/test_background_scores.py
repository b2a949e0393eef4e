"""Servers and workers score sampled runs beside them: bounded, and each run once over a fleet."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from datetime import timedelta
from pathlib import Path

import pytest
from attrs import evolve, field, mutable

from minions.adapters.models.scripted import ScriptedModel
from minions.adapters.stores.memory_stores import MemoryState
from minions.adapters.telemetry.prometheus import text_of
from minions.app.evaluating.background_scores import (
    LOOK_AT_RUNS_S,
    LiveScores,
    StoredWatch,
    stored_watches,
    watch_gauges,
)
from minions.app.evaluating.live_scores import Watch, WatchedScorer, WatchReport
from minions.app.settings.settings import Settings
from minions.app.wiring.configured_runtime import Runtime, make_runtime
from minions.contracts.calls import ModelCallResponse
from minions.contracts.journal.facts import ScoreRecorded
from minions.contracts.journal.start_note import Offer, StartNote
from minions.contracts.messages import Message, TokenUsage
from minions.contracts.waiting import RunWait
from minions.data.codec import encode
from minions.data.errors import JournalError
from minions.data.json_values import dumps
from minions.engine.compile.extensions import Extensions
from minions.engine.services.memory_journal import MemoryJournal
from minions.engine.services.run_services import NullLog, Services
from minions.interfaces.worker.worker import WorkerRuntime
from minions.recipe.model import AgentRecipe
from minions.testing.virtual_time import FakeClock

RECIPE = """
id: echo
inputs: {text: string}
watch: %s
steps: [{id: a, set: {text: "{{ inputs.text }}"}}]
output: "{{ a.text }}"
"""
GOOD = "{sample: 1, window: 10, scorers: [{holds: \"output != 'bad'\"}]}"
GRADED = "{sample: 1, max_tokens_per_day: 30, scorers: [{graded: Good., model: scripted/own}]}"


def grade() -> ModelCallResponse:
    said = Message(role="assistant", content='{"reason": "good", "grade": 0.9}')
    return ModelCallResponse(message=said, usage=TokenUsage(input_tokens=10, output_tokens=5))


@mutable
class Fleet:
    """Processes of one database."""

    folder: Path
    clock: FakeClock = field(factory=FakeClock)
    state: MemoryState = field(factory=MemoryState)
    told: list[RunWait] = field(factory=list)
    gone: set[str] = field(factory=set)
    services: Services = field(init=False)
    recipe: AgentRecipe = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.services = Services(journal=MemoryJournal(self.clock), clock=self.clock)
        self.judge(GOOD)

    def judge(self, watch: str) -> None:
        path = self.folder / "echo.yaml"
        path.write_text(RECIPE % watch, "utf-8")
        self.recipe = self.runtime("reader").recipes.get(str(path))

    def runtime(self, name: str) -> Runtime:
        def is_gone(worker_id: str) -> bool:
            return worker_id in self.gone

        model = ScriptedModel(lambda _prompt: grade(), name="scripted/own")
        return make_runtime(
            Settings(no_store=True),
            Extensions(models={"scripted/own": model}),
            environ={},
            folder_of=lambda _: self.folder,
            log=NullLog(),
            services=evolve(self.services, worker_id=name, is_worker_gone=is_gone),
        )

    def member(self, name: str = "one") -> LiveScores:
        async def tell(wait: RunWait) -> None:
            self.told.append(wait)

        runtime = WorkerRuntime(Settings(no_store=True), self.runtime(name), name=name, folder=None)
        return LiveScores(runtime, self.state, NullLog(), tell)

    async def run(self, *texts: str, told: Sequence[LiveScores] = ()) -> None:
        executor = self.runtime("executor").executor(self.recipe)
        for text in texts:
            await executor.prepare(self.recipe, {"text": text}).execute()
            for member in told:
                member.run_ended(self.recipe, {}, None)

    async def scores(self) -> list[ScoreRecorded]:
        rows = await self.services.journal.entries(kinds={"score"})
        return [row.fact for row in rows if isinstance(row.fact, ScoreRecorded)]

    async def found(self) -> StoredWatch:
        (watch,) = await stored_watches(self.state, self.clock.now())
        return watch

    def later(self, seconds: float = LOOK_AT_RUNS_S) -> None:
        self.clock.advance(seconds)


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return Fleet(tmp_path)


class NoState(MemoryState):
    """A state that must not be asked."""

    async def get(self, key: str) -> str | None:
        raise AssertionError(key)

    async def keys(self, start: str = "") -> Sequence[str]:
        raise AssertionError(start)


async def test_runs_are_scored_at_the_next_look_and_not_before(fleet: Fleet) -> None:
    member = fleet.member()
    await fleet.run("good", "bad", told=[member])
    assert await fleet.scores() == []
    assert await member.look() == 2
    assert sorted(each.is_passed for each in await fleet.scores()) == [False, True]
    report = (await fleet.found()).report
    assert report is not None
    (scorer,) = report.scorers
    assert (scorer.scored, scorer.recent and scorer.recent.value) == (2, 0.5)


async def test_what_was_not_looked_at_for_a_week_is_shown_no_more(fleet: Fleet) -> None:
    member = fleet.member()
    await fleet.run("good", told=[member])
    await member.look()
    fleet.later(7 * 86_400 - 1)
    assert (await fleet.found()).recipe == "echo"
    fleet.later(1)
    assert await stored_watches(fleet.state, fleet.clock.now()) == []


async def test_without_a_watch_nothing_is_read(fleet: Fleet) -> None:
    fleet.state = NoState()
    member = fleet.member()
    plain = evolve(fleet.recipe, watch=None)
    member.run_ended(plain, {}, None)
    assert await member.look() == 0


async def test_a_look_is_for_runs_that_ended_here_and_then_nothing_is_read(fleet: Fleet) -> None:
    member = fleet.member()
    await fleet.run("good", told=[member])
    assert await member.look() == 1
    member._state = NoState()
    fleet.later()
    assert await member.look() == 0


async def test_one_member_of_a_fleet_scores_a_run(fleet: Fleet) -> None:
    members = [fleet.member(f"m{number}") for number in range(3)]
    await fleet.run(*["good"] * 6, told=members)
    found = await asyncio.gather(*(each.look() for each in members))
    assert sum(found) == len(await fleet.scores()) == 6
    for each in members:
        assert await each.look() == 0
    fleet.later()
    for each in members:
        assert await each.look() == 0
    assert len(await fleet.scores()) == 6


async def test_a_score_is_written_once_also_by_two_that_score_at_once(fleet: Fleet) -> None:
    await fleet.run("good", "bad", "good")
    watches = [Watch(fleet.runtime(name), fleet.recipe) for name in ("a", "b")]
    one, other = await asyncio.gather(*(each.report() for each in watches))
    assert one.new + other.new == len(await fleet.scores()) == 3


async def test_the_look_of_a_dead_process_is_taken_over(fleet: Fleet) -> None:
    dead, living = fleet.member("dead"), fleet.member("living")
    await fleet.run("good", told=[dead, living])
    looked = dead._runtime.shared.services.journal

    async def stop(*_args: object, **_more: object) -> Collection[object]:
        raise asyncio.CancelledError

    before, looked.runs = looked.runs, stop  # type: ignore[method-assign,assignment]  # it dies
    with pytest.raises(asyncio.CancelledError):
        await dead.look()
    looked.runs = before  # type: ignore[method-assign]
    fleet.later()
    assert await living.look() == 0
    fleet.gone.add("dead")
    fleet.later()
    assert await living.look() == 1


async def test_a_living_process_has_its_time_and_no_more(fleet: Fleet) -> None:
    one, other = fleet.member("one"), fleet.member("other")
    await fleet.run("good", told=[other])
    now = fleet.clock.now()
    begun = StoredWatch(
        recipe="echo", looked_at=now, worker="one", until=now + timedelta(seconds=100)
    )
    one.run_ended(fleet.recipe, {}, None)
    assert await one.look() == 1
    (key,) = await fleet.state.keys()
    await fleet.state.put(key, dumps(encode(begun)))
    await fleet.run("good")
    fleet.later(99)
    assert await other.look() == 0
    fleet.later(1)
    assert await other.look() == 0  # it looks again 30 s after its last try
    fleet.later(29)
    assert await other.look() == 1


async def test_processes_look_at_intervals_together(fleet: Fleet) -> None:
    one, other = fleet.member("one"), fleet.member("other")
    await fleet.run("good", told=[one])
    assert await one.look() == 1
    await fleet.run("good", told=[other])
    fleet.later(LOOK_AT_RUNS_S - 1)
    assert await other.look() == 0
    fleet.later(1)
    other.run_ended(fleet.recipe, {}, None)
    assert await other.look() == 1


async def test_whoever_comes_second_leaves_the_look(fleet: Fleet) -> None:
    class Busy(MemoryState):
        async def replace(self, key: str, known: str | None, text: str) -> bool:
            return False

    member = fleet.member()
    await fleet.run("good", told=[member])
    member._state = Busy()
    assert await member.look() == 0
    assert await fleet.scores() == []


async def test_a_look_that_failed_is_tried_again(fleet: Fleet) -> None:
    class Lost(MemoryState):
        async def get(self, key: str) -> str | None:
            raise JournalError("gone", code="store-unavailable")

    member = fleet.member()
    await fleet.run("good", told=[member])
    member._state = Lost()
    with pytest.raises(JournalError):
        await member.look()
    member._state = fleet.state
    assert await member.look() == 1


async def test_a_look_is_bounded_and_the_next_goes_on(fleet: Fleet) -> None:
    member = fleet.member()
    await fleet.run(*["good"] * 60, told=[member])
    assert await member.look() == 50
    assert await member.look() == 0
    fleet.later()
    assert await member.look() == 10


async def test_the_bound_of_a_day_holds_for_all_members_together(fleet: Fleet) -> None:
    fleet.judge(GRADED)
    one, other = fleet.member("one"), fleet.member("other")
    await fleet.run("a", "b", "c", told=[one, other])
    assert await one.look() == 2
    await fleet.run("d", told=[other])
    fleet.later()
    assert await other.look() == 0
    assert [each.input_tokens + each.output_tokens for each in await fleet.scores()] == [15, 15]
    fleet.later(24 * 3600)
    assert await other.look() == 2


async def test_an_alarm_is_told_once_and_again_after_it_was_over(fleet: Fleet) -> None:
    one, other = fleet.member("one"), fleet.member("other")
    for text, is_alarm, told in (
        *(("good", False, 0), ("bad", True, 1), ("bad", True, 1)),
        *(("good", False, 1), ("bad", True, 2)),
    ):
        await fleet.run(*[text] * 10, told=[one, other])
        fleet.later()
        await one.look()
        await other.look()
        assert bool((await fleet.found()).alarms) is is_alarm
        assert len(fleet.told) == told
    first, second = fleet.told
    assert first.id != second.id
    assert first.to_json()["type"] == "watch.alarm"
    assert first.alarm is not None
    assert first.alarm["alarm"] is True
    assert first.run_id == first.alarm["run"]


async def test_a_recipe_that_its_caller_brought_judges_nothing(fleet: Fleet) -> None:
    fleet.state = NoState()
    member = fleet.member()
    offer = Offer(way="http", brings_recipe=True)
    member.run_ended(fleet.recipe, offer.to_note(), None)
    member.run_ended(fleet.recipe, {"eval": "e"}, None)
    assert await member.look() == 0


# --- one report -----------------------------------------------------------------------------------


async def test_runs_of_evaluations_take_no_place_in_a_look(fleet: Fleet) -> None:
    executor = fleet.runtime("executor").executor(fleet.recipe)
    note = StartNote(evaluation="e").to_json()
    await executor.prepare(fleet.recipe, {"text": "good"}, note=note).execute()
    fleet.later(1)
    await fleet.run("good")
    watch = Watch(fleet.runtime("one"), fleet.recipe)
    first = await watch.report(most=1)
    assert (first.new, first.has_more) == (0, True)
    second = await watch.report(most=1)
    assert (second.new, second.has_more) == (1, False)


async def test_runs_that_wait_for_a_grade_take_no_place_in_a_look(fleet: Fleet) -> None:
    fleet.judge(
        "{sample: 1, max_tokens_per_day: 15, "
        "scorers: [{graded: Good., model: scripted/own}, {holds: 'true'}]}"
    )
    await fleet.run("a", "b", "c")
    watch = Watch(fleet.runtime("one"), fleet.recipe)
    assert (await watch.report(most=2)).new == 3
    report = await watch.report(most=1)
    assert (report.new, report.has_more) == (1, False)
    assert report.left is not None
    fleet.later(24 * 3600 + 1)
    for _ in range(2):  # each day has room for one
        await Watch(fleet.runtime("other"), fleet.recipe).report()
        fleet.later(24 * 3600 + 1)
    report = await watch.report()
    assert (report.new, report.left, report.scorers[0].scored) == (0, None, 3)


async def test_a_look_ends_at_its_time(fleet: Fleet) -> None:
    await fleet.run("good")
    watch, now = Watch(fleet.runtime("one"), fleet.recipe), fleet.clock.now()
    late = await watch.report(until=now)
    assert (late.new, late.has_more) == (0, True)
    assert (await watch.report(until=now + timedelta(seconds=1))).new == 1


async def test_scores_that_are_known_are_not_read_again(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fleet.run("good")
    watch = Watch(fleet.runtime("one"), fleet.recipe)
    await watch.report()

    async def refuse(*_args: object, **_more: object) -> Sequence[object]:
        raise AssertionError("entries are read")

    monkeypatch.setattr(fleet.services.journal, "entries", refuse)
    (scorer,) = (await watch.report()).scorers
    assert scorer.scored == 1


async def test_what_is_good_enough_is_no_alarm(fleet: Fleet) -> None:
    fleet.judge(GOOD.replace("window: 10", "at_least: 1"))
    watch = Watch(fleet.runtime("one"), fleet.recipe)
    (none,) = (await watch.report()).scorers
    assert (none.is_alarm, none.recent, none.worse_run) == (False, None, None)
    await fleet.run(*["good"] * 12)
    (good,) = (await watch.report()).scorers
    assert (good.is_alarm, good.failed, good.worse_run) == (False, 0, None)


def test_recipes_of_one_id_in_two_projects_have_gauges_of_their_own() -> None:
    scorer = WatchedScorer(scorer="s", scored=3, failed=0)
    reports = [
        (project, WatchReport(recipe="r", sampled=scored, scorers=(evolve(scorer, scored=scored),)))
        for project, scored in (("/a", 3), ("/b", 5))
    ]
    text = text_of(watch_gauges(reports))
    for project, scored in (("/a", 3), ("/b", 5)):
        labels = f'{{project="{project}",recipe="r",scorer="s"}}'
        assert f"minions_watch_scored_runs{labels} {scored}.0\n" in text
