"""What Git trusts in a workspace: its folders, and the files that its configuration names.

Git runs what a configuration names: hooks, filters, `core.fsmonitor`, aliases, included files. It
finds that configuration through `.git`, through a pointer file, through `commondir`, and in any
folder that has the parts of a bare repository.
"""

from __future__ import annotations

import os
import pwd
import re
import shlex
import stat
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from minions.contracts.protected_files import folded_name, is_git_name

GIT_PARTS: Final = frozenset({"head", "objects", "refs", "commondir"})
"""The names, folded, that make a folder one of Git's."""
WRITTEN_BY_GIT: Final = re.compile(
    r"(HEAD|ORIG_HEAD|FETCH_HEAD|CHERRY_PICK_HEAD|REVERT_HEAD|index|packed-refs|COMMIT_EDITMSG)"
    r"(\.lock|\.new)?|MERGE_[A-Z]+|SQUASH_MSG|AUTO_MERGE|next-index-[0-9]+\.lock|sharedindex\..+"
    r"|logs|objects|refs|reftable|rr-cache"
)
"""Entries of a repository's folder that hold data only: what staging and committing writes."""
_MOST_BYTES: Final = 1024 * 1024
_MOST_FILES: Final = 200
_SECTION: Final = re.compile(r'\[\s*([A-Za-z0-9.-]+)(?:\s+"((?:[^"\\]|\\.)*)")?\s*\]')
_RUNS_OR_READS: Final = frozenset(
    """
    hookspath fsmonitor sshcommand editor pager askpass gitproxy attributesfile
    alternaterefscommand path clean smudge process command textconv external driver cmd program
    helper difffilter packobjectshook uploadpack receivepack vcs templatedir
    """.split()  # noqa: SIM905  # a list of quoted words is not readable
)
"""Variables, in any section, whose value names a program or a file that is read as settings."""


class GitTrust(NamedTuple):
    """Paths within a workspace, relative to it."""

    folders: frozenset[str]
    """Folders of repositories outside of `.git`: with their objects, or with what they share."""
    files: frozenset[str]
    """Files and folders that a configuration has run or read; they need not exist."""


def is_repository(names: Iterable[str]) -> bool:
    """Whether a folder with such entries is one that Git takes for a repository's."""
    found = {folded_name(each) for each in names}
    return {"head", "commondir"} <= found or {"head", "objects", "refs"} <= found


def trusted_by_git(workspace: str, found: Collection[str]) -> GitTrust:
    """What Git would follow from its folders and pointer files.

    Args:
        found: Relative paths of entries named `.git`, and of folders that look like repositories.
    """
    folders: set[str] = set()
    files: set[str] = set()
    configs = [(top, config) for config in _of_person() for top in _tops(workspace, found)]
    for relative in found:
        place = os.path.join(workspace, relative)  # noqa: PTH118
        top = os.path.dirname(place) if _is_named_git(relative) else place  # noqa: PTH120
        for folder in _followed(place):
            folders.update(_within(workspace, folder))
            configs += [(top, each) for each in _configs(folder)]
    configs += _of_repository_above(workspace)
    for top, config in _with_included(configs):
        for path in _named_in(config, top):
            files.update(_within(workspace, path))
    return GitTrust(frozenset(folders), frozenset(files))


def _is_named_git(relative: str) -> bool:
    return is_git_name(relative.rpartition("/")[2])


def _within(workspace: str, path: str) -> Iterator[str]:
    """The path below the workspace, and each link that leads to it; nothing that is elsewhere, or
    within `.git` anyway.
    """
    for place in _on_the_way(path):
        inside = place.removeprefix(f"{workspace}/")
        if inside != place and not any(map(is_git_name, inside.split("/"))):
            yield inside


def _on_the_way(path: str) -> Iterator[str]:
    """The links that an absolute path goes through, each where it is, and at last what it means.

    Where there are more than the system follows, it means nothing.
    """
    names, here, links = path.split("/")[::-1], "", 0
    while names:
        name = names.pop()
        if name == "..":
            here = here.rpartition("/")[0]
        elif name not in ("", "."):
            place = f"{here}/{name}"
            try:
                target = os.readlink(place)  # noqa: PTH115  # as it is
            except OSError:
                here = place
                continue
            yield place
            links += 1
            if links > _MOST_LINKS:
                return
            here = "" if target.startswith("/") else here
            names += target.split("/")[::-1]
    yield here


_MOST_LINKS: Final = 40


def _tops(workspace: str, found: Iterable[str]) -> Iterator[str]:
    """The folders in which a person would call Git."""
    yield workspace
    for relative in found:
        if _is_named_git(relative):
            yield os.path.dirname(os.path.join(workspace, relative))  # noqa: PTH118, PTH120


def _followed(place: str) -> Iterator[str]:
    """The folders that Git uses for an entry: itself, what it points to, and what that shares."""
    waiting, seen = [place], set[str]()
    while waiting:
        folder = waiting.pop()
        is_file = os.path.isfile(folder)  # noqa: PTH113
        if not is_file:
            yield folder  # also of one that is known: other links may lead to it
        real = os.path.realpath(folder)
        if real in seen:
            continue
        seen.add(real)
        if len(seen) > _MOST_FILES:
            raise OSError("a repository that leads to too many others")
        if is_file:
            text = _text(folder)
            if text.startswith("gitdir:"):
                waiting += _meant(os.path.dirname(folder), text[7:].removeprefix(" "))  # noqa: PTH120
            continue
        waiting += _meant(folder, _text(os.path.join(folder, "commondir")))  # noqa: PTH118
        objects = os.path.join(folder, "objects")  # noqa: PTH118
        for line in _text(os.path.join(objects, "info/alternates")).split("\n"):  # noqa: PTH118
            if not line.startswith("#"):
                is_quoted = line.startswith('"')
                waiting += _meant(objects, _SIGN.sub(_unquoted, line) if is_quoted else line)


