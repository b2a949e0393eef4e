"""The toolset `files`: read, list, glob, search, write and edit below one root."""

from __future__ import annotations

import contextlib
import json
import re
import select
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from time import monotonic
from types import TracebackType
from typing import Annotated, BinaryIO, Final, Self

import attrs
from attrs import define, field, frozen

from minions.adapters.binary_files.file_reader import (
    NAMES,
    FileParts,
    PartRange,
    UnreadableFileError,
    open_parts,
)
from minions.adapters.tools.confined_folder import ConfinedFolder, FolderEntry
from minions.adapters.tools.confined_paths import GlobPattern, Place
from minions.adapters.tools.function_tool import tool
from minions.adapters.tools.many_files import ManyFileTools
from minions.adapters.tools.text_files import (
    FileOptions,
    TextFiles,
    as_text,
    line_count,
    no_unique_match,
)
from minions.contracts.protected_files import OPENING_OPTIONS
from minions.contracts.tools import Effect, Reads, Tool, ToolScope, Toolset
from minions.data.codec import decode
from minions.data.errors import ToolError, did_you_mean
from minions.data.field_repr import FieldsRepr
from minions.data.hint_schemas import schema_of
from minions.data.json_values import JsonValue, as_object_of_objects
from minions.data.patterns import refuse_large_pattern, without_warnings

_AT_LEAST_ONE: Final = {"minimum": 1}


def built_in_files(_now: Callable[[], datetime]) -> Toolset:
    """The toolset under its usual name, for every recipe."""
    return files_toolset()


def files_toolset() -> Toolset:
    """The tools `read`, `list`, `glob`, `search` (pure), `write` (idempotent), `edit` (once), and
    for several files `overview`, `read_many`, `prepare_changes` (pure), `write_many` (idempotent),
    for files of others `read_parquet` and `read_pdf` (pure).
    """
    return Toolset(
        name="files",
        description="Read, find, write and edit text files below one folder.",
        options=_options_schema(),
        specs=tuple(made.spec for made in _tools(TextFiles(FileOptions()), prefix="")),
        open=_open,
        fixed_options=OPENING_OPTIONS,
    )


def _options_schema() -> dict[str, JsonValue]:
    defaults = attrs.asdict(FileOptions())
    fields = as_object_of_objects(schema_of(FileOptions)["properties"])
    return {
        "type": "object",
        "properties": {
            name: {**schema, "default": defaults[name]} for name, schema in fields.items()
        },
        "additionalProperties": False,
    }


def _open(options: Mapping[str, JsonValue], prefix: str) -> Sequence[Tool]:
    files = TextFiles(decode(options, FileOptions))
    return _tools(files, prefix=f"{prefix}__" if prefix else "")


def _tools(text_files: TextFiles, *, prefix: str) -> Sequence[Tool]:
    files, many = _FileTools(text_files), ManyFileTools(text_files)
    effects: tuple[tuple[str, Callable[..., object], Effect], ...] = (
        ("read", files.read, Effect.PURE),
        ("list", files.list_folder, Effect.PURE),
        ("glob", files.glob, Effect.PURE),
        ("search", files.search, Effect.PURE),
        ("write", files.write, Effect.IDEMPOTENT),
        ("edit", files.edit, Effect.ONCE),
    )
    by_name: tuple[tuple[str, Callable[..., object], Effect], ...] = (
        ("overview", files.overview, Effect.PURE),
        ("read_many", many.read_many, Effect.PURE),
        ("prepare_changes", many.prepare_changes, Effect.PURE),
        ("write_many", many.write_many, Effect.IDEMPOTENT),
        ("read_parquet", files.read_parquet, Effect.PURE),
        ("read_pdf", files.read_pdf, Effect.PURE),
    )
    made = [
        tool(name=f"{prefix}{name}", effect=effect, reads=_READS[effect])(function)
        for name, function, effect in (*effects, *by_name)
    ]
    if text_files.options.undo:
        made = [each.recording_changes() if each.spec.is_write else each for each in made]
    return [*made[: len(effects)], *(each.by_name_only() for each in made[len(effects) :])]


_READS: Final = {
    Effect.PURE: Reads.PRIVATE,
    # Their results are receipts: the path, and how much was written.
    Effect.IDEMPOTENT: Reads.TRUSTED,
    Effect.ONCE: Reads.TRUSTED,
}


# --- results ---------------------------------------------------------------------------------


@frozen
class FileText(FieldsRepr):
    """The result of `read`."""

    path: str
    text: str
    lines: int
    """Number of lines in `text`."""
    truncated: bool = False
    """Always False: a file that is too large is refused."""


