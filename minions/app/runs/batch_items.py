"""The inputs of a batch: rows of a JSON Lines, CSV or Parquet file, or of a list, each checked."""

from __future__ import annotations

import csv
import errno
import hashlib
import io
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, Final, Self, cast

from attrs import Factory, evolve, field, frozen

from minions.adapters.binary_files.file_reader import PartRange, UnreadableFileError, open_parts
from minions.contracts.secrets import InputValue
from minions.data.bounded_files import BoundedLines, LongLineError, open_regular
from minions.data.errors import UsageError, did_you_mean
from minions.data.json_values import JsonValue, dumps, most_values, parse_json
from minions.engine.batches.lines import BatchLine
from minions.recipe.expressions.values import type_name
from minions.recipe.inputs import resolve_inputs
from minions.recipe.model import AgentRecipe

_MOST_BYTES: Final = 4 * 2**30
"""Bytes of items on standard input, which are stored until they were run, and of the rows of a
Parquet file as JSON."""
_MOST_PARQUET_ROWS: Final = 10_000_000
_LONGEST_ROW: Final = 16 * 1_048_576
"""Bytes of one row."""
_MOST_VALUES: Final = 1_048_576
"""Values in one row."""

_SEPARATORS: Final = {";": "';'", "\t": "tabs", "|": "'|'"}
"""What other programs separate the columns of a table by, as messages call it."""
_MOST_SHOWN: Final = 10
"""Further faults are only counted."""


@frozen(kw_only=True)
class ItemRow:
    """One row as it was read."""

    place: str
    """Where it stands: `items.jsonl:7`."""
    inputs: Mapping[str, InputValue] = field(factory=dict)
    is_text: bool = False
    """Whether the values are texts that become numbers and others by the declared types."""
    is_of_parquet: bool = False
    """Whether null stands for what an input has by default."""
    kept: Mapping[str, InputValue] = field(factory=dict)
    """What stands beside the result; no input."""
    problem: str | None = None
    """Why it could not be read; None: it was read."""


class BatchItems(ABC):
    """Rows that can be read several times; reading holds one of them in memory."""

    @abstractmethod
    def rows(self) -> Iterator[ItemRow]:
        """The rows in order.

        Raises:
            UsageError: They cannot be read at all.
        """


@frozen
class ListedItems(BatchItems):
    """Rows in memory."""

    items: Sequence[Mapping[str, InputValue]]

    def rows(self) -> Iterator[ItemRow]:
        """A row for each mapping; others are faults."""
        for index, item in enumerate(self.items):
            yield _row_of(cast("JsonValue", item), f"item {index}")


