"""The supervisor: reads one job, watches it until its end, writes one report.

It ends the job when its starter ends or closes its standard input, and leaves no process behind.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import resource
import select
import selectors
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from typing import Final

from minions.adapters.sandboxes.supervisor.child import Pipes, begin
from minions.adapters.sandboxes.supervisor.file_requests import (
    FileRequests,
    answer_at_once,
    consent,
    next_request,
)
from minions.adapters.sandboxes.supervisor.jobs import RESULT_BYTES, Job, Report, Stop, Trouble
from minions.adapters.sandboxes.supervisor.kernel import (
    become_subreaper,
    drop_privileges,
    forbid_more_rights,
    restrict_files,
)
from minions.adapters.sandboxes.supervisor.process_tree import Usage, kill_tree, tree_usage
from minions.adapters.sandboxes.supervisor.program_tools import BadRequestError, ToolChannel
from minions.adapters.sandboxes.supervisor.workspace_folders import DiskSpace
from minions.adapters.sandboxes.supervisor.workspace_guard import (
    ProtectedFiles,
    WorkspaceGuard,
    mounts_of,
    outermost,
)

_PERIOD_S: Final = 0.005
_MOST_AT_ONCE: Final = 65_536
_OF_GROUPS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def main() -> None:
    """Do the one job that is asked for on standard input."""
    starter = os.getppid()
    for number in _OF_GROUPS:  # what ends the starter's group is told by the end of its input
        signal.signal(number, signal.SIG_IGN)
    if sys.platform == "linux":
        become_subreaper()
    job: Job = json.loads(_first_line())
    try:
        _wait_for(job["lock"], job["limits"]["wall_s"], starter)
        report = _run(job, starter)
    except OSError as error:
        kill_tree(None)
        report = _refusal(f"{type(error).__name__}: {error}")
    with contextlib.suppress(BrokenPipeError):
        _write_all(1, json.dumps(report).encode() + b"\n")


def _run(job: Job, starter: int) -> Report:
    """Run the job, and leave nothing that tools outside trust."""
    protected = ProtectedFiles(job["folder"], job["protected"])
    rules = job["workspace"]
    if rules is None:
        report = _Supervision(job, starter).run()
        report["restored"] = protected.restore()
        return report
    workspace, temporary = rules["folder"], rules["temporary"]
    guard = WorkspaceGuard(workspace, rules["open_names"], rules["kept"], is_git=rules["is_git"])
    files: FileRequests | None = None
    if rules["mounts_at"] is not None:
        job = _with_mounts(job, rules["mounts_at"], mounts_of(workspace, guard.protected))
    else:
        _confine_supervisor([workspace, *temporary])
        files = FileRequests(
            workspace, guard.protected, guard.writable, job["limits"]["file_bytes"]
        )
    disk = DiskSpace([workspace, *temporary], job["limits"]["disk_bytes"], is_git=rules["is_git"])
    supervision = _Supervision(job, starter, files, disk)
    try:
        report = supervision.run()
    finally:
        taken = disk.end()
        restored, unchecked = _restore(guard, protected)
    report["restored"], report["unchecked"], report["disk_bytes"] = restored, unchecked, taken
    if report["refused"] is None and taken > job["limits"]["disk_bytes"]:
        report["stop"] = report["stop"] or "disk"
    return report


def _restore(guard: WorkspaceGuard, protected: ProtectedFiles) -> tuple[list[str], str | None]:
    """What was put back or removed, and why it could not be."""
    try:
        return outermost([*guard.restore(), *protected.restore()]), None
    except OSError as error:
        return [], str(error)


def _with_mounts(job: Job, place: int, mounts: Sequence[str]) -> Job:
    """The job with further arguments at that place of its command."""
    argv, of_filter = job["argv"], job["filter_argument"]
    if of_filter is not None and of_filter >= place:
        of_filter += len(mounts)
    return {
        **job,
        "argv": [*argv[:place], *mounts, *argv[place:]],
        "filter_argument": of_filter,
    }


def _confine_supervisor(folders: Sequence[str]) -> None:
    """What the supervisor does for a job that asks cannot be more than changes in its folders."""
    os.umask(0)  # who asks has one of its own
    forbid_more_rights()
    restrict_files(["/"], folders, ["/dev", "/proc"], network=True, is_alone=False)


def _wait_for(lock: str | None, most_s: float, starter: int) -> None:
    """Lock a file until this process ends.

    Raises:
        OSError: Others hold it for too long.
    """
    if lock is None:
        return
    file = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    give_up = time.monotonic() + most_s
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > give_up:
                raise TimeoutError(f"other commands ran here for {most_s:g} s") from None
        else:
            return
        if select.select([0], [], [], _PERIOD_S)[0] or os.getppid() != starter:
            os._exit(1)  # the starter is gone


def _first_line() -> bytes:
    line = bytearray()
    while not line.endswith(b"\n"):
        data = os.read(0, _MOST_AT_ONCE)
        if not data:
            os._exit(1)  # the starter is gone
        line += data
    return bytes(line)


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def _refusal(reason: str) -> Report:
    return Report(
        refused=reason,
        stop=None,
        exit_code=None,
        signal=None,
        value=None,
        has_value=False,
        trouble=None,
        stdout="",
        stderr="",
        output_bytes=0,
        is_cut=False,
        cpu_s=0,
        wall_s=0,
        peak_memory_bytes=0,
        restored=[],
        disk_bytes=0,
        unchecked=None,
    )


class _Supervision:
    """One job from its start to its end."""

    def __init__(
        self,
        job: Job,
        starter: int,
        files: FileRequests | None = None,
        disk: DiskSpace | None = None,
    ) -> None:
        """Take a job.

        Args:
            files: Makes the job's changes of files; None: it makes them itself.
            disk: Watches what space it takes.
        """
        self._job = job
        self._files = files
        self._disk = disk
        self._limits = job["limits"]
        self._starter = starter
        shown = self._limits["shown_bytes"]
        self._stdout, self._stderr = KeptOutput(shown), KeptOutput(shown)
        self._result, self._refused = bytearray(), bytearray()
        self._peak = 0
        self._cpu_s = 0.0
        self._begin = time.monotonic()
        self._pipes = Pipes()
        self._channel_read = self._pipes.channel_read
        self._channel = ToolChannel(self._pipes.requests_read, self._pipes.answers_write)
        self._pid = 0
        self._status: int | None = None
        self._stop: Stop | None = None
        self._listener = -1
        self._looking = threading.RLock()
        self._tasks = 0
        """As many there are at most: those seen last, and those consented to since."""

    def run(self) -> Report:
        """Start the job, watch it, end its whole tree, and tell how it ended."""
        own = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                begin(self._job, self._pipes, own)
            finally:
                os._exit(1)  # the job's process never comes back here
        self._pipes.close_ends_of_job()
        if self._disk is not None:
            self._disk.watch()
        try:
            self._watch()
        finally:
            self._collect()
            kill_tree(self._pid)
        return self._report()

    def _watch(self) -> None:
        with selectors.DefaultSelector() as selector:
            for end in self._ends():
                os.set_blocking(end, False)
                selector.register(end, selectors.EVENT_READ)
            selector.register(0, selectors.EVENT_READ)
            selector.register(self._channel_read, selectors.EVENT_READ)
            for end in (self._channel.requests, self._channel.answers):
                os.set_blocking(end, False)
            selector.register(self._channel.requests, selectors.EVENT_READ)
            next_look = 0.0
            while self._status is None and self._stop is None:
                for key, _ in selector.select(_PERIOD_S):
                    self._serve(selector, key.fd)
                if (begun := time.monotonic()) >= next_look:
                    self._look()
                    ended = time.monotonic()
                    next_look = ended + max(_PERIOD_S, ended - begun)  # of a large tree it is slow
            if self._stop is not None:
                return
            kill_tree(self._pid)  # what it left in the background, which may hold the pipes
            for end in self._ends():
                self._read_rest(end)

    def _serve(self, selector: selectors.BaseSelector, end: int) -> None:
        """Do what is to be done for a descriptor that is ready."""
        if end == self._channel.requests:
            self._take_request(selector)
        elif end == self._channel.answers:
            self._channel.write_answer()
            if not self._channel.has_outgoing:
                selector.unregister(end)
        elif end == self._channel_read.fileno():
            selector.unregister(end)
            self._listener = next(iter(socket.recv_fds(self._channel_read, 1, 1)[1]), -1)
            if self._listener >= 0:
                threading.Thread(target=self._answer_requests, daemon=True).start()
        elif not self._read(end):
            selector.unregister(end)
        elif end == 0 and self._channel.has_outgoing:
            with contextlib.suppress(KeyError):  # it waits already
                selector.register(self._channel.answers, selectors.EVENT_WRITE)

    def _take_request(self, selector: selectors.BaseSelector) -> None:
        """Hand a call that code asks for to the starter."""
        try:
            request = self._channel.read_request()
        except EOFError:
            selector.unregister(self._channel.requests)
        except BadRequestError:
            self._stop = self._stop or "calls"
        else:
            if request is not None:
                _write_all(1, json.dumps(request).encode() + b"\n")

    def _answer_requests(self) -> None:
        """Consent to new processes, as long as there is room, and change files."""
        answer_at_once(self._listener)
        if self._files is not None:
            drop_privileges()  # of this thread: who asks has none either
        while (request := next_request(self._listener)) is not None:
            if self._files is not None and self._files.is_about_files(request):
                self._files.answer(self._listener, request)
                continue
            with self._looking:
                if self._tasks >= self._limits["tasks"]:
                    self._look()
                if self._tasks >= self._limits["tasks"]:
                    self._stop = self._stop or "processes"
                    return
                self._tasks += 1
            consent(self._listener, request)

    def _read_rest(self, end: int) -> None:
        """Take what is left in a pipe that nobody writes to any more."""
        while self._read(end):
            if self._stop is not None:
                return

    def _ends(self) -> tuple[int, ...]:
        pipes = self._pipes
        return pipes.stdout_read, pipes.stderr_read, pipes.result_read, pipes.refusal_read

    def _read(self, end: int) -> bool:
        """Take what a pipe holds; whether it is still open."""
        try:
            data = os.read(end, _MOST_AT_ONCE)
        except BlockingIOError:
            return True
        if end == 0:
            self._stop = self._stop or (None if data else "cancelled")
            self._channel.take_answer(data)
        elif end == self._pipes.stdout_read:
            self._stdout.add(data)
        elif end == self._pipes.stderr_read:
            self._stderr.add(data)
        elif end == self._pipes.result_read:
            self._result += data[: RESULT_BYTES + 4096 - len(self._result)]
        else:
            self._refused += data
        if self._stdout.total + self._stderr.total > self._limits["output_bytes"]:
            self._stop = self._stop or "output"
        return bool(data)

    def _look(self) -> None:
        """Whether the job has ended, or has to be ended."""
        with self._looking:
            used = tree_usage(self._limits["memory_bytes"])
            self._peak = max(self._peak, used.memory_bytes)
            self._cpu_s = max(self._cpu_s, used.cpu_s)
            self._tasks = used.tasks
            self._stop = self._stop or self._excess(used)
            self._collect()

    def _excess(self, used: Usage) -> Stop | None:
        limits = self._limits
        if os.getppid() != self._starter:
            return "cancelled"
        if used.memory_bytes > limits["memory_bytes"]:
            return "memory"
        if used.tasks > limits["tasks"]:
            return "processes"
        if used.cpu_s > limits["cpu_s"]:
            return "cpu"
        if self._disk is not None and self._disk.is_exceeded:
            return "disk"
        wall_s = time.monotonic() - self._begin - self._channel.waited_s
        return "timeout" if wall_s > limits["wall_s"] else None

    def _collect(self) -> None:
        if self._status is None:
            with contextlib.suppress(ChildProcessError):
                pid, status = os.waitpid(self._pid, os.WNOHANG)
                self._status = status if pid else None

    def _report(self) -> Report:
        if self._refused:
            return _refusal(self._refused.decode("utf-8", "replace"))
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        report = Report(
            refused=None,
            stop=self._stop if self._stop is not None else self._stop_by_signal(),
            exit_code=_exit_code(self._status),
            signal=_signal(self._status),
            stdout=self._stdout.text(),
            stderr=self._stderr.text(),
            output_bytes=self._stdout.total + self._stderr.total,
            is_cut=self._stdout.is_cut or self._stderr.is_cut,
            cpu_s=round(max(self._cpu_s, ended.ru_utime + ended.ru_stime), 3),
            wall_s=round(time.monotonic() - self._begin, 3),
            peak_memory_bytes=self._peak,
            value=None,
            has_value=False,
            trouble=None,
            restored=[],
            disk_bytes=0,
            unchecked=None,
        )
        if self._stop is None and self._result:
            self._add_result(report)
        return report

    def _stop_by_signal(self) -> Stop | None:
        """The kernel's own limit of CPU time may be faster than this process."""
        return "cpu" if _signal(self._status) == signal.SIGXCPU else None

    def _add_result(self, report: Report) -> None:
        """The job wrote it itself, so it may be anything."""
        try:
            found: object = json.loads(self._result, parse_constant=_refuse_constant)
        except (ValueError, RecursionError):
            return
        if isinstance(found, dict) and "value" in found:
            trouble = found.get("trouble")
            report["trouble"] = _trouble(trouble) if isinstance(trouble, dict) else None
            report["value"] = found["value"]
            report["has_value"] = report["trouble"] is None


