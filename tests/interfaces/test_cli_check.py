"""`minions check --against`: what a change of a recipe breaks for its callers (A-166)."""

from __future__ import annotations

from pathlib import Path

import pytest

from command_line import Cli, Write

OLD = """\
id: sort
inputs:
  topic: string
  most: {type: integer, default: 5}
steps:
- id: a
  goal: "Sort {{ inputs.topic }}"
  output: {kind: bug | feature, score: 0..10, note: string?}
output: "{{ a }}"
"""

BREAKING = [
    ("topic: string", "theme: string", "inputs.topic is gone"),
    ("topic: string", "topic: integer", "inputs.topic refuses what it took"),
    ("topic: string", "topic: {type: string, maxLength: 9}", "inputs.topic refuses what it took"),
    ("topic: string", "topic: {type: string, secret: true}", "inputs.topic takes a reference"),
    ("topic: string", "topic: string\n  size: integer", "inputs.size is new, and has no default"),
    (", default: 5", "", "inputs.most has no default now"),
    ("bug | feature", "bug | feature | question", "output.kind gives what it never gave"),
    ("0..10", "0..11", "output.score gives what it never gave"),
    ("kind: bug | feature", "kind: bug?", "output.kind"),
    (", note: string?", "", "output.note is gone"),
    ("score: 0..10", "score: string", "output.score gives what it never gave"),
    ("id: sort", "id: order", "id is 'order', and was 'sort'"),
    ("steps:", "permissions: {allow_write: true}\nsteps:", "permissions.allow_write is asked for"),
]


@pytest.mark.parametrize(("before", "after", "said"), BREAKING)
def test_what_breaks_a_caller_is_major(
    cli: Cli, write: Write, before: str, after: str, said: str
) -> None:
    write("old.yaml", OLD)
    changed = OLD.replace("{{ inputs.topic }}", "it").replace(before, after)
    write("new.yaml", changed.replace("kind: bug?", "kind: string?"))
    done = cli("check", "new.yaml", "--against", "old.yaml")
    assert done.code == 1
    assert "breaks callers (major)" in done.out
    assert f"major: {said}" in done.out


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("topic: string", "topic: {type: string, default: all}", "inputs.topic may be left out"),
        ("topic: string", "topic: {type: [string, integer]}", "inputs.topic takes more"),
        ("topic: string", "topic: string\n  size: {default: 3}", "inputs.size is new"),
        ("default: 5", "default: 6", "inputs.most has another default: 6, and was 5"),
        ("note: string?", "note: string?, more: string", "output.more gives what it never gave"),
    ],
)
def test_what_lets_callers_go_on_is_minor(
    cli: Cli, write: Write, before: str, after: str, said: str
) -> None:
    write("old.yaml", OLD)
    write("new.yaml", OLD.replace(before, after))
    done = cli("check", "new.yaml", "--against", "old.yaml")
    assert (done.code, "callers go on (minor)" in done.out) == (0, True), done.out + done.err
    assert f"minor: {said}" in done.out


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("Sort", "Put in order"),
        ("0..10", "1..9"),
        ("bug | feature", "bug | feature | bug2".replace(" | bug2", "")),
    ],
)
def test_what_no_caller_sees_is_a_patch(cli: Cli, write: Write, before: str, after: str) -> None:
    write("old.yaml", OLD)
    write("new.yaml", OLD.replace(before, after))
    done = cli("check", "new.yaml", "--against", "old.yaml")
    assert (done.code, done.out) == (0, "new.yaml: no caller sees a change (patch)\n")


def test_recipes_beside_it_that_run_it_are_checked_with_it(cli: Cli, write: Write) -> None:
    write("sort.yaml", OLD.replace(", default: 5", ""))
    write("before/sort.yaml", OLD)
    write("caller.yaml", "id: c\nsteps: [{id: s, recipe: sort.yaml, with: {topic: x}}]\n")
    write("other.yaml", "id: o\nsteps: [{id: s, goal: Go}]\n")
    done = cli("check", "sort.yaml", "--against", "before/sort.yaml")
    assert done.code == 1
    assert "called by caller.yaml:2: the recipe 'sort' needs 'most'" in done.err
    assert "other.yaml" not in done.err


def test_folders_are_compared_file_by_file_and_data_in_them_is_left_out(
    cli: Cli, write: Write
) -> None:
    write("old/a.yaml", OLD)
    write("old/gone.yaml", OLD.replace("id: sort", "id: gone"))
    write("old/data.json", "[1]")
    write("new/a.yaml", OLD)
    write("new/more.yaml", OLD.replace("id: sort", "id: more"))
    write("new/data.json", "[2]")
    done = cli("check", "new", "--against", "old", "--json")
    assert done.code == 1
    assert done.json["level"] == "major"
    recipes = done.json["recipes"]
    assert isinstance(recipes, list)
    assert [(each["recipe"], each["level"]) for each in recipes] == [
        ("a.yaml", "patch"),
        ("gone.yaml", "major"),
        ("more.yaml", "minor"),
    ]


def test_a_file_and_a_folder_cannot_be_compared(cli: Cli, write: Write, tmp_path: Path) -> None:
    write("old/a.yaml", OLD)
    write("new.yaml", OLD)
    done = cli("check", "new.yaml", "--against", "old")
    assert done.code == 2
    assert "cannot be compared: give two files, or two folders" in done.err