@frozen
class ItemsFile(BatchItems):
    """A Parquet file, or a CSV file with a head line, if its name ends so; else JSON Lines without
    blank lines.
    """

    path: Path
    name: str | None = None
    """How messages call it; None: its path."""
    identity: str = field(default=Factory(lambda self: str(self.path.absolute()), takes_self=True))
    """By what a batch knows it again: the absolute path, unless another text is given."""

    def rows(self) -> Iterator[ItemRow]:
        """The rows; a line that is no object, or has other columns than the head, is a fault.

        Raises:
            EnvironmentRefusedError: `missing-package`; the file is Parquet, and its library is not
                installed.
        """
        readers = {".csv": self._csv_rows, ".parquet": self._parquet_rows}
        ending = self.path.suffix
        read = readers.get(ending.lower(), self._json_rows)
        try:
            yield from read()
        except OSError as error:
            raise UsageError(f"{self._name}: {error.strerror}.", code="bad-items") from error
        except LongLineError as error:
            raise UsageError(f"{self._name}:{error.line}: {error}.", code="bad-items") from error

    @property
    def _name(self) -> str:
        return self.name or str(self.path)

    def _json_rows(self) -> Iterator[ItemRow]:
        with open_regular(self.path) as file:
            for number, content in enumerate(BoundedLines(file, _LONGEST_ROW).lines(), 1):
                if number == 1 and content.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"["):
                    raise UsageError(
                        f"{self._name}:1: the file is one JSON list, but each line is an object of "
                        f"inputs (JSON Lines). Write its items one a line: "
                        f"jq -c '.[]' {self._name} > lines.jsonl",
                        code="bad-items",
                    )
                if content.strip():
                    yield _json_row(content, f"{self._name}:{number}", is_first=number == 1)

    def _csv_rows(self) -> Iterator[ItemRow]:
        with open_regular(self.path) as file:
            lines = _RecordLines(file)
            reader = csv.reader(lines, strict=True)
            try:
                columns = self._columns(next(reader, []))
                before = reader.line_num
                for cells in reader:
                    lines.begin_record()
                    place, before = f"{self._name}:{before + 1}", reader.line_num
                    if cells:
                        yield _csv_row(cells, columns, place)
            except csv.Error as error:
                place = f"{self._name}:{reader.line_num}"
                yield ItemRow(place=place, problem=f"not CSV: {error}.")
            except UnicodeDecodeError as error:
                place = f"{self._name}:{reader.line_num + 1} or later"
                yield ItemRow(place=place, problem=f"not UTF-8: {error.reason}.")

    def _parquet_rows(self) -> Iterator[ItemRow]:
        wanted = PartRange(
            most=_MOST_PARQUET_ROWS + 1,
            most_bytes=_MOST_BYTES,
            most_of_one=_LONGEST_ROW,
            timeout_s=60.0,
            each_part=True,
        )
        try:
            with open_regular(self.path) as file, open_parts(file, "parquet", wanted) as parts:
                # A file of some bytes may have any number of rows, each like the one before.
                for number, text in enumerate(parts.json_texts(), 1):
                    place = f"{self._name}:{number}"
                    if number > _MOST_PARQUET_ROWS:
                        raise UsageError(
                            f"{place}: a Parquet file of a batch has {_MOST_PARQUET_ROWS:,} rows "
                            f"at the most; this one says that it has {parts.total:,}. Split it.",
                            code="bad-items",
                        )
                    yield evolve(_json_row(text, place, is_first=False), is_of_parquet=True)
        except UnreadableFileError as error:
            raise UsageError(
                f"{self._name}: it cannot be read as Parquet: {error}.", code="bad-items"
            ) from error
        if parts.is_cut:
            raise UsageError(
                f"{self._name}: its rows are more than {_MOST_BYTES // 2**30} GiB as JSON. Split "
                "it.",
                code="bad-items",
            )

    def _columns(self, head: Sequence[str]) -> Sequence[str]:
        columns = [name.strip() for name in head]
        if len(columns) == 1 and (found := [each for each in _SEPARATORS if each in columns[0]]):
            raise UsageError(
                f"{self._name}:1: the head line is one column, '{columns[0]:.80}': the file seems "
                f"to be separated by {_SEPARATORS[found[0]]}. Save it separated by commas.",
                code="bad-items",
            )
        twice = sorted(name for name, count in Counter(columns).items() if count > 1)
        if not columns or twice or "" in columns:
            why = f"has the column '{twice[0]}' twice" if twice else "names no column"
            why = "has a column without a name" if not twice and columns else why
            raise UsageError(
                f"{self._name}:1: the head line {why}. It names the recipe's inputs, separated by "
                "commas.",
                code="bad-items",
            )
        return columns


_PATH: Final = re.compile(r"(?:\.[^.\[\]]+(?:\[\d+\])*)+")
_PART: Final = re.compile(r"\.?([^.\[\]]+)|\[(\d+)\]")


