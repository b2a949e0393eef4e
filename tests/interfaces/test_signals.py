"""Signals that come at awkward moments of a run, each in a process of its own."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from command_line import Write
from patience import HANG_S

RUN = """
import asyncio, io, os, signal, sys, threading
from minions.interfaces.cli.run_follower import Signals

class Run:
    def __init__(self):
        self.is_cancelled = asyncio.Event()

    def cancel(self):
        self.is_cancelled.set()

async def main():
    with Signals() as signals:
        run = Run()
        signals.stop(run, last_words="")
        begin()
        await run.is_cancelled.wait()
    print("cancelled", flush=True)
"""

SLEEPS = """
import selectors

class Selector(selectors.DefaultSelector):
    def select(self, timeout=None):
        waits.set()
        return super().select(timeout)

waits = threading.Event()

def send():
    waits.wait()
    # To this thread: the main one stays in its wait for events, as it does when a signal comes
    # just before that wait.
    signal.pthread_kill(threading.get_ident(), int(sys.argv[1]))
    threading.Event().wait()

def begin():
    waits.clear()
    threading.Thread(target=send, daemon=True).start()

with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(Selector())) as runner:
    runner.run(main())
"""

WRITES = """
class Stream(io.RawIOBase):
    def writable(self):
        return True

    def write(self, data):
        if b"progress" in bytes(data):
            os.kill(os.getpid(), signal.SIGINT)
        return os.write(2, data)

def begin():
    print("progress", file=sys.stderr)

sys.stderr = io.TextIOWrapper(io.BufferedWriter(Stream()), line_buffering=True)
asyncio.run(main())
"""


def ran(here: Path, *arguments: str) -> tuple[str, str, int]:
    """What the process said, and its exit code."""
    with subprocess.Popen(
        [sys.executable, "run.py", *arguments],
        cwd=here,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            out, err = process.communicate(timeout=HANG_S)  # with the fault it would wait for ever
        finally:
            process.kill()
    return out, err, process.returncode


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_a_signal_wakes_a_run_that_waits_for_something_else(
    here: Path, write: Write, number: signal.Signals
) -> None:
    write("run.py", RUN + SLEEPS)
    said = f"\n{number.name}: stopping; what was done is kept.\n"
    assert ran(here, str(number.value)) == ("cancelled\n", said, 0)


def test_a_signal_in_the_middle_of_a_message_stops_the_run_all_the_same(
    here: Path, write: Write
) -> None:
    """The message is being written, so nothing more can be said to the same stream."""
    write("run.py", RUN + WRITES)
    assert ran(here) == ("cancelled\n", "progress\n", 0)
