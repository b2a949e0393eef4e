"""Requests for new processes: the supervisor consents to each, or does not."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
from typing import Final

__all__ = ["answer_at_once", "consent", "next_request"]

_RECEIVE: Final = 0xC0502100
_SEND: Final = 0xC0182101
_CONTINUE: Final = 1
_QUESTION_BYTES: Final = 80
_ASK_AGAIN: Final = (errno.ENOENT, errno.EINTR, errno.EAGAIN)


_SET_FLAGS: Final = 0x40082104
_WAKE_AT_ONCE: Final = 1


def answer_at_once(listener: int) -> None:
    """Let this process run as soon as it is asked, where Linux can do that (6.6).

    Until the question is read, a signal may interrupt whoever asks, and `fork` fails there.
    """
    with contextlib.suppress(OSError):
        fcntl.ioctl(listener, _SET_FLAGS, _WAKE_AT_ONCE)
    with contextlib.suppress(OSError):  # only root may; it sleeps but for microseconds a request
        policy = os.SCHED_FIFO | os.SCHED_RESET_ON_FORK
        os.sched_setscheduler(0, policy, os.sched_param(1))


def next_request(listener: int) -> int | None:
    """Wait until a process asks, and return the number of its request; None: nobody asks any more.

    Whoever waits here is woken by the kernel, and from then on no signal interrupts the process
    that asks: a thread that waits here is why a shell can fork while its children end.

    Source: `seccomp_unotify(2)`. No argument of the call is looked at, so it may change.
    """
    while True:
        question = bytearray(_QUESTION_BYTES)
        try:
            fcntl.ioctl(listener, _RECEIVE, question, True)
        except OSError as error:
            if error.errno in _ASK_AGAIN:
                continue  # the one who asked was killed meanwhile
            return None
        return int(struct.unpack_from("Q", question)[0])


def consent(listener: int, request: int) -> None:
    """Let the process that asks continue, if it is still there."""
    answer = bytearray(struct.pack("QqiI", request, 0, 0, _CONTINUE))
    with contextlib.suppress(OSError):
        fcntl.ioctl(listener, _SEND, answer, True)
