"""The recipe files in folders, by path and by id, and the folders whose files recipes may name."""

from __future__ import annotations

import contextlib
import os
import re
import stat
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct

from minions.data.bounded_files import open_regular, read_regular
from minions.data.errors import NotFoundError, UsageError, near_hint, near_names
from minions.data.json_values import as_text
from minions.data.texts import parse_toml
from minions.recipe.text.key_types import NAME_PATTERN

SUFFIXES: Final = (".yaml", ".yml")
_HEAD_BYTES: Final = 65_536
_LONGEST_SLUG: Final = 200
_ID_LINE: Final = re.compile(
    rb"^id:[ \t]+[\"']?([A-Za-z0-9_.-]+)[\"']?[ \t]*(?:#.*)?\r?$", re.MULTILINE
)
_COMMENT: Final = re.compile(rb"[ \t]#")
_NAME_LINE: Final = re.compile(
    rb"^name:[ \t]*(?:"
    rb"(?:\"([^\"\n]*)\"|'([^'\n]*)')(?:[ \t]+#[^\n]*|[ \t]*)\r?$|([^\"'#\n][^\n]*))",
    re.MULTILINE,
)


def find_recipe(name_or_path: str, folders: Sequence[Path]) -> Path:
    """The file of an existing path, else of the id under `folders`, else of that name there.

    Raises:
        NotFoundError: None exists (`recipe-not-found`), or several files of a folder have the name;
            the message names the folders.
    """
    path = _expand(name_or_path)
    if is_file(path):
        return path
    known = recipe_ids(folders)
    if name_or_path in known:
        return known[name_or_path]
    for folder in folders:
        called = [each for each in _files(folder) if each.stem == name_or_path]
        if len(called) == 1:
            return called[0]
        if called:
            raise NotFoundError(
                f"No recipe has the id '{name_or_path}', and several files are called so: "
                f"{', '.join(map(str, called))}. Name one of them.",
                code="recipe-not-found",
                suggestions=[str(each) for each in called],
            )
    raise _not_found(name_or_path, folders, known)


def _expand(name: str) -> Path:
    try:
        return Path(name).expanduser()
    except RuntimeError:  # `~name` of a user that does not exist
        return Path(name)


