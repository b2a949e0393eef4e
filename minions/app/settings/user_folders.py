"""Where the files of the user are (configuration, weights, the journal if none is named), and the
folders whose files they trust.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import Struct, field

from minions.data.bounded_files import read_regular
from minions.data.errors import EnvironmentRefusedError, UsageError
from minions.data.json_values import JsonValue, parse_json

if TYPE_CHECKING:
    from collections.abc import Iterator

_SECRET_BYTES: Final = 32


def user_config_folder() -> Path:
    """The folder of the user's own configuration, which need not exist."""
    usual = _usual_folder("XDG_CONFIG_HOME", ".config")
    if usual is not None:
        return usual
    from platformdirs import user_config_path

    return user_config_path("minions")


def user_data_folder() -> Path:
    """The folder of the user's data, which need not exist."""
    usual = _usual_folder("XDG_DATA_HOME", ".local/share")
    if usual is not None:
        return usual
    from platformdirs import user_data_path

    return user_data_path("minions")


class BorderSecret:
    """What nobody outside of this installation knows: names of borders in prompts are made from it.

    It is made once, in the user's folder of data, and read at its first use. Where the folder
    cannot be written it lasts as long as the process: a server's cache then finds less.
    """

    def __init__(self) -> None:
        """Nothing is read yet."""
        self._known: bytes | None = None

    def __call__(self) -> bytes:
        """The secret, of 32 bytes."""
        if self._known is None:
            self._known = _stored_secret(user_data_folder() / "border-secret")
        return self._known


def _stored_secret(path: Path) -> bytes:
    new = os.urandom(_SECRET_BYTES)
    part = path.with_name(f"{path.name}.{os.getpid()}.{new[:4].hex()}")
    try:
        if (stored := _secret_in(path)) is not None:
            return stored
        path.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
            file.write(new)
        try:
            os.link(part, path)  # whoever comes first; another process may do the same now
        except FileExistsError:
            return _secret_in(path) or new
        finally:
            part.unlink()
    except OSError:
        pass
    return new


def _secret_in(path: Path) -> bytes | None:
    """The stored secret; None: there is none, or it is not whole."""
    try:
        stored = path.read_bytes()
    except FileNotFoundError:
        return None
    return stored if len(stored) == _SECRET_BYTES else None


def user_cache_folder() -> Path:
    """The folder of what can be fetched again, which need not exist."""
    usual = _usual_folder("XDG_CACHE_HOME", ".cache")
    if usual is not None:
        return usual
    from platformdirs import user_cache_path

    return user_cache_path("minions")


def _usual_folder(variable: str, beneath_home: str) -> Path | None:
    """The folder on Linux with absolute paths in the environment; None: `platformdirs` decides.

    Every command looks for its configuration, and loading `platformdirs` takes 1.6 MiB.
    """
    environ = os.environ
    if sys.platform != "linux" or hasattr(sys, "getandroidapilevel") or "ANDROID_ROOT" in environ:
        return None
    home = environ.get("HOME", "")
    base = environ.get(variable) or (home and f"{home.rstrip('/')}/{beneath_home}")
    is_usual = base.startswith("/") and home.startswith("/")
    return Path(base, "minions") if is_usual else None


TRUST_VARIABLE: Final = "MINIONS_TRUST"
_MOST_BYTES: Final = 16 * 1_048_576
"""Bytes of the list of trusted files."""
_TRUE: Final = ("1", "true", "yes")
_LISTS: Final = ("files", "rights", "programs")
_PRINTING: Final = frozenset({"json", "events", "debug", "log_format"})
"""Keys that change what is printed."""
_TIGHTENING: Final = frozenset({"strict", "dry_run", "no_cache"})
"""Keys that allow less when they are true."""
_AS_A_RECIPE: Final = frozenset({"model", "max_parallel", "timeout", "max_cost_usd"})
"""Keys that a recipe may say as well; what the user says in a file of their own stands."""


def harmless_keys(content: Mapping[str, object], user: Mapping[str, object]) -> frozenset[str]:
    """The keys that are read of a file that nobody trusted.

    Args:
        content: The keys of that file.
        user: Those of the user's own file.
    """
    return frozenset(
        key
        for key, value in content.items()
        if key in _PRINTING
        or (key in _TIGHTENING and value is True)
        or (key == "strict" and value == "full")
        or (key in _AS_A_RECIPE and key not in user and not _names_weights(value))
    )


def _names_weights(value: object) -> bool:
    """Whether it is a model in a file: native code would read it."""
    return isinstance(value, str) and value.startswith("local/") and value.endswith(".gguf")


class UnreadKeys(Struct, frozen=True, kw_only=True):
    """What was not read of a configuration file, since nobody trusted it."""

    file: Path
    keys: tuple[str, ...]
    """Keys at the top level of the configuration, in the order of the file."""
    is_changed: bool = False
    """Whether the file was trusted with another content."""

    @property
    def words(self) -> str:
        """What was not read, why, and what to do, in one line for people."""
        reason = "changed since it was trusted" if self.is_changed else "is not trusted"
        return (
            f"{self.file} {reason}, so these keys of it were not read: {', '.join(self.keys)}. "
            "`minions trust --show` shows them, `minions trust` makes them count; for one command "
            "`--trust` does."
        )


