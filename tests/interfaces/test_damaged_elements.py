"""A damaged element of a list harms only itself, whatever the list: A-123.

Runs, sessions and approvals have tests of their own, beside the journal and the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import tempfile
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from command_line import Cli, Write
from minions.adapters.stores.sqlite_side_tables import SqliteStepCache
from minions.app.wiring.built_in_extensions import built_in_tools, built_in_toolsets
from minions.app.wiring.configured_runtime import CompiledRecipes, FolderAgents
from minions.contracts.steps import CachedStep
from minions.data.errors import MinionsError
from minions.engine.services.run_services import NullLog
from minions.interfaces.http.http_answers import RefusedError
from minions.interfaces.server.recipe_store import RecipeStore
from minions.recipe.catalog import Catalog
from minions.recipe.recipe_files import find_recipe, recipe_ids

NAMES = ("a", "b", "c")
CATALOG = Catalog(
    toolsets=built_in_toolsets(), tools={each.spec.name: each.spec for each in built_in_tools()}
)


class ListLog:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def info(self, event: str, /, **facts: object) -> None:
        self.told.append(f"{event} {facts}")

    def warning(self, event: str, /, **facts: object) -> None:
        self.told.append(f"{event} {facts}")


def _recipe(name: str) -> bytes:
    return f"id: {name}\nsteps: [{{id: s, set: {{n: 1}}}}]\n".encode()


def _spliced(text: bytes, at: int, removed: int, put: bytes) -> bytes:
    return text[:at] + put + text[at + removed :]


DAMAGED = st.one_of(
    st.binary(max_size=200),
    st.builds(_spliced, st.just(_recipe("b")), st.integers(0, 40), st.integers(0, 40), st.binary()),
    st.builds(
        _spliced,
        st.just(_recipe("b")),
        st.integers(0, 40),
        st.integers(0, 5),
        st.text(max_size=20).map(lambda text: text.encode("utf-8", "surrogatepass")),
    ),
    # Another file claims to be one of its neighbours.
    st.sampled_from([b"id: a\n", b"id: c\n", _recipe("c"), _recipe("a"), b"id: c\nsteps: 7\n"]),
    st.sampled_from([b"", b"\xff\xfe", b"a: " * 40_000, b"[" * 50_000, b"- &a [*a]\n", b"\0"]),
)
"""What a recipe's file may hold."""


def _link_to_itself(path: Path) -> None:
    path.symlink_to(path.name)


def _folder(path: Path) -> None:
    path.mkdir()


def _nowhere(path: Path) -> None:
    path.symlink_to("/nowhere/at/all")


ODD: list[Callable[[Path], None]] = [_link_to_itself, _folder, _nowhere]


def _written(folder: Path, damaged: bytes | Callable[[Path], None]) -> None:
    for name in NAMES:
        (folder / f"{name}.yaml").write_bytes(_recipe(name))
    (folder / "b.yaml").unlink()
    if isinstance(damaged, bytes):
        (folder / "b.yaml").write_bytes(damaged)
    else:
        damaged(folder / "b.yaml")


@given(st.one_of(DAMAGED, st.sampled_from(ODD)))
def test_a_damaged_recipe_leaves_the_others_to_be_found_listed_and_run(
    damaged: bytes | Callable[[Path], None],
) -> None:
    """A-123."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _written(folder, damaged)
        ids = recipe_ids([folder])
        store = RecipeStore([folder], CATALOG, lambda each: each, NullLog())
        stored = {each.id: each for each in store.all()}
        agents = FolderAgents(CompiledRecipes(CATALOG), (folder,))
        for good in ("a", "c"):
            assert ids[good] == folder / f"{good}.yaml"
            assert find_recipe(good, [folder]) == folder / f"{good}.yaml"
            assert stored[good].recipe is not None
            assert stored[good].error is None
            assert agents.find(good).id == good
        assert set(stored) == set(ids) == set(agents.names())


def test_a_file_that_takes_the_id_of_another_is_named_and_found_by_its_own_name(
    tmp_path: Path,
) -> None:
    _written(tmp_path, _recipe("c"))
    log = ListLog()
    stored = RecipeStore([tmp_path], CATALOG, lambda each: each, log).find
    assert stored("c").error is None
    with pytest.raises(RefusedError, match="The recipe 'b' of this server has 1 fault"):
        stored("b")
    assert any("b.yaml says that its id is 'c'" in each for each in log.told)


# --- tools ----------------------------------------------------------------------------------------

TOOLS = """
from minions import Tool, tool

class Broken(Tool):
    @property
    def spec(self):
        raise RuntimeError("no spec here")

    async def invoke(self, arguments, scope):
        return 1

@tool(effect="pure")
def fine() -> int:
    '''One.'''
    return 1

broken = Broken()
"""


def test_a_broken_tool_is_named_with_its_extension(cli: Cli, write: Write) -> None:
    """A-123."""
    write("tools.py", TOOLS)
    write("r.yaml", "id: r\nsteps: [{id: a, tool: fine}]\n")
    done = cli("run", "r.yaml", "--extensions", "tools.py")
    assert (done.code, "error[broken-extension]" in done.err) == (2, True), done.err
    assert "no spec here" in done.err


# --- the cache of steps ---------------------------------------------------------------------------

VALUES = st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1), st.text(max_size=30), st.binary())


@given(column=st.sampled_from(["output", "run_id", "created_at", "used_at", "size"]), value=VALUES)
def test_a_damaged_entry_of_a_cache_is_no_hit_and_the_others_are(
    column: str, value: object
) -> None:
    """A-123: the step is done again, and its output replaces what was damaged."""
    asyncio.run(_read_beside_damage(column, value))


async def _read_beside_damage(column: str, value: object) -> None:
    entry = CachedStep(output="x", run_id="run_1", created_at=datetime(2026, 1, 1, tzinfo=UTC))
    with tempfile.TemporaryDirectory() as name:
        path = Path(name, "j.sqlite")
        cache = SqliteStepCache(path)
        try:
            await cache.put("bad", entry)
            await cache.put("good", entry)
            with closing(sqlite3.connect(path)) as db:
                try:
                    db.execute(
                        f"UPDATE step_cache SET {column} = ? WHERE key = 'bad'", (value,)
                    )  # a column of this test
                except sqlite3.IntegrityError:
                    return  # the table takes no such value
                db.commit()
            with contextlib.suppress(MinionsError):  # whoever asked does the step, and logs it
                await cache.get("bad")
            assert await cache.get("good") == entry
            await cache.put("bad", entry)
            assert await cache.get("bad") == entry
        finally:
            await cache.aclose()
