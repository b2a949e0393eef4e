"""Builds a release into out/release: wheel, source, run-time lock, bill of materials, notes,
hashes, and a statement of how it was built. `make release` calls it; nothing is uploaded or signed.

What is built is the commit, not the folder: files that are not committed do not get in. It is built
twice, and the release is refused if the two differ.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final  # Any: JSON of another format

from release.changelog import notes

ROOT: Final = Path(__file__).parents[1]
LOCK: Final = "requirements.lock"
SUMS: Final = "SHA256SUMS"
NOTES: Final = "NOTES.md"
STATEMENT: Final = "provenance.intoto.json"
_BUILD_TYPE: Final = "urn:minions-engine:make-release:1"
_BUILDER: Final = "urn:minions-engine:local-build"
_TOOLS: Final = ("build", "cyclonedx-bom", "hatchling")


class ReleaseError(Exception):
    """Why there is no release."""


# --- building -------------------------------------------------------------------------------------


def git(*arguments: str) -> bytes:
    """What git says of the project."""
    done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, check=False)
    if done.returncode != 0:
        raise ReleaseError(f"git {arguments[0]}: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout


def build(commit: str, epoch: str, into: Path) -> list[Path]:
    """Wheel and source of the commit, built in a folder of their own."""
    with tempfile.TemporaryDirectory(prefix="minions-release-") as folder:
        source = Path(folder) / "source"
        with tarfile.open(fileobj=io.BytesIO(git("archive", commit))) as archive:
            archive.extractall(source, filter="data")
        made = Path(folder) / "made"
        subprocess.run(
            [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(made), str(source)],
            env={**os.environ, "SOURCE_DATE_EPOCH": epoch, "PYTHONHASHSEED": "0"},
            check=True,
            stdout=subprocess.DEVNULL,
        )
        into.mkdir(parents=True, exist_ok=True)
        return [Path(shutil.copy2(each, into)) for each in sorted(made.iterdir())]


def build_twice(commit: str, epoch: str, into: Path) -> list[Path]:
    """The files, built alike two times.

    Raises:
        ReleaseError: They differ: what is published could not be built again by anybody.
    """
    made = build(commit, epoch, into)
    with tempfile.TemporaryDirectory(prefix="minions-release-") as folder:
        again = build(commit, epoch, Path(folder))
        different = [
            one.name for one, other in zip(made, again, strict=True) if digest(one) != digest(other)
        ]
    if different:
        raise ReleaseError(f"Built twice, these differ: {', '.join(different)}.")
    return made


def digest(path: Path) -> str:
    """The SHA-256 of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# --- notes ----------------------------------------------------------------------------------------


def release_notes(commit: str, number: str) -> str:
    """What the changelog of the commit says of its version.

    Raises:
        ReleaseError: It says nothing, or what the version promises was not recorded.
    """
    of_record = git("show", f"{commit}:release/surface.yaml").decode()
    if not of_record.startswith(f"version: {number}\n"):
        raise ReleaseError(
            f"release/surface.yaml does not hold what {number} promises: record it by "
            "`python -m release.surface`, read what changed, and commit it."
        )
    try:
        return notes(git("show", f"{commit}:CHANGELOG.md").decode(), number)
    except ValueError as error:
        raise ReleaseError(f"{error} Move there what stands under [Unreleased].") from error


# --- bill of materials ----------------------------------------------------------------------------


def bill_of_materials(lock: Path, pyproject: Path, number: str) -> dict[str, Any]:
    """The run-time lock in the form of CycloneDX, with this version at its root."""
    made = subprocess.run(
        [
            *(sys.executable, "-m", "cyclonedx_py", "requirements", str(lock)),
            *("--pyproject", str(pyproject), "--mc-type", "library", "--output-reproducible"),
            *("--short-PURLs", "--sv", "1.6", "--of", "JSON", "-o", "-"),
        ],
        capture_output=True,
        check=True,
    )
    return completed(json.loads(made.stdout), direct_names(pyproject), number)


def direct_names(pyproject: Path) -> set[str]:
    """Names of what the project asks for itself, with its extras."""
    project = tomllib.loads(pyproject.read_text("utf-8"))["project"]
    extras = project["optional-dependencies"].values()
    wanted = [*project["dependencies"], *(each for extra in extras for each in extra)]
    return {normal(re.split(r"[\s\[<>=!~;]", each, maxsplit=1)[0]) for each in wanted}


