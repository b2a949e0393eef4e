"""Writes `reference/errors.md`: every code of an error or warning, its meaning and what to do.

`python docs/generate_errors.py` rewrites the page. The codes are those of the code, read from its
syntax trees; the words are in `reference/errors.yaml`.
"""

from __future__ import annotations

import ast
import functools
import gc
import itertools
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Set
from pathlib import Path
from typing import Final, TypeAlias

import yaml

from minions.data.failure_categories import CATEGORY_OF, FailureCategory

DOCS: Final = Path(__file__).parent
PAGE: Final = DOCS / "reference" / "errors.md"
WORDS: Final = DOCS / "reference" / "errors.yaml"
PACKAGE: Final = DOCS.parent / "minions"
_CODE: Final = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*(-…)?")
_NAMES: Final = ("code", "error_code")
_Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
_WITH_CODES: Final = frozenset(
    {
        *(ast.AnnAssign, ast.Assign, ast.Call, ast.ClassDef, ast.Tuple),
        *(ast.FunctionDef, ast.AsyncFunctionDef),
    }
)
"""The nodes where a code can stand: few of a million."""
_HEAD: Final = """\
# Error codes

Every error has a code that stays the same: the command line prints it (`error[no-model]`), results
and events carry it (`error.code`), and so do the problems that the server answers with. The message
beside it says what was read, where, and what to try; this page is for where the message is not at
hand. `…` stands for a number or a state. Exit codes and the states of runs:
[how it ends](../recipes.md#how-it-ends).

Made by `python docs/generate_errors.py` from the code; the words are in [errors.yaml](errors.yaml).
"""
_COLUMNS: Final = (
    "| code | category | from | what it means, and what to do |\n| --- | --- | --- | --- |\n"
)
_CATEGORIES: Final = """\
## Categories

A program that reacts to a failure asks for its `category`. It stands beside the code in results
(`error.category`), in `run --json`, in events, and in problems over HTTP. The code of a tool or
model of your own has the category `tool`, or `transient` if it may be tried again, else `terminal`.

| category | what may help |
| --- | --- |
"""
_HELP: Final = {
    FailureCategory.TRANSIENT: "The same call may succeed later; it was tried as `retry` says.",
    FailureCategory.RATE_LIMIT: "Ask less often, or wait as long as the server said.",
    FailureCategory.TIMEOUT: "Allow more time, or ask for less.",
    FailureCategory.RESOURCE: "Raise the limit on size, memory, money or number, or ask for less.",
    FailureCategory.CONTRACT: "Mend what was given: recipe, input, schema, arguments.",
    FailureCategory.TOOL: "Look at what the tool says; the model was told, if it could mend it.",
    FailureCategory.PERMISSION: "Allow it, decide it, or do without.",
    FailureCategory.REFUSAL: "Change the prompt, or the model.",
    FailureCategory.TERMINAL: "Change key, model, server or file; a retry alone does not help.",
    FailureCategory.INTERNAL: "Code raised an exception; `--debug` shows where.",
}


def page() -> str:
    """The whole page."""
    codes = codes_of(PACKAGE)
    return "\n".join([_HEAD, _categories(), *(_section(each, codes) for each in words().items())])


def words() -> Mapping[str, Mapping[str, str]]:
    """Heading to code to words, in the order of the page."""
    groups: dict[str, dict[str, str]] = yaml.safe_load(WORDS.read_text("utf-8"))
    return groups


def _categories() -> str:
    return _CATEGORIES + "".join(f"| `{each}` | {_HELP[each]} |\n" for each in FailureCategory)


def _section(group: tuple[str, Mapping[str, str]], codes: Mapping[str, Set[str]]) -> str:
    heading, rows = group
    body = "".join(_row(code, said, codes.get(code, set())) for code, said in rows.items())
    return f"## {heading}\n\n{_COLUMNS}{body}"


def _row(code: str, said: str, parts: Set[str]) -> str:
    words = said.strip().replace("|", "\\|")
    category = "warning" if said.startswith("Warning:") else CATEGORY_OF[code]
    return f"| `{code}` | {category} | {', '.join(sorted(parts))} | {words} |\n"


