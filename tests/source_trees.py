"""The syntax trees of the package, parsed once for all tests of a process that look at them."""

from __future__ import annotations

import ast
import gc
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Final

import minions

__all__ = ["PACKAGE", "module_paths", "nodes_of", "tree_of"]

PACKAGE: Final = Path(minions.__file__).parent


@cache
def module_paths() -> Sequence[Path]:
    """Every module of the package, in order."""
    return sorted(PACKAGE.rglob("*.py"))


@cache
def _trees() -> dict[Path, ast.Module]:
    # A million nodes: each search for garbage would go through all that are there already.
    gc.disable()
    try:
        return {path: ast.parse(path.read_text("utf-8")) for path in module_paths()}
    finally:
        gc.freeze()
        gc.enable()


def tree_of(path: Path) -> ast.Module:
    """Of one of `module_paths`. Others have it too: it is not to be changed."""
    return _trees()[path]


@cache
def nodes_of(path: Path) -> Sequence[ast.AST]:
    """All nodes of one of `module_paths`, as `ast.walk` goes through them."""
    return tuple(ast.walk(tree_of(path)))
