"""The part of the tutorial that serves: its commands, said in a shell to a server of its own."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from docs.markdown_blocks import blocks_of
from forked_commands import PROGRAM, ForkedCommand
from patience import HANG_S

TUTORIAL: Final = Path(__file__).parents[2] / "docs" / "tutorial"
SERVING: Final = TUTORIAL / "4-page-and-schedule.md"
PORT: Final = "8642"
COMMANDS: Final = [block.text for block in blocks_of(SERVING) if block.language == "bash"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The project as it is when the part begins."""
    for page in (page for page in sorted(TUTORIAL.glob("[0-9]*.md")) if page < SERVING):
        for block in blocks_of(page):
            if block.file is not None and block.is_right:
                (tmp_path / block.file).parent.mkdir(exist_ok=True)
                (tmp_path / block.file).write_text(block.text, "utf-8")
    return tmp_path


@pytest.fixture
def port(folder: Path) -> Iterator[str]:
    """Where the server of the page listens, on a free port instead of its own."""
    words = shlex.split(COMMANDS[0])
    assert words[:2] == ["minions", "serve"]
    command = [*PROGRAM, *("0" if word == PORT else word for word in words[1:])]
    with ForkedCommand(
        command,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "MINIONS_TRUST": "1"},
    ) as server:
        try:
            assert server.stdout is not None
            assert server.stderr is not None
            line = server.stdout.readline()
            assert line.startswith("minions serves http://127.0.0.1:"), line + server.stderr.read()
            yield line.split()[2].rpartition(":")[2]
        finally:
            server.terminate()
            server.communicate(timeout=HANG_S)


def test_a_run_is_started_and_listed_by_the_commands_of_the_page(folder: Path, port: str) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed, which the page uses")

    def say(command: str) -> Any:  # JSON
        there = command.replace(f":{PORT}/", f":{port}/")
        done = subprocess.run(
            there, shell=True, cwd=folder, capture_output=True, check=True, timeout=HANG_S
        )
        return json.loads(done.stdout)

    start, look = COMMANDS[1:]
    run_id = say(start)["run_id"]
    while (runs := say(look)["runs"])[0]["status"] == "running":
        time.sleep(0.05)
    (run,) = runs
    assert (run["run_id"], run["status"]) == (run_id, "completed")
