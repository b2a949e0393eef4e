"""`minions skill`: the pages for coding agents, printed or installed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import pytest
import yaml

from command_line import Cli, Write

PAGES: Final = ("SKILL.md", "examples.md", "keys.md", "commands.md", "faults.md")
_MOST_BYTES: Final = 8_000
"""Of the page that an agent reads each time: some 2,000 tokens."""


def test_the_first_page_is_printed_and_small(cli: Cli) -> None:
    done = cli("skill")
    assert done.code == 0
    head = yaml.safe_load(done.out.split("---")[1])
    assert set(head) == {"name", "description"}
    assert (head["name"], len(head["description"]) < 1_024) == ("minions", True)
    assert len(done.out.encode()) < _MOST_BYTES
    assert all(f"]({name})" in done.out for name in PAGES[1:])


def test_it_is_installed_as_a_folder_of_its_name(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "skills").mkdir()
    done = cli("skill", "--install", str(tmp_path / "skills"), "--json")
    assert done.code == 0
    report = json.loads(done.out)
    folder = Path(report["folder"])
    assert folder == tmp_path / "skills" / "minions"
    assert sorted(each.name for each in folder.iterdir()) == sorted(PAGES)
    assert cli("skill", "--install", str(tmp_path / "skills")).code == 0  # the same again


def test_what_differs_is_overwritten_by_force_alone(cli: Cli, tmp_path: Path) -> None:
    cli("skill", "--install", str(tmp_path))
    own = tmp_path / "minions" / "keys.md"
    own.write_text("mine", "utf-8")
    done = cli("skill", "--install", str(tmp_path))
    assert (done.code, "already-there" in done.err, own.read_text()) == (2, True, "mine")
    assert cli("skill", "--install", str(tmp_path), "--force").code == 0
    assert own.read_text("utf-8") != "mine"


@pytest.mark.parametrize("place", ["nowhere", "file"])
def test_a_place_that_is_no_folder_is_said(cli: Cli, tmp_path: Path, place: str) -> None:
    (tmp_path / "file").mkdir()
    (tmp_path / "file" / "minions").write_text("", "utf-8")
    done = cli("skill", "--install", str(tmp_path / place))
    assert done.code == 2
    assert str(tmp_path) in done.err


WRONG: Final = """
id: wrong
inputs: {file: string}
tools: [files]
steps:
  - id: read
    tool: files__raed
    params: {path: "{{ inputs.fiel }}"}
  - id: each
    lop: [1, 2]
    set: {line: 1}
"""


def test_fixes_of_the_check_can_be_applied_by_a_program(cli: Cli, write: Write) -> None:
    write("wrong.yaml", WRONG)
    (report,) = json.loads(cli("validate", "wrong.yaml", "--json").out)["recipes"]
    fixes = [each["fix"] for each in report["faults"]]
    assert [each["text"] for each in fixes] == ["files__read", "file", "loop"]
    lines = WRONG.splitlines(keepends=True)
    for fix in sorted(fixes, key=lambda it: (it["line"], it["column"]), reverse=True):
        line, start = fix["line"] - 1, fix["column"] - 1
        text = lines[line]
        lines[line] = text[:start] + fix["text"] + text[start + fix["length"] :]
    write("wrong.yaml", "".join(lines))
    (report,) = json.loads(cli("validate", "wrong.yaml", "--json").out)["recipes"]
    assert report["ok"], report


def test_a_fault_without_a_certain_suggestion_has_no_fix(cli: Cli, write: Write) -> None:
    write("wrong.yaml", "id: wrong\nsteps: [{id: a, tool: nothing_like_it}]\n")
    (report,) = json.loads(cli("validate", "wrong.yaml", "--json").out)["recipes"]
    assert [each["fix"] for each in report["faults"]] == [None]
