"""Requests of the job to its supervisor: a system call waits until it is answered.

For new processes the answer is consent, or none. For changes of files the supervisor makes the
change itself, see `file_requests`.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import struct
from typing import Final, NamedTuple

_RECEIVE: Final = 0xC0502100
_SEND: Final = 0xC0182101
_IS_VALID: Final = 0x40082102
_ADD_FILE: Final = 0x40182103
_CONTINUE: Final = 1
_AND_RESPOND: Final = 2
_QUESTION_BYTES: Final = 80
_ASK_AGAIN: Final = (errno.ENOENT, errno.EINTR, errno.EAGAIN)


_SET_FLAGS: Final = 0x40082104
_WAKE_AT_ONCE: Final = 1


class Request(NamedTuple):
    """A system call that waits."""

    id: int
    thread: int
    """The thread that called."""
    number: int
    arguments: tuple[int, ...]


def answer_at_once(listener: int) -> None:
    """Let this process run as soon as it is asked, where Linux can do that (6.6).

    Until the question is read, a signal may interrupt whoever asks, and `fork` fails there.
    """
    with contextlib.suppress(OSError):
        fcntl.ioctl(listener, _SET_FLAGS, _WAKE_AT_ONCE)
    with contextlib.suppress(OSError):  # only root may; it sleeps but for microseconds a request
        policy = os.SCHED_FIFO | os.SCHED_RESET_ON_FORK
        os.sched_setscheduler(0, policy, os.sched_param(1))


def next_request(listener: int) -> Request | None:
    """Wait until a process asks, and return its request; None: nobody asks any more.

    Whoever waits here is woken by the kernel, and from then on no signal interrupts the process
    that asks: a thread that waits here is why a shell can fork while its children end.

    Source: `seccomp_unotify(2)`. Where the answer is consent, no argument of the call may count:
    the kernel reads them again.
    """
    while True:
        question = bytearray(_QUESTION_BYTES)
        try:
            fcntl.ioctl(listener, _RECEIVE, question, True)
        except OSError as error:
            if error.errno in _ASK_AGAIN and not _has_ended(listener):
                continue  # the one who asked was killed meanwhile
            return None
        number, thread, _, call, _, _, *arguments = struct.unpack("QIIiIQ6Q", question)
        return Request(number, thread, call, tuple(arguments))


def _has_ended(listener: int) -> bool:
    """Whether no process is left that could ask: Linux (6.11) fails at once then, each time."""
    ends = select.poll()
    ends.register(listener, select.POLLIN)
    return any(event & select.POLLHUP for _, event in ends.poll(0))


def is_waiting(listener: int, request: Request) -> bool:
    """Whether the thread still waits: if not, its number may be another's by now."""
    try:
        fcntl.ioctl(listener, _IS_VALID, struct.pack("Q", request.id))
    except OSError:
        return False
    return True


def consent(listener: int, request: Request) -> None:
    """Let the kernel carry the call out, if whoever asks is still there."""
    _send(listener, request, 0, 0, _CONTINUE)


def respond(listener: int, request: Request, error: int = 0) -> None:
    """Tell that the call is done, or failed with that error."""
    _send(listener, request, 0, -error, 0)


def _send(listener: int, request: Request, value: int, error: int, flags: int) -> None:
    answer = bytearray(struct.pack("QqiI", request.id, value, error, flags))
    with contextlib.suppress(OSError):
        fcntl.ioctl(listener, _SEND, answer, True)


def give_file(listener: int, request: Request, file: int, *, closes_on_exec: bool) -> None:
    """Answer with an open file, which becomes one of the process that asks."""
    flags = os.O_CLOEXEC if closes_on_exec else 0
    words = struct.pack("QIIII", request.id, _AND_RESPOND, file, 0, flags)
    try:
        fcntl.ioctl(listener, _ADD_FILE, words)
    except OSError as error:  # such as too many open files
        respond(listener, request, error.errno or errno.EMFILE)
