"""Fills the quotes of `extending-minions.md` from the code, so that they cannot drift.

`python docs/generate_extending.py` rewrites the page. A quote names something that one module of
the tree defines at its top level, wherever that module is: `<!-- quoted: ModelApi -->`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
PAGE: Final = Path(__file__).resolve().with_name("extending-minions.md")
_MARK: Final = re.compile(r"(<!-- quoted: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def page(text: str) -> str:
    """The page with every quote as the code has it now."""
    return _MARK.sub(lambda found: f"{found[1]}\n{_quote(found[2])}\n{found[3]}", text)


def _quote(name: str) -> str:
    found = list(_definitions(name))
    if len(found) != 1:
        places = ", ".join(file.relative_to(ROOT).as_posix() for file, _ in found)
        raise ValueError(
            f"The page quotes `{name}`, which {len(found)} modules define ({places or 'none'}). "
            "Quote another name, or what took its place."
        )
    ((file, text),) = found
    return f"`{file.relative_to(ROOT).as_posix()}`:\n\n```python\n{text}\n```\n"


def _definitions(name: str) -> Iterator[tuple[Path, str]]:
    for file in sorted((ROOT / "minions").rglob("*.py")):
        source = file.read_text("utf-8")
        if name not in source:
            continue
        lines = source.splitlines()
        for node in ast.parse(source).body:
            if name in _names_of(node):
                decorators: list[ast.expr] = getattr(node, "decorator_list", [])
                first = min([node.lineno, *(each.lineno for each in decorators)])
                yield file, "\n".join(lines[first - 1 : node.end_lineno])


def _names_of(node: ast.stmt) -> tuple[str, ...]:
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return (node.name,)
    target = node.target if isinstance(node, ast.AnnAssign) else None
    return (target.id,) if isinstance(target, ast.Name) else ()


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text("utf-8")), "utf-8")
