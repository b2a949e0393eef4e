"""The cases of an evaluation: inputs of a run with what is expected of its output."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Final

from attrs import evolve, field, frozen

from minions.contracts.secrets import InputValue, SecretRef
from minions.data.codec import encode
from minions.data.errors import UsageError
from minions.data.json_values import JsonValue, dumps, parse_json
from minions.data.schema import JsonSchema
from minions.recipe.checks.shapes import Shape, find_dead_end, kind_names, kind_of


class NotGiven:
    """The type of `NOT_GIVEN`: there is no value; null is one."""

    def __repr__(self) -> str:
        return "NOT_GIVEN"


NOT_GIVEN: Final = NotGiven()
"""There is no value: a case says nothing of it, or an output lacks it."""
_MOST_SHOWN: Final = 10
"""Faults of cases in one message."""
_OWN: Final = frozenset(("name", "inputs", "expected"))


@frozen(kw_only=True)
class CaseRow:
    """A row of a data file as it was read."""

    place: str
    """Where it stands: `tickets.jsonl:7`."""
    values: Mapping[str, InputValue]
    is_text: bool = False
    """Whether the values are texts, as those of CSV are."""


@frozen(kw_only=True)
class Case:
    """One question with its known answer."""

    index: int
    """Its number, from 0."""
    name: str
    inputs: Mapping[str, InputValue]
    expected: JsonValue | NotGiven = field(default=NOT_GIVEN)
    is_text: bool = False
    """Whether texts in `expected` may stand for numbers, true or false: it was read from CSV, and
    nothing is known of the output there."""
    columns: tuple[str, ...] = ()
    """The paths that are expected, where columns of CSV say each."""
    has_cells: bool = False
    """Whether its row has cells for what is expected, be they empty."""
    place: str = ""

    @property
    def has_expected(self) -> bool:
        """Whether it says what the output should be."""
        return not isinstance(self.expected, NotGiven)

    @property
    def wanted(self) -> JsonValue:
        """What is expected; null where nothing is."""
        return None if isinstance(self.expected, NotGiven) else self.expected

    @property
    def expected_fields(self) -> tuple[str, ...]:
        """Paths of the fields that are expected; empty: the whole is, or nothing."""
        return self.columns or tuple(self.wanted) if isinstance(self.wanted, Mapping) else ()

    @property
    def plain_inputs(self) -> Mapping[str, JsonValue]:
        """The inputs, with markers in the place of secrets."""
        return {
            name: value.marker if isinstance(value, SecretRef) else value
            for name, value in self.inputs.items()
        }


def cases_of(
    rows: Iterable[CaseRow], inputs: Iterable[str], outputs: Sequence[JsonSchema] = ()
) -> Iterator[Case]:
    """The cases of rows, in their order.

    A row is `{inputs, expected, name}`; or it has the inputs themselves beside `expected` and
    `name`. Columns of CSV may be called `expected.PATH`; an empty cell expects nothing.

    Args:
        inputs: Names of the recipe's inputs. Where one is called `name`, `inputs` or `expected`,
            rows must have the first form.
        outputs: What is known of the outputs of the recipes that are asked, as JSON Schema: cells
            of CSV become the values that they stand for there.
    Raises:
        UsageError: `bad-items`, at the end; rows are neither, or cells stand for nothing that an
            output has.
    """
    own = frozenset(inputs)
    faults: list[str] = []
    for index, row in enumerate(rows):
        try:
            yield _case(index, row, own, outputs)
        except UsageError as error:
            faults.append(error.message)
    refuse_cases(faults)


def refuse_cases(faults: Sequence[str]) -> None:
    """Refuse cases for these faults, of which the first ten are told; without any do nothing.

    Raises:
        UsageError: `bad-items`.
    """
    if faults:
        left = len(faults) - _MOST_SHOWN
        more = [f"… and {left} more."] if left > 0 else []
        raise UsageError("\n".join([*faults[:_MOST_SHOWN], *more]), code="bad-items")


def _case(index: int, row: CaseRow, own: frozenset[str], outputs: Sequence[JsonSchema]) -> Case:
    values = row.values
    name = values.get("name") if "name" not in own or "inputs" in values else None
    if isinstance(values.get("inputs"), Mapping) and "inputs" not in own:
        return Case(
            index=index,
            name=_name(name, index),
            inputs=_nest_row(row),
            expected=_encode(values["expected"], "expected", row.place)
            if "expected" in values
            else NOT_GIVEN,
            place=row.place,
        )
    if taken := sorted(own & {"expected"}):
        raise UsageError(
            f"{row.place}: the recipe has an input '{taken[0]}', so a case has the form "
            '{"inputs": {…}, "expected": …}.',
            code="bad-items",
        )
    kept = {key: value for key, value in values.items() if not _is_own(key, own)}
    case = Case(index=index, name=_name(name, index), inputs=kept, place=row.place)
    return _with_expected(case, row, outputs)


def _nest_row(row: CaseRow) -> Mapping[str, InputValue]:
    if unknown := sorted(row.values.keys() - _OWN):
        raise UsageError(
            f"{row.place}: a case with `inputs` has nothing but `inputs`, `expected` and `name`, "
            f"not '{unknown[0]:.60}'.",
            code="bad-items",
        )
    given = row.values["inputs"]
    assert isinstance(given, Mapping)  # noqa: S101  # the caller has looked
    return given


def _is_own(key: str, inputs: frozenset[str]) -> bool:
    if key in inputs:
        return False
    return key == "name" or is_expected_column(key)


def _with_expected(case: Case, row: CaseRow, outputs: Sequence[JsonSchema]) -> Case:
    """The case with what the columns of its row expect."""
    columns = [name for name in row.values if is_expected_column(name)]
    filled = [name for name in columns if not (row.is_text and row.values[name] == "")]
    cells = ExpectedCells(
        place=row.place,
        cells={name: _encode(row.values[name], name, row.place) for name in filled},
        is_text=row.is_text,
        outputs=outputs,
    )
    return evolve(
        case,
        expected=cells.value() if filled else NOT_GIVEN,
        is_text=row.is_text,
        columns=cells.paths,
        has_cells=bool(columns),
    )


def _encode(value: object, name: str, place: str) -> JsonValue:
    try:
        return encode(value)
    except TypeError as error:
        raise UsageError(f"{place}: `{name}` cannot be JSON: {error}.", code="bad-items") from error


def _name(given: object, index: int) -> str:
    if isinstance(given, str) and given.strip():
        return given.strip()[:200]
    return f"case {index + 1}"


# --- what the columns `expected` and `expected.PATH` of a row say --------------------------------


_WHOLE: Final = "expected"
_PART: Final = "expected."


def is_expected_column(name: str) -> bool:
    """Whether a column of that name says what is expected."""
    return name == _WHOLE or name.startswith(_PART)


@frozen(kw_only=True)
class ExpectedCells:
    """The values of a row that say what is expected; empty cells of CSV are not among them."""

    place: str
    """Where the row stands: `tickets.csv:7`."""
    cells: Mapping[str, JsonValue]
    """Values by the name of their column."""
    is_text: bool = False
    """Whether texts stand for what the output has at their path, as in CSV."""
    outputs: Sequence[JsonSchema] = ()
    """What is known of the outputs of the recipes that are asked."""

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths that the columns are called by; not that of the whole."""
        return tuple(name.removeprefix(_PART) for name in self.cells if name != _WHOLE)

    def value(self) -> JsonValue:
        """What is expected, with each cell as the value that it stands for.

        Raises:
            UsageError: `bad-items`; a cell stands for nothing that an output has, or two columns
                say the same.
        """
        self._check_once()
        if _WHOLE in self.cells:
            return self._value(_WHOLE, "")
        found: dict[str, JsonValue] = {}
        for path in self.paths:
            *holders, name = self._keys(path)
            place = found
            for holder in holders:
                inner = place.setdefault(holder, {})
                assert isinstance(inner, dict)  # noqa: S101  # no path leads through another
                place = inner
            place[name] = self._value(f"{_PART}{path}", path)
        return _with_lists(found, Shape.of(self.outputs[0])) if self.outputs else found

    def _value(self, column: str, path: str) -> JsonValue:
        given = self.cells[column]
        if not self.is_text or not isinstance(given, str):
            return given
        try:
            return cell_value(given, path, self.outputs)
        except CellError as error:
            raise UsageError(
                f"{self.place}: the column '{column}': {error}", code="bad-items"
            ) from error

    def _check_once(self) -> None:
        for one in self.cells:
            for other in self.cells:
                if other.startswith(f"{one}."):
                    raise UsageError(
                        f"{self.place}: `{one}` and `{other}` say it twice.", code="bad-items"
                    )

    def _keys(self, path: str) -> Sequence[str]:
        """The keys of a path; one, if a field of the output has the dots in its name."""
        is_name = any(path in Shape.of(schema).names() for schema in self.outputs)
        return [path] if is_name else path.split(".")


