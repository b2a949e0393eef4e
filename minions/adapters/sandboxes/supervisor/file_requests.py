"""Changes of files in the workspace that the supervisor makes for a job.

Landlock gives rights to whole trees: it cannot leave out `.git` in one that may be changed. So the
job itself may change nothing in its workspace, and each system call that would is carried out here:
its text is read once, the folder is opened, its real path is compared with what is protected, and
the change is made in that very folder by a plain name. Nothing that the job does meanwhile counts.
Calls about other places are left to the kernel, which refuses them.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import select
import stat
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from minions.adapters.sandboxes.supervisor.git_trust import GIT_PARTS, WRITTEN_BY_GIT, is_repository
from minions.adapters.sandboxes.supervisor.kernel import syscall
from minions.adapters.sandboxes.supervisor.syscall_numbers import system_call
from minions.adapters.sandboxes.supervisor.workspace_guard import ProtectedPath
from minions.contracts.protected_files import folded_name, is_git_name

FILE_CALLS: Final = (
    *("creat", "mkdir", "mkdirat", "mknod", "mknodat", "rmdir", "unlink", "unlinkat", "rename"),
    *("renameat", "renameat2", "link", "linkat", "symlink", "symlinkat", "truncate"),
)
"""Calls that change files by their path, besides `open` and `openat`."""

_HERE: Final = -100
_LONGEST: Final = 4096
_MOST_LINKS: Final = 40
_REMOVE_FOLDER, _FOLLOW, _EMPTY_PATH = 0x200, 0x400, 0x1000
_NO_REPLACE_OR_EXCHANGE: Final = 3
_FIND: Final = os.O_PATH | os.O_CLOEXEC
_FIND_FOLDER: Final = _FIND | os.O_DIRECTORY


class _Place(NamedTuple):
    """An entry of a folder in the workspace."""

    folder: int
    """The folder, opened."""
    name: str
    """A plain name; `.`: the folder itself."""
    path: str
    """The path of the entry, relative to the workspace."""


class _ElsewhereError(Exception):
    """The call is not about the workspace: the kernel decides."""


class FileRequests:
    """Carries out changes in one workspace.

    Args:
        workspace: Without links.
        protected: What must not be changed.
        writable: Folders of repositories in which Git's own commands write data.
        most_bytes: The largest file.
    """

    def __init__(
        self,
        workspace: str,
        protected: Sequence[ProtectedPath],
        writable: frozenset[str],
        most_bytes: int,
    ) -> None:
        self._workspace = workspace
        self._protected = frozenset(each.path for each in protected)
        self._above = frozenset(
            above for each in (*self._protected, *writable) for above in _above(each)
        )
        self._writable = writable
        self._most_bytes = most_bytes
        calls: Mapping[str, Callable[[_Call], None]] = {
            "open": lambda call: self._open(call, _HERE, *call.arguments[:3]),
            "openat": lambda call: self._open(call, *call.arguments[:4]),
            "creat": lambda call: self._open(
                call, _HERE, call.arguments[0], _CREATE, call.arguments[1]
            ),
            "mkdir": lambda call: self._make_folder(call, _HERE, *call.arguments[:2]),
            "mkdirat": lambda call: self._make_folder(call, *call.arguments[:3]),
            "mknod": lambda call: self._make_node(call, _HERE, *call.arguments[:2]),
            "mknodat": lambda call: self._make_node(call, *call.arguments[:3]),
            "rmdir": lambda call: self._remove(call, _HERE, call.arguments[0], _REMOVE_FOLDER),
            "unlink": lambda call: self._remove(call, _HERE, call.arguments[0], 0),
            "unlinkat": lambda call: self._remove(call, *call.arguments[:3]),
            "rename": lambda call: self._rename(
                call, _HERE, call.arguments[0], _HERE, call.arguments[1]
            ),
            "renameat": lambda call: self._rename(call, *call.arguments[:4]),
            "renameat2": lambda call: self._rename(call, *call.arguments[:5]),
            "link": lambda call: self._link(
                call, _HERE, call.arguments[0], _HERE, call.arguments[1], 0
            ),
            "linkat": lambda call: self._link(call, *call.arguments[:5]),
            "symlink": lambda call: self._link_to_text(
                call, call.arguments[0], _HERE, call.arguments[1]
            ),
            "symlinkat": lambda call: self._link_to_text(call, *call.arguments[:3]),
            "truncate": lambda call: self._truncate(call, *call.arguments[:2]),
        }
        self._calls = {
            number: act for name, act in calls.items() if (number := system_call(name)) is not None
        }

    def is_about_files(self, request: Request) -> bool:
        """Whether the request is one of these."""
        return request.number in self._calls

    def answer(self, listener: int, request: Request) -> None:
        """Carry out a request, refuse it, or leave it to the kernel."""
        try:
            with contextlib.ExitStack() as stack:
                self._calls[request.number](_Call(listener, request, stack))
        except _ElsewhereError:
            consent(listener, request)
        except OSError as error:
            respond(listener, request, error.errno or errno.EPERM)

    # --- what is refused --------------------------------------------------------------------------

    def _refuse_protected(self, place: _Place, *, moves: bool = False) -> None:
        """Refuse to change a path that is protected.

        Args:
            moves: Whether the entry is renamed or removed, with all that is in it.
        """
        path = place.path
        if self._is_data_of_git(path):
            return
        outer = (path, *_above(path))
        if (
            not path
            or any(map(is_git_name, path.split("/")))
            or any(each in self._protected or each in self._writable for each in outer)
            or (moves and path in self._above)
        ):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    def _is_data_of_git(self, path: str) -> bool:
        """Whether Git's own command writes it as data."""
        for folder in self._writable:
            inside = path.removeprefix(f"{folder}/")
            if inside != path and WRITTEN_BY_GIT.fullmatch(inside.partition("/")[0]):
                return not f"{inside}/".startswith("objects/info/")
        return False

    def _refuse_repository(self, place: _Place) -> None:
        """Refuse a protected entry, and one by which its folder would be a repository's."""
        self._refuse_protected(place)
        if folded_name(place.name) not in GIT_PARTS or self._is_data_of_git(place.path):
            return
        names = set(os.listdir(_of(place.folder)))  # noqa: PTH208  # not of a path
        if is_repository({*names, place.name}):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    # --- the calls --------------------------------------------------------------------------------

    def _open(self, call: _Call, base: int, path: int, flags: int, mode: int) -> None:
        flags &= 0x7FFFFFFF  # the highest bit means nothing, and is no number for `os.open`
        if flags & os.O_PATH:
            raise _ElsewhereError
        text = call.text(path)
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            place = self._folder(call, base, text)
            self._refuse_protected(place)
            self._give(call, place, flags, mode)
            return
        is_new = bool(flags & os.O_CREAT)
        follows = not flags & os.O_NOFOLLOW and not (is_new and flags & os.O_EXCL)
        place = self._place(call, base, text, follows=follows)
        kind = _kind(place)
        is_change = bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_TRUNC))
        if kind is None:
            if is_new:
                self._refuse_repository(place)
        elif not is_change or not (stat.S_ISREG(kind) or stat.S_ISDIR(kind)):
            raise _ElsewhereError  # only read, or what is no file
        else:
            self._refuse_protected(place)
        self._give(call, place, flags, mode)

    def _give(self, call: _Call, place: _Place, flags: int, mode: int) -> None:
        rights = mode & 0o777 & ~call.umask()
        plain = flags | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        call.require()
        file = os.open(place.name, plain, rights, dir_fd=place.folder)
        try:
            if not flags & os.O_NONBLOCK:
                os.set_blocking(file, True)
            give_file(call.listener, call.request, file, closes_on_exec=bool(flags & os.O_CLOEXEC))
        finally:
            os.close(file)

    def _make_folder(self, call: _Call, base: int, path: int, mode: int) -> None:
        place = self._place(call, base, call.text(path))
        _refuse_present(place)
        self._refuse_repository(place)
        rights = mode & 0o777 & ~call.umask()
        call.require()
        os.mkdir(place.name, rights, dir_fd=place.folder)
        call.done()

    def _make_node(self, call: _Call, base: int, path: int, mode: int) -> None:
        place = self._place(call, base, call.text(path))
        _refuse_present(place)
        self._refuse_repository(place)
        kind = mode & 0o170000 or stat.S_IFREG
        if kind not in (stat.S_IFREG, stat.S_IFIFO):
            raise OSError(errno.EPERM, os.strerror(errno.EPERM))
        rights = mode & 0o777 & ~call.umask()
        call.require()
        os.mknod(place.name, kind | rights, dir_fd=place.folder)
        call.done()

    def _remove(self, call: _Call, base: int, path: int, flags: int) -> None:
        place = self._place(call, base, call.text(path))
        self._refuse_protected(place, moves=True)
        call.require()
        if flags & _REMOVE_FOLDER:
            os.rmdir(place.name, dir_fd=place.folder)
        else:
            os.unlink(place.name, dir_fd=place.folder)
        call.done()

    def _rename(  # as the system call has them
        self, call: _Call, base: int, path: int, to_base: int, to_path: int, flags: int = 0
    ) -> None:
        flags &= 0xFFFFFFFF
        if flags & ~_NO_REPLACE_OR_EXCHANGE:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        source, target = self._two_places(call, base, path, to_base, to_path)
        for place in (source, target):
            self._refuse_repository(place)
            self._refuse_protected(place, moves=True)
        call.require()
        names = (ctypes.create_string_buffer(os.fsencode(each.name)) for each in (source, target))
        number = system_call("renameat2")
        assert number is not None  # noqa: S101  # every architecture has it
        first, second = names
        syscall(number, source.folder, first, target.folder, second, flags)
        call.done()

    def _link(  # as the system call has them
        self, call: _Call, base: int, path: int, to_base: int, to_path: int, flags: int
    ) -> None:
        if flags & _EMPTY_PATH:
            raise _ElsewhereError
        follows = bool(flags & _FOLLOW)
        source, target = self._two_places(call, base, path, to_base, to_path, follows=follows)
        self._refuse_protected(source)
        self._refuse_repository(target)
        call.require()
        os.link(
            source.name,
            target.name,
            src_dir_fd=source.folder,
            dst_dir_fd=target.folder,
            follow_symlinks=False,
        )
        call.done()

    def _link_to_text(self, call: _Call, text: int, base: int, path: int) -> None:
        place = self._place(call, base, call.text(path))
        _refuse_present(place)
        self._refuse_repository(place)
        leads_to = call.text(text)
        call.require()
        os.symlink(leads_to, place.name, dir_fd=place.folder)
        call.done()

    def _truncate(self, call: _Call, path: int, length: int) -> None:
        place = self._place(call, _HERE, call.text(path), follows=True)
        self._refuse_protected(place)
        length = length - (1 << 64) if length >> 63 else length
        if length > self._most_bytes:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
        call.require()
        flags = os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        file = os.open(place.name, flags, dir_fd=place.folder)
        try:
            os.ftruncate(file, length)
        finally:
            os.close(file)
        call.done()

    # --- places -----------------------------------------------------------------------------------

    def _two_places(  # as the system calls have them
        self,
        call: _Call,
        base: int,
        path: int,
        to_base: int,
        to_path: int,
        *,
        follows: bool = False,
    ) -> tuple[_Place, _Place]:
        """Both entries. One in the workspace and one elsewhere are on two file systems, as it
        were: what is moved in must have been made here.
        """
        found: list[_Place] = []
        for each, text, is_followed in ((base, path, follows), (to_base, to_path, False)):
            with contextlib.suppress(_ElsewhereError):
                found.append(self._place(call, each, call.text(text), follows=is_followed))
        if not found:
            raise _ElsewhereError
        if len(found) == 1:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        return found[0], found[1]

    def _folder(self, call: _Call, base: int, text: str) -> _Place:
        start = None if text.startswith("/") else call.base(base)
        folder = call.opened(os.open(text, _FIND_FOLDER, dir_fd=start))
        return _Place(folder, ".", self._relative(folder))

    def _place(self, call: _Call, base: int, text: str, *, follows: bool = False) -> _Place:
        """The entry that a path names.

        Args:
            follows: Whether the last name may be a link, which is followed.
        Raises:
            OSError: There is no such folder.
            _ElsewhereError: It is not in the workspace.
        """
        start: int | None = None
        for _ in range(_MOST_LINKS):
            if not text:
                raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
            if start is None and not text.startswith("/"):
                start = call.base(base)
            plain = text.rstrip("/")
            above, _, name = plain.rpartition("/")
            if name == "..":
                above, name = plain, "."
            elif not above:
                above = "/" if text.startswith("/") else "."
            folder = call.opened(os.open(above, _FIND_FOLDER, dir_fd=start))
            relative = self._relative(folder)
            place = _Place(
                folder, name, relative if name == "." else f"{relative}/{name}".lstrip("/")
            )
            kind = _kind(place)
            is_folder_meant = plain != text
            if kind is not None and stat.S_ISLNK(kind) and follows:
                text, start = os.readlink(name, dir_fd=folder), folder
                continue
            if is_folder_meant and kind is not None and not stat.S_ISDIR(kind):
                raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
            return place
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))

    def _relative(self, folder: int) -> str:
        """The path of an opened folder, relative to the workspace."""
        real = os.readlink(_of(folder))  # noqa: PTH115  # as it is
        if real == self._workspace:
            return ""
        inside = real.removeprefix(f"{self._workspace}/")
        if inside == real:
            raise _ElsewhereError
        return inside


