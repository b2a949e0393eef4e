"""Filters of system calls, as programs of the kernel's packet filter (classic BPF).

What a filter says is in three lists: what Python code needs, what nothing confined may do, and what
Landlock leaves open. Source of the second one: the default profile of container engines.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Iterable, Iterator
from typing import Final

from minions.adapters.sandboxes.supervisor.file_requests import FILE_CALLS
from minions.adapters.sandboxes.supervisor.kernel import syscall
from minions.adapters.sandboxes.supervisor.syscall_numbers import (
    ARCHITECTURES,
    NEWEST,
    NUMBERS,
    system_call,
)

# Instructions: code, jump if true, jump if false, operand.
_LOAD, _IF_EQUAL, _IF_ABOVE, _IF_ANY_BIT, _RETURN = 0x20, 0x15, 0x25, 0x45, 0x06
_KILL_PROCESS, _ERROR, _ALLOW = 0x80000000, 0x00050000, 0x7FFF0000
_ASK_SUPERVISOR = 0x7FC00000
_REFUSE = _ERROR | errno.EPERM
_UNKNOWN = _ERROR | errno.ENOSYS
_UNSUPPORTED = _ERROR | errno.EOPNOTSUPP
_NUMBER_AT, _ARCHITECTURE_AT = 0, 4
_NEW_NAMESPACES = 0x7E020000
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C
# Whether it is a terminal, its size, FIONBIO, close-on-exec.
_HARMLESS_IOCTLS = (0x5401, 0x5413, 0x5421, 0x5450, 0x5451)
_SIGNALLING_FCNTLS = (8, 10, 15, 1026)  # owner, signal, owner, changes of a folder
_SPECIAL_BITS = 0o7000
"""Set-user-id, set-group-id and sticky: who has the file run runs it as its owner."""
_MAKES_FILE = 0o20000100
"""`O_CREAT`, `O_TMPFILE`: only then the mode counts."""
_CHANGES_FILE = 0o20001103
"""And write, read and write, truncate."""
_IMMUTABLE_OR_WITHOUT_CASE = (0x40086602, 0x401C5820, 0x40086685)
"""Requests for attributes of files, such as a folder whose names are found whatever their case."""
_AF_UNIX, _AF_INET, _AF_INET6, _SOCK_STREAM = 1, 2, 10, 1

_OF_CODE: Final = tuple(
    """
    read write readv writev close fstat newfstatat stat lstat statx lseek pread64 mmap mprotect
    munmap mremap madvise brk rt_sigaction rt_sigprocmask rt_sigreturn sigaltstack openat open
    readlink readlinkat access faccessat faccessat2 getcwd getdents64 getdents dup dup2
    dup3 getpid getppid gettid getuid geteuid getgid getegid uname sysinfo getrandom
    clock_gettime clock_getres clock_nanosleep nanosleep gettimeofday time times getrusage
    getrlimit futex get_robust_list set_robust_list rseq sched_yield arch_prctl exit exit_group
    restart_syscall poll ppoll select pselect6 membarrier
    """.split()  # noqa: SIM905  # a list of 80 quoted words is not readable
)
_OF_NOBODY: Final = tuple(
    """
    mount umount2 pivot_root chroot setns unshare mount_setattr move_mount open_tree fsopen
    fsconfig fsmount fspick bpf perf_event_open userfaultfd io_uring_setup io_uring_enter
    io_uring_register keyctl add_key request_key ptrace process_vm_readv process_vm_writev kcmp
    process_madvise pidfd_getfd memfd_create memfd_secret shmget shmat shmctl shmdt msgget
    msgsnd msgrcv msgctl semget semop semctl semtimedop mq_open mq_unlink kexec_load
    kexec_file_load init_module finit_module delete_module reboot swapon swapoff acct quotactl
    quotactl_fd syslog settimeofday clock_settime clock_adjtime adjtimex sethostname
    setdomainname iopl ioperm vhangup open_by_handle_at name_to_handle_at fanotify_init
    personality move_pages migrate_pages mbind set_mempolicy get_mempolicy uselib ustat sysfs
    modify_ldt lookup_dcookie
    """.split()  # noqa: SIM905  # a list of 80 quoted words is not readable
)
_OF_ATTRIBUTES: Final = tuple(
    "setxattr lsetxattr fsetxattr removexattr lremovexattr fremovexattr".split()  # noqa: SIM905  # as above
)
"""Attributes give rights, too: to run with capabilities, or to others to write."""
_LEFT_BY_LANDLOCK: Final = tuple(
    """
    chmod fchmod fchmodat chown lchown fchown fchownat utime utimes utimensat futimesat
    inotify_init inotify_init1 inotify_add_watch sched_setscheduler sched_setparam
    sched_setattr setpriority ioprio_set
    """.split()  # noqa: SIM905  # a list of 80 quoted words is not readable
)
_OF_SOCKETS: Final = ("connect", "bind", "listen", "accept", "accept4")


def has_filter() -> bool:
    """Whether there are filters for this machine."""
    return platform.machine() in ARCHITECTURES


def bpf_program(kind: str) -> bytes:
    """The filter as the kernel takes it: eight bytes an instruction.

    Args:
        kind: `code`: only what Python itself needs. `commands`: all but what could leave a sandbox
            that Landlock makes; `commands-with-network`: and sockets of the internet. `mounts`,
            `mounts-with-network`: the same for a sandbox that mounts and namespaces make.
    Raises:
        OSError: There is no filter for this machine.
    """
    column, begin = _begin()
    writer = _Filter(column)
    rest = writer.only_code() if kind == "code" else writer.commands(kind)
    return _packed([*begin, (_IF_ABOVE, 0, 1, NEWEST), (_RETURN, 0, 0, _UNKNOWN), *rest])


def _begin() -> tuple[int, list[_Step]]:
    """The column of `NUMBERS`, and the steps that load a call's number."""
    machine = platform.machine()
    if machine not in ARCHITECTURES:
        raise OSError(errno.ENOSYS, f"no system call filter is written for {machine}")
    column, constant = ARCHITECTURES[machine]
    return column, [
        (_LOAD, 0, 0, _ARCHITECTURE_AT),
        (_IF_EQUAL, 1, 0, constant),
        (_RETURN, 0, 0, _KILL_PROCESS),
        (_LOAD, 0, 0, _NUMBER_AT),
    ]


