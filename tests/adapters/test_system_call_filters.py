"""The filters of system calls, executed as the kernel would, on each architecture."""

from __future__ import annotations

import errno
import fcntl
import os
import platform
import struct

import pytest

from minions.adapters.sandboxes.supervisor import seccomp
from minions.adapters.sandboxes.supervisor.file_requests import next_request
from minions.adapters.sandboxes.supervisor.seccomp import bpf_program, has_filter
from minions.adapters.sandboxes.supervisor.syscall_numbers import NEWEST, NUMBERS

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
COLUMN = {"x86_64": 0, "aarch64": 1}
VERDICTS = {
    0x7FFF0000: "allow",
    0x00050001: "refuse",
    0x00050026: "unknown",
    0x0005005F: "unsupported",
    0x7FC00000: "ask",
    0x80000000: "kill",
}
COMMANDS = ("commands", "commands-with-network", "mounts", "mounts-with-network")
KINDS = ("code", "commands", "commands-with-network", "mounts", "mounts-with-network")


def verdict(program: bytes, number: int, *arguments: int, architecture: int) -> str:
    """What the program answers to a call."""
    words = [number, architecture, 0, 0]
    for argument in (*arguments, *[0] * (6 - len(arguments))):
        words += [argument & 0xFFFFFFFF, argument >> 32]
    steps = list(struct.iter_unpack("=HBBI", program))
    at, held = 0, 0
    while True:
        code, if_true, if_false, operand = steps[at]
        at += 1
        if code == 0x20:
            assert operand % 4 == 0
            held = words[operand // 4]
        elif code == 0x54:
            held &= operand
        elif code == 0x06:
            return VERDICTS[operand]
        else:
            holds = {0x15: held == operand, 0x25: held > operand, 0x45: held & operand != 0}[code]
            at += if_true if holds else if_false


class Filter:
    """A filter of one kind on one architecture."""

    def __init__(self, machine: str, kind: str) -> None:
        self._machine = machine
        self._program = bpf_program(kind)

    def __call__(self, name: str, *arguments: int) -> str:
        number = NUMBERS[name][COLUMN[self._machine]]
        assert number is not None
        return self.of(number, *arguments)

    def of(self, number: int, *arguments: int) -> str:
        architecture = ARCHITECTURES[self._machine]
        return verdict(self._program, number, *arguments, architecture=architecture)


@pytest.fixture(params=ARCHITECTURES)
def machine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    name: str = request.param
    monkeypatch.setattr(platform, "machine", lambda: name)
    return name


@pytest.mark.parametrize("kind", KINDS)
def test_calls_of_another_architecture_or_a_newer_kernel_are_not_served(
    machine: str, kind: str
) -> None:
    program = bpf_program(kind)
    assert verdict(program, 0, architecture=0x40000003) == "kill"
    found = Filter(machine, kind)
    assert found.of(NEWEST + 1) == found.of(0x40000000) == "unknown"


@pytest.mark.parametrize("kind", KINDS)
def test_no_kind_lets_a_job_change_the_kernel_or_other_processes(machine: str, kind: str) -> None:
    found = Filter(machine, kind)
    for name in (
        "mount",
        "unshare",
        "setns",
        "bpf",
        "ptrace",
        "io_uring_setup",
        "keyctl",
        "reboot",
    ):
        assert found(name) == "refuse", name
    for name in ("memfd_create", "shmget", "mq_open", "process_vm_readv", "open_by_handle_at"):
        assert found(name) == "refuse", name
    assert found("ioctl", 0, 0x5412) == "refuse"
    for flag in (0x00020000, 0x10000000, 0x20000000, 0x40000000):
        assert found("clone", flag | 17) == "refuse"


def test_code_makes_no_process_socket_or_signal(machine: str) -> None:
    found = Filter(machine, "code")
    for name in ("clone", "clone3", "socket", "socketpair", "connect", "fchmodat", "utimensat"):
        assert found(name) == "refuse", name
    assert found("fcntl", 1, 8) == found("fcntl", 1, 10) == "refuse"
    assert found("prlimit64", 1) == "refuse"
    for name in ("read", "write", "openat", "mmap", "exit_group"):
        assert found(name) == "allow", name
    assert found("fcntl", 1, 1) == found("prlimit64", 0) == found("ioctl", 1, 0x5401) == "allow"


@pytest.mark.parametrize(
    ("kind", "unix", "inet", "netlink"),
    [
        ("commands", "refuse", "refuse", "refuse"),
        ("commands-with-network", "refuse", "allow", "refuse"),
        ("mounts", "allow", "allow", "refuse"),
        ("mounts-with-network", "refuse", "allow", "refuse"),
    ],
)
def test_sockets_are_those_that_the_sandbox_around_cannot_hold_back(
    machine: str, kind: str, unix: str, inet: str, netlink: str
) -> None:
    found = Filter(machine, kind)
    assert [found("socket", family) for family in (1, 2, 10, 16)] == [unix, inet, inet, netlink]


def test_a_pair_of_sockets_is_a_stream(machine: str) -> None:
    found = Filter(machine, "commands")
    stream, datagram, not_blocking = 1, 2, 0o4000
    assert found("socketpair", 1, stream) == "allow"
    assert found("socketpair", 1, stream | not_blocking) == "allow"
    assert found("socketpair", 1, datagram | not_blocking) == "refuse"


@pytest.mark.parametrize("kind", ["commands", "mounts"])
def test_commands_make_processes_and_threads(machine: str, kind: str) -> None:
    found = Filter(machine, kind)
    assert (found("clone", 17), found("clone3")) == ("allow", "unknown")


CREATE, TEMPORARY, WRITE = 0o100, 0o20200000, 0o1


@pytest.mark.parametrize("kind", COMMANDS)
@pytest.mark.parametrize("bits", [0o4000, 0o2000, 0o1000, 0o7777])
def test_no_call_sets_a_bit_that_makes_a_file_run_as_its_owner(
    machine: str, kind: str, bits: int
) -> None:
    """A-149"""
    found = Filter(machine, kind)
    assert found("fchmod", 3, bits) == found("fchmodat", 3, 0, bits) == "refuse"
    assert found("mkdirat", 3, 0, bits) == found("mknodat", 3, 0, 0o100000 | bits) == "refuse"
    for flags in (CREATE, CREATE | WRITE, TEMPORARY | WRITE):
        assert found("openat", 3, 0, flags, bits) == "refuse"
    assert found("openat", 3, 0, WRITE, bits) == "allow"  # what is there keeps its bits
    assert found("openat2", 3, 0, 0, 24) == "unknown"
    if machine == "x86_64":
        assert found("chmod", 0, bits) == found("mkdir", 0, bits) == "refuse"
        assert found("creat", 0, bits) == found("mknod", 0, bits) == "refuse"
        assert found("open", 0, CREATE, bits) == "refuse"


@pytest.mark.parametrize("kind", COMMANDS)
def test_usual_rights_can_be_given(machine: str, kind: str) -> None:
    found = Filter(machine, kind)
    changed = "allow" if kind.startswith("mounts") else "refuse"
    assert found("fchmod", 3, 0o755) == found("fchmodat", 3, 0, 0o777) == changed
    assert found("openat", 3, 0, CREATE | WRITE, 0o666) == "allow"
    assert found("mkdirat", 3, 0, 0o777) == found("mknodat", 3, 0, 0o100644) == "allow"


@pytest.mark.parametrize("kind", COMMANDS)
def test_attributes_of_files_give_no_rights(machine: str, kind: str) -> None:
    found = Filter(machine, kind)
    for name in ("setxattr", "lsetxattr", "fsetxattr", "removexattr"):
        assert found(name) == "unsupported"
    for request in (0x40086602, 0x401C5820, 0x40086685):  # flags of files, fs-verity
        assert found("ioctl", 3, request) == "refuse"


@pytest.mark.parametrize("kind", COMMANDS)
def test_only_the_argument_that_counts_is_looked_at(machine: str, kind: str) -> None:
    found = Filter(machine, kind)
    assert found("ioctl", 0x5412, 0, 0x5412) == "allow"
    assert found("openat", 0o7000, 0o7000, 0, 0) == "allow"
    assert found("mkdirat", 0o7000, 0o7000, 0) == "allow"


@pytest.mark.parametrize("of_files", [False, True])
def test_the_supervisor_is_asked_for_processes_and_for_files_where_it_makes_them(
    machine: str, of_files: bool
) -> None:
    column = COLUMN[machine]
    program = seccomp._packed(
        [*seccomp._begin()[1], *seccomp._Filter(column).requests(of_files=of_files)]
    )

    def asked(name: str, *arguments: int) -> bool:
        number = NUMBERS[name][column]
        assert number is not None
        said = verdict(program, number, *arguments, architecture=ARCHITECTURES[machine])
        return said == "ask"

    assert asked("clone", 17)
    assert asked("clone3")
    assert not asked("read")
    assert not asked("openat", 3, 0, 0)
    assert not asked("openat", 3, 0, 0o2000000)  # closed on exec
    for name in ("mkdirat", "unlinkat", "renameat2", "linkat", "symlinkat", "mknodat", "truncate"):
        assert asked(name) is of_files, name
    for flags in (1, 2, 0o100, 0o1000, 0o20200002):
        assert asked("openat", 3, 0, flags) is of_files, flags


def test_there_is_no_filter_for_an_unknown_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    assert has_filter() is (platform.machine() in ARCHITECTURES)
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    assert not has_filter()
    with pytest.raises(OSError, match="no system call filter is written for riscv64"):
        bpf_program("code")


@pytest.mark.parametrize("error", [errno.ENOENT, errno.EINTR, errno.EAGAIN])
def test_requests_are_waited_for_only_as_long_as_a_process_could_ask(
    error: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without this a thread asks again and again until the supervisor ends, with a whole core."""
    listener, asking = os.pipe()
    tries = 0

    def ioctl(*_: object) -> int:
        nonlocal tries
        tries += 1
        assert tries <= 3
        if tries == 3:
            os.close(asking)  # as a listener is told: nobody has it on the other side
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(fcntl, "ioctl", ioctl)
    assert next_request(listener) is None
    assert tries == 3
    os.close(listener)
