"""Which files the tests that a failure names import.

Python is parsed; of any other language the names in lines that import something are compared with
the paths. Nothing is run, and a file that cannot be read imports nothing.
"""

from __future__ import annotations

import ast
import posixpath
import re
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

from minions.adapters.tools.text_files import TextFiles
from minions.data.errors import ToolError

_MOST_OUTPUT: Final = 200_000
"""Characters of a failure that are looked at: the last ones."""
_MOST_NAMED: Final = 50
"""Paths in a failure that are looked at."""
_MOST_FOLDERS: Final = 12
"""Folders of a path that may be those above the root: a command may print absolute paths."""
_MOST_LINES: Final = 400
"""Lines of a file in which imports are looked for."""
_SCANNED: Final = 300
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
        if not _IMPORTS.match(line[:_SCANNED]):
            continue
        for found in _QUOTED.finditer(line[:_SCANNED]):
            target = found[1]
            exact.add(posixpath.normpath(posixpath.join(posixpath.dirname(path), target)))
            if not target.startswith("."):
                exact.add(posixpath.normpath(target))
        if path.endswith((".py", ".pyi")):  # of a faulty one all words of these lines
            names.add(tuple(re.findall(r"\w+", line[:_SCANNED])))
        dotted = (re.split(r"::|\.", each[0]) for each in _NAMES.finditer(line[:_SCANNED]))
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
