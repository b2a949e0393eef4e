"""A folder to work in, and the command line in this process."""

from __future__ import annotations

from pathlib import Path

import pytest

from command_line import Cli, Outcome, Write
from minions.interfaces.cli.main import run_command_line


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that is the current one."""
    folder = tmp_path / "here"
    folder.mkdir()
    (folder / ".git").mkdir()  # the search for minions.toml ends here
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def cli(here: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Run a command in `here`."""

    def run(*arguments: str) -> Outcome:
        capsys.readouterr()
        code = run_command_line(arguments)
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    return run


@pytest.fixture
def write(here: Path) -> Write:
    """Write a text file in `here`."""

    def put(name: str, text: str) -> Path:
        path = here / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
        return path

    return put
