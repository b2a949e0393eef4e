"""State tools over every store: what they give, keep, and say of files that cannot be used."""

from __future__ import annotations

import asyncio
import sqlite3
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import closing
from pathlib import Path

import pytest

from builders import body_cipher, draft_of, result_of
from minions.adapters.stores.memory_stores import MemoryState, StateStore
from minions.adapters.stores.postgres_side_tables import PostgresState
from minions.adapters.stores.sealed_stores import SealedState
from minions.adapters.stores.sqlite_database import bundled_migrations
from minions.adapters.stores.sqlite_journal import SqliteJournal
from minions.adapters.stores.sqlite_side_tables import SqliteState
from minions.adapters.tools.default_tools import state_tools
from minions.contracts.tools import Effect, ToolScope
from minions.data.errors import JournalError, ToolError
from minions.data.json_values import JsonValue
from minions.data.schema import SchemaValidator, check_schema
from minions.testing.virtual_time import FakeClock

SCOPE = ToolScope(run_id="run_1", step_id="a", call_id="call_1", idempotency_key="k")
MIGRATIONS = bundled_migrations()


@pytest.fixture(params=["memory", "sqlite", "postgres", "sealed sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[StateStore]:
    made: StateStore = MemoryState()
    if request.param == "sqlite":
        made = SqliteState(tmp_path / "s.db")
    elif request.param == "postgres":
        made = PostgresState(request.getfixturevalue("postgres_url"))
    elif request.param == "sealed sqlite":
        made = SealedState(SqliteState(tmp_path / "s.db"), body_cipher())
    yield made
    await made.aclose()


async def ask(store: StateStore, name: str, **arguments: JsonValue) -> JsonValue:
    tools = {tool.spec.name: tool for tool in state_tools(store)}
    assert SchemaValidator(tools[name].spec.parameters).errors(arguments) == ()
    return await result_of(tools[name], arguments, SCOPE)


async def test_saving_is_an_idempotent_write_and_the_others_are_pure() -> None:
    specs = [tool.spec for tool in state_tools(MemoryState())]
    assert {spec.name: spec.effect for spec in specs} == {
        "saveState": Effect.IDEMPOTENT,
        "loadState": Effect.PURE,
        "listStateKeys": Effect.PURE,
    }
    for spec in specs:
        check_schema(spec.parameters)
    assert SchemaValidator(specs[0].parameters).errors({"key": "", "value": 1}) != ()


VALUES: list[JsonValue] = [
    None, False, 0, -(2**70), 1.5e-300, "", "h\u00e9 \U0001f642 \0 \ud83d", [], {},
    {"a": [1, {"b": None}], "\ud83d": "x"}, [[[]]], "x" * 100_000,
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=lambda value: repr(value)[:20])
async def test_a_saved_value_is_loaded_as_it_was(store: StateStore, value: JsonValue) -> None:
    """A-69, within one process."""
    assert await ask(store, "saveState", key="k", value=value) == {
        "success": True,
        "key": "k",
        "message": "Saved 'k'.",
    }
    loaded = await ask(store, "loadState", key="k", default="other")
    assert loaded == {"success": True, "key": "k", "value": value, "found": True}
    assert isinstance(loaded, Mapping)
    assert type(loaded["value"]) is type(value)


async def test_a_missing_key_gives_the_default_and_is_not_found(store: StateStore) -> None:
    """A-69: found tells what is stored, also where a default is given."""
    given = await ask(store, "loadState", key="k", default=[1])
    assert given == {"success": True, "key": "k", "value": [1], "found": False}
    without = await ask(store, "loadState", key="k")
    assert without == {"success": True, "key": "k", "value": None, "found": False}


async def test_the_last_value_of_a_key_counts_and_keys_are_listed_sorted(store: StateStore) -> None:
    assert await ask(store, "listStateKeys") == {"success": True, "keys": [], "count": 0}
    for key, value in [("b", 1), ("a", 2), ("\U0001f642", 3), ("b", 4)]:
        await ask(store, "saveState", key=key, value=value)
    assert await ask(store, "listStateKeys") == {
        "success": True,
        "keys": ["a", "b", "\U0001f642"],
        "count": 3,
    }
    loaded = await ask(store, "loadState", key="b")
    assert loaded == {"success": True, "key": "b", "value": 4, "found": True}


async def test_keys_of_minions_itself_are_neither_seen_nor_set(store: StateStore) -> None:
    await store.put("minions:told:x", '"run_1"')
    assert await ask(store, "listStateKeys") == {"success": True, "keys": [], "count": 0}
    for name, more in (("saveState", {"value": 1}), ("loadState", {})):
        with pytest.raises(ToolError, match="belong to Minions itself"):
            await ask(store, name, key="minions:told:x", **more)
    assert await store.get("minions:told:x") == '"run_1"'


async def test_keys_are_found_by_their_start_and_removed(store: StateStore) -> None:
    for key in ("a", "a:", "a:1", "a:\U0001f642", "a:2", "a;", "b"):
        await store.put(key, "1")
    assert await store.keys("a:") == ["a:", "a:1", "a:2", "a:\U0001f642"]
    await store.remove("a:1")
    await store.remove("a:none")
    assert await store.keys("a:") == ["a:", "a:2", "a:\U0001f642"]
    assert await store.get("a:1") is None
    assert len(await store.keys()) == 6


async def test_a_text_is_replaced_only_as_it_is_known(store: StateStore) -> None:
    assert await store.replace("k", None, "1")
    assert not await store.replace("k", None, "2")
    assert not await store.replace("k", "2", "3")
    assert not await store.replace("none", "1", "3")
    assert await store.replace("k", "1", "4\U0001f642")
    assert await store.replace("k", "4\U0001f642", "5")
    assert (await store.get("k"), await store.get("none")) == ("5", None)


async def test_one_of_many_replaces_the_same_text(store: StateStore) -> None:
    replaced = await asyncio.gather(*(store.replace("k", None, str(each)) for each in range(20)))
    assert sum(replaced) == 1


async def test_what_was_loaded_can_be_changed_without_changing_what_is_kept(
    store: StateStore,
) -> None:
    value: dict[str, JsonValue] = {"n": 1}
    await ask(store, "saveState", key="k", value=value)
    value["n"] = 2
    loaded = await ask(store, "loadState", key="k")
    assert loaded == {"success": True, "key": "k", "value": {"n": 1}, "found": True}


@pytest.mark.parametrize("value", [float("nan"), [float("inf")]])
async def test_what_json_cannot_say_is_refused(store: StateStore, value: JsonValue) -> None:
    with pytest.raises(ToolError) as caught:
        await ask(store, "saveState", key="k", value=value)
    assert caught.value.error_code == "state-not-json"
    assert await store.keys() == []


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# --- the file --------------------------------------------------------------------------------


async def test_nothing_is_opened_before_the_first_use(tmp_path: Path) -> None:
    store = SqliteState(tmp_path / "new" / "s.db")
    state_tools(store)
    await store.aclose()
    assert names(tmp_path) == []
    await store.put("k", "1")
    await store.aclose()
    assert stat.S_IMODE((tmp_path / "new" / "s.db").stat().st_mode) == 0o600


async def test_state_and_journal_share_a_file(tmp_path: Path) -> None:
    journal = SqliteJournal(tmp_path / "j.db", FakeClock())
    store = SqliteState(tmp_path / "j.db")
    lease = await journal.acquire("ses_1", "run_1", "w", 60)
    await store.put("k", "1")
    await journal.append(lease, draft_of("step", "finished", key="a"))
    await store.put("k", "2")
    assert (await store.get("k"), len(await journal.entries())) == ("2", 1)
    await journal.aclose()
    await store.aclose()
    assert await store.get("k") == "2"
    await store.aclose()


async def test_a_journal_of_an_older_version_gets_the_table(tmp_path: Path) -> None:
    older = {name: sql for name, sql in MIGRATIONS.items() if name < "0003"}
    journal = SqliteJournal(tmp_path / "j.db", FakeClock(), migrations=older)
    await journal.entries()
    await journal.aclose()
    store = SqliteState(tmp_path / "j.db")
    await store.put("k", "1")
    assert await store.get("k") == "1"
    await store.aclose()
    assert (tmp_path / "j.db.bak-0002").exists()


async def refusal(store: SqliteState) -> JournalError:
    with pytest.raises(JournalError) as caught:
        await store.get("k")
    await store.aclose()
    assert str(store.path) in str(caught.value)
    return caught.value


async def test_files_that_cannot_be_used_are_told_as_for_the_journal(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    path.write_text("my diary\n" * 500)
    assert (await refusal(SqliteState(path))).error_code == "not-a-database"
    path.unlink()
    store = SqliteState(path)
    await store.put("k", "1")
    with closing(sqlite3.connect(path)) as db:
        db.execute("UPDATE state SET value = x'00'")
        db.commit()
    assert (await refusal(store)).error_code == "corrupt-database"
    await store.put("k", "no JSON")
    with pytest.raises(ToolError, match="damaged"):
        await ask(store, "loadState", key="k")
    path.unlink()
    assert (await refusal(store)).error_code == "database-gone"


async def test_half_a_character_in_a_key_is_refused(tmp_path: Path) -> None:
    store = SqliteState(tmp_path / "s.db")
    with pytest.raises(JournalError) as caught:
        await store.put("\ud83d", "1")
    await store.aclose()
    assert caught.value.error_code == "bad-text"


async def test_a_write_waits_for_another_process_and_then_gives_up(tmp_path: Path) -> None:
    clock = FakeClock()
    store = SqliteState(tmp_path / "s.db", busy_timeout_s=0.2, sleep=clock.sleep)
    await store.put("k", "1")
    with closing(sqlite3.connect(store.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(JournalError) as caught:
            await store.put("k", "2")
        assert caught.value.error_code == "database-busy"
        waiting = asyncio.create_task(store.put("k", "3"))
        await asyncio.sleep(0)
        other.execute("ROLLBACK")
        await waiting
    assert await store.get("k") == "3"
    await store.aclose()


def test_making_the_tools_loads_neither_sqlite_nor_other_heavy_libraries() -> None:
    script = (
        "import sys\n"
        "from datetime import UTC, datetime\n"
        "from minions.adapters.tools.default_tools import date_time_tools\n"
        "from minions.adapters.stores.sqlite_side_tables import SqliteState\n"
        "from minions.adapters.tools.default_tools import state_tools\n"
        "state_tools(SqliteState('x')), date_time_tools(lambda: datetime.now(UTC))\n"
        "heavy = {'sqlite3', 'cattrs', 'jsonschema', 'zoneinfo', 'aiohttp'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "[]\n"
