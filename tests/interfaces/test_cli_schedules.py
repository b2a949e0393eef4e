"""`minions schedules`, and workers that start what is due."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from attrs import evolve

from command_line import Cli, Outcome, Write
from forked_commands import PROGRAM, ForkedCommand
from minions.adapters.dispatch.left_jobs import LeftJobs
from minions.adapters.dispatch.postgres_workers import PostgresWorkers
from minions.adapters.stores.memory_stores import StateStore
from minions.adapters.stores.postgres_side_tables import PostgresState
from minions.adapters.stores.sqlite_side_tables import SqliteState
from minions.app.runs.left_runs import LeftRuns
from minions.app.runs.run_needs import OfferedParts, package_version
from minions.app.runs.schedule_store import Progress, ScheduleStore, SkipCause, SkippedTime
from minions.contracts.dispatch import WorkerPlan
from minions.data.json_values import JsonValue
from minions.engine.services.run_services import worker_name
from patience import HANG_S

TIDY = """
id: tidy
inputs:
  folder: {type: string}
  key: {type: string, secret: true, default: "env:TIDY_KEY"}
schedule:
  {cron: 0 3 * * *, timezone: Europe/Zurich, missed: all, overlap: allow, inputs: {folder: a}}
steps:
  - {id: look, set: {folder: "{{ inputs.folder }}"}}
