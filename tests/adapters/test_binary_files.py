"""Tools that read Parquet and PDF files, also those that strangers made to do harm."""

from __future__ import annotations

import datetime
import decimal
import io
import math
import os
import sys
import zlib
from pathlib import Path
from typing import Final

import pyarrow as pa  # type: ignore[import-untyped]  # it has no types
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pypdf
import pytest

from minions.adapters.binary_files import file_reader
from minions.adapters.binary_files.file_reader import (
    PartRange,
    UnreadableFileError,
    open_parts,
    require_package,
)
from minions.adapters.tools.files_toolset import ParquetRows, PdfPages, files_toolset
from minions.adapters.tools.function_tool import FunctionTool
from minions.contracts.tools import Effect, Reads
from minions.data.errors import EnvironmentRefusedError, ToolError
from minions.data.json_values import JsonValue

UTC: Final = datetime.UTC


def tools(root: Path, **options: JsonValue) -> dict[str, FunctionTool[..., object]]:
    opened = files_toolset().open({"root": str(root), **options}, "")
    return {each.spec.name: each for each in opened if isinstance(each, FunctionTool)}


def rows(root: Path, path: str = "a.parquet", **arguments: object) -> ParquetRows:
    found = tools(root)["read_parquet"](path, **arguments)
    assert isinstance(found, ParquetRows)
    return found


def pages(root: Path, path: str = "a.pdf", **arguments: object) -> PdfPages:
    found = tools(root)["read_pdf"](path, **arguments)
    assert isinstance(found, PdfPages)
    return found


def pdf(*texts: str, filters: bytes | None = None) -> bytes:
    """A file with a page for each text."""
    count = len(texts)
    kids = " ".join(f"{3 + 2 * at} 0 R" for at in range(count))
    font = b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Count {count} /Kids [{kids}] >>".encode(),
    ]
    for at, text in enumerate(texts):
        data = f"BT /F1 12 Tf 20 100 Td ({text}) Tj ET".encode()
        head = f"<< /Length {len(data)} >>".encode()
        if filters is not None:
            data = filters
            head = f"<< /Length {len(data)} /Filter /FlateDecode >>".encode()
        objects.append(
            b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 300 200] /Resources << /Font << /F1 "
            + f"{3 + 2 * count} 0 R >> >> /Contents {4 + 2 * at} 0 R >>".encode()
        )
        objects.append(head + b"\nstream\n" + data + b"\nendstream")
    return joined_objects([*objects, font])


def joined_objects(objects: list[bytes]) -> bytes:
    text, places = b"%PDF-1.4\n", []
    for number, each in enumerate(objects, 1):
        places.append(len(text))
        text += f"{number} 0 obj\n".encode() + each + b"\nendobj\n"
    table = "".join(f"{place:010} 00000 n \n" for place in places)
    size = len(objects) + 1
    trailer = f"trailer\n<< /Size {size} /Root 1 0 R >>\nstartxref\n{len(text)}\n%%EOF\n"
    return text + f"xref\n0 {size}\n0000000000 65535 f \n{table}{trailer}".encode()


# --- Parquet ----------------------------------------------------------------------------------


def test_rows_of_a_parquet_file_are_objects_by_column(tmp_path: Path) -> None:
    pq.write_table(pa.table({"name": ["Eva", "Urs"], "age": [31, None]}), tmp_path / "a.parquet")
    assert rows(tmp_path) == ParquetRows(
        path="a.parquet",
        rows=[{"name": "Eva", "age": 31}, {"name": "Urs", "age": None}],
        columns=["name", "age"],
        count=2,
        total=2,
        truncated=False,
    )


def test_columns_and_rows_are_chosen_across_row_groups(tmp_path: Path) -> None:
    table = pa.table({"n": list(range(100)), "text": ["x"] * 100})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=7)
    found = rows(tmp_path, columns=["n"], first_row=13, max_rows=10)
    assert found.rows == [{"n": number} for number in range(12, 22)]
    assert (found.columns, found.count, found.total, found.truncated) == (
        ["n", "text"],
        10,
        100,
        True,
    )
    assert rows(tmp_path, first_row=95).count == 6
    assert not rows(tmp_path, first_row=95).truncated
    assert rows(tmp_path, first_row=101).rows == []