def _with_lists(value: JsonValue, shape: Shape) -> JsonValue:
    """The value with lists where the output has lists, and columns `0`, `1` … say all items."""
    if not isinstance(value, dict):
        return value
    items = {name: _with_lists(item, shape.at((name,))) for name, item in value.items()}
    numbers = [str(number) for number in range(len(items))]
    if shape.kinds() == frozenset(("array",)) and set(items) == set(numbers):
        return [items[number] for number in numbers]
    return items


# --- divides cases into parts that share nothing -------------------------------------------------


FEWEST_CASES: Final = 6
"""Distinct cases without which nothing can be searched and confirmed."""
_FEWEST_SEARCHED: Final = 3
_FEWEST_CONFIRMING: Final = 2
_MOST_HELD_OUT: Final = 16
"""Cases that are held out for examples; few of them are chosen."""


class Part(StrEnum):
    """What a case is used for."""

    SEARCH = "search"
    """It is asked of every configuration."""
    CONFIRMATION = "confirmation"
    """It is asked of what the search found, which has never seen it."""


@frozen(kw_only=True)
class CaseParts:
    """The cases of each part; cases with the same inputs are all in one part."""

    shown: tuple[Case, ...]
    """Those that may become examples; they are never asked."""
    search: tuple[Case, ...]
    confirmation: tuple[Case, ...]
    seed: int

    def of(self, part: Part) -> tuple[Case, ...]:
        """The cases of one part, in the order in which they are asked."""
        return self.search if part is Part.SEARCH else self.confirmation

    @property
    def asked(self) -> tuple[Case, ...]:
        """The cases that are asked in either part."""
        return (*self.search, *self.confirmation)


