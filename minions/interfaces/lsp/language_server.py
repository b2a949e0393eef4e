"""The language server: messages of the protocol, over the checker. Executes nothing of a recipe.

The newest version of a text is checked in a thread; answers are of the version that is checked.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, TypeVar

from attrs import frozen
from lsprotocol import types
from pygls import uris
from pygls.exceptions import JsonRpcException
from pygls.lsp.server import LanguageServer
from pygls.protocol import LanguageServerProtocol, default_converter, lsp_method
from pygls.workspace import PositionCodec

from minions import __version__
from minions.data.errors import Fault, MinionsError, RecipeError
from minions.data.fault_fixes import fix_of
from minions.interfaces.lsp.checked_text import (
    CheckedText,
    ClientPlaces,
    OpenProject,
    Project,
    Spot,
    Stretch,
    check_text,
    is_recipe,
    refused_text,
)
from minions.interfaces.lsp.completions import completions_at
from minions.interfaces.lsp.hovers import hover_at
from minions.interfaces.lsp.mentions import (
    FIELD,
    INPUT,
    SAVED,
    STEP,
    RenameRefusedError,
    callers_of,
    mentions_of,
    references_of,
    renamable_at,
    renamed,
    targets_of,
)
from minions.recipe.kinds.kind_registry import KINDS
from minions.recipe.text.nodes import Entry, MappingNode, Node, ScalarNode, SequenceNode
from minions.recipe.text.recipe_format import formatted
from minions.recipe.text.yaml_reader import read_document, read_source

_T = TypeVar("_T")


class _OpenText:
    """A text that an editor has open."""

    def __init__(self, uri: str, path: Path, text: str, language: str) -> None:
        self.uri = uri
        self.path = path
        self.text = text
        self.language = language
        self.version: int | None = None
        self.checked: CheckedText | None = None


class _Protocol(LanguageServerProtocol):
    """The protocol without pygls' own copy of changed texts: its lines end where those of an editor
    do not, and it moves the places of changes that lie behind such an end.
    """

    @lsp_method(types.TEXT_DOCUMENT_DID_CHANGE)
    def lsp_text_document__did_change(
        self, params: types.DidChangeTextDocumentParams
    ) -> Iterator[tuple[object, tuple[object, ...], None]]:
        """Hand the changes on."""
        features = self.fm.features
        handler = features.get(types.TEXT_DOCUMENT_DID_CHANGE)
        if handler is not None:
            yield handler, (params,), None


class RecipeServer:
    """The texts that one editor has open, and the answers to its requests."""

    def __init__(self, open_project: OpenProject) -> None:
        """Args: open_project: Called once the folder of the editor is the current one."""
        self._open_project = open_project
        self._project: Project | None = None
        self._texts: dict[str, _OpenText] = {}
        self._turn = asyncio.Lock()
        self.server: Final = LanguageServer(
            "minions", __version__, protocol_cls=_Protocol, converter_factory=default_converter
        )
        _register_texts(self)
        _register_answers(self)
        _register_changes(self)

    # --- texts and their checks --------------------------------------------------------------

    def enter(self, folder: str | None) -> None:
        """Make the editor's folder the current one: names of recipes count from there."""
        path = uris.to_fs_path(folder) if folder else None
        if path is not None and Path(path).is_dir():
            os.chdir(path)

    def open(self, given: types.TextDocumentItem) -> _OpenText:
        """Remember a text."""
        name = uris.to_fs_path(given.uri) if given.uri.startswith("file:") else None
        path = Path(name) if name else Path.cwd() / "untitled.yaml"
        text = _OpenText(given.uri, path, given.text, given.language_id)
        text.version = given.version
        self._texts[given.uri] = text
        return text

    def change(self, params: types.DidChangeTextDocumentParams) -> _OpenText | None:
        """The text after the changes, in their order; None: it is not open."""
        known = self._texts.get(params.text_document.uri)
        if known is None:
            return None
        for change in params.content_changes:
            if isinstance(change, types.TextDocumentContentChangePartial):
                start, end = (
                    self.places(known.text).offset_of(at.line, at.character)
                    for at in (change.range.start, change.range.end)
                )
                known.text = known.text[:start] + change.text + known.text[max(start, end) :]
            else:
                known.text = change.text
        known.version = params.text_document.version
        return known

    def close(self, uri: str) -> None:
        """Forget a text, and what was said of it."""
        if self._texts.pop(uri, None) is not None:
            self._publish(uri, None, [])

    async def publish(self, text: _OpenText) -> None:
        """Show the faults of the newest version; a version that was changed meanwhile is left."""
        version = text.version
        checked = await self.checked(text.uri)
        if self._texts.get(text.uri) is not text or text.version != version:
            return
        self._publish(text.uri, version, self.diagnostics(checked) if checked is not None else [])

    async def checked(self, uri: str) -> CheckedText | None:
        """The newest version of a text, checked; None: it is no recipe, or not open."""
        async with self._turn:
            # One check at a time: whoever waited meanwhile for an older version gets this one.
            text = self._texts.get(uri)
            if text is None or not is_recipe(text.text, text.path, text.language):
                return None
            if text.checked is None or text.checked.text != text.text:
                newest, before = text.text, text.checked
                text.checked = await asyncio.to_thread(self._check, newest, text.path, before)
            return text.checked

    def _check(self, text: str, path: Path, before: CheckedText | None) -> CheckedText:
        try:
            if self._project is None:
                self._project = self._open_project()
            return check_text(text, path, self._project, before)
        except MinionsError as error:  # the configuration, which may be right at the next check
            return refused_text(text, path, error)

    async def reread(self) -> None:
        """Check all texts again: the configuration, or a recipe that others name, was saved."""
        self._project = None
        for text in tuple(self._texts.values()):
            text.checked = None
            await self.publish(text)

    def _publish(self, uri: str, version: int | None, found: list[types.Diagnostic]) -> None:
        self.server.text_document_publish_diagnostics(
            types.PublishDiagnosticsParams(uri=uri, diagnostics=found, version=version)
        )

    # --- places ------------------------------------------------------------------------------

    def places(self, text: str) -> ClientPlaces:
        """Where the editor counts the places of the text."""
        workspace = self.server.workspace
        codec = PositionCodec(workspace.position_encoding)
        return ClientPlaces(text, codec.client_num_units)

    def range_of(self, places: ClientPlaces, stretch: Stretch) -> types.Range:
        """The editor's range of a part of the text."""
        start = places.to_client(Spot(stretch.line, stretch.column))
        end = places.to_client(Spot(stretch.line, stretch.column + stretch.length))
        return types.Range(types.Position(*start), types.Position(*end))

    # --- answers -----------------------------------------------------------------------------

    def diagnostics(self, checked: CheckedText) -> list[types.Diagnostic]:
        """Every fault of the text; those of another file stand at the beginning."""
        places = self.places(checked.text)
        return [self._diagnostic(fault, checked, places) for fault in checked.loaded.faults]

    def _diagnostic(
        self, fault: Fault, checked: CheckedText, places: ClientPlaces
    ) -> types.Diagnostic:
        is_own = fault.file == str(checked.path)
        words = [fault.message, fault.label, f"help: {fault.help}" if fault.help else None]
        message = "\n".join(each for each in words if each)
        level = types.DiagnosticSeverity
        stretch = Stretch(fault.line - 1, fault.column - 1, fault.length)
        return types.Diagnostic(
            range=self.range_of(places, stretch if is_own else Stretch(0, 0, 1)),
            message=message if is_own else f"{fault.where}: {message}",
            severity=level.Warning if fault.is_warning else level.Error,
            code=fault.code,
            source="minions",
        )

    def quick_fixes(
        self, checked: CheckedText, params: types.CodeActionParams
    ) -> list[types.CodeAction]:
        """The replacements that faults in the range suggest."""
        places = self.places(checked.text)
        actions = []
        for fault in checked.loaded.faults:
            fix = fix_of(fault) if fault.file == str(checked.path) else None
            shown = self._diagnostic(fault, checked, places)
            if fix is None or not _overlap(shown.range, params.range):
                continue
            at = Stretch(fix.line - 1, fix.column - 1, fix.length)
            edit = types.TextEdit(self.range_of(places, at), fix.text)
            actions.append(
                types.CodeAction(
                    title=f"Replace by '{fix.text}'",
                    kind=types.CodeActionKind.QuickFix,
                    diagnostics=[shown],
                    edit=types.WorkspaceEdit(changes={params.text_document.uri: [edit]}),
                    is_preferred=True,
                )
            )
        return actions

    def completion_items(self, checked: CheckedText, spot: Spot) -> list[types.CompletionItem]:
        """What may be written there."""
        places = self.places(checked.text)
        items = []
        for number, each in enumerate(completions_at(checked, spot)):
            length = len(each.word)
            written = self.range_of(places, Stretch(spot.line, spot.column - length, length))
            items.append(
                types.CompletionItem(
                    label=each.label,
                    kind=_KINDS[each.kind],
                    detail=each.detail or None,
                    documentation=each.about or None,
                    sort_text=f"{number:05}",
                    filter_text=each.label,
                    text_edit=types.TextEdit(written, each.text),
                )
            )
        return items

    def hover(self, checked: CheckedText, spot: Spot) -> types.Hover | None:
        """What is known of what is there."""
        found = hover_at(checked, spot)
        if found is None:
            return None
        content = types.MarkupContent(types.MarkupKind.Markdown, found.text)
        return types.Hover(content, self.range_of(self.places(checked.text), found.stretch))

    def definition(self, checked: CheckedText, spot: Spot) -> list[types.Location]:
        """Where it is declared."""
        return [
            types.Location(*self._location(checked, path, stretch))
            for path, stretch in targets_of(checked, spot)
        ]

    def _location(
        self, checked: CheckedText, path: Path, stretch: Stretch
    ) -> tuple[str, types.Range]:
        if path == checked.path:
            return self._uri_of(path), self.range_of(self.places(checked.text), stretch)
        text = read_source(path).decode("utf-8", "replace")
        uri = uris.from_fs_path(str(path.absolute())) or ""
        return uri, self.range_of(self.places(text), stretch)

    def _uri_of(self, path: Path) -> str:
        """What the editor calls an open text."""
        known = [each.uri for each in tuple(self._texts.values()) if each.path == path]
        return known[0] if known else uris.from_fs_path(str(path)) or ""

    def rename(self, checked: CheckedText, spot: Spot, name: str) -> types.WorkspaceEdit:
        """The changes that give another name.

        Raises:
            JsonRpcException: It cannot be given.
        """
        try:
            found = renamed(checked, spot, name)
        except RenameRefusedError as error:
            code = types.LSPErrorCodes.RequestFailed
            raise JsonRpcException(str(error), code.value) from error
        places = self.places(checked.text)
        edits = [types.TextEdit(self.range_of(places, each), name) for each in found]
        changes = {self._uri_of(checked.path): edits}
        old = renamable_at(checked, spot)
        if old is not None and old.name.kind == INPUT:
            for each in callers_of(checked, old.name.path[0], self._open_text):
                there = self.places(each.text)
                changes[self._uri_of(each.path)] = [
                    types.TextEdit(self.range_of(there, stretch), name)
                    for stretch in each.stretches
                ]
        return types.WorkspaceEdit(changes=changes)

    def _open_text(self, path: Path) -> str | None:
        known = [each.text for each in tuple(self._texts.values()) if each.path.resolve() == path]
        return known[0] if known else None

    def symbols(self, checked: CheckedText, _: Spot) -> list[types.DocumentSymbol]:
        """The outline of the recipe."""
        places = self.places(checked.text)
        return [self._symbol(part, checked, places) for part in parts_of(checked)]

    def _symbol(
        self, part: Part, checked: CheckedText, places: ClientPlaces
    ) -> types.DocumentSymbol:
        own = self.range_of(places, part.place)
        last = len(checked.line(part.last_line))
        end = places.to_client(Spot(part.last_line, last))
        return types.DocumentSymbol(
            name=part.name,
            detail=part.detail or None,
            kind=_SYMBOLS[part.kind],
            range=types.Range(own.start, max(own.end, types.Position(*end))),
            selection_range=own,
            children=[self._symbol(each, checked, places) for each in part.inner],
        )

    def folds(self, checked: CheckedText, _: Spot) -> list[types.FoldingRange]:
        """What can be folded."""
        places = self.places(checked.text)
        return [
            types.FoldingRange(
                places.to_client(Spot(first, 0)).line, places.to_client(Spot(last, 0)).line
            )
            for first, last in folds_of(checked)
        ]

    def tokens(self, checked: CheckedText, _: Spot) -> types.SemanticTokens:
        """The names in templates by what they are, each relative to the one before it."""
        places = self.places(checked.text)
        data: list[int] = []
        before = types.Position(0, 0)
        for each in mentions_of(checked):
            if each.reference is None:
                continue
            at = self.range_of(places, each.stretch)
            lines = at.start.line - before.line
            column = at.start.character - (0 if lines else before.character)
            length = at.end.character - at.start.character
            data += [lines, column, length, list(_TOKENS).index(each.name.kind), 0]
            before = at.start
        return types.SemanticTokens(data=data)

    def format(self, checked: CheckedText, _: Spot) -> list[types.TextEdit]:
        """The one change that indents the text in the usual way; none where it is not YAML."""
        try:
            text = formatted(checked.text, str(checked.path))
        except RecipeError:
            return []
        if text == checked.text:
            return []
        places = self.places(checked.text)
        end = places.to_client(Spot(len(checked.lines), 0))
        whole = types.Range(types.Position(0, 0), types.Position(*end))
        return [types.TextEdit(whole, text)]

    async def answer(
        self,
        uri: str,
        position: types.Position | None,
        work: Callable[[CheckedText, Spot], _T],
    ) -> _T | None:
        """What `work` finds at a place of the newest version, in a thread; None: no recipe."""
        checked = await self.checked(uri)
        if checked is None:
            return None
        places = self.places(checked.text)
        spot = Spot(0, 0)
        if position is not None:
            spot = places.of_client(position.line, position.character)
        return await asyncio.to_thread(work, checked, spot)


