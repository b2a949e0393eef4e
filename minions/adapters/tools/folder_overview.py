"""What is in a folder, in few words: large folders within it as counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from attrs import define, field

_MOST_NAMED: Final = 50
"""Files that are shown since a text names them."""
_MOST_ENDINGS: Final = 4
_SHORTEST_STEM: Final = 4
"""Characters of a name without its ending; a shorter one is found in too many texts."""


@define
class _Folder:
    path: str = ""
    """Empty, or with a slash at the end."""
    files: list[str] = field(factory=list)
    """Paths of the files directly in it."""
    folders: dict[str, _Folder] = field(factory=dict)
    """The folders in it by their names."""
    is_open: bool = False
    """Whether the folders in it are shown each."""
    has_names: bool = False
    """Whether the files in it are shown each."""

    def all_files(self) -> Iterator[str]:
        """Paths of the files in it and in all folders below."""
        pending = [self]
        while pending:
            folder = pending.pop()
            yield from folder.files
            pending += folder.folders.values()


def overview_lines(paths: Sequence[str], most: int) -> list[str]:
    """All paths if there are at most `most`; else about as many lines, with folders as counts.

    Folders are opened level by level as long as there is room. One that is not is shown as
    `src/ (812 files: 800 .py, 12 .md)`, and files of an open one without room for their names as
    `src/* (500 files: 500 .py)`.

    Args:
        paths: Paths of files with `/`, sorted.
    """
    if len(paths) <= most:
        return [*paths]
    root = _tree(paths)
    _open(root, most)
    return list(_lines(root))


def named_files(paths: Iterable[str], text: str) -> list[str]:
    """The files that a text names: by path, by name, or by the name without its ending.

    At most 50, in the order of the paths.
    """
    words = {word.strip("`'\"()[]<>,;:!?").removesuffix(".") for word in text.casefold().split()}
    named: list[str] = []
    for path in paths:
        name = path.casefold().rpartition("/")[2]
        stem = name.partition(".")[0]
        if words & {path.casefold(), name, stem if len(stem) >= _SHORTEST_STEM else name}:
            named.append(path)
            if len(named) == _MOST_NAMED:
                break
    return named


def _tree(paths: Iterable[str]) -> _Folder:
    root = _Folder()
    for path in paths:
        folder = root
        for name in path.split("/")[:-1]:
            above = folder.path
            folder = folder.folders.setdefault(name, _Folder(f"{above}{name}/"))
        folder.files.append(path)
    return root


def _open(root: _Folder, room: int) -> None:
    level = [root]
    while level:
        for folder in level:
            most = len(folder.folders) + len(folder.files)
            # The lines that its folders need, and one for its files.
            least = len(folder.folders) + bool(folder.files)
            folder.has_names = most <= room
            folder.is_open = folder.has_names or (least <= room and bool(folder.folders))
            if folder.is_open:
                room -= most if folder.has_names else least
        level = [each for folder in level if folder.is_open for each in folder.folders.values()]


def _lines(folder: _Folder) -> Iterator[str]:
    if not folder.is_open:
        yield f"{folder.path} {_counted([*folder.all_files()])}".strip()
        return
    if folder.has_names:
        yield from folder.files
    elif folder.files:
        yield f"{folder.path}* {_counted(folder.files)}"
    for each in folder.folders.values():
        yield from _lines(each)


def _counted(paths: Sequence[str]) -> str:
    """`(812 files: 800 .py, 12 .md)`."""
    endings = Counter(_ending(path) for path in paths)
    shown = [f"{count} {ending}" for ending, count in endings.most_common(_MOST_ENDINGS)]
    others = ", …" if len(endings) > _MOST_ENDINGS else ""
    return f"({len(paths)} files: {', '.join(shown)}{others})"


def _ending(path: str) -> str:
    name = path.rpartition("/")[2]
    dot = name.rfind(".", 1)
    return name[dot:][:12] if dot > 0 else "others"
