"""Deployments: which version new runs get, and what the bars of a canary decide."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from attrs import evolve, field, mutable
from hypothesis import given
from hypothesis import strategies as st

from minions.adapters.stores.memory_stores import MemoryState
from minions.app.evaluating.background_scores import LiveScores
from minions.app.evaluating.canary_decisions import (
    Bar,
    CanaryMeasurement,
    RunFigures,
    VersionFigures,
    check_bars,
    findings_of,
)
from minions.app.runs.deployments import (
    Canary,
    Deployment,
    DeploymentEvent,
    DeploymentStore,
    deployment_noted,
    first_deployment,
    split_name,
)
from minions.app.runs.schedule_store import Schedule, ScheduleStore
from minions.app.settings.settings import Settings
from minions.app.wiring.configured_runtime import Runtime, make_runtime
from minions.contracts.journal.facts import RunBeginning
from minions.contracts.journal.run_rows import RunFilter
from minions.data.errors import JournalError, NotFoundError, UsageError
from minions.data.json_values import JsonValue
from minions.engine.compile.extensions import Extensions
from minions.engine.services.memory_journal import MemoryJournal
from minions.engine.services.run_services import NullLog, Services
from minions.interfaces.worker.worker import WorkerRuntime
from minions.recipe.model import AgentRecipe, ScheduleSpec
from minions.testing.virtual_time import FakeClock
from timed_world import World, look_rarely

OLD = """
id: echo
inputs: {text: string}
watch: {sample: 1, scorers: [{holds: "output != 'bad'"}]}
steps:
  - {id: a, set: {text: "{{ inputs.text }}"}}
  - {id: b, assert: "a.text != 'fails'"}
