"""What the columns `expected` and `expected.PATH` of a row say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from attrs import frozen

from minions.data.errors import UsageError
from minions.data.json_values import JsonValue
from minions.data.schema import JsonSchema
from minions.evaluation.cell_values import CellError, cell_value
from minions.recipe.checks.shapes import Shape

__all__ = ["ExpectedCells", "is_expected_column"]

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
