"""Runs that are queued by one command and executed by a worker, over one SQLite file."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest
from attrs import evolve

from command_line import Cli, Outcome, Write
from forked_commands import PROGRAM, ForkedCommand
from minions.adapters.stores.memory_stores import RESERVED, MemoryState
from minions.adapters.stores.sqlite_journal import SqliteJournal
from minions.adapters.stores.sqlite_side_tables import SqliteState
from minions.app.runs.left_runs import LeftRuns, WorkerRecord
from minions.app.runs.paused_queues import QueuePause, put_pause, queue_pauses, remove_pause
from minions.app.runs.run_needs import OfferedParts, package_version
from minions.contracts.dispatch import WorkerPlan
from minions.contracts.journal.start_note import QueuePlace, StartNote
from minions.data.errors import FailureInfo
from minions.engine.run.recorded_run import load_recorded_run
from minions.engine.services.run_services import Services, worker_name
from minions.engine.sessions.cancellation import fail_run
from minions.engine.views.lookup import find_run
from minions.interfaces.worker.run_execution import GIVEN_UP
from timed_world import World, look_rarely

PARCEL = """
id: parcel
inputs: {name: string, weight: number}
steps:
  - {id: light, assert: [inputs.weight < 30]}
  - {id: price, set: {francs: "{{ 8 if inputs.weight < 5 else 21 }}"}}
  - {id: ok, ask: "Send {{ inputs.name }}?", form: {type: boolean}, when: inputs.weight > 10}
output: {name: "{{ inputs.name }}", francs: "{{ price.francs }}"}
"""
SIGN = """
import os
from minions import tool

@tool(effect="once")
def sign(text: str) -> str:
    '''Signs.'''
    return f"signed {text}"

@tool(effect="pure")
def crash(text: str) -> str:
    '''Ends the process.'''
    os._exit(9)
"""
SIGNED = """
id: signed
permissions: {allow_write: true, requires_approval: [sign]}
steps:
  - {id: s, tool: sign, params: {text: a treaty}}
"""
CRASHES = "id: crashes\nsteps:\n  - {id: c, tool: crash, params: {text: x}}\n"
FORKS = """
import os, sys
from minions.interfaces.cli.main import run_command_line
import minions.interfaces.cli.commands.worker_commands

codes = []
for _ in range(6):
    pid = os.fork()
    if not pid:
        os._exit(run_command_line(sys.argv[1:]))
    codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