@frozen
class FolderListing(FieldsRepr):
    """The result of `list`."""

    path: str
    entries: list[FolderEntry]


@frozen
class FilesOverview(FieldsRepr):
    """The result of `overview`."""

    entries: list[str]
    """Paths; of folders with too many files what is in them, as `src/ (812 files: 812 .py)`."""
    named: list[str]
    """The files that the text in `about` names, if not all files are among the entries."""
    total: int
    """Number of files."""
    truncated: bool
    """Whether folders are shown as counts."""


@frozen
class FilesFound(FieldsRepr):
    """The result of `glob`."""

    files: list[str]
    total: int
    truncated: bool


@frozen
class MatchingLine(FieldsRepr):
    """A line that `search` found."""

    path: str
    line: int
    """Line number, from 1."""
    text: str


@frozen
class LinesFound(FieldsRepr):
    """The result of `search`."""

    matches: list[MatchingLine]
    total: int
    truncated: bool


@frozen
class FileWritten(FieldsRepr):
    """The result of `write`."""

    path: str
    bytes: int


@frozen
class FileEdited(FieldsRepr):
    """The result of `edit`."""

    path: str
    replacements: int
    bytes: int


@frozen
class ParquetRows(FieldsRepr):
    """The result of `read_parquet`."""

    path: str
    rows: list[JsonValue]
    """Objects by column."""
    columns: list[str]
    """The names of all columns of the file."""
    count: int
    """Number of rows in `rows`."""
    total: int
    """Number of rows in the file."""
    truncated: bool
    """Whether rows come after those in `rows`."""


@frozen
class PdfPage(FieldsRepr):
    """A page in the result of `read_pdf`."""

    page: int
    """Its number, from 1."""
    text: str
    """Empty where it has none, such as a page that is a picture."""


@frozen
class PdfPages(FieldsRepr):
    """The result of `read_pdf`."""

    path: str
    pages: list[PdfPage]
    total: int
    """Number of pages in the file."""
    truncated: bool
    """Whether pages come after those in `pages`."""


# --- the tools -------------------------------------------------------------------------------

_Path = Annotated[str, "Relative to the root, with '/'."]
_Glob = Annotated[str, "Such as '**/*.py'; '**' stands for any folders, also none."]


