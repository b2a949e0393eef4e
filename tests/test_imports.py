"""Who imports whom: no two modules import each other, not even for types or within functions."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from source_trees import PACKAGE, module_paths, nodes_of


def _modules() -> Mapping[str, Path]:
    found: dict[str, Path] = {}
    for path in module_paths():
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def _imported(path: Path, modules: Mapping[str, Path]) -> Iterator[str]:
    for node in nodes_of(path):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            for name in node.names:
                full = f"{node.module}.{name.name}"
                yield full if full in modules else node.module
        elif isinstance(node, ast.Import):
            yield from (name.name for name in node.names)


def _graph() -> Mapping[str, Sequence[str]]:
    modules = {name: path for name, path in _modules().items() if name != "minions"}
    return {
        name: sorted({each for each in _imported(path, modules) if each in modules} - {name})
        for name, path in modules.items()
    }


def _rings(graph: Mapping[str, Sequence[str]]) -> list[str]:
    """What is left when modules that import nothing that is left are taken away, again and again,
    and then those that nothing imports."""
    left = {name: set(others) for name, others in graph.items()}
    while free := [name for name, others in left.items() if not others & left.keys()]:
        for name in free:
            del left[name]
    while loose := left.keys() - {each for others in left.values() for each in others}:
        for name in loose:
            del left[name]
    return sorted(left)


def test_no_modules_import_each_other_in_a_ring() -> None:
    assert _rings(_graph()) == []


def test_a_ring_would_be_found() -> None:
    graph = {"a": ["b"], "b": ["c"], "c": ["b"], "d": ["a"], "e": []}
    assert _rings(graph) == ["b", "c"]
