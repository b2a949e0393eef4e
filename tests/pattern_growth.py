"""Whether the time of a regular expression can grow faster than its text.

A backtracking matcher takes more than linear time where it can reach two loops with the same text,
and must try all ways to share it between them. Searching is a loop, too: it begins again at each
character. The pattern becomes an automaton whose states are the characters that it consumes, over
some characters that tell its classes apart.

Weideman et al., Analyzing Matching Time Behavior of Backtracking Regular Expression Matchers by
Using Ambiguity of NFA, 2016.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import reduce
from itertools import product
from operator import or_
from typing import Any, Final

__all__ = ["growing_loops"]

_BASE: Final = "aZ09_ \n\t\r\0-é٣\u3000{}()[]<>#\"'`,.:;=/\\"
_END: Final = 1
"""The bit of the end of the text."""
_LARGE: Final = 200
"""Repetitions that count as a loop."""

Node = tuple[Any, Any]  # Any: what the standard library's parser returns


def growing_loops(pattern: str | bytes, flags: int = 0, *, searches: bool, whole: bool) -> str:
    """Words about two loops that can share a text; empty where there are none.

    Args:
        searches: Whether a match may begin anywhere.
        whole: Whether a match has to end at the end of the text.
    """
    parser = importlib.import_module("re._parser")
    tree = parser.parse(pattern, flags)
    automaton = _Automaton(tree.state.flags, _alphabet(tree, tree.state.flags))
    return automaton.built(list(tree), searches=searches, whole=whole).growth()


def _alphabet(tree: Iterable[Node], flags: int) -> Sequence[int]:
    found = {ord(each) for each in _BASE}
    for code in _codes(list(tree)):
        found |= {each for each in (code - 1, code, code + 1) if 0 <= each <= 0x10FFFF}
        if flags & re.IGNORECASE:
            found |= {ord(each) for each in chr(code).swapcase() if len(chr(code).swapcase()) == 1}
    return sorted(found)


def _codes(part: Any) -> Iterator[int]:  # Any: any part of a parse tree
    if isinstance(part, tuple) and len(part) == 2:
        name = str(part[0])
        if name in ("LITERAL", "NOT_LITERAL"):
            yield part[1]
            return
        if name == "RANGE":
            yield from part[1]
            return
    if isinstance(part, tuple | list) or hasattr(part, "getwidth"):
        for each in part:
            yield from _codes(each)


class _Piece:
    """A part of the pattern: with which states it begins and ends, and whether it may be empty."""

    def __init__(self, first: set[int], last: set[int], is_empty: bool) -> None:
        self.first, self.last, self.is_empty = first, last, is_empty


class _Automaton:
    def __init__(self, flags: int, alphabet: Sequence[int]) -> None:
        self.flags = flags
        self.bits = {code: 2 << at for at, code in enumerate(alphabet)}
        self.all = reduce(or_, self.bits.values())
        self.classes: list[int] = []
        self.follow: list[set[int]] = []
        self.accepting: set[int] = set()
        self.doubled = ""

    # --- building ---------------------------------------------------------------------------

    def state(self, mask: int) -> int:
        self.classes.append(mask)
        self.follow.append(set())
        return len(self.classes) - 1

    def built(self, tree: list[Node], *, searches: bool, whole: bool) -> _Automaton:
        begins = bool(tree) and str(tree[0][0]) == "AT" and "BEGINNING" in str(tree[0][1])
        is_line = begins and self.flags & re.MULTILINE and str(tree[0][1]) == "AT_BEGINNING"
        body = self.sequence(tree)
        if whole:
            body = self.joined([body, self.single(_END)])
        self.accepting = body.last
        if searches and (not begins or is_line):
            scan = self.state(self.all)
            into = body.first
            if is_line:
                line = self.state(self.bits[ord("\n")])
                self.follow[line] |= body.first
                into = {line}
            self.follow[scan] |= {scan, *into}
        return self

    def connect(self, before: Iterable[int], after: set[int]) -> None:
        for state in before:
            if self.follow[state] & after:  # a loop directly within a loop
                self.doubled = self.doubled or f"a loop of a loop of {self.shown(state)}"
            self.follow[state] |= after

    def single(self, mask: int) -> _Piece:
        made = self.state(mask)
        return _Piece({made}, {made}, is_empty=False)

    def sequence(self, nodes: Iterable[Node]) -> _Piece:
        return self.joined([self.node(each) for each in nodes])

    def joined(self, pieces: Sequence[_Piece]) -> _Piece:
        whole = _Piece(set(), set(), is_empty=True)
        for each in pieces:
            self.connect(whole.last, each.first)
            first = whole.first | each.first if whole.is_empty else whole.first
            last = whole.last | each.last if each.is_empty else each.last
            whole = _Piece(first, last, whole.is_empty and each.is_empty)
        return whole

    def node(self, node: Node) -> _Piece:
        name, argument = str(node[0]), node[1]
        if name in ("LITERAL", "NOT_LITERAL", "ANY", "IN"):
            return self.single(self.mask(node))
        if name == "AT" and argument is not None and "END" in str(argument):
            return self.single(_END)
        if name in ("SUBPATTERN", "ATOMIC_GROUP"):
            return self.sequence(argument[-1] if name == "SUBPATTERN" else argument)
        if name == "BRANCH":
            pieces = [self.sequence(each) for each in argument[1]]
            return _Piece(
                set().union(*(each.first for each in pieces)),
                set().union(*(each.last for each in pieces)),
                any(each.is_empty for each in pieces),
            )
        if name.endswith("_REPEAT"):
            return self.repeat(*argument)
        if name == "GROUPREF":
            return self.repeat(0, _LARGE + 1, [("ANY", None)])
        return _Piece(set(), set(), is_empty=True)  # what consumes nothing

    def repeat(self, low: int, high: int, body: Iterable[Node]) -> _Piece:
        body = list(body)
        pieces = [self.sequence(body) for _ in range(min(low, 2))]
        if high >= _LARGE:
            loop = self.sequence(body)
            if loop.is_empty:
                self.doubled = self.doubled or "a loop of what may be empty"
            self.connect(loop.last, loop.first)
            pieces.append(_Piece(loop.first, loop.last, is_empty=True))
        else:
            pieces += self.at_most([self.sequence(body) for _ in range(min(high - low, 2))])
        return self.joined(pieces)

    def at_most(self, copies: Sequence[_Piece]) -> list[_Piece]:
        """Copies of which each may follow only the one before, as in `(x(x)?)?`."""
        if not copies:
            return []
        rest = self.at_most(copies[1:])
        whole = self.joined([copies[0], *rest])
        return [_Piece(whole.first, whole.last, is_empty=True)]

    def mask(self, node: Node) -> int:
        if str(node[0]) == "LITERAL" and not self.flags & re.IGNORECASE:
            return self.bits[node[1]]
        found = [bit for code, bit in self.bits.items() if self.has(node, code)]
        return reduce(or_, found, 0)

    def has(self, node: Node, code: int) -> bool:
        if not self.flags & re.IGNORECASE:
            return _matches(node, code, self.flags)
        cases = {chr(code), chr(code).lower(), chr(code).upper()}
        return any(_matches(node, ord(each), self.flags) for each in cases if len(each) == 1)

    # --- looking ----------------------------------------------------------------------------

    def growth(self) -> str:
        if self.doubled:
            return self.doubled
        loops = [state for state in range(len(self.classes)) if self.is_loop(state)]
        for p, q in product(loops, loops):
            if p == q or q in self.accepting or not self.meets(p, q):
                continue
            if self.leads((p, p, q), (p, q, q)):
                return f"a loop of {self.shown(p)} and one of {self.shown(q)} can share a text"
        for p in loops:
            for r in self.follow[p]:
                for s in self.follow[p]:
                    if r < s and self.common(r, s) and self.leads((r, s), (p, p)):
                        return f"within a loop of {self.shown(p)} a text can be read in two ways"
        return ""

    def shown(self, state: int) -> str:
        codes = [chr(code) for code, bit in self.bits.items() if self.classes[state] & bit]
        return repr("".join(codes[:12]))

    def is_loop(self, state: int) -> bool:
        return state in self.reached(state)

    def reached(self, state: int) -> set[int]:
        found, rest = set[int](), [state]
        while rest:
            for each in self.follow[rest.pop()] - found:
                found.add(each)
                rest.append(each)
        return found

    def meets(self, p: int, q: int) -> bool:
        return q in self.reached(p)

    def common(self, *states: int) -> int:
        return reduce(lambda mask, state: mask & self.classes[state], states, self.all)

    def leads(self, start: tuple[int, ...], end: tuple[int, ...]) -> bool:
        """Whether one text leads each of the states to the one that stands in its place."""
        seen, rest = set[tuple[int, ...]](), [start]
        while rest:
            for each in product(*(self.follow[state] for state in rest.pop())):
                if each not in seen and self.common(*each):
                    if each == end:
                        return True
                    seen.add(each)
                    rest.append(each)
        return False


def _matches(node: Node, code: int, flags: int) -> bool:
    name, argument = str(node[0]), node[1]
    if name == "LITERAL":
        return bool(code == argument)
    if name == "NOT_LITERAL":
        return bool(code != argument)
    if name == "ANY":
        return bool(flags & re.DOTALL) or code != ord("\n")
    if name == "RANGE":
        return bool(argument[0] <= code <= argument[1])
    if name == "CATEGORY":
        return _in_category(str(argument), chr(code), is_ascii=not flags & re.UNICODE)
    if name == "IN":
        negated = str(argument[0][0]) == "NEGATE"
        return any(_matches(each, code, flags) for each in argument[negated:]) is not negated
    raise AssertionError(f"not a class of characters: {name}")


_CATEGORIES: Final[dict[str, Callable[[str], bool]]] = {
    "DIGIT": str.isdecimal,
    "SPACE": str.isspace,
    "WORD": lambda text: text.isalnum() or text == "_",
}


def _in_category(name: str, text: str, *, is_ascii: bool) -> bool:
    known = _CATEGORIES[name.removeprefix("CATEGORY_").removeprefix("NOT_")]
    return (known(text) and (not is_ascii or text.isascii())) is not ("NOT_" in name)
