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
from minions.evaluation.expected_cells import ExpectedCells, is_expected_column

__all__ = ["NOT_GIVEN", "Case", "CaseRow", "NotGiven", "cases_of", "refuse_cases"]


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
