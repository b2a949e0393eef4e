"""Calls of the kernel that the standard library does not offer, and Landlock."""

from __future__ import annotations

import ctypes
import os
import stat
import struct
import sys
from collections.abc import Iterable
from typing import Final

_CAPABILITY_VERSION = 0x20080522


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _check(result: int) -> int:
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
    return _check(int(_libc().syscall(ctypes.c_long(number), *words)))


def prctl(option: int, first: int, second: int = 0) -> int:
    """`prctl(2)`.

    Raises:
        OSError: It failed.
    """
    words = [ctypes.c_ulong(each) for each in (first, second, 0, 0)]
    return _check(int(_libc().prctl(ctypes.c_int(option), *words)))


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
    _check(int(_libc().capset(ctypes.create_string_buffer(header, 8), nothing)))


# --- landlock ------------------------------------------------------------------------------------


_CREATE, _ADD, _RESTRICT = 444, 445, 446
_EXECUTE, _WRITE, _READ, _READ_FOLDER = 1, 2, 4, 8
_TRUNCATE, _IOCTL = 1 << 14, 1 << 15
_OF_FILES = _EXECUTE | _WRITE | _READ | _TRUNCATE | _IOCTL
_MAKE_DEVICES = 1 << 6 | 1 << 11
_ALL_BY_VERSION: Final = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}
_BIND_AND_CONNECT, _ABSTRACT_SOCKETS, _SIGNALS = 3, 1, 2


def landlock_version() -> int:
    """The version of the kernel's interface; 0: there is none."""
    if sys.platform != "linux":
        return 0
    try:
        return syscall(_CREATE, None, 0, 1)
    except OSError:
        return 0


def restrict_files(
    read: Iterable[str],
    write: Iterable[str],
    devices: Iterable[str],
    *,
    network: bool,
    is_alone: bool = True,
) -> None:
    """Restrict this process and its descendants, for good; `no_new_privs` has to be set.

    From version 4 on, TCP too; from 6 on, signals to others and their abstract sockets too.

    Args:
        read: What may be read and executed; what does not exist is left out.
        write: Folders that may be changed.
        devices: Device files that may be read and written.
        network: Whether TCP stays open.
        is_alone: Whether it may signal no process but its own descendants.
    Raises:
        OSError: The kernel has no Landlock, or refuses.
    """
    version = landlock_version()
    every = _ALL_BY_VERSION[max(known for known in _ALL_BY_VERSION if known <= max(version, 1))]
    net = 0 if network or version < 4 else _BIND_AND_CONNECT
    scoped = _ABSTRACT_SOCKETS | _SIGNALS if version >= 6 and is_alone else 0
    attributes = struct.pack("QQQ", every, net, scoped)
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    rules = syscall(_CREATE, ctypes.create_string_buffer(attributes, size), size, 0)
    for path in read:
        _add(rules, path, (_READ | _READ_FOLDER | _EXECUTE) & every)
    for path in write:
        _add(rules, path, every & ~_MAKE_DEVICES & ~_IOCTL)
    for path in devices:
        _add(rules, path, (_READ | _WRITE) & every)
    syscall(_RESTRICT, rules, 0)
    os.close(rules)


def _add(rules: int, path: str, access: int) -> None:
    try:
        found = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        if not stat.S_ISDIR(os.fstat(found).st_mode):
            access &= _OF_FILES
        rule = struct.pack("=Qi", access, found)
        syscall(_ADD, rules, 1, ctypes.create_string_buffer(rule, len(rule)), 0)
    finally:
        os.close(found)
