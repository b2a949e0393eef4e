"""Changes of files that a run records before it makes them, and how a rollback undoes them."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from enum import StrEnum

from attrs import field, frozen

from minions.data.field_repr import FieldsRepr
from minions.data.json_values import JsonValue


def digest_of(content: bytes | None) -> str | None:
    """The SHA-256 of a file's content in hex; None: there is no file."""
    return None if content is None else hashlib.sha256(content).hexdigest()


@frozen(kw_only=True)
class FileChange(FieldsRepr):
    """A change of one file that is about to be made."""

    root: str
    """The folder below which the file is, absolute and resolved."""
    path: str
    """The path below the root, with `/`."""
    content: bytes | None = field(repr=False)
    """What the file holds before; None: there is no file."""
    mode: int | None
    """The permission bits of the file before; None: there is no file."""
    after: str
    """The SHA-256 of what it holds afterwards, in hex."""
    folders: tuple[str, ...] = ()
    """The folders below the root that the change makes, the outermost first."""


class ChangeRecorder(ABC):
    """Records the changes of files that one tool call makes."""

    @abstractmethod
    def record(self, change: FileChange) -> None:
        """Store what is needed to undo the change. Call it before the change is made, from a thread
        beside the event loop: it blocks.

        Raises:
            ToolError: The change cannot be recorded; it must not be made.
            JournalError: The journal refuses, or the call has ended; it must not be made.
        """

    @abstractmethod
    def close(self) -> None:
        """Refuse further changes: the call has ended, whatever its thread still does."""


class FileOutcome(StrEnum):
    """What a rollback did with a file or folder."""

    RESTORED = "restored"
    """It has the content and mode that it had before the run."""
    REMOVED = "removed"
    """The run made it, and it is removed."""
    UNCHANGED = "unchanged"
    """It was as before already."""
    CHANGED_SINCE = "changed_since"
    """Somebody else changed it, so it is left as it is."""
    REFUSED = "refused"
    """It could not be restored; `reason` says why."""


@frozen(kw_only=True)
class FileTarget(FieldsRepr):
    """The state to which a rollback takes one file."""

    root: str
    path: str
    content: bytes | None = field(repr=False)
    """None: the file is removed."""
    mode: int | None
    """Permission bits; None: the file is removed."""
    left: frozenset[str | None]
    """The digests of what the run may have left there, None for no file; any other content is
    somebody else's.
    """
    written: frozenset[str]
    """The digests of all that the run wrote there, or was about to write: names of temporary files
    that a killed process left are made of them.
    """


@frozen(kw_only=True)
class RolledBackFile(FieldsRepr):
    """What became of one path in a rollback."""

    root: str
    path: str
    """Below the root, with `/`; of a folder with a `/` at the end."""
    outcome: FileOutcome
    reason: str | None = None
    """Why it is not as before; None: it is."""

    @property
    def is_as_before(self) -> bool:
        """Whether it is as it was before the run."""
        return self.outcome not in (FileOutcome.CHANGED_SINCE, FileOutcome.REFUSED)

    def to_json(self) -> dict[str, JsonValue]:
        """As journal, command line and HTTP write it."""
        told: dict[str, JsonValue] = {
            "root": self.root,
            "path": self.path,
            "outcome": self.outcome.value,
        }
        return told if self.reason is None else {**told, "reason": self.reason}

    @classmethod
    def from_json(cls, told: Mapping[str, JsonValue]) -> RolledBackFile:
        """What `to_json` wrote.

        Raises:
            KeyError, ValueError: It is something else.
        """
        reason = told.get("reason")
        return cls(
            root=str(told["root"]),
            path=str(told["path"]),
            outcome=FileOutcome(str(told["outcome"])),
            reason=None if reason is None else str(reason),
        )


@frozen(kw_only=True)
class IrreversibleCall(FieldsRepr):
    """A tool call whose effect a rollback does not undo."""

    key: str
    tool: str
    address: str
    """The execution that made it: `outer[1]/step`."""
    effect: str
    """As the tool declares it: `idempotent`, `once` or `undeclared`."""

    def to_json(self) -> dict[str, JsonValue]:
        """As journal, command line and HTTP write it."""
        return {
            "key": self.key,
            "tool": self.tool,
            "address": self.address,
            "effect": self.effect,
        }


@frozen(kw_only=True)
class RollbackReport(FieldsRepr):
    """What a rollback did, or, of a dry run, would do."""

    run_id: str
    files: tuple[RolledBackFile, ...]
    """Files, then folders that the run made."""
    not_reversible: tuple[IrreversibleCall, ...] = ()
    """Calls with an effect that was not recorded as a change of a file, in order."""
    is_dry_run: bool = False

    @property
    def is_complete(self) -> bool:
        """Whether each recorded file is as it was before the run."""
        return all(each.is_as_before for each in self.files)

    def to_json(self) -> dict[str, JsonValue]:
        """As `minions rollback --json` prints it and the server answers."""
        return {
            "run_id": self.run_id,
            "dry_run": self.is_dry_run,
            "complete": self.is_complete,
            "files": [each.to_json() for each in self.files],
            "not_reversible": [each.to_json() for each in self.not_reversible],
        }


class FileRestorer(ABC):
    """Takes files back to an earlier state. Its methods block."""

    @abstractmethod
    def restore(self, target: FileTarget, *, dry_run: bool) -> RolledBackFile:
        """Restore one file atomically, if it holds what the run left there.

        It may be killed anywhere and called again. A path that is outside of its root by now, as
        through a link, is refused; failures are outcomes.
        """

    @abstractmethod
    def remove_folder(
        self, root: str, path: str, *, gone: Collection[str] = (), dry_run: bool
    ) -> RolledBackFile:
        """Remove a folder that the run made, if it is empty.

        Args:
            gone: Names directly below it that a dry run takes for removed.
        """
