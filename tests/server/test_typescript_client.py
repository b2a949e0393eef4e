"""The client in TypeScript: it fits the API of today, compiles strictly, and runs what it says.

A-185. The compiler is `tsc` of npm's package `typescript`: `make client` gets it. Where it or Node
is missing, the tests that need them are skipped.
"""

from __future__ import annotations

import json
import os
import re
import runpy
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from minions import __version__
from patience import HANG_S
from served import RECIPES
from serving import EXTENSIONS, Serving

ROOT: Final = Path(__file__).parents[2]
DOCS: Final = ROOT / "docs"
CLIENT: Final = DOCS / "clients" / "typescript"
OF_MAKE: Final = ROOT / "out" / "typescript" / "node_modules" / ".bin"
TSC: Final = shutil.which("tsc", path=f"{OF_MAKE}{os.pathsep}{os.environ.get('PATH', '')}")
NODE: Final = shutil.which("node")
needs_tools = pytest.mark.skipif(
    TSC is None or NODE is None, reason="node or tsc is missing: `make client`"
)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package, compiled in a folder of its own."""
    folder = tmp_path_factory.mktemp("built") / "client"
    ignored = shutil.ignore_patterns("node_modules", "dist")
    shutil.copytree(CLIENT, folder, ignore=ignored)
    _compile(folder)
    return folder


def _compile(folder: Path, *options: str) -> None:
    assert TSC is not None
    done = subprocess.run(
        [TSC, *options], cwd=folder, capture_output=True, text=True, check=False, timeout=HANG_S
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_types_and_operations_are_those_of_the_api() -> None:
    """If this fails: `python docs/generate_typescript.py`."""
    script = runpy.run_path(str(DOCS / "generate_typescript.py"))
    assert (CLIENT / "src" / "api.ts").read_text("utf-8") == script["text"]()


def test_the_package_has_the_version_of_minions_and_no_dependency() -> None:
    package = json.loads((CLIENT / "package.json").read_text("utf-8"))
    assert package["version"] == __version__
    assert "dependencies" not in package


@needs_tools
def test_the_types_accept_and_refuse_what_the_api_does_and_the_example_of_the_page_compiles(
    built: Path,
) -> None:
    page = (CLIENT / "README.md").read_text("utf-8")
    (example,) = re.findall(r"```ts\n(.*?)```", page, re.DOTALL)
    (built / "test" / "example.ts").write_text(example, "utf-8")
    _compile(built, "-p", "test")


@needs_tools
def test_it_reads_streams_and_refusals_without_a_server(built: Path) -> None:
    _run_tests(built, "client", {})


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Serving]:
    folder = tmp_path / "project"
    (folder / "recipes").mkdir(parents=True)
    (folder / ".git").mkdir()
    (folder / "own.py").write_text(EXTENSIONS)
    for name, text in RECIPES.items():
        (folder / "recipes" / f"{name}.yaml").write_text(text)
    with Serving(folder, "--extensions", "own.py", "--no-store", "--approve", "wait") as server:
        yield server


@needs_tools
def test_it_runs_follows_and_answers_at_a_server(built: Path, server: Serving) -> None:
    """A-185."""
    _run_tests(built, "server", {"MINIONS_URL": server.url, "MINIONS_TOKEN": server.token})


def _run_tests(folder: Path, name: str, settings: dict[str, str]) -> None:
    assert NODE is not None
    done = subprocess.run(
        [NODE, "--test", "--test-reporter=tap", f"test/{name}.test.mjs"],
        cwd=folder,
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        check=False,
        timeout=HANG_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^# pass [1-9]", done.stdout, re.MULTILINE), done.stdout
    assert re.search(r"^# skipped 0$", done.stdout, re.MULTILINE), done.stdout
