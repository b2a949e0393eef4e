"""Recipes that a command writes: where to, and what is never overwritten unasked."""

from __future__ import annotations

import os
from pathlib import Path

from minions.data.errors import UsageError


def refuse_target(target: Path | None, *, force: bool) -> None:
    """Check the target before a model is paid for a recipe that cannot be written.

    Raises:
        UsageError: The file exists, or its folder does not, or cannot be written into.
    """
    if target is None:
        return
    if target.is_dir():
        raise UsageError(f"{target} is a folder. Name a file.", code="already-there")
    if os.path.lexists(target) and not force:
        raise UsageError(
            f"{target} exists already and was not changed. Name another file, or overwrite it "
            "with --force.",
            code="already-there",
        )
    if not target.parent.is_dir():
        raise UsageError(f"There is no folder {target.parent}.", code="not-writable")
    if not os.access(target.parent, os.W_OK | os.X_OK):
        raise UsageError(
            f"{target} cannot be written: you have no right to write into its folder.",
            code="not-writable",
        )


def write_recipe(target: Path, text: str, *, force: bool) -> None:
    """Write the file; without `force` refuse one that was written meanwhile.

    Raises:
        UsageError: It exists by now, or cannot be written.
    """
    try:
        with target.open("w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        raise UsageError(
            f"{target} exists by now and was not changed.", code="already-there"
        ) from error
    except OSError as error:
        raise UsageError(
            f"{target} cannot be written: {error.strerror}.", code="not-writable"
        ) from error
