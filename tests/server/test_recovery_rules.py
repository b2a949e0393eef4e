"""Which runs a server resumes unasked, and what becomes of those that it cannot resume."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import cast

import pytest
from attrs import field, frozen

from builders import draft_of, entry_of
from minions.app.runs.unexecuted_runs import idle_executions, may_pass
from minions.contracts.journal.journal import HeldLease, JournalEntry, Lease
from minions.contracts.journal.start_note import StartNote
from minions.data.errors import (
    EnvironmentRefusedError,
    JournalError,
    LeaseHeldError,
    MinionsError,
    NotFoundError,
)
from minions.data.json_values import JsonValue
from minions.engine.run.recorded_run import RecordedRun
from minions.engine.services.memory_journal import MemoryJournal
from minions.interfaces.http.http_answers import RefusedError
from minions.interfaces.server.app import Recovery
from minions.interfaces.server.live.server_runs import RunManager
from minions.interfaces.server.server_runtime import ServerRuntime
from minions.testing.virtual_time import FakeClock
from patience import leap

SERVER: Mapping[str, JsonValue] = {"server": True}


class Leases(MemoryJournal):
    """With leases as a test says."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        super().__init__(self.clock)
        self.held: list[HeldLease] = []
        self.is_away = False
        self.looks = 0

    async def held_leases(self) -> Sequence[HeldLease]:
        self.looks += 1
        if self.is_away:
            raise JournalError("nobody answers")
        return self.held


@frozen
class AppState:
    """What a server has, as far as it is asked here."""

    journal: Leases = field(factory=Leases)
    notes: dict[str, Mapping[str, JsonValue]] = field(factory=dict)
    """Of the runs that there are."""
    ended: set[str] = field(factory=set)
    idle: dict[str, int] = field(factory=dict)
    """Executions of a run that recorded no work, after one that did."""
    gone: set[str] = field(factory=set)
    """Workers that are known to be dead."""
    told_ended: list[str] = field(factory=list)
    failing: dict[str, Exception] = field(factory=dict)
    """What beginning a run raises."""
    at_work: set[str] = field(factory=set)
    lost: dict[str, str] = field(factory=dict)
    begun: list[str] = field(factory=list)
    log: list[tuple[str, object]] = field(factory=list)

    def recovery(self) -> Recovery:
        runtime = SimpleNamespace(
            services=SimpleNamespace(journal=self.journal, clock=self.journal.clock),
            recorded=self._recorded,
            resumed=self._resumed,
            has_ended=self.told_ended.append,
            is_worker_gone=self.gone.__contains__,
        )
        run_manager = SimpleNamespace(
            lost=self.lost,
            find=lambda run_id: run_id if run_id in self.at_work else None,
            begin=self._begin,
        )
        log = SimpleNamespace(info=self._note, warning=self._note)
        return Recovery(
            cast("ServerRuntime", runtime), cast("RunManager", run_manager), log, every_s=60.0
        )

    async def _resumed(self, recorded: RecordedRun) -> str:
        return recorded.run_id

    async def _recorded(self, run_id: str) -> object:
        if run_id not in self.notes:
            raise NotFoundError(f"No run {run_id!r}.", code="unknown-session")
        newest = 3 + self.idle.get(run_id, 0)
        return SimpleNamespace(
            run_id=run_id,
            note=self.notes[run_id],
            noted=StartNote.of(self.notes[run_id]),
            has_ended=run_id in self.ended,
            inputs={},
            entries=[
                entry("step", 1),
                entry("step", 3),
                *(entry("run", at) for at in range(1, newest + 1)),
            ],
        )

    async def _begin(self, run_id: str) -> None:
        if (error := self.failing.get(run_id)) is not None:
            raise error
        self.begun.append(run_id)

    def _note(self, event: str, /, **facts: object) -> None:
        self.log.append((event, facts.get("run_id")))

    def hold(self, run_id: str, *, has_expired: bool = True, worker: str = "w") -> None:
        lease = Lease(session_id=f"ses_{run_id}", run_id=run_id, worker_id=worker, epoch=1)
        self.journal.held.append(HeldLease(lease=lease, has_expired=has_expired))


def entry(kind: str, generation: int) -> JournalEntry:
    """The end of a step, or a beginning."""
    state = "finished" if kind == "step" else "started"
    return entry_of(kind, state, {}, generation=generation)


