"""Detects regular expressions that can take exponential time on a text that does not match.

A conservative analysis of the parse tree: some harmless patterns are refused, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, cast

from minions.contracts.patterns import PatternNode, pattern_tree

__all__ = ["is_explosive_pattern"]


def is_explosive_pattern(pattern: str) -> bool:
    """Whether a text that does not match can take exponential time.

    Raises:
        re.error: As for `pattern_tree`.
    """
    return _is_explosive(pattern_tree(pattern), repeated=False)


_REPEATS: Final = ("MAX_REPEAT", "MIN_REPEAT")
_UNBOUNDED: Final = 100
"""A repetition that may exceed this count is treated as unbounded."""


def _is_explosive(tree: Sequence[PatternNode], *, repeated: bool) -> bool:
    """Whether an unbounded repetition contains another one, or a choice, that can split a text
    in two ways.

    `(-[a-z]+)*` is safe: each round starts with a character that its inner part cannot match.
    """
    return any(_node_is_explosive(node, repeated=repeated) for node in tree)


def _node_is_explosive(node: PatternNode, *, repeated: bool) -> bool:
    operator, argument = str(node[0]), node[1]
    if operator in _REPEATS:
        _, high, body = cast("tuple[int, int, Sequence[PatternNode]]", argument)
        endless = high > _UNBOUNDED
        if repeated and endless:
            return True
        return _is_explosive(body, repeated=(repeated or endless) and not _is_fenced(list(body)))
    if operator == "SUBPATTERN":
        body = cast("tuple[object, object, object, Sequence[PatternNode]]", argument)[-1]
        return _is_explosive(body, repeated=repeated)
    if operator == "BRANCH":
        branches = cast("tuple[object, Sequence[Sequence[PatternNode]]]", argument)[1]
        if repeated and not _begin_differently(branches):
            return True
        return any(_is_explosive(branch, repeated=repeated) for branch in branches)
    if operator in ("ASSERT", "ASSERT_NOT"):
        return _is_explosive(cast("tuple[int, Sequence[PatternNode]]", argument)[1], repeated=False)
    return False


def _is_fenced(body: Sequence[PatternNode]) -> bool:
    """Whether each round starts or ends with a literal that the rest of it cannot match."""
    if len(body) == 1 and str(body[0][0]) == "SUBPATTERN":
        inner = cast("tuple[object, object, object, Sequence[PatternNode]]", body[0][1])[-1]
        return _is_fenced(list(inner))
    if not body:
        return False
    return any(
        str(node[0]) == "LITERAL"
        and not any(
            _can_match(other, case) for other in rest for case in _cases(cast("int", node[1]))
        )
        for node, rest in ((body[0], body[1:]), (body[-1], body[:-1]))
    )


def _cases(character: int) -> tuple[int, ...]:
    """The character in lower and upper case, for `(?i)` may stand anywhere in the pattern."""
    text = chr(character)
    return tuple(ord(case) for case in (text, text.lower(), text.upper()) if len(case) == 1)


def _can_match(node: PatternNode, character: int) -> bool:
    """Whether `node` might match that character; unknown kinds of nodes might."""
    operator, argument = str(node[0]), node[1]
    if operator == "LITERAL":
        return argument == character
    if operator == "NOT_LITERAL":
        return argument != character
    if operator == "IN":
        items = cast("list[PatternNode]", argument)
        is_negated = str(items[0][0]) == "NEGATE"
        found = any(_can_match(item, character) for item in items[is_negated:])
        return found is not is_negated
    if operator == "RANGE":
        low, high = cast("tuple[int, int]", argument)
        return low <= character <= high
    if operator == "CATEGORY":
        text = chr(character)
        kind = str(argument)
        known = {"DIGIT": text.isdigit(), "SPACE": text.isspace()}
        known["WORD"] = text.isalnum() or text == "_"
        return known[kind.removeprefix("CATEGORY_").removeprefix("NOT_")] is not ("NOT_" in kind)
    if operator in _REPEATS:
        body = cast("tuple[int, int, Sequence[PatternNode]]", argument)[2]
        return any(_can_match(item, character) for item in body)
    return True


def _begin_differently(branches: Sequence[Sequence[PatternNode]]) -> bool:
    heads = [branch[0] if len(branch) else ("EMPTY", None) for branch in branches]
    literal = [min(_cases(cast("int", head[1]))) for head in heads if str(head[0]) == "LITERAL"]
    return len(literal) == len(heads) and len(set(literal)) == len(literal)
