"""`minions batch`: items and results in Parquet files."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pyarrow as pa  # type: ignore[import-untyped]  # it has no types
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest

from command_line import Cli, Outcome, Write
from minions.adapters.binary_files.parquet_writer import ParquetTable
from minions.app.runs import batch_items
from minions.app.runs.batch_items import ItemsFile
from minions.data.errors import UsageError

RECIPE: Final = """
id: price
inputs: {name: string, weight: {type: number, default: 1}}
steps:
  - {id: light, assert: [inputs.weight < 30], message: too heavy}
  - {id: price, set: {francs: "{{ inputs.weight * 2 }}", of: "{{ [inputs.name] }}"}}
output: {francs: "{{ price.francs }}", of: "{{ price.of }}"}
"""
Batch = Callable[..., Outcome]


@pytest.fixture
def batch(cli: Cli, write: Write) -> Batch:
    write("price.yaml", RECIPE)

    def run(items: str, *more: str) -> Outcome:
        return cli("batch", "price.yaml", items, "--db", "j.sqlite", *more)

    return run


def put(path: Path, **columns: object) -> None:
    pq.write_table(pa.table(columns), path)


def test_rows_of_a_parquet_file_are_items_and_null_is_what_an_input_has_by_default(
    batch: Batch, here: Path
) -> None:
    put(here / "in.parquet", name=["Lamp", "Stove", "Pot"], weight=[4.0, 90.0, None])
    done = batch("in.parquet", "-o", "out.jsonl")
    assert done.code == 1, done.err
    results = [json.loads(line) for line in (here / "out.jsonl").read_text().splitlines()]
    assert [each["status"] for each in results] == ["completed", "failed", "completed"]
    assert [each["output"]["francs"] for each in results if each["output"]] == [8.0, 2]


def test_a_bad_row_is_named_and_nothing_is_started(batch: Batch, here: Path) -> None:
    put(here / "in.parquet", name=["Lamp", None], weight=[1, 2])
    done = batch("in.parquet", "-o", "out.jsonl")
    assert done.code == 2
    assert "in.parquet:2: " in done.err
    assert "Nothing was started." in done.err


def test_results_become_a_parquet_file_with_types(batch: Batch, here: Path) -> None:
    put(here / "in.parquet", id=[7, 8], name=["Lamp", "Stove"], weight=[4, 90])
    done = batch("in.parquet", "--keep", "id", "-o", "out.parquet")
    assert done.code == 1, done.err
    table = pq.read_table(here / "out.parquet")
    assert table.column_names == [
        *("index", "run_id", "status", "id", "output.francs", "output.of"),
        *("error", "cost_usd", "tokens"),
    ]
    types = {each.name: str(each.type) for each in table.schema}
    assert (types["index"], types["id"], types["status"]) == ("int64", "int64", "string")
    assert (types["output.francs"], types["cost_usd"]) == ("int64", "double")
    first, second = table.to_pylist()
    assert (first["id"], first["output.francs"], first["output.of"]) == (7, 8, '["Lamp"]')
    assert second["error"] == "assertion-failed: too heavy"
    assert second["output.francs"] is None
    assert not list(here.glob(".out*"))


def test_a_parquet_file_of_the_batch_is_written_again_and_another_is_not(
    batch: Batch, here: Path
) -> None:
    put(here / "in.parquet", name=["Lamp"])
    words = ("in.parquet", "-o", "out.parquet")
    assert batch(*words).code == 0
    before = pq.read_table(here / "out.parquet")
    assert batch(*words).code == 0
    assert pq.read_table(here / "out.parquet") == before
    for strange in (
        {"index": [0], "run_id": ["run_of_somebody_else"]},
        {"run_id": [before["run_id"][0].as_py()]},
        {"name": ["Lamp"]},
    ):
        put(here / "out.parquet", **strange)
        assert "already-there" in batch(*words).err
        assert pq.read_table(here / "out.parquet").to_pydict() == strange
    (here / "out.parquet").write_text("no parquet")
    assert "already-there" in batch(*words).err


@pytest.mark.parametrize("target", ["missing/out.parquet", "folder.parquet"])
def test_a_parquet_file_that_cannot_be_written_starts_nothing(
    batch: Batch, here: Path, target: str
) -> None:
    (here / "folder.parquet").mkdir()
    put(here / "in.parquet", name=["Lamp"])
    done = batch("in.parquet", "-o", target)
    assert done.code == 4
    assert "cannot be written" in done.err
    assert "Nothing was started." in done.err


def test_without_the_library_items_name_the_extra(
    batch: Batch, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(here / "in.parquet", name=["Lamp"])
    (here / "in.jsonl").write_text('{"name": "Lamp"}\n')
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    done = batch("in.jsonl", "-o", "out.parquet")
    assert done.code == 4
    assert "pip install 'minions-engine[parquet]'" in done.err
    assert not (here / "out.parquet").exists()


def test_items_have_a_bound_for_rows_and_for_all_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "in.parquet"
    put(path, name=["Lamp"] * 100)
    assert len(list(ItemsFile(path).rows())) == 100
    monkeypatch.setattr(batch_items, "_MOST_BYTES", 1_000)
    with pytest.raises(UsageError, match="its rows are more than"):
        list(ItemsFile(path).rows())
    monkeypatch.setattr(batch_items, "_MOST_PARQUET_ROWS", 20)
    with pytest.raises(UsageError, match=r"in.parquet:21: .* 20 rows at the most; .* has 100"):
        list(ItemsFile(path).rows())
    monkeypatch.setattr(batch_items, "_LONGEST_ROW", 10)
    with pytest.raises(UsageError, match=r"in.parquet: .* row 1 has more than 10 bytes"):
        list(ItemsFile(path).rows())


def test_a_column_has_the_type_of_its_values(tmp_path: Path) -> None:
    columns = ("whole", "mixed", "declared", "texts", "other", "none", "huge", "flag")
    table = ParquetTable(tmp_path / "a.parquet", {**dict.fromkeys(columns), "declared": "float64"})
    table.add((1, 1, 1, "a\ud800", [1], None, 1, True))
    table.add((2, 1.5, 2, None, "x", None, 2**63, False))
    table.write()
    table.close()
    read = pq.read_table(tmp_path / "a.parquet")
    assert [str(each.type) for each in read.schema] == [
        *("int64", "double", "double", "string", "string", "string", "string", "bool")
    ]
    assert read.to_pydict() == {
        "whole": [1, 2],
        "mixed": [1.0, 1.5],
        "declared": [1.0, 2.0],
        "texts": ["a\\ud800", None],
        "other": ["[1]", '"x"'],
        "none": [None, None],
        "huge": ["1", "9223372036854775808"],
        "flag": [True, False],
    }
