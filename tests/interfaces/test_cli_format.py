"""`minions format`: files in, files in their usual form out."""

from __future__ import annotations

from pathlib import Path

from command_line import Cli

WIDE = "steps:\n-   id: one  # why\n    goal: x\n"
USUAL = "steps:\n  - id: one  # why\n    goal: x\n"


def test_a_recipe_is_indented_and_named(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "one.yaml"
    path.write_text(WIDE, "utf-8")
    outcome = cli("format", str(path))
    assert (outcome.code, outcome.out) == (0, f"{path}: formatted\n")
    assert path.read_text("utf-8") == USUAL
    assert cli("format", str(path)).out == ""


def test_check_writes_nothing_and_fails(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "one.yaml"
    path.write_text(WIDE, "utf-8")
    outcome = cli("format", "--check", str(path))
    assert (outcome.code, outcome.out) == (1, f"{path}: would change\n")
    assert path.read_text("utf-8") == WIDE
    path.write_text(USUAL, "utf-8")
    assert cli("format", "--check", str(path)).code == 0


def test_files_that_cannot_be_read_are_left_and_told(cli: Cli, tmp_path: Path) -> None:
    broken, good = tmp_path / "broken.yaml", tmp_path / "good.yaml"
    long = tmp_path / "long.yaml"
    broken.write_text("steps: [\n", "utf-8")
    good.write_text(WIDE, "utf-8")
    long.write_bytes(("a: '" + "é" * 600_000 + "'\n").encode())
    outcome = cli("format", "--json", str(broken), str(good), str(long), str(tmp_path / "no.yaml"))
    assert outcome.code == 2
    assert [each["state"] for each in outcome.json["recipes"]] == [  # type: ignore[index,union-attr,call-overload]
        "failed",
        "changed",
        "failed",
        "failed",
    ]
    assert "not YAML" in outcome.err
    assert broken.read_text("utf-8") == "steps: [\n"
    assert long.stat().st_size == 1_200_006
    assert good.read_text("utf-8") == USUAL
