"""Text files below one root: bounded reads, and texts that a file can hold."""

from __future__ import annotations

from typing import BinaryIO, Final

from attrs import Factory, field, frozen

from minions.adapters.tools.confined_folder import ConfinedFolder, RecordChange
from minions.adapters.tools.confined_paths import Place
from minions.contracts.protected_files import ALLOW_CONFIG, ALLOW_SECRETS
from minions.contracts.tools import ToolScope
from minions.data.errors import EnvironmentRefusedError, ToolError
from minions.data.field_repr import FieldsRepr

_SIZE: Final = {"type": "integer", "minimum": 1}


def _excluded_by_default() -> list[str]:
    return [".git", "node_modules", "__pycache__", ".venv"]


@frozen(kw_only=True)
class FileOptions(FieldsRepr):
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
    undo: bool = field(
        default=False,
        metadata={
            "description": "Record what each file was before a write, so that `minions rollback "
            "RUN` can restore it."
        },
    )
    exclude: list[str] = field(
        default=Factory(_excluded_by_default),
        metadata={
            "schema": {"type": "array", "items": {"type": "string", "maxLength": 1_000}},
            "description": "Glob patterns of names or paths that cannot be used.",
        },
    )
    protect: list[str] = field(
        factory=list,
        metadata={
            "schema": {"type": "array", "items": {"type": "string", "maxLength": 1_000}},
            "description": "Glob patterns of further names or paths that can be read and not "
            "written.",
        },
    )
    allow_config: list[str] = field(factory=list, metadata=ALLOW_CONFIG)
    allow_secrets: list[str] = field(factory=list, metadata=ALLOW_SECRETS)


_OF_TOO_LARGE: Final = {
    "read": "Read a part of it with start_line and end_line, or use search.",
    "edited": "The operator can raise the toolset's option `max_write_bytes`.",
    "shown": "Name lines of it, such as `:1-200` behind the path.",
    "changed": "The operator can raise the toolset's option `max_read_bytes`.",
}
_PIECE: Final = 64 * 1024


@frozen
class TextFiles(FieldsRepr):
    """The text files that the tools of one toolset use."""

    options: FileOptions
    can_create: bool = field(default=True, kw_only=True)
    """Whether the toolset has an option `create`; for messages."""

    @property
    def folder(self) -> ConfinedFolder:
        """The folder; nothing outside of it can be used."""
        options = self.options
        return ConfinedFolder(
            root=options.root,
            create=options.create,
            can_create=self.can_create,
            exclude=tuple(options.exclude),
            protect=tuple(options.protect),
            allow_config=tuple(options.allow_config),
            allow_secrets=tuple(options.allow_secrets),
        )

    def recorder(self, scope: ToolScope) -> RecordChange | None:
        """Records the changes of one call; None: nothing is recorded.

        Raises:
            EnvironmentRefusedError: `undo-unavailable`; they are to be recorded, and cannot be.
        """
        if not self.options.undo:
            return None
        if scope.changes is None:
            raise EnvironmentRefusedError(
                f"The files below '{self.options.root}' are to be changed with `undo: true`, and "
                "this call has no journal, or nobody who restores files "
                "(`Services(file_restorer=…)`). Nothing was changed. Call the tool in a run, or "
                "leave the option out.",
                code="undo-unavailable",
            )
        return scope.changes.record

    def text(self, place: Place, what: str = "read") -> str:
        """The whole text of a file.

        Args:
            what: What is done with it; see `whole`.
        Raises:
            ToolError: There is none, or it is no text, or too large.
        """
        with self.folder.opened(place) as file:
            return as_text(place, self.whole(place, file, self.options.max_read_bytes, what))

    def whole(self, place: Place, file: BinaryIO, most: int, what: str) -> bytes:
        """The bytes of a file.

        Args:
            most: The most bytes that are taken.
            what: `read`, `edited`, `shown` or `changed`, for the message.
        Raises:
            ToolError: It is larger.
        """
        data = file.read(most + 1)
        if len(data) > most:
            size = file.seek(0, 2)
            raise ToolError(
                f"'{place.relative}' has {size} bytes; at most {most} can be {what} at once. "
                f"{_OF_TOO_LARGE[what]}",
                code="file-too-large",
            )
        return data

    def lines(self, place: Place, file: BinaryIO, first: int, last: int | None) -> bytes:
        """The lines from `first` (from 1) to `last`, included; None: to the end.

        Raises:
            ToolError: There are none, or they are too large.
        """
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

    def encoded(self, place: Place, text: str) -> bytes:
        """The text as a file holds it.

        Raises:
            ToolError: It is too large, or no text.
        """
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


def as_text(place: Place, data: bytes) -> str:
    """The content of a file as text.

    Raises:
        ToolError: It is not UTF-8.
    """
    try:
        if b"\0" not in data:
            return data.decode()
        reason = "it holds NUL bytes"
    except UnicodeDecodeError as error:
        reason = f"byte {error.start} (0x{data[error.start]:02x}) is not UTF-8"
    raise ToolError(f"'{place.relative}' is not a text file: {reason}.", code="not-text")


def line_count(text: str) -> int:
    """The number of lines; a last one without a line end counts."""
    return text.count("\n") + (not text.endswith("\n") and text != "")


def no_unique_match(place: Place, text: str, count: int) -> ToolError:
    """What to say of an edit whose old text is not in the file exactly once."""
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
