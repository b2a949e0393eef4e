"""Every public method is documented, once: an override has the docstring of its contract."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import runpy
from collections.abc import Iterator
from types import FunctionType
from typing import Final

from attrs import frozen

from source_trees import PACKAGE as ROOT
from source_trees import module_paths, nodes_of

_WITHOUT_METHODS: Final = frozenset(
    {"ABC", "Generic", "Protocol", "Struct", "NamedTuple", "StrEnum", "Exception", "ValueError"}
)
"""Bases from elsewhere that declare no method which our classes document anew."""


@frozen(kw_only=True)
class _Class:
    place: str
    bases: frozenset[str]
    methods: dict[str, ast.FunctionDef | ast.AsyncFunctionDef]


def _base_name(node: ast.expr) -> str:
    while isinstance(node, ast.Subscript):
        node = node.value
    return node.attr if isinstance(node, ast.Attribute) else ast.unparse(node)


def _classes() -> Iterator[tuple[str, _Class]]:
    for path in module_paths():
        for node in nodes_of(path):
            if isinstance(node, ast.ClassDef):
                yield (
                    node.name,
                    _Class(
                        place=f"{path.relative_to(ROOT.parent)}: {node.name}",
                        bases=frozenset(map(_base_name, node.bases)),
                        methods={
                            each.name: each
                            for each in node.body
                            if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
                        },
                    ),
                )


def _is_inherited(method: str, bases: frozenset[str], known: dict[str, list[_Class]]) -> bool:
    """Whether a base declares the method; of a base from elsewhere it is assumed."""
    for base in bases - _WITHOUT_METHODS:
        for each in known.get(base, ()):
            if method in each.methods or _is_inherited(method, each.bases, known):
                return True
        if base not in known:
            return True
    return False


def _needs_docstring(method: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    decorators = {ast.unparse(each).rpartition(".")[2] for each in method.decorator_list}
    is_documented = ast.get_docstring(method) is not None
    return not (is_documented or method.name.startswith("_") or decorators & {"overload", "setter"})


def test_every_public_method_is_documented_here_or_in_its_contract() -> None:
    known: dict[str, list[_Class]] = {}
    for name, each in _classes():
        known.setdefault(name, []).append(each)
    missing = [
        f"{each.place}.{name}"
        for title, group in known.items()
        if not title.startswith("_")
        for each in group
        for name, method in each.methods.items()
        if _needs_docstring(method) and not _is_inherited(name, each.bases, known)
    ]
    assert sorted(missing) == []


_ARGUMENTS: Final = re.compile(r"^( *)Args:\n((?:\1 +.*\n|\n)+)", re.MULTILINE)


def _described(function: FunctionType) -> list[str]:
    """The names that the docstring describes, as they stand there."""
    found = _ARGUMENTS.search(f"{inspect.getdoc(function) or ''}\n")
    if found is None:
        return []
    return re.findall(rf"^{found[1]} {{4}}(\S[^:]*):", found[2], re.MULTILINE)


def _public_functions() -> Iterator[tuple[str, FunctionType]]:
    api = runpy.run_path(str(ROOT.parent / "docs" / "generate_api.py"))
    for name in api["MODULES"]:
        module = importlib.import_module(name)
        for each in module.__all__:
            value = getattr(module, each)
            members = vars(value) if isinstance(value, type) else {"": value}
            for member, function in members.items():
                plain = getattr(function, "__func__", function)
                if isinstance(plain, FunctionType):
                    yield f"{name}.{each} {member}", plain


def test_each_described_parameter_of_a_public_name_is_one_that_it_has() -> None:
    """The reference is made of them: two names on one line are none, and end `make docs`."""
    functions = list(_public_functions())
    assert len(functions) > 200
    unknown = [
        f"{place}: {name}"
        for place, function in functions
        for name in _described(function)
        if name.lstrip("*") not in inspect.signature(function).parameters
    ]
    assert unknown == []
