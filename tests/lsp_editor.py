"""An editor for tests: pygls' own client, and a server in a process of its own."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from lsprotocol import types
from pygls.lsp.client import LanguageClient

from patience import HANG_S

ROOT = Path(__file__).resolve().parents[1]
_T = TypeVar("_T")


class Editor:
    """One editor, whose texts are files of one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.client = LanguageClient("tests", "1")
        self._versions: dict[str, int] = {}
        self.shown: asyncio.Queue[types.PublishDiagnosticsParams] = asyncio.Queue()

        @self.client.feature(types.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS)  # type: ignore[untyped-decorator]  # pygls'
        def published(params: types.PublishDiagnosticsParams) -> None:
            self.shown.put_nowait(params)

    async def start(self, *options: str, encodings: tuple[str, ...] = ("utf-16",)) -> None:
        environ = {**os.environ, "PYTHONPATH": str(ROOT)}
        await self.client.start_io(
            sys.executable, "-m", "minions", "lsp", *options, env=environ, cwd=self.folder
        )
        general = types.GeneralClientCapabilities(
            position_encodings=[types.PositionEncodingKind(each) for each in encodings]
        )
        self.answer = await within(
            self.client.initialize_async(
                types.InitializeParams(
                    capabilities=types.ClientCapabilities(general=general),
                    root_uri=self.folder.as_uri(),
                    process_id=os.getpid(),
                )
            )
        )
        self.client.initialized(types.InitializedParams())

    async def stop(self) -> None:
        await within(self.client.shutdown_async(None))
        self.client.exit(None)
        await within(self.client.stop())  # type: ignore[no-untyped-call]  # pygls'

    def uri(self, name: str) -> str:
        return (self.folder / name).as_uri()

    def document(self, name: str) -> types.TextDocumentIdentifier:
        return types.TextDocumentIdentifier(self.uri(name))

    async def write(self, name: str, text: str) -> list[types.Diagnostic]:
        """Open the text, or replace all of it; the faults that are shown."""
        uri = self.uri(name)
        version = self._versions[uri] = self._versions.get(uri, 0) + 1
        if version == 1:
            item = types.TextDocumentItem(uri, "yaml", version, text)
            self.client.text_document_did_open(types.DidOpenTextDocumentParams(item))
        else:
            self.change(name, types.TextDocumentContentChangeWholeDocument(text))
        return await self.faults(name)

    def change(self, name: str, *changes: types.TextDocumentContentChangeEvent) -> None:
        """Send changes as one version, which `write` counted, or the next one."""
        uri = self.uri(name)
        document = types.VersionedTextDocumentIdentifier(uri=uri, version=self._versions[uri])
        self.client.text_document_did_change(
            types.DidChangeTextDocumentParams(document, list(changes))
        )

    def next_version(self, name: str) -> None:
        self._versions[self.uri(name)] += 1

    async def faults(self, name: str) -> list[types.Diagnostic]:
        """The faults of the newest version, once they are there."""
        wanted = (self.uri(name), self._versions[self.uri(name)])
        while True:
            found = await within(self.shown.get())
            if (found.uri, found.version) == wanted:
                return list(found.diagnostics)

    async def fixes(
        self, name: str, fault: types.Diagnostic
    ) -> list[tuple[str, list[types.TextEdit]]]:
        """The title and the edits of each change that the fault suggests."""
        params = types.CodeActionParams(
            self.document(name), fault.range, types.CodeActionContext(diagnostics=[fault])
        )
        found = []
        for action in await within(self.client.text_document_code_action_async(params)) or ():
            assert isinstance(action, types.CodeAction)
            if list(action.diagnostics or ()) == [fault]:
                assert action.edit is not None
                edits = (action.edit.changes or {})[self.uri(name)]
                found.append((action.title, list(edits)))
        return found

    def at(
        self, name: str, text: str, mark: str, *, after: bool = True
    ) -> dict[str, Any]:  # Any: parts of any request
        """The place just after (or before) the first `mark` of the text."""
        offset = text.index(mark) + (len(mark) if after else 0)
        line = text.count("\n", 0, offset)
        column = offset - (text.rfind("\n", 0, offset) + 1)
        return {"text_document": self.document(name), "position": types.Position(line, column)}


async def within(answer: Awaitable[_T]) -> _T:
    """The answer, unless it hangs."""
    return await asyncio.wait_for(answer, HANG_S)


@asynccontextmanager
async def started(folder: Path, *options: str) -> AsyncIterator[Editor]:
    editor = Editor(folder)
    await editor.start(*options)
    try:
        yield editor
    finally:
        await editor.stop()


def applied(text: str, edits: Iterable[types.TextEdit]) -> str:
    """The text after the edits, whose places count in UTF-16."""
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def offset(at: types.Position) -> int:
        units, index = at.character, starts[min(at.line, len(starts) - 1)]
        while units > 0:
            units -= len(text[index].encode("utf-16-le")) // 2
            index += 1
        return index

    for edit in sorted(edits, key=lambda each: offset(each.range.start), reverse=True):
        text = text[: offset(edit.range.start)] + edit.new_text + text[offset(edit.range.end) :]
    return text
