"""The program of a server as it is now: which file is started, and what of it was looked at.

A command is a name; the file behind it may be another one tomorrow. So the files that decide what
runs are known by their hashes: the program itself, and what it is told to run or to load.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from attrs import frozen

_INTERPRETERS: Final = re.compile(
    r"(?:python|pypy|node|bun|deno|ruby|perl|php|lua|java|pwsh|bash|dash|zsh|sh|ksh|fish|tsx|"
    r"ts-node|Rscript|wasmtime|uv|uvx|env|nice|nohup|timeout|time|xargs|sudo)[\d.]*(?:\.exe)?"
)
"""Programs whose first argument that is a file is what they run."""
_CODE: Final = frozenset(
    {
        *(".py", ".pyz", ".pyc", ".js", ".mjs", ".cjs", ".ts", ".mts", ".cts", ".sh", ".bash"),
        *(".rb", ".pl", ".pm", ".php", ".lua", ".ps1", ".jar", ".wasm", ".whl", ".so", ".dylib"),
        *(".r", ".exe", ".bat", ".cmd", ".zsh"),
    }
)
_OF_FOLDERS: Final = ("__main__.py", "package.json", "index.js", "index.mjs", "index.ts")
"""What interpreters run of a folder."""
_MOST_BYTES: Final = 1024 * 1_048_576
"""Bytes of a file that is read whole: a second."""
_MOST_FILES: Final = 100
"""Files of one command; a longer one has arguments that say what they are."""


@frozen(kw_only=True)
class ProgramChange:
    """A file that is not the one that was looked at."""

    name: str
    before: str | None
    """Its hash when it was looked at; None: it was not there."""
    now: str | None
    """Its hash now; None: it is not there any more."""

    @property
    def words(self) -> str:
        """What changed, for people."""
        if self.before is None:
            return f"{self.name} is new ({short_digest(self.now or '')})"
        if self.now is None:
            return f"{self.name} is gone"
        return f"{self.name} was {short_digest(self.before)} and is {short_digest(self.now)}"


@frozen(kw_only=True)
class ServerProgram:
    """The program that a command starts now."""

    path: str
    """The file that is started, absolute."""
    folders: str
    """Folders in which it finds other programs, as a value of PATH."""
    files: Mapping[str, Path]
    """What decides what runs, by the names that the command gives it; the program is the first."""

    def seen(self, beneath: Path | None = None) -> dict[str, str]:
        """The hashes of the files as they are now. Reads them whole.

        Args:
            beneath: Only files in this folder that are named by a relative path, so that they are
                the same wherever the folder is; None: all.
        """
        root = None if beneath is None else Path(os.path.realpath(beneath))
        return {
            name: digest_of_file(path)
            for name, path in self.files.items()
            if root is None or self._is_beneath(root, name, path)
        }

    def _is_beneath(self, root: Path, name: str, path: Path) -> bool:
        is_looked_up = os.sep not in name and name == next(iter(self.files))
        if is_looked_up or os.path.isabs(name):  # noqa: PTH117
            return False
        return Path(os.path.realpath(path)).is_relative_to(root)

    def changes(
        self, before: Mapping[str, str], beneath: Path | None = None
    ) -> list[ProgramChange]:
        """What is not as it was seen.

        Args:
            beneath: As it was seen.
        """
        now = self.seen(beneath)
        return [
            ProgramChange(name=name, before=before.get(name), now=now.get(name))
            for name in {**now, **before}
            if before.get(name) != now.get(name)
        ]


@frozen(kw_only=True)
class ProgramCheck:
    """What a program has to be to be started: as it was when somebody looked at it."""

    in_lock: Mapping[str, str] | None = None
    """Hashes of files beneath the folder of the lock, which come with it; None: nobody looked."""
    folder: Path | None = None
    """That folder."""
    on_machine: Mapping[str, str] | None = None
    """Hashes of all files on this machine; None: nobody looked at them here."""

    def changes(self, program: ServerProgram) -> list[ProgramChange]:
        """What is not as it was. Reads files whole."""
        found: list[ProgramChange] = []
        if self.on_machine is not None:
            found += program.changes(self.on_machine)
        if self.in_lock is not None:
            found += program.changes(self.in_lock, self.folder)
        return list({each.name: each for each in found}.values())


def find_program(
    command: Sequence[str],
    folder: str | None,
    variables: Mapping[str, str],
    path: str | None = None,
) -> ServerProgram:
    """The program of a command.

    Args:
        folder: Where it starts; None: the current one.
        variables: What it is given beside the few that are inherited, as it was written.
        path: The PATH of its environment; None: as the variables say, else that of this process.
    Raises:
        OSError: There is no such program, or it may not be started.
    """
    here = Path(folder or ".").absolute()
    said = path or variables.get("PATH", "env:PATH")
    if said.startswith("env:"):
        said = os.environ.get(said.removeprefix("env:")) or os.defpath
    folders, refused = safe_folders(said)
    name, kept = command[0], os.pathsep.join(folders)
    if os.sep in name:
        found = str(here / name)
        if not os.path.isfile(found) or not os.access(found, os.X_OK):  # noqa: PTH113
            raise OSError(f"there is no program {found}")
    else:
        looked_up = shutil.which(name, path=kept)
        if looked_up is None:
            raise OSError(
                f"there is no program {name} in the folders of PATH{_also(name, refused)}"
            )
        found = looked_up
    files = {name: Path(found)}
    for written, file in _named_code(name, command[1:], variables, here):
        if len(files) < _MOST_FILES:
            files.setdefault(written, file)
    return ServerProgram(path=found, folders=kept, files=files)


def _also(name: str, refused: Sequence[str]) -> str:
    """Why a program that a shell finds is not found here."""
    at = next((each for each in refused if shutil.which(name, path=each or ".")), None)
    if at is None:
        return ""
    return (
        f"; the one in {at or '.'!r} is not taken, since that entry is relative or everybody may "
        "write there: name the program by its path"
    )


def safe_folders(path: str) -> tuple[list[str], list[str]]:
    """The entries of a PATH in which programs are looked for, and the others: those that are empty,
    relative, or writable by everybody, where a stranger may put a program.
    """
    kept: list[str] = []
    refused: list[str] = []
    for entry in path.split(os.pathsep):
        (kept if os.path.isabs(entry) and not _may_others_write(entry) else refused).append(entry)  # noqa: PTH117
    return kept, refused


def _may_others_write(folder: str) -> bool:
    """Whether everybody may put files there, or put another folder in its place."""
    place = Path(os.path.realpath(folder))
    try:
        if place.stat().st_mode & stat.S_IWOTH:
            return True
        modes = [each.stat().st_mode for each in place.parents]
    except OSError:
        return False  # it is not there
    return any(mode & stat.S_IWOTH and not mode & stat.S_ISVTX for mode in modes)


def _named_code(
    program: str, arguments: Sequence[str], variables: Mapping[str, str], here: Path
) -> Iterator[tuple[str, Path]]:
    """The files that the arguments and variables name, and that hold code."""
    is_interpreter = _INTERPRETERS.fullmatch(Path(program).name) is not None
    before = ""
    for argument in arguments:
        for text in _texts_in(argument):
            path = _file(here, text)
            if path is not None and (_holds_code(path) or (is_interpreter and text == argument)):
                is_interpreter = False  # what follows are arguments of what it runs
                yield text, path
        if before == "-m":
            module = argument.replace(".", "/")
            yield from _first_files(here, [f"{module}.py", f"{module}/__init__.py"])
            yield from _first_files(here, [f"{module}/__main__.py"])
        elif is_interpreter and not argument.startswith("-"):
            yield from _first_files(here, [f"{argument}/{name}" for name in _OF_FOLDERS])
        before = argument
    for value in variables.values():
        for text in re.split(r"[\s:=;,]+", value):
            path = _file(here, text)
            if path is not None and _holds_code(path):
                yield text, path


def _texts_in(argument: str) -> Iterator[str]:
    yield argument
    _, equals, value = argument.partition("=")
    if equals:
        yield value
    if " " in argument:  # of a shell
        yield from re.split(r"[\s;&|()<>\"']+", argument)


def _file(here: Path, text: str) -> Path | None:
    path = here / text
    return path if os.path.isfile(path) else None  # noqa: PTH113  # of no text it raises an error


def _holds_code(path: Path) -> bool:
    if path.suffix.lower() in _CODE or os.access(path, os.X_OK):
        return True
    try:
        with path.open("rb") as file:
            return file.read(2) == b"#!"
    except OSError:
        return False


def _first_files(here: Path, names: Sequence[str]) -> Iterator[tuple[str, Path]]:
    """Those of the files that are there: an interpreter that is given a folder runs one of them."""
    for name in names:
        if (path := _file(here, name)) is not None:
            yield name, path


def digest_of_file(path: Path) -> str:
    """The hash of a file; of one that cannot be read, or takes long, what tells it from another.

    Raises:
        OSError: It is not there.
    """
    about = path.stat()
    if stat.S_ISREG(about.st_mode) and about.st_size <= _MOST_BYTES:
        with contextlib.suppress(PermissionError), path.open("rb") as file:
            return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"
    return f"unread:{about.st_dev}-{about.st_ino}-{about.st_size}-{about.st_ctime_ns}"


def short_digest(digest: str) -> str:
    """The beginning of a hash, for people: `sha256 1f0c…`."""
    name, _, text = digest.partition(":")
    return f"{name} {text[:12]}…"
