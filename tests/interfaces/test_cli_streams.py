"""Streams that are closed, full, gone or of another encoding change no result."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from command_line import Write

RECIPE = "id: r\nsteps:\n" + "".join(f"  - {{id: s{n}, set: {{n: {n}}}}}\n" for n in range(5))


def shell(here: Path, command: str, *, encoding: str = "utf-8") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            "bash",
            "-o",
            "pipefail",
            "-c",
            command.replace("minions", f"{sys.executable} -m minions"),
        ],
        cwd=here,
        env={**os.environ, "PYTHONIOENCODING": encoding},
        capture_output=True,
        encoding=encoding,
        check=False,
        timeout=60,
    )


def test_a_closed_standard_error_does_not_matter(here: Path, write: Write) -> None:
    write("r.yaml", RECIPE)
    done = shell(here, "minions run r.yaml --no-store --json 2>&-")
    assert done.returncode == 0
    assert json.loads(done.stdout)["status"] == "completed"


def test_a_reader_of_events_that_leaves_does_not_stop_the_run(here: Path, write: Write) -> None:
    write("r.yaml", RECIPE)
    done = shell(here, "minions run r.yaml --db j.sqlite --events | head -1")
    assert done.returncode == 0
    assert json.loads(done.stdout)["type"] == "run_started"
    assert "completed" in shell(here, "minions sessions list --db j.sqlite").stdout


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux only")
def test_a_full_disk_behind_standard_output_is_one_clear_error(here: Path, write: Write) -> None:
    write("r.yaml", RECIPE)
    done = shell(here, "minions run r.yaml --no-store > /dev/full")
    assert done.returncode == 4
    assert "error[no-output]" in done.stderr
    assert "Traceback" not in done.stderr
    assert "bug" not in done.stderr


@pytest.mark.parametrize("flags", ["--json", "--events", ""])
def test_half_an_emoji_of_a_model_is_escaped(here: Path, write: Write, flags: str) -> None:
    write("s.yaml", json.dumps({"answers": [{"json": {"text": "cut"}}]}))
    write(
        "own.py",
        "from minions import ScriptedModel\n"
        "model = ScriptedModel(['half \\ud83d emoji, ü'], name='scripted/half')\n",
    )
    write("r.yaml", "id: r\nsteps: [{id: a, goal: go}]\n")
    command = f"minions run r.yaml -m scripted/half --extensions own.py --db j.sqlite {flags}"
    for encoding in ("utf-8", "latin-1"):
        done = shell(here, command, encoding=encoding)
        assert done.returncode == 0, done.stderr
        assert "half" in done.stdout
        assert "Unicode" not in done.stderr
        if flags:
            json.loads(done.stdout.splitlines()[-1])


def test_what_tools_print_is_kept_out_of_the_result(here: Path, write: Write) -> None:
    write(
        "own.py",
        "from minions import tool\nprint('loading')\n"
        "@tool\ndef noisy() -> int:\n    print('noise')\n    return 1\n",
    )
    write("r.yaml", "id: r\nsteps: [{id: a, tool: noisy}]\n")
    done = shell(here, "minions run r.yaml --extensions own.py --no-store --json")
    assert json.loads(done.stdout)["output"] == 1
    assert "noise" in done.stderr
    assert "loading" in done.stderr


def test_a_folder_that_was_deleted_is_one_clear_error(here: Path) -> None:
    done = shell(here, "mkdir gone && cd gone && rmdir ../gone && minions config")
    assert done.returncode == 4
    assert "Traceback" not in done.stderr
    assert "bug" not in done.stderr


def test_doctor_says_where_no_database_can_be_made(here: Path, write: Write) -> None:
    write("afile", "")
    done = shell(here, "minions doctor --db afile/j.sqlite")
    assert done.returncode == 4
    assert "not a writable folder" in done.stdout
