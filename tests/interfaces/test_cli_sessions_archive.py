"""`minions sessions export` and `import`."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import cast

import pytest

from command_line import Cli, Write
from minions.data.json_values import JsonValue

RECIPE = """
id: greet
inputs: {name: {type: string}}
steps:
  - {id: say, set: {text: "Hello {{ inputs.name }}"}}
  - {id: fine, ask: "Fine?", form: {type: string}}
output: "{{ say.text }}: {{ fine }}"
"""
DB = ("--db", "j.db")
ELSEWHERE = ("--db", "elsewhere.db")


@pytest.fixture(autouse=True)
def _run(cli: Cli, write: Write) -> None:
    write("greet.yaml", RECIPE)
    assert cli("run", "greet.yaml", "-p", "name=Ada", "--approve", "wait", *DB).code == 3


def session_of(cli: Cli, *db: str) -> dict[str, JsonValue]:
    (run,) = json.loads(cli("sessions", "list", "--json", *db).out)
    return cast("dict[str, JsonValue]", run)


def test_a_run_goes_on_where_its_session_was_taken(cli: Cli, here: Path) -> None:
    run = session_of(cli, *DB)
    told = cli("sessions", "export", str(run["run_id"])[:8], "-o", "s.jsonl", *DB)
    assert (told.code, told.out) == (0, "")
    assert told.err.startswith(f"Exported {run['session_id']}: ")
    assert stat.S_IMODE((here / "s.jsonl").stat().st_mode) == 0o600
    assert sorted(path.name for path in here.glob("s.jsonl*")) == ["s.jsonl"]
    taken = cli("sessions", "import", "s.jsonl", *ELSEWHERE)
    assert (taken.code, taken.out) == (0, f"{run['session_id']}\n")
    assert session_of(cli, *ELSEWHERE) == run
    assert cli("answer", str(run["run_id"]), "fine", "yes", *ELSEWHERE).code == 0
    assert session_of(cli, *ELSEWHERE)["status"] == "completed"
    assert session_of(cli, *DB)["status"] == "needs_decision"


def test_an_export_without_a_file_goes_to_standard_output(cli: Cli, write: Write) -> None:
    lines = cli("sessions", "export", "ses_", *DB).out.splitlines()
    head, *rest = [json.loads(line) for line in lines]
    assert (head["format"], head["version"]) == ("minions-session", 2)
    assert {key for line in rest for key in line} == {"blob", "data", "row", "chain"}
    write("s.jsonl", "\n".join(lines) + "\n")
    imported = cli("sessions", "import", "s.jsonl", "--json", *ELSEWHERE).json
    assert imported == {"session_id": head["session"], "stored": [head["session"]]}


def test_programs_are_told_what_was_exported(cli: Cli) -> None:
    told = cli("sessions", "export", "ses_", "-o", "s.jsonl", "--json", *DB).json
    assert (told["file"], set(told)) == (
        "s.jsonl",
        {"session_id", "file", "rows", "blobs", "head"},
    )


def test_a_file_that_is_there_is_overwritten_only_by_force(cli: Cli, write: Write) -> None:
    path = write("s.jsonl", "mine")
    told = cli("sessions", "export", "ses_", "-o", "s.jsonl", *DB)
    assert told.code == 2
    assert "error[file-exists]" in told.err
    assert Path("s.jsonl").read_text() == "mine"
    assert cli("sessions", "export", "ses_", "-o", "s.jsonl", "--force", *DB).code == 0
    assert path  # written by the first line of this test
    assert Path("s.jsonl").read_text().startswith('{"format"')


def test_a_session_that_is_there_is_refused(cli: Cli) -> None:
    cli("sessions", "export", "ses_", "-o", "s.jsonl", *DB)
    told = cli("sessions", "import", "s.jsonl", *DB)
    assert told.code == 2
    assert "error[session-exists]" in told.err
    assert "minions sessions rm ses_" in told.err


def test_a_file_that_was_cut_off_is_refused_with_its_line(cli: Cli, here: Path) -> None:
    cli("sessions", "export", "ses_", "-o", "s.jsonl", *DB)
    whole = (here / "s.jsonl").read_bytes()
    (here / "s.jsonl").write_bytes(whole[:-30])
    told = cli("sessions", "import", "s.jsonl", *ELSEWHERE)
    line = whole.count(b"\n")
    assert told.code == 2
    assert f"error[bad-archive]: s.jsonl, line {line}: " in told.err
    assert cli("sessions", "list", *ELSEWHERE).out == ""


def test_a_file_that_is_not_there_is_told(cli: Cli) -> None:
    told = cli("sessions", "import", "nowhere.jsonl", *DB)
    assert told.code == 2
    assert "error[no-file]: nowhere.jsonl cannot be read: No such file" in told.err


def test_an_unknown_session_cannot_be_exported(cli: Cli) -> None:
    told = cli("sessions", "export", "ses_nope", "-o", "s.jsonl", *DB)
    assert told.code == 2
    assert "error[unknown-session]" in told.err
    assert not Path("s.jsonl").exists()


PAID = """
id: paid
inputs: {token: {type: string, secret: true}}
steps:
  - {id: note, set: {text: "use {{ inputs.token }}"}}
"""


def test_a_run_is_exported_as_a_page_that_shows_no_secret(
    cli: Cli, write: Write, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PAID_TOKEN", "s3cr3t-0123456789")
    write("paid.yaml", PAID.replace("use {{ inputs.token }}", "the plain s3cr3t-0123456789"))
    cli("run", "paid.yaml", "--db", "j.sqlite", "-p", "token=env:PAID_TOKEN")
    run = "run_"
    done = cli("sessions", "export", run, "--html", "run.html", "--db", "j.sqlite")
    assert done.code == 0
    page = Path("run.html").read_text("utf-8")
    assert "<b>note</b>" in page
    assert "env:PAID_TOKEN" in page
    assert "s3cr3t" not in page
    again = cli("sessions", "export", run, "--html", "run.html", "--db", "j.sqlite")
    assert again.code == 2
    assert "--force" in again.err
    both = cli("sessions", "export", run, "--html", "a.html", "-o", "a.jsonl", "--db", "j.sqlite")
    assert (both.code, "exclude each other" in both.err) == (2, True)


def test_a_page_keeps_the_line_breaks_of_values(cli: Cli, write: Write) -> None:
    write("say.yaml", "id: say\ninputs: {text: string}\nsteps: [{id: x, set: {n: 1}}]\n")
    cli("run", "say.yaml", "--db", "j.sqlite", "-p", "text=one\u2028two\x85three")
    done = cli("sessions", "export", "run_", "--html", "run.html", "--db", "j.sqlite")
    page = Path("run.html").read_bytes()
    assert "one\u2028two\x85three" in page.decode("utf-8")
    assert f"{len(page):,} bytes" in done.err
