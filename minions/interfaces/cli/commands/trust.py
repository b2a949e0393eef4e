"""`minions trust`: makes a folder's configuration count."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import click

from minions.contracts.errors import UsageError, did_you_mean
from minions.interfaces.cli.console.console import json_text, say, tell
from minions.interfaces.folder_trust import FolderTrust
from minions.interfaces.setting_sources import ProjectFile
from minions.interfaces.wiring.mcp import LOCK_NAME, Lock, as_server, read_lock
from minions.recipe.project_folders import project_file

__all__ = ["command"]


@click.command("trust")
@click.argument("directory", default=".", metavar="[DIR]")
@click.option("--show", is_flag=True, help="Show what would count; trust nothing.")
@click.option("--remove", is_flag=True, help="Trust it no longer.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object at the end.")
def command(directory: str, *, show: bool, remove: bool, as_json: bool) -> int:
    """Make the minions.toml or pyproject.toml of DIR (default: here) count until it changes.

    Such a file names code that is loaded, servers that get your keys, and who approves. Of one that
    you have not trusted, only harmless keys are read. Look at it before.
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
    file.values(file.keys)  # what is wrong is found now
    lock, content = read_lock(path.parent / LOCK_NAME)
    if not show:
        trust.add(path, file.content)
        if content:
            trust.add(path.parent / LOCK_NAME, content)
    if as_json:
        is_trusted = trust.holds(path, file.content)
        say(json_text({"file": str(path), "trusted": is_trusted, "keys": list(file.keys)}))
        return 0
    say(f"{path} has:" if show else f"Trusted {path}, until it changes. What counts now:")
    for line in _shown(file.keys):
        say(f"  {line}")
    for line in _locked(lock):
        say(f"  {line}")
    return 0


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


def _locked(lock: Lock) -> Iterator[str]:
    """The servers whose tools runs may call, and what is started for recipes."""
    for name, pinned in lock.servers.items():
        yield f"{LOCK_NAME} {name}: {', '.join(tool.name for tool in pinned.tools) or 'no tools'}"
    for own in lock.of_recipes:
        yield f"{LOCK_NAME} {own.name} (of a recipe): {as_server(own).words}"


def _shown(keys: Mapping[str, object]) -> Iterator[str]:
    """The keys with all that they hold: what is cut off could be what matters."""
    for key, value in keys.items():
        if isinstance(value, Mapping):
            for name, inner in value.items():
                yield f"[{key}] {name}: {_inner(inner)}"
        elif isinstance(value, list):
            for each in value:
                yield f"{key}: {each!r}"
        else:
            yield f"{key}: {value!r}"


def _inner(value: object) -> str:
    if not isinstance(value, Mapping):
        return repr(value)
    shown = (f"{key} = {'…' if key == 'headers' else repr(each)}" for key, each in value.items())
    return ", ".join(shown)
