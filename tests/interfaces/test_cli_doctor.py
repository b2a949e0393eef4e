"""`minions doctor` and the sandboxes."""

from __future__ import annotations

import json
from pathlib import Path
from unittest.mock import AsyncMock

import pytest

from command_line import Cli, Write
from minions.adapters.sandboxes.workspaces import LandlockSandbox
from minions.adapters.stores.postgres_replica import ReplicaLag, ReplicatedJournal
from minions.contracts.sandbox import SandboxProbe
from minions.data.errors import JournalError


def test_doctor_shows_what_was_tried_in_each_sandbox(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe = SandboxProbe(name="a socket", ok=False, detail="was possible")
    monkeypatch.setattr(LandlockSandbox, "probe", lambda _: (probe,))
    done = cli("doctor")
    assert done.code == 0, "a sandbox that does not hold is not used, so it is no fault"
    found = {line.split(": ", 1)[0]: line for line in done.out.splitlines() if "sandbox" in line}
    assert sorted(name.removeprefix("ok  sandbox ") for name in found) == [
        "bubblewrap",
        "monty",
        "no  sandbox landlock",
        "process",
    ]
    assert found["no  sandbox landlock"] == (
        "no  sandbox landlock: does not hold here, so nothing runs in it: a socket NOT OK (was "
        "possible). `landlock` needs Linux 6.12 or newer with Landlock and seccomp switched on."
    )


def test_colors_are_those_of_where_the_lines_go(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Standard error may be a terminal while the lines go into a file."""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    assert "\x1b[" not in cli("doctor").out


def test_doctor_names_policies_that_are_about_no_tool(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A-169: a misspelled one keeps nothing back."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "minions").mkdir()
    policies = "http__post = 'true'\nhttp__pst = 'true'\nhtp__post = 'true'\nsend = 'true'\n"
    own = tmp_path / "minions" / "minions.toml"
    own.write_text(f"[policies]\n{policies}", "utf-8")
    done = cli("doctor")
    assert done.code == 4
    lines = [line for line in done.out.splitlines() if "policy of" in line]
    assert lines[0] == (
        "bad policy of http__pst: there is no tool of that name. Did you mean 'http__post'?"
    )
    assert lines[1].startswith("bad policy of htp__post: there is no tool of that name.")
    assert "Toolsets are: " in lines[1]
    assert [line.split(": ")[0] for line in lines[2:]] == ["bad policy of send"]
    own.write_text("[policies]\nhttp__post = 'true'\n", "utf-8")
    assert "policy of" not in cli("doctor").out


@pytest.mark.parametrize(
    ("lag", "is_ok", "words"),
    [
        (ReplicaLag(log_bytes=0, newest_s=3.0), True, "reached, has everything"),
        (
            ReplicaLag(log_bytes=12_345, newest_s=61.2),
            False,
            " behind, its newest change is 61 s old: lists come from the database",
        ),
        (
            ReplicaLag(log_bytes=None, newest_s=None),
            True,
            "reached; how far it is behind is not known while the database does not answer",
        ),
        (JournalError("it is away"), False, "it is away"),
    ],
)
def test_a_read_replica_is_reached_or_told_with_how_far_it_is_behind(
    cli: Cli,
    here: Path,
    write: Write,
    monkeypatch: pytest.MonkeyPatch,
    lag: ReplicaLag | JournalError,
    words: str,
    *,
    is_ok: bool,
) -> None:
    """It is not needed: lists come from the database where it is away."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(here / "own"))
    write(
        "own/minions/minions.toml",
        'db = "postgresql://me:pw@/none?host=/nowhere"\n[journal]\n'
        'replica = "postgresql://me:pw@/copy?host=/nowhere"\n',
    )
    answer = AsyncMock(side_effect=lag) if isinstance(lag, Exception) else AsyncMock()
    answer.return_value = lag
    monkeypatch.setattr(ReplicatedJournal, "lag", answer)
    told = cli("doctor", "--json")
    found = next(each for each in json.loads(told.out) if each["name"] == "replica")
    assert (found["ok"], found["is_needed"]) == (is_ok, False)
    assert found["detail"].endswith(words)
    assert "pw" not in told.out