output: "{{ look.folder }}"
"""
MORE = 'schedule: ["@daily", {cron: "@hourly", inputs: {folder: b}}]'


@pytest.fixture
def cli(cli: Cli, write: Write, monkeypatch: pytest.MonkeyPatch) -> Cli:
    write("tidy.yaml", TIDY)
    monkeypatch.setenv("TIDY_KEY", "s3cret")
    return cli


def listed(cli: Cli, *more: str) -> list[Mapping[str, JsonValue]]:
    found = cli("schedules", "list", "--json", *more)
    assert found.code == 0, found.err
    schedules = found.json["schedules"]
    assert isinstance(schedules, list)
    return [each for each in schedules if isinstance(each, dict)]


def added(cli: Cli, *more: str) -> Outcome:
    done = cli("schedules", "add", "tidy.yaml", *more)
    assert done.code == 0, done.err
    return done


def begun_before(state: StateStore, time: timedelta, name: str = "tidy") -> None:
    """As if the schedule had been added so long ago."""

    async def change() -> None:
        store = ScheduleStore(state)
        known = await store.get(name)
        await store.put(evolve(known, since=datetime.now(UTC) - time))
        await store.aclose()

    asyncio.run(change())


def test_a_schedule_is_added_listed_and_removed(cli: Cli) -> None:
    assert "tidy  added  tidy  0 3 * * * Europe/Zurich  next " in added(cli).out
    found = listed(cli)[0]
    assert (found["name"], found["missed"], found["overlap"]) == ("tidy", "all", "allow")
    assert (found["paused"], found["last_run"]) == (False, None)
    assert datetime.fromisoformat(str(found["next"])) > datetime.now(UTC)
    assert "tidy  replaced" in added(cli).out
    assert cli("schedules", "remove", "tidy").code == 0
    assert listed(cli) == []
    gone = cli("schedules", "remove", "tidy")
    assert (gone.code, "error[no-schedule]" in gone.err) == (2, True)


def test_a_schedule_is_paused_and_resumed(cli: Cli) -> None:
    added(cli)
    assert "next paused" in cli("schedules", "pause", "tidy").out
    assert (listed(cli)[0]["paused"], listed(cli)[0]["next"]) == (True, None)
    assert cli("schedules", "resume", "tidy").code == 0
    assert listed(cli)[0]["paused"] is False


def test_a_recipe_that_is_not_enabled_begins_paused(cli: Cli, write: Write) -> None:
    write("tidy.yaml", TIDY + "enabled: false\n")
    added(cli)
    assert listed(cli)[0]["paused"] is True


def test_each_schedule_of_a_recipe_has_a_name(cli: Cli, write: Write) -> None:
    head, _, tail = TIDY.partition("schedule:")
    write("tidy.yaml", f"{head}{MORE}\nsteps:{tail.partition('steps:')[2]}")
    added(cli, "-p", "folder=c", "--name", "house.work")
    assert [each["name"] for each in listed(cli)] == ["house.work", "house.work-2"]
    assert [each["cron"] for each in listed(cli)] == ["@daily", "@hourly"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--name", "a b"], "the name of a schedule has 1 to 100 letters"),
        (["-p", "foldre=x"], "foldre"),
        (["--queue", "A B"], "the name of a queue"),
        (["--no-store"], "leave out --no-store"),
    ],
)
def test_what_could_never_run_is_refused_at_once(cli: Cli, arguments: list[str], said: str) -> None:
    refused = cli("schedules", "add", "tidy.yaml", *arguments)
    assert (refused.code, said in refused.err) == (2, True), refused.err
    assert listed(cli) == []


def test_a_recipe_without_a_schedule_is_refused(cli: Cli, write: Write) -> None:
    write("tidy.yaml", "id: tidy\nsteps: [{id: a, set: {x: 1}}]\n")
    refused = cli("schedules", "add", "tidy.yaml")
    assert (refused.code, "error[no-schedule]" in refused.err) == (2, True)


def test_a_worker_runs_what_is_due_and_the_run_tells_of_it(cli: Cli, here: Path) -> None:
    database = here / "s.sqlite"
    added(cli, "-p", "folder=b", "--db", str(database))
    begun_before(SqliteState(database), timedelta(hours=26))
    assert b"s3cret" not in database.read_bytes()
    assert cli("worker", "--once", "--db", str(database)).code == 0
    run = listed(cli, "--db", str(database))[0]["last_run"]
    assert isinstance(run, dict)
    assert run["status"] == "completed"
    shown = cli("sessions", "show", str(run["run_id"]), "--json", "--db", str(database)).json
    assert shown["output"] == "b"


def test_the_list_says_why_no_worker_can_carry_a_schedule_out(
    cli: Cli, here: Path, write: Write
) -> None:
    code = own_with_tool(write)
    assert cli("schedules", "add", "own.yaml", "--db", "j.sqlite", *code).code == 0
    begun_before(SqliteState(here / "j.sqlite"), timedelta(days=2), "own")
    assert cli("worker", "--once", "--db", "j.sqlite").code == 0
    [line] = listed(cli, "--db", "j.sqlite")
    assert "unknown tool 'greet'" in str(line["problem"])
    assert "not carried out: " in cli("schedules", "list", "--db", "j.sqlite").out
    assert cli("schedules", "add", "own.yaml", "--db", "j.sqlite", *code).code == 0
    [line] = listed(cli, "--db", "j.sqlite")
    assert line["problem"] is None
    begun_before(SqliteState(here / "j.sqlite"), timedelta(days=2), "own")
    assert cli("worker", "--once", "--db", "j.sqlite").code == 0
    [line] = listed(cli, "--db", "j.sqlite")
    assert "unknown tool 'greet'" in str(line["problem"])
    assert cli("worker", "--once", "--db", "j.sqlite", *code).code == 0
    [line] = listed(cli, "--db", "j.sqlite")
    assert line["problem"] is None
    assert line["last_run"] is not None


def test_a_worker_of_another_queue_asks_for_no_version_of_its_own(
    cli: Cli, here: Path, write: Write
) -> None:
    code = own_with_tool(write)
    assert cli("schedules", "add", "own.yaml", "--queue", "q", "--db", "j.sqlite", *code).code == 0
    begun_before(SqliteState(here / "j.sqlite"), timedelta(days=2), "own")
    starts = cli("worker", "--once", "--queues", "other", "--db", "j.sqlite", *code)
    assert "scheduled_run_queued" in starts.err
    write("tools.py", (here / "tools.py").read_text("utf-8").replace("'x'", "'y'"))
    executes = cli("worker", "--once", "--queues", "q", "--db", "j.sqlite", *code)
    assert "run_left" not in executes.err
    [line] = listed(cli, "--db", "j.sqlite")
    run = line["last_run"]
    assert isinstance(run, dict)
    assert run["status"] == "completed"


def own_with_tool(write: Write) -> Sequence[str]:
    """A recipe with a tool of an extension; the options that load it."""
    write(
        "tools.py",
        "from minions import tool\n@tool\ndef greet() -> str:\n    'Greets.'\n    return 'x'\n",
    )
    write(
        "own.yaml",
        "id: own\npermissions: {allow_write: true}\nschedule: '@daily'\n"
        "steps: [{id: a, tool: greet, params: {}}]\n",
    )
    return ("--extensions", "tools.py")


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_it_is_said_at_once_what_no_living_worker_has(
    cli: Cli, here: Path, write: Write, kind: str, request: pytest.FixtureRequest
) -> None:
    code = own_with_tool(write)
    url = "j.sqlite" if kind == "sqlite" else request.getfixturevalue("postgres_url")
    add = ("schedules", "add", "own.yaml", "--db", url, *code)
    alone = cli(*add, "--json")
    assert alone.json["missing"] == ["a worker of the queue 'default'"]
    assert "warning: no living worker can carry it out" in alone.err
    lives(here, url, "unable", {})
    unable = cli(*add, "--json")
    assert unable.json["missing"] == ["the tool 'greet'"]
    assert "What is missing: the tool 'greet'." in unable.err
    lives(here, url, "able", {"tool:greet": ""})
    able = cli(*add, "--json")
    assert able.json["missing"] == []
    assert "warning" not in able.err


def lives(
    here: Path, url: str, name: str, versions: Mapping[str, str], queue: str = "default"
) -> None:
    """As if there were a worker with these parts, of this process."""
    parts = OfferedParts(
        versions=versions, package=package_version(), folder=None, takes_other_versions=True
    )
    plan = WorkerPlan(name=worker_name(name), queues=(queue,))

    async def begin() -> None:
        state = PostgresState(url) if "://" in url else SqliteState(here / url)
        await LeftRuns(state, plan, parts).store()
        await state.aclose()
        if "://" in url:
            workers = PostgresWorkers(url, dead_after_s=60)
            await workers.beat(plan, 0, LeftJobs(lambda: 0.0), 60)
            await workers.aclose()

    asyncio.run(begin())


def test_a_schedule_shows_what_its_queued_run_waits_for_in_the_words_of_the_run(
    cli: Cli, here: Path, write: Write
) -> None:
    code = own_with_tool(write)
    at = ("--db", "j.sqlite")
    assert cli("schedules", "add", "own.yaml", "--queue", "q", *at, *code).code == 0
    begun_before(SqliteState(here / "j.sqlite"), timedelta(days=2), "own")
    cli("worker", "--once", "--queues", "other", *at, *code)
    run = listed(cli, *at)[0]["last_run"]
    assert isinstance(run, dict)
    run_id = str(run["run_id"])
    shown = cli("schedules", "show", "own", *at)
    of_run = cli("sessions", "show", run_id, *at)
    words = "no worker takes it: the queue 'q' has no living worker\n"
    assert f"  {run_id}: {words}" in shown.out
    assert words in of_run.out
    assert f"--queues q --db j.sqlite --extensions {here}/tools.py\n" in shown.err
    assert shown.err == of_run.err
    lives(here, "j.sqlite", "unable", {}, "q")
    words = "no worker can execute it: none has the tool 'greet'\n"
    assert f"  {run_id}: {words}" in cli("schedules", "show", "own", *at).out
    assert words in cli("sessions", "show", run_id, *at).out
    document = cli("schedules", "show", "own", "--json", *at).json
    assert document["queued"] == [
        {"run_id": run_id, "lacks": ["the tool 'greet'"], "not_taken": None, "takers": []}
    ]
    assert cli("worker", "--once", "--queues", "q", *at, *code).code == 0
    assert cli("schedules", "show", "own", "--json", *at).json["queued"] == []


def test_a_schedule_is_shown_with_each_time_that_was_left_out(cli: Cli, here: Path) -> None:
    added(cli, "--db", "j.sqlite")
    due = datetime(2026, 5, 4, 3, 0, tzinfo=UTC)
    times = [
        SkippedTime(due=due, cause=SkipCause.LIMIT, reason="many", after=due - timedelta(days=9)),
        SkippedTime(due=due + timedelta(days=1), cause=SkipCause.OVERLAP, reason="run_1 waits"),
    ]

    async def keep() -> None:
        store = ScheduleStore(SqliteState(here / "j.sqlite"))
        progress = Progress()
        for each in times:
            progress = progress.skip(each)
        await store.put_progress("tidy", progress)
        await store.aclose()

    asyncio.run(keep())
    shown = cli("schedules", "show", "tidy", "--db", "j.sqlite").out
    assert "left out 2, last 2026-05-05 03:00Z: run_1 waits" in " ".join(shown.split())
    assert "left out 2026-05-04 03:00Z, and all after 2026-04-25 03:00Z  limit: many" in shown
    told = cli("schedules", "show", "tidy", "--json", "--db", "j.sqlite").json
    assert told["skipped"] == [each.to_json() for each in times]
    assert told["skip_counts"] == {"limit": 1, "overlap": 1}
    assert [{**each, "queued": []} for each in listed(cli, "--db", "j.sqlite")] == [told]
    unknown = cli("schedules", "show", "tidi", "--db", "j.sqlite")
    assert (unknown.code, "Did you mean 'tidy'" in unknown.err) == (2, True)


def test_workers_of_a_postgres_database_start_each_run_once(
    cli: Cli, here: Path, postgres_url: str
) -> None:
    added(cli, "--db", postgres_url)
    begun_before(PostgresState(postgres_url), timedelta(days=5, hours=12))
    command = [*PROGRAM, "worker", "--once", "--db", postgres_url]
    workers = [
        ForkedCommand[bytes](command, cwd=here, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        for _ in range(2)
    ]
    said = [worker.communicate(timeout=HANG_S)[1].decode() for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0], said
    runs = json.loads(cli("sessions", "list", "--json", "--db", postgres_url).out)
    statuses = [each["status"] for each in runs]
    assert (len(statuses), set(statuses)) in ((5, {"completed"}), (6, {"completed"})), said
    assert sum(text.count("scheduled_run_queued") for text in said) == len(statuses)