def rooms_with(note: Mapping[str, JsonValue] = SERVER, **more: object) -> AppState:
    """With the run `r`."""
    return AppState(notes={"r": note}, **more)  # type: ignore[arg-type]  # names that exist


# --- leases without a worker ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("has_expired", "worker", "is_resumed"),
    [(True, "w", True), (True, "dead", True), (False, "dead", True), (False, "w", False)],
)
async def test_a_run_is_resumed_whose_lease_ran_out_or_whose_worker_died(
    has_expired: bool, worker: str, is_resumed: bool
) -> None:
    """A-126."""
    app_state = rooms_with(gone={"dead"})
    app_state.hold("r", has_expired=has_expired, worker=worker)
    await app_state.recovery().look()
    assert app_state.begun == (["r"] if is_resumed else [])
    assert app_state.log == ([("run_resumed", "r")] if is_resumed else [])


@pytest.mark.parametrize(
    "note", [{}, {"server": False}, {"command": "run"}, {"server": True, "imported": True}]
)
async def test_a_run_of_the_command_line_or_of_a_file_is_left_alone(
    note: Mapping[str, JsonValue],
) -> None:
    """A-120."""
    app_state = rooms_with(note)
    app_state.hold("r")
    await app_state.recovery().look()
    assert (app_state.begun, app_state.log) == ([], [])


async def test_a_run_that_has_ended_is_left_alone() -> None:
    app_state = rooms_with(ended={"r"})
    app_state.hold("r")
    await app_state.recovery().look()
    assert app_state.begun == []


async def test_a_run_that_is_executed_here_is_left_alone() -> None:
    app_state = rooms_with(at_work={"r"})
    app_state.hold("r")
    app_state.lost["r"] = "w"
    await app_state.recovery().look()
    assert app_state.begun == []
    assert app_state.lost == {"r": "w"}


async def test_each_lease_is_dealt_with_once() -> None:
    app_state = rooms_with()
    app_state.hold("r")
    recovery = app_state.recovery()
    await recovery.look()
    await recovery.look()
    assert app_state.begun == ["r"]


@pytest.mark.parametrize(("idle", "is_resumed"), [(0, True), (4, True), (5, False), (6, False)])
async def test_a_run_that_ends_each_process_is_left_after_five_times(
    idle: int, is_resumed: bool
) -> None:
    app_state = rooms_with(idle={"r": idle})
    app_state.hold("r")
    await app_state.recovery().look()
    assert app_state.log == [("run_resumed" if is_resumed else "run_left", "r")]
    assert app_state.begun == (["r"] if is_resumed else [])


@pytest.mark.parametrize(
    ("error", "logged", "is_tried_again"),
    [
        (LeaseHeldError("busy", worker_id="w", run_id="x"), [], True),
        (JournalError("full"), ["run_not_resumed_yet"], True),
        (RefusedError(429, "too-many-runs", "later"), ["run_not_resumed_yet"], True),  # type: ignore[arg-type]  # a status
        (EnvironmentRefusedError("no key", code="missing-key"), ["run_not_resumed"], False),
        (NotFoundError("no such", code="unknown-session"), [], False),
        (NotFoundError("no recipe"), ["run_not_resumed"], False),
    ],
    ids=["held", "journal", "refused", "environment", "no run", "no recipe"],
)
async def test_what_cannot_be_resumed_now_is_looked_at_again(
    error: Exception, logged: list[str], is_tried_again: bool
) -> None:
    app_state = rooms_with(failing={"r": error})
    app_state.hold("r")
    recovery = app_state.recovery()
    await recovery.look()
    assert [event for event, _ in app_state.log] == logged
    app_state.failing.clear()
    await recovery.look()
    assert app_state.begun == (["r"] if is_tried_again else [])


async def test_a_lease_of_an_edit_is_no_run() -> None:
    app_state = AppState()
    app_state.hold("edit")
    await app_state.recovery().look()
    assert (app_state.begun, app_state.log) == ([], [])


# --- runs that were lost here --------------------------------------------------------------------


async def test_a_run_that_was_lost_here_is_resumed_whoever_began_it() -> None:
    app_state = rooms_with({})
    app_state.lost["r"] = "worker-1"
    await app_state.recovery().look()
    assert (app_state.begun, app_state.told_ended, app_state.lost) == (["r"], ["worker-1"], {})


