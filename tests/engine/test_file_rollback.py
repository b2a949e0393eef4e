"""A run that recorded what it changed in files can be taken back, wholly or in part."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from attrs import evolve, field, frozen

from builders import FakeTool, deterministic_services, fake_tool
from minions.adapters.models.scripted import ScriptedModel
from minions.adapters.stores.sqlite_journal import SqliteJournal
from minions.adapters.tools.files_toolset import files_toolset
from minions.contracts.executions import AgentResult, RunStatus
from minions.contracts.file_changes import FileChange, FileOutcome, RollbackReport
from minions.contracts.journal.facts import FileChangeFact, FileChangeImported, FileChangeRecorded
from minions.contracts.journal.journal import Journal
from minions.contracts.secrets import SecretRef, Secrets
from minions.contracts.tools import Effect, Toolbox
from minions.data.errors import JournalError, LeaseHeldError, UsageError
from minions.data.json_values import JsonValue
from minions.engine.compile.extensions import Extensions
from minions.engine.context.step_view import CallChanges
from minions.engine.history.event_stream import EventStream
from minions.engine.history.file_rollback import roll_back_within
from minions.engine.history.keys import scope_of
from minions.engine.history.recorder import Recorder
from minions.engine.run.agent_executor import AgentExecutor
from minions.engine.services.memory_journal import MemoryJournal
from minions.engine.services.run_services import Services
from minions.engine.sessions.archive import load_archive, store_archive
from minions.engine.sessions.rollback import roll_back_run
from minions.engine.views.lookup import find_run
from minions.engine.views.run_detail import show_run
from minions.recipe.catalog import Catalog
from minions.recipe.reading.load import load_recipe_text
from minions.testing.virtual_time import FakeClock
from nested import Document, among

HEAD = """
permissions: {allow_write: true}
tools: [{files: {root: ROOT, undo: true}}, send, spoil]
"""


@frozen
class Place:
    """A folder that recipes change, and the journal of their runs."""

    root: Path
    services: Services
    spoil: FakeTool
    recipes: Mapping[str, Document] = field(factory=dict)

    def executor(self) -> AgentExecutor:
        return AgentExecutor(
            ScriptedModel(["an answer"]),
            extensions=Extensions(
                toolsets={"files": files_toolset()}, tools=Toolbox((self.spoil, SEND))
            ),
            services=self.services,
        )

    async def run(self, steps: str, **inputs: JsonValue | SecretRef) -> AgentResult[JsonValue]:
        tools = {each.spec.name: each.spec for each in (self.spoil, SEND)}
        catalog = Catalog(
            toolsets={"files": files_toolset()}, tools=tools, find_recipe=among(self.recipes)
        )
        text = f"{HEAD.replace('ROOT', str(self.root))}{steps}"
        return await self.executor().execute(load_recipe_text(text, "r.yaml", catalog), inputs)

    async def undo(self, run: AgentResult[JsonValue], *, dry_run: bool = False) -> RollbackReport:
        return await roll_back_run(self.services, run.run_id, dry_run=dry_run)

    def write(self, **texts: str) -> None:
        for name, text in texts.items():
            (self.root / name).write_text(text)

    @property
    def files(self) -> dict[str, str]:
        """All files and folders below the root, with their texts."""
        found = sorted(self.root.rglob("*"))
        return {
            str(each.relative_to(self.root)): each.read_text() if each.is_file() else "folder"
            for each in found
        }


SEND = fake_tool("send", effect=Effect.ONCE)


@pytest.fixture(params=["memory", "sqlite"])
def place(tmp_path: Path, request: pytest.FixtureRequest) -> Place:
    root = tmp_path / "root"
    root.mkdir()
    clock = FakeClock()
    journal: Journal = MemoryJournal(clock)
    if request.param == "sqlite":
        journal = SqliteJournal(tmp_path / "j.db", clock)
    services = evolve(deterministic_services(journal, clock), secrets=lambda ref: "s3cret-value")

    def spoil(arguments: Mapping[str, JsonValue]) -> str:
        (root / str(arguments["path"])).write_text("theirs")
        return "done"

    made = Place(root, services, fake_tool("spoil", spoil, effect=Effect.PURE))
    made.write(a="old a", other="not touched")
    (root / "a").chmod(0o600)
    return made


WRITES = """
steps:
  - {id: one, tool: files__write, params: {path: a, text: new a}}
  - {id: two, tool: files__write, params: {path: made/deep/b, text: new b}}
  - {id: three, tool: files__edit, params: {path: a, old: new, new: newer}}
