"""Requests for new processes: the supervisor consents to each, or does not."""

from __future__ import annotations

import errno
import fcntl
import struct
from typing import Final

__all__ = ["consent"]

_RECEIVE: Final = 0xC0502100
_SEND: Final = 0xC0182101
_CONTINUE: Final = 1
_QUESTION_BYTES: Final = 80


def consent(listener: int) -> bool:
    """Let the process that asks continue; False: nobody asks any more.

    Source: `seccomp_unotify(2)`. No argument of the call is looked at, so it may change.
    """
    question = bytearray(_QUESTION_BYTES)
    try:
        fcntl.ioctl(listener, _RECEIVE, question, True)
        (asked,) = struct.unpack_from("Q", question)
        fcntl.ioctl(listener, _SEND, bytearray(struct.pack("QqiI", asked, 0, 0, _CONTINUE)), True)
    except OSError as error:
        # The one who asked may have been killed meanwhile.
        return error.errno in (errno.ENOENT, errno.EINTR, errno.EAGAIN, errno.EINPROGRESS)
    return True