def _meant(base: str, text: str) -> Iterator[str]:
    """The path that a pointer holds: as Git reads it, and as other programs do, without blanks."""
    exact = text.rstrip("\r\n")
    return (_join(base, each) for each in {exact, exact.strip()} if each)


def _configs(folder: str) -> Iterator[str]:
    """Configuration files of a repository, and of those of its submodules."""
    for name in ("config", "config.worktree"):
        yield os.path.join(folder, name)  # noqa: PTH118
    for below in ("modules", "worktrees"):
        for place, folders, names in os.walk(os.path.join(folder, below)):  # noqa: PTH118
            if is_repository((*folders, *names)):
                folders[:] = [each for each in folders if each not in _OF_OBJECTS]
            yield from (os.path.join(place, each) for each in names if each in _CONFIGS)  # noqa: PTH118


_CONFIGS: Final = ("config", "config.worktree")
_OF_OBJECTS: Final = ("objects", "refs", "logs", "hooks", "info")


def _of_person() -> Iterator[str]:
    """The person's own configuration: a relative path in it starts at each repository."""
    try:
        home = pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        return
    yield from ("/etc/gitconfig", f"{home}/.gitconfig", f"{home}/.config/git/config")


def _of_repository_above(workspace: str) -> list[tuple[str, str]]:
    for top in map(str, Path(workspace).parents):
        place = os.path.join(top, ".git")  # noqa: PTH118
        if os.path.lexists(place):
            return [(top, each) for folder in _followed(place) for each in _configs(folder)]
    return []


def _with_included(configs: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Each configuration file once, with those that it includes.

    Raises:
        OSError: There are too many.
    """
    waiting, seen = list(configs), set[tuple[str, str]]()
    while waiting:
        top, config = waiting.pop()
        if (top, config) in seen:
            continue
        seen.add((top, config))
        if len(seen) > _MOST_CONFIGS:
            raise OSError("too many configurations of Git: name a smaller folder as `root`")
        yield top, config
        for section, name, value in _variables(_text(config)):
            if name == "path" and section in _INCLUDES:
                beside, last = os.path.split(_join(os.path.dirname(config), _at_home(value)))  # noqa: PTH120
                waiting.append((top, os.path.join(os.path.realpath(beside), last)))  # noqa: PTH118


_INCLUDES: Final = ("include", "includeif")
_MOST_CONFIGS: Final = 5_000


def _named_in(config: str, top: str) -> Iterator[str]:
    """Paths that the values of a configuration file may mean."""
    beside = os.path.dirname(config)  # noqa: PTH120
    for section, name, value in _variables(_text(config)):
        if section in _INCLUDES and name == "path":
            yield _join(beside, _at_home(value))
        elif name == "hookspath":
            yield from (_join(base, _at_home(value)) for base in (top, beside))
        elif name in _RUNS_OR_READS or section == "pager" or value.startswith("!"):
            for word in _words(value):
                for path in (_join(base, _at_home(word)) for base in (top, beside)):
                    if os.path.isfile(path) or ("/" in word and not os.path.lexists(path)):  # noqa: PTH113
                        yield path


def _words(value: str) -> list[str]:
    text = value.strip().removeprefix("!")
    try:
        words = shlex.split(text)
    except ValueError:
        words = text.split()
    if len(words) > _MOST_WORDS:
        raise OSError(f"a command of more than {_MOST_WORDS} words in a configuration of Git")
    return words


_MOST_WORDS: Final = 1_000


def _variables(text: str) -> Iterator[tuple[str, str, str]]:
    """Section and name in lower case, and the value, of each variable."""
    section = ""
    for line in _LINE.finditer(text.removeprefix(_MARK).replace("\r\n", "\n")):
        rest = line[1].replace("\\\n", "").strip()
        while (found := _SECTION.match(rest)) is not None:
            section = found[1].lower().partition(".")[0]
            rest = rest[found.end() :].strip()
        if rest:
            name, _, value = rest.partition("=")
            yield section, name.strip().lower(), _SIGN.sub(_unquoted, value.strip())


_MARK: Final = os.fsdecode(b"\xef\xbb\xbf")
"""What some editors begin a file with; Git passes over it."""
_LINE: Final = re.compile(
    r'((?:"(?:[^"\\\n]|\\[\s\S])*"?|\\[\s\S]?|[^"\\#;\n])*)(?:[#;][^\n]*)?\n?'
)
"""What stands before a comment: a backslash continues a line there, and in no comment."""
_SIGN: Final = re.compile(r'\\([\s\S])|"')
_ESCAPED: Final = {"n": "\n", "t": "\t", "b": "\b"}


def _unquoted(sign: re.Match[str]) -> str:
    return _ESCAPED.get(sign[1], sign[1]) if sign[1] else ""


def _join(base: str, path: str) -> str:
    # For Git, which is written in C, a path ends where a zero byte stands.
    return os.path.join(base, path.partition("\0")[0])  # noqa: PTH118


def _at_home(path: str) -> str:
    """The path of a configuration; pointers know no `~`."""
    if not path.startswith("~/"):
        return os.path.expanduser(path)  # noqa: PTH111  # a user may be unknown
    try:
        return pwd.getpwuid(os.getuid()).pw_dir + path[1:]
    except KeyError:
        return path


def _text(path: str) -> str:
    """A regular file; empty: there is none.

    Raises:
        OSError: It is too large: what Git would read of it cannot be told.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        return ""
    with os.fdopen(descriptor, "rb") as file:
        data = file.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise OSError(f"'{path}', which Git reads, has more than {_MOST_BYTES:,} bytes")
    return os.fsdecode(data)