@frozen(kw_only=True)
class FieldChoice:
    """Which fields of a row are inputs of its run, and which stand beside its result."""

    paths: Mapping[str, str] = field(factory=dict)
    """By input: where its value stands in the row, as `.title` or `.user.tags[0]`."""
    kept: tuple[str, ...] = ()
    """Fields that stand beside the result. Those that are no inputs are given to no run."""
    ignores_others: bool = False
    """Whether fields are left out that are neither inputs nor named above; else they are faults."""

    is_of_command: bool = False
    """Whether messages name options of a command, and not arguments of a function."""

    @classmethod
    def of_words(cls, paths: Sequence[str], kept: str | None, *, ignores_others: bool) -> Self:
        """Read the words of a command.

        Args:
            paths: Each as `INPUT=.FIELD`.
            kept: Names with commas between them; None: none.
        Raises:
            UsageError: A word is none of these.
        """
        by_input: dict[str, str] = {}
        for word in paths:
            name, is_path, path = word.partition("=")
            if not is_path or not re.fullmatch(r"\w+", name) or not _PATH.fullmatch(path):
                raise UsageError(
                    f"--map takes INPUT=.FIELD, such as text=.body or name=.user.names[0]; not "
                    f"'{word:.80}'."
                )
            if name in by_input:
                raise UsageError(f"--map names the input '{name}' twice.")
            by_input[name] = path
        names = tuple(name.strip() for name in (kept or "").split(",")) if kept is not None else ()
        return cls(paths=by_input, kept=names, ignores_others=ignores_others, is_of_command=True)

    def check(self, inputs: Collection[str]) -> None:
        """Check that the choice fits a recipe.

        Args:
            inputs: The names of the recipe's inputs.
        Raises:
            UsageError: A path or a name is malformed, or names no input.
        """
        for name, path in self.paths.items():
            if not _PATH.fullmatch(path):
                raise UsageError(
                    f"{self._option('map')} has for '{name}' a path such as .body or "
                    f".user.names[0]; not '{path:.80}'."
                )
            if name not in inputs:
                raise UsageError(
                    f"{self._option('map')} {name}={path}: the recipe has no input '{name}'."
                    f"{did_you_mean(name, inputs)} Inputs are: {', '.join(inputs) or 'none'}."
                )
        if "" in self.kept or len(set(self.kept)) < len(self.kept):
            raise UsageError(
                f"{self._option('keep')} takes names of fields, each once: id,title; not "
                f"'{','.join(self.kept):.80}'."
            )

    def _option(self, name: str) -> str:
        return f"--{name}" if self.is_of_command else name.replace("-", "_")

    def row(self, row: ItemRow, inputs: Collection[str]) -> ItemRow:
        """The row as this choice has it.

        Args:
            inputs: The names of the recipe's inputs.
        """
        if row.problem is not None:
            return row
        given: dict[str, InputValue] = {}
        taken = set(self.kept)
        for name, path in self.paths.items():
            parts = [path[1:]] if row.is_text else _parts_of(path)
            value: object = row.inputs
            for part in parts:
                value = _value_at(value, part)
            if value is _MISSING:
                return _without(
                    row, f"it has nothing at {path}, which {self._option('map')} names", row.inputs
                )
            given[name] = cast("InputValue", value)
            taken.add(str(parts[0]))
        for name in self.kept:
            if name not in row.inputs:
                return _without(
                    row, f"it has no '{name}', which {self._option('keep')} names", row.inputs
                )
        for name, each in row.inputs.items():
            if name in inputs and name not in self.paths:
                given[name] = each
            elif name not in taken and not self.ignores_others:
                if name in self.paths:
                    problem = (
                        f"its '{name}' is not used, as {self._option('map')} takes it from "
                        f"elsewhere: {self._option('ignore-extra')} leaves it out."
                    )
                    return evolve(row, problem=problem)
                given[name] = each  # a fault, which names the inputs that there are
        return evolve(row, inputs=given, kept={name: row.inputs[name] for name in self.kept})


_MISSING: Final = object()


def _parts_of(path: str) -> list[str | int]:
    return [name or int(index) for name, index in _PART.findall(path)]


def _value_at(value: object, part: str | int) -> object:
    if isinstance(part, int):
        is_there = isinstance(value, Sequence) and not isinstance(value, str) and part < len(value)
        return cast("Sequence[object]", value)[part] if is_there else _MISSING
    return value.get(part, _MISSING) if isinstance(value, Mapping) else _MISSING


def _without(row: ItemRow, problem: str, fields: Collection[str]) -> ItemRow:
    names = ", ".join(list(fields)[:_MOST_SHOWN])
    return evolve(row, problem=f"{problem}. Its fields are: {names or 'none'}.")


@frozen
class ChosenItems(BatchItems):
    """Rows of which some fields are chosen."""

    items: BatchItems
    choice: FieldChoice
    inputs: Collection[str]
    """The names of the recipe's inputs."""

    def rows(self) -> Iterator[ItemRow]:
        """The rows; one without a chosen field is a fault."""
        for row in self.items.rows():
            yield self.choice.row(row, self.inputs)


class _RecordLines:
    """The lines of a CSV file; a record may have several, and a bound for all of them."""

    def __init__(self, file: BinaryIO) -> None:
        bounded = io.BufferedReader(BoundedLines(file, _LONGEST_ROW), 65_536)
        self._text = io.TextIOWrapper(bounded, encoding="utf-8-sig", newline="")
        self._line = self._size = 0

    def begin_record(self) -> None:
        """Another record begins with the next line."""
        self._size = 0

    def __iter__(self) -> Iterator[str]:
        for line in self._text:
            self._line += 1
            self._size += len(line)
            if self._size > _LONGEST_ROW:
                raise LongLineError(self._line, _LONGEST_ROW)
            yield line


def store_items(stream: BinaryIO, path: Path, name: str) -> str:
    """Write the stream to that file, and return a digest of it.

    Args:
        name: How messages call it.
    Raises:
        UsageError: `bad-items`; a line is too long, or all of it.
    """
    lines, digest, size = BoundedLines(stream, _LONGEST_ROW), hashlib.sha256(), 0
    try:
        with path.open("wb") as file:
            while piece := lines.read(65_536):
                size += len(piece)
                if size > _MOST_BYTES:
                    raise OSError(errno.EFBIG, f"it has more than {_MOST_BYTES // 2**30} GiB")
                digest.update(piece)
                file.write(piece)
    except LongLineError as error:
        raise UsageError(f"{name}:{error.line}: {error}.", code="bad-items") from error
    except OSError as error:
        raise UsageError(f"{name}: {error.strerror}.", code="bad-items") from error
    return digest.hexdigest()


