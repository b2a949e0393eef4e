"""One-line changes to the conditions of a module: each is a mutant that some test has to notice.

Only what decides is changed: conditions, comparisons, bounds, members of constants, early returns
and calls whose result nobody reads. Messages, documentation and logging stay as they are.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from typing import Final

from attrs import frozen

__all__ = ["Mutant", "mutants_of"]


@frozen(kw_only=True)
class Mutant:
    """A module with one change."""

    path: str
    """Of the module, from the package's folder: `engine/services/budget.py`."""
    first_line: int
    last_line: int
    place: str
    """The function, class or constant that holds the change: `RunBudget.spend`."""
    is_in_function: bool
    in_signature: bool
    """Whether it changes what is evaluated where the function is defined."""
    before: str
    """The changed lines, with single spaces."""
    after: str
    text: str
    """The whole module."""


_BOUNDARY: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
}
_OPPOSITE: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_TWINS: Final = {"max": "min", "min": "max", "any": "all", "all": "any"}
_EXITS: Final = (ast.Return, ast.Continue, ast.Break, ast.Raise)
_UNMUTATED_KEYWORDS: Final = frozenset({"kw_only", "init", "strict", "factory", "repr", "eq"})
_SQL_CHANGES: Final = (
    (r" AND [a-z_.]+ (?:<?=|IS NOT) (?:\?\d+|NULL)", ""),
    (r"(?<= )= (?=\?)", "<> "),
    (r"(?<= )<= (?=\?)", "< "),
    (r"IS NOT NULL", "IS NULL"),
)
"""Conditions within a statement; one that is left out must not leave a `?` without its value."""


def mutants_of(path: str, source: str) -> list[Mutant]:
    """All of them, in the order of the lines."""
    found = _Finder(path, source)
    found.visit(ast.parse(source))
    unique = {each.text: each for each in found.mutants if each.text != source}
    return sorted(unique.values(), key=lambda each: (each.first_line, each.after))


