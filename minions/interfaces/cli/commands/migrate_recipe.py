"""`minions migrate` of a file that is a recipe already: mends its words, without a model."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from minions.contracts.bounded_files import read_regular
from minions.contracts.errors import UsageError
from minions.contracts.json_values import JsonValue
from minions.interfaces.cli.console.console import json_text, say, tell
from minions.interfaces.cli.console.render import fault_to_json, faults_lines, stderr_painter
from minions.interfaces.cli.options import CommandContext
from minions.planning.mending import MendedRecipe, mend_recipe
from minions.recipe.library import SUFFIXES

__all__ = ["is_recipe_text", "mend_file"]

_STEPS: Final = re.compile(r"^steps:", re.MULTILINE)
_MOST_BYTES: Final = 1_048_576
"""Bytes of a recipe."""


def is_recipe_text(file: Path) -> bool:
    """Whether the text has steps, be it YAML or not."""
    return _STEPS.search(_read(file)) is not None


def mend_file(file: Path, target: Path | None, context: CommandContext, *, force: bool) -> int:
    """Mend the recipe, print the change and what is left; the exit code.

    Args:
        target: Where to write; None: in its place.
        force: Whether a target that exists is written over.
    """
    text = _read(file)
    mended = mend_recipe(text, str(file), context.catalog())
    # A text file is no place for a recipe, which is found by its name's ending.
    is_copied = target is not None and file.suffix not in SUFFIXES and not mended.errors
    is_written = bool(mended.mendings or is_copied) and not context.settings.dry_run
    if is_written and target is not None:
        _write_new(target, mended.text, force=force)
    elif is_written:
        _replace(file, mended.text)
    if context.settings.json:
        say(json_text(_to_json(mended, file, target or file if is_written else None)))
    elif diff := mended.diff(str(file)):
        say(diff)
    for line in _lines(mended, file, str(target or file) if is_written else None):
        tell(line)
    return 2 if mended.errors else 0


def _lines(mended: MendedRecipe, file: Path, written: str | None) -> Iterator[str]:
    count = len(mended.mendings)
    if not count and not mended.errors and written is not None:
        yield f"Wrote {written}, the recipe as it is. Nothing had to be mended."
        return
    if not count and not mended.errors:
        yield f"{file} is a recipe already, and it is valid. Nothing to do."
        return
    words = f"{count} word{'s' * (count != 1)}"
    if written is not None:
        yield f"Mended {words}: {written}"
    elif count:
        yield f"{words} can be mended; nothing was written."
    if mended.errors:
        left = len(mended.errors)
        if count:
            yield f"left for you: {left} fault{'s' * (left != 1)}"
        yield from faults_lines(mended.errors, stderr_painter())


def _to_json(mended: MendedRecipe, file: Path, written: Path | None) -> dict[str, JsonValue]:
    return {
        "file": str(file),
        "written": str(written) if written is not None else None,
        "mended": [
            {"line": each.line, "before": each.before, "after": each.after}
            for each in mended.mendings
        ],
        "left": [fault_to_json(fault) for fault in mended.errors],
        "diff": mended.diff(str(file)),
    }


def _read(file: Path) -> str:
    """The text with its line ends, which the reader of instructions has checked."""
    try:
        content = read_regular(file, _MOST_BYTES)
        if len(content) > _MOST_BYTES:
            raise UsageError(f"{file} has more than 1 MiB: no recipe has.", code="unreadable")
        return content.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file} cannot be read: {error}.", code="unreadable") from error


def _replace(file: Path, text: str) -> None:
    """Write the file whole or not at all, with its rights."""
    path = file.resolve()
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        part = Path(name)
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(text.encode())
            part.chmod(path.stat().st_mode)
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise _unwritable(file, error) from error


def _write_new(target: Path, text: str, *, force: bool) -> None:
    try:
        with target.open("wb" if force else "xb") as stream:
            stream.write(text.encode())
    except OSError as error:
        raise _unwritable(target, error) from error


def _unwritable(path: Path, error: OSError) -> UsageError:
    return UsageError(f"{path} cannot be written: {error.strerror}.", code="not-writable")