def _overlap(one: types.Range, other: types.Range) -> bool:
    def key(at: types.Position) -> tuple[int, int]:
        return (at.line, at.character)

    return key(one.start) <= key(other.end) and key(other.start) <= key(one.end)


_KINDS: Final = {
    "key": types.CompletionItemKind.Property,
    "step": types.CompletionItemKind.Function,
    "input": types.CompletionItemKind.Variable,
    "field": types.CompletionItemKind.Field,
    "value": types.CompletionItemKind.Value,
    "tool": types.CompletionItemKind.Method,
    "filter": types.CompletionItemKind.Operator,
    "recipe": types.CompletionItemKind.File,
}


_TOKENS: Final = {
    STEP: types.SemanticTokenTypes.Function,
    SAVED: types.SemanticTokenTypes.Variable,
    INPUT: types.SemanticTokenTypes.Parameter,
    FIELD: types.SemanticTokenTypes.Property,
}
"""What an editor shows the kinds of names in templates as."""
_SYMBOLS: Final = {
    "section": types.SymbolKind.Namespace,
    "step": types.SymbolKind.Function,
    "input": types.SymbolKind.Variable,
    "template": types.SymbolKind.Class,
    "test": types.SymbolKind.Event,
}


def _register_texts(recipes: RecipeServer) -> None:
    """Say what is done when texts are opened, changed and closed."""
    server = recipes.server

    @server.feature(types.INITIALIZE)
    def initialize(params: types.InitializeParams) -> None:
        folders = params.workspace_folders or []
        recipes.enter(folders[0].uri if folders else params.root_uri)

    @server.feature(types.TEXT_DOCUMENT_DID_OPEN)
    async def did_open(params: types.DidOpenTextDocumentParams) -> None:
        await recipes.publish(recipes.open(params.text_document))

    @server.feature(types.TEXT_DOCUMENT_DID_CHANGE)
    async def did_change(params: types.DidChangeTextDocumentParams) -> None:
        if (text := recipes.change(params)) is not None:
            await recipes.publish(text)

    @server.feature(types.TEXT_DOCUMENT_DID_SAVE)
    async def did_save(_: types.DidSaveTextDocumentParams) -> None:
        await recipes.reread()

    @server.feature(types.WORKSPACE_DID_CHANGE_WATCHED_FILES)
    async def did_change_files(_: types.DidChangeWatchedFilesParams) -> None:
        await recipes.reread()

    @server.feature(types.TEXT_DOCUMENT_DID_CLOSE)
    def did_close(params: types.DidCloseTextDocumentParams) -> None:
        recipes.close(params.text_document.uri)


