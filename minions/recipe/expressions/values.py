"""Values in expressions: paths, conversion to text, equality, and errors.

Parsing and operators are in other modules.
"""

from __future__ import annotations

import enum
from collections import ChainMap
from collections.abc import Collection, Mapping, Sequence
from itertools import islice
from math import isfinite
from typing import Final, TypeAlias, TypeGuard

from msgspec import Struct

from minions.data.errors import MinionsError, UsageError, near_names
from minions.data.json_values import JsonValue, dumps

MAX_TEXT: Final = 1_048_576
"""Characters of a rendered text, and items of a list that an expression creates."""
MAX_NODES: Final = 1_048_576
"""Values in a value that an expression makes, all levels together."""
MAX_BYTES: Final = 67_108_864
"""Characters of texts and keys in such a value."""
MAX_OPERATIONS: Final = 500_000
"""Operations of one rendering: an item that is looked at, 64 characters that are copied. They take
some 40 ms, in which nothing else of the event loop can run."""

PathPart: TypeAlias = str | int
Scope: TypeAlias = Mapping[str, JsonValue]


class TemplateError(UsageError):
    """A template that cannot be parsed; `offset` and `length` count characters of its string."""

    code = "bad-template"

    def __init__(
        self, problem: str, *, hint: str | None = None, offset: int = 0, length: int = 1
    ) -> None:
        super().__init__(f"{problem}; {hint}" if hint else problem)
        self.problem = problem
        self.hint = hint
        self.offset = offset
        self.length = length


class EvaluationError(MinionsError):
    """A template failed on a value: a number plus a text, a result that is too long."""

    code = "template-failed"


class ExpressionBudgetError(EvaluationError):
    """Evaluation would take too long, or the value that it makes would be too large."""

    code = "expression-budget"


class Meter:
    """Counts the operations of one rendering, or of several."""

    left: int = MAX_OPERATIONS  # of the class at first: most renderings charge nothing

    @property
    def is_long(self) -> bool:
        """Whether others of the event loop should work before anything else is rendered."""
        return self.left < MAX_OPERATIONS * 9 // 10

    def charge(self, operations: int) -> None:
        """Take operations off the budget, before they are carried out.

        Raises:
            ExpressionBudgetError: There are not so many left.
        """
        self.left -= operations
        if self.left < 0:
            raise ExpressionBudgetError(
                f"An expression would take more than {MAX_OPERATIONS:,} operations. Work on less "
                "at a time: select first, loop over parts, or use a step of code."
            )


def size_of(value: JsonValue) -> int:
    """Operations that looking once through a value takes, without what is nested in it."""
    if isinstance(value, str):
        return 1 + len(value) // 64
    if isinstance(value, list | tuple | Mapping):
        return 1 + len(value) // 8
    return 1


class Weight(Struct, frozen=True):
    """The size of a value as it would be written: what stands in it twice counts twice."""

    nodes: int
    characters: int


_LEAVES: Final = frozenset({str, int, float, bool, type(None)})
_OF_ENCODER: Final = 20
"""Operations that writing any value as JSON takes."""
_OF_CONTAINER: Final = 8
"""Operations that a list or mapping takes to be weighed."""