def _packed(steps: Iterable[_Step]) -> bytes:
    return b"".join(struct.pack("=HBBI", *step) for step in steps)


_Step = tuple[int, int, int, int]


class _Filter:
    """Writes instructions with the numbers of one architecture."""

    def __init__(self, column: int) -> None:
        self._column = column

    def only_code(self) -> Iterator[_Step]:
        yield from self._each(_OF_CODE, _ALLOW)
        yield from self._if_argument("ioctl", 1, _HARMLESS_IOCTLS, _ALLOW, _REFUSE)
        yield from self._if_argument("fcntl", 1, _SIGNALLING_FCNTLS, _REFUSE, _ALLOW)
        yield from self._if_argument("prlimit64", 0, (0,), _ALLOW, _REFUSE)
        yield from self._if_argument("sched_getaffinity", 0, (0,), _ALLOW, _REFUSE)
        yield (_RETURN, 0, 0, _REFUSE)

    def commands(self, kind: str) -> Iterator[_Step]:
        yield from self._each(_OF_NOBODY, _REFUSE)
        # Their flags are out of reach of a filter: clone and openat are used instead.
        yield from self._each(("clone3", "openat2"), _UNKNOWN)
        yield from self._if_argument_has("clone", 0, _NEW_NAMESPACES)
        refused = (_TIOCSTI, _TIOCLINUX, *_IMMUTABLE_OR_WITHOUT_CASE)
        yield from self._if_argument("ioctl", 1, refused, _REFUSE, _ALLOW)
        yield from self._each(_OF_ATTRIBUTES, _UNSUPPORTED)
        if not kind.startswith("mounts"):
            yield from self._each(_LEFT_BY_LANDLOCK, _REFUSE)
        yield from self._no_special_bits()
        if kind == "mounts":
            yield from self._if_argument("socket", 0, (_AF_UNIX, _AF_INET, _AF_INET6), _ALLOW)
        elif kind == "mounts-with-network":  # abstract names belong to the network that is shared
            yield from self._if_argument("socket", 0, (_AF_INET, _AF_INET6), _ALLOW)
        else:
            yield from self._beside_landlock(kind)
        yield (_RETURN, 0, 0, _ALLOW)

    def _beside_landlock(self, kind: str) -> Iterator[_Step]:
        yield from self._if_argument("fcntl", 1, _SIGNALLING_FCNTLS, _REFUSE, _ALLOW)
        for name in ("prlimit64", "sched_setaffinity"):
            yield from self._if_argument(name, 0, (0,), _ALLOW)
        # A pair of datagram sockets could send to any socket file.
        yield from self._if_argument("socketpair", 1, (_SOCK_STREAM,), _ALLOW, mask=0xF)
        if kind == "commands-with-network":
            yield from self._if_argument("socket", 0, (_AF_INET, _AF_INET6), _ALLOW)
        else:
            yield from self._each(("socket", *_OF_SOCKETS), _REFUSE)

    def requests(self, *, of_files: bool) -> Iterator[_Step]:
        yield from self._each(("clone", "clone3", "fork", "vfork"), _ASK_SUPERVISOR)
        if of_files:
            yield from self._each(FILE_CALLS, _ASK_SUPERVISOR)
            for name, flags in (("open", 1), ("openat", 2)):
                yield from self._if_argument_has(name, flags, _CHANGES_FILE, _ASK_SUPERVISOR)
        yield (_RETURN, 0, 0, _ALLOW)

    def _no_special_bits(self) -> Iterator[_Step]:
        """No call may make or leave a file that runs as its owner. `fchmodat2` is newer than what
        the filters know.
        """
        for name, mode in (
            *(("chmod", 1), ("fchmod", 1), ("fchmodat", 2), ("creat", 1)),
            *(("mkdir", 1), ("mkdirat", 2), ("mknod", 1), ("mknodat", 2)),
        ):
            yield from self._if_argument_has(name, mode, _SPECIAL_BITS)
        for name, flags in (("open", 1), ("openat", 2)):
            number = NUMBERS[name][self._column]
            if number is None:
                continue
            yield (_IF_EQUAL, 0, 6, number)
            yield (_LOAD, 0, 0, 16 + 8 * flags)
            yield (_IF_ANY_BIT, 0, 3, _MAKES_FILE)
            yield (_LOAD, 0, 0, 16 + 8 * (flags + 1))
            yield (_IF_ANY_BIT, 0, 1, _SPECIAL_BITS)
            yield (_RETURN, 0, 0, _REFUSE)
            yield (_RETURN, 0, 0, _ALLOW)

    def _each(self, names: Iterable[str], verdict: int) -> Iterator[_Step]:
        for name in names:
            number = NUMBERS[name][self._column]
            if number is not None:
                yield (_IF_EQUAL, 0, 1, number)
                yield (_RETURN, 0, 0, verdict)

    def _if_argument(
        self,
        name: str,
        index: int,
        values: tuple[int, ...],
        verdict: int,
        otherwise: int = _REFUSE,
        *,
        mask: int | None = None,
    ) -> Iterator[_Step]:
        """Decide about a call by the lower half of an argument."""
        number = NUMBERS[name][self._column]
        if number is None:
            return
        masked = [(0x54, 0, 0, mask)] if mask is not None else []
        tests = [(_IF_EQUAL, len(values) - at, 0, value) for at, value in enumerate(values)]
        body = [
            (_LOAD, 0, 0, 16 + 8 * index),
            *masked,
            *tests,
            (_RETURN, 0, 0, otherwise),
            (_RETURN, 0, 0, verdict),
        ]
        yield (_IF_EQUAL, 0, len(body), number)
        yield from body

    def _if_argument_has(
        self, name: str, index: int, bits: int, verdict: int = _REFUSE
    ) -> Iterator[_Step]:
        """Decide about a call by bits of an argument: one of them is enough."""
        number = NUMBERS[name][self._column]
        if number is None:
            return
        yield (_IF_EQUAL, 0, 4, number)
        yield (_LOAD, 0, 0, 16 + 8 * index)
        yield (_IF_ANY_BIT, 0, 1, bits)
        yield (_RETURN, 0, 0, verdict)
        yield (_RETURN, 0, 0, _ALLOW)