print(codes)
"""
"""Six workers, one after the other; what they load is loaded once."""
LIGHT = ("-p", "name=lamp", "-p", "weight=4")
HEAVY = ("-p", "name=bed", "-p", "weight=20")


@pytest.fixture(autouse=True)
def _parcel(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    write("parcel.yaml", PARCEL)
    monkeypatch.setenv("MINIONS_DB", "journal.sqlite")


def queued(cli: Cli, *arguments: str) -> str:
    """The id of a run that was queued."""
    done = cli("run", "parcel.yaml", "--detach", "--json", *arguments)
    assert done.code == 0, done.err
    assert done.json["status"] == "queued"
    return str(done.json["run_id"])


def status(cli: Cli, run_id: str) -> str:
    summary = cli("sessions", "show", run_id, "--json").json["summary"]
    assert isinstance(summary, dict)
    return str(summary["status"])


def output(cli: Cli, run_id: str) -> object:
    return cli("sessions", "show", run_id, "--json").json["output"]


def work(cli: Cli, *arguments: str) -> Outcome:
    """A worker until nothing is queued."""
    done = cli("worker", "--once", *arguments)
    assert done.code == 0, done.err
    return done


def test_a_worker_scores_the_runs_that_it_executed(cli: Cli, write: Write) -> None:
    write(
        "watched.yaml",
        "id: watched\nwatch: {sample: 1, scorers: [{holds: 'output > 1'}]}\n"
        "steps: [{id: a, set: {n: 1}}]\noutput: '{{ a.n }}'\n",
    )
    run_id = str(cli("run", "watched.yaml", "--detach", "--json").json["run_id"])
    work(cli)
    assert "holds output > 1: 0" in cli("sessions", "show", run_id).out
    assert "0 new scores" in cli("watch", "watched.yaml").out


def test_a_detached_run_is_executed_by_a_worker(cli: Cli) -> None:
    run_id = queued(cli, *LIGHT)
    assert status(cli, run_id) == "queued"
    listed = cli("sessions", "list", "--status", "queued", "--json")
    assert run_id in listed.out
    work(cli)
    assert status(cli, run_id) == "completed"
    assert output(cli, run_id) == {"name": "lamp", "francs": 8}


def test_the_run_has_the_recipe_that_was_queued(cli: Cli, write: Write) -> None:
    run_id = queued(cli, *LIGHT)
    write("parcel.yaml", PARCEL.replace("8 if", "9 if"))
    work(cli)
    assert output(cli, run_id) == {"name": "lamp", "francs": 8}


def test_a_worker_leaves_other_queues_alone(cli: Cli) -> None:
    run_id = queued(cli, *LIGHT, "--queue", "slow")
    work(cli)
    assert status(cli, run_id) == "queued"
    work(cli, "--queues", "fast, slow")
    assert status(cli, run_id) == "completed"


def test_runs_begin_by_priority_and_then_by_age(cli: Cli) -> None:
    last = queued(cli, *LIGHT, "--priority", "5")
    second, first = queued(cli, *LIGHT, "--priority", "1"), queued(cli, *LIGHT)
    third = queued(cli, *LIGHT, "--priority", "1")
    worked = work(cli, "--slots", "1")
    taken = [line for line in worked.err.splitlines() if line.startswith("run_taken")]
    expected = [first, second, third, last]
    assert [run for line in taken for run in expected if run in line] == expected


def test_a_delayed_run_waits(cli: Cli) -> None:
    run_id = queued(cli, *LIGHT, "--delay", "1h")
    work(cli)
    assert status(cli, run_id) == "queued"
    refused = cli("run", "parcel.yaml", *LIGHT, "--detach", "--delay", "9" * 20)
    assert (refused.code, "10 years at most" in refused.err) == (2, True), refused.err


def test_a_waiting_run_holds_no_worker_and_its_answer_queues_it(cli: Cli) -> None:
    """A-146."""
    run_id = queued(cli, *HEAVY)
    work(cli)  # it ends although the run does not
    assert status(cli, run_id) == "needs_decision"
    answered = cli("answer", run_id, "true", "--json")
    assert (answered.code, answered.json["status"]) == (0, "queued")
    assert status(cli, run_id) == "queued"
    work(cli)
    assert status(cli, run_id) == "completed"


def test_an_answer_may_continue_the_run_here(cli: Cli) -> None:
    run_id = queued(cli, *HEAVY)
    work(cli)
    assert cli("answer", run_id, "true", "--no-detach").code == 0
    assert status(cli, run_id) == "completed"


def test_who_consents_is_decided_by_the_worker(
    cli: Cli, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("tools.py", SIGN)
    write("signed.yaml", SIGNED)
    monkeypatch.setenv("MINIONS_EXTENSIONS", str(Path("tools.py").absolute()))
    refused = cli("run", "signed.yaml", "--detach", "--approve", "all")
    assert (refused.code, "--approve does not go with --detach" in refused.err) == (2, True)
    run_id = str(cli("run", "signed.yaml", "--detach", "--json").json["run_id"])
    work(cli)
    assert status(cli, run_id) == "needs_decision"
    other = str(cli("run", "signed.yaml", "--detach", "--json").json["run_id"])
    work(cli, "--approve", "all")
    assert status(cli, other) == "completed"


def test_a_run_that_no_worker_can_execute_waits_for_one_that_can(
    cli: Cli, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A-181"""
    write("tools.py", SIGN)
    write("signed.yaml", SIGNED)
    run_id = str(
        cli("run", "signed.yaml", "--detach", "--json", "--extensions", "tools.py").json["run_id"]
    )
    worked = work(cli)  # without the tool
    assert "lacks=\"the tool 'sign'\" queued_with_extensions='" in worked.err
    assert status(cli, run_id) == "queued"
    monkeypatch.setenv("MINIONS_EXTENSIONS", str(Path("tools.py").absolute()))
    work(cli, "--approve", "all")
    assert status(cli, run_id) == "completed"


