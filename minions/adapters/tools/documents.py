"""The toolset `documents`: full-text search over the files of one folder, with citations."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, Final, cast

import attrs
from attrs import Factory, field, frozen

from minions.adapters.tools.confined_folder import ConfinedFolder
from minions.adapters.tools.document_index import DocumentIndex, IndexBounds
from minions.adapters.tools.document_passages import fts_query, numbered
from minions.adapters.tools.function_tool import tool
from minions.adapters.tools.glob_pattern import GlobPattern
from minions.adapters.tools.text_files import FileOptions, TextFiles, as_text
from minions.contracts.protected_files import ALLOW_SECRETS, OPENING_OPTIONS
from minions.contracts.tools import Effect, Reads, Tool, Toolset
from minions.data.codec import decode
from minions.data.errors import ToolError
from minions.data.hint_schemas import schema_of
from minions.data.json_values import JsonValue

_MOST_INDEXES: Final = 8
"""Indexes that a process keeps open; of more the one that was used longest ago is closed."""
_COUNT: Final = {"type": "integer", "minimum": 1}
_PATTERNS: Final = {"type": "array", "items": {"type": "string", "maxLength": 1_000}}


def documents_toolset(now: Callable[[], datetime], cache_folder: Path | None = None) -> Toolset:
    """The tools `search` and `read`, both pure. Recipes with the same options share an index.

    Args:
        now: The time of day.
        cache_folder: Where `keep: true` keeps indexes; None: in memory, too.
    """
    indexes = _Indexes(now, cache_folder)

    def open_tools(options: Mapping[str, JsonValue], prefix: str) -> Sequence[Tool]:
        documents = _Documents(decode(options, DocumentOptions), indexes)
        return _tools(documents, prefix=f"{prefix}__" if prefix else "")

    unopened = _tools(_Documents(DocumentOptions(), indexes), prefix="")
    return Toolset(
        name="documents",
        description="Find passages in the text files below one folder, with file and line.",
        options=_options_schema(),
        specs=tuple(made.spec for made in unopened),
        open=open_tools,
        fixed_options=OPENING_OPTIONS,
    )


def _all_files() -> list[str]:
    return ["**/*"]


def _excluded_by_default() -> list[str]:
    return [".*", "node_modules", "__pycache__"]


@frozen(kw_only=True)
class DocumentOptions:
    """The options that a recipe may set."""

    root: str = field(
        default=".", metadata={"description": "The folder; nothing outside of it can be used."}
    )
    include: list[str] = field(
        default=Factory(_all_files),
        metadata={"schema": _PATTERNS, "description": "Glob patterns of the files to index."},
    )
    exclude: list[str] = field(
        default=Factory(_excluded_by_default),
        metadata={
            "schema": _PATTERNS,
            "description": "Glob patterns of names or paths that cannot be used.",
        },
    )
    max_files: int = field(
        default=10_000,
        metadata={"schema": _COUNT, "description": "Files that are indexed."},
    )
    max_file_bytes: int = field(
        default=1024 * 1024,
        metadata={"schema": _COUNT, "description": "The largest file that is indexed."},
    )
    max_bytes: int = field(
        default=256 * 1024 * 1024,
        metadata={"schema": _COUNT, "description": "Of all files that are indexed."},
    )
    keep: bool = field(
        default=False,
        metadata={
            "description": "Keep the index, which holds the texts, in the user's cache for later "
            "runs; else it is made in memory."
        },
    )
    allow_secrets: list[str] = field(factory=list, metadata=ALLOW_SECRETS)


def _options_schema() -> dict[str, JsonValue]:
    defaults = attrs.asdict(DocumentOptions())
    fields = cast("Mapping[str, Mapping[str, JsonValue]]", schema_of(DocumentOptions)["properties"])
    return {
        "type": "object",
        "properties": {
            name: {**schema, "default": defaults[name]} for name, schema in fields.items()
        },
        "additionalProperties": False,
    }


def _tools(documents: _Documents, *, prefix: str) -> Sequence[Tool]:
    return [
        tool(name=f"{prefix}{name}", effect=Effect.PURE, reads=Reads.PRIVATE)(function)
        for name, function in (("search", documents.search), ("read", documents.read))
    ]


class _Indexes:
    """The indexes of a process, which its runs share."""

    def __init__(self, now: Callable[[], datetime], cache_folder: Path | None) -> None:
        self._now = now
        self._cache_folder = cache_folder
        self._made: dict[str, DocumentIndex] = {}
        self._lock = threading.Lock()

    def get(self, options: DocumentOptions, folder: ConfinedFolder) -> DocumentIndex:
        """The index for these options.

        Raises:
            UsageError: The root does not exist.
        """
        key = _key(options, folder.place(".").root)
        with self._lock:
            index = self._made.pop(key, None) or self._new(key, options, folder)
            self._made[key] = index  # at the end: it was used last
            surplus = [self._made.pop(each) for each in list(self._made)[:-_MOST_INDEXES]]
        for each in surplus:
            each.close()
        return index

    def _new(self, key: str, options: DocumentOptions, folder: ConfinedFolder) -> DocumentIndex:
        is_kept = options.keep and self._cache_folder is not None
        return DocumentIndex(
            folder,
            [GlobPattern(each) for each in options.include],
            IndexBounds(
                max_files=options.max_files,
                max_file_bytes=options.max_file_bytes,
                max_bytes=options.max_bytes,
            ),
            now=self._now,
            file=self._cache_folder / f"{key}.sqlite" if is_kept and self._cache_folder else None,
        )


def _key(options: DocumentOptions, root: str) -> str:
    """Names an index: the folder that it is of, and all that decides what is in it."""
    text = json.dumps([root, attrs.asdict(options)], sort_keys=True)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


# --- results ---------------------------------------------------------------------------------


@frozen
class DocumentPassage:
    """A passage that `search` found."""

    file: str
    line: int
    """The number of its first line, from 1."""
    text: str
    """Its lines, each behind its number."""


@frozen
class PassagesFound:
    """The result of `search`."""

    passages: list[DocumentPassage]
    """Best first."""
    documents: int
    """Number of files that were searched."""
    left_out: str
    """How many files were not, and why; empty: none."""


@frozen
class DocumentLines:
    """The result of `read`."""

    file: str
    line: int
    text: str
    """The lines, each behind its number."""


# --- the tools -------------------------------------------------------------------------------

_AT_LEAST_ONE: Final = {"minimum": 1}


@frozen
class _Documents:
    """The tools' functions. The first paragraph of each docstring is shown to the model."""

    options: DocumentOptions
    indexes: _Indexes

    @property
    def files(self) -> TextFiles:
        options = self.options
        chosen = FileOptions(
            root=options.root, exclude=options.exclude, allow_secrets=options.allow_secrets
        )
        return TextFiles(chosen, can_create=False)

    def search(
        self,
        query: Annotated[str, "Words; any of them counts. A phrase stands in double quotes."],
        limit: Annotated[int, "Most passages given.", {"minimum": 1, "maximum": 50}] = 6,
    ) -> PassagesFound:
        """Find passages in the documents, best first, with file and line numbers to cite."""
        wanted = fts_query(query)
        if wanted is None:
            raise ToolError(
                f"The query {query[:60]!r} has no word. Ask with words that the documents may use.",
                code="bad-pattern",
            )
        index = self.indexes.get(self.options, self.files.folder)
        found = index.search(wanted, limit)
        return PassagesFound(
            [
                DocumentPassage(each.file, each.first, numbered(each.first, each.lines))
                for each in found.passages
            ],
            found.documents,
            ", ".join(f"{count} {reason}" for reason, count in sorted(found.left_out.items())),
        )

    def read(
        self,
        file: Annotated[str, "As `search` gives it."],
        line: Annotated[int, "The first line to read, from 1.", _AT_LEAST_ONE] = 1,
        lines: Annotated[int, "How many lines.", {"minimum": 1, "maximum": 1_000}] = 40,
    ) -> DocumentLines:
        """Read lines of a document, around a passage that was found."""
        files = self.files
        place = files.folder.place(file)
        if not any(GlobPattern(each).matches(place.parts) for each in self.options.include):
            raise ToolError(
                f"'{file}' is no document here. Documents are: {', '.join(self.options.include)}.",
                code="excluded-path",
            )
        with files.folder.opened(place) as opened:
            data = files.lines(place, opened, line, line + lines - 1)
        text = as_text(place, data)
        text = text.removeprefix("\ufeff") if line == 1 else text
        rows = text.replace("\r\n", "\n").removesuffix("\r").split("\n")
        return DocumentLines(
            place.relative, line, numbered(line, rows[:-1] if text.endswith("\n") else rows)
        )