def test_what_json_has_no_form_for_is_a_text(tmp_path: Path) -> None:
    moment = datetime.datetime(2026, 3, 1, 12, 30, 0, 250_000, tzinfo=UTC)
    values: dict[str, object] = {
        "price": pa.array([decimal.Decimal("1.50")]),
        "at": pa.array([moment]),
        "exact": pa.array([1_772_368_200_000_000_001], pa.timestamp("ns")),
        "day": pa.array([datetime.date(2026, 3, 1)]),
        "time": pa.array([datetime.time(12, 30)]),
        "took": pa.array([datetime.timedelta(seconds=1.5)]),
        "data": pa.array([b"\xff\x00"]),
        "no_number": [math.nan],
        "infinite": [-math.inf],
        "large": pa.array([2**64 - 1], pa.uint64()),
        "parts": pa.array([[{"price": decimal.Decimal("2.5"), "at": moment}, None]]),
        "by_name": pa.array([[("a", b"\x01"), ("b", None)]], pa.map_(pa.string(), pa.binary())),
        "by_number": pa.array([[(1, 2.0)]], pa.map_(pa.int64(), pa.float64())),
        "kind": pa.array(["x"]).dictionary_encode(),
    }
    pq.write_table(pa.table(values), tmp_path / "a.parquet")
    [row] = rows(tmp_path).rows
    assert row == {
        "price": "1.50",
        "at": "2026-03-01T12:30:00.250000Z",
        "exact": "2026-03-01T12:30:00.000000001",
        "day": "2026-03-01",
        "time": "12:30:00.000000",
        "took": 1.5,
        "data": "/wA=",
        "no_number": None,
        "infinite": None,
        "large": 2**64 - 1,
        "parts": [{"price": "2.5", "at": "2026-03-01T12:30:00.250000Z"}, None],
        "by_name": {"a": "AQ==", "b": None},
        "by_number": {"1": 2.0},
        "kind": "x",
    }


def test_a_time_that_has_no_text_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"at": pa.array([2**60], pa.timestamp("ms"))}), tmp_path / "a.parquet")
    with pytest.raises(ToolError, match="a time is out of range"):
        rows(tmp_path)


def test_rows_end_where_they_have_too_many_bytes(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["x" * 1_000] * 50}), tmp_path / "a.parquet")
    found = tools(tmp_path, max_read_bytes=10_500)["read_parquet"]("a.parquet")
    assert isinstance(found, ParquetRows)
    assert (found.count, found.total, found.truncated) == (10, 50, True)
    with pytest.raises(ToolError, match="row 3 has more than 900 bytes") as refused:
        tools(tmp_path, max_read_bytes=900)["read_parquet"]("a.parquet", first_row=3)
    assert refused.value.error_code == "file-too-large"


def test_a_column_that_is_not_there_is_named_with_those_that_are(tmp_path: Path) -> None:
    pq.write_table(pa.table({"name": ["Eva"]}), tmp_path / "a.parquet")
    with pytest.raises(ToolError, match=r"no column 'nam'. Did you mean 'name'\?") as refused:
        rows(tmp_path, columns=["nam"])
    assert refused.value.error_code == "no-such-column"


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(ToolError, match="two columns are called 'a'"):
        rows(tmp_path)


@pytest.mark.parametrize("name", ["../a.parquet", ".env", "sub"])
def test_files_are_those_that_the_toolset_may_read(tmp_path: Path, name: str) -> None:
    root = tmp_path / "root"
    (root / "sub").mkdir(parents=True)
    (root / ".env").write_text("A=1")
    pq.write_table(pa.table({"a": [1]}), tmp_path / "a.parquet")
    with pytest.raises(ToolError) as refused:
        rows(root, name)
    assert refused.value.error_code != "bad-parquet"


