"""What a queued run needs of its worker, and what a worker lacks of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from attrs import evolve

from builders import fake_tool
from minions import tool
from minions.app.runs.run_needs import (
    OfferedParts,
    WorkerParts,
    build_version,
    digest_of_files,
    needs_key,
    needs_of,
    package_version,
)
from minions.contracts.tools import Toolbox
from minions.engine.compile.extensions import Extensions
from minions.recipe.catalog import Catalog
from minions.recipe.reading.load import load_recipe

_RECIPE = """
id: all
model: {name: scripted/x}
steps:
  - {id: a, tool: price, params: {}}
  - {id: b, tool: files__read, params: {path: x}}
  - {id: c, recipe: inner.yaml}
"""


@tool(effect="pure")
def price() -> int:
    """Looks up a price."""
    return 1


def parts(**changes: object) -> WorkerParts:
    """Of a worker with one tool, which works here."""
    own = changes.pop("extensions", Extensions(tools=Toolbox((price, fake_tool("other")))))
    made = WorkerParts.of(own, "/srv")  # type: ignore[arg-type]  # of a test
    versions = {**made.versions, "tool:price": "v1"}
    return evolve(made, package="1.10.0", versions=versions, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("need", "changes", "lacking"),
    [
        ("package:1.10.0", {}, None),
        ("package:1.9.1+dirty", {}, None),
        ("package:1.10.1", {}, "version 1.10.1 of the package or a newer one"),
        ("package:1.11.0", {"takes_other_versions": True}, None),
        ("folder:/srv", {}, None),
        ("folder:/home", {}, "the folder /home, or the option --any-folder"),
        ("folder:/home", {"folder": None}, None),
        ("tool:price@v1", {}, None),
        ("tool:price", {}, None),
        ("tool:price@v2", {}, "version v2 of the tool 'price', or the option --any-version"),
        ("tool:price@v2", {"takes_other_versions": True}, None),
        ("tool:none@v1", {"takes_other_versions": True}, "the tool 'none'"),
        ("step:none", {}, "the step 'none'"),
        ("toolset:none", {}, "the toolset 'none'"),
        ("model:none", {}, "the model 'none'"),
        ("recipe:none@1", {}, "the recipe 'none'"),
        ("sandbox:none", {}, "the sandbox 'none'"),
        ("moon:full", {}, None),
    ],
)
def test_a_worker_knows_what_it_lacks(
    need: str, changes: Mapping[str, object], lacking: str | None
) -> None:
    """A-181."""
    worker = parts(**changes)
    found = worker.lacking([need])
    assert found == (() if lacking is None else (lacking,))
    told = OfferedParts.of_json(worker.offered.to_json())  # what others know of it
    assert told is not None
    assert told.lacking([need]) == found


@pytest.mark.parametrize(("probes", "holds"), [((True, True), True), ((True, False), False)])
def test_a_sandbox_that_does_not_hold_is_none(probes: tuple[bool, ...], holds: bool) -> None:
    found: Any = SimpleNamespace(probe=lambda: [SimpleNamespace(ok=each) for each in probes])
    one: Any = 1
    own = Extensions(
        sandboxes={"": found}, steps={"s": one}, toolsets={"t": one}, models={"m": one}
    )
    needs = ["sandbox:", "step:s", "toolset:t", "model:m"]
    worker = parts(extensions=own)
    assert worker.lacking(needs) == (() if holds else ("the sandbox ''",))
    assert worker.offered.lacking(needs) == worker.lacking(needs)


@pytest.mark.parametrize("stored", [None, [], {}, {"versions": []}])
def test_what_a_worker_of_another_version_offers_is_not_known(stored: Any) -> None:
    assert OfferedParts.of_json(stored) is None


def test_a_recipe_made_by_code_has_the_version_of_what_it_says(tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text("id: r\nsteps: [{id: a, set: {x: 1}}]\n", "utf-8")
    made = evolve(load_recipe(tmp_path / "r.yaml", Catalog()), document=None)
    own = Extensions(recipes={"r": made})
    (need,) = (each for each in needs_of(made, None, own) if each.startswith("recipe:"))
    assert parts(extensions=own).lacking([need]) == ()
    other = evolve(made, version="2")
    assert len(parts(extensions=Extensions(recipes={"r": other})).lacking([need])) == 1


def test_a_worker_whose_folder_is_gone_has_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.chdir(home)
    worker = WorkerParts.of(Extensions(), None)
    assert (worker.problem, worker.takes_other_versions) == (None, False)
    assert worker.lacking(["package:" + package_version()]) == ()
    home.rmdir()
    assert worker.problem == f"its folder {home}, which was removed or replaced"
    home.mkdir()  # another one
    assert worker.lacking([]) == (f"its folder {home}, which was removed or replaced",)


def test_a_run_needs_what_its_recipe_and_those_within_name(tmp_path: Path) -> None:
    own = Extensions(tools=Toolbox((price, fake_tool("other"), fake_tool("files__read"))))
    (tmp_path / "r.yaml").write_text(_RECIPE, "utf-8")
    inner = "id: inner\nsteps: [{id: d, tool: other, params: {}}]\n"
    (tmp_path / "inner.yaml").write_text(inner, "utf-8")
    recipe = load_recipe(tmp_path / "r.yaml", own.catalog())
    needs = needs_of(recipe, "/srv", own)
    kinds = [each.partition("@")[0] for each in needs]
    assert kinds == sorted(
        [
            *("folder:/srv", f"package:{package_version()}"),
            *("tool:files__read", "tool:other", "tool:price"),
        ]
    )
    version = WorkerParts.of(own, None).versions
    assert f"tool:price@{version['tool:price']}" in needs
    assert "folder:/srv" not in needs_of(recipe, None, own)
    assert needs_key(needs) != needs_key(needs_of(recipe, None, own))
    assert needs_key(()) == ""


def test_each_build_of_a_version_is_another_one(tmp_path: Path) -> None:
    """A-181: also of two builds that state the same version the fleet's members are told apart."""
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        (folder / "inner").mkdir(parents=True)
        (folder / "inner" / "code.py").write_text("x = 1\n", "utf-8")
    (first / "inner" / "code.cpython-311.pyc").write_bytes(b"compiled")
    assert digest_of_files(first) == digest_of_files(second)
    (second / "inner" / "code.py").write_text("x = 2\n", "utf-8")
    assert digest_of_files(first) != digest_of_files(second)
    (second / "inner" / "code.py").rename(second / "inner" / "other.py")
    (second / "inner" / "other.py").write_text("x = 1\n", "utf-8")
    assert digest_of_files(first) != digest_of_files(second)
    version, _, digits = build_version().partition("+")
    assert (version, len(digits)) == (package_version(), 12)