def _register_answers(recipes: RecipeServer) -> None:
    """Say which requests about one place of a text are answered, and by what."""
    server = recipes.server

    @server.feature(
        types.TEXT_DOCUMENT_CODE_ACTION,
        types.CodeActionOptions(code_action_kinds=[types.CodeActionKind.QuickFix]),
    )
    async def code_action(params: types.CodeActionParams) -> list[types.CodeAction]:
        checked = await recipes.checked(params.text_document.uri)
        return recipes.quick_fixes(checked, params) if checked is not None else []

    @server.feature(
        types.TEXT_DOCUMENT_COMPLETION,
        types.CompletionOptions(trigger_characters=[".", "|", "{", "[", " ", "'"]),
    )
    async def completion(params: types.CompletionParams) -> list[types.CompletionItem] | None:
        return await recipes.answer(
            params.text_document.uri, params.position, recipes.completion_items
        )

    @server.feature(types.TEXT_DOCUMENT_HOVER)
    async def hover(params: types.HoverParams) -> types.Hover | None:
        return await recipes.answer(params.text_document.uri, params.position, recipes.hover)

    @server.feature(types.TEXT_DOCUMENT_DEFINITION)
    async def definition(params: types.DefinitionParams) -> list[types.Location] | None:
        return await recipes.answer(params.text_document.uri, params.position, recipes.definition)

    @server.feature(types.TEXT_DOCUMENT_REFERENCES)
    async def references(params: types.ReferenceParams) -> list[types.Location] | None:
        uri, with_definition = params.text_document.uri, params.context.include_declaration

        def find(checked: CheckedText, spot: Spot) -> list[types.Location]:
            places = recipes.places(checked.text)
            found = references_of(checked, spot, with_definition=with_definition)
            return [types.Location(uri, recipes.range_of(places, each)) for each in found]

        return await recipes.answer(uri, params.position, find)


