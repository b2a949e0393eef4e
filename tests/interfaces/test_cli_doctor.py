"""`minions doctor` and the sandboxes."""

from __future__ import annotations

import pytest

from command_line import Cli
from minions.adapters.sandboxes.workspaces import LandlockSandbox
from minions.contracts.sandbox import SandboxProbe


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
