"""The cases of an evaluation: inputs of a run with what is expected of its output."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from attrs import evolve, field, frozen

from minions.contracts.secrets import InputValue, SecretRef
from minions.data.codec import encode
from minions.data.errors import UsageError
from minions.data.json_values import JsonValue
from minions.data.schema import JsonSchema
from minions.evaluation.cell_values import CellError, cell_value
from minions.recipe.checks.shapes import Shape


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
            inputs=_nested(row),
            expected=_encoded(values["expected"], "expected", row.place)
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


def _nested(row: CaseRow) -> Mapping[str, InputValue]:
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
        cells={name: _encoded(row.values[name], name, row.place) for name in filled},
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


def _encoded(value: object, name: str, place: str) -> JsonValue:
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