_CREATE: Final = os.O_CREAT | os.O_WRONLY | os.O_TRUNC


def _of(folder: int) -> str:
    return f"/proc/self/fd/{folder}"


def _above(path: str) -> Iterator[str]:
    """The folders above a path, the innermost first."""
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path


def _refuse_present(place: _Place) -> None:
    if _kind(place) is not None:
        raise OSError(errno.EEXIST, os.strerror(errno.EEXIST))


def _kind(place: _Place) -> int | None:
    try:
        return os.stat(place.name, dir_fd=place.folder, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return None


class _Call:
    """One request, with what is read of the thread that waits."""

    def __init__(self, listener: int, request: Request, stack: contextlib.ExitStack) -> None:
        self.listener = listener
        self.request = request
        self.arguments = request.arguments
        self._proc = f"/proc/{request.thread}"
        self._stack = stack

    def opened(self, descriptor: int) -> int:
        """The descriptor, which is closed when the request is answered."""
        self._stack.callback(os.close, descriptor)
        return descriptor

    def text(self, address: int) -> str:
        """The path at an address of its memory.

        Raises:
            OSError: There is none, or its memory cannot be read.
        """
        memory = os.open(f"{self._proc}/mem", os.O_RDONLY | os.O_CLOEXEC)
        try:
            data = os.pread(memory, _LONGEST, address)
        except (OSError, OverflowError) as error:
            raise OSError(errno.EFAULT, os.strerror(errno.EFAULT)) from error
        finally:
            os.close(memory)
        text, end, _ = data.partition(b"\0")
        if not end:
            number = errno.ENAMETOOLONG if len(data) == _LONGEST else errno.EFAULT
            raise OSError(number, os.strerror(number))
        return os.fsdecode(text)

    def base(self, number: int) -> int:
        """The folder that a relative path begins at, opened."""
        number = ctypes.c_int(number).value  # as the kernel takes it
        place = f"{self._proc}/cwd" if number == _HERE else f"{self._proc}/fd/{number}"
        try:
            return self.opened(os.open(place, _FIND))
        except FileNotFoundError as error:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF)) from error

    def umask(self) -> int:
        """The rights that new files lack."""
        with open(f"{self._proc}/status", "rb") as file:  # noqa: PTH123
            for line in file:
                if line.startswith(b"Umask:"):
                    return int(line.split()[1], 8)
        return 0o022

    def require(self) -> None:
        """Return only if all that was read was this thread's.

        Raises:
            OSError: It was killed meanwhile.
        """
        if not is_waiting(self.listener, self.request):
            raise OSError(errno.EINTR, os.strerror(errno.EINTR))

    def done(self) -> None:
        """Tell that it succeeded."""
        respond(self.listener, self.request)


# --- requests of the job to its supervisor -------------------------------------------------------


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
