"""Writes `reference/api.md`: every public name with one line on what it is.

`python docs/generate_api.py` rewrites the page; names and words are the code's.
"""

from __future__ import annotations

import ast
import enum
import importlib
import inspect
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Final

PAGE: Final = Path(__file__).parent / "reference" / "api.md"
MODULES: Final = (
    "minions",
    "minions.recipes",
    "minions.events",
    "minions.decisions",
    "minions.sessions",
    "minions.services",
    "minions.sandboxes",
    "minions.mcp",
    "minions.batches",
    "minions.evaluations",
    "minions.caching",
    "minions.models",
    "minions.prices",
    "minions.testing",
    "minions.server",
    "minions.guide",
)
_HEAD: Final = """\
# Public names

What stands here is kept; everything else may change from one version to the next. Each name is
imported when it is first used, so that `import minions` stays quick. Made by
`python docs/generate_api.py` from the code's own words; [applications](../applications.md),
[steps](../writing-a-step.md), [completion links](../writing-a-completion-link.md),
[tools](../tools.md) and [testing](../testing.md) show them at work.
"""
_OF_CHECKERS: Final = {
    "JsonValue": "What JSON can say: null, booleans, numbers, text, lists, mappings."
}
"""Names that only type checkers know in full."""
_MOST_PARAMETERS: Final = 6
_SHORT: Final = 40
"""A first sentence of fewer characters says too little alone."""


def page() -> str:
    """The whole page."""
    return "\n".join([_HEAD, *(_section(name) for name in MODULES)])


def _section(name: str) -> str:
    module = importlib.import_module(name)
    rows = "\n".join(_row(module, each) for each in module.__all__)
    summary = (module.__doc__ or "").partition("\n\n")[0]
    return f"## `{name}`\n\n{summary}\n\n| name | what it is |\n| --- | --- |\n{rows}\n"


def _row(module: ModuleType, name: str) -> str:
    value = getattr(module, name)
    text = _summary(module, name, value)
    return f"| `{_signature(name, value)}` | {text} |".replace("{{", "{ {").replace("\n", " ")


def _signature(name: str, value: object) -> str:
    if isinstance(value, enum.EnumMeta):
        return f"{name}: {', '.join(value.__members__)}"
    is_made = inspect.isclass(value) and not inspect.isabstract(value) and value is not object
    if not (is_made or inspect.isfunction(value)) or getattr(value, "_is_protocol", False):
        return name
    try:
        parameters = [*inspect.signature(value).parameters.values()]
    except ValueError:
        return name
    shown = [_shown(each) for each in parameters[:_MOST_PARAMETERS]]
    more = ["…"] if len(parameters) > _MOST_PARAMETERS else []
    start = "await " if inspect.iscoroutinefunction(value) else ""
    return f"{start}{name}({', '.join([*shown, *more])})"


def _shown(parameter: inspect.Parameter) -> str:
    marks = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}
    name = marks.get(parameter.kind, "") + parameter.name
    return name if parameter.default is parameter.empty else f"{name}="


def _summary(module: ModuleType, name: str, value: object) -> str:
    """The first sentence of the docstring, or of the text below an alias."""
    if name in _OF_CHECKERS:
        return _OF_CHECKERS[name]
    is_documented = inspect.isclass(value) or inspect.isroutine(value)
    own = inspect.getdoc(value) if is_documented and value is not object else None
    home = importlib.import_module(vars(module)["_HOME_OF"][name])
    text = own or dict(_documented(home)).get(name, "")
    paragraph = " ".join(text.partition("\n\n")[0].split())
    first, *rest = re.split(r"(?<=[.!?]) (?=[A-Z])", paragraph)
    told = " ".join([first, *rest[:1]]) if len(first) < _SHORT else first
    return told.replace("|", "\\|")


def _documented(home: ModuleType) -> Iterator[tuple[str, str]]:
    """Assignments of a module with the text that stands below each."""
    body = ast.parse(inspect.getsource(home)).body
    for assigned, below in itertools.pairwise(body):
        if not isinstance(below, ast.Expr) or not isinstance(below.value, ast.Constant):
            continue
        targets = assigned.targets if isinstance(assigned, ast.Assign) else []
        if isinstance(assigned, ast.AnnAssign):
            targets = [assigned.target]
        target = targets[0] if targets else None
        if isinstance(target, ast.Name) and isinstance(below.value.value, str):
            yield target.id, below.value.value


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
