"""Tables of rows whose types are known at their end, written as Parquet files."""

from __future__ import annotations

import errno
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Final

from minions.adapters.binary_files.file_reader import require_package
from minions.data.json_values import JsonValue, dumps

_ROWS_AT_A_TIME: Final = 4_096
_BYTES_AT_A_TIME: Final = 64 * 1_048_576
"""Of rows as JSON that are held while they are written."""
_LARGEST: Final = 2**63


class ParquetTable:
    """Rows with the same columns. They lie in a file without a name until they are written, so
    that however many take no memory.
    """

    def __init__(self, path: Path, columns: Mapping[str, str | None]) -> None:
        """Begin a table without rows.

        Args:
            path: The file that will be written; one that is there stays as it is until then.
            columns: By name the type that values will have, if no other comes: `int64`,
                `float64`, `bool` or `string`; None: that of the values.
        Raises:
            EnvironmentRefusedError: `missing-package`.
            OSError: No file can be made there.
        """
        require_package("parquet")
        self._target = path.resolve()
        if self._target.exists() and not self._target.is_file():
            raise OSError(errno.EINVAL, "it is no file, and a table is written whole", str(path))
        self._new = self._target.with_name(f".{self._target.name}.partial")
        self._new.open("wb").close()
        self._kinds = dict(columns)
        self._rows = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115  # until `close`

    def close(self) -> None:
        """Give up the rows, and a file that was not written whole."""
        self._rows.close()
        self._new.unlink(missing_ok=True)

    def add(self, row: Sequence[JsonValue]) -> None:
        """Add a row.

        Args:
            row: A value for each column.
        Raises:
            OSError: There is no room for it.
        """
        for name, value in zip(self._kinds, row, strict=True):
            if value is not None:
                self._kinds[name] = _join_kinds(self._kinds[name], _kind(value))
        self._rows.write(json.dumps(row) + "\n")

    def write(self) -> None:
        """Write the file; one that is there is replaced once the new one is whole. A column has
        the one type of its values, whole numbers beside others are floating-point; in any other
        column, and where values are lists or mappings, they are JSON texts.

        Raises:
            OSError: It cannot be written.
        """
        import pyarrow as pa  # type: ignore[import-untyped]
        import pyarrow.parquet as pq  # type: ignore[import-untyped]

        kinds = {name: kind or "string" for name, kind in self._kinds.items()}
        types = {name: "string" if kind == "json" else kind for name, kind in kinds.items()}
        schema = pa.schema([(name, pa.type_for_alias(type_)) for name, type_ in types.items()])
        self._rows.seek(0)
        with self._new.open("wb") as file, pq.ParquetWriter(file, schema) as writer:
            for rows in self._groups():
                by_column = zip(kinds.values(), zip(*rows, strict=True), strict=True)
                columns = [[_cell(each, kind) for each in values] for kind, values in by_column]
                writer.write_table(pa.table(columns, schema=schema))
        self._new.replace(self._target)

    def _groups(self) -> Iterator[Sequence[Sequence[JsonValue]]]:
        while lines := self._rows.readlines(_BYTES_AT_A_TIME):
            each = iter(lines)
            while some := list(islice(each, _ROWS_AT_A_TIME)):
                yield [json.loads(line) for line in some]  # we wrote them


def _kind(value: JsonValue) -> str:
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return "int64" if -_LARGEST <= value < _LARGEST else "json"
    if isinstance(value, float):
        return "float64"
    return "string" if isinstance(value, str) else "json"


def _join_kinds(before: str | None, kind: str) -> str:
    if before is None or before == kind:
        return kind
    return "float64" if {before, kind} == {"int64", "float64"} else "json"


def _cell(value: JsonValue, kind: str) -> JsonValue:
    if value is None:
        return None
    if kind == "json":
        return dumps(value).encode("utf-8", "backslashreplace").decode()
    if kind == "float64" and isinstance(value, int):
        return float(value)
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()  # half characters
    return value