def is_file(path: Path) -> bool:
    """Whether it is a file; False also for a name that no file can have."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def is_recipe_text(source: str) -> bool:
    """Whether it is the text of a recipe, and no name: it has several lines, or begins as JSON."""
    return "\n" in source or source.lstrip().startswith("{")


def _always(_: Path) -> bool:
    return True


def recipe_ids(
    folders: Sequence[Path], may_read: Callable[[Path], bool] = _always
) -> dict[str, Path]:
    """Paths of all recipes under `folders` by id.

    Of several with one id the first folder wins, then the one that is named like it, then the first
    path: no file takes the place of another by what it says. The others are found by their names.

    Args:
        may_read: Whether a file may be read for its id; if not, its stem is taken as its id.
    """
    return _by_id([list(_files(folder)) for folder in folders], may_read)


def recipe_ids_beside(folder: Path, may_read: Callable[[Path], bool] = _always) -> dict[str, Path]:
    """Paths of the recipes directly in that folder by id; of several with one id as `recipe_ids`.

    Args:
        may_read: Whether a file may be read for its id; if not, its stem is taken as its id.
    """
    paths: list[Path] = []
    with contextlib.suppress(OSError):
        names = (path for path in folder.iterdir() if path.suffix in SUFFIXES)
        paths = sorted(path for path in names if path.is_file())
    return _by_id([paths], may_read)


def _by_id(folders: Iterable[Sequence[Path]], may_read: Callable[[Path], bool]) -> dict[str, Path]:
    found: dict[str, Path] = {}
    others: list[Path] = []
    for paths in folders:
        ids = [(_id_of(path, may_read), path) for path in paths]
        for recipe_id, path in sorted(ids, key=lambda each: each[0] != each[1].stem):
            if found.setdefault(recipe_id, path) is not path:
                others.append(path)
    for path in others:
        found.setdefault(path.stem, path)
    return found


def _files(folder: Path) -> Iterator[Path]:
    if folder.is_dir():
        found = (path for path in folder.rglob("*") if path.suffix in SUFFIXES)
        # Regular files only: reading a named pipe would block until somebody writes to it.
        yield from sorted(path for path in found if path.is_file())


def _id_of(path: Path, may_read: Callable[[Path], bool]) -> str:
    return recipe_id_of(path) if may_read(path) else path.stem


def recipe_id_of(path: Path) -> str:
    """The id at the top level of the file, else one made from its name, else the file's stem.

    The file is searched, not parsed: it may be broken.
    """
    try:
        with open_regular(path) as file:
            head = file.read(_HEAD_BYTES)
    except OSError:
        return path.stem
    if (written := _ID_LINE.search(head)) is not None:
        return written[1].decode()
    named = _NAME_LINE.search(head)
    name = next((text for text in named.groups() if text is not None), b"") if named else b""
    if named and named[3] is not None:  # not quoted: a comment may follow
        name = _COMMENT.split(name, maxsplit=1)[0].strip()
    return slug_of(name.decode("utf-8", "replace")) or path.stem


def slug_of(name: str) -> str:
    """The id of a recipe that has only a name: `day-watch` of "Day Watch".

    A name that is a valid id stays as it is; one without an ASCII letter or digit gives "".
    """
    if re.fullmatch(NAME_PATTERN, name):
        return name
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().lower()
    return re.sub(r"[^a-z0-9_.-]+", "-", plain)[:_LONGEST_SLUG].strip("-.")


def _near_files(path: Path) -> tuple[str, ...]:
    """Recipes in the folder of `path` that have a similar name."""
    if path.suffix not in SUFFIXES:
        return ()
    by_stem: dict[str, str] = {}
    with contextlib.suppress(OSError):
        for other in sorted(path.parent.iterdir()):
            if other.suffix in SUFFIXES:
                by_stem.setdefault(other.stem, other.name)
    return tuple(str(path.with_name(by_stem[stem])) for stem in near_names(path.stem, by_stem))


def _why_no_file(path: Path) -> str:
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return "no such file"
    return "it is a folder" if stat.S_ISDIR(mode) else "it is no regular file"


def _not_found(name: str, folders: Sequence[Path], known: dict[str, Path]) -> NotFoundError:
    stem = Path(name).stem if name.endswith(SUFFIXES) else name
    near = _near_files(_expand(name)) or near_names(stem, known)
    looked = ", ".join(str(folder) for folder in folders) or "no folder"
    hint = near_hint(near)
    there = f" Recipes there: {', '.join(sorted(known)[:10])}." if known else ""
    file = _why_no_file(_expand(name))
    return NotFoundError(
        f"There is no recipe '{name}': {file}, and no such id in {looked}.{hint}{there}",
        code="recipe-not-found",
        suggestions=near,
    )


# --- the folders in which a recipe may name files ------------------------------------------------


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
        file = Path(as_text(error.where))
    if file is not None:
        return file.parent
    return next((each for each in (folder, *folder.parents) if (each / ".git").exists()), None)


def project_of(folder: Path) -> str:
    """The folder that names the project of what is made there: its root, else the folder itself."""
    return os.path.realpath(project_root(folder) or folder)


def _has_section(pyproject: Path) -> bool:
    tools = toml_values(pyproject, read_bytes(pyproject)).get("tool")
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


def toml_values(path: Path, content: bytes) -> dict[str, object]:
    """The values of a TOML file with that content.

    Raises:
        UsageError: `bad-configuration`: it is no TOML.
    """
    try:
        return parse_toml(content.decode("utf-8"))
    except ValueError as error:
        raise UsageError(
            f"{path}: not readable as TOML: {error}.", code="bad-configuration", where=str(path)
        ) from error


class NamedFiles(Struct, frozen=True):
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
