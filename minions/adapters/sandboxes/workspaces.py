"""Sandboxes for commands: `bubblewrap` hides everything else, `landlock` refuses it."""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from attrs import evolve

from minions.adapters.sandboxes.supervised import job_limits, result_of, supervise, supervise_now
from minions.adapters.sandboxes.supervisor.jobs import Confinement, Job, WorkspaceRules
from minions.adapters.sandboxes.supervisor.kernel import landlock_version
from minions.contracts.sandbox import (
    COMMAND_LIMITS,
    NO_SANDBOX,
    Command,
    CommandSandbox,
    SandboxLimits,
    SandboxProbe,
    SandboxResult,
    unavailable,
)
from minions.data.errors import EnvironmentRefusedError

_SYSTEM: Final = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_OF_ETC: Final = (
    "/etc/alternatives",
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/etc/mime.types",
    "/etc/ssl/certs",
)
_OF_NETWORK: Final = (
    "/etc/gai.conf",
    "/etc/hosts",
    "/etc/nsswitch.conf",
    "/etc/protocols",
    "/etc/resolv.conf",
    "/etc/services",
)
_DEVICES: Final = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
_TEMPORARY_SHARE: Final = 4
"""A quarter of the memory limit is for the temporary folder, which lies in memory."""
_MOST_TEMPORARY_BYTES: Final = 256 * 1024 * 1024


def _interpreter() -> tuple[str, ...]:
    """The folders of this Python and its packages, which commands may read."""
    prefixes = (sys.prefix, sys.base_prefix)
    return tuple(
        dict.fromkeys(each for path in prefixes for each in (path, os.path.realpath(path)))
    )


def _links_in(workspace: str) -> list[str]:
    """Links in the workspace that lead to this Python: a command could let them lead elsewhere."""
    return [
        os.path.relpath(path, workspace)
        for path in _interpreter()
        if Path(path).is_symlink() and _lies_in(path, workspace)
    ]


def _environ(command: Command, home: str) -> dict[str, str]:
    programs = [str(Path(sys.prefix, "bin")), "/usr/local/bin", "/usr/bin", "/bin"]
    return {
        "PATH": os.pathsep.join(programs),
        "HOME": home,
        "TMPDIR": home,
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        # A file that is changed twice in a second has the time stamp of its compiled form.
        "PYTHONDONTWRITEBYTECODE": "1",
        "GIT_CONFIG_NOSYSTEM": "1",
        **command.environ,
    }


def _checked_workspace(command: Command) -> str:
    """The workspace without links.

    Raises:
        EnvironmentRefusedError: The system, or everything of a user, lies in it.
    """
    workspace = os.path.realpath(command.workspace)
    inside = [*_SYSTEM, "/etc", "/dev", "/proc", "/sys", "/root", "/home", str(Path.home())]
    held = [each for each in inside if Path(each).is_relative_to(workspace)]
    if held or any(
        _lies_in(workspace, each) for each in (*_SYSTEM, "/etc", "/dev", "/proc", "/sys")
    ):
        raise EnvironmentRefusedError(
            f"'{workspace}' cannot be the workspace of commands: it is a system folder, or the "
            "home of a user. Name a project's folder as `root`.",
            code="bad-workspace",
        )
    return workspace


def _lies_in(path: str, folder: str) -> bool:
    return Path(path).is_relative_to(folder)


class BubblewrapSandbox(CommandSandbox):
    """Namespaces: other files do not exist, and the tree ends with its first process."""

    @property
    def name(self) -> str:
        return "bubblewrap"

    @property
    def help(self) -> str:
        return (
            "`bubblewrap` needs the program `bwrap`, 0.8 or newer (Debian: apt-get install "
            "bubblewrap), and a kernel that lets this user make namespaces."
        )

    def probe(self) -> Sequence[SandboxProbe]:
        return _bubblewrap_probes()

    async def run(self, command: Command, limits: SandboxLimits = COMMAND_LIMITS) -> SandboxResult:
        self.require()
        report = await supervise(_bubblewrap_job(command, limits))
        return result_of(report, limits, self.name, is_code=False)