output: "{{ a.text }}"
"""
NEW = OLD.replace("id: echo", 'id: echo\nversion: "2"')


@mutable
class Fleet:
    """Processes of one database, and a deployment of two versions."""

    folder: Path
    clock: FakeClock = field(factory=FakeClock)
    state: MemoryState = field(factory=MemoryState)
    services: Services = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.services = Services(journal=MemoryJournal(self.clock), clock=self.clock)

    @property
    def store(self) -> DeploymentStore:
        return DeploymentStore(self.state)

    def runtime(self, name: str = "one") -> Runtime:
        return make_runtime(
            Settings(no_store=True),
            Extensions(),
            environ={},
            folder_of=lambda _: self.folder,
            log=NullLog(),
            services=evolve(self.services, worker_id=name),
        )

    def recipe(self, text: str) -> AgentRecipe:
        (self.folder / "echo.yaml").write_text(text, "utf-8")
        return self.runtime().recipes.get(str(self.folder / "echo.yaml"))

    def member(self, name: str = "one") -> LiveScores:
        async def tell(_: object) -> None:
            pass

        runtime = WorkerRuntime(Settings(no_store=True), self.runtime(name), name=name, folder=None)
        return LiveScores(runtime, self.state, NullLog(), tell)

    async def deploy(self, canary: Canary | None) -> Deployment:
        """The old version, and the new one as that canary."""
        made, _ = first_deployment("echo", self.recipe(OLD), self.clock.now(), "ada")
        made, _ = made.with_version(self.recipe(NEW))
        await self.store.change("echo", lambda _: evolve(made, canary=canary))
        return evolve(made, canary=canary)

    async def run(self, number: int, *texts: str, told: LiveScores | None = None) -> None:
        """Run a version with these texts."""
        deployment = await self.store.get("echo")
        runtime = self.runtime("executor")
        for text in texts:
            recipe, note = await self.store.recipe_for(
                deployment,
                number,
                "",
                runtime.catalog,
                journal=self.services.journal,
                threads=self.services.beside,
            )
            executor = runtime.executor(recipe)
            await executor.prepare(recipe, {"text": text}, note=note).execute()
            if told is not None:
                told.run_ended(recipe, note, None)

    async def events(self) -> Sequence[tuple[str, int]]:
        history = (await self.store.get("echo")).history
        return [(each.what, each.number) for each in history]

    def canary(self, runs: int | None, *bars: str) -> Canary:
        return Canary(number=2, share=0.5, runs=runs, bars=bars, since=self.clock.now())


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return Fleet(tmp_path)


# --- which version -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "note",
    [
        {},
        {"deployment": "echo"},
        {"deployment": {"name": "echo"}},
        {"deployment": {"number": 2}},
        {"deployment": {"name": "echo", "number": "2"}},
    ],
)
def test_a_note_of_another_form_is_of_no_deployment(note: dict[str, object]) -> None:
    assert deployment_noted(note) is None


async def test_a_session_of_another_deployment_or_of_a_version_that_is_gone_is_new(
    fleet: Fleet,
) -> None:
    deployment = await fleet.deploy(fleet.canary(None))
    journal, catalog = fleet.services.journal, fleet.runtime().catalog
    threads = fleet.services.beside
    recipe = fleet.recipe(NEW)
    keys = [str(each) for each in range(12)]
    for name, number in (("other", 2), ("echo", 3)):
        note: dict[str, JsonValue] = {"deployment": {"name": name, "number": number}}
        run = fleet.runtime().executor(recipe).prepare(recipe, {"text": "x"}, note=note)
        await run.execute()
        got = {
            str(
                (
                    await fleet.store.recipe_for(
                        deployment,
                        None,
                        key,
                        catalog,
                        journal=journal,
                        threads=threads,
                        session=run.session_id,
                    )
                )[1]
            )
            for key in keys
        }
        assert len(got) == 2


@given(share=st.floats(0.01, 1), keys=st.lists(st.text(), max_size=30))
def test_each_process_comes_to_the_same_version_of_a_run(share: float, keys: list[str]) -> None:
    canary = Canary(number=2, share=share, since=FakeClock().now())
    one = Deployment(name="d", recipe="r", live=1, canary=canary)
    other = Deployment(name="d", recipe="r", live=1, canary=canary)
    assert [one.number_for(key) for key in keys] == [other.number_for(key) for key in keys]


@pytest.mark.parametrize("share", [0.05, 0.5, 1.0])
def test_a_canary_gets_its_share_of_new_runs(share: float) -> None:
    canary = Canary(number=2, share=share, since=FakeClock().now())
    deployment = Deployment(name="d", recipe="r", live=1, canary=canary)
    got = sum(deployment.number_for(f"run_{each}") == 2 for each in range(4_000)) / 4_000
    assert got == pytest.approx(share, abs=0.02)


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("triage@2", ("triage", 2)),
        ("triage@live", ("triage", None)),
        ("triage", None),
        ("triage@0", None),
        ("triage@latest", None),
        ("./triage@2.yaml", None),
        ("Triage@2", None),
    ],
)
def test_a_version_is_named_by_a_number_or_as_live(
    name: str, found: tuple[str, int | None] | None
) -> None:
    assert split_name(name) == found


async def test_a_session_stays_with_its_version_while_a_canary_runs(fleet: Fleet) -> None:
    deployment = await fleet.deploy(fleet.canary(None))
    journal, catalog = fleet.services.journal, fleet.runtime().catalog
    threads = fleet.services.beside
    executor = fleet.runtime().executor(fleet.recipe(NEW))
    for number in (1, 2):
        recipe, note = await fleet.store.recipe_for(
            deployment, number, "", catalog, journal=journal, threads=threads
        )
        run = executor.prepare(recipe, {"text": "x"}, note=note)
        await run.execute()
        for key in ("a", "b", "c", "d", "e", "f"):
            _, later = await fleet.store.recipe_for(
                deployment,
                None,
                key,
                catalog,
                journal=journal,
                threads=threads,
                session=run.session_id,
            )
            assert deployment_noted(later) == ("echo", number)


async def test_the_same_text_is_one_version(fleet: Fleet) -> None:
    made, first = first_deployment("echo", fleet.recipe(OLD), fleet.clock.now(), None)
    same, again = made.with_version(fleet.recipe(OLD))
    assert (same, again) == (made, first)
    other, second = made.with_version(fleet.recipe(NEW))
    assert (second.number, second.version) == (2, "2")
    third, _ = other.with_version(fleet.recipe(NEW.replace('"2"', '"3"')))
    assert [each.number for each in third.versions] == [1, 2, 3]


async def test_the_same_text_in_another_folder_is_another_version(fleet: Fleet) -> None:
    """Its relative paths start there: a deploy may have removed the folder before."""
    recipe = fleet.recipe(OLD)
    made, _ = first_deployment("echo", recipe, fleet.clock.now(), None)
    moved, version = made.with_version(evolve(recipe, directory="/srv/release-2"))
    assert (version.number, version.directory) == (2, "/srv/release-2")
    catalog = fleet.runtime().catalog
    folders = [fleet.store.recipe(moved, number, catalog).directory for number in (1, 2)]
    assert folders == [recipe.directory, "/srv/release-2"]
    store = fleet.store
    assert store.recipe(moved, 1, catalog).directory != store.recipe(moved, 2, catalog).directory


async def test_the_live_version_is_kept_however_many_follow(fleet: Fleet) -> None:
    made, _ = first_deployment("echo", fleet.recipe(OLD), fleet.clock.now(), None)
    recipe = fleet.recipe(OLD)
    assert recipe.document is not None
    for number in range(2, 70):
        text = {**recipe.document, "version": str(number)}
        made, version = made.with_version(evolve(recipe, document=text))
        assert version.number == number
    assert [each.number for each in made.versions] == [1, *range(20, 70)]


def test_what_cannot_be_deployed_is_refused(fleet: Fleet) -> None:
    recipe, now = fleet.recipe(OLD), fleet.clock.now()
    with pytest.raises(UsageError) as name:
        first_deployment("No such name", recipe, now, None)
    assert name.value.error_code == "bad-name"
    with pytest.raises(UsageError) as made:
        first_deployment("echo", evolve(recipe, document=None), now, None)
    assert made.value.error_code == "recipe-needed"
    deployment, _ = first_deployment("echo", recipe, now, None)
    with pytest.raises(UsageError) as other:
        deployment.with_version(evolve(fleet.recipe(NEW), id="other"))
    assert other.value.error_code == "other-deployment"
    with pytest.raises(NotFoundError):
        deployment.promoted(3, DeploymentEvent(at=now, what="promoted", number=3))


async def test_a_damaged_deployment_is_named(fleet: Fleet) -> None:
    await fleet.deploy(None)
    (key,) = await fleet.state.keys()
    await fleet.state.put(key, '{"name": "echo"}')
    with pytest.raises(JournalError, match="minions deployments remove echo"):
        await fleet.store.get("echo")


async def test_two_changes_at_once_are_both_made(fleet: Fleet) -> None:
    await fleet.deploy(None)

    async def note(by: str) -> None:
        event = DeploymentEvent(at=fleet.clock.now(), what="promoted", number=1, by=by)
        await fleet.store.change("echo", lambda it: None if it is None else it.promoted(1, event))

    await asyncio.gather(*(note(each) for each in "abc"))
    assert [each.by for each in (await fleet.store.get("echo")).history][1:] == ["a", "b", "c"]


# --- bars ----------------------------------------------------------------------------------------


def figures(
    passed: int, failed: int = 0, errors: int = 0, cost: float | None = None
) -> VersionFigures:
    def one(*, is_completed: bool, is_passed: bool | None) -> RunFigures:
        return RunFigures(
            is_completed=is_completed,
            passed=is_passed,
            cost_usd=cost,
            tokens=10,
            duration_s=1.0,
        )

    return VersionFigures.of(
        [
            *[one(is_completed=True, is_passed=True)] * passed,
            *[one(is_completed=True, is_passed=False)] * failed,
            *[one(is_completed=False, is_passed=None)] * errors,
        ]
    )


def fleet_canary(runs: int | None, *bars: str) -> Canary:
    return Canary(number=2, share=1, runs=runs, bars=bars, since=FakeClock().now())


def decision(
    bars: Sequence[str],
    measured: VersionFigures,
    before: VersionFigures | None = None,
    runs: int | None = 100,
) -> str | None:
    canary = fleet_canary(runs, *bars)
    return findings_of(canary, measured, before or VersionFigures()).decision


PASSES = "pass_rate >= 0.9"


@pytest.mark.parametrize(
    ("bars", "measured", "expected"),
    [
        ([PASSES], figures(99), None),
        ([PASSES], figures(95, 5), "promoted"),
        ([PASSES], figures(89, 11), "withdrawn"),
        ([PASSES], figures(95, 4, errors=5), None),  # runs without a score do not count
        (["error_rate <= 0.02"], figures(98, errors=2), "promoted"),
        (["error_rate <= 0.02"], figures(97, errors=3), "withdrawn"),
        ([PASSES, "error_rate < 0.01"], figures(100, errors=5), "withdrawn"),
        ([], figures(100), None),  # nothing was asked of it: a person decides
        # Early: only what does not hold even at the better end of its interval.
        ([PASSES], figures(0, 19), None),
        ([PASSES], figures(0, 20), "withdrawn"),
        ([PASSES], figures(17, 4), None),
        (["error_rate <= 0.02"], figures(28, errors=12), "withdrawn"),
        (["error_rate <= 0.02"], figures(28, errors=1), None),
        (["runs >= 100 and error_rate < 0.5"], figures(28), None),  # there are to be more
        (["runs >= 100 and error_rate < 0.5"], figures(100), "promoted"),
    ],
)
def test_bars_decide_when_there_are_enough_runs(
    bars: list[str], measured: VersionFigures, expected: str | None
) -> None:
    assert decision(bars, measured) == expected


def test_with_a_bar_over_scores_scored_runs_count() -> None:
    canary = fleet_canary(100, PASSES, "error_rate < 0.5")
    found = findings_of(canary, figures(60, errors=60), VersionFigures())
    assert (found.decision, found.reason) == (None, "60 of 100 scored runs")


def test_the_reason_says_what_did_not_hold_and_when() -> None:
    early = findings_of(fleet_canary(100, PASSES), figures(0, 20), VersionFigures())
    said = f"20 scored runs: {PASSES} does not hold"
    assert early.reason == f"{said} at the better end of its interval"
    full = findings_of(fleet_canary(20, PASSES), figures(0, 20), VersionFigures())
    assert full.reason == said
    bar = "mean_cost_usd < 1"
    unknown = findings_of(fleet_canary(20, bar), figures(20), VersionFigures())
    assert unknown.reason == f"20 runs: not known yet: {bar}"


def test_figures_are_means_over_runs_of_which_they_are_known() -> None:
    runs = [
        RunFigures(is_completed=True, passed=None, cost_usd=cost, tokens=tokens, duration_s=2.0)
        for cost, tokens in ((0.5, 10), (None, 30))
    ]
    values = VersionFigures.of(runs).values()
    assert values == {
        "runs": 2,
        "error_rate": 0.0,
        "mean_cost_usd": 0.5,
        "mean_tokens": 20.0,
        "mean_duration_s": 2.0,
    }
    assert VersionFigures.of([]).values() == {"runs": 0}


def test_a_bar_may_compare_with_the_live_version() -> None:
    bars = ["mean_cost_usd <= 1.1 * before.mean_cost_usd"]
    cheap, dear = figures(100, cost=0.01), figures(100, cost=0.02)
    assert decision(bars, cheap, dear) == "promoted"
    assert decision(bars, dear, cheap) == "withdrawn"


def test_what_is_not_known_decides_nothing() -> None:
    bars = ["mean_cost_usd <= 1.1 * before.mean_cost_usd"]
    assert decision(bars, figures(200, cost=0.01)) is None
    assert decision(bars, figures(200), figures(200)) is None
    assert decision([], figures(200), runs=None) is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("pas_rate > 0.9", "Did you mean 'pass_rate'?"),
        ("before.runs2 > 1", "'runs2' is not measured"),
        ("before > 1", "'before' is not measured"),
        ("runs.x > 1", "'runs.x' is not measured"),
        ("pass_rate >", "--bar 'pass_rate >'"),
        ("1 > 0", "reads nothing that is measured"),
    ],
)
def test_a_bar_that_is_none_is_refused(text: str, words: str) -> None:
    with pytest.raises(UsageError) as refused:
        Bar.of(text)
    assert refused.value.error_code == "bad-bar"
    assert words in refused.value.message


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("error_rate", "its value is of the type number, and has to be true or false"),
        ("'low' if error_rate < 1 else 'high'", "its value is of the type text"),
        ("error_rate < 'low'", "it cannot be evaluated: "),
        ("error_rate / 0 < before.error_rate", "it cannot be evaluated: "),
    ],
)
def test_a_bar_that_could_not_decide_is_refused(fleet: Fleet, text: str, words: str) -> None:
    with pytest.raises(UsageError) as refused:
        check_bars(fleet.recipe(OLD), [text])
    assert refused.value.error_code == "bad-bar"
    assert words in refused.value.message


def test_scores_decide_only_where_something_gives_them(fleet: Fleet) -> None:
    check_bars(fleet.recipe(OLD), [PASSES])
    with pytest.raises(UsageError, match="nothing scores the runs of 'echo'"):
        check_bars(evolve(fleet.recipe(OLD), watch=None), [PASSES])
    check_bars(evolve(fleet.recipe(OLD), watch=None), ["error_rate < 1"])


# --- decisions -----------------------------------------------------------------------------------


async def test_a_canary_that_fulfils_its_bars_is_promoted_once_by_whoever_looks(
    fleet: Fleet,
) -> None:
    await fleet.deploy(fleet.canary(4, PASSES))
    one, other = fleet.member("one"), fleet.member("other")
    await fleet.run(2, "a", "b", "c", told=one)
    await one.look()
    assert await fleet.events() == [("deployed", 1)]
    await fleet.run(2, "d", told=one)
    await fleet.run(1, "bad", told=other)
    fleet.clock.advance(31)
    await one.look()
    await asyncio.gather(one.look(), other.look())
    assert await fleet.events() == [("deployed", 1), ("promoted", 2)]
    deployment = await fleet.store.get("echo")
    assert (deployment.live, deployment.canary) == (2, None)
    (*_, event) = deployment.history
    assert (event.by, event.reason) == (None, f"4 scored runs: {PASSES}")
    canary = event.figures["canary"]
    assert isinstance(canary, dict)
    assert (canary["pass_rate"], canary["runs"]) == (1.0, 4)


async def test_a_canary_that_does_not_is_withdrawn_and_new_runs_get_the_live_one(
    fleet: Fleet,
) -> None:
    await fleet.deploy(fleet.canary(2, "error_rate <= 0.1"))
    member = fleet.member()
    await fleet.run(2, "a", "fails", told=member)
    await member.look()
    assert await fleet.events() == [("deployed", 1), ("withdrawn", 2)]
    deployment = await fleet.store.get("echo")
    assert {deployment.number_for(str(each)) for each in range(50)} == {1}


async def test_runs_that_the_deployment_did_not_begin_do_not_count(fleet: Fleet) -> None:
    deployment = await fleet.deploy(fleet.canary(2, "error_rate <= 0.1"))
    recipe = fleet.recipe(NEW)
    for note in (None, {"eval": "suite"}, {"deployment": {"name": "other", "number": 2}}):
        run = fleet.runtime().executor(recipe).prepare(recipe, {"text": "x"}, note=note)  # type: ignore[arg-type]  # a note
        await run.execute()
    assert deployment.canary is not None
    found = await CanaryMeasurement(fleet.services.journal, fleet.clock).findings(
        deployment, deployment.canary
    )
    assert (found.canary.runs, found.decision) == (0, None)


async def test_a_run_passes_if_all_its_scores_do(fleet: Fleet) -> None:
    two = OLD.replace("scorers: [", "scorers: [{holds: '1 == 1'}, ")
    made, _ = first_deployment("echo", fleet.recipe(OLD), fleet.clock.now(), None)
    made, _ = made.with_version(fleet.recipe(two))
    deployment = evolve(made, canary=fleet.canary(None, PASSES))
    await fleet.store.change("echo", lambda _: deployment)
    member = fleet.member()
    await fleet.run(2, "good", "bad", told=member)
    await member.look()
    assert deployment.canary is not None
    found = await CanaryMeasurement(fleet.services.journal, fleet.clock).findings(
        deployment, deployment.canary
    )
    assert (found.canary.scored, found.canary.values()["pass_rate"]) == (2, 0.5)


async def test_what_ended_long_ago_is_read_once(fleet: Fleet) -> None:
    deployment = await fleet.deploy(fleet.canary(None))
    await fleet.run(2, "a", "b")
    journal, kinds = fleet.services.journal, []
    entries = journal.entries

    async def noted(*args: object, **named: object) -> object:
        kinds.append(named.get("kinds"))
        return await entries(*args, **named)  # type: ignore[arg-type]  # handed on

    journal.entries = noted  # type: ignore[method-assign, assignment]  # of a test
    measuring = CanaryMeasurement(journal, fleet.clock)
    assert deployment.canary is not None
    for pause_s, reads in ((0, 4), (4_000, 2), (10, 0)):
        fleet.clock.advance(pause_s)
        kinds.clear()
        found = await measuring.findings(deployment, deployment.canary)
        assert (found.canary.runs, len(kinds)) == (2, reads)


async def test_looks_end_some_time_after_the_last_run(fleet: Fleet) -> None:
    await fleet.deploy(fleet.canary(None))
    member, looks = fleet.member(), []
    await fleet.run(2, "a", told=member)
    get = fleet.state.get

    async def noted(key: str) -> str | None:
        looks.append(key)
        return await get(key)

    fleet.state.get = noted  # type: ignore[method-assign]  # of a test
    for _ in range(30):
        await member._canaries.look()
    assert len(looks) == 20


async def test_runs_from_before_the_canary_do_not_count(fleet: Fleet) -> None:
    await fleet.deploy(None)
    await fleet.run(1, "a", "b")
    fleet.clock.advance(10)
    deployment = evolve(await fleet.store.get("echo"), canary=fleet.canary(1))
    await fleet.run(1, "c")
    assert deployment.canary is not None
    measuring = CanaryMeasurement(fleet.services.journal, fleet.clock)
    assert (await measuring.findings(deployment, deployment.canary)).before.runs == 1
    await fleet.run(1, "d", "fails")
    found = await measuring.findings(deployment, deployment.canary)
    assert found.before.runs == 3
    assert found.before.values()["error_rate"] == pytest.approx(1 / 3)


async def test_a_person_who_was_faster_decides(fleet: Fleet) -> None:
    await fleet.deploy(fleet.canary(1))
    member = fleet.member()
    await fleet.run(2, "a", told=member)
    event = DeploymentEvent(at=fleet.clock.now(), what="withdrawn", number=2, by="ada")
    measure = CanaryMeasurement.findings

    async def slow(self: CanaryMeasurement, deployment: Deployment, canary: Canary) -> object:
        found = await measure(self, deployment, canary)
        await fleet.store.change("echo", lambda it: None if it is None else it.withdrawn(event))
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CanaryMeasurement, "findings", slow)
        await member.look()
    assert await fleet.events() == [("deployed", 1), ("withdrawn", 2)]


# --- schedules -----------------------------------------------------------------------------------


def test_a_schedule_of_a_deployment_runs_the_version_that_it_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    look_rarely(monkeypatch, 30)
    world = World(tmp_path)

    def recipe(text: str) -> AgentRecipe:
        (world.folder / "echo.yaml").write_text(text, "utf-8")
        return world.runtime("submitter").recipes.get(str(world.folder / "echo.yaml"))

    async def noted() -> Sequence[JsonValue]:
        rows = (await world.services.journal.runs(RunFilter()))[::-1]
        found: list[JsonValue] = []
        for row in rows:
            entries = await world.services.journal.entries(row.session_id, run_id=row.run_id)
            begun = [each.fact for each in entries if isinstance(each.fact, RunBeginning)]
            found.append(deployment_noted(begun[0].note or {}))
        return found

    async def work() -> None:
        store, now = DeploymentStore(world.state), world.time.now()
        made, _ = first_deployment("echo", recipe(OLD), now, None)
        await store.change("echo", lambda _: made)
        schedule = Schedule.of("echo", recipe(OLD), ScheduleSpec(cron="*/10 * * * *"), now)
        schedule = evolve(schedule, inputs={"text": "x"}, deployment="echo")
        await ScheduleStore(world.state).put(schedule)
        assert (await ScheduleStore(world.state).get("echo")).deployment == "echo"
        await world.work(15 * 60.0)
        newer, version = made.with_version(recipe(NEW))
        event = DeploymentEvent(at=now, what="promoted", number=version.number)
        await store.change("echo", lambda _: newer.promoted(version.number, event))
        await world.work(10 * 60.0)
        assert await noted() == [("echo", 1), ("echo", 2)]

    world.run(work())


def test_a_schedule_whose_deployment_was_removed_says_why_it_is_not_carried_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    look_rarely(monkeypatch, 30)
    world = World(tmp_path)
    (world.folder / "echo.yaml").write_text(OLD, "utf-8")
    recipe = world.runtime("submitter").recipes.get(str(world.folder / "echo.yaml"))

    async def work() -> None:
        store, now = DeploymentStore(world.state), world.time.now()
        schedule = Schedule.of("echo", recipe, ScheduleSpec(cron="*/10 * * * *"), now)
        schedules = ScheduleStore(world.state)
        await schedules.put(evolve(schedule, inputs={"text": "x"}, deployment="echo"))
        await world.work(15 * 60.0)
        problem = await schedules.problem("echo")
        assert problem is not None
        assert "There is no deployment 'echo'" in problem
        made, _ = first_deployment("echo", recipe, now, None)
        await store.change("echo", lambda _: made)
        await world.work(10 * 60.0)
        assert await schedules.problem("echo") is None
        assert await world.services.journal.runs(RunFilter())

    world.run(work())
