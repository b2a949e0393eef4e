"""`minions init`: makes a project whose recipe runs without a key."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Final

import click

from minions.app.settings.folder_trust import FolderTrust
from minions.app.settings.setting_sources import ProjectFile
from minions.data.errors import EnvironmentRefusedError, UsageError
from minions.interfaces.cli.console.console import say, tell
from minions.recipe.editor_schema import recipe_schema

_STARTER: Final = "minions.interfaces.starter"
_SCHEMA: Final = Path("recipe.schema.json")
"""What the first line of a recipe names for editors; `minions schema` prints the same."""
_LEFT_OUT: Final = ("__init__.py", "__pycache__")


@click.command("init")
@click.argument("directory", default=".", metavar="[DIR]")
def command(directory: str) -> int:
    """Make a project in DIR (default: here). Overwrites nothing."""
    target = Path(directory)
    wanted = {path: found.read_bytes() for path, found in _starter_files(files(_STARTER), Path())}
    wanted[_SCHEMA] = json.dumps(recipe_schema(), ensure_ascii=False, indent=2).encode() + b"\n"
    taken = [str(target / path) for path in wanted if (target / path).exists()]
    if taken:
        raise UsageError(
            f"These files exist already and were not changed: {', '.join(taken)}. "
            "Choose another directory.",
            code="already-there",
        )
    try:
        for path, source in wanted.items():
            (target / path).parent.mkdir(parents=True, exist_ok=True)
            (target / path).write_bytes(source)
    except OSError as error:
        raise UsageError(f"{target}: {error.strerror}.", code="not-writable") from error
    _trust(target)
    say(f"Made {len(wanted)} files in {target.resolve()}.")
    go_there = f"cd {directory} && " if directory != "." else ""
    tell(f"Try it: {go_there}minions run hello")
    return 0


def _trust(target: Path) -> None:
    """Trust what was written; without a list of trusted files the user says so later."""
    file = ProjectFile.read(target.resolve() / "minions.toml")
    try:
        FolderTrust().add(file.path, file.content)
    except EnvironmentRefusedError as error:
        tell(f"note: its minions.toml does not count yet: {error.message}")


def _starter_files(folder: Traversable, path: Path) -> Iterator[tuple[Path, Traversable]]:
    for item in sorted(folder.iterdir(), key=lambda item: item.name):
        if item.name in _LEFT_OUT:
            continue
        if item.is_dir():
            yield from _starter_files(item, path / item.name)
        else:
            yield path / item.name, item
