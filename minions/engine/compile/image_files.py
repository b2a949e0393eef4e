"""The images and files that a step shows to its model: from the recipe's own folder, or stored by a
tool of the run.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from minions.contracts.messages import (
    IMAGE_TYPES,
    MOST_IMAGE_BYTES,
    MOST_IMAGES,
    Attachment,
    attachment_of,
)
from minions.contracts.protected_files import is_secret
from minions.data.errors import FailureInfo, StepFailedError
from minions.data.json_values import JsonValue
from minions.recipe.expressions.template import Template

_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_FLAGS: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)
"""Without O_NONBLOCK, opening a FIFO would block until somebody opens its other end."""


def read_images(
    templates: Sequence[Template], values: Mapping[str, JsonValue], directory: str | None
) -> tuple[Attachment, ...]:
    """The images at the paths that the templates give; a list gives as many, nothing gives none.
    What a tool stored, `{media_type, digest, size}`, is loaded before the call.

    Args:
        directory: The recipe's folder: what a path may name lies beneath it, also where the path
            comes from an input. None: the recipe came without one.
    Raises:
        StepFailedError: `bad-image`: a file is missing, elsewhere, too large, or no image.
    """
    named = [each for template in templates for each in _named_images(template.render(values))]
    if len(named) > MOST_IMAGES:
        raise _bad(f"{len(named)} images are more than the {MOST_IMAGES} that a step may show.")
    return tuple(
        _find_stored(each) if isinstance(each, Mapping) else _read(each, directory)
        for each in named
    )


def _named_images(value: JsonValue) -> Sequence[str | Mapping[str, JsonValue]]:
    if value is None or value == "":
        return ()
    if isinstance(value, list | tuple):
        return [path for each in value for path in _named_images(each)]
    return (value,) if isinstance(value, Mapping) else (str(value),)


def _find_stored(about: Mapping[str, JsonValue]) -> Attachment:
    """An image that a tool of the run stored, as its result names it."""
    kind, digest, size = (about.get(name) for name in ("media_type", "digest", "size"))
    if not (isinstance(kind, str) and isinstance(digest, str) and isinstance(size, int)):
        raise _bad("A stored image is {media_type, digest, size}, as a tool's result has it.")
    if kind not in IMAGE_TYPES or not _DIGEST.fullmatch(digest):
        raise _bad(f"'{kind:.60}' is not shown to the model: it is no PNG, JPEG, GIF or WebP.")
    if size > MOST_IMAGE_BYTES:
        raise _bad(
            f"An image of {size:,} bytes is larger than {MOST_IMAGE_BYTES // 1_048_576} MiB."
        )
    return Attachment(media_type=kind, digest=digest, size=size)


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
    if is_secret(parts):
        raise _bad(f"'{path:.200}' is taken for a secret, so it is not shown to a model.")
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