def trusted_files() -> Path:
    """The path of the user's list of trusted files, which need not exist."""
    return user_data_folder() / "trusted.json"


class FolderTrust(Struct, frozen=True, kw_only=True):
    """The configuration files that count, by their absolute paths and hashes."""

    store: Path = field(default_factory=trusted_files)
    is_given: bool = False
    """Whether every file counts: `--trust`, or `MINIONS_TRUST=1`."""

    @classmethod
    def of(cls, environ: Mapping[str, str], *, is_given: bool = False) -> FolderTrust:
        """The trust of a process: by flag, by environment, and by the user's list.

        Raises:
            UsageError: `MINIONS_TRUST` is neither true nor false.
        """
        said = environ.get(TRUST_VARIABLE, "").lower()
        if said not in (*_TRUE, "0", "false", "no", ""):
            raise UsageError(f"{TRUST_VARIABLE}={said[:40]!r}: expected true or false.")
        return cls(is_given=is_given or said in _TRUE)

    def holds(self, file: Path, content: bytes) -> bool:
        """Whether the file counts with this content."""
        return self.is_given or self._known("files").get(_name(file)) == _hash(content)

    def knows(self, file: Path) -> bool:
        """Whether the file was trusted once, with this or another content."""
        return _name(file) in self._known("files")

    def rights_shown(self, file: Path) -> tuple[str, ...] | None:
        """What was shown when the file was trusted; None: it was not, or that was not kept."""
        found = self._known("rights").get(_name(file))
        return tuple(map(str, found)) if isinstance(found, list) else None

    def programs_seen(self, lock: Path) -> Mapping[str, Mapping[str, str]]:
        """By server the hashes of its program's files on this machine, as they were when somebody
        looked at the servers of the lock, or trusted it.
        """
        found = self._known("programs").get(_name(lock))
        servers = found if isinstance(found, Mapping) else {}
        return {
            server: {str(name): str(digest) for name, digest in files.items()}
            for server, files in servers.items()
            if isinstance(files, Mapping)
        }

    def add(
        self,
        file: Path,
        content: bytes,
        *,
        rights: Sequence[str] | None = None,
        programs: Mapping[str, Mapping[str, str]] | None = None,
    ) -> None:
        """Trust the file with this content.

        Args:
            rights: What was shown of it; None: nothing.
            programs: Of a lock, as `programs_seen` gives them; None: as they are known.
        Raises:
            EnvironmentRefusedError: `trust-store`: the list cannot be read or written.
        """
        name = _name(file)
        with self._changing() as lists:
            lists["files"][name] = _hash(content)
            lists["rights"].pop(name, None)
            if rights is not None:
                lists["rights"][name] = list(rights)
            if programs is not None:
                lists["programs"][name] = {key: dict(files) for key, files in programs.items()}

    def remove(self, file: Path) -> bool:
        """Trust the file no longer; whether it was trusted.

        Raises:
            EnvironmentRefusedError: `trust-store`: the list cannot be read or written.
        """
        with self._changing() as lists:
            found = [each.pop(_name(file), None) for each in lists.values()]
            return found[0] is not None

    def _known(self, list_: str) -> Mapping[str, JsonValue]:
        """One of the lists, by file; a damaged store trusts nothing."""
        try:
            return self._read()[list_]
        except (OSError, ValueError):
            return {}

    def _read(self) -> dict[str, dict[str, JsonValue]]:
        """The lists by their names, `files` first."""
        try:
            content = read_regular(self.store, _MOST_BYTES)
        except FileNotFoundError:
            return {name: {} for name in _LISTS}
        if len(content) > _MOST_BYTES:
            raise ValueError(f"it has more than {_MOST_BYTES // 1_048_576} MiB")
        found = parse_json(content.decode())
        if not isinstance(found, Mapping) or not isinstance(found.get("files"), Mapping):
            raise ValueError("it has no mapping `files`")  # of the file's content
        lists = {name: found.get(name, {}) for name in _LISTS}
        return {
            name: dict(each) if isinstance(each, Mapping) else {} for name, each in lists.items()
        }

    @contextlib.contextmanager
    def _changing(self) -> Iterator[dict[str, dict[str, JsonValue]]]:
        """The lists, written when the block ends; one process at a time."""
        import fcntl

        try:
            folder = self.store.parent
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            with (folder / f".{self.store.name}.lock").open("a") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                lists = self._read()
                yield lists
                _replace(self.store, json.dumps({"version": 1, **lists}, indent=2))
        except ValueError as error:
            raise EnvironmentRefusedError(
                f"{self.store}: not readable as the list of trusted files: {error}. Remove it, "
                "and trust your folders again.",
                code="trust-store",
            ) from error
        except OSError as error:
            raise EnvironmentRefusedError(
                f"{self.store}: {error.strerror}. There the list of trusted files is kept; "
                "--trust or MINIONS_TRUST=1 trusts without it.",
                code="trust-store",
            ) from error


def _name(file: Path) -> str:
    return os.path.realpath(file)


def _hash(content: bytes) -> str:
    import hashlib  # here, as `tempfile` below: most commands need neither

    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _replace(path: Path, text: str) -> None:
    import tempfile

    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
