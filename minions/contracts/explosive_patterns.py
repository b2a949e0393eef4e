"""Detects regular expressions that can take exponential time on a text that does not match.

A conservative analysis of the parse tree: some harmless patterns are refused, too.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import Final, cast

from attrs import frozen

from minions.contracts.patterns import PatternNode, pattern_tree

__all__ = ["is_explosive_pattern"]


def is_explosive_pattern(pattern: str) -> bool:
    """Whether a text that does not match can take exponential time.

    Raises:
        re.error: As for `pattern_tree`.
    """
    analysis = _PatternAnalysis(ignores_case=_IGNORE_CASE.search(pattern) is not None)
    return analysis.is_explosive(pattern_tree(pattern))


_IGNORE_CASE: Final = re.compile(r"\(\?[A-Za-z]*i")
"""Of the whole pattern or of a group: it counts for all of it."""
_REPEATS: Final = ("MAX_REPEAT", "MIN_REPEAT")
_UNTRIED: Final = ("ATOMIC_GROUP", "POSSESSIVE_REPEAT", "GROUPREF")
_UNBOUNDED: Final = 100
"""A repetition that may exceed this count is treated as unbounded."""
_MOST_WAYS: Final = 100_000
"""Ways to divide a text among the rounds of a repetition: more are treated as exponential."""
_MOST_COMPARED: Final = 60
"""Nodes and members of classes that are compared; a longer round counts as not fenced."""
_SAMPLE: Final = "".join(map(chr, range(128))) + "\x85\xa0éßſ¼²٠Ⅷ‿\u2003\u2028☃一\U0001f600"
"""Characters of each kind that a class may name, beside those that the pattern names."""
_CODES: Final = 0x110000


@frozen(kw_only=True)
class _PatternAnalysis:
    """Looks for a repetition whose rounds can divide a text among them in many ways.

    `(-[a-z]+)*` is safe: each round starts with a character that the rest of it cannot match.
    """

    ignores_case: bool

    def is_explosive(self, tree: Sequence[PatternNode]) -> bool:
        return any(
            (str(node[0]) in _REPEATS and self._ways_of_repeat(node[1]) > _MOST_WAYS)
            or any(self.is_explosive(body) for body in _bodies(node))
            for node in tree
        )

    def _ways(self, tree: Sequence[PatternNode]) -> int:
        """Upper bound of the ways in which `tree` can match; just over the limit if more.

        What does not try a second way counts as one: assertions, atomic groups, possessive repeats.
        """
        ways = 1
        for place, node in enumerate(tree):
            if not self._is_settled(node, tree[place + 1 :], end_is_given=False):
                ways = min(ways * self._ways_of_node(node), _MOST_WAYS + 1)
        return ways

    def _ways_of_node(self, node: PatternNode) -> int:
        operator, argument = str(node[0]), node[1]
        if operator in _REPEATS:
            low, high, _ = cast("tuple[int, int, object]", argument)
            counts = min(high, _UNBOUNDED + 1) - min(low, _UNBOUNDED) + 1
            return counts * self._ways_of_repeat(argument)
        if operator == "SUBPATTERN":
            return self._ways(_bodies(node)[0])
        if operator in ("BRANCH", "GROUPREF_EXISTS"):
            ways = [self._ways(body) for body in _bodies(node)]
            return max(ways) if self._begin_differently(_bodies(node)) else sum(ways)
        return 1

    def _ways_of_repeat(self, argument: object) -> int:
        """Ways of all its rounds together, if there are as many as there may be."""
        _, high, body = cast("tuple[int, int, Sequence[PatternNode]]", argument)
        ways, rounds = self._ways(body), min(high, _UNBOUNDED + 1)
        of_round = self._ways_of_extent(body) if self._is_fenced(list(body)) else ways
        return max(ways, min(math.prod([of_round] * rounds), _MOST_WAYS + 1))

    def _ways_of_extent(self, tree: Sequence[PatternNode]) -> int:
        """Upper bound of the ways in which `tree` can match one given part of a text."""
        variable = [place for place, node in enumerate(tree) if self._is_variable(node)]
        if not variable:
            return 1
        if not all(
            self._is_settled(tree[place], tree[place + 1 :], end_is_given=True)
            for place in variable[:-1]
        ):
            return self._ways(tree)
        last = tree[variable[-1]]
        if str(last[0]) in _REPEATS:
            return self._ways_of_repeat(last[1])
        if str(last[0]) == "SUBPATTERN":
            return self._ways_of_extent(_bodies(last)[0])
        return self._ways_of_node(last)

    def _is_variable(self, node: PatternNode) -> bool:
        """Whether it can match texts of several lengths, by trying them or not."""
        return self._ways_of_node(node) > 1 or str(node[0]) in _UNTRIED

    def _is_settled(
        self, node: PatternNode, rest: Sequence[PatternNode], *, end_is_given: bool
    ) -> bool:
        """Whether a repeated character ends where it must, since what follows cannot match it."""
        if str(node[0]) not in _REPEATS or len(body := list(_bodies(node)[0])) != 1:
            return False
        required = next((place for place, other in enumerate(rest) if _is_required(other)), None)
        if required is None and not end_is_given:
            return False
        return self._excludes(body[0], rest[: len(rest) if required is None else required + 1])

    def _is_fenced(self, body: Sequence[PatternNode]) -> bool:
        """Whether each round starts or ends with a character that the rest of it cannot match."""
        if len(body) == 1 and str(body[0][0]) == "SUBPATTERN":
            return self._is_fenced(list(_bodies(body[0])[0]))
        if not body:
            return False
        return any(
            self._excludes(node, rest)
            for node, rest in ((body[0], body[1:]), (body[-1], body[:-1]))
        )

    def _excludes(self, node: PatternNode, rest: Sequence[PatternNode]) -> bool:
        """Whether `node` matches one character, and `rest` none of those that it can match."""
        if str(node[0]) == "LITERAL":
            candidates = {cast("int", node[1])}
        elif str(node[0]) in ("IN", "NOT_LITERAL"):
            named = list(_named(([node], rest)))
            if len(named) > _MOST_COMPARED:
                return False
            candidates = {*map(ord, _SAMPLE), *named}
        else:
            return False
        return not any(
            _can_match(node, character)
            and any(_can_match(other, case) for other in rest for case in self._cases(character))
            for character in candidates
        )

    def _cases(self, character: int) -> tuple[int, ...]:
        """The character, in lower and upper case if they are the same here."""
        text = chr(character)
        cases = (text, text.lower(), text.upper()) if self.ignores_case else (text,)
        return tuple(ord(case) for case in cases if len(case) == 1)

    def _begin_differently(self, branches: Sequence[Sequence[PatternNode]]) -> bool:
        heads = [branch[0] if len(branch) else ("EMPTY", None) for branch in branches]
        literal = [
            min(self._cases(cast("int", head[1]))) for head in heads if str(head[0]) == "LITERAL"
        ]
        return len(literal) == len(heads) and len(set(literal)) == len(literal)


def _bodies(node: PatternNode) -> Sequence[Sequence[PatternNode]]:
    """The patterns within a node."""
    operator, argument = str(node[0]), node[1]
    if operator in (*_REPEATS, "POSSESSIVE_REPEAT", "SUBPATTERN", "ASSERT", "ASSERT_NOT"):
        return [cast("tuple[Sequence[PatternNode], ...]", argument)[-1]]
    if operator == "ATOMIC_GROUP":
        return [cast("Sequence[PatternNode]", argument)]
    if operator == "BRANCH":
        return cast("tuple[object, Sequence[Sequence[PatternNode]]]", argument)[1]
    if operator == "GROUPREF_EXISTS":
        _, then, other = cast("tuple[int, Sequence[PatternNode], Sequence[PatternNode]]", argument)
        return [then, other or ()]
    return []


def _is_required(node: PatternNode) -> bool:
    """Whether `node` matches at least one character."""
    operator, argument = str(node[0]), node[1]
    if operator in _REPEATS:
        low, _, body = cast("tuple[int, int, Sequence[PatternNode]]", argument)
        return low > 0 and any(_is_required(part) for part in body)
    return operator in ("LITERAL", "NOT_LITERAL", "IN", "ANY")


def _named(argument: object) -> Iterator[int]:
    """The numbers in a part of a parse tree, among them all characters, and their neighbours."""
    if isinstance(argument, int):
        yield from (code for code in (argument - 1, argument, argument + 1) if 0 <= code < _CODES)
    elif isinstance(argument, tuple | list) or hasattr(argument, "getwidth"):
        for part in list(cast("Sequence[object]", argument)):
            yield from _named(part)


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
    if operator in ("SUBPATTERN", "BRANCH"):
        return any(_can_match(item, character) for body in _bodies(node) for item in body)
    return True
