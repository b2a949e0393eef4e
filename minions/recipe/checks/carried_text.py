"""Which text a template takes over from what it reads: not all that it reads ends up in its value.

A number, a truth value or one of listed words carries no text that a stranger could have written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from minions.data.json_values import JsonValue
from minions.recipe.expressions.filters import FILTERS, TESTS, TYPES_GIVEN
from minions.recipe.expressions.template import Templates
from minions.recipe.expressions.terms import (
    Choice,
    Comparison,
    DefinedTest,
    FilterTerm,
    Not,
    Path,
    Term,
)
from minions.recipe.expressions.values import Reference, TemplateError

_WITHOUT_TEXT: Final = frozenset({"integer", "number", "boolean", "null"})
_WITHOUT_NUMBERS: Final = frozenset({"boolean", "null"})
_DEEPEST: Final = 20


def carried_references(
    value: JsonValue, compiled: Templates, *, in_full: bool = False
) -> Iterator[Reference]:
    """The references of all templates in `value` whose text ends up in the rendered value.

    Args:
        compiled: Compiles the texts of the recipe.
        in_full: As for `may_hold_text`.
    """
    try:
        terms = compiled.compile(value).terms()
    except TemplateError:  # reported where the recipe was read
        return
    for term in terms:
        yield from carried_by(term, in_full=in_full)


def carried_by(term: Term, *, in_full: bool = False) -> Iterator[Reference]:
    """The references of one expression whose text ends up in its value."""
    if isinstance(term, Path):
        yield term.reference
    elif isinstance(term, Comparison | Not | DefinedTest) or (
        isinstance(term, FilterTerm) and _gives_no_text(term, in_full=in_full)
    ):
        return
    else:
        parts = (term.yes, term.no) if isinstance(term, Choice) else term.parts()
        for part in parts:
            yield from carried_by(part, in_full=in_full)


def _gives_no_text(term: FilterTerm, *, in_full: bool) -> bool:
    if FILTERS.get(term.name) is term.function:
        return TYPES_GIVEN.get(term.name) in (_WITHOUT_NUMBERS if in_full else _WITHOUT_TEXT)
    return TESTS.get(term.name) is term.function


def may_hold_text(schema: JsonValue, depth: int = 0, *, in_full: bool = False) -> bool:
    """Whether a value of that schema may hold text other than what the schema lists.

    Args:
        in_full: Whether numbers and lists count as text, too: a list of letters, and a number of
            any size, can spell one.
    """
    if not isinstance(schema, Mapping) or depth > _DEEPEST:
        return True
    if "enum" in schema or "const" in schema:
        return False
    kind = schema.get("type")
    kinds = set(kind) if isinstance(kind, list | tuple) else {kind}
    known = _WITHOUT_NUMBERS if in_full else _WITHOUT_TEXT | {"array"}
    if not kinds <= known | {"object"}:
        return True
    if "array" in kinds and (
        "prefixItems" in schema or may_hold_text(schema.get("items"), depth + 1)
    ):
        return True
    return "object" in kinds and _has_text_member(schema, depth, in_full=in_full)


def _has_text_member(schema: Mapping[str, JsonValue], depth: int, *, in_full: bool) -> bool:
    members = schema.get("properties")
    if schema.get("additionalProperties") is not False or "patternProperties" in schema:
        return True
    known = members.values() if isinstance(members, Mapping) else ()
    return any(may_hold_text(each, depth + 1, in_full=in_full) for each in known)
