"""Facts of files that tools changed, and of their rollback."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Sequence
from typing import ClassVar

from minions.contracts.journal.facts.shape import FactOfStep, FactShape, Object


class FileChangeFact(FactOfStep, frozen=True, kw_only=True):
    """What one file was before a tool call changed it."""

    kind: ClassVar[str] = "file_change"

    root: str
    """The folder below which the file is, absolute."""
    path: str
    """The path below the root, with `/`."""
    content: str | None = None
    """What the file held, as text or in base64; None: there was no file."""
    is_base64: bool = False
    """Whether `content` is base64, because the file was no text."""
    mode: int | None = None
    """The permission bits of the file; None: there was no file."""
    after: str
    """SHA-256 of the content afterwards, in hex."""
    folders: Sequence[str] | None = None
    """The folders below the root that the change makes, the outermost first; None: none."""

    def __post_init__(self) -> None:
        _ = self.before
        if (self.content is None) is not (self.mode is None):
            raise ValueError("`content` and `mode` must both be there, or neither")

    @property
    def before(self) -> bytes | None:
        """What the file held; None: there was no file."""
        if self.content is None:
            return None
        return b64decode(self.content, validate=True) if self.is_base64 else self.content.encode()


class FileChangeRecorded(FileChangeFact, frozen=True, kw_only=True):
    """A tool call is about to change a file. Committed before the change."""

    state: ClassVar[str] = "recorded"


class FileChangeImported(FileChangeFact, frozen=True, kw_only=True):
    """The change was made where another journal is: it is shown, and no rollback undoes it here."""

    state: ClassVar[str] = "imported"


class FileRollbackFact(FactShape, frozen=True, kw_only=True):
    """A rollback of the files that the run changed."""

    kind: ClassVar[str] = "file_rollback"

    within: str | None = None
    """The prefix of the keys of the work that is undone; None: all of the run."""


class FileRollbackStarted(FileRollbackFact, frozen=True, kw_only=True):
    """The first file is about to be restored. Committed before."""

    state: ClassVar[str] = "started"


class FileRollbackFinished(FileRollbackFact, frozen=True, kw_only=True):
    """All files have been looked at."""

    state: ClassVar[str] = "finished"

    files: Sequence[Object]
    """By file and folder `root`, `path`, `outcome` and `reason`."""
    not_reversible: Sequence[Object] | None = None
    """Calls with an effect that is not undone: `key`, `tool`, `address`, `effect`; None: none."""
