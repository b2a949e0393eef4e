"""Where the files of the user are: configuration, weights, and the journal if none is named."""

from __future__ import annotations

import os
import sys
from pathlib import Path

__all__ = ["user_cache_folder", "user_config_folder", "user_data_folder"]


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