def test_a_run_that_is_decided_elsewhere_says_who_executes_it_and_what_is_missing(
    cli: Cli, here: Path, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hint begins where the run did, with its extensions, whatever this command was given."""
    write("tools.py", SIGN)
    write("signed.yaml", SIGNED)
    at, code = ("--db", "journal.sqlite"), ("--extensions", "tools.py")
    run_id = str(cli("run", "signed.yaml", "--detach", "--json", *at, *code).json["run_id"])
    work(cli, *at, *code)
    assert status(cli, run_id) == "needs_decision"
    command = f"minions worker --queues default --db {here}/journal.sqlite"
    command = f"cd {here} && {command} --extensions {here}/tools.py"
    (here / "else").mkdir()
    monkeypatch.chdir(here / "else")
    at = ("--db", "../journal.sqlite")
    approved = cli("approve", run_id, *at)
    assert (approved.code, f"a worker executes it: {command}\n" in approved.err) == (0, True)
    shown = cli("sessions", "show", run_id, *at)
    assert "no worker takes it: the queue 'default' has no living worker\n" in shown.out
    assert f"start one that can: {command}\n" in shown.err
    monkeypatch.chdir(here)
    has(here, "unable", {})
    shown = cli("sessions", "show", run_id, "--db", "journal.sqlite")
    assert "no worker can execute it: none has the tool 'sign'\n" in shown.out
    assert f"worker --queues default --db journal.sqlite --extensions {here}/tools.py" in shown.err
    again = ("--db", "journal.sqlite", "--extensions", "tools.py")
    shown = cli("sessions", "show", run_id, *again)
    assert shown.err.count("--extensions") == 1
    has(here, "able", {"tool:sign": ""})
    shown = cli("sessions", "show", run_id, "--db", "journal.sqlite")
    able = f"will be executed by a worker of the queue 'default': {worker_name('able')}\n"
    assert (able in shown.out, shown.err) == (True, "")
    document = cli("sessions", "show", run_id, "--json", "--db", "journal.sqlite").json
    assert document["takers"] == [worker_name("able")]


def has(here: Path, name: str, versions: Mapping[str, str]) -> None:
    """As if there were a worker with these parts, of this process."""
    parts = OfferedParts(
        versions=versions, package=package_version(), folder=None, takes_other_versions=True
    )

    async def begin() -> None:
        state = SqliteState(here / "journal.sqlite")
        await LeftRuns(state, WorkerPlan(name=worker_name(name)), parts).store()
        await state.aclose()

    asyncio.run(begin())


def test_all_lists_name_what_unlike_workers_lack_as_one_clause(cli: Cli, here: Path) -> None:
    """A-181."""
    run_id = queued(cli, *LIGHT)

    async def begin() -> None:
        state = SqliteState(here / "journal.sqlite")
        for name, part in (("a", "the tool 'sign'"), ("b", "the folder /x")):
            record = WorkerRecord(
                name=worker_name(name), queues=("default",), lacks={run_id: (part,)}
            )
            await state.put(f"{RESERVED}worker:{record.name}", record.to_text())
        await state.aclose()

    asyncio.run(begin())
    words = "has all of: the tool 'sign'; the folder /x"
    assert f"1 run waits in default: no worker {words}  (" in cli("worker", "list").out
    assert f"no worker {words}" in cli("doctor", "--fleet").out
    shown = cli("sessions", "show", run_id).out
    assert f"no worker can execute it: none {words}\n" in shown


def test_a_run_that_ends_its_workers_is_given_up(cli: Cli, here: Path, write: Write) -> None:
    """A poison run: the worker's process dies each time."""
    write("tools.py", SIGN)
    write("crashes.yaml", CRASHES)
    run_id = str(
        cli("run", "crashes.yaml", "--detach", "--json", "--extensions", "tools.py").json["run_id"]
    )
    words = ["worker", "--once", "--db", "journal.sqlite", "--extensions", "tools.py"]
    forked = subprocess.run(
        [sys.executable, "-c", FORKS, *words], cwd=here, capture_output=True, text=True, check=False
    )
    assert forked.stdout.split("\n")[-2] == "[9, 9, 9, 9, 9, 0]", forked.stderr
    assert status(cli, run_id) == "failed"
    assert "finished nothing" in json.dumps(cli("sessions", "show", run_id, "--json").json["error"])
    (dead,) = json.loads(cli("queues", "dead", "--json").out)["dead"]
    assert dead["run_id"] == run_id
    assert "finished nothing" in dead["reason"]


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_run_whose_worker_died_waits_for_another_one_and_all_say_so(
    cli: Cli, here: Path, write: Write, kind: str, request: pytest.FixtureRequest
) -> None:
    """A-181: it is interrupted, not queued, and nobody executes it."""
    at = ("--db", "journal.sqlite" if kind == "sqlite" else request.getfixturevalue("postgres_url"))
    write("tools.py", SIGN)
    write("crashes.yaml", CRASHES)
    own = ("--extensions", "tools.py", *at)
    run_id = str(cli("run", "crashes.yaml", "--detach", "--json", *own).json["run_id"])
    dying = ForkedCommand([*PROGRAM, "worker", "--once", *own], cwd=here, env=dict(os.environ))
    assert dying.wait() == 9
    shown = cli("sessions", "show", run_id, *at)
    assert "interrupted" in shown.out
    assert "no worker takes it: the queue 'default' has no living worker\n" in shown.out
    assert "start one that can: minions worker --queues default " in shown.err
    assert cli("workers", "list", "--json", *at).json["unserved"] == {"default": 1}
    health = cli("doctor", "--fleet", *at)
    assert (health.code, "no living worker takes the queue 'default'" in health.out) == (4, True)
    if kind == "sqlite":
        has(here, "other", {})
        shown = cli("sessions", "show", run_id, *at)
        assert "no worker can execute it: none has the tool 'crash'" in shown.out


def test_a_run_that_was_started_in_another_folder_is_taken_only_if_asked_for(
    cli: Cli, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = queued(cli, *LIGHT), queued(cli, *LIGHT)
    monkeypatch.setenv("MINIONS_DB", str(here / "journal.sqlite"))
    (here / "other").mkdir()
    monkeypatch.chdir(here / "other")
    cli("cancel", second)
    worked = work(cli)
    assert f"the folder {here}, or the option --any-folder" in worked.err
    assert "Traceback" not in worked.err
    assert status(cli, first) == "queued"
    work(cli, "--any-folder")
    assert status(cli, first) == "completed"
    assert status(cli, second) == "cancelled"


def test_a_run_that_is_resumed_here_belongs_to_no_queue_any_more(cli: Cli) -> None:
    run_id = queued(cli, *LIGHT)
    assert cli("resume", run_id).code == 0
    assert status(cli, run_id) == "completed"
    work(cli)


def test_a_batch_is_queued_and_collected_by_the_same_command(cli: Cli, write: Write) -> None:
    lines = [{"name": f"box {n}", "weight": n} for n in (1, 9, 50)]
    write("parcels.jsonl", "".join(f"{json.dumps(line)}\n" for line in lines))
    words = ("batch", "parcel.yaml", "parcels.jsonl", "--detach", "-o", "out.jsonl")
    first = cli(*words)
    assert (first.code, "3 queued" in first.err) == (0, True)
    assert "collect their results" in first.err
    work(cli)
    second = cli(*words)
    assert second.code == 1  # one line is too heavy
    found = [json.loads(line) for line in Path("out.jsonl").read_text("utf-8").splitlines()]
    assert [line["status"] for line in found] == ["completed", "completed", "failed"]
    assert [line["output"] and line["output"]["francs"] for line in found] == [8, 21, None]
    assert cli(*words, "--retry-failed").err.count("queued") > 0


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("run", "parcel.yaml", *LIGHT, "--queue", "fast"), "go with --detach"),
        (("run", "parcel.yaml", *LIGHT, "--detach", "--no-store"), "leave out --no-store"),
        (("run", "parcel.yaml", *LIGHT, "--detach", "--queue", "Fast!"), "the name of a queue"),
        (("run", "parcel.yaml", *LIGHT, "--detach", "--events"), "--events does not go with"),
        (("worker", "--queues", "a,,b"), "is no name of a queue"),
        (("worker", "--health", "here"), "expected a port"),
        (("worker", "--no-store"), "A worker needs a journal"),
        (("queues", "set", "a", "--rate", "10"), "expected NUMBER/TIME"),
        (("queues", "set", "a", "--rate", "10/8d"), "the time is a week at most"),
        (("queues", "set", "a"), "Say which limit"),
        (("run", "parcel.yaml", *LIGHT, "--label", "a=b"), "go with --detach"),
        (("run", "parcel.yaml", *LIGHT, "--detach", "--label", "a"), "expected NAME=VALUE"),
        (("run", "parcel.yaml", *LIGHT, "--detach", "--label", "A b=c"), "expected NAME=VALUE"),
    ],
)
def test_what_cannot_be_is_refused(cli: Cli, words: tuple[str, ...], expected: str) -> None:
    refused = cli(*words)
    assert refused.code == 2
    assert expected in refused.err


