"""`minions trust`: makes a folder's configuration count."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import cast

import click
from attrs import evolve, frozen

from minions.app.settings.folder_trust import FolderTrust
from minions.app.settings.setting_rights import Right, rights_of, server_rights
from minions.app.settings.setting_sources import ProjectFile
from minions.app.settings.settings import McpSettings
from minions.app.wiring.mcp import (
    LOCK_NAME,
    Lock,
    as_server,
    programs_now,
    read_lock,
    tool_server,
)
from minions.contracts.tool_servers import PinnedServer, ToolServer
from minions.data.errors import UsageError, did_you_mean
from minions.data.json_values import JsonValue
from minions.data.texts import one_line
from minions.interfaces.cli.console.console import json_text, say, tell
from minions.recipe.project_folders import project_file


@click.command("trust")
@click.argument("directory", default=".", metavar="[DIR]")
@click.option("--show", is_flag=True, help="Show what would count; trust nothing.")
@click.option("--remove", is_flag=True, help="Trust it no longer.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object at the end.")
def command(directory: str, *, show: bool, remove: bool, as_json: bool) -> int:
    """Make the minions.toml or pyproject.toml of DIR (default: here) count until it changes.

    Such a file names code that is loaded, servers that get your keys, and who approves. Of one that
    you have not trusted, only harmless keys are read. Look at it before: --show says what it lets
    Minions do, and after a change what differs.
    """
    path = _file(Path(directory))
    trust = FolderTrust()
    if remove:
        was_trusted = trust.remove(path)
        trust.remove(path.parent / LOCK_NAME)
        tell(f"{path} is not trusted{' any more' if was_trusted else ', and was not before'}.")
        if as_json:
            say(json_text({"file": str(path), "trusted": False}))
        return 0
    file = ProjectFile.read(path)
    values = file.values(file.keys)  # what is wrong is found now
    lock, content = read_lock(path.parent / LOCK_NAME)
    rights = [*rights_of(file.keys, path.parent), *_of_lock(lock, path.parent)]
    before = trust.rights_shown(path)
    if not show:
        trust.add(path, file.content, rights=[_line(each) for each in rights])
        if content:
            programs = programs_now(_started(lock, values, path.parent))
            trust.add(path.parent / LOCK_NAME, content, programs=programs)
    difference = _Difference.of(before, rights)
    if as_json:
        say(json_text(_document(path, file, trust, rights, difference)))
        return 0
    for line in _lines(path, rights, difference, is_shown=show):
        say(line)
    return 0


@frozen
class _Difference:
    """What is not as it was shown before."""

    added: tuple[str, ...]
    removed: tuple[str, ...]

    @classmethod
    def of(cls, before: Sequence[str] | None, rights: Sequence[Right]) -> _Difference | None:
        """None: what was shown before was not kept."""
        if before is None:
            return None
        now = [_line(each) for each in rights]
        return cls(
            tuple(each for each in now if each not in before),
            tuple(each for each in before if each not in now),
        )


def _line(right: Right) -> str:
    return one_line(f"{right.key}: {right.words}")


def _lines(
    path: Path, rights: Sequence[Right], difference: _Difference | None, *, is_shown: bool
) -> Iterator[str]:
    if difference is None:
        yield (
            f"{path} lets Minions do this:"
            if is_shown
            else (f"Trusted {path}, until it changes. It lets Minions do this:")
        )
        yield from (f"  {_line(each)}" for each in rights)
        return
    done = "" if is_shown else f"Trusted {path}, until it changes. "
    kept = len(rights) - len(difference.added)
    if not (difference.added or difference.removed):
        yield f"{done}It lets Minions do what it did when you trusted it:"
        yield from (f"  {_line(each)}" for each in rights)
        return
    yield f"{done}What differs from what you trusted; {kept} other rights are as they were:"
    yield from (f"  - {each}" for each in difference.removed)
    yield from (f"  + {each}" for each in difference.added)


def _document(
    path: Path,
    file: ProjectFile,
    trust: FolderTrust,
    rights: Sequence[Right],
    difference: _Difference | None,
) -> JsonValue:
    return {
        "file": str(path),
        "trusted": trust.holds(path, file.content),
        "keys": list(file.keys),
        "rights": [each.to_json() for each in rights],
        "added": None if difference is None else list(difference.added),
        "removed": None if difference is None else list(difference.removed),
    }


def _started(lock: Lock, values: Mapping[str, object], folder: Path) -> Mapping[str, ToolServer]:
    """The servers of the lock by the names under which their programs are known."""
    configured = cast("Mapping[str, McpSettings]", values.get("mcp", {}))
    named = {
        name: tool_server(name, each, folder)
        for name, each in configured.items()
        if name in lock.servers
    }
    return {**named, **{each.pinned.fingerprint: as_server(each) for each in lock.of_recipes}}


def _of_lock(lock: Lock, folder: Path) -> Iterator[Right]:
    """What recipes may call, and what is started for recipes that bring their servers along."""
    for name, pinned in lock.servers.items():
        yield from _tools(name, pinned)
    for own in lock.of_recipes:
        for right in server_rights(own.name, own.command, own.url, folder):
            yield evolve(right, key=f"{LOCK_NAME} {right.key} (of a recipe)")
        yield from _tools(f"{own.name} (of a recipe)", own.pinned)


def _tools(name: str, pinned: PinnedServer) -> Iterator[Right]:
    for tool in pinned.tools:
        digest = tool.digest.removeprefix("sha256:")[:12]
        words = f"lets recipes call {tool.shown_as} ({tool.effect.value}, sha256 {digest}…)"
        yield Right(key=f"{LOCK_NAME} {name}", words=words)
    for file, digest in (pinned.files or {}).items():
        short = digest.removeprefix("sha256:")[:12]
        yield Right(key=f"{LOCK_NAME} {name}", words=f"starts it with {file} (sha256 {short}…)")


def _file(folder: Path) -> Path:
    if not folder.is_dir():
        near = did_you_mean(folder.name, [each.name for each in folder.parent.glob("*/")])
        raise UsageError(f"There is no folder {folder}.{near}", code="no-configuration")
    found = project_file(folder.resolve())
    if found is None:
        raise UsageError(
            f"{folder.resolve()} has no configuration to trust: there is no minions.toml and no "
            "pyproject.toml with [tool.minions], neither there nor above it in its repository.",
            code="no-configuration",
        )
    return found