def _register_changes(recipes: RecipeServer) -> None:
    """Say which requests about a whole text are answered, and by what."""
    server = recipes.server

    @server.feature(types.TEXT_DOCUMENT_RENAME, types.RenameOptions(prepare_provider=True))
    async def rename(params: types.RenameParams) -> types.WorkspaceEdit | None:
        def change(checked: CheckedText, spot: Spot) -> types.WorkspaceEdit:
            return recipes.rename(checked, spot, params.new_name)

        return await recipes.answer(params.text_document.uri, params.position, change)

    @server.feature(types.TEXT_DOCUMENT_PREPARE_RENAME)
    async def prepare_rename(params: types.PrepareRenameParams) -> types.Range | None:
        def find(checked: CheckedText, spot: Spot) -> types.Range | None:
            found = renamable_at(checked, spot)
            places = recipes.places(checked.text)
            return recipes.range_of(places, found.stretch) if found is not None else None

        return await recipes.answer(params.text_document.uri, params.position, find)

    @server.feature(types.TEXT_DOCUMENT_DOCUMENT_SYMBOL)
    async def symbols(params: types.DocumentSymbolParams) -> list[types.DocumentSymbol] | None:
        return await recipes.answer(params.text_document.uri, None, recipes.symbols)

    @server.feature(types.TEXT_DOCUMENT_FOLDING_RANGE)
    async def folds(params: types.FoldingRangeParams) -> list[types.FoldingRange] | None:
        return await recipes.answer(params.text_document.uri, None, recipes.folds)

    @server.feature(
        types.TEXT_DOCUMENT_SEMANTIC_TOKENS_FULL,
        types.SemanticTokensLegend(
            token_types=[each.value for each in _TOKENS.values()], token_modifiers=[]
        ),
    )
    async def tokens(params: types.SemanticTokensParams) -> types.SemanticTokens | None:
        return await recipes.answer(params.text_document.uri, None, recipes.tokens)

    @server.feature(types.TEXT_DOCUMENT_FORMATTING)
    async def formatting(params: types.DocumentFormattingParams) -> list[types.TextEdit] | None:
        return await recipes.answer(params.text_document.uri, None, recipes.format)


