"""Several files at once, for recipes that read and write themselves: their models need no tools."""

from __future__ import annotations

import ast
import difflib
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Annotated, Final

from attrs import field, frozen

from minions.adapters.tools.confined_folder import ConfinedFolder
from minions.adapters.tools.confined_paths import GlobPattern, Place
from minions.adapters.tools.text_files import TextFiles, as_text, no_unique_match
from minions.contracts.plans import FileForm, FileUse
from minions.contracts.tools import ToolScope
from minions.data.errors import ToolError
from minions.data.field_repr import FieldsRepr

_MOST_DIFF: Final = 40_000
"""Characters of a diff that are shown."""
_MOST_COMPARED: Final = 5_000
"""Lines of a file up to which its changes are shown: comparing takes their square at worst."""

Uses = Annotated[
    list[str],
    "Paths below the root; `:outline` behind one shows what it declares, `:10-60` these lines.",
    {"minItems": 1, "maxItems": 1_000},
]
_MaxCharacters = Annotated[int, "Of all files together.", {"minimum": 1}]


# --- values -----------------------------------------------------------------------------------


@frozen(kw_only=True)
class FileShown(FieldsRepr):
    """A file in the result of `read_many`."""

    path: str
    form: str
    """What is shown of it: `whole`, `outline`, `declaration lines`, `lines 10-60`."""
    characters: int


@frozen(kw_only=True)
class FilesRead(FieldsRepr):
    """The result of `read_many`."""

    text: str
    """All files for a prompt: a heading with the path, then the text."""
    files: list[FileShown]
    left_out: list[str]
    """Those for which no room was left."""


@frozen(kw_only=True)
class FileContent(FieldsRepr):
    """A file with its whole text."""

    path: str = field(metadata={"description": "Relative to the root, with '/'."})
    text: str = field(metadata={"description": "All that the file will hold."})


@frozen(kw_only=True)
class FileEdit(FieldsRepr):
    """A piece of a file that is replaced."""

    path: str = field(metadata={"description": "Relative to the root, with '/'."})
    old: str = field(
        metadata={
            "schema": {"type": "string", "minLength": 1},
            "description": "Text that is in the file once, exactly.",
        }
    )
    new: str = field(metadata={"description": "What to put in its place."})


@frozen(kw_only=True)
class PreparedChanges(FieldsRepr):
    """The result of `prepare_changes`."""

    files: list[FileContent]
    """The files with their new texts, which `write_many` takes."""
    actions: dict[str, str]
    """By path what writing does: `created`, `replaced`, `edited` or `unchanged`."""
    diff: str
    """The change as a unified diff; of a long one the beginning."""


@frozen(kw_only=True)
class WrittenFile(FieldsRepr):
    """A file in the result of `write_many`."""

    path: str
    bytes: int


@frozen(kw_only=True)
class FilesWritten(FieldsRepr):
    """The result of `write_many`."""

    files: list[WrittenFile]


# --- the tools --------------------------------------------------------------------------------