def normal(name: str) -> str:
    """A name of a package as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def completed(bill: dict[str, Any], direct: Iterable[str], number: str) -> dict[str, Any]:
    """The bill with what a lock does not say: the version, and what the project asks for itself.
    Where a package is fetched from is left open, as in the lock: its hashes count.
    """
    root = bill["metadata"]["component"]
    root |= {"version": number, "purl": f"pkg:pypi/{root['name']}@{number}"}
    wanted = set(direct)
    refs = []
    for each in bill["components"]:
        each.pop("description", None)  # the line of the lock
        for place in each.get("externalReferences", ()):
            place["url"] = each["purl"]
        if normal(each["name"]) in wanted:
            refs.append(each["bom-ref"])
    known = {each["ref"]: each for each in bill["dependencies"]}
    known[root["bom-ref"]] = {"ref": root["bom-ref"], "dependsOn": sorted(refs)}
    bill["dependencies"] = sorted(known.values(), key=lambda each: str(each["ref"]))
    return bill


# --- provenance -----------------------------------------------------------------------------------


def statement(
    files: Sequence[Path], commit: str, epoch: str, locks: Mapping[str, str]
) -> dict[str, Any]:
    """How the files were built, as an in-toto statement with the predicate of SLSA 1; unsigned.

    Args:
        locks: Hashes of the locks of the commit, by name.
    """
    tools = [{"uri": f"pkg:pypi/{name}@{version(name)}"} for name in _TOOLS]
    python = ".".join(map(str, sys.version_info[:3]))
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": each.name, "digest": {"sha256": digest(each)}} for each in files],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": _BUILD_TYPE,
                "externalParameters": {"commit": commit, "sourceDateEpoch": epoch},
                "internalParameters": {"python": python, "command": "make release"},
                "resolvedDependencies": [
                    {"name": "source", "digest": {"gitCommit": commit}},
                    *({"name": name, "digest": {"sha256": d}} for name, d in locks.items()),
                    *tools,
                ],
            },
            "runDetails": {"builder": {"id": _BUILDER}},
        },
    }


def sums(files: Iterable[Path]) -> str:
    """Lines that `sha256sum --check` reads."""
    return "".join(f"{digest(each)}  {each.name}\n" for each in files)


def _json(value: object) -> str:
    return json.dumps(value, indent=2, sort_keys=True) + "\n"


def main(arguments: Sequence[str]) -> None:
    """Build it, and say what was built."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--into", type=Path, default=ROOT / "out" / "release")
    parser.add_argument("--commit", default="HEAD")
    parser.add_argument("--allow-changes", action="store_true", help="though files are changed")
    asked = parser.parse_args(arguments)
    if git("status", "--porcelain", "--untracked-files=no") and not asked.allow_changes:
        raise ReleaseError("Files are changed and not committed; what is built is the commit.")
    commit = git("rev-parse", asked.commit).decode().strip()
    epoch = os.environ.get("SOURCE_DATE_EPOCH") or git("log", "-1", "--format=%ct", commit).decode()
    epoch = epoch.strip()
    shutil.rmtree(asked.into, ignore_errors=True)
    files = build_twice(commit, epoch, asked.into)
    names = " ".join(each.name for each in files)
    found = re.search(r"\bminions_engine-([^ ]+?)-py3-none-any\.whl\b", names)
    if found is None or len(files) != 2:
        raise ReleaseError(f"A wheel and a source of the project were expected: {names}.")
    told = asked.into / NOTES
    told.write_text(release_notes(commit, found[1]), "utf-8")
    locks = {}
    for name in (LOCK, "requirements-dev.lock", "requirements-release.lock"):
        content = git("show", f"{commit}:{name}")
        locks[name] = hashlib.sha256(content).hexdigest()
        if name == LOCK:
            (asked.into / LOCK).write_bytes(content)
    with tempfile.TemporaryDirectory() as folder:
        pyproject = Path(folder) / "pyproject.toml"
        pyproject.write_bytes(git("show", f"{commit}:pyproject.toml"))
        bill = bill_of_materials(asked.into / LOCK, pyproject, found[1])
    materials = asked.into / f"minions_engine-{found[1]}.cdx.json"
    materials.write_text(_json(bill), "utf-8")
    files = [*files, asked.into / LOCK, materials, told]
    said = asked.into / STATEMENT
    said.write_text(_json(statement(files, commit, epoch, locks)), "utf-8")
    (asked.into / SUMS).write_text(sums([*files, said]), "utf-8")
    print(f"Built {found[1]} of {commit[:12]} twice, alike, into {asked.into}:")
    print((asked.into / SUMS).read_text("utf-8"), end="")
    print("Nothing was signed or uploaded: docs/releasing.md.")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except (ReleaseError, subprocess.CalledProcessError) as error:
        sys.exit(f"No release: {error}")