def serve_editor(open_project: OpenProject) -> None:
    """Answer an editor on standard input and output, until it ends."""
    RecipeServer(open_project).server.start_io()


# --- symbols and folding of a recipe -------------------------------------------------------------


@frozen(kw_only=True)
class Part:
    """A part of the recipe."""

    name: str
    detail: str
    kind: str
    """`section`, `step`, `input`, `template` or `test`."""
    place: Stretch
    """Where its name stands."""
    last_line: int
    inner: tuple[Part, ...] = ()


def parts_of(checked: CheckedText) -> tuple[Part, ...]:
    """The sections of the recipe; none where it is not YAML."""
    node = _document(checked)
    if not isinstance(node, MappingNode):
        return ()
    return tuple(_section(checked, entry) for entry in node.entries)


def folds_of(checked: CheckedText) -> list[tuple[int, int]]:
    """First and last line of all that is longer than a line; of comments that are, too."""
    found = dict(_comments(checked))
    node = _document(checked)
    if node is not None:
        for first, last in _folds(checked, node):
            if last > first:
                found[first] = max(last, found.get(first, 0))
    return sorted(found.items())


def _document(checked: CheckedText) -> Node | None:
    try:
        return read_document(checked.text, str(checked.path))
    except RecipeError:
        return None


def _last_line(checked: CheckedText, node: Node) -> int:
    """The last line with something of the node: that of its last part, for blocks have no end."""
    last = first = node.span[0]
    part: Node | None = node
    while part is not None:
        line, column = part.span[2:]
        last = max(last, line - 1 if column == 0 and line > part.span[0] else line)
        if isinstance(part, MappingNode) and part.entries:
            last = max(last, part.entries[-1].span[0])
            part = part.entries[-1].value
        elif isinstance(part, SequenceNode) and part.items:
            part = part.items[-1]
        else:
            part = None
    while last > first and _is_beside(checked.line(last)):
        last -= 1
    return last