@frozen
class ManyFileTools(FieldsRepr):
    """The tools' functions. The first paragraph of each docstring is shown to the model."""

    files: TextFiles

    @property
    def _folder(self) -> ConfinedFolder:
        return self.files.folder

    def read_many(
        self,
        files: Uses,
        max_characters: _MaxCharacters = 40_000,
        failure: Annotated[str, "What a test printed when it failed."] = "",
        among: Annotated[list[str] | None, "Paths that tests may import."] = None,
    ) -> FilesRead:
        """Read several text files as one text; one without room is shown as its outline."""
        # Those that the failing tests import come first, and whole.
        pieces: list[str] = []
        shown: list[FileShown] = []
        left_out: list[str] = []
        room = max_characters
        uses = [FileUse.of(each) for each in files]
        if failure:
            imported = imported_by_failing_tests(self.files, failure, among or [])
            whole = {each.path for each in uses if each.form is not FileForm.OUTLINE}
            if tested := [each for each in imported if each in whole]:
                imported = tested  # what the test is about is there; others cost tokens
            others = [each for each in uses if each.path not in imported]
            others.sort(key=lambda each: each.form is FileForm.OUTLINE)
            uses = [*(FileUse(path=each) for each in imported), *others]
        for use in dict.fromkeys(uses):
            piece = next((each for each in self._pieces(use) if len(each.text) <= room), None)
            if piece is None:
                left_out.append(str(use))
                continue
            room -= len(piece.text)
            pieces.append(piece.text)
            shown.append(FileShown(path=use.path, form=piece.form, characters=len(piece.text)))
        return FilesRead(text="\n".join(pieces), files=shown, left_out=left_out)

    def prepare_changes(
        self,
        files: Annotated[list[FileContent] | None, "Files with their whole text."] = None,
        edits: Annotated[list[FileEdit] | None, "Pieces to replace, in order."] = None,
        allowed: Annotated[list[str] | None, "Paths or globs; others are refused."] = None,
    ) -> PreparedChanges:
        """Check changes of files and give the texts that result; nothing is written."""
        drafts = _Drafts(self.files, self._folder, tuple(allowed or ()))
        for content in files or ():
            drafts.set_text(content)
        for edit in edits or ():
            drafts.edit(edit)
        if drafts.faults:
            raise ToolError(
                "These changes cannot be made, and nothing was changed:\n"
                + "\n".join(f"- {each}" for each in drafts.faults),
                code="bad-changes",
            )
        return drafts.prepared()

    def write_many(self, files: list[FileContent], *, scope: ToolScope) -> FilesWritten:
        """Write several text files; all are checked before the first is written."""
        record = self.files.recorder(scope)
        made = [
            (place, self.files.encoded(place, each.text))
            for each in files
            for place in [self._folder.place(each.path, is_changed=True)]
        ]
        for place, data in made:
            self._folder.replace(place, data, overwrite=True, record=record)
        return FilesWritten(
            files=[WrittenFile(path=place.relative, bytes=len(data)) for place, data in made]
        )

    def _pieces(self, use: FileUse) -> Iterator[_Piece]:
        """What may be shown of a file, the fullest first."""
        place = self._folder.place(use.path)
        if use.form is FileForm.LINES and use.first is not None:
            with self._folder.opened(place) as file:
                data = self.files.lines(place, file, max(use.first, 1), use.last)
            yield _piece(place, f"lines {use.first}-{use.last}", as_text(place, data))
            return
        text = self.files.text(place, "shown")
        if use.form is FileForm.WHOLE:
            yield _piece(place, "whole", text)
        outline = outline_of(use.path, text)
        yield _piece(place, outline.title, outline.text)


@frozen
class _Piece(FieldsRepr):
    """A file as a prompt shows it."""

    form: str
    text: str


def _piece(place: Place, form: str, text: str) -> _Piece:
    title = place.relative if form == "whole" else f"{place.relative} ({form})"
    body = text if text.endswith("\n") or not text else f"{text}\n"
    return _Piece(form, f"### {title}\n{body}")


@frozen
class _Draft(FieldsRepr):
    """The text of one file while changes are applied."""

    before: str | None
    """None: there is no such file."""
    after: str
    is_edited: bool = False


