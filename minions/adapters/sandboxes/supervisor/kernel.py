"""Calls of the kernel that the standard library does not offer."""

from __future__ import annotations

import ctypes
import os
import struct

_CAPABILITY_VERSION = 0x20080522


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def syscall(number: int, *arguments: int | ctypes.Array[ctypes.c_char] | None) -> int:
    """A system call by its number.

    Raises:
        OSError: It failed.
    """
    words = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    return _checked(int(_libc().syscall(ctypes.c_long(number), *words)))


def prctl(option: int, first: int, second: int = 0) -> int:
    """`prctl(2)`.

    Raises:
        OSError: It failed.
    """
    words = [ctypes.c_ulong(each) for each in (first, second, 0, 0)]
    return _checked(int(_libc().prctl(ctypes.c_int(option), *words)))


def become_subreaper() -> None:
    """Become the parent of descendants whose own parent ends: none is ever lost."""
    prctl(36, 1)


def die_with_parent(parent: int) -> None:
    """Be killed when the parent ends; it may have ended already.

    Raises:
        OSError: The kernel refuses.
    """
    prctl(1, 9)
    if os.getppid() != parent:
        os._exit(1)


def forbid_more_rights() -> None:
    """Programs that give rights to whoever starts them give none from now on."""
    prctl(38, 1)


def drop_privileges() -> None:
    """Give up every capability, for good: programs with more rights give none either."""
    forbid_more_rights()
    for capability in range(64):
        try:
            prctl(24, capability)
        except OSError:  # not one of this kernel's, or not this user's to drop
            continue
    header = struct.pack("Ii", _CAPABILITY_VERSION, 0)
    nothing = ctypes.create_string_buffer(24)
    _checked(int(_libc().capset(ctypes.create_string_buffer(header, 8), nothing)))