def _refuse_constant(name: str) -> object:
    raise ValueError(name)  # NaN and the like are no JSON


def _trouble(found: dict[str, object]) -> Trouble:
    line = found.get("line")
    return Trouble(
        type=str(found.get("type")),
        message=str(found.get("message")),
        line=line if isinstance(line, int) else None,
    )


def _exit_code(status: int | None) -> int | None:
    return os.WEXITSTATUS(status) if status is not None and os.WIFEXITED(status) else None


def _signal(status: int | None) -> int | None:
    return os.WTERMSIG(status) if status is not None and os.WIFSIGNALED(status) else None


# --- the head and the tail of a stream, whatever its length --------------------------------------


class KeptOutput:
    """Takes bytes, and keeps the first and the last of them."""

    def __init__(self, most: int) -> None:
        self._most_each = max(most // 2, 1)
        self._head = bytearray()
        self._tail = bytearray()
        self.total = 0
        """How many bytes there were."""

    def add(self, data: bytes) -> None:
        """Take more bytes."""
        self.total += len(data)
        room = self._most_each - len(self._head)
        self._head += data[:room] if room > 0 else b""
        self._tail += data[max(room, 0) :]
        if len(self._tail) > 2 * self._most_each:
            del self._tail[: -self._most_each]

    @property
    def is_cut(self) -> bool:
        """Whether bytes between head and tail are missing."""
        return self.total > len(self._head) + min(len(self._tail), self._most_each)

    def text(self) -> str:
        """The kept bytes as text, with a line that says how many are missing between them."""
        tail = bytes(self._tail[-self._most_each :])
        if not self.is_cut:
            return (bytes(self._head) + tail).decode("utf-8", "replace")
        missing = self.total - len(self._head) - len(tail)
        head, end = (part.decode("utf-8", "replace") for part in (bytes(self._head), tail))
        return f"{head}\n[… {missing:,} bytes left out …]\n{end}"