@frozen
class _Drafts(FieldsRepr):
    """The changes of one call, before anything is written."""

    files: TextFiles
    folder: ConfinedFolder
    allowed: tuple[str, ...]
    """Paths and globs; empty: any file below the root."""
    faults: list[str] = field(factory=list)
    _made: dict[str, _Draft] = field(factory=dict)
    """The drafts, by the path below the root."""

    def set_text(self, content: FileContent) -> None:
        """Give a file its whole text."""
        place = self._place(content.path)
        if place is None:
            return
        if place.relative in self._made:
            self.faults.append(f"{place.relative}: it is given twice; give it once.")
            return
        draft = self._present(place)
        try:
            self.files.encoded(place, content.text)
        except ToolError as error:
            self.faults.append(f"{place.relative}: {error}")
            return
        self._made[place.relative] = _Draft(draft, content.text)

    def edit(self, edit: FileEdit) -> None:
        """Replace a piece of a file."""
        place = self._place(edit.path)
        if place is None:
            return
        draft = self._made.get(place.relative)
        if draft is None:
            before = self._present(place)
            if before is None:
                self.faults.append(
                    f"{place.relative}: there is no such file; give its whole text instead."
                )
                return
            draft = _Draft(before, before)
        count = draft.after.count(edit.old)
        if count != 1:
            self.faults.append(f"{place.relative}: {no_unique_match(place, draft.after, count)}")
            return
        text = draft.after.replace(edit.old, edit.new)
        try:
            self.files.encoded(place, text)
        except ToolError as error:
            self.faults.append(f"{place.relative}: {error}")
            return
        self._made[place.relative] = _Draft(draft.before, text, is_edited=True)

    def _place(self, path: str) -> Place | None:
        try:
            place = self.folder.place(path, is_changed=True)
        except ToolError as error:
            self.faults.append(f"{path}: {error}")
            return None
        if self.allowed and not any(_allows(each, place) for each in self.allowed):
            known = ", ".join(self.allowed)
            self.faults.append(f"{place.relative}: only these may be changed: {known}.")
            return None
        return place

    def _present(self, place: Place) -> str | None:
        try:
            return self.files.text(place, "changed")
        except ToolError as error:
            if error.error_code != "no-such-file":
                self.faults.append(f"{place.relative}: {error}")
            return None

    def prepared(self) -> PreparedChanges:
        """All files with their texts."""
        made = self._made
        return PreparedChanges(
            files=[FileContent(path=path, text=draft.after) for path, draft in made.items()],
            actions={path: _action(draft) for path, draft in made.items()},
            diff=_diff(made),
        )


def _allows(allowed: str, place: Place) -> bool:
    return allowed == place.relative or GlobPattern(allowed).matches(place.parts)


def _action(draft: _Draft) -> str:
    if draft.before is None:
        return "created"
    if draft.before == draft.after:
        return "unchanged"
    return "edited" if draft.is_edited else "replaced"


def _diff(drafts: Mapping[str, _Draft]) -> str:
    text = "".join(line for path, draft in drafts.items() for line in _file_diff(path, draft))
    left_out = len(text) - _MOST_DIFF
    if left_out <= 0:
        return text
    return f"{text[:_MOST_DIFF]}\n… ({left_out} more characters left out)\n"


def _file_diff(path: str, draft: _Draft) -> Iterator[str]:
    before, after = _lines(draft.before or ""), _lines(draft.after)
    old = "/dev/null" if draft.before is None else f"a/{path}"
    if max(len(before), len(after)) > _MOST_COMPARED:
        yield f"--- {old}\n+++ b/{path}\n… ({len(before)} lines become {len(after)})\n"
        return
    yield from difflib.unified_diff(before, after, old, f"b/{path}")


def _lines(text: str) -> Sequence[str]:
    """The lines, each with a line end."""
    lines = text.split("\n") if text else []
    return [f"{line}\n" for line in lines[: -1 if text.endswith("\n") else None]]


# --- the outline of a text file ------------------------------------------------------------------


_LONGEST: Final = 200
"""Characters of a line that are shown."""
_LONGEST_VALUE: Final = 60
"""Characters of a constant's or default's value; a longer one is shown as `...`."""
_SCANNED: Final = 1_000
"""Characters of a line in which a declaration is looked for."""

_MODIFIERS: Final = (
    r"(?:(?:export|default|pub(?:\([a-z]+\))?|public|private|protected|internal|static|final|abstract|"
    r"async|unsafe|extern|inline|virtual|override|declare|sealed|open|data) ){0,6}"
)
_DECLARATION: Final = re.compile(
    rf"\s{{0,12}}{_MODIFIERS}(?:class|def|func|fn|fun|function|interface|struct|enum|trait|impl|type|"
    r"module|namespace|package|protocol|extension|message|service|rpc)\b(?! *[=:,;)]).*"
    rf"|{_MODIFIERS}(?:const|let|var|val)\s+[A-Za-z_$].*"
    r"|\s{0,4}(?:create|alter)\s+(?:table|view|index|function|type)\b.*"
    r"|#{1,6}\s.*|\[[^\[\]\n]+\]\s*",
    re.IGNORECASE,
)


@frozen
class Outline(FieldsRepr):
    """The outline of a file."""

    text: str
    title: str
    """What it is: `outline`, or `declaration lines`."""


