"""The program of the process that reads a stranger's Parquet or PDF file.

It is started by its path and imports nothing of ours. The file is its standard input, the order one
argument, and each line that it writes one letter and a JSON value: `H` what the file is, `R` a row
or a page, `E` the end, `F` a fault instead of it.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import math
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import BinaryIO, Final, TextIO, TypeAlias, TypedDict

_MOST_BYTES_AT_A_TIME: Final = 8 * 1_048_576
"""Of decoded values that are held, as far as the file says how large its rows are."""
_MOST_ROWS_AT_A_TIME: Final = 512
_DEEPEST: Final = 64
"""Levels of lists, structs and maps within each other."""
_MOST_SAID: Final = 300
"""Characters of a library's words for what is wrong."""


class ReadOrder(TypedDict):
    """What is read, and within which bounds."""

    format: str
    """`parquet` or `pdf`."""
    columns: Sequence[str] | None
    """Of a Parquet file the columns that are read; None: all."""
    first: int
    """The first row or page, from 0."""
    most: int
    """Rows or pages."""
    most_bytes: int
    """Of all rows or pages as JSON."""
    most_of_one: int
    """Bytes of one row or page as JSON."""
    memory_bytes: int
    """That the process may take."""
    cpu_s: int
    """That the process may compute."""
    packages: Sequence[str]
    """Folders in which the libraries are looked for."""


class FileFaultError(Exception):
    """The file cannot be read as asked."""

    def __init__(self, code: str, text: str) -> None:
        """Say why.

        Args:
            code: The error's code.
            text: What is wrong, as a part of a sentence.
        """
        super().__init__(text)
        self.code = code


Parts: TypeAlias = Iterator[object]
"""What the file is, then each of its rows or pages."""


def main() -> None:
    """Read the file of standard input as the argument says."""
    order: ReadOrder = json.loads(sys.argv[1])
    _limit_process(order)
    sys.path[:] = [*sys.path, *order["packages"]]
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a library prints is no answer
    try:
        write_parts(order, os.fdopen(0, "rb"), answers)
    except FileFaultError as fault:
        _write(answers, "F", {"code": fault.code, "text": str(fault)})
    except ImportError as error:
        _write(answers, "F", {"code": "missing-package", "text": str(error)})
    except (MemoryError, RecursionError):
        mib = order["memory_bytes"] // 1_048_576
        text = f"to read it takes more than {mib:,} MiB of memory, or is nested too deep"
        _write(answers, "F", {"code": "file-too-large", "text": text})
    except Exception as error:  # noqa: BLE001  # libraries raise anything at a damaged file
        words = " ".join(f"{type(error).__name__}: {error}".split())[:_MOST_SAID].rstrip(".")
        code = "bad-pdf" if order["format"] == "pdf" else "bad-parquet"
        _write(answers, "F", {"code": code, "text": words})
    answers.flush()
    os._exit(0)  # threads of a library, and what they hold, are not waited for


def write_parts(order: ReadOrder, file: BinaryIO, answers: TextIO) -> None:
    """Write what the file is, its rows or pages within the bounds, and the end.

    Raises:
        FileFaultError: It cannot be read as asked.
    """
    parts = _parquet_parts(file, order) if order["format"] == "parquet" else _pdf_parts(file, order)
    _write(answers, "H", next(parts))
    left = order["most_bytes"]
    for number, part in enumerate(parts):
        text = json.dumps(part, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        size = len(text.encode())
        left -= size
        if left < 0 and number:
            break
        if size > order["most_of_one"]:
            what = "row" if order["format"] == "parquet" else "page"
            raise FileFaultError(
                "file-too-large",
                f"{what} {order['first'] + number + 1} has more than {order['most_of_one']} bytes "
                "as JSON, the most that one read gives",
            )
        answers.write(f"R{text}\n")
    _write(answers, "E", {"is_cut": left < 0})


def _write(answers: TextIO, letter: str, value: object) -> None:
    answers.write(f"{letter}{json.dumps(value)}\n")


def _limit_process(order: ReadOrder) -> None:
    import resource

    cpu, memory = order["cpu_s"], order["memory_bytes"]
    for kind, most in (
        (resource.RLIMIT_CPU, cpu),
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_CORE, 0),
    ):
        with contextlib.suppress(OSError, ValueError):  # macOS has no bound of addresses
            resource.setrlimit(kind, (most, most))


# --- Parquet ------------------------------------------------------------------------------------


