"""The images and files that a step shows to its model, read from the recipe's own folder."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from minions.contracts.attachments import MOST_IMAGE_BYTES, MOST_IMAGES, attachment_of
from minions.contracts.errors import FailureInfo, StepFailedError
from minions.contracts.json_values import JsonValue
from minions.contracts.messages import Attachment
from minions.recipe.expressions.template import Template

__all__ = ["read_images"]

_FLAGS: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)
"""Without O_NONBLOCK, opening a FIFO would block until somebody opens its other end."""


def read_images(
    templates: Sequence[Template], values: Mapping[str, JsonValue], directory: str | None
) -> tuple[Attachment, ...]:
    """The images at the paths that the templates give; a list gives as many, nothing gives none.

    Args:
        directory: The recipe's folder: what a path may name lies beneath it, also where the path
            comes from an input. None: the recipe came without one.
    Raises:
        StepFailedError: `bad-image`: a file is missing, elsewhere, too large, or no image.
    """
    paths = [path for template in templates for path in _paths(template.render(values))]
    if len(paths) > MOST_IMAGES:
        raise _bad(f"{len(paths)} images are more than the {MOST_IMAGES} that a step may show.")
    return tuple(_read(path, directory) for path in paths)


def _paths(value: JsonValue) -> Sequence[str]:
    if value is None or value == "":
        return ()
    if isinstance(value, list | tuple):
        return [path for each in value for path in _paths(each)]
    return (str(value),)


def _read(path: str, directory: str | None) -> Attachment:
    if directory is None:
        raise _bad(f"'{path:.200}' cannot be read: the recipe has no folder of its own.")
    home = Path(os.path.realpath(directory))
    try:
        place = Path(os.path.realpath(home / path))
    except ValueError as error:  # a NUL character, which no file name has
        raise _bad(f"'{path!r:.200}' is no path.") from error
    parts = place.relative_to(home).parts if place.is_relative_to(home) else ("..",)
    if any(part.startswith(".") for part in parts):
        raise _bad(
            f"'{path:.200}' is not beneath the recipe's folder {home}, or hidden. Images of a "
            "step lie there, links included."
        )
    try:
        return attachment_of(_content(place), place.name)
    except OSError as error:
        raise _bad(f"'{path:.200}' cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise _bad(f"'{path:.200}' is not shown to the model: {error}.") from error


def _content(place: Path) -> bytes:
    """The content, at most a byte more than may be shown."""
    descriptor = os.open(place, _FLAGS)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ValueError("it is no regular file")
    with open(descriptor, "rb") as file:  # noqa: PTH123  # by its descriptor
        return file.read(MOST_IMAGE_BYTES + 1)


def _bad(message: str) -> StepFailedError:
    return StepFailedError(FailureInfo(code="bad-image", message=message))