def parts_of(cases: Sequence[Case], *, seed: int, has_shown: bool) -> CaseParts:
    """The parts of the cases: the same cases and the same seed give the same parts, in any order.

    Args:
        has_shown: Whether a fifth of them is held out for examples, at most 16.
    Raises:
        UsageError: `bad-items`; there are too few distinct cases.
    """
    groups: dict[str, list[Case]] = {}
    for case in cases:
        groups.setdefault(dumps(dict(sorted(case.plain_inputs.items()))), []).append(case)
    count = len(groups)
    if count < FEWEST_CASES:
        is_repeated = count < len(cases)
        same = f" ({len(cases)} cases, of which some have the same inputs)" if is_repeated else ""
        raise UsageError(
            f"{count} distinct cases are too few to search and to confirm what was found{same}. "
            f"Give at least {FEWEST_CASES}; some 50 tell models apart.",
            code="bad-items",
        )
    shown = min(_MOST_HELD_OUT, count // 5) if has_shown else 0
    shown = min(shown, count - _FEWEST_SEARCHED - _FEWEST_CONFIRMING)
    confirming = max(_FEWEST_CONFIRMING, (count - shown) * 2 // 5)
    ordered = [groups[inputs] for inputs in sorted(groups, key=lambda inputs: _rank(inputs, seed))]
    return CaseParts(
        shown=_flat(ordered[:shown]),
        search=_flat(ordered[shown + confirming :]),
        confirmation=_flat(ordered[shown : shown + confirming]),
        seed=seed,
    )


def _rank(inputs: str, seed: int) -> str:
    text = f"{seed}\n{inputs}".encode("utf-8", "surrogatepass")
    return hashlib.sha256(text).hexdigest()


def _flat(groups: Sequence[Sequence[Case]]) -> tuple[Case, ...]:
    return tuple(case for group in groups for case in group)


# --- cells of a table as the values that they stand for ------------------------------------------


TRUTH_WORDS: Final[Mapping[str, bool]] = {"true": True, "yes": True, "false": False, "no": False}
"""Texts for true and false, in lower case."""
_SHOWN: Final = 60
"""Characters of a cell in a message."""


class CellError(ValueError):
    """A cell stands for nothing that the output can have; the message says what that is."""


@frozen
class _Read:
    """What one schema makes of a cell."""

    value: JsonValue = None
    refused: str | None = None
    """What is possible instead; None: the value is."""


def cell_value(text: str, path: str, outputs: Iterable[JsonSchema]) -> JsonValue:
    """The value that a cell stands for at a path of the output.

    A text stays one where the output may have a text, or nothing is known of it; `null` is null
    where the output may have that.

    Args:
        path: `items.0.name`; empty: the whole.
        outputs: What is known of the outputs of the recipes that are asked; the first that can have
            such a value counts.
    Raises:
        CellError: No output can have what the cell says.
    """
    tried = [each for schema in outputs if (each := _read(text, path, schema)) is not None]
    fitting = [each for each in tried if each.refused is None]
    if tried and not fitting:
        shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
        raise CellError(f"{dumps(shown)} was read, and the output has {tried[0].refused} there.")
    return fitting[0].value if fitting else text


def _read(text: str, path: str, schema: JsonSchema) -> _Read | None:
    """None: this output never has the path."""
    shape = Shape.of(schema)
    parts = tuple(path.split(".")) if path else ()
    if path in shape.names():
        parts = (path,)
    if find_dead_end(shape, parts) is not None:
        return None
    found = shape.at(parts)
    choices = found.choices()
    if choices is not None:
        return _of_choices(text, choices)
    kinds = found.kinds()
    return _Read(text) if kinds is None else _of_kinds(text, kinds)


def _of_choices(text: str, choices: Sequence[JsonValue]) -> _Read:
    if text in choices:
        return _Read(text)
    others = [each for each in choices if not isinstance(each, str)]
    for choice in others:
        read = _of_kinds(text, frozenset((kind_of(choice),)))
        if read.refused is None and read.value == choice:
            return _Read(choice)
    # Of a wrong word, scorers that compare it say which words there are; others may take it.
    if len(others) < len(choices):
        return _Read(text)
    return _Read(refused=f"one of {dumps(list(choices))}")


def _of_kinds(text: str, kinds: frozenset[str]) -> _Read:
    word = text.strip()
    if "null" in kinds and word == "null":
        return _Read(None)
    if "string" in kinds:
        return _Read(text)
    if "boolean" in kinds and word.casefold() in TRUTH_WORDS:
        return _Read(TRUTH_WORDS[word.casefold()])
    try:
        value = parse_json(word)
    except ValueError:
        return _Read(refused=kind_names(kinds))
    if isinstance(value, float) and value.is_integer() and "number" not in kinds:
        value = int(value)
    kind = kind_of(value)
    fits = kind in kinds or (kind == "integer" and "number" in kinds)
    return _Read(value) if fits else _Read(refused=kind_names(kinds))
