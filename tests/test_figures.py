"""Figures of the tree (A-162): none gets worse than the table of `docs/design/rooms.md` says."""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import pytest

from source_trees import PACKAGE, module_paths, nodes_of

PAGE: Final = PACKAGE.parent / "docs" / "design" / "rooms.md"
_ROW: Final = re.compile(r"^\| ([^|]+?) \| ([\d.]+) \| [≤≥] ([\d.]+) \|", re.MULTILINE)
_DOCUMENTED: Final = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_PRIVATE: Final = re.compile(r"\b_[A-Za-z]\w*\b")


def chains_in(nodes: Iterator[ast.AST]) -> Iterator[ast.Attribute]:
    """The longest paths of names after `self` that have three dots or more."""
    inner: set[ast.AST] = set()
    for node in nodes:
        if not isinstance(node, ast.Attribute) or node in inner:
            continue
        names, start = 0, node.value
        inner.add(start)
        while isinstance(start, ast.Attribute):
            names, start = names + 1, start.value
            inner.add(start)
        if names >= 2 and isinstance(start, ast.Name) and start.id == "self":
            yield node


def _code_lines(path: Path) -> int:
    """Without blank lines, comments and docstrings."""
    lines = [line.strip() for line in path.read_text("utf-8").splitlines()]
    documented = sum(
        first.end_lineno - first.lineno + 1
        for node in nodes_of(path)
        if isinstance(node, _DOCUMENTED) and node.body and ast.get_docstring(node) is not None
        for first in node.body[:1]
        if first.end_lineno is not None
    )
    return max(sum(bool(line) and not line.startswith("#") for line in lines) - documented, 0)


def _users(names: Mapping[str, Path]) -> Mapping[str, set[str]]:
    """By module the modules that import it, or of it."""
    found: dict[str, set[str]] = defaultdict(set)
    for user, path in names.items():
        for node in nodes_of(path):
            if isinstance(node, ast.ImportFrom) and node.module is not None:
                for each in node.names:
                    full = f"{node.module}.{each.name}"
                    found[full if full in names else node.module].add(user)
    return found


@pytest.fixture(scope="module")
def figures() -> Mapping[str, float]:
    """By the names of the table."""
    names = {
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts): path
        for path in module_paths()
    }
    code = sum(map(_code_lines, names.values()))
    nodes = [node for path in names.values() for node in nodes_of(path)]
    imports = [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]
    users = _users(names)
    functions = once = 0
    for path in names.values():
        uses = Counter(_PRIVATE.findall(path.read_text("utf-8")))
        for node in nodes_of(path):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                functions += 1
                once += uses[node.name] == 2 and not node.name.startswith("__")
    return {
        "modules": len(names),
        "code lines of a module, in the mean": code / len(names),
        "lines of imports, in per cent of code": 100
        * sum((node.end_lineno or node.lineno) - node.lineno + 1 for node in imports)
        / code,
        "modules that one other module uses": sum(
            len(users[name]) == 1 and path.name != "__init__.py" for name, path in names.items()
        ),
        "private functions with one caller, in per cent of functions": 100 * once / functions,
        "paths of three dots and more after `self`": len(list(chains_in(iter(nodes)))),
        "casts": sum(isinstance(n, ast.Call) and ast.unparse(n.func) == "cast" for n in nodes),
        "uses of `Any`": sum(isinstance(n, ast.Name) and n.id == "Any" for n in nodes),
    }


def test_no_figure_of_the_tree_gets_worse_than_the_table_says(
    figures: Mapping[str, float],
) -> None:
    rows = {name: float(now) for name, now, _ in _ROW.findall(PAGE.read_text("utf-8"))}
    assert rows.keys() == figures.keys()
    is_more_better = "code lines of a module, in the mean"
    worse = {
        name: f"{rows[name]:g} in the table, {now:.1f} now"
        for name, now in figures.items()
        if (now < rows[name] - 0.5 if name == is_more_better else now > rows[name] + 0.05)
    }
    assert worse == {}


def test_a_path_of_three_dots_would_be_found() -> None:
    text = "class A:\n    def f(self):\n        self.a.b.c()\n        self.a.b\n        x.a.b.c.d\n"
    assert [ast.unparse(each) for each in chains_in(ast.walk(ast.parse(text)))] == ["self.a.b.c"]
