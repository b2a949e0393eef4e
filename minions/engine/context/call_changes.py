"""Records the changes of files that one tool call makes, from the thread of its tool."""

from __future__ import annotations

import asyncio
import base64
from concurrent.futures import Future, wait
from typing import Final

from minions.contracts.file_changes import ChangeRecorder, FileChange
from minions.contracts.journal.facts import FileChangeRecorded
from minions.contracts.secrets import Secrets
from minions.data.errors import JournalError, ToolError
from minions.engine.history.recorder import Recorder

__all__ = ["CallChanges"]

_LOOK_S: Final = 1.0
"""Seconds after which a thread looks whether the event loop that it waits for is still there."""


class CallChanges(ChangeRecorder):
    """Stores each change as a fact of the run. Made on the event loop of the run."""

    def __init__(self, recorder: Recorder, key: str, step_id: str, secrets: Secrets) -> None:
        """Nothing is stored yet.

        Args:
            key: Of the tool call.
        """
        self._recorder = recorder
        self._key = key
        self._step_id = step_id
        self._secrets = secrets
        self._loop = asyncio.get_running_loop()
        self._is_closed = False

    def record(self, change: FileChange) -> None:
        """Store one change, and wait until it is stored."""
        fact = self._fact(change)
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            stored = asyncio.run_coroutine_threadsafe(self._store(fact), self._loop)
        else:
            raise RuntimeError(
                "A change of a file is recorded from a thread beside the event loop: this call "
                "would wait for itself. Make the tool a synchronous function."
            )
        self._wait(stored)

    def close(self) -> None:
        """Refuse further changes."""
        self._is_closed = True

    async def _store(self, fact: FileChangeRecorded) -> None:
        self._refuse_late(fact)
        number = next(self._recorder.changes)
        await self._recorder.record(f"{self._key}/file/{number}", fact)
        # A rollback may have read the rows before this one; recorded and not made does no harm.
        self._refuse_late(fact)

    def _refuse_late(self, fact: FileChangeRecorded) -> None:
        if self._is_closed:
            raise JournalError(
                f"The call that changes '{fact.path}' has ended, as by a timeout: the change is "
                "not made.",
                code="call-ended",
            )

    def _wait(self, stored: Future[None]) -> None:
        while not wait([stored], _LOOK_S).done:
            if self._loop.is_closed():
                raise RuntimeError("The event loop of the run is closed.")
        stored.result()

    def _fact(self, change: FileChange) -> FileChangeRecorded:
        self._refuse_secrets(change)
        text = _text(change.content)
        is_base64 = change.content is not None and text is None
        if change.content is not None and is_base64:
            text = base64.b64encode(change.content).decode()
        return FileChangeRecorded(
            step_id=self._step_id,
            root=change.root,
            path=change.path,
            content=text,
            is_base64=is_base64,
            mode=change.mode,
            after=change.after,
            folders=change.folders or None,
        )

    def _refuse_secrets(self, change: FileChange) -> None:
        """A journal holds no secret in clear, and with another text in its place the file could
        not be restored.
        """
        if not self._secrets:
            return
        content = (change.content or b"").decode("utf-8", "surrogateescape")
        if not any(self._secrets.occur_in(each) for each in (change.path, content)):
            return
        place = self._secrets.clean_text(change.path)
        raise ToolError(
            f"'{place}' holds a secret of the run, which no journal may hold, so the change cannot "
            "be recorded for a rollback (`undo: true`). Nothing was changed. Leave that file out, "
            "or write it with a toolset without `undo`.",
            code="secret-in-file",
        )


def _text(content: bytes | None) -> str | None:
    """The content as text; None: it is no text, or there is none."""
    if content is None or b"\0" in content:
        return None
    try:
        return content.decode()
    except UnicodeDecodeError:
        return None
