"""The toolset `files`: read, list, glob, search, write and edit below one root."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Annotated, BinaryIO, Final, cast

import attrs
from attrs import Factory, field, frozen

from minions.adapters.tools.confined_folder import ConfinedFolder, FolderEntry, Place
from minions.adapters.tools.function_tool import tool
from minions.adapters.tools.glob_pattern import GlobPattern
from minions.adapters.tools.line_matcher import LineMatcher
from minions.contracts.codec import decode
from minions.contracts.errors import ToolError
from minions.contracts.json_values import JsonValue
from minions.contracts.schema import schema_of
from minions.contracts.tools import Effect, Reads, Tool, Toolset

__all__ = ["built_in", "files_toolset"]

_AT_LEAST_ONE: Final = {"minimum": 1}
_SIZE: Final = {"type": "integer", "minimum": 1}


def _excluded_by_default() -> list[str]:
    return [".git", "node_modules", "__pycache__", ".venv"]


@frozen(kw_only=True)
class _Options:
    """The options that a recipe may set."""

    root: str = field(
        default=".", metadata={"description": "The folder; nothing outside of it can be used."}
    )
    max_read_bytes: int = field(
        default=256 * 1024,
        metadata={"schema": _SIZE, "description": "The most that one read gives."},
    )
    max_write_bytes: int = field(
        default=1024 * 1024,
        metadata={"schema": _SIZE, "description": "The largest file that is written."},
    )
    create: bool = field(
        default=False, metadata={"description": "Make the root where it is missing."}
    )
    exclude: list[str] = field(
        default=Factory(_excluded_by_default),
        metadata={
            "schema": {"type": "array", "items": {"type": "string", "maxLength": 1_000}},
            "description": "Glob patterns of names or paths that cannot be used.",
        },
    )


def built_in(_now: Callable[[], datetime]) -> Toolset:
    """The toolset under its usual name, for every recipe."""
    return files_toolset()


def files_toolset() -> Toolset:
    """The tools `read`, `list`, `glob`, `search` (pure), `write` (idempotent), `edit` (once)."""
    return Toolset(
        name="files",
        description="Read, find, write and edit text files below one folder.",
        options=_options_schema(),
        specs=tuple(made.spec for made in _tools(_FileTools(_Options()), prefix="")),
        open=_open,
    )


def _options_schema() -> dict[str, JsonValue]:
    defaults = attrs.asdict(_Options())
    fields = cast("Mapping[str, Mapping[str, JsonValue]]", schema_of(_Options)["properties"])
    return {
        "type": "object",
        "properties": {
            name: {**schema, "default": defaults[name]} for name, schema in fields.items()
        },
        "additionalProperties": False,
    }


def _open(options: Mapping[str, JsonValue], prefix: str) -> Sequence[Tool]:
    return _tools(_FileTools(decode(options, _Options)), prefix=f"{prefix}__" if prefix else "")


def _tools(files: _FileTools, *, prefix: str) -> Sequence[Tool]:
    effects: tuple[tuple[str, Callable[..., object], Effect], ...] = (
        ("read", files.read, Effect.PURE),
        ("list", files.list_folder, Effect.PURE),
        ("glob", files.glob, Effect.PURE),
        ("search", files.search, Effect.PURE),
        ("write", files.write, Effect.IDEMPOTENT),
        ("edit", files.edit, Effect.ONCE),
    )
    return [
        tool(name=f"{prefix}{name}", effect=effect, reads=_READS[effect])(function)
        for name, function, effect in effects
    ]


_READS: Final = {
    Effect.PURE: Reads.PRIVATE,
    # Their results are receipts: the path, and how much was written.
    Effect.IDEMPOTENT: Reads.TRUSTED,
    Effect.ONCE: Reads.TRUSTED,
}


# --- results ---------------------------------------------------------------------------------


@frozen
class FileText:
    """The result of `read`."""

    path: str
    text: str
    lines: int
    """Number of lines in `text`."""
    truncated: bool = False
    """Always False: a file that is too large is refused."""


@frozen
class FolderListing:
    """The result of `list`."""

    path: str
    entries: list[FolderEntry]


@frozen
class FilesFound:
    """The result of `glob`."""

    files: list[str]
    total: int
    truncated: bool


@frozen
class MatchingLine:
    """A line that `search` found."""

    path: str
    line: int
    """Line number, from 1."""
    text: str


@frozen
class LinesFound:
    """The result of `search`."""

    matches: list[MatchingLine]
    total: int
    truncated: bool


@frozen
class FileWritten:
    """The result of `write`."""

    path: str
    bytes: int


@frozen
class FileEdited:
    """The result of `edit`."""

    path: str
    replacements: int
    bytes: int


# --- the tools -------------------------------------------------------------------------------

_Path = Annotated[str, "Relative to the root, with '/'."]
_Glob = Annotated[str, "Such as '**/*.py'; '**' stands for any folders, also none."]


@frozen
class _FileTools:
    """The tools' functions. The first paragraph of each docstring is shown to the model."""

    options: _Options

    @property
    def folder(self) -> ConfinedFolder:
        options = self.options
        exclude = tuple(options.exclude)
        return ConfinedFolder(root=options.root, create=options.create, exclude=exclude)

    def read(
        self,
        path: _Path,
        start_line: Annotated[int | None, "First line to read, from 1.", _AT_LEAST_ONE] = None,
        end_line: Annotated[int | None, "Last line to read, included.", _AT_LEAST_ONE] = None,
    ) -> FileText:
        """Read a text file, or some of its lines."""
        place = self.folder.place(path)
        with self.folder.opened(place) as file:
            if start_line is None and end_line is None:
                data = self._whole(place, file, self.options.max_read_bytes, "read")
            else:
                data = self._lines(place, file, start_line or 1, end_line)
        text = _as_text(place, data)
        return FileText(place.relative, text, _line_count(text))

    def list_folder(self, path: _Path = ".") -> FolderListing:
        """List what is directly in a folder, with types and sizes."""
        place = self.folder.place(path)
        return FolderListing(place.relative, self.folder.entries(place))

    def glob(
        self, pattern: _Glob, limit: Annotated[int, "Most names given.", _AT_LEAST_ONE] = 500
    ) -> FilesFound:
        """Find files by their path, sorted; links are left out."""
        found = [place.relative for place in self._files(pattern)]
        return FilesFound(found[:limit], len(found), len(found) > limit)

    def search(
        self,
        pattern: Annotated[str, "Text to find, letter case counts.", {"minLength": 1}],
        regex: Annotated[bool, "Whether the pattern is a Python regular expression."] = False,
        glob: _Glob = "**/*",
        limit: Annotated[int, "Most lines given.", _AT_LEAST_ONE] = 100,
    ) -> LinesFound:
        """Find lines in text files. Binary files are left out, long lines are cut."""
        matches: list[MatchingLine] = []
        total = 0
        with _line_finder(pattern, regex=regex) as find:
            for place in self._files(glob):
                for line, text in self._matching_lines(place, find):
                    total += 1
                    if len(matches) < limit:
                        matches.append(MatchingLine(place.relative, line, _shortened(text)))
        return LinesFound(matches, total, total > limit)

    def write(
        self,
        path: _Path,
        text: Annotated[str, "All that the file will hold."],
        overwrite: Annotated[bool, "Whether a file that is there is replaced."] = True,
    ) -> FileWritten:
        """Write a text file; missing folders are made."""
        place = self.folder.place(path)
        data = self._encoded(place, text)
        self.folder.replace(place, data, overwrite=overwrite)
        return FileWritten(place.relative, len(data))

    def edit(
        self,
        path: _Path,
        old: Annotated[str, "Text that is in the file, exactly.", {"minLength": 1}],
        new: Annotated[str, "What to put in its place."],
        replace_all: Annotated[bool, "Replace every occurrence; else it must be the only one."] = (
            False
        ),
    ) -> FileEdited:
        """Replace a piece of a text file."""
        place = self.folder.place(path)
        with self.folder.changing(place) as (file, replace):
            most = self.options.max_write_bytes
            text = _as_text(place, self._whole(place, file, most, "edited"))
            count = text.count(old) if old else 0
            if count != 1 and not (count and replace_all):
                raise _no_unique_match(place, text, count)
            data = self._encoded(place, text.replace(old, new))
            replace(data)
        return FileEdited(place.relative, count, len(data))

    def _files(self, pattern: str) -> Sequence[Place]:
        glob = GlobPattern(pattern)
        root = self.folder.place(".")
        found = (place for place in self.folder.files(root) if glob.matches(place.parts))
        return sorted(found, key=lambda place: place.relative)

    def _whole(self, place: Place, file: BinaryIO, most: int, what: str) -> bytes:
        data = file.read(most + 1)
        if len(data) > most:
            size = file.seek(0, 2)
            raise ToolError(
                f"'{place.relative}' has {size} bytes; at most {most} can be {what} at once. "
                f"{_OF_TOO_LARGE[what]}",
                code="file-too-large",
            )
        return data

    def _lines(self, place: Place, file: BinaryIO, first: int, last: int | None) -> bytes:
        if last is not None and last < first:
            raise ToolError(f"end_line {last} is before start_line {first}.", code="bad-range")
        most = self.options.max_read_bytes
        pieces: list[bytes] = []
        size, line = 0, 1
        while (last is None or line <= last) and (piece := file.readline(_PIECE)):
            if line >= first:
                pieces.append(piece)
                size += len(piece)
            if size > most:
                raise ToolError(
                    f"Lines {first} to {line} of '{place.relative}' have over {most} bytes, "
                    "the most that can be read at once. Ask for fewer lines.",
                    code="file-too-large",
                )
            line += piece.endswith(b"\n")
        if not pieces and first > 1:
            raise ToolError(
                f"'{place.relative}' ends before line {first}; it has {line - 1} line ends.",
                code="bad-range",
            )
        return b"".join(pieces)

    def _matching_lines(self, place: Place, find: _FindLines) -> Iterator[tuple[int, str]]:
        try:
            with self.folder.opened(place) as file:
                if b"\0" in file.read(_PROBE):
                    return
                file.seek(0)
                yield from _found_in(file, find)
        except ToolError as error:
            # Deleted or made unreadable after it was listed: treated as missing.
            if error.error_code not in ("no-such-file", "file-refused", "not-a-file"):
                raise

    def _encoded(self, place: Place, text: str) -> bytes:
        try:
            data = text.encode()
        except UnicodeEncodeError as error:
            raise ToolError(
                f"The text for '{place.relative}' has at {error.start} half a character "
                "(a lone surrogate); a file cannot hold it.",
                code="bad-text",
            ) from error
        if len(data) > self.options.max_write_bytes:
            raise ToolError(
                f"'{place.relative}' would have {len(data)} bytes; at most "
                f"{self.options.max_write_bytes} are written.",
                code="file-too-large",
            )
        return data


