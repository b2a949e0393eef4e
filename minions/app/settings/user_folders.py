"""Where the files of the user are: configuration, weights, and the journal if none is named."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

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
