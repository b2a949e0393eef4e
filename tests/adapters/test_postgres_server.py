"""The PostgreSQL server of the tests: nothing of it outlives them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from postgres import reason_without_postgres

TESTS = Path(__file__).parents[1]
CHILD = """
import sys
from postgres import postgres_server

with postgres_server() as server:
    for again in range(2):
        server.kill()
        server.start()
    print(server.folder, server._process.pid, flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("is_killed", [True, False], ids=["killed", "ended"])
def test_the_server_ends_with_the_process_of_the_tests(is_killed: bool) -> None:
    if (reason := reason_without_postgres()) is not None:
        pytest.skip(reason)
    with subprocess.Popen(
        [sys.executable, "-c", CHILD],
        cwd=TESTS,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        folder, pid = process.stdout.readline().split()
        assert states_of(pid) - {"Z"}
        if is_killed:
            process.kill()
        process.communicate()  # the watchdog writes there, too: until it has ended
    assert states_of(pid) <= {"Z"}
    assert not Path(folder).exists()


def states_of(pid: str) -> set[str]:
    """Of the process; none: it is gone. `Z`: nobody has asked yet how it ended."""
    shown = subprocess.run(["ps", "-o", "stat=", "-p", pid], stdout=subprocess.PIPE, check=False)
    return {state[:1] for state in shown.stdout.decode().split()}
