"""What production installs, and what a release says of itself."""

from __future__ import annotations

import json
import os
import re
import runpy
import subprocess
import sys
import tomllib
import urllib.request
import venv
import zipfile
from collections.abc import Callable, Mapping
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final  # Any: JSON of other formats

import pytest

ROOT: Final = Path(__file__).parents[1]
LOCKS: Final = sorted(ROOT.glob("requirements*.lock"))
OF_DEVELOPMENT: Final = frozenset(
    """
    pytest mypy faker playwright hypothesis ruff schemathesis polyfactory import-linter fastapi
    pytest-xdist pytest-asyncio hatchling editables build pip-audit cyclonedx-bom mkdocs
    """.split()  # noqa: SIM905  # a list of words
)


def locked(path: Path) -> dict[str, tuple[str, frozenset[str]]]:
    """Version and hashes by name."""
    found: dict[str, tuple[str, frozenset[str]]] = {}
    for entry in re.split(r"\n(?=\S)", path.read_text("utf-8")):
        head = re.match(r"([A-Za-z0-9._-]+)==([^\s;]+)", entry)
        assert head is not None, entry
        found[head[1]] = head[2], frozenset(re.findall(r"sha256:([0-9a-f]{64})", entry))
    return found


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.stem)
def test_a_lock_has_a_hash_of_each_package_and_no_address(lock: Path) -> None:
    assert all(hashes for _, hashes in locked(lock).values())
    assert "://" not in lock.read_text("utf-8")
    assert "--index" not in lock.read_text("utf-8")


def test_production_installs_nothing_of_development() -> None:
    production = locked(ROOT / "requirements.lock")
    assert OF_DEVELOPMENT.isdisjoint(production)
    assert {"pytest", "mypy", "playwright"} <= locked(ROOT / "requirements-dev.lock").keys()


def test_production_installs_the_versions_that_are_tested() -> None:
    tested = locked(ROOT / "requirements-dev.lock")
    for name, (number, hashes) in locked(ROOT / "requirements.lock").items():
        assert tested[name] == (number, hashes), name