class _Finder(ast.NodeVisitor):
    def __init__(self, path: str, source: str) -> None:
        self.mutants: list[Mutant] = []
        self._path = path
        # Positions of a syntax tree count bytes.
        self._source = source.encode()
        lengths = [len(line) for line in self._source.splitlines(keepends=True)]
        self._starts = [sum(lengths[:at]) for at in range(len(lengths) + 1)]
        self._lines = source.splitlines()
        self._places: list[str] = []
        self._in_signature = False
        self._functions = 0

    # --- what is looked at ----------------------------------------------------------------------

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        """Its defaults and its body; not its decorators and types."""
        self._places.append(node.name)
        self._in_signature = True
        for default in (*node.args.defaults, *node.args.kw_defaults):
            if default is not None:
                self.visit(default)
        self._in_signature = False
        self._functions += 1
        for statement in node.body:
            self.visit(statement)
        self._functions -= 1
        self._places.pop()

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815  # the name is the visitor's

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        """Its body only."""
        self._places.append(node.name)
        for statement in node.body:
            self.visit(statement)
        self._places.pop()

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        """Its value, not its type."""
        if node.value is None:
            return
        if self._places or not isinstance(node.target, ast.Name):
            self.visit(node.value)
            return
        self._places.append(node.target.id)
        self._change_constant(node.value)
        self.visit(node.value)
        self._places.pop()

    def visit_Assert(self, node: ast.Assert) -> None:
        """Nothing: it tells the type checker what holds anyway."""

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Nothing: it is what a person reads."""

    def visit_Subscript(self, node: ast.Subscript) -> None:
        """What is cut, not where: that is how much a person reads."""
        self.visit(node.value)

    def visit_If(self, node: ast.If) -> None:
        """Its condition, and an exit that is all it does."""
        if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            return
        self._negate(node.test)
        if len(node.body) == 1 and isinstance(node.body[0], _EXITS):
            self._replace(node.body[0], "pass")
        self.generic_visit(node)

    def visit_While(self, node: ast.While) -> None:
        """Its condition."""
        self._negate(node.test)
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        """Its condition."""
        self._negate(node.test)
        self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        """Its conditions, also left out."""
        for condition in node.ifs:
            self._negate(condition)
            self._replace(condition, "True")
        self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        """A call for its effect is left out."""
        call = node.value.value if isinstance(node.value, ast.Await) else node.value
        if not isinstance(call, ast.Call) or re.search(r"\b_?log\.", ast.unparse(call.func)):
            return
        self._replace(node, "pass")
        self.generic_visit(node)

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        """One of several kinds is not caught."""
        if isinstance(node.type, ast.Tuple):
            self._drop_each(node.type, node.type.elts)
        for statement in node.body:
            self.visit(statement)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        """`not` is left out."""
        if isinstance(node.op, ast.Not):
            self._replace(node, ast.unparse(node.operand))
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        """The other connective; each operand left out."""
        other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        self._replace(node, ast.unparse(ast.BoolOp(other, node.values)))
        for at in range(len(node.values)):
            rest = [*node.values[:at], *node.values[at + 1 :]]
            self._replace(node, ast.unparse(ast.BoolOp(node.op, rest) if rest[1:] else rest[0]))
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        """Another operator; one of several members left out; a number changed by one."""
        for at, operator in enumerate(node.ops):
            changed = _BOUNDARY.get(type(operator)) or _OPPOSITE[type(operator)]
            ops = [*node.ops[:at], changed(), *node.ops[at + 1 :]]
            self._replace(node, ast.unparse(ast.Compare(node.left, ops, node.comparators)))
            members = node.comparators[at]
            if isinstance(operator, (ast.In, ast.NotIn)) and _is_listed(members):
                self._drop_each(members, _elements(members))
        self._shift_numbers(node.left, *node.comparators)
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        """The other direction; a number changed by one."""
        texts = (ast.JoinedStr, ast.List, ast.Tuple)
        is_text = any(
            isinstance(each, texts) or (isinstance(each, ast.Constant) and type(each.value) is str)
            for each in (node.left, node.right)
        )
        if isinstance(node.op, (ast.Add, ast.Sub)) and not is_text:
            other = ast.Sub() if isinstance(node.op, ast.Add) else ast.Add()
            self._replace(node, ast.unparse(ast.BinOp(node.left, other, node.right)))
        self._shift_numbers(node.left, node.right)
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        """It is left out."""
        self._replace(node, "pass")
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        """The other of two twins; a member of what it makes left out."""
        name = node.func.id if isinstance(node.func, ast.Name) else None
        if name in _TWINS:
            self._replace(node.func, _TWINS[name])
            self._shift_numbers(*node.args)
        if name in ("frozenset", "isinstance") and node.args and _is_listed(node.args[-1]):
            self._drop_each(node.args[-1], _elements(node.args[-1]))
        self.visit(node.func)
        for each in node.args:
            self.visit(each)
        for keyword in node.keywords:
            if keyword.arg not in _UNMUTATED_KEYWORDS:
                self.visit(keyword.value)

    def visit_Constant(self, node: ast.Constant) -> None:
        """`True` and `False`; conditions of an SQL statement."""
        if isinstance(node.value, bool):
            self._replace(node, str(not node.value))
        elif isinstance(node.value, str) and re.search(r"\bWHERE\b", node.value):
            for pattern, replacement in _SQL_CHANGES:
                for match in re.finditer(pattern, node.value):
                    changed = node.value[: match.start()] + replacement + node.value[match.end() :]
                    self._replace(node, repr(changed))

    # --- how it is changed ----------------------------------------------------------------------

    def _negate(self, test: ast.expr) -> None:
        is_changed_elsewhere = isinstance(test, (ast.UnaryOp, ast.BoolOp)) or (
            isinstance(test, ast.Compare) and type(test.ops[0]) in _OPPOSITE
        )
        if not is_changed_elsewhere:
            self._replace(test, f"not ({ast.unparse(test)})")

    def _drop_each(self, node: ast.expr, elements: Sequence[ast.expr]) -> None:
        if len(elements) < 2:
            return
        for left_out in elements:
            rest = ", ".join(ast.unparse(each) for each in elements if each is not left_out)
            self._replace(node, f"{{{rest}}}" if isinstance(node, ast.Set) else f"({rest},)")

    def _change_constant(self, value: ast.expr) -> None:
        """Of the module: each row left out, each bound changed by one."""
        self._shift_numbers(value)
        for table in ast.walk(value):
            if not isinstance(table, ast.Dict):
                continue
            for left_out in range(len(table.keys)):
                keys = [*table.keys[:left_out], *table.keys[left_out + 1 :]]
                values = [*table.values[:left_out], *table.values[left_out + 1 :]]
                self._replace(table, ast.unparse(ast.Dict(keys, values)))

    def _shift_numbers(self, *nodes: ast.expr) -> None:
        for node in nodes:
            if isinstance(node, ast.Constant) and type(node.value) in (int, float):
                number = node.value
                assert isinstance(number, (int, float))
                self._replace(node, repr(number + 1))
                self._replace(node, repr(number - 1))

    def _replace(self, node: ast.expr | ast.stmt, text: str) -> None:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        begin = self._starts[node.lineno - 1] + node.col_offset
        end = self._starts[node.end_lineno - 1] + node.end_col_offset
        if isinstance(node, (ast.BoolOp, ast.Compare, ast.UnaryOp, ast.BinOp)):
            text = f"({text})"
        first, last = self._starts[node.lineno - 1], self._starts[node.end_lineno]
        changed = self._source[first:begin] + text.encode() + self._source[end:last]
        whole = self._source[:first] + changed + self._source[last:]
        self.mutants.append(
            Mutant(
                path=self._path,
                first_line=node.lineno,
                last_line=node.end_lineno,
                place=".".join(self._places),
                is_in_function=self._functions > 0,
                in_signature=self._in_signature,
                before=_words(self._source[first:last]),
                after=_words(changed),
                text=whole.decode(),
            )
        )


def _is_listed(node: ast.expr) -> bool:
    return isinstance(node, (ast.Tuple, ast.Set))


def _elements(node: ast.expr) -> Sequence[ast.expr]:
    assert isinstance(node, (ast.Tuple, ast.Set))
    return node.elts


def _words(text: bytes) -> str:
    return " ".join(text.decode().split())