def outline_of(path: str, text: str) -> Outline:
    """Signatures of a Python file, the declaring lines of any other.

    Args:
        path: Its ending says the language.
    """
    if path.endswith((".py", ".pyi")):
        try:
            lines = list(_body(ast.parse(text).body, ""))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return Outline(_declarations(text), "declaration lines: the file is no valid Python")
        return Outline("\n".join(lines), "outline")
    return Outline(_declarations(text), "declaration lines")


def _declarations(text: str) -> str:
    lines = enumerate(text.splitlines(), start=1)
    return "\n".join(
        f"{number}: {_cut(line.rstrip())}"
        for number, line in lines
        if _DECLARATION.fullmatch(line[:_SCANNED])
    )


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


# --- Python -------------------------------------------------------------------------------------


def _body(nodes: list[ast.stmt], indent: str) -> Iterator[str]:
    """What a module or a class declares."""
    for node in nodes:
        if isinstance(node, ast.ClassDef):
            yield from _class(node, indent)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _function(node, indent)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            default = f" = {_value(node.value)}" if node.value is not None else ""
            yield f"{indent}{node.target.id}: {ast.unparse(node.annotation)}{default}"
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            yield f"{indent}{node.targets[0].id} = {_value(node.value)}"


def _class(node: ast.ClassDef, indent: str) -> Iterator[str]:
    given = [ast.unparse(each) for each in (*node.bases, *node.keywords)]
    yield from _decorators(node, indent)
    bases = f"({', '.join(given)})" if given else ""
    head = f"{indent}class {node.name}{bases}:"
    inner = [*_docstring(node, indent), *_body(node.body, f"{indent}    ")]
    yield from [_cut(head), *inner] if inner else [_cut(f"{head} ...")]


def _function(node: ast.FunctionDef | ast.AsyncFunctionDef, indent: str) -> Iterator[str]:
    yield from _decorators(node, indent)
    start = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
    returns = f" -> {ast.unparse(node.returns)}" if node.returns is not None else ""
    docstring = list(_docstring(node, indent))
    ending = "" if docstring else " ..."
    yield _cut(f"{indent}{start} {node.name}({ast.unparse(node.args)}){returns}:{ending}")
    yield from docstring


def _decorators(
    node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, indent: str
) -> Iterator[str]:
    for each in node.decorator_list:
        yield _cut(f"{indent}@{ast.unparse(each)}")


def _docstring(
    node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, indent: str
) -> Iterator[str]:
    """The first line of the docstring."""
    lines = (ast.get_docstring(node) or "").strip().splitlines()
    if lines:
        yield _cut(f'{indent}    """{lines[0]}"""')


def _value(node: ast.expr | None) -> str:
    text = ast.unparse(node) if node is not None else "..."
    return text if len(text) <= _LONGEST_VALUE else "..."


# --- which files the tests that a failure names import -------------------------------------------


_MOST_OUTPUT: Final = 200_000
"""Characters of a failure that are looked at: the last ones."""
_MOST_NAMED: Final = 50
"""Paths in a failure that are looked at."""
_MOST_FOLDERS: Final = 12
"""Folders of a path that may be those above the root: a command may print absolute paths."""
_MOST_LINES: Final = 400
"""Lines of a file in which imports are looked for."""
_IMPORT_WIDTH: Final = 300
"""Characters of such a line."""
_AROUND: Final = re.compile(r"[\s\"'`:;,<>|(){}=]+")
"""What stands around a path in what commands print."""
_LONGEST_PATH: Final = 500
_TEST: Final = re.compile(r"(?:^|[/_.-])(?:tests?|specs?)(?:[/_.-]|$)", re.IGNORECASE)
_IMPORTS: Final = re.compile(
    r"\s{0,8}(?:import|from|export|use|pub use|mod|require|require_relative|include|#\s?include|"
    r"using)\b|.*\b(?:require|import)\s?\(|.*\bfrom\s?[\"']",
    re.IGNORECASE,
)
_QUOTED: Final = re.compile(r"[\"'<]([^\"'<>\s]{1,200})[\"'>]")
_NAMES: Final = re.compile(r"[\w.:]+")