@functools.cache  # the sources do not change while a page is made
def codes_of(package: Path) -> dict[str, set[str]]:
    """Code to the parts of the package that give it, such as `engine/step`."""
    gc.disable()  # a million nodes: each search for garbage would go through all of them
    try:
        trees = {path: ast.parse(path.read_bytes()) for path in sorted(package.rglob("*.py"))}
    finally:
        gc.enable()
    nodes = {
        path: [node for node in ast.walk(tree) if type(node) in _WITH_CODES]
        for path, tree in trees.items()
    }
    places = _code_parameters(itertools.chain.from_iterable(nodes.values()))
    constants = dict(constant for tree in trees.values() for constant in _constants(tree))
    found: defaultdict[str, set[str]] = defaultdict(set)
    for path in trees:
        part = "/".join(path.relative_to(package).parts[:2]).removesuffix(".py")
        for value in _code_values(nodes[path], places):
            for code in _texts(value, constants):
                if _CODE.fullmatch(code):
                    found[code].add(part)
    return dict(found)


def _constants(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Texts with a name of their own: `NEEDS_DECISION: Final = "needs-decision"`."""
    for node in tree.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            value = node.value
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield node.target.id, value.value


def _code_parameters(nodes: Iterable[ast.AST]) -> dict[str, int]:
    """Functions and classes that take a code by position, and at which."""
    found: dict[str, int] = {}
    for node in nodes:
        if isinstance(node, _Function | ast.ClassDef):
            for name, function in _callables(node):
                names = [each.arg for each in function.args.args if each.arg != "self"]
                if "code" in names:
                    found[name] = names.index("code")
    return found


def _callables(node: ast.AST) -> Iterator[tuple[str, _Function]]:
    if isinstance(node, _Function) and node.name != "__init__":
        yield node.name, node
    if isinstance(node, ast.ClassDef):
        for each in node.body:
            if isinstance(each, ast.FunctionDef) and each.name == "__init__":
                yield node.name, each


def _code_values(nodes: Iterable[ast.AST], places: Mapping[str, int]) -> Iterator[ast.expr]:
    """What is given, assigned or returned as a code."""
    for node in nodes:
        if isinstance(node, ast.Call):
            yield from (each.value for each in node.keywords if each.arg in _NAMES)
            place = places.get(_called(node))
            if place is not None and len(node.args) > place:
                yield node.args[place]
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(isinstance(each, ast.Name) and _is_code_name(each.id) for each in targets):
                yield node.value
        elif isinstance(node, ast.ClassDef) and _is_code_enum(node):
            yield from (each.value for each in node.body if isinstance(each, ast.Assign))
        elif isinstance(node, ast.Tuple) and _is_remedy(node):
            yield node.elts[0]
        elif isinstance(node, _Function):
            yield from _defaults(node)


def _is_code_enum(node: ast.ClassDef) -> bool:
    bases = (each.id for each in node.bases if isinstance(each, ast.Name))
    return node.name.endswith("Code") and "StrEnum" in bases


def _is_remedy(node: ast.Tuple) -> bool:
    """Whether it is a code beside a sentence, as in tables of what a database answers."""
    match node.elts:
        case [ast.Constant(value=str(code)), ast.Constant(value=str(said))]:
            return "-" in code and " " in said and said[0].isupper()
    return False


def _is_code_name(name: str) -> bool:
    return name in _NAMES or name.endswith(("_CODE", "_CODES"))


def _called(node: ast.Call) -> str:
    match node.func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def _defaults(node: _Function) -> Iterator[ast.expr]:
    """Defaults of parameters that take a code, and what functions named `…_code` return."""
    for argument, value in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True):
        if argument.arg == "code" and value is not None:
            yield value
    if node.name.endswith("_code"):
        yield from (
            each.value for each in ast.walk(node) if isinstance(each, ast.Return) and each.value
        )


def _texts(value: ast.expr, constants: Mapping[str, str]) -> Iterator[str]:
    """The texts that the expression can be."""
    match value:
        case ast.Constant(value=str(text)):
            yield text
        case ast.Name(id=name) | ast.Attribute(attr=name) if name in constants:
            yield constants[name]
        case ast.JoinedStr(values=[ast.Constant(value=str(start)), *_]):
            yield f"{start}…"
        case _:
            for each in _alternatives(value):
                yield from _texts(each, constants)


def _alternatives(value: ast.expr) -> Iterator[ast.expr]:
    """The expressions of which the value is one."""
    match value:
        case ast.IfExp(body=body, orelse=other):
            yield from (body, other)
        case ast.BoolOp(values=values) | ast.Dict(values=values):
            yield from values
        case ast.Call(args=args) if _called(value) in ("get", "getattr"):
            yield from args[1:]


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