def install_filter(kind: str) -> None:
    """Install a filter in this process, for good; `no_new_privs` has to be set.

    Raises:
        OSError: The kernel refuses it.
    """
    _install(bpf_program(kind), 0)


def request_changes(*, of_files: bool) -> int:
    """From now on, whoever makes a process or thread here waits for the supervisor's answer.

    Args:
        of_files: Whoever changes a file by its path, or opens one for it, too.
    Returns:
        The descriptor on which the supervisor is asked.
    Raises:
        OSError: The kernel refuses it; Linux before 5.5.
    """
    column, begin = _begin()
    program = _packed([*begin, *_Filter(column).requests(of_files=of_files)])
    try:
        return _install(program, _NEW_LISTENER | _WAIT_KILLABLE)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return _install(program, _NEW_LISTENER)  # Linux before 5.19


_SET_FILTER, _NEW_LISTENER = 1, 8
_WAIT_KILLABLE = 32
"""A signal such as SIGCHLD does not interrupt who waits for consent: a shell cannot fork then."""


def _install(program: bytes, flags: int) -> int:
    text = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(text))
    number = system_call("seccomp")
    assert number is not None  # noqa: S101  # every architecture has it
    return syscall(number, _SET_FILTER, flags, ctypes.create_string_buffer(header, len(header)))


def filter_file(kind: str) -> int:
    """The filter in an open file, as bubblewrap reads it; inherited by the next program."""
    read, write = os.pipe()
    os.write(write, bpf_program(kind))
    os.close(write)
    os.set_inheritable(read, True)
    return read