def _bubblewrap_job(command: Command, limits: SandboxLimits) -> Job:
    workspace = _checked_workspace(command)
    temporary = min(limits.memory_bytes // _TEMPORARY_SHARE, _MOST_TEMPORARY_BYTES)
    argv = [_bubblewrap() or "bwrap", *_namespaces(command)]
    for path in _SYSTEM:
        argv += _shown(path)
    for path in (*_OF_ETC, *(_OF_NETWORK if command.network else ())):
        argv += ["--ro-bind-try", path, path]
    argv += ["--proc", "/proc", "--dev", "/dev", "--remount-ro", "/dev"]
    for place, size in (("/dev/shm", temporary // 4), ("/tmp", temporary - temporary // 4)):  # noqa: S108
        argv += ["--size", str(size), "--tmpfs", place]
    for path in _interpreter():  # after the folders that are new: it may lie in one
        if not _lies_in(path, "/usr"):
            argv += ["--ro-bind", path, path]
    argv += ["--bind", workspace, workspace]
    place_of_mounts = len(argv)
    argv += ["--remount-ro", "/", "--chdir", workspace, "--seccomp"]
    place_of_filter = len(argv)
    argv += ["", *_variables(_environ(command, "/tmp")), "--", *_find_program(command.argv)]  # noqa: S108
    kind = "mounts-with-network" if command.network else "mounts"
    limits = evolve(limits, memory_bytes=limits.memory_bytes - temporary)
    job = _job(command, workspace, argv, limits, mounts_at=place_of_mounts)
    return {**job, "filter": kind, "filter_argument": place_of_filter}


def _bubblewrap() -> str | None:
    return shutil.which("bwrap", path="/usr/bin:/usr/local/bin:/bin")


def _namespaces(command: Command) -> list[str]:
    shared = ["--share-net"] if command.network else []
    # As root, bubblewrap leaves the capabilities unless it is told otherwise.
    rights = ["--die-with-parent", "--new-session", "--cap-drop", "ALL"]
    return ["--unshare-all", *shared, *rights, "--hostname", "sandbox"]


def _shown(path: str) -> list[str]:
    """A folder of the system for reading; where it is a link, the link."""
    if os.path.islink(path):  # noqa: PTH114
        return ["--symlink", os.readlink(path), path]  # noqa: PTH115
    return ["--ro-bind-try", path, path]


def _find_program(argv: Sequence[str]) -> list[str]:
    """Let the shell find the program: it says what is wrong, and ends with code 126 or 127."""
    return ["/bin/sh", "-c", 'exec "$@"', "sh", *argv]


def _variables(environ: Mapping[str, str]) -> Iterator[str]:
    for name, value in environ.items():
        yield from ("--setenv", name, value)


def _job(  # as the two kinds of jobs differ
    command: Command,
    workspace: str,
    argv: list[str],
    limits: SandboxLimits,
    *,
    mounts_at: int | None,
    temporary: Sequence[str] = (),
) -> Job:
    # What Minions itself runs with stays as it is.
    kept = [
        os.path.relpath(path, workspace)
        for path in _interpreter()
        if _lies_in(path, workspace) and not Path(path).is_symlink()
    ]
    return Job(
        code=None,
        argv=argv,
        env={},  # bubblewrap's own first process shows its environment to everyone inside
        folder=workspace,
        limits=job_limits(limits),
        confinement=None,
        filter=None,
        filter_argument=None,
        merged=command.is_merged,
        workspace=WorkspaceRules(
            folder=workspace,
            open_names=list(command.allow_config),
            kept=kept,
            is_git=command.writes_repository,
            temporary=list(temporary),
            mounts_at=mounts_at,
        ),
        protected=[*command.protected, *_links_in(workspace)],
        lock=_lock_of(workspace),
    )


def _lock_of(workspace: str) -> str:
    """The file that stands for the workspace, where no command can reach it.

    Raises:
        EnvironmentRefusedError: Its folder is somebody else's.
    """
    folder = Path(tempfile.gettempdir(), f"minions-locks-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise EnvironmentRefusedError(
            f"'{folder}' is not this user's, and locks of workspaces have to lie there. Remove it.",
            code=NO_SANDBOX,
        )
    return str(folder / hashlib.sha256(os.fsencode(workspace)).hexdigest())


class LandlockSandbox(CommandSandbox):
    """Landlock and a system call filter: other files cannot be opened, others not signalled.

    Narrower than bubblewrap: there is no `/proc`, and modes, owners and times of files cannot be
    changed, also in the workspace. Linux 6.12 and newer.
    """

    @property
    def name(self) -> str:
        return "landlock"

    @property
    def help(self) -> str:
        return "`landlock` needs Linux 6.12 or newer with Landlock and seccomp switched on."

    def probe(self) -> Sequence[SandboxProbe]:
        return _landlock_probes()

    async def run(self, command: Command, limits: SandboxLimits = COMMAND_LIMITS) -> SandboxResult:
        self.require()
        with tempfile.TemporaryDirectory(prefix="minions-") as home:
            report = await supervise(_landlock_job(command, limits, home))
        return result_of(report, limits, self.name, is_code=False)


def _landlock_job(command: Command, limits: SandboxLimits, home: str) -> Job:
    workspace = _checked_workspace(command)
    held = [path for path in _interpreter() if _lies_in(os.path.realpath(path), workspace)]
    if held:
        raise EnvironmentRefusedError(
            f"The Python that runs Minions ({held[0]}) lies in the workspace '{workspace}', and "
            "only bubblewrap can protect it there. Install bubblewrap, or name another `root`.",
            code=NO_SANDBOX,
        )
    network = _OF_NETWORK if command.network else ()
    job = _job(
        command, workspace, _find_program(command.argv), limits, mounts_at=None, temporary=[home]
    )
    job["env"] = _environ(command, home)
    job["filter"] = "commands-with-network" if command.network else "commands"
    job["confinement"] = Confinement(
        read=[*_SYSTEM, *_interpreter(), *_OF_ETC, *network, workspace],
        write=[home],  # what is changed in the workspace, the supervisor changes
        devices=list(_DEVICES),
        network=command.network,
    )
    return job


_ESCAPES: Final = """
import os, socket, sys
outside, port, starter = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
def tried(name, act):
    try:
        act()
    except OSError as error:
        print(name, type(error).__name__, sep=": ")
    else:
        print(name, "was possible", sep=": ")
def environ():
    for pid in os.listdir("/proc"):
        if pid.isdigit() and b"MINIONS_PROBE" in open(f"/proc/{pid}/environ", "rb").read():
            return
    raise ProcessLookupError
tried("a file outside", lambda: open(outside).read())
for act in (lambda: os.chmod(outside, 0o777), lambda: open(outside, "w")):
    try:
        act()  # on a file of that name that only the sandbox has, it may succeed
    except OSError:
        pass
tried("what Git trusts", lambda: open(".git/config", "w"))
tried("a special bit", lambda: os.open("special", os.O_CREAT | os.O_WRONLY, 0o4755))
tried("a socket", lambda: socket.create_connection(("127.0.0.1", port), 2))
tried("a signal", lambda: os.kill(starter, 0))
tried("the environment", environ)
try:
    status = open("/proc/self/status").read()
    rights = int(status.split("CapEff:")[1].split()[0], 16)
    print("rights", "was possible" if rights else "none", sep=": ")
except OSError:
    print("rights: none are shown")
if os.fork() == 0:
    open("made", "w").close()
    os._exit(0)
os.wait()
print("a fork:", "done" if os.path.exists("made") else "failed")
"""


def _probed(make: Callable[[Command, SandboxLimits, str], Job]) -> Sequence[SandboxProbe]:
    import socket

    with (
        tempfile.TemporaryDirectory(prefix="minions-") as base,
        socket.create_server(("127.0.0.1", 0)) as server,
    ):
        work, home, outside = (Path(base, name) for name in ("work", "home", "outside"))
        (work / ".git").mkdir(parents=True)
        (work / ".git" / "config").touch()
        home.mkdir()
        outside.write_text("secret")
        before = outside.stat()
        port, starter = str(server.getsockname()[1]), str(os.getpid())
        argv = (sys.executable, "-I", "-S", "-c", _ESCAPES, str(outside), port, starter)
        command = Command(argv=argv, workspace=str(work))
        try:
            report = supervise_now(make(command, evolve(COMMAND_LIMITS, wall_s=20), str(home)))
        except (EnvironmentRefusedError, OSError) as error:
            return (SandboxProbe(name="start", ok=False, detail=str(error)),)
        is_same = outside.stat() == before and outside.read_text() == "secret"
    said = dict(line.split(": ", 1) for line in report["stdout"].splitlines() if ": " in line)
    if report["refused"] or report["exit_code"] != 0 or len(said) != _TRIALS:
        why = report["refused"] or report["stderr"].strip() or str(report["stop"])
        return (SandboxProbe(name="start", ok=False, detail=why[-500:]),)
    written = _probe("a file written", "refused" if is_same else "was possible")
    return [written, *(_probe(name, what) for name, what in said.items())]


_TRIALS: Final = 8


def _probe(name: str, what: str) -> SandboxProbe:
    is_ok = what == "done" if name == "a fork" else what != "was possible"
    return SandboxProbe(name=name, ok=is_ok, detail="" if is_ok else what)


@functools.cache
def _bubblewrap_probes() -> Sequence[SandboxProbe]:
    if sys.platform != "linux" or _bubblewrap() is None:
        return (SandboxProbe(name="bwrap", ok=False, detail="is not installed"),)
    return _probed(lambda command, limits, _: _bubblewrap_job(command, limits))


_SCOPED_SIGNALS: Final = 6


@functools.cache
def _landlock_probes() -> Sequence[SandboxProbe]:
    if sys.platform != "linux":
        return (SandboxProbe(name="linux", ok=False, detail=f"this is {sys.platform}"),)
    version = landlock_version()
    kernel = SandboxProbe(
        name="landlock", ok=version >= _SCOPED_SIGNALS, detail=f"version {version}"
    )
    return (kernel, *_probed(_landlock_job)) if kernel.ok else (kernel,)


def command_sandbox(
    candidates: Sequence[CommandSandbox] = (BubblewrapSandbox(), LandlockSandbox()),
) -> CommandSandbox:
    """The first sandbox whose probes all succeed.

    Raises:
        EnvironmentRefusedError: There is none; the message names every probe of each.
    """
    for sandbox in candidates:
        if all(probe.ok for probe in sandbox.probe()):
            return sandbox
    raise unavailable(candidates)