def _json_row(content: bytes, place: str, *, is_first: bool) -> ItemRow:
    if most_values(content) > _MOST_VALUES:
        return ItemRow(place=place, problem=f"it has more than {_MOST_VALUES:,} values.")
    try:
        text = content.decode("utf-8-sig" if is_first else "utf-8")
        value = parse_json(text, unique_keys=True)
        dumps(value).encode()
    except UnicodeEncodeError:
        return ItemRow(place=place, problem="it holds half a character (a lone surrogate).")
    except UnicodeDecodeError as error:
        return ItemRow(place=place, problem=f"not UTF-8: {error.reason}.")
    except ValueError as error:
        hint = " Each line is an object; a table needs a name with .csv." if is_first else ""
        return ItemRow(place=place, problem=f"not JSON: {error}.{hint}")
    return _row_of(value, place)


def _row_of(value: JsonValue, place: str) -> ItemRow:
    if isinstance(value, Mapping):
        return ItemRow(place=place, inputs=value)
    problem = f"an object of inputs was expected, not a {type_name(value)}."
    return ItemRow(place=place, problem=problem)


def _csv_row(cells: Sequence[str], columns: Sequence[str], place: str) -> ItemRow:
    if len(cells) != len(columns):
        problem = f"it has {len(cells)} cells, and the head line has {len(columns)}."
        return ItemRow(place=place, problem=problem)
    return ItemRow(place=place, inputs=dict(zip(columns, cells, strict=True)), is_text=True)


def lines_of(
    recipe: AgentRecipe, items: BatchItems, common: Mapping[str, InputValue], base: Path
) -> Iterator[BatchLine]:
    """The checked lines of a batch, read as they are asked for.

    Args:
        common: Inputs of every line that does not give them itself; checked.
        base: The folder that given relative paths start from.
    Raises:
        UsageError: `bad-items`; a row cannot be read, or does not fit the recipe.
    """
    for index, row in enumerate(items.rows()):
        checked = _check_row(recipe, row, common, base)
        if isinstance(checked, str):
            raise UsageError(checked, code="bad-items")
        yield BatchLine(index=index, inputs=checked, place=row.place, kept=row.kept)


def count_lines(
    recipe: AgentRecipe, items: BatchItems, common: Mapping[str, InputValue], base: Path
) -> int:
    """The number of lines, after all of them were checked.

    Raises:
        UsageError: `bad-items`; with the place of each row that cannot be read or does not fit.
    """
    faults: list[str] = []
    count = bad = 0
    for count, row in enumerate(items.rows(), 1):  # noqa: B007  # the count is what is wanted
        checked = _check_row(recipe, row, common, base)
        if isinstance(checked, str):
            bad += 1
            faults += [checked] if bad <= _MOST_SHOWN else []
    if bad > _MOST_SHOWN:
        faults.append(f"… and {bad - _MOST_SHOWN} more lines.")
    if faults:
        faults.append("Nothing was started.")
        raise UsageError("\n".join(faults), code="bad-items")
    return count


def _check_row(
    recipe: AgentRecipe, row: ItemRow, common: Mapping[str, InputValue], base: Path
) -> Mapping[str, InputValue] | str:
    """The given inputs with the values that the recipe takes; or what is wrong with them."""
    if row.problem is not None:
        return f"{row.place}: {row.problem}"
    own = row.inputs
    if row.is_text or row.is_of_parquet:
        own = _without_empty(recipe, own, None if row.is_of_parquet else "")
    texts = frozenset(own) if row.is_text else frozenset[str]()
    given = {**common, **own}
    try:
        resolved = resolve_inputs(recipe, given, from_text=texts, base=base)
    except UsageError as error:
        problems = error.message.splitlines()
        return "\n".join(f"{row.place}: {problem}" for problem in problems)
    return {
        name: value if recipe.inputs[name].is_secret else resolved[name]
        for name, value in given.items()
    }


def _without_empty(
    recipe: AgentRecipe, cells: Mapping[str, InputValue], empty: str | None
) -> Mapping[str, InputValue]:
    """Without the empty cells of inputs that have a default."""
    return {
        name: cell
        for name, cell in cells.items()
        if cell != empty or name not in recipe.inputs or not recipe.inputs[name].has_default
    }