def imported_by_failing_tests(
    files: TextFiles, failure: str, among: Sequence[str]
) -> Sequence[str]:
    """Those of `among` that the test files import which a failure names."""
    found: dict[str, None] = {}
    words = dict.fromkeys(_AROUND.split(failure[-_MOST_OUTPUT:]))
    named = (each for each in words if "." in each and len(each) <= _LONGEST_PATH)
    tests = (each for each in named if _TEST.search(each))
    for each in islice(tests, _MOST_NAMED):
        if len(found) == len(among):
            break
        for path, text in _read(files, each):
            found |= dict.fromkeys(imported_files(path, text, among))
    return [each for each in among if each in found and _is_there(files, each)]


def _is_there(files: TextFiles, path: str) -> bool:
    try:
        files.text(files.folder.place(path), "shown")
    except ToolError:
        return False
    return True


def _read(files: TextFiles, named: str) -> Iterator[tuple[str, str]]:
    """The test file of that name below the root, with its text; nothing: there is none."""
    parts = [each for each in named.split("/") if each not in ("", ".")]
    for start in range(min(len(parts), _MOST_FOLDERS)):
        path = "/".join(parts[start:])
        if not _TEST.search(path):
            return
        try:
            yield path, files.text(files.folder.place(path), "shown")
        except ToolError:  # it is no file here, or none that may be read
            continue
        return


def imported_files(path: str, text: str, among: Sequence[str]) -> Sequence[str]:
    """Those of `among` that the file imports."""
    is_python = path.endswith((".py", ".pyi"))
    if is_python:
        try:
            modules = set(_python_modules(path, ast.parse(text)))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            is_python = False
        else:
            return [each for each in among if each != path and _is_module(each, modules)]
    exact: set[str] = set()
    names: set[tuple[str, ...]] = set()
    for line in text.splitlines()[:_MOST_LINES]:
        if not _IMPORTS.match(line[:_IMPORT_WIDTH]):
            continue
        for found in _QUOTED.finditer(line[:_IMPORT_WIDTH]):
            target = found[1]
            exact.add(posixpath.normpath(posixpath.join(posixpath.dirname(path), target)))
            if not target.startswith("."):
                exact.add(posixpath.normpath(target))
        if path.endswith((".py", ".pyi")):  # of a faulty one all words of these lines
            names.add(tuple(re.findall(r"\w+", line[:_IMPORT_WIDTH])))
        dotted = (re.split(r"::|\.", each[0]) for each in _NAMES.finditer(line[:_IMPORT_WIDTH]))
        names |= {tuple(each) for each in dotted if len(each) > 1}
    return [each for each in among if each != path and _is_named(each, exact, names)]


def _python_modules(path: str, tree: ast.Module) -> Iterator[tuple[str, ...]]:
    """The dotted names that a Python file imports; relative ones with their folders, from `/`."""
    folder = path.split("/")[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield tuple(alias.name.split("."))
        elif isinstance(node, ast.ImportFrom):
            base = node.module.split(".") if node.module else []
            if node.level:
                base = ["/", *folder[: len(folder) - node.level + 1], *base]
            yield tuple(base)
            for alias in node.names:
                yield (*base, alias.name)


def _is_module(path: str, modules: set[tuple[str, ...]]) -> bool:
    """Whether a path is one of the modules: of an absolute one its last folders have to fit."""
    if not path.endswith((".py", ".pyi")):
        return False
    parts = path.rpartition(".")[0].split("/")
    if parts[-1] == "__init__":
        parts.pop()
    tails = {tuple(parts[at:]) for at in range(len(parts))}
    return ("/", *parts) in modules or bool(tails & modules)


def _is_named(path: str, exact: set[str], names: set[tuple[str, ...]]) -> bool:
    stem = path.rpartition(".")[0] or path
    folder = posixpath.dirname(path)
    known = {path, stem, *([folder] if posixpath.basename(stem) in ("index", "mod") else [])}
    if known & exact or any(
        path.endswith(f"/{each}") or stem.endswith(f"/{each}") for each in exact
    ):
        return True
    return any(posixpath.basename(stem) in parts for parts in names)