"""


def outcomes(report: RollbackReport) -> dict[str, str]:
    return {each.path: each.outcome.value for each in report.files}


async def test_changed_files_are_restored_made_ones_removed_and_others_untouched(
    place: Place,
) -> None:
    """A-96: also their modes, and the folders that were made."""
    before = place.files
    run = await place.run(WRITES)
    assert run.status is RunStatus.COMPLETED
    assert place.files["a"] == "newer a"
    report = await place.undo(run)
    assert outcomes(report) == {
        "a": "restored",
        "made/deep/b": "removed",
        "made/deep/": "removed",
        "made/": "removed",
    }
    assert report.is_complete
    assert place.files == before
    assert (place.root / "a").stat().st_mode & 0o777 == 0o600


async def test_without_a_rollback_nothing_is_taken_back(place: Place) -> None:
    """A-96: a failed run leaves what it wrote."""
    fails = "  - {id: f, tool: files__edit, params: {path: a, old: x, new: y}}\n"
    run = await place.run(WRITES + fails)
    assert run.status is RunStatus.FAILED
    assert place.files["a"] == "newer a"
    assert "made/deep/b" in place.files


async def test_a_dry_run_tells_the_same_and_changes_nothing(place: Place) -> None:
    run = await place.run(WRITES)
    after = place.files
    told = await place.undo(run, dry_run=True)
    assert place.files == after
    journal = place.services.journal
    assert (await show_run(journal, await find_run(journal, run.run_id))).notes == ()
    done = await place.undo(run)
    assert told == evolve(done, is_dry_run=True)


async def test_a_rollback_that_is_said_again_finds_all_as_before(place: Place) -> None:
    before = place.files
    run = await place.run(WRITES)
    await place.undo(run)
    again = await place.undo(run)
    assert set(outcomes(again).values()) == {"unchanged"}
    assert place.files == before


async def test_a_file_that_somebody_changed_since_is_left_and_reported(place: Place) -> None:
    run = await place.run(WRITES)
    place.write(a="theirs")
    (place.root / "made/deep/c").write_text("theirs, too")
    report = await place.undo(run)
    assert outcomes(report) == {
        "a": "changed_since",
        "made/deep/b": "removed",
        "made/deep/": "changed_since",
        "made/": "changed_since",
    }
    assert not report.is_complete
    assert place.files["a"] == "theirs"
    assert place.files["made/deep/c"] == "theirs, too"


async def test_what_somebody_left_between_two_writes_is_where_a_rollback_ends(
    place: Place,
) -> None:
    run = await place.run(
        "steps:\n"
        "  - {id: one, tool: files__write, params: {path: a, text: first}}\n"
        "  - {id: odd, tool: spoil, params: {path: a}, depends_on: one}\n"
        "  - {id: two, tool: files__write, params: {path: a, text: second}, depends_on: odd}\n"
    )
    report = await place.undo(run)
    assert outcomes(report) == {"a": "changed_since"}
    assert "between two changes" in str(report.files[0].reason)
    assert place.files["a"] == "theirs"
    assert outcomes(await place.undo(run)) == {"a": "changed_since"}
    assert place.files["a"] == "theirs"


async def test_writes_of_nested_recipes_and_parallel_items_are_taken_back(place: Place) -> None:
    inner: Document = {
        "id": "inner",
        "inputs": {"n": {}},
        "tools": [{"files": {"root": str(place.root), "undo": True}}],
        "permissions": {"allow_write": True},
        "steps": [
            {
                "id": "w",
                "tool": "files__write",
                "params": {"path": "new/{{ inputs.n }}", "text": "t{{ inputs.n }}"},
            },
            {
                "id": "all",
                "tool": "files__write",
                "params": {"path": "shared", "text": "by {{ inputs.n }}"},
            },
        ],
    }
    place = evolve(place, recipes={"inner": inner})
    before = place.files
    run = await place.run(
        "steps:\n"
        "  - {id: each, loop: [1, 2, 3, 4], max_parallel: 4, recipe: inner,\n"
        "     with: {n: '{{ loop.item }}'}}\n"
    )
    assert run.status is RunStatus.COMPLETED, run.error
    assert len(place.files) == len(before) + 6
    assert (await place.undo(run)).is_complete
    assert place.files == before


async def test_calls_with_other_effects_are_listed_as_not_reversible(place: Place) -> None:
    run = await place.run(f"{WRITES}  - {{id: out, tool: send, params: {{}}}}\n")
    report = await place.undo(run)
    assert [(each.tool, each.address, each.effect) for each in report.not_reversible] == [
        ("send", "out", "once")
    ]
    assert report.is_complete


async def test_the_run_tells_that_it_was_rolled_back(place: Place) -> None:
    run = await place.run(WRITES)
    journal = place.services.journal
    shown = await show_run(journal, await find_run(journal, run.run_id))
    assert shown.changed_files == (f"{place.root}/a", f"{place.root}/made/deep/b")
    await place.undo(run)
    (note,) = (await show_run(journal, await find_run(journal, run.run_id))).notes
    assert (note.kind, note.state) == ("file_rollback", "finished")
    assert note.facts["at"]


async def test_a_run_without_recorded_changes_has_nothing_to_roll_back(place: Place) -> None:
    run = await place.run("steps:\n  - {id: a, set: {x: 1}}\n")
    with pytest.raises(UsageError) as caught:
        await place.undo(run)
    assert caught.value.error_code == "nothing-recorded"


async def test_a_run_that_is_executing_is_refused(place: Place) -> None:
    run = await place.run(WRITES)
    journal, session_id = place.services.journal, run.session_id
    lease = await journal.acquire(session_id, run.run_id, "another", 60)
    after = place.files
    with pytest.raises(LeaseHeldError):
        await place.undo(run)
    assert place.files == after
    await journal.release(lease)
    assert (await place.undo(run)).is_complete


async def test_a_rolled_back_run_is_retried_from_its_start_only(place: Place) -> None:
    steps = (
        "steps:\n"
        "  - {id: one, tool: files__write, params: {path: a, text: new a}}\n"
        "  - {id: side, tool: files__write, params: {path: side, text: x}}\n"
        "  - {id: two, tool: files__edit, params: {path: a, old: none, new: b}}\n"
    )
    run = await place.run(steps)
    assert run.status is RunStatus.FAILED
    await place.undo(run)
    executor = place.executor()
    for again in (executor.retry(run.run_id), executor.retry(run.run_id, from_step="two")):
        with pytest.raises(UsageError, match=f"minions retry {run.run_id} --from one") as caught:
            await again
        assert caught.value.error_code == "rolled-back"
    with pytest.raises(UsageError, match="were rolled back") as caught:
        await executor.resume(run.run_id, decisions={"x": "redo"})
    assert caught.value.error_code == "rolled-back"
    retried = await executor.retry(run.run_id, from_step="one")
    assert retried.status is RunStatus.FAILED
    assert (place.files["a"], place.files["side"]) == ("new a", "x")
    assert (await executor.retry(run.run_id)).status is RunStatus.FAILED
    assert (await place.undo(run)).is_complete
    assert place.files["a"] == "old a"


async def test_a_file_with_a_secret_is_not_recorded_and_not_written(place: Place) -> None:
    place.write(env="TOKEN=s3cret-value\n")
    run = await place.run(
        "inputs: {token: {type: string, secret: true}}\n"
        "steps:\n  - {id: a, tool: files__write, params: {path: env, text: new}}\n",
        token=SecretRef("env:TOKEN"),
    )
    assert run.status is RunStatus.FAILED
    assert run.error is not None
    assert run.error.code == "secret-in-file"
    assert place.files["env"] == "TOKEN=s3cret-value\n"
    rows = await place.services.journal.entries(run_id=run.run_id)
    assert "s3cret-value" not in str(rows)


async def test_a_binary_file_comes_back_byte_by_byte(place: Place) -> None:
    (place.root / "a").write_bytes(b"\0\xff\r\n")
    run = await place.run("steps:\n  - {id: a, tool: files__write, params: {path: a, text: x}}\n")
    rows = await place.services.journal.entries(run_id=run.run_id, kinds={"file_change"})
    (fact,) = (row.fact for row in rows)
    assert isinstance(fact, FileChangeRecorded)
    assert fact.is_base64
    await place.undo(run)
    assert (place.root / "a").read_bytes() == b"\0\xff\r\n"


async def test_a_run_of_a_session_file_undoes_nothing_here(place: Place) -> None:
    run = await place.run(WRITES)
    archive = await load_archive(place.services.journal, run.session_id)
    other = evolve(place.services, journal=MemoryJournal(FakeClock()))
    await store_archive(other.journal, archive)
    after = place.files
    with pytest.raises(UsageError, match="where it was exported from"):
        await roll_back_run(other, run.run_id)
    assert place.files == after
    rows = await other.journal.entries(kinds={"file_change"})
    assert {type(row.fact) for row in rows} == {FileChangeImported}
    shown = await show_run(other.journal, await find_run(other.journal, run.run_id))
    assert shown.changed_files == ()
    assert all(isinstance(row.fact, FileChangeFact) for row in rows)


async def test_a_part_of_a_run_is_taken_back_by_the_prefix_of_its_keys(place: Place) -> None:
    run = await place.run(WRITES)
    recorder = Recorder(place.services, EventStream(), session_id=run.session_id, run_id=run.run_id)
    report = await roll_back_within(place.services, recorder, "two/")
    await recorder.close()
    assert outcomes(report) == {
        "made/deep/b": "removed",
        "made/deep/": "removed",
        "made/": "removed",
    }
    assert place.files["a"] == "newer a"
    assert FileOutcome.REMOVED in {each.outcome for each in report.files}


async def test_a_retry_begins_work_anew_that_the_run_took_back_itself(place: Place) -> None:
    inner: Document = {
        "id": "inner",
        "tools": [{"files": {"root": str(place.root), "undo": True}}],
        "permissions": {"allow_write": True},
        "steps": [
            {"id": "w", "tool": "files__write", "params": {"path": "a", "text": "new"}},
            {"id": "e", "tool": "files__edit", "params": {"path": "a", "old": "x", "new": "y"}},
        ],
    }
    place = evolve(place, recipes={"inner": inner})
    run = await place.run(
        "steps:\n"
        "  - {id: before, tool: files__write, params: {path: b, text: b}}\n"
        "  - {id: sub, recipe: inner}\n"
    )
    assert run.status is RunStatus.FAILED
    recorder = Recorder(place.services, EventStream(), session_id=run.session_id, run_id=run.run_id)
    report = await roll_back_within(place.services, recorder, scope_of("sub/1/0"))
    await recorder.close()
    assert outcomes(report) == {"a": "restored"}
    assert (await place.executor().retry(run.run_id)).status is RunStatus.FAILED
    assert place.files["a"] == "new"
    rows = await place.services.journal.entries(run_id=run.run_id, kinds={"file_change"})
    assert [row.fact.path for row in rows if isinstance(row.fact, FileChangeFact)] == [
        "b",
        "a",
        "a",
    ]


async def test_a_call_that_has_ended_changes_nothing_any_more(place: Place) -> None:
    run = await place.run("steps:\n  - {id: a, set: {x: 1}}\n")
    recorder = Recorder(place.services, EventStream(), session_id=run.session_id, run_id=run.run_id)
    changes = CallChanges(recorder, "a/1/0/call/1/0", "a", Secrets())
    changes.close()
    change = FileChange(root=str(place.root), path="a", content=None, mode=None, after="0")
    with pytest.raises(JournalError) as caught:
        await place.services.blocking.run(lambda: changes.record(change))
    assert caught.value.error_code == "call-ended"
    with pytest.raises(RuntimeError, match="beside the event loop"):
        changes.record(change)
    await recorder.close()


async def test_with_services_that_restore_nothing_undo_is_refused(place: Place) -> None:
    bare = evolve(place, services=evolve(place.services, file_restorer=None))
    run = await bare.run(WRITES)
    assert run.error is not None
    assert run.error.code == "undo-unavailable"
    assert place.files["a"] == "old a"