def test_both_tools_change_nothing_and_read_what_strangers_wrote(tmp_path: Path) -> None:
    for name in ("read_parquet", "read_pdf"):
        spec = tools(tmp_path)[name].spec
        assert (spec.effect, spec.reads, spec.is_offered) == (Effect.PURE, Reads.PRIVATE, False)


# --- PDF --------------------------------------------------------------------------------------


def test_the_text_of_a_pdf_comes_by_pages(tmp_path: Path) -> None:
    (tmp_path / "a.pdf").write_bytes(pdf("One", "Two", "Three"))
    found = pages(tmp_path, first_page=2, max_pages=1)
    assert [(each.page, each.text) for each in found.pages] == [(2, "Two")]
    assert (found.total, found.truncated) == (3, True)
    assert [each.text for each in pages(tmp_path).pages] == ["One", "Two", "Three"]
    assert not pages(tmp_path).truncated


def test_pages_end_where_they_have_too_many_bytes(tmp_path: Path) -> None:
    (tmp_path / "a.pdf").write_bytes(pdf("x" * 100, "y" * 100))
    found = tools(tmp_path, max_read_bytes=150)["read_pdf"]("a.pdf")
    assert isinstance(found, PdfPages)
    assert ([each.page for each in found.pages], found.truncated) == ([1], True)


def test_an_encrypted_pdf_opens_without_a_password_or_not_at_all(tmp_path: Path) -> None:
    for password, name in (("", "open.pdf"), ("secret", "closed.pdf")):
        writer = pypdf.PdfWriter(clone_from=io.BytesIO(pdf("Text")))
        writer.encrypt(password, owner_password="owner", algorithm="AES-256")
        writer.write(tmp_path / name)
    assert [each.text for each in pages(tmp_path, "open.pdf").pages] == ["Text"]
    with pytest.raises(ToolError, match="opens with a password only") as refused:
        pages(tmp_path, "closed.pdf")
    assert refused.value.error_code == "encrypted-pdf"


# --- hostile files ----------------------------------------------------------------------------


def test_pages_that_contain_themselves_are_refused(tmp_path: Path) -> None:
    loop = [b"<< /Type /Catalog /Pages 2 0 R >>", b"<< /Type /Pages /Count 9 /Kids [2 0 R] >>"]
    (tmp_path / "a.pdf").write_bytes(joined_objects(loop))
    with pytest.raises(ToolError) as refused:
        pages(tmp_path)
    assert refused.value.error_code in ("bad-pdf", "file-too-large")


def test_a_stream_that_unpacks_to_a_thousand_times_its_size_is_refused(tmp_path: Path) -> None:
    bomb = zlib.compress(b"\0" * 400_000_000, 9)
    (tmp_path / "a.pdf").write_bytes(pdf("x", filters=bomb))
    with pytest.raises(ToolError) as refused:
        pages(tmp_path)
    assert refused.value.error_code in ("bad-pdf", "file-too-large")


def test_a_value_that_is_repeated_takes_no_more_memory_than_allowed(tmp_path: Path) -> None:
    repeated = pa.DictionaryArray.from_arrays(
        pa.array([0] * 2_000, pa.int32()), pa.array(["x" * 4_000_000])
    )
    pq.write_table(pa.table({"a": repeated}), tmp_path / "a.parquet", store_schema=False)
    assert (tmp_path / "a.parquet").stat().st_size < 1_000_000
    with pytest.raises(ToolError, match="takes more than 1,536 MiB of memory") as refused:
        rows(tmp_path)
    assert refused.value.error_code == "file-too-large"