def test_a_queue_that_shares_by_a_label_knows_it_of_each_run(cli: Cli, postgres_url: str) -> None:
    pytest.importorskip("dbos", reason="dbos is not installed: pip install 'minions-engine[dbos]'")
    at = ("--db", postgres_url)
    shares = ("--share-by", "tenant", "--per-key", "2", "--key-rate", "5/60s", "--age", "10m")
    assert cli("queues", "set", "default", *shares, *at).code == 0
    words = "by tenant, at most 2, 5 per 60 s  ages by 600 s"
    assert words in cli("queues", "list", *at).out
    shown = json.loads(cli("queues", "list", "--json", *at).out)["queues"][0]["shares"]
    assert shown == {"by": "tenant", "per_key": 2, "rate": {"starts": 5, "period_s": 60.0}}
    queued(cli, *LIGHT, "--label", "tenant=acme", *at)
    assert keys_of(postgres_url) == ["acme"]
    assert cli("queues", "set", "default", "--share-by", "user", "--per-key", "0", *at).code == 0
    queued(cli, *LIGHT, "--user", "ann", *at)
    assert keys_of(postgres_url) == ["-", "ann"]
    assert "by user, 5 per 60 s" in cli("queues", "list", *at).out
    off = cli("queues", "set", "default", "--share-by", "none", "--age", "0", *at)
    assert "by user" not in off.out
    lone = cli("queues", "set", "default", "--per-key", "1", *at)
    assert (lone.code, "say which with --share-by" in lone.err) == (2, True)
    odd = cli("queues", "set", "default", "--share-by", "A b", *at)
    assert (odd.code, "error[bad-label]" in odd.err) == (2, True)


