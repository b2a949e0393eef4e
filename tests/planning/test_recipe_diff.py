"""The change of a recipe as a diff that programs apply."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from minions.planning.step_edit import recipe_diff

BEFORE: Final = """id: r
steps:
  - id: a
    goal: Sort
    model: lab/large  # dear
  - id: b
    goal: Say
    model: lab/large"""
CHANGED: Final = BEFORE.replace("lab/large", "lab/small")

PATCH: Final = ("patch", "-p0", "--batch")
GIT: Final = ("git", "apply", "-p0", "-")
PROGRAMS: Final = [
    pytest.param(
        words, id=words[0], marks=pytest.mark.skipif(shutil.which(words[0]) is None, reason="none")
    )
    for words in (PATCH, GIT)
]


def applied(here: Path, words: tuple[str, ...], name: str, before: str, after: str) -> str:
    """The file's text after a program has applied the diff to it."""
    file = here / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(before.encode())
    diff = f"{recipe_diff(before, after, name)}\n".encode()
    done = subprocess.run(words, cwd=here, input=diff, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr).decode() + diff.decode()
    assert b"ignored" not in done.stdout + done.stderr
    return file.read_bytes().decode()


@pytest.mark.parametrize("words", PROGRAMS)
@pytest.mark.parametrize("name", ["r.yaml", "sub/t r.yaml", "ü.yaml", 'a "b" \\ c.yaml'])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(BEFORE + "\n", CHANGED + "\n", id="newline at the end"),
        pytest.param(BEFORE, CHANGED, id="none at the end"),
        pytest.param(BEFORE, CHANGED + "\n", id="one is added"),
        pytest.param(BEFORE + "\n", CHANGED, id="one is removed"),
        pytest.param(
            BEFORE, BEFORE.replace("Sort", "Put").replace("id: b", "id: c"), id="unchanged end"
        ),
        pytest.param(
            BEFORE.replace("\n", "\r\n"), CHANGED.replace("\n", "\r\n"), id="CRLF, none at the end"
        ),
        pytest.param(
            f"{BEFORE}\n".replace("\n", "\r\n"), f"{CHANGED}\n".replace("\n", "\r\n"), id="CRLF"
        ),
        pytest.param(
            BEFORE.replace("Sort", "a\x0cb\u2028c\x85"),
            CHANGED.replace("Sort", "a\x0cb\u2028c\x85"),
            id="characters that end no line",
        ),
    ],
)
def test_programs_apply_the_diff(
    tmp_path: Path, words: tuple[str, ...], name: str, before: str, after: str
) -> None:
    """A-142."""
    assert applied(tmp_path, words, name, before, after) == after


LINES: Final = st.lists(
    st.sampled_from(["a", "b", "", "c d", "\\", "-", "+x", "--- a", "x\r"]), max_size=8
)


@pytest.mark.skipif(shutil.which("patch") is None, reason="there is no patch")
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(before=LINES, after=LINES, ends=st.tuples(st.booleans(), st.booleans()))
def test_any_change_is_applied(
    tmp_path: Path, before: list[str], after: list[str], ends: tuple[bool, bool]
) -> None:
    old, new = (
        "\n".join(["id: r", *lines, "z"]) + "\n" * is_ended
        for lines, is_ended in zip((before, after), ends, strict=True)
    )
    if old != new:
        assert applied(tmp_path, PATCH, "r.yaml", old, new) == new


def test_without_a_change_there_is_no_diff() -> None:
    assert recipe_diff(BEFORE, BEFORE, "r.yaml") == ""


def test_a_name_with_a_blank_ends_with_a_tab_and_one_with_a_newline_is_quoted() -> None:
    assert recipe_diff("a\n", "b\n", "t r.yaml").splitlines()[0] == "--- t r.yaml\t"
    assert recipe_diff("a\n", "b\n", "t\nr.yaml").splitlines()[0] == '--- "t\\012r.yaml"'
