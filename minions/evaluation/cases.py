"""The cases of an evaluation: inputs of a run with what is expected of its output."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from attrs import field, frozen

from minions.contracts.codec import encode
from minions.contracts.errors import UsageError
from minions.contracts.json_values import JsonValue
from minions.contracts.secrets import InputValue, SecretRef

__all__ = ["NOT_GIVEN", "Case", "CaseRow", "NotGiven", "cases_of"]


class NotGiven:
    """The type of `NOT_GIVEN`: there is no value; null is one."""

    def __repr__(self) -> str:
        return "NOT_GIVEN"


NOT_GIVEN: Final = NotGiven()
"""There is no value: a case says nothing of it, or an output lacks it."""
_OWN: Final = frozenset(("name", "inputs", "expected"))
_EXPECTED: Final = "expected"
_PART: Final = "expected."
_MOST_SHOWN: Final = 10


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
    """Whether texts in `expected` may stand for numbers, true or false, as in CSV."""
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
        """The fields that are expected; empty: the whole is, or nothing."""
        return tuple(self.wanted) if isinstance(self.wanted, Mapping) else ()

    @property
    def plain_inputs(self) -> Mapping[str, JsonValue]:
        """The inputs, with markers in the place of secrets."""
        return {
            name: value.marker if isinstance(value, SecretRef) else value
            for name, value in self.inputs.items()
        }


def cases_of(rows: Iterable[CaseRow], inputs: Iterable[str]) -> Iterator[Case]:
    """The cases of rows, in their order.

    A row is `{inputs, expected, name}`; or it has the inputs themselves beside `expected` and
    `name`. Columns of CSV may be called `expected.FIELD`.

    Args:
        inputs: Names of the recipe's inputs. Where one is called `name`, `inputs` or `expected`,
            rows must have the first form.
    Raises:
        UsageError: `bad-items`; a row is neither.
    """
    own = frozenset(inputs)
    for index, row in enumerate(rows):
        yield _case(index, row, own)


def _case(index: int, row: CaseRow, own: frozenset[str]) -> Case:
    values = row.values
    name = values.get("name") if "name" not in own or "inputs" in values else None
    if isinstance(values.get("inputs"), Mapping) and "inputs" not in own:
        return Case(
            index=index,
            name=_name(name, index),
            inputs=_nested(row),
            expected=_plain(values, "expected", row.place),
            place=row.place,
        )
    if taken := sorted(own & {"expected"}):
        raise UsageError(
            f"{row.place}: the recipe has an input '{taken[0]}', so a case has the form "
            '{"inputs": {…}, "expected": …}.',
            code="bad-items",
        )
    kept = {key: value for key, value in values.items() if not _is_own(key, own)}
    return Case(
        index=index,
        name=_name(name, index),
        inputs=kept,
        expected=_expected(row),
        is_text=row.is_text,
        place=row.place,
    )


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
    return key in ("name", _EXPECTED) or key.startswith(_PART)


def _expected(row: CaseRow) -> JsonValue | NotGiven:
    parts = {
        key.removeprefix(_PART): value
        for key, value in row.values.items()
        if key.startswith(_PART) and value != ""
    }
    if not parts:
        whole = _plain(row.values, _EXPECTED, row.place)
        return NOT_GIVEN if row.is_text and whole == "" else whole
    if _EXPECTED in row.values:
        raise UsageError(
            f"{row.place}: `expected` and `expected.{next(iter(parts))}` say it twice.",
            code="bad-items",
        )
    return {key: value for key, value in parts.items() if isinstance(value, str)}


def _plain(values: Mapping[str, InputValue], key: str, place: str) -> JsonValue | NotGiven:
    value: object = values.get(key, NOT_GIVEN)
    if isinstance(value, NotGiven):
        return value
    try:
        return encode(value)
    except TypeError as error:
        raise UsageError(f"{place}: `{key}` cannot be JSON: {error}.", code="bad-items") from error


def _name(given: object, index: int) -> str:
    if isinstance(given, str) and given.strip():
        return given.strip()[:200]
    return f"case {index + 1}"