async def test_a_run_that_was_lost_here_and_cannot_be_resumed_stays_lost() -> None:
    app_state = rooms_with(failing={"r": JournalError("full")})
    app_state.lost["r"] = "worker-1"
    await app_state.recovery().look()
    assert app_state.lost == {"r": "worker-1"}


async def test_a_journal_that_is_away_is_told_once_for_each_time() -> None:
    app_state = rooms_with()
    app_state.lost["r"] = "w"
    recovery = app_state.recovery()
    app_state.journal.is_away = True
    await recovery.look()
    await recovery.look()
    assert (app_state.begun, app_state.log) == ([], [("journal_lost", None)])
    app_state.journal.is_away = False
    await recovery.look()
    assert app_state.begun == ["r"]
    app_state.journal.is_away = True
    await recovery.look()
    assert [event for event, _ in app_state.log] == ["journal_lost", "run_resumed", "journal_lost"]


# --- at the start --------------------------------------------------------------------------------


async def started(journal: Leases, run_id: str, *, is_over: bool = False) -> None:
    journal.clock.advance(1)
    lease = await journal.acquire(f"ses_{run_id}", run_id, "w", 60)
    body: dict[str, JsonValue] = {"recipe": "r", "steps": {}}
    await journal.append(lease, draft_of("run", "started", body, key="run"))
    if is_over:
        end = draft_of("run", "finished", {"status": "completed"}, key="run")
        await journal.append(lease, end)
    await journal.release(lease)


@pytest.mark.parametrize("resumes_all", [True, False])
async def test_an_operator_who_asks_has_all_open_runs_resumed_the_oldest_first(
    resumes_all: bool,
) -> None:
    app_state = AppState(notes={"a": {}, "b": {}, "c": {}})
    for run_id in "abc":
        await started(app_state.journal, run_id, is_over=run_id == "b")
    task = asyncio.ensure_future(app_state.recovery().run(resumes_all=resumes_all))
    for _ in range(20):
        await asyncio.sleep(0)
    task.cancel()
    assert app_state.begun == (["a", "c"] if resumes_all else [])


async def test_a_list_that_cannot_be_read_resumes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def away(*_: object, **__: object) -> Sequence[JournalEntry]:
        raise JournalError("nobody answers")

    app_state = AppState()
    monkeypatch.setattr(app_state.journal, "runs", away)
    await app_state.recovery().resume_all()
    assert app_state.log == [("nothing_resumed", None)]


async def test_it_looks_again_after_its_time() -> None:
    app_state = AppState()
    task = asyncio.ensure_future(app_state.recovery().run(resumes_all=False))
    for count in (1, 2, 3):
        for _ in range(10):
            await asyncio.sleep(0)
        assert app_state.journal.looks == count
        leap(60)
    task.cancel()


# --- executions that finished nothing -------------------------------------------------------------


def begun(generation: int, *, queued: bool = False) -> JournalEntry:
    data: dict[str, JsonValue] = {"recipe": "r", **({"queued": True} if queued else {})}
    return entry_of("run", "started" if generation == 1 else "resumed", data, generation=generation)


@pytest.mark.parametrize(
    ("state", "finishes"),
    [
        ("started", False),
        ("resumed", False),
        ("in_doubt", False),
        ("waiting", False),
        ("finished", True),
        ("failed", True),
        ("interrupted", True),
    ],
)
def test_an_execution_finished_something_if_a_step_or_call_came_to_an_end(
    state: str, *, finishes: bool
) -> None:
    rows = [begun(1), entry_of("tool_call", state, {}, generation=1), begun(2), begun(3)]
    assert idle_executions(rows) == (2 if finishes else 3)


def test_to_be_put_into_a_queue_is_no_execution() -> None:
    rows = [begun(1, queued=True), begun(2), begun(3, queued=True), begun(4), begun(4)]
    assert idle_executions(rows) == 2
    assert idle_executions([]) == 0
    # Only a beginning begins one.
    assert idle_executions([entry_of("step", "started", {}, generation=9)]) == 0


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (JournalError("away"), True),
        (JournalError("odd", code="corrupt-entry"), False),
        (EnvironmentRefusedError("later", code="stopping"), True),
        (EnvironmentRefusedError("full", code="too-many-runs"), True),
        (EnvironmentRefusedError("no key", code="no-key"), False),
    ],
)
def test_an_error_of_the_surroundings_may_pass(error: MinionsError, *, passes: bool) -> None:
    assert may_pass(error) is passes