# --- text and lines --------------------------------------------------------------------------

_OF_TOO_LARGE: Final = {
    "read": "Read a part of it with start_line and end_line, or use search.",
    "edited": "The operator can raise the toolset's option `max_write_bytes`.",
}
_PIECE: Final = 64 * 1024
_PROBE: Final = 8 * 1024
_LONGEST_SEARCHED: Final = 10_000
"""Characters of a line that are searched."""
_LONGEST_SHOWN: Final = 300
_BATCH: Final = 2_000
"""Lines that are searched at a time."""

_FindLines = Callable[[Sequence[str]], Sequence[int]]


def _as_text(place: Place, data: bytes) -> str:
    try:
        if b"\0" not in data:
            return data.decode()
        reason = "it holds NUL bytes"
    except UnicodeDecodeError as error:
        reason = f"byte {error.start} (0x{data[error.start]:02x}) is not UTF-8"
    raise ToolError(f"'{place.relative}' is not a text file: {reason}.", code="not-text")


def _line_count(text: str) -> int:
    return text.count("\n") + (not text.endswith("\n") and text != "")


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST_SHOWN else f"{text[: _LONGEST_SHOWN - 1]}…"


def _no_unique_match(place: Place, text: str, count: int) -> ToolError:
    if count:
        advice = "Give more of the text around it, or set replace_all=true"
    else:
        advice = "Read the file and copy the text exactly, with its blanks"
        if "\r\n" in text:
            advice += " (its lines end with \\r\\n)"
    return ToolError(
        f"The text to replace occurs {count} times in '{place.relative}'; it must occur once. "
        f"{advice}. Nothing was changed.",
        code="no-unique-match",
    )


@contextlib.contextmanager
def _line_finder(pattern: str, *, regex: bool) -> Iterator[_FindLines]:
    if not regex:
        yield lambda lines: [at for at, line in enumerate(lines) if pattern in line]
        return
    with LineMatcher(pattern) as matcher:
        yield matcher.matching


def _found_in(file: BinaryIO, find: _FindLines) -> Iterator[tuple[int, str]]:
    """Line numbers from 1, each with its line."""
    first = 1
    while batch := _next_lines(file):
        for at in find(batch):
            yield first + at, batch[at]
        first += len(batch)


def _next_lines(file: BinaryIO) -> list[str]:
    lines: list[str] = []
    while len(lines) < _BATCH and (raw := file.readline(_PIECE)):
        rest = raw
        while not rest.endswith(b"\n") and (rest := file.readline(_PIECE)):
            pass  # skip the rest of a long line, so that it counts as one line
        text = raw.decode("utf-8", "replace").rstrip("\r\n")
        lines.append(text[:_LONGEST_SEARCHED])
    return lines
