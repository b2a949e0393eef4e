"""The recipe files in folders, by path and by id."""

from __future__ import annotations

import contextlib
import re
import stat
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from minions.data.bounded_files import open_regular
from minions.data.errors import NotFoundError, near_hint, near_names
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