def _parquet_parts(file: BinaryIO, order: ReadOrder) -> Parts:
    # It comes with no types, as do all of its values here.
    import pyarrow as pa  # type: ignore[import-untyped]
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    pa.set_cpu_count(1)
    table = pq.ParquetFile(file, pre_buffer=False, buffer_size=65_536, memory_map=False)
    names = list(table.schema_arrow.names)
    yield {"columns": names, "total": table.metadata.num_rows}
    if len(set(names)) < len(names):
        twice = next(name for name, count in Counter(names).items() if count > 1)
        raise FileFaultError("bad-parquet", f"two columns are called '{twice:.80}'")
    wanted = names if order["columns"] is None else list(order["columns"])
    for name in wanted:
        if name not in names:
            raise FileFaultError("no-such-column", name)
    skipped, rows, size = order["first"], 0, 0
    groups: list[int] = []
    for number in range(table.metadata.num_row_groups):
        group = table.metadata.row_group(number)
        if not groups and skipped >= group.num_rows:
            skipped -= group.num_rows
            continue
        groups.append(number)
        rows += group.num_rows
        size += group.total_byte_size
        if rows >= skipped + order["most"]:
            break
    if not groups or not wanted:
        return
    at_a_time = _MOST_BYTES_AT_A_TIME // max(size // max(rows, 1), 1)
    batches = table.iter_batches(
        batch_size=min(max(at_a_time, 1), _MOST_ROWS_AT_A_TIME),
        row_groups=groups,
        columns=wanted,
        use_threads=False,
    )
    fields = [table.schema_arrow.field(name) for name in wanted]
    types = [_readable_type(pa, each.type, 0) for each in fields]
    convert = [_converter(pa, each.type) for each in fields]

    def read_rows(skipped: int) -> Iterator[object]:
        for batch in batches:
            if skipped >= batch.num_rows:
                skipped -= batch.num_rows
                continue
            rows, skipped = batch.slice(skipped), 0
            columns = (
                rows.column(name).cast(type_, safe=False).to_pylist(maps_as_pydicts="strict")
                for name, type_ in zip(wanted, types, strict=True)
            )
            for values in zip(*columns, strict=True):
                yield {
                    name: None if value is None else to_json(value)
                    for name, value, to_json in zip(wanted, values, convert, strict=True)
                }

    yield from itertools.islice(read_rows(skipped), order["most"])


def _readable_type(pa, type_, depth: int):  # type: ignore[no-untyped-def]  # pyarrow has no types
    """The type with texts in place of what JSON has no form for."""
    if depth > _DEEPEST:
        raise FileFaultError("bad-parquet", f"a column is nested more than {_DEEPEST} levels deep")
    are = pa.types
    if are.is_duration(type_):
        return pa.duration("us")
    if are.is_temporal(type_) or are.is_decimal(type_):
        return pa.string()
    if are.is_list(type_) or are.is_large_list(type_) or are.is_fixed_size_list(type_):
        inner = _readable_type(pa, type_.value_type, depth + 1)
        return pa.large_list(type_.value_field.with_type(inner))
    if are.is_map(type_):
        key = _readable_type(pa, type_.key_type, depth + 1)
        item = _readable_type(pa, type_.item_type, depth + 1)
        return pa.map_(type_.key_field.with_type(key), type_.item_field.with_type(item))
    if are.is_struct(type_):
        return pa.struct(
            [each.with_type(_readable_type(pa, each.type, depth + 1)) for each in type_]
        )
    return type_


def _converter(pa, type_) -> Callable[..., object]:  # type: ignore[no-untyped-def]  # pyarrow has no types
    """What makes a value of that type, which is not null, one of JSON."""
    are = pa.types
    if are.is_duration(type_):
        return lambda value: value.total_seconds()
    if are.is_temporal(type_):
        return _as_time
    if are.is_floating(type_):
        return lambda value: float(value) if math.isfinite(value) else None
    if are.is_list(type_) or are.is_large_list(type_) or are.is_fixed_size_list(type_):
        inner = _converter(pa, type_.value_type)
        return lambda value: [None if each is None else inner(each) for each in value]
    if are.is_map(type_):
        key, item = _converter(pa, type_.key_type), _converter(pa, type_.item_type)
        return lambda value: {
            _as_key(key(name)): None if each is None else item(each) for name, each in value.items()
        }
    if are.is_struct(type_):
        fields = {each.name: _converter(pa, each.type) for each in type_}
        return lambda value: {
            name: None if value[name] is None else to_json(value[name])
            for name, to_json in fields.items()
        }
    if are.is_dictionary(type_):
        return _converter(pa, type_.value_type)
    return lambda value: base64.b64encode(value).decode() if isinstance(value, bytes) else value


def _as_time(text: str) -> str:
    if text.startswith("<"):  # what the library writes for a time that it cannot express
        raise FileFaultError("bad-parquet", f"a time is out of range: {text}")
    return text.replace(" ", "T", 1)


def _as_key(key: object) -> str:
    return key if isinstance(key, str) else json.dumps(key)


# --- PDF ----------------------------------------------------------------------------------------


def _pdf_parts(file: BinaryIO, order: ReadOrder) -> Parts:
    import pypdf
    from pypdf.errors import DependencyError

    reader = pypdf.PdfReader(file)
    try:
        is_closed = reader.is_encrypted and not reader.decrypt("")
    except DependencyError:
        is_closed = True
    if is_closed:
        raise FileFaultError("encrypted-pdf", "it is encrypted, and opens with a password only")
    total = len(reader.pages)
    yield {"total": total}
    for number in range(order["first"], min(order["first"] + order["most"], total)):
        text = reader.pages[number].extract_text()
        # Halves of characters and NUL are in no text that can be stored.
        text = text.encode("utf-8", "replace").decode().replace("\0", "\ufffd")
        yield {"page": number + 1, "text": text}


if __name__ == "__main__":
    main()
