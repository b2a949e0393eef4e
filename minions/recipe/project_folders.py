"""The folders in which a recipe may name files: those of its project and of the operator."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, cast

from attrs import frozen

from minions.data.bounded_files import read_regular
from minions.data.errors import UsageError
from minions.data.texts import parse_toml

_MOST_BYTES: Final = 1024 * 1024
USUAL_FOLDER: Final = Path("recipes")
"""The folder below the current one in which recipes are found by their id."""


def project_file(folder: Path) -> Path | None:
    """The nearest configuration file in this or an outer folder, up to the root of the
    repository.

    Raises:
        UsageError: A `pyproject.toml` on the way cannot be read.
    """
    for place in (folder, *folder.parents):
        if (place / "minions.toml").is_file():
            return place / "minions.toml"
        pyproject = place / "pyproject.toml"
        if pyproject.is_file() and _has_section(pyproject):
            return pyproject
        if (place / ".git").exists():
            return None
    return None


def project_root(folder: Path) -> Path | None:
    """The folder of the project's configuration, else the root of the
    repository; None: neither exists.
    """
    try:
        file = project_file(folder)
    except UsageError as error:  # unreadable, but maybe the project's own: search no further
        file = Path(cast("str", error.where))
    if file is not None:
        return file.parent
    return next((each for each in (folder, *folder.parents) if (each / ".git").exists()), None)


def project_of(folder: Path) -> str:
    """The folder that names the project of what is made there: its root, else the folder itself."""
    return os.path.realpath(project_root(folder) or folder)


def _has_section(pyproject: Path) -> bool:
    tools: object = toml_tables(pyproject, read_bytes(pyproject)).get("tool")
    return isinstance(tools, dict) and isinstance(tools.get("minions"), dict)


def read_bytes(path: Path) -> bytes:
    """The content of a configuration file.

    Raises:
        UsageError: `bad-configuration`: the file cannot be read.
    """
    try:
        content = read_regular(path, _MOST_BYTES)
    except OSError as error:
        raise UsageError(
            f"{path}: {error.strerror}.", code="bad-configuration", where=str(path)
        ) from error
    if len(content) > _MOST_BYTES:
        raise UsageError(
            f"{path}: larger than {_MOST_BYTES} bytes, which no configuration is.",
            code="bad-configuration",
            where=str(path),
        )
    return content


def toml_tables(path: Path, content: bytes) -> dict[str, dict[str, object]]:
    """The tables of a TOML file with that content.

    Raises:
        UsageError: `bad-configuration`: it is no TOML.
    """
    try:
        return cast("dict[str, dict[str, object]]", parse_toml(content.decode("utf-8")))
    except ValueError as error:
        raise UsageError(
            f"{path}: not readable as TOML: {error}.", code="bad-configuration", where=str(path)
        ) from error


@frozen
class NamedFiles:
    """The files that a recipe may name, and the recipes that it names may name in turn."""

    home: Path
    """The folder of the outermost recipe."""
    folders: tuple[Path, ...] = ()
    """The server's folders of recipes; empty: a person named the recipe,
    so that its own folder counts.
    """

    def check(self, path: Path, name: str) -> None:
        """Refuse a path outside of these folders, whether or not the file exists.

        Args:
            name: The path as written, for the message.
        Raises:
            UsageError: `outside-project`.
        """
        if not self.hold(path):
            raise UsageError(
                f"'{name:.200}' is outside of the project: files that a recipe names, and what "
                f"links lead to, lie beneath {' or '.join(map(str, self._roots()))}. Move the "
                "file there, or put a minions.toml into the folder that is to be the project.",
                code="outside-project",
            )

    def hold(self, path: Path) -> bool:
        """Whether the path and its folder lie in these folders after following links."""
        try:
            places = {Path(os.path.realpath(path)), Path(os.path.realpath(path.parent))}
        except ValueError:  # a NUL character, which no file name has
            return False
        return _are_beneath(places, self._roots())

    def _roots(self) -> Iterator[Path]:
        """The allowed folders, those that cost least to find first."""
        home = Path(os.path.realpath(self.home))
        yield from (Path(os.path.realpath(folder)) for folder in self.folders)
        if not self.folders:
            yield Path(os.path.realpath(USUAL_FOLDER))
        if (root := project_root(home)) is not None:
            yield root
        elif not self.folders:
            yield home


def _are_beneath(places: Iterable[Path], roots: Iterable[Path]) -> bool:
    left = set(places)
    for root in roots:
        left = {place for place in left if not place.is_relative_to(root)}
        if not left:
            return True
    return False