def keys_of(url: str) -> list[str]:
    """By which waiting jobs take turns."""
    import psycopg

    with psycopg.connect(url) as db:
        rows = db.execute("SELECT queue_partition_key FROM minions_dispatch.workflow_status")
        return sorted(str(key) for (key,) in rows)


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
@pytest.mark.parametrize("queue", [(), ("default",)])
def test_workers_take_nothing_of_a_paused_queue_and_all_say_why(
    cli: Cli, kind: str, queue: tuple[str, ...], request: pytest.FixtureRequest
) -> None:
    url = "journal.sqlite" if kind == "sqlite" else request.getfixturevalue("postgres_url")
    at = ("--db", url)
    run_id = queued(cli, *LIGHT, *at)
    paused = cli("queues", "pause", *queue, "--reason", "the database is moved", *at)
    what = "queue default is" if queue else "all queues are"
    assert f"{what} paused since " in paused.out
    work(cli, *at)
    shown = cli("sessions", "show", run_id, *at).out
    assert f"no worker takes it: {what} paused since " in shown
    assert ": the database is moved" in cli("workers", "list", *at).out
    (told,) = json.loads(cli("workers", "list", "--json", *at).out)["paused"]
    assert told["queue"] == (queue[0] if queue else "*")
    if kind == "postgres":
        assert f"{what} paused since " in cli("queues", "list", *at).out
        assert json.loads(cli("queues", "list", "--json", *at).out)["paused"] == [told]
    wrong = cli("queues", "resume", "slow", *at)
    assert (wrong.code, "error[queue-not-paused]" in wrong.err) == (2, True)
    assert "resumed" in cli("queues", "resume", *queue, *at).out
    unserved = "no worker takes it: the queue 'default' has no living worker\n"
    assert unserved in cli("sessions", "show", run_id, *at).out
    assert "1 run waits in default, which has no living worker" in cli("workers", "list", *at).out
    assert json.loads(cli("workers", "list", "--json", *at).out)["unserved"] == {"default": 1}
    work(cli, *at)
    assert '"completed"' in cli("sessions", "list", "--json", *at).out