@frozen
class _FileTools(FieldsRepr):
    """The tools' functions. The first paragraph of each docstring is shown to the model."""

    files: TextFiles

    @property
    def folder(self) -> ConfinedFolder:
        return self.files.folder

    @property
    def _options(self) -> FileOptions:
        return self.files.options

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
                data = self.files.whole(place, file, self._options.max_read_bytes, "read")
            else:
                data = self.files.lines(place, file, start_line or 1, end_line)
        text = as_text(place, data)
        return FileText(place.relative, text, line_count(text))

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

    def overview(
        self,
        limit: Annotated[int, "About how many entries are given.", _AT_LEAST_ONE] = 300,
        about: Annotated[str, "A text; files that it names are given, too."] = "",
    ) -> FilesOverview:
        """List all files, and of many the folders with the number of files in them."""
        paths = [place.relative for place in self._files("**/*")]
        truncated = len(paths) > limit
        named = named_files(paths, about) if truncated else []
        return FilesOverview(overview_lines(paths, limit), named, len(paths), truncated)

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
                        matches.append(MatchingLine(place.relative, line, _shorten(text)))
        return LinesFound(matches, total, total > limit)

    def write(
        self,
        path: _Path,
        text: Annotated[str, "All that the file will hold."],
        overwrite: Annotated[bool, "Whether a file that is there is replaced."] = True,
        *,
        scope: ToolScope,
    ) -> FileWritten:
        """Write a text file; missing folders are made."""
        record = self.files.recorder(scope)
        place = self.folder.place(path, is_changed=True)
        data = self.files.encoded(place, text)
        self.folder.replace(place, data, overwrite=overwrite, record=record)
        return FileWritten(place.relative, len(data))

    def edit(
        self,
        path: _Path,
        old: Annotated[str, "Text that is in the file, exactly.", {"minLength": 1}],
        new: Annotated[str, "What to put in its place."],
        replace_all: Annotated[bool, "Replace every occurrence; else it must be the only one."] = (
            False
        ),
        *,
        scope: ToolScope,
    ) -> FileEdited:
        """Replace a piece of a text file."""
        record = self.files.recorder(scope)
        place = self.folder.place(path, is_changed=True)
        with self.folder.changing(place, record) as (file, replace):
            most = self._options.max_write_bytes
            text = as_text(place, self.files.whole(place, file, most, "edited"))
            count = text.count(old) if old else 0
            if count != 1 and not (count and replace_all):
                raise no_unique_match(place, text, count)
            data = self.files.encoded(place, text.replace(old, new))
            replace(data)
        return FileEdited(place.relative, count, len(data))

    def read_parquet(
        self,
        path: _Path,
        columns: Annotated[list[str] | None, "Which; none: all."] = None,
        first_row: Annotated[int, "The first row to read, from 1.", _AT_LEAST_ONE] = 1,
        max_rows: Annotated[int, "Most rows given.", {"minimum": 1, "maximum": 100_000}] = 1_000,
    ) -> ParquetRows:
        """Read rows of a Parquet file."""
        with self._parts(path, "parquet", first_row, max_rows, columns) as (place, parts):
            rows: list[JsonValue] = list(parts.values())
            last = first_row - 1 + len(rows)
            columns_there = list(parts.columns)
            is_cut = parts.is_cut or last < parts.total
            return ParquetRows(
                place.relative, rows, columns_there, len(rows), parts.total, truncated=is_cut
            )

    def read_pdf(
        self,
        path: _Path,
        first_page: Annotated[int, "The first page to read, from 1.", _AT_LEAST_ONE] = 1,
        max_pages: Annotated[int, "Most pages given.", {"minimum": 1, "maximum": 10_000}] = 100,
    ) -> PdfPages:
        """Read the text of a PDF file by pages. Pictures of text have none."""
        with self._parts(path, "pdf", first_page, max_pages) as (place, parts):
            pages = [decode(page, PdfPage) for page in parts.values()]
            is_cut = parts.is_cut or first_page - 1 + len(pages) < parts.total
            return PdfPages(place.relative, pages, parts.total, truncated=is_cut)

    @contextlib.contextmanager
    def _parts(
        self, path: str, format_: str, first: int, most: int, columns: list[str] | None = None
    ) -> Iterator[tuple[Place, FileParts]]:
        """The rows or pages of a file from `first` on, counted from 1."""
        place = self.folder.place(path)
        wanted = PartRange(
            first=first - 1,
            most=most,
            most_bytes=self._options.max_read_bytes,
            columns=columns,
        )
        name = place.relative
        try:
            with self.folder.opened(place) as file, open_parts(file, format_, wanted) as parts:
                try:
                    yield place, parts
                except UnreadableFileError as error:
                    if error.code != "no-such-column":
                        raise
                    known = parts.columns
                    raise ToolError(
                        f"'{name}' has no column '{error!s:.80}'."
                        f"{did_you_mean(str(error), known)} Columns are: "
                        f"{', '.join(known[:20])}{' …' if len(known) > 20 else ''}.",
                        code=error.code,
                    ) from error
        except UnreadableFileError as error:
            is_costly = error.code in ("file-too-large", "slow-file")
            asked = "columns or rows" if format_ == "parquet" else "pages"
            advice = f" Ask for fewer {asked}." if is_costly else ""
            raise ToolError(
                f"'{name}' cannot be read as {NAMES[format_]}: {error}.{advice}", code=error.code
            ) from error

    def _files(self, pattern: str) -> Sequence[Place]:
        glob = GlobPattern(pattern)
        root = self.folder.place(".")
        found = (place for place in self.folder.files(root) if glob.matches(place.parts))
        return sorted(found, key=lambda place: place.relative)

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


# --- text and lines --------------------------------------------------------------------------

_PIECE: Final = 64 * 1024
_PROBE: Final = 8 * 1024
_LONGEST_SEARCHED: Final = 10_000
"""Characters of a line that are searched."""
_LONGEST_SHOWN: Final = 300
_BATCH: Final = 2_000
"""Lines that are searched at a time."""

_FindLines = Callable[[Sequence[str]], Sequence[int]]


def _shorten(text: str) -> str:
    return text if len(text) <= _LONGEST_SHOWN else f"{text[: _LONGEST_SHOWN - 1]}…"


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


# --- matches regular expressions against lines of text in a process that can be killed -----------


_TEXTS: Final = re.compile(r"(?:\(\?i\))?[^\\.^$*+?{}\[\]()]{0,100}", re.DOTALL)
"""Patterns that are some texts to choose from: a line takes a millisecond, and no process."""
_LONGEST_LINE: Final = 5_000
"""Characters for which that is true; a match holds the interpreter, and with it the event loop."""
_WORKER: Final = """
import json, re, sys
found = re.compile(json.loads(sys.stdin.readline())).search
for line in sys.stdin:
    hits = [i for i, text in enumerate(json.loads(line)) if found(text)]
    print(json.dumps(hits), flush=True)
"""


