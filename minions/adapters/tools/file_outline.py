"""The outline of a text file: what it declares, without what is inside.

Python is parsed; of any other language the lines that declare something are taken as they are. What
was done is part of the outline's title, so that nobody takes one for the other.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Final

from attrs import frozen

__all__ = ["Outline", "outline_of"]

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
class Outline:
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