def _is_beside(line: str) -> bool:
    return not line.strip() or line.lstrip().startswith("#")


def _section(checked: CheckedText, entry: Entry) -> Part:
    inner: tuple[Part, ...] = ()
    value = entry.value
    if entry.key in ("inputs", "templates") and isinstance(value, MappingNode):
        kind = entry.key[:-1]
        inner = tuple(_of_entry(checked, each, kind) for each in value.entries)
    elif entry.key in ("steps", "tests") and isinstance(value, SequenceNode):
        kind = entry.key[:-1]
        each = enumerate(value.items, start=1)
        inner = tuple(_of_item(checked, item, kind, number) for number, item in each)
    return _of_entry(checked, entry, "section", inner)


def _of_entry(checked: CheckedText, entry: Entry, kind: str, inner: tuple[Part, ...] = ()) -> Part:
    line, column, _, end = entry.span
    value = entry.value
    shown = str(value.value) if isinstance(value, ScalarNode) and value.value is not None else ""
    return Part(
        name=entry.key or "''",
        detail=shown.split("\n")[0][:60],
        kind=kind,
        place=Stretch(line, column, max(0, end - column)),
        last_line=max(line, _last_line(checked, value)),
        inner=inner,
    )


def _of_item(checked: CheckedText, item: Node, kind: str, number: int) -> Part:
    line, column = item.span[:2]
    name, detail, place = f"{kind} {number}", "", Stretch(line, column, 1)
    if isinstance(item, MappingNode):
        detail = next((each.key for each in item.entries if each.key in KINDS), "")
        entry = item.find("id" if kind == "step" else "name")
        if entry is not None and isinstance(entry.value, ScalarNode) and entry.value.value:
            name = str(entry.value.value)
            at = entry.value.place
            place = Stretch(at.line - 1, at.column - 1, at.length)
    last = max(place.line, _last_line(checked, item))
    return Part(name=name, detail=detail, kind=kind, place=place, last_line=last)


def _folds(checked: CheckedText, node: Node) -> Iterator[tuple[int, int]]:
    pending = [node]
    while pending:
        current = pending.pop()
        if isinstance(current, MappingNode):
            for entry in current.entries:
                yield entry.span[0], _last_line(checked, entry.value)
                pending.append(entry.value)
        elif isinstance(current, SequenceNode):
            for item in current.items:
                yield item.span[0], _last_line(checked, item)
                pending.append(item)


def _comments(checked: CheckedText) -> Iterator[tuple[int, int]]:
    first: int | None = None
    for number, line in enumerate((*checked.lines, "")):
        is_comment = line.lstrip().startswith("#")
        if is_comment and first is None:
            first = number
        elif not is_comment and first is not None:
            if number - first > 1:
                yield first, number - 1
            first = None
