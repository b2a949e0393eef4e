"""`minions skill`: what a coding agent needs to write, check and run recipes."""

from __future__ import annotations

import os
from importlib.resources import files
from pathlib import Path
from typing import Final

import click

from minions.data.errors import EnvironmentRefusedError, UsageError
from minions.data.texts import shell_word
from minions.interfaces.cli.console.console import json_text, say, tell
from minions.interfaces.cli.options import OutputOptions, command_context, takes_options

_FILES: Final = ("SKILL.md", "examples.md", "keys.md", "commands.md", "faults.md")
_NAME: Final = "minions"
"""The folder of the skill, and its name in `SKILL.md`."""


@click.command("skill")
@click.option("--install", metavar="DIR", help="Write the skill into a folder of DIR.")
@click.option("--force", is_flag=True, help="Overwrite files that differ.")
@takes_options(OutputOptions)
def skill_command(options: OutputOptions, *, install: str | None, force: bool) -> int:
    """Print what a coding agent needs to write, check, test and run recipes.

    With --install it is written as a skill: DIR/minions/SKILL.md and the pages that it names.
    DIR is where the agent looks for skills.
    """
    context = command_context(options)
    texts = {name: _text(name) for name in _FILES}
    if install is None:
        if context.settings.json:
            say(json_text(dict(texts)))
        else:
            say(texts["SKILL.md"])
        return 0
    target = Path(install).expanduser() / _NAME
    if not target.parent.is_dir():
        raise UsageError(f"There is no folder {target.parent}.", code="not-writable")
    if not force:
        _refuse_others(target, texts)
    try:
        target.mkdir(exist_ok=True)
        for name, text in texts.items():
            (target / name).write_text(text, "utf-8")
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else str(error)
        raise EnvironmentRefusedError(
            f"{target} cannot be written: {why}.", code="not-writable"
        ) from error
    if context.settings.json:
        say(json_text({"folder": str(target), "files": list(texts)}))
    else:
        tell(f"wrote {shell_word(str(target))}: {', '.join(texts)}")
    return 0


def _refuse_others(target: Path, texts: dict[str, str]) -> None:
    """Check that only what is the same would be overwritten.

    Raises:
        UsageError: `already-there`; a file differs, or the folder is none.
    """
    if os.path.lexists(target) and not target.is_dir():
        raise UsageError(f"{target} exists and is no folder.", code="already-there")
    for name, text in texts.items():
        path = target / name
        if os.path.lexists(path) and not (path.is_file() and path.read_text("utf-8") == text):
            raise UsageError(
                f"{path} exists and differs: nothing was changed. Overwrite it with --force.",
                code="already-there",
            )


def _text(name: str) -> str:
    return files("minions.interfaces.skill").joinpath(name).read_text("utf-8")
