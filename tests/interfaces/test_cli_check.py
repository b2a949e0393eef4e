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
    """A-166."""
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
    assert (done.code, "no caller breaks (minor)" in done.out) == (0, True), done.out + done.err
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


def changes(cli: Cli, write: Write, old: str, new: str) -> set[tuple[str, str]]:
    """Level and place of every change."""
    write("old.yaml", old)
    write("new.yaml", new)
    done = cli("check", "new.yaml", "--against", "old.yaml", "--json")
    recipes = done.json["recipes"]
    assert isinstance(recipes, list), done.err
    return {(each["level"], each["place"]) for each in recipes[0]["changes"]}


RIGHTS = "id: r\npermissions: {%s}\ntools: [files]\nsteps: [{id: a, goal: Go}]\n"


@pytest.mark.parametrize(
    ("before", "after", "change"),
    [
        ("", "allow_write: true", ("major", "permissions.allow_write")),
        ("allow_write: true", "", ("minor", "permissions.allow_write")),
        ("", "allow_files__write: true", ("major", "permissions.allow_files__write")),
        ("allow_files__write: true", "", ("minor", "permissions.allow_files__write")),
        (
            "allow_write: true",
            "allow_write: true, allow_files__write: true",
            ("minor", "permissions.allow_files__write"),
        ),
        (
            "allow_write: true, allow_files__write: false",
            "allow_write: true, allow_files__write: true",
            ("major", "permissions.allow_files__write"),
        ),
        (
            "allow_write: true",
            "allow_write: true, requires_approval: [files__write]",
            ("major", "permissions.requires_approval"),
        ),
        (
            "allow_write: true, requires_approval: [files__write]",
            "allow_write: true",
            ("minor", "permissions.requires_approval"),
        ),
        (
            "allow_write: true, untrusted: allow",
            "allow_write: true",
            ("major", "permissions.untrusted"),
        ),
        (
            "allow_write: true, untrusted: refuse",
            "allow_write: true, untrusted: allow",
            ("minor", "permissions.untrusted"),
        ),
        (
            "allow_write: true",
            "allow_write: true, requires_approval: [{tool: files__write, when: args.path == 'a'}]",
            ("major", "permissions.requires_approval"),
        ),
        (
            "allow_write: true, private_models: [openai]",
            "allow_write: true",
            ("major", "permissions.private_models"),
        ),
        (
            "allow_write: true, policies: {files__write: args.path == 'a'}",
            "allow_write: true, policies: {files__write: args.path == 'b'}",
            ("major", "permissions.policies"),
        ),
    ],
)
def test_rights_that_callers_have_to_grant_are_part_of_the_contract(
    cli: Cli, write: Write, before: str, after: str, change: tuple[str, str]
) -> None:
    assert changes(cli, write, RIGHTS % before, RIGHTS % after) == {change}
    assert changes(cli, write, RIGHTS % after, RIGHTS % after) == set()


CALLS = "id: r\nlimits: {%s}\nsteps: [{id: a, goal: Go, completion: {mode: signal}}]\n"


def test_a_higher_bound_is_told_and_a_lower_one_is_not(cli: Cli, write: Write) -> None:
    few, many = (CALLS % f"max_model_calls_per_step: {most}" for most in (2, 5))
    assert changes(cli, write, few, many) == {("minor", "bound.model_calls")}
    assert changes(cli, write, many, few) == set()
    done = cli("check", "old.yaml", "--against", "new.yaml")
    assert "bound.model_calls at most 5 model calls, and were 2" in done.out
    endless = "id: r\ninputs: {n: [string]}\nsteps: [{id: a, goal: Go, loop: '{{ inputs.n }}'}]\n"
    counted = endless.replace("'{{ inputs.n }}'", "[1, 2]")
    assert ("minor", "bound.model_calls") in changes(cli, write, counted, endless)
    assert ("minor", "bound.model_calls") not in changes(cli, write, endless, counted)


DEEP = "id: r\nsteps: [{id: a, goal: Go, output: {rows: [{x: string?, y: {z: string?}}]}}]\n"


@pytest.mark.parametrize(
    ("before", "after", "place"),
    [
        ("x: string?, ", "", "output.rows[].x"),
        ("{z: string?}", "{w: string?}", "output.rows[].y.z"),
    ],
)
def test_fields_deep_in_the_output_are_missed(
    cli: Cli, write: Write, before: str, after: str, place: str
) -> None:
    assert ("major", place) in changes(cli, write, DEEP, DEEP.replace(before, after))


def test_an_output_that_is_no_longer_known_breaks_and_one_that_is_known_now_does_not(
    cli: Cli, write: Write
) -> None:
    known = "id: r\nsteps: [{id: a, goal: Go, output: {x: string}}]\noutput: '{{ a }}'\n"
    unknown = known.replace("'{{ a }}'", "'{{ inputs.v }}'").replace(
        "steps", "inputs: {v: null}\nsteps"
    )
    assert ("major", "output") in changes(cli, write, known, unknown)
    assert ("minor", "output") in changes(cli, write, unknown, known)


def test_schemas_that_cannot_be_compared_are_said_to_be_so(cli: Cli, write: Write) -> None:
    old = OLD.replace("topic: string", "topic: {anyOf: [{type: string}, {type: integer}]}")
    new = OLD.replace("topic: string", "topic: {anyOf: [{type: string}]}")
    assert ("major", "inputs.topic") in changes(cli, write, old, new)
    done = cli("check", "new.yaml", "--against", "old.yaml")
    assert "inputs.topic cannot be compared: anyOf changed" in done.out


def test_a_recursive_output_is_compared(cli: Cli, write: Write) -> None:
    tree = (
        "id: r\nsteps:\n- id: a\n  goal: Go\n  output:\n    type: object\n"
        "    $defs: {t: {type: object, properties: {kids: {type: array, items: "
        "{$ref: '#/$defs/t'}}, name: {type: string}}}}\n"
        "    properties: {top: {$ref: '#/$defs/t'}}\n"
    )
    assert changes(cli, write, tree, tree) == set()
    assert changes(cli, write, tree, tree.replace(", name: {type: string}", "")) != set()


def test_long_defaults_are_cut_in_messages(cli: Cli, write: Write) -> None:
    write("old.yaml", OLD.replace("default: 5", f"default: {10**40}"))
    write("new.yaml", OLD.replace("default: 5", f"default: {10**70}"))
    done = cli("check", "new.yaml", "--against", "old.yaml")
    assert f"{'1' + '0' * 59}…, and was {10**40}" in done.out
