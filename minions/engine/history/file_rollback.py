"""Undoes the changes of files that a run recorded: a fold of its rows, then one file at a time.

Whether files are as the run left them is told by comparing them, so a rollback that was killed is
simply done again.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Final, Self

from attrs import evolve, field, frozen

from minions.contracts.executions import address_of
from minions.contracts.file_changes import (
    FileOutcome,
    FileRestorer,
    FileTarget,
    IrreversibleCall,
    RollbackReport,
    RolledBackFile,
    digest_of,
)
from minions.contracts.journal.facts import (
    Fact,
    FileChangeImported,
    FileChangeRecorded,
    FileRollbackFinished,
    FileRollbackStarted,
    RunBeginning,
    ToolCallStarted,
)
from minions.contracts.journal.journal import JournalEntry
from minions.contracts.runtime import BlockingCalls
from minions.data.errors import EnvironmentRefusedError
from minions.engine.history.keys import execution_key
from minions.engine.history.open_calls import was_refused
from minions.engine.history.recorder import Recorder
from minions.engine.services.run_services import Services

_KINDS: Final = frozenset({"file_change", "file_rollback", "tool_call"})
_OVERWRITTEN: Final = (
    "somebody else changed it between two changes of the run; it is as they left it"
)

Record = Callable[[str, Fact], Awaitable[JournalEntry]]
"""Stores a fact of the run under a key."""


async def roll_back_within(
    services: Services, recorder: Recorder, within: str = ""
) -> RollbackReport:
    """Undo, inside a run that is being executed, the changes of files that some of its work made.

    That work must have ended: what is recorded from now on is not undone. A retry of the run
    reruns it; a resume keeps its rows.

    Args:
        recorder: The run's.
        within: The prefix of the keys of that work, as `scope_of` gives it for an execution:
            `plan~1~0~` for the steps within the step `plan`; empty: all work of the run.
    Raises:
        EnvironmentRefusedError: `undo-unavailable`; the services have no `file_restorer`.
        JournalError: The journal refuses.
    """
    changes = await recorded_changes(services, recorder.session_id, recorder.run_id, within)
    return await RunRollback.of(services, changes, recorder.record).carry_out()


@frozen(kw_only=True)
class RecordedChanges:
    """What the rows of a run say about a rollback."""

    run_id: str
    within: str
    """The prefix of the keys of the work; empty: all work of the run."""
    files: Mapping[str, Sequence[FileChangeRecorded]]
    """The changes of each file by its absolute path, oldest first; the file that was changed last
    is the first one."""
    not_reversible: tuple[IrreversibleCall, ...]
    rollbacks: int
    """How many rollbacks of that work were begun before."""
    imported: int
    """How many changes were made where another journal is."""


async def recorded_changes(
    services: Services, session_id: str, run_id: str, within: str = ""
) -> RecordedChanges:
    """The recorded changes of a run, of all its executions.

    Raises:
        JournalError: The journal refuses, or a row cannot be read.
    """
    rows = await services.journal.entries(session_id, run_id=run_id, kinds=_KINDS)
    rows = [row for row in rows if row.key.startswith(within)]
    files: dict[str, list[FileChangeRecorded]] = {}
    for row in rows:
        if isinstance(fact := row.fact, FileChangeRecorded):
            path = f"{fact.root}/{fact.path}"
            files[path] = [*files.pop(path, []), fact]
    begun = (row.fact for row in rows if isinstance(row.fact, FileRollbackStarted))
    return RecordedChanges(
        run_id=run_id,
        within=within,
        files=dict(reversed(files.items())),
        not_reversible=tuple(_irreversible(rows)),
        rollbacks=sum((fact.within or "") == within for fact in begun),
        imported=sum(isinstance(row.fact, FileChangeImported) for row in rows),
    )


def _irreversible(rows: Sequence[JournalEntry]) -> Iterator[IrreversibleCall]:
    refused = {row.key for row in rows if was_refused(row.fact)}
    seen = set[str]()
    for row in rows:
        fact = row.fact
        if not isinstance(fact, ToolCallStarted) or fact.effect is None:
            continue
        if row.key not in refused and row.key not in seen:
            seen.add(row.key)
            yield IrreversibleCall(
                key=row.key,
                tool=fact.tool,
                address=address_of(execution_key(row.key)),
                effect=fact.effect,
            )


def is_rolled_back(rows: Sequence[JournalEntry]) -> bool:
    """Whether the files of the whole run were rolled back, or began to be, after its last
    beginning.
    """
    for row in reversed(rows):
        if isinstance(row.fact, FileRollbackStarted) and row.fact.within is None:
            return True
        if isinstance(row.fact, RunBeginning):
            return False
    return False


def rolled_back_within(rows: Sequence[JournalEntry]) -> frozenset[str]:
    """The addresses of the executions whose work the run itself rolled back, as far as it was not
    begun again since.
    """
    found: dict[str, int] = {}
    for row in rows:
        if isinstance(row.fact, FileRollbackStarted) and row.fact.within:
            found[row.fact.within] = row.generation
    newest = max((row.generation for row in rows), default=1)
    return frozenset(
        address_of(_key_of(within)) for within, generation in found.items() if generation == newest
    )


def _key_of(within: str) -> str:
    """The key of the execution whose work has keys with that prefix."""
    if not within.endswith("~"):
        return within
    *outer, step, visit, iteration, _ = within.split("~")
    return "/".join(("~".join((*outer, step)), visit, iteration))


# --- carrying out ---------------------------------------------------------------------------------


@frozen
class RunRollback:
    """One rollback of the recorded changes of a run."""

    restorer: FileRestorer | None
    """None: nobody restores files."""
    blocking: BlockingCalls
    changes: RecordedChanges
    record: Record | None
    """Stores facts of the run; None: it is a dry run, which changes nothing."""
    _files: list[RolledBackFile] = field(factory=list, init=False)

    @classmethod
    def of(cls, services: Services, changes: RecordedChanges, record: Record | None) -> Self:
        """The rollback with the restorer and the threads of these services."""
        return cls(services.file_restorer, services.blocking, changes, record)

    async def carry_out(self) -> RollbackReport:
        """Restore the files, the one that was changed last first, then remove folders.

        Raises:
            EnvironmentRefusedError: `undo-unavailable`.
            JournalError: The journal refuses.
        """
        changes, within = self.changes, self.changes.within or None
        key = f"{changes.within}rollback/{changes.rollbacks + 1}"
        if changes.files and self.record is not None:
            self._require_restorer()
            await self.record(key, FileRollbackStarted(within=within))
        for chain in changes.files.values():
            await self._restore(chain)
        for root, path in _folders(changes):
            await self._remove_folder(root, path)
        report = RollbackReport(
            run_id=changes.run_id,
            files=tuple(self._files),
            not_reversible=changes.not_reversible,
            is_dry_run=self.record is None,
        )
        if changes.files and self.record is not None:
            await self.record(key, _finish_report(report, within))
        return report

    def _require_restorer(self) -> FileRestorer:
        if self.restorer is None:
            raise EnvironmentRefusedError(
                f"Nobody restores files here, so the changes of run '{self.changes.run_id}' cannot "
                "be undone: give `Services(file_restorer=LocalFileRestorer())`.",
                code="undo-unavailable",
            )
        return self.restorer

    async def _restore(self, chain: Sequence[FileChangeRecorded]) -> None:
        target, is_whole = target_of(chain)
        restore = functools.partial(
            self._require_restorer().restore, target, dry_run=self.record is None
        )
        done = await self.blocking.run(restore)
        if not is_whole and done.is_as_before:
            done = evolve(done, outcome=FileOutcome.CHANGED_SINCE, reason=_OVERWRITTEN)
        self._files.append(done)

    async def _remove_folder(self, root: str, path: str) -> None:
        remove = functools.partial(
            self._require_restorer().remove_folder,
            root,
            path,
            gone=self._removed_names(root, path),
            dry_run=self.record is None,
        )
        self._files.append(await self.blocking.run(remove))

    def _removed_names(self, root: str, path: str) -> Sequence[str]:
        """The names directly below a folder that are removed."""
        above = f"{root}/{path}/"
        removed = (
            f"{each.root}/{each.path}".removesuffix("/")
            for each in self._files
            if each.outcome is FileOutcome.REMOVED
        )
        return [each.removeprefix(above) for each in removed if each.startswith(above)]


def _finish_report(report: RollbackReport, within: str | None) -> FileRollbackFinished:
    calls = [each.to_json() for each in report.not_reversible]
    return FileRollbackFinished(
        within=within,
        files=[each.to_json() for each in report.files],
        not_reversible=calls or None,
    )


def _folders(changes: RecordedChanges) -> Sequence[tuple[str, str]]:
    """Root and path of each folder that the run made, the innermost first."""
    made = {
        f"{change.root}/{path}": (change.root, path)
        for chain in changes.files.values()
        for change in chain
        for path in change.folders or ()
    }
    return [made[path] for path in sorted(made, key=lambda path: (-path.count("/"), path))]


def target_of(chain: Sequence[FileChangeRecorded]) -> tuple[FileTarget, bool]:
    """The state to which a file is taken back, and whether that is the one before the run.

    From the newest change to the oldest, each change must have left what the next one found. Where
    it did not, somebody else changed the file in between, and what they left is the state.

    Args:
        chain: The recorded changes of one file, oldest first; of some it may be that they were
            recorded and not made.
    """
    newest = first = chain[-1]
    state: str | None = newest.after
    is_whole = True
    for change in reversed(chain):
        before = digest_of(change.before)
        if state not in (change.after, before):
            is_whole = False
            break
        state, first = before, change
    content = first.before
    return FileTarget(
        root=first.root,
        path=first.path,
        content=content,
        mode=first.mode,
        left=frozenset({newest.after, digest_of(newest.before), digest_of(content)}),
        written=frozenset(change.after for change in chain),
    ), is_whole