def test_a_pause_of_a_queue_that_no_worker_serves_is_warned_of(cli: Cli, here: Path) -> None:
    pause = ("queues", "pause", "--reason", "moved", "--db", "journal.sqlite")
    assert "warning" not in cli(*pause, "defualt").err  # there is no worker
    assert cli("queues", "resume", "defualt", "--db", "journal.sqlite").code == 0
    lives(here / "journal.sqlite")
    odd = cli(*pause, "defualt")
    assert "warning: no living worker serves the queue 'defualt'" in odd.err
    assert "Did you mean 'default'?" in odd.err
    for others in (("default",), ()):
        assert "warning" not in cli(*pause, *others).err


def lives(database: Path) -> None:
    """As if there were a worker of the queue `default`, of this process."""

    async def begin() -> None:
        state = SqliteState(database)
        parts = OfferedParts(versions={}, package=package_version(), folder=None)
        await LeftRuns(state, WorkerPlan(name=worker_name("w")), parts).store()
        await state.aclose()

    asyncio.run(begin())


def test_a_worker_notices_a_pause_while_it_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    look_rarely(monkeypatch, 5)
    world = World(tmp_path)
    quick = "id: r\nsteps: [{id: a, set: {x: 1}}]\n"

    async def run() -> None:
        working = asyncio.ensure_future(world.work(60))
        await asyncio.sleep(2)
        pause = QueuePause(queue="default", reason="moved", since=world.time.now())
        await put_pause(world.state, pause)
        await asyncio.sleep(6)
        run_id = await world.queued(quick)
        await asyncio.sleep(20)
        assert await world.status(run_id) == "queued"
        page = await world.metrics()
        assert 'minions_queue_paused{queue="default"} 1.0\n' in page
        await remove_pause(world.state, "default")
        await working
        assert await world.status(run_id) == "completed"
        assert "minions_queue_paused" not in await world.metrics()

    world.run(run())


async def test_a_pause_that_cannot_be_read_pauses_its_queue_all_the_same() -> None:
    state = MemoryState()
    await state.put("minions:paused:slow", "no JSON")
    assert {name: each.reason for name, each in (await queue_pauses(state)).items()} == {
        "slow": "unknown"
    }


_OLD: Final = "no worker could execute it, for each lacks: the tool 'price'"
_REFUSED: Final = (
    "no worker could execute it, for each lacks: There is no model provider 'x'. Add it"
)


def given_up(run_id: str, why: str) -> None:
    """As workers record it."""

    async def record() -> None:
        services = Services(journal=SqliteJournal(Path("journal.sqlite")))
        failure = FailureInfo(code="given-up", message=f"{GIVEN_UP}: {why}. What was done is kept.")
        await fail_run(services, await find_run(services.journal, run_id), failure)
        await services.journal.aclose()

    asyncio.run(record())


@pytest.mark.parametrize(
    ("why", "told"),
    [
        (f"{_OLD}; the folder /x", "no worker had all of: the tool 'price'; the folder /x"),
        (_REFUSED, "There is no model provider 'x'. Add it"),
    ],
)
def test_the_reason_of_a_run_that_was_given_up_is_a_clause(cli: Cli, why: str, told: str) -> None:
    given_up(queued(cli, *LIGHT), f"since 2026-05-04 10:00Z {why}")
    assert f"1  {told}\n" in cli("queues", "dead").out


def test_runs_that_were_given_up_are_listed_by_reason_and_queued_again(cli: Cli) -> None:
    assert "No run was given up" in cli("queues", "dead").err
    options = ("--queue", "slow", "--priority", "3", "--label", "tenant=acme")
    first, second, third = (queued(cli, *LIGHT, *options) for _ in range(3))
    given_up(first, f"since 2026-05-04 10:00Z {_OLD}")
    given_up(second, "5 workers that took it have died")
    given_up(third, f"since 2026-05-05 10:00Z {_OLD}")
    listed = cli("queues", "dead").out
    assert "2  no worker had the tool 'price'\n" in listed
    assert "1  5 workers that took it have died\n" in listed
    (told,) = json.loads(cli("queues", "dead", second, "--json").out)["dead"]
    assert (told["run_id"], told["reason"]) == (second, "5 workers that took it have died")
    assert [status(cli, each) for each in (first, second, third)] == ["failed"] * 3
    again = cli("queues", "dead", "--again", "--reason", "PRICE", "--json")
    assert again.code == 0, again.err
    found = json.loads(again.out)["dead"]
    assert {each["run_id"]: each["again"] for each in found} == {first: "queued", third: "queued"}
    assert [status(cli, each) for each in (first, second, third)] == ["queued", "failed", "queued"]
    assert place_of(first) == QueuePlace(
        name="slow", priority=3, labels={"recipe": "parcel", "tenant": "acme"}
    )
    work(cli, "--queues", "slow")
    assert status(cli, first) == "completed"
    assert second in cli("queues", "dead", "--again", second).out
    assert "No run was given up" in cli("queues", "dead").err
    gone = cli("queues", "dead", first)
    assert (gone.code, "error[not-given-up]" in gone.err) == (2, True)


