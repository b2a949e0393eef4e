"""`minions batch`: which fields of a line are inputs, and results as a table."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from command_line import Cli, Outcome, Write

RECIPE: Final = """
id: price
inputs: {name: string, weight: {type: number, default: 1}}
steps:
  - {id: light, assert: [inputs.weight < 30], message: too heavy}
  - {id: price, set: {francs: "{{ inputs.weight * 2 }}", note: "=SUM({{ inputs.name }})"}}
output: {francs: "{{ price.francs }}", note: "{{ price.note }}"}
"""
LINES: Final = (
    {"id": 7, "title": "Lamp", "user": {"names": ["Ann"]}, "weight": 4},
    {"id": 8, "title": "Stove", "user": {"names": ["Bob"]}, "weight": 90},
)
Batch = Callable[..., Outcome]


@pytest.fixture
def batch(cli: Cli, write: Write) -> Batch:
    write("price.yaml", RECIPE)
    write("items.jsonl", "".join(json.dumps(line) + "\n" for line in LINES))

    def run(*more: str, items: str = "items.jsonl") -> Outcome:
        return cli("batch", "price.yaml", items, "--db", "j.sqlite", *more)

    return run


def rows(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(path.read_text("utf-8"), newline="")))


def test_fields_become_inputs_by_their_path_and_others_stand_beside_the_result(
    batch: Batch, here: Path
) -> None:
    done = batch(
        *("--map", "name=.user.names[0]", "--keep", "id,title", "-o", "out.jsonl"), "--ignore-extra"
    )
    assert done.code == 1, done.err
    results = [json.loads(line) for line in (here / "out.jsonl").read_text().splitlines()]
    assert [each["kept"] for each in results] == [
        {"id": 7, "title": "Lamp"},
        {"id": 8, "title": "Stove"},
    ]
    assert results[0]["output"] == {"francs": 8, "note": "=SUM(Ann)"}
    assert [each["status"] for each in results] == ["completed", "failed"]


def test_an_input_that_is_kept_is_an_input_too(batch: Batch, here: Path) -> None:
    batch("--map", "name=.title", "--keep", "id,weight", "--ignore-extra", "-o", "out.jsonl")
    first = json.loads((here / "out.jsonl").read_text().splitlines()[0])
    assert (first["kept"]["weight"], first["output"]["francs"]) == (4, 8)


def test_a_name_with_csv_gets_a_table_with_a_column_for_each_field(
    batch: Batch, here: Path
) -> None:
    done = batch("--map", "name=.title", "--keep", "id", "--ignore-extra", "-o", "out.csv")
    assert done.code == 1
    first, second = rows(here / "out.csv")
    assert list(first) == [
        *("index", "run_id", "status", "id", "output.francs", "output.note"),
        *("error", "cost_usd", "tokens"),
    ]
    assert (first["id"], first["status"], first["output.francs"]) == ("7", "completed", "8")
    assert first["output.note"] == "'=SUM(Lamp)"  # no formula for a spreadsheet
    assert second["error"] == "assertion-failed: too heavy"
    assert second["output.francs"] == ""


def test_a_table_of_the_batch_is_written_again_and_another_is_not(batch: Batch, here: Path) -> None:
    words = ("--map", "name=.title", "--keep", "id", "--ignore-extra", "-o", "out.csv")
    batch(*words)
    before = (here / "out.csv").read_text()
    batch(*words)
    assert (here / "out.csv").read_text() == before
    (here / "out.csv").write_text("index,run_id,status\n")
    assert "already-there" in batch(*words).err
    (here / "out.csv").write_text("index,run_id,status,id,out")  # cut off by a kill
    assert batch(*words).code == 1
    assert (here / "out.csv").read_text() == before
    (here / "out.csv").write_text("index,run_id\n0,run_of_somebody_else\n")
    assert "already-there" in batch(*words).err
    (here / "out.csv").write_text("name,size\nlamp,4\n")
    assert "already-there" in batch(*words).err
    assert (here / "out.csv").read_text() == "name,size\nlamp,4\n"


def test_columns_of_a_table_are_mapped_by_their_whole_name(
    batch: Batch, write: Write, here: Path
) -> None:
    write("items.csv", "No.,full.name,weight\n1,Lamp,4\n")
    done = batch("--map", "name=.full.name", "--keep", "No.", "-o", "out.csv", items="items.csv")
    assert done.code == 0, done.err
    assert rows(here / "out.csv")[0]["No."] == "1"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--map", "name=title"), "--map takes INPUT=.FIELD"),
        (("--map", "name=."), "--map takes INPUT=.FIELD"),
        (("--map", "name=.title", "--map", "name=.id"), "twice"),
        (("--map", "nam=.title"), "has no input 'nam'. Did you mean 'name'?"),
        (("--map", "name=.titel", "--ignore-extra"), "nothing at .titel"),
        (("--map", "name=.user.names[3]", "--ignore-extra"), "nothing at .user.names[3]"),
        (("--map", "name=.title", "--keep", "idd", "--ignore-extra"), "no 'idd', which --keep"),
        (("--map", "name=.title", "--keep", "id,id"), "each once"),
        (("--map", "name=.title", "--keep", "id,"), "each once"),
        (("--map", "name=.title", "--keep", "id"), "There is no input 'user'"),
        (("--map", "weight=.id", "--map", "name=.title"), "its 'weight' is not used"),
        (("-o", "out.xlsx"), "a table to a name with .csv or .parquet, not as xlsx"),
    ],
)
def test_what_does_not_fit_is_told_and_nothing_is_started(
    batch: Batch, here: Path, words: tuple[str, ...], told: str
) -> None:
    done = batch(*words)
    assert (done.code, told in done.err) == (2, True), done.err
    assert not (here / "out.xlsx").exists()


def test_a_kept_field_with_the_name_of_a_column_is_refused(batch: Batch, write: Write) -> None:
    write("items.jsonl", '{"name": "Lamp", "status": "sold"}\n')
    assert "has a column of that name" in batch("--keep", "status", "-o", "out.csv").err
    assert batch("--keep", "status").code == 0


def test_the_command_that_continues_has_the_same_words(batch: Batch) -> None:
    done = batch("--map", "name=.title", "--keep", "id", "--ignore-extra", "-o", "out.csv")
    assert "--map name=.title --keep id --ignore-extra" in done.err
    assert "--retry-failed" in done.err


def test_a_minus_is_standard_output_wherever_a_file_could_be(
    batch: Batch, cli: Cli, here: Path
) -> None:
    done = batch(*("--map", "name=.title", "--ignore-extra", "-o", "-"))
    assert [json.loads(line)["status"] for line in done.out.splitlines()] == ["completed", "failed"]
    for command in ("graph", "stubs"):
        assert cli(command, "price.yaml", "-o", "-").out == cli(command, "price.yaml").out != ""
    assert not (here / "-").exists()
