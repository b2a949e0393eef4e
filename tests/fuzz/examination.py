"""One input given to one target, and what is wrong with the outcome."""

from __future__ import annotations

import base64
import signal
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Final

from attrs import frozen

from fuzz.target import Target

__all__ = ["Finding", "examined", "reduced"]

_HANG_CPU_S: Final = 30.0
"""Seconds of the process's CPU time after which an input is given up."""
_SOURCES: Final = f"{Path(__file__).resolve().parents[2] / 'minions'}/"


class HangError(BaseException):
    """An input took all the time that it may; nothing under test may catch this."""


@frozen(kw_only=True)
class Finding:
    """An input that breaks a contract."""

    target: str
    data: bytes
    what: str
    """The class of what was raised, or `slow`."""
    place: str
    """The innermost line of ours: what comes from one line is counted as one finding."""
    details: str
    """The message, and the traceback."""

    @property
    def key(self) -> tuple[str, str]:
        """Equal for findings with the same cause."""
        return self.what, self.place

    def words(self) -> str:
        """All that is needed to see it again."""
        text = base64.b64encode(self.data).decode()
        return (
            f"{self.target}: {self.what} at {self.place} from {len(self.data)} bytes\n"
            f"{self.details}\n"
            f"Replay: PYTHONPATH=.:tests .venv/bin/python -m fuzz {self.target} --input {text}"
        )


def examined(target: Target, data: bytes, *, cpu_s: float | None) -> Finding | None:
    """The finding, if there is one.

    Args:
        cpu_s: The most CPU time of the thread that one input may take; None: any.
    """
    used, finding = _once(target, data)
    if finding is None and cpu_s is not None and used > cpu_s:
        used, finding = _once(target, data)  # what is loaded once counts no more
        if finding is None and used > cpu_s:
            details = f"{used:.1f} s of CPU time, at most {cpu_s:g} s"
            return Finding(target=target.name, data=data, what="slow", place="-", details=details)
    return finding


_MOST_TRIES: Final = 400
_SLOW: Final = ("slow", "HangError")


def reduced(target: Target, finding: Finding, *, cpu_s: float | None) -> Finding:
    """The same finding from an input of fewer bytes: pieces are left out while it stays."""
    length, tries = len(finding.data), 0
    if finding.what in _SLOW:
        return finding
    while length > 1 and tries < _MOST_TRIES:
        length = (length + 1) // 2
        at = 0
        while at < len(finding.data) and tries < _MOST_TRIES:
            tries += 1
            shorter = finding.data[:at] + finding.data[at + length :]
            found = examined(target, shorter, cpu_s=cpu_s)
            if found is not None and found.key == finding.key:
                finding = found
            else:
                at += length
    return finding


def _once(target: Target, data: bytes) -> tuple[float, Finding | None]:
    start = time.thread_time()
    try:
        with _given_up_after(_HANG_CPU_S):
            target.check(data)
    except (Exception, HangError) as error:  # noqa: BLE001  # whatever it raises is the finding
        return time.thread_time() - start, _finding(target, data, error)
    return time.thread_time() - start, None


def _finding(target: Target, data: bytes, error: BaseException) -> Finding:
    frames = traceback.extract_tb(error.__traceback__)
    own = [each for each in frames if each.filename.startswith(_SOURCES)]
    last = (own or list(frames))[-1]
    lines = "".join(traceback.format_exception(error, limit=-12)).splitlines()
    place = f"{last.filename.removeprefix(_SOURCES)}:{last.lineno}"
    return Finding(
        target=target.name,
        data=data,
        what=type(error).__name__,
        place=place,
        details="\n".join(line[:500] for line in lines[-40:]),
    )


@contextmanager
def _given_up_after(seconds: float) -> Iterator[None]:
    """`HangError` after so much CPU time; of a thread that gets no signals, nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def give_up(_number: int, _frame: FrameType | None) -> None:
        raise HangError(f"given up after {seconds:g} s of CPU time")

    before = signal.signal(signal.SIGPROF, give_up)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