def place_of(run_id: str) -> QueuePlace | None:
    """Where the run was queued last, whatever it needs and of whatever project it is."""

    async def read() -> QueuePlace | None:
        journal = SqliteJournal(Path("journal.sqlite"))
        recorded = await load_recorded_run(journal, run_id)
        await journal.aclose()
        return StartNote.of(recorded.note).queue

    if (place := asyncio.run(read())) is None:
        return None
    labels = {name: value for name, value in place.labels.items() if name != "project"}
    return evolve(place, needs=(), labels=labels)


def test_a_run_that_cannot_be_queued_again_says_why(cli: Cli, write: Write) -> None:
    write("own.py", SIGN)
    write("signed.yaml", SIGNED)
    done = cli("run", "signed.yaml", "--detach", "--json", "--extensions", "own.py")
    run_id = str(done.json["run_id"])
    given_up(run_id, "5 workers that took it have died")
    again = cli("queues", "dead", "--again", "--json")
    assert again.code == 1
    assert "sign" in json.loads(again.out)["dead"][0]["again"]
    assert status(cli, run_id) == "failed"


def test_a_queue_of_a_mistyped_name_is_removed(cli: Cli, postgres_url: str) -> None:
    pytest.importorskip("dbos", reason="dbos is not installed: pip install 'minions-engine[dbos]'")
    at = ("--db", postgres_url)
    assert cli("queues", "set", "wrok", "--concurrency", "1", *at).code == 0
    refused = cli("queues", "remove", "work", *at)
    assert (refused.code, "Did you mean 'wrok'?" in refused.err) == (2, True)
    assert cli("queues", "remove", "wrok", *at).out == "wrok is removed\n"
    assert "wrok" not in cli("queues", "list", *at).out


def test_a_worker_tells_its_health(cli: Cli, here: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = ForkedCommand(
        [*PROGRAM, "worker", "--health", str(port), "--db", "j.sqlite"],
        cwd=here,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    killer = threading.Timer(60, process.kill)  # a worker that hangs
    killer.start()
    try:
        assert process.stdout is not None
        assert f"health on port {port}" in process.stdout.readline()
        assert _get(port, "/health")[1]["status"] == "ok"
        assert _get(port, "/ready")[0] == 200
        assert _get(port, "/secrets")[0] == 404
        process.terminate()
        assert process.wait() == 143
    finally:
        killer.cancel()
        process.kill()
        process.communicate()


def _get(port: int, path: str) -> tuple[int, dict[str, str]]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}") as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


# --- one command ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("older", "newer"),
    [(("workers", "list"), ("worker", "list")), (("queues", "list"), ("worker", "queues", "list"))],
)
def test_the_older_names_of_commands_work_and_name_the_newer_ones(
    cli: Cli, older: tuple[str, ...], newer: tuple[str, ...], tmp_path: Path
) -> None:
    at = ("--db", str(tmp_path / "runs.sqlite"), "--json")
    told, told_now = cli(*older, *at), cli(*newer, *at)
    assert (told.code, told.out) == (told_now.code, told_now.out)
    assert f"is `minions {' '.join(newer[:-1])} …`" in told.err
    assert "deprecated" not in told_now.err


def test_options_of_a_worker_stand_before_no_other_command(cli: Cli) -> None:
    """They would be read by nobody."""
    done = cli("worker", "--slots", "2", "list")
    assert done.code == 2
    assert "--slots before 'list' is an option of the worker" in done.err