def test_production_installs_all_that_the_project_asks_for() -> None:
    """But the extras that have an environment of their own, that of editors, and large formats."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    apart = {"local", "litellm", "lsp", "parquet", "pdf"}
    extras = {k: v for k, v in project["optional-dependencies"].items() if k not in apart}
    wanted = [*project["dependencies"], *(each for extra in extras.values() for each in extra)]
    names = {re.split(r"[\s\[<>=!~;]", each)[0].lower().replace("_", "-") for each in wanted}
    assert names <= locked(ROOT / "requirements.lock").keys()


def test_the_server_runs_without_what_production_leaves_out() -> None:
    """The lock is installed with --no-deps: `polyfactory`, and so `faker`, are not there."""
    code = (
        "import sys; sys.modules.update(polyfactory=None, faker=None)\n"
        "from minions.interfaces.cli.main import run_command_line\n"
        "sys.exit(run_command_line(['schema', 'api']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "/api/v1/runs" in json.loads(done.stdout)["paths"]


# --- the release ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def release() -> Mapping[str, Any]:
    return runpy.run_path(str(ROOT / "release" / "build_release.py"))


@pytest.fixture(scope="module")
def audit() -> Mapping[str, Any]:
    return runpy.run_path(str(ROOT / "release" / "audit_locks.py"))


def test_the_statement_names_what_was_built_of_what_and_with_what(
    release: Mapping[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(release["statement"].__globals__, "_TOOLS", ("attrs",))
    wheel = tmp_path / "a.whl"
    wheel.write_bytes(b"wheel")
    digest = sha256(b"wheel").hexdigest()
    said = release["statement"]([wheel], "c0ffee", "1700000000", {"requirements.lock": "ab"})
    assert said["_type"] == "https://in-toto.io/Statement/v1"
    assert said["predicateType"] == "https://slsa.dev/provenance/v1"
    assert said["subject"] == [{"name": "a.whl", "digest": {"sha256": digest}}]
    built = said["predicate"]["buildDefinition"]
    assert built["externalParameters"] == {"commit": "c0ffee", "sourceDateEpoch": "1700000000"}
    assert built["resolvedDependencies"] == [
        {"name": "source", "digest": {"gitCommit": "c0ffee"}},
        {"name": "requirements.lock", "digest": {"sha256": "ab"}},
        {"uri": f"pkg:pypi/attrs@{version('attrs')}"},
    ]
    assert release["sums"]([wheel]) == f"{digest}  a.whl\n"


def test_what_differs_when_it_is_built_twice_is_no_release(
    release: Mapping[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contents = iter("1233")

    def build(_commit: str, _epoch: str, into: Path) -> list[Path]:
        into.mkdir(exist_ok=True)
        (into / "a.whl").write_text(next(contents))
        return [into / "a.whl"]

    monkeypatch.setitem(release["build_twice"].__globals__, "build", build)
    with pytest.raises(release["ReleaseError"], match=r"Built twice, these differ: a\.whl\."):
        release["build_twice"]("c", "1", tmp_path / "one")
    assert release["build_twice"]("c", "1", tmp_path / "two") == [tmp_path / "two" / "a.whl"]


def test_a_release_has_the_notes_of_its_version_and_what_it_promises_is_recorded(
    release: Mapping[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = {
        "c:release/surface.yaml": b"version: 1.2.0\nsurface: {}\n",
        "c:CHANGELOG.md": b"## [Unreleased]\n\n## [1.2.0]\n\n- More.\n\n## [1.1.0]\n\n- Less.\n",
    }
    of_release = release["release_notes"].__globals__
    monkeypatch.setitem(of_release, "git", lambda _show, what: shown[what])
    assert release["release_notes"]("c", "1.2.0") == "- More.\n"
    with pytest.raises(release["ReleaseError"], match=r"python -m release\.surface"):
        release["release_notes"]("c", "1.3.0")
    shown["c:release/surface.yaml"] = b"version: 1.3.0\n"
    with pytest.raises(release["ReleaseError"], match=r"no section \[1\.3\.0\]"):
        release["release_notes"]("c", "1.3.0")


def test_the_bill_of_materials_has_the_version_and_what_is_asked_for_and_no_address(
    release: Mapping[str, Any],
) -> None:
    where = {"type": "distribution", "url": "https://index.invalid/attrs/"}
    bill = {
        "metadata": {"component": {"bom-ref": "root", "name": "minions-engine"}},
        "components": [
            {
                "bom-ref": "1",
                "name": "attrs",
                "purl": "pkg:pypi/attrs@1",
                "description": "line 1",
                "externalReferences": [where],
            },
            {"bom-ref": "2", "name": "Other_Name", "purl": "pkg:pypi/other@2"},
        ],
        "dependencies": [{"ref": "1"}, {"ref": "2"}, {"ref": "root"}],
    }
    made = release["completed"](bill, {"attrs"}, "1.2")
    assert made["metadata"]["component"]["version"] == "1.2"
    assert made["metadata"]["component"]["purl"] == "pkg:pypi/minions-engine@1.2"
    assert {"ref": "root", "dependsOn": ["1"]} in made["dependencies"]
    assert made["components"][0] == {
        "bom-ref": "1",
        "name": "attrs",
        "purl": "pkg:pypi/attrs@1",
        "externalReferences": [{"type": "distribution", "url": "pkg:pypi/attrs@1"}],
    }
    assert "yarl" in release["direct_names"](ROOT / "pyproject.toml")
    assert "psycopg" in release["direct_names"](ROOT / "pyproject.toml")


AUDITED: Final = {"name": "attrs", "version": "1", "vulns": []}
FLAWED: Final = {
    "name": "yarl",
    "version": "2",
    "vulns": [{"id": "X-1", "fix_versions": ["3"]}, {"id": "X-2"}],
}
SKIPPED: Final = {"name": "regex", "skip_reason": "nobody could be asked"}


@pytest.mark.parametrize(
    ("packages", "code", "words"),
    [
        ([AUDITED], 0, "a.lock: 1 packages looked at, no known flaws"),
        ([AUDITED, FLAWED], 1, "a.lock: yarl 2 has X-1; mended in: 3"),
        ([AUDITED, SKIPPED], 3, "a.lock: 1 of 2 packages were not audited (regex): nobody could"),
        ([FLAWED, SKIPPED], 1, "a.lock: yarl 2 has X-2; mended in: none yet"),
        ([SKIPPED], 3, "a.lock: 1 of 1 packages were not audited"),
    ],
)
def test_an_audit_counts_no_package_as_sound_that_was_not_looked_at(
    audit: Mapping[str, Any], packages: list[object], code: int, words: str
) -> None:
    found, lines = audit["lines_of"]("a.lock", {"dependencies": packages}, "")
    assert (found, words in "\n".join(lines)) == (code, True)


def test_an_audit_without_a_network_says_so(
    audit: Mapping[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def ask(_lock: Path) -> tuple[None, str]:
        return None, "ConnectionError: no route"

    main: Callable[[list[str]], int] = audit["main"]
    monkeypatch.setitem(main.__globals__, "ask", ask)
    assert main(["requirements.lock"]) == 3
    said = capsys.readouterr().out
    assert "not audited, which needs the network: ConnectionError: no route" in said
    assert "The audit is not complete. It needs the network" in said
    assert audit["LOCKS"] == tuple(path.name for path in sorted(LOCKS, key=_as_listed(audit)))


def _as_listed(audit: Mapping[str, Any]) -> Callable[[Path], int]:
    return lambda path: audit["LOCKS"].index(path.name)


# --- what a wheel holds ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with the wheel, and what it depends on; no checkout is near."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    venv.create(folder / "environment", with_pip=False)
    (packages,) = (folder / "environment").glob("lib/python*/site-packages")
    (wheel,) = folder.glob("minions_engine-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    (packages / "locked.pth").write_text(f"{Path(pytest.__file__).parents[1]}\n", "utf-8")
    return folder / "environment" / "bin" / "python"


def _minions(installed: Path, folder: Path, *arguments: str) -> str:
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [str(installed), "-P", "-m", "minions", *arguments]
    done = subprocess.run(
        command, cwd=folder, env=environ, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_wheel_alone_makes_a_project_and_runs_it(installed: Path, tmp_path: Path) -> None:
    where = subprocess.run(
        [str(installed), "-P", "-c", "import minions; print(minions.__file__)"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        env={},
    )
    assert Path(where.stdout.strip()).is_relative_to(installed.parents[1])
    _minions(installed, tmp_path, "init", "shop")
    shop = tmp_path / "shop"
    assert _minions(installed, shop, "run", "hello", "--trust").strip()
    assert "hello" in _minions(installed, shop, "sessions", "list")
    _minions(installed, shop, "skill", "--install", ".")


def test_the_wheel_alone_serves_the_page(installed: Path, tmp_path: Path) -> None:
    _minions(installed, tmp_path, "init", "shop")
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [str(installed), "-P", "-m", "minions", "serve", "--port", "0"]
    with subprocess.Popen(
        command, cwd=tmp_path / "shop", env=environ, stdout=subprocess.PIPE, text=True
    ) as server:
        try:
            assert server.stdout is not None
            found = re.search(r"http://127\.0\.0\.1:\d+", server.stdout.readline())
            assert found is not None
            page = _got(found[0], "/")
            parts = re.findall(r'(?:src|href)="([^"#:]+)"', page)
            assert any(each.endswith(".js") for each in parts)
            rest = [f"/{each.removeprefix('/')}" for each in parts]
            for each in rest:  # which grows
                text = _got(found[0], each)
                if each.endswith(".js"):
                    names = re.findall(r'(?:from |import\()"\./([\w.-]+)"', text)
                    more = (f"{each.rpartition('/')[0]}/{name}" for name in names)
                    rest += [name for name in more if name not in rest]
            assert len(rest) > 20
        finally:
            server.terminate()


def _got(address: str, path: str) -> str:
    with urllib.request.urlopen(address + path, timeout=60) as answer:
        text: bytes = answer.read()
    assert text
    return text.decode()


# --- what is said to people -----------------------------------------------------------------------


def test_whoever_found_a_fault_reads_how_to_report_it_and_what_is_supported() -> None:
    text = (ROOT / "SECURITY.md").read_text("utf-8")
    for heading in ("Report a fault", "Supported versions", "What is promised"):
        assert f"## {heading}\n" in text
    assert "Report a vulnerability" in text
    assert "@" not in text  # nobody's address was made up


def test_the_image_installs_the_lock_of_production() -> None:
    docker = (ROOT / "docs" / "deploy" / "Dockerfile").read_text("utf-8")
    assert "pip install --no-cache-dir --no-deps --require-hashes -r" in docker
    assert "minions-engine[" not in docker
