"""What a condition implies: facts that can be compared without executing anything."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Final, TypeAlias

from msgspec import Struct

from minions.recipe.expressions.terms import Comparison, DefinedTest, Literal, Logic, Not, Term
from minions.recipe.expressions.values import PathPart, Reference, is_number

__all__ = ["NO_FACTS", "Facts", "facts_of", "merged"]

Facts: TypeAlias = Mapping[Hashable, Hashable]
"""Expressions that are known to be true or false, or to have a certain value. Two sets with
different values for one key exclude each other.
"""
NO_FACTS: Final[Facts] = {}

_OPPOSITES: Final = {"!=": "==", ">=": "<", "<=": ">", "not in": "in"}
_NEVER: Final = ("never",)
"""The key of a contradiction: no step ever knows it, so that nothing implies it."""
_MOST: Final = 32
"""Facts that are passed on from step to step: their number must not grow with the recipe."""


def facts_of(term: Term, *, is_true: bool = True) -> Facts:
    """The facts that follow from a condition being true, or false."""
    if isinstance(term, Not):
        return facts_of(term.operand, is_true=not is_true)
    if isinstance(term, Logic) and term.is_and is is_true:
        facts: dict[Hashable, Hashable] = {}
        for operand in term.operands:
            for key, value in facts_of(operand, is_true=is_true).items():
                if facts.setdefault(key, value) != value:
                    facts[_NEVER] = True
        return facts
    if isinstance(term, DefinedTest):
        return {("defined", _key(term.base)): term.is_wanted is is_true}
    if isinstance(term, Comparison) and len(term.others) == 1:
        return _of_comparison(term.first, *term.others[0], is_true=is_true)
    return {_key(term): is_true}


def merged(own: Facts, inherited: Iterable[Facts]) -> Facts:
    """All known facts; only the step's own where they exceed the limit."""
    others = [facts for facts in inherited if facts]
    if len(others) + bool(own) < 2:
        return others[0] if others else own
    known = dict(own)
    for facts in others:
        known.update(facts)
        if len(known) > _MOST:
            return own
    return known


def _of_comparison(left: Term, operator: str, right: Term, *, is_true: bool) -> Facts:
    name = _OPPOSITES.get(operator, operator)
    holds = is_true is (name == operator)
    facts: dict[Hashable, Hashable] = {(name, _key(left), _key(right)): holds}
    if name == "==" and holds and isinstance(right, Literal):
        facts["value", _key(left)] = _key(right)
    return facts


def _key(part: object) -> Hashable:
    """A key that is equal for equivalent expressions, wherever they are written."""
    if isinstance(part, Literal):
        value = part.literal
        return ("number", value) if is_number(value) else ("literal", repr(value))
    if isinstance(part, Reference):
        return _path(part.path)
    if isinstance(part, tuple):
        return tuple(map(_key, part))
    if isinstance(part, Struct):
        return (
            type(part).__name__,
            *(_key(getattr(part, name)) for name in part.__struct_fields__),
        )
    return repr(part)


def _path(path: tuple[PathPart, ...]) -> tuple[PathPart, ...]:
    """The path in its short form: `a.x` for `steps.a.output.x`."""
    is_output = len(path) > 2 and path[0] == "steps" and path[2] == "output"
    return (path[1], *path[3:]) if is_output else path