class LineMatcher:
    """Finds the lines that match a pattern; a context manager that ends its process."""

    def __init__(self, pattern: str, *, timeout_s: float = 5.0, in_all_s: float = 20.0) -> None:
        """Check the pattern; the process is started later.

        Args:
            timeout_s: Seconds for one batch of lines.
            in_all_s: Seconds for all of them.
        Raises:
            ToolError: It is not a regular expression, or too large.
        """
        _check(pattern)
        self._pattern = pattern
        self._process: subprocess.Popen[bytes] | None = None
        self._timeout_s = timeout_s
        self._left_s = in_all_s

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()

    def matching(self, lines: Sequence[str]) -> Sequence[int]:
        """Indices of the lines that match, from 0.

        Raises:
            ToolError: It took too long; this object cannot be used any more.
        """
        if self._process is None and not self._are_quick(lines):
            self._process = self._start_process()
        seconds, begin = max(0.0, min(self._timeout_s, self._left_s)), monotonic()
        if self._process is None:
            indices = self._matching_here(lines, begin + seconds)
        else:
            indices = _matching_there(self._process, lines, seconds)
        self._left_s -= monotonic() - begin
        if indices is None:
            raise ToolError(
                f"The pattern {self._pattern[:100]!r} takes too long: {len(lines)} lines were not "
                f"searched within {seconds:.3g} s. Write it without nested repetitions and with "
                "fewer `.*`, search fewer files, or search for plain text.",
                code="slow-pattern",
            )
        return indices

    def _are_quick(self, lines: Sequence[str]) -> bool:
        if _TEXTS.fullmatch(self._pattern) is None:
            return False
        return max(map(len, lines), default=0) <= _LONGEST_LINE

    def _matching_here(self, lines: Sequence[str], until: float) -> Sequence[int] | None:
        found, indices = re.compile(self._pattern).search, list[int]()
        for at, line in enumerate(lines):
            if monotonic() >= until:
                return None
            if found(line):
                indices.append(at)
        return indices

    def _start_process(self) -> subprocess.Popen[bytes]:
        # -I and -S: no installed package is needed, so that it starts in 15 ms.
        process = subprocess.Popen(  # noqa: S603  # this interpreter, with the text above
            [sys.executable, "-I", "-S", "-c", _WORKER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        _send(process, self._pattern)
        return process


def _matching_there(
    process: subprocess.Popen[bytes], lines: Sequence[str], seconds: float
) -> Sequence[int] | None:
    output = process.stdout
    assert output is not None  # noqa: S101  # a pipe was asked for
    _send(process, lines)
    ready, _, _ = select.select([output], [], [], seconds)
    answer = output.readline() if ready else b""
    indices: list[int] | None = json.loads(answer) if answer else None  # our own program wrote it
    return indices


def _send(process: subprocess.Popen[bytes], value: str | Sequence[str]) -> None:
    pipe = process.stdin
    assert pipe is not None  # noqa: S101  # a pipe was asked for
    pipe.write(json.dumps(value).encode() + b"\n")
    pipe.flush()


def _check(pattern: str) -> None:
    try:
        refuse_large_pattern(pattern)
        with without_warnings():
            re.compile(pattern)
    except (re.error, ValueError) as error:
        raise ToolError(
            f"{pattern[:100]!r} is not a regular expression: {error}. Escape special characters "
            "with a backslash, or search for plain text with regex=false.",
            code="bad-pattern",
        ) from error


# --- what is in a folder, in few words -----------------------------------------------------------


_MOST_NAMED: Final = 50
"""Files that are shown since a text names them."""
_MOST_ENDINGS: Final = 4
_SHORTEST_STEM: Final = 4
"""Characters of a name without its ending; a shorter one is found in too many texts."""


@define
class _Folder(FieldsRepr):
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
    _open_levels(root, most)
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


def _open_levels(root: _Folder, room: int) -> None:
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
        yield f"{folder.path} {_count_by_suffix([*folder.all_files()])}".strip()
        return
    if folder.has_names:
        yield from folder.files
    elif folder.files:
        yield f"{folder.path}* {_count_by_suffix(folder.files)}"
    for each in folder.folders.values():
        yield from _lines(each)


def _count_by_suffix(paths: Sequence[str]) -> str:
    """`(812 files: 800 .py, 12 .md)`."""
    endings = Counter(_ending(path) for path in paths)
    shown = [f"{count} {ending}" for ending, count in endings.most_common(_MOST_ENDINGS)]
    others = ", …" if len(endings) > _MOST_ENDINGS else ""
    return f"({len(paths)} files: {', '.join(shown)}{others})"


def _ending(path: str) -> str:
    name = path.rpartition("/")[2]
    dot = name.rfind(".", 1)
    return name[dot:][:12] if dot > 0 else "others"