def test_a_few_of_very_many_rows_are_read_at_once(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": pa.repeat(1, 20_000_000)}), tmp_path / "a.parquet")
    found = rows(tmp_path, max_rows=2)
    assert (found.rows, found.total) == ([{"a": 1}, {"a": 1}], 20_000_000)


def test_a_column_that_is_nested_too_deep_is_refused(tmp_path: Path) -> None:
    value: object = 1
    type_ = pa.int64()
    for _ in range(70):
        value, type_ = {"a": value}, pa.struct([("a", type_)])
    pq.write_table(pa.table({"a": pa.array([value], type_)}), tmp_path / "a.parquet")
    with pytest.raises(ToolError, match="nested more than 64 levels deep"):
        rows(tmp_path)


@pytest.mark.parametrize("tool", ["read_parquet", "read_pdf"])
@pytest.mark.parametrize("data", [b"", b"PAR1", b"%PDF-1.7\n", b"\0" * 10_000, b"PAR1\xff" * 99])
def test_what_is_no_such_file_is_refused_in_one_line(
    tmp_path: Path, tool: str, data: bytes
) -> None:
    (tmp_path / "a").write_bytes(data)
    with pytest.raises(ToolError) as refused:
        tools(tmp_path)[tool]("a")
    assert refused.value.error_code == f"bad-{tool.removeprefix('read_')}"
    assert "'a' cannot be read as" in refused.value.message
    assert "\n" not in refused.value.message
    assert len(refused.value.message) < 500


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("os.kill(os.getpid(), 11)", "bad-pdf"),
        ("sys.exit(0)", "bad-pdf"),
        ("sys.stdout.write('H{\"tot')", "bad-pdf"),
        ("sys.stdout.write('x' * 9_000_000)", "file-too-large"),
        ("time.sleep(600)", "slow-file"),
        ("print('H{\"total\": 1}', flush=True); time.sleep(600)", "slow-file"),
    ],
)
def test_a_process_that_crashes_hangs_or_raves_is_told_and_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, code: str
) -> None:
    program = tmp_path / "program.py"
    program.write_text(f"import os, sys, time\n{body}\n")
    monkeypatch.setattr(file_reader, "_PROGRAM", str(program))
    (tmp_path / "a").write_bytes(b"")
    wanted = PartRange(most=1, most_bytes=1_000, timeout_s=0.3 if code == "slow-file" else 60.0)
    with (
        (tmp_path / "a").open("rb") as file,
        pytest.raises(UnreadableFileError) as refused,
        open_parts(file, "pdf", wanted) as parts,
    ):
        list(parts.values())
    assert refused.value.code == code


def test_the_process_has_the_file_and_neither_keys_nor_other_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    program = tmp_path / "program.py"
    program.write_text(
        "import os, json\n"
        "said = [*os.environ, *os.listdir('/proc/self/fd')]\n"
        "print('H' + json.dumps({'total': 0, 'columns': said}))\n"
    )
    monkeypatch.setattr(file_reader, "_PROGRAM", str(program))
    (tmp_path / "a").write_bytes(b"")
    with (
        (tmp_path / "a").open("rb") as file,
        open_parts(file, "pdf", PartRange(most=1, most_bytes=1)) as parts,
    ):
        said = set(parts.columns)
    assert "OPENAI_API_KEY" not in said
    assert {each for each in said if each.isdigit()} == {"0", "1", "2", "3"}  # 3: the listing


# --- without the library ----------------------------------------------------------------------


@pytest.mark.parametrize(("format_", "package"), [("parquet", "pyarrow"), ("pdf", "pypdf")])
def test_without_its_library_a_format_names_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format_: str, package: str
) -> None:
    (tmp_path / "a").write_bytes(b"")
    install = f"pip install 'minions-engine[{format_}]'"
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(EnvironmentRefusedError, match=f"need {package}") as here:
        require_package(format_)
    monkeypatch.setattr(sys, "path", [os.path.dirname(os.__file__)])  # noqa: PTH120
    with pytest.raises(EnvironmentRefusedError, match=f"need {package}") as there:
        tools(tmp_path)[f"read_{format_}"]("a")
    for refused in (here, there):
        assert refused.value.error_code == "missing-package"
        assert refused.value.suggestions == (install,)