def weighed(value: JsonValue, meter: Meter) -> Weight:
    """The weight of a value; the operations are taken off the meter.

    Raises:
        ExpressionBudgetError: It is too large, or too costly to weigh.
    """
    nodes, characters = 1, len(value) if isinstance(value, str) else 0
    rest: list[JsonValue] = [value] if is_container(value) else []
    while rest:
        each = rest.pop()
        items: Collection[JsonValue] = ()
        if type(each) is dict or isinstance(each, Mapping):
            items = each.values()
            characters += sum(map(len, each))
            meter.charge(_OF_CONTAINER)
        elif is_list(each):
            items = each
        nodes += len(items)
        meter.charge(_OF_CONTAINER + len(items) // 8)
        kinds = set(map(type, items))
        if str in kinds:
            texts = items if len(kinds) == 1 else [one for one in items if isinstance(one, str)]
            characters += sum(map(len, texts))  # type: ignore[arg-type]  # texts
        if not kinds <= _LEAVES:
            rest += [one for one in items if type(one) not in _LEAVES and is_container(one)]
        if nodes > MAX_NODES or characters > MAX_BYTES:
            raise ExpressionBudgetError(
                f"An expression would make a value of more than {MAX_NODES:,} values or "
                f"{MAX_BYTES:,} characters; what stands in it twice counts twice."
            )
    return Weight(nodes, characters)


def weight_up_to(value: JsonValue, most: int) -> int:
    """Nodes and KiB of text of a value that a step gave; `most` where there are more."""
    try:
        meter = Meter()
        meter.left = most * 4 * _OF_CONTAINER
        weight = weighed(value, meter)
    except ExpressionBudgetError:
        return most
    return min(most, weight.nodes + weight.characters // 1_024)


_FEW: Final = 32


def check_weight(value: JsonValue, meter: Meter) -> None:
    """Weigh a value that an expression made.

    Raises:
        ExpressionBudgetError: It is too large, or too costly to weigh.
    """
    if type(value) is dict and len(value) <= _FEW and _LEAVES.issuperset(map(type, value.values())):
        return  # the usual case
    if is_container(value):
        weighed(value, meter)


class MissingValueError(EvaluationError):
    """A path that does not exist. A null value exists."""

    code = "missing-value"

    def __init__(self, path: tuple[PathPart, ...], *, depth: int, names: tuple[str, ...]) -> None:
        """Describe the missing path.

        Args:
            depth: How many parts of `path` exist.
            names: The keys at the place where the path ends.
        """
        wanted = str(path[depth])
        self.path = path_text(path)
        self.resolved = path_text(path[:depth])
        """The part of the path that exists; empty when not even its root does."""
        self.nearest = nearest(wanted, names)
        """The existing key that is most similar to the missing one; None: none is similar."""
        inside = f"'{self.resolved}' has no '{wanted}'" if depth else f"there is no '{wanted}'"
        hint = f" Did you mean '{self.nearest}'?" if self.nearest else ""
        there = "" if self.nearest or not names else f" It has: {', '.join(names[:8])}."
        super().__init__(
            f"'{self.path}' has no value: {inside}.{hint}{there}",
            suggestions=[self.nearest] if self.nearest else (),
        )


class Reference(Struct, frozen=True, kw_only=True):
    """A path that a template reads."""

    path: tuple[PathPart, ...]
    """The constant part of the path: ('a',) for `a[b].c`."""
    text: str
    """The reference as written."""
    is_guarded: bool = False
    """Whether the value may be missing: under a `default` filter or an
    `is defined` test, or behind one.
    """
    is_conditional: bool = False
    """Whether another part of the expression decides if it is evaluated: one
    side of a choice, `b` in `a or b`.
    """
    offset: int = 0
    """Offset in the template's string, in characters."""

    @property
    def step_name(self) -> str:
        """Name of the step that it reads, if it reads one: `a` for `steps.a.output`."""
        is_full = self.path[0] == "steps" and len(self.path) > 1
        return str(self.path[1 if is_full else 0])

    @property
    def is_status(self) -> bool:
        """Whether it reads how a step ended, not its output."""
        return self.path[0] == "steps" and self.path[2:3] in (("status",), ("error",))


_LONGEST_NAME: Final = 100
_MOST_NAMES: Final = 1_000


def nearest(name: str, options: Sequence[str]) -> str | None:
    """The option most similar to `name`; None: none is similar, or there is too much to compare."""
    if len(name) > _LONGEST_NAME:
        return None
    near = near_names(name, options[:_MOST_NAMES], limit=1)
    return near[0] if near else None


class MissingType(enum.Enum):
    """The type of the one value that stands for "does not exist"."""

    MISSING = "missing"


MISSING: Final = MissingType.MISSING


def look_up(value: JsonValue, key: PathPart) -> JsonValue | MissingType:
    """What `value` holds under `key`: a mapping's key or a list's index."""
    if isinstance(value, Mapping):
        return value.get(key if isinstance(key, str) else str(key), MISSING)
    if is_list(value):
        if isinstance(key, str) and key.isascii() and key.isdigit():
            key = int(key)
        if isinstance(key, int) and -len(value) <= key < len(value):
            return value[key]
    return MISSING


def resolve(path: tuple[PathPart, ...], scope: JsonValue) -> JsonValue:
    """The value itself that `path` leads to, not a copy.

    Raises:
        MissingValueError: The path does not exist.
    """
    value = scope
    if type(value) is ChainMap:  # the values of a loop's item, over those of the run
        for each in value.maps:
            value = each
            if path[0] in each:
                break
    try:
        for part in path:
            if type(value) is not dict:  # the usual case, four times as fast as the general one
                return _resolve_any(path, scope)
            value = value[part]
    except KeyError:
        return _resolve_any(path, scope)
    return value


def _resolve_any(path: tuple[PathPart, ...], scope: JsonValue) -> JsonValue:
    value = scope
    for depth, part in enumerate(path):
        found = look_up(value, part)
        if isinstance(found, MissingType):
            names = names_in(value)
            raise MissingValueError(path, depth=depth, names=names)
        value = found
    return value


def names_in(value: JsonValue) -> tuple[str, ...]:
    """The first keys of a mapping, for a message; none of any other value."""
    return tuple(map(str, islice(value, _MOST_NAMES))) if isinstance(value, Mapping) else ()


def short_path(path: tuple[PathPart, ...]) -> tuple[PathPart, ...]:
    """The path in its short form: `a.x` for `steps.a.output.x`."""
    is_output = len(path) > 2 and path[0] == "steps" and path[2] == "output"
    return (path[1], *path[3:]) if is_output else path


def path_text(path: tuple[PathPart, ...]) -> str:
    """The path as text: `a.b[0]['c d']`."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        elif part.isidentifier():
            text += f".{part}" if text else part
        else:
            text += f"[{part!r}]" if text else part
    return text


def is_list(value: object) -> TypeGuard[list[JsonValue] | tuple[JsonValue, ...]]:
    """Whether this is a JSON array; a text is not one."""
    return isinstance(value, list | tuple)


def is_container(value: JsonValue) -> bool:
    """Whether this is a JSON array or object."""
    return isinstance(value, list | tuple | Mapping)


def is_number(value: JsonValue) -> TypeGuard[int | float]:
    """Whether this is a JSON number; true and false are not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_same(left: JsonValue, right: JsonValue) -> bool:
    """Equality of JSON values: 1 equals 1.0, 1 does not equal true."""
    return left == right and isinstance(left, bool) is isinstance(right, bool)


def same(left: JsonValue, right: JsonValue, meter: Meter) -> bool:
    """`is_same`, after the operations that it takes were taken off the meter."""
    meter.charge(1)
    if isinstance(left, list | tuple | Mapping) and isinstance(right, list | tuple | Mapping):
        meter.charge(_OF_CONTAINER)
        if len(left) == len(right):
            meter.charge(weighed(left, meter).nodes // 4)
    elif isinstance(left, str) and isinstance(right, str):
        meter.charge(len(left) // 1_024)
    return is_same(left, right)


def as_text(value: JsonValue, meter: Meter | None = None) -> str:
    """A value as part of a longer text: a text as it is, everything else as JSON.

    Args:
        meter: Of the rendering; None: of this one conversion.
    Raises:
        EvaluationError: A number outside of JSON's range, or more than 1 MiB.
    """
    if isinstance(value, str):
        return value
    if meter is not None:
        meter.charge(_OF_CONTAINER)
    if type(value) is int or (type(value) is float and isfinite(value)):
        return repr(value)
    if is_container(value):
        weight = weighed(value, meter := meter or Meter())
        meter.charge(_OF_ENCODER + weight.nodes + weight.characters // 64)
        check_size(weight.characters + weight.nodes)  # less than its JSON has
    try:
        return capped(dumps(value))
    except (TypeError, ValueError, RecursionError) as error:
        raise EvaluationError(
            f"A {type_name(value)} cannot be written as text: {error}."
        ) from error


def capped(text: str) -> str:
    """Return the text if it is not too long.

    Raises:
        EvaluationError: It is longer than 1 MiB.
    """
    check_size(len(text))
    return text


def check_size(size: int) -> None:
    """Refuse a size before the memory is allocated.

    Raises:
        EvaluationError: More than 1 MiB of characters, or as many items.
    """
    if size > MAX_TEXT:
        raise EvaluationError(
            f"A template would grow to {size:,} characters or items; at most {MAX_TEXT:,} are made."
        )


def type_name(value: object) -> str:
    """JSON's name of the value's type."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    if isinstance(value, str):
        return "text"
    return "list" if is_list(value) else "mapping"
