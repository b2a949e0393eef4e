"""`ProfileFiles`: the profiles of models in a folder of the user's, one file each."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from minions.contracts.bounded_files import read_regular
from minions.contracts.calls import ChatModel
from minions.contracts.codec import decode, encode
from minions.contracts.model_profiles import ModelProfile, ProfileBook

__all__ = ["ProfileFiles"]

_MOST_BYTES: Final = 65_536
"""Bytes of a file that is read; a larger one is no profile."""


class ProfileFiles(ProfileBook):
    """One file for each base URL, model and server version; a damaged one harms only itself.

    Files are read at the first question for a model, and written whole or not at all. What another
    process writes meanwhile is seen by the next process.
    """

    def __init__(self, folder: Path) -> None:
        """Read nothing yet; the folder need not exist."""
        self._folder = folder
        self._known: dict[tuple[str, str], ModelProfile | None] = {}

    def find(self, model: ChatModel) -> ModelProfile | None:
        if model.base_url is None:
            return None
        key = (model.base_url, model.name)
        if key not in self._known:
            self._known[key] = self._newest(*key)
        return self._known[key]

    def keep(self, profile: ModelProfile) -> None:
        self._known[profile.base_url, profile.model] = profile
        version = hashlib.sha256((profile.server_version or "").encode()).hexdigest()[:12]
        name = f"{_start_of(profile.base_url, profile.model)}-{version}.json"
        with contextlib.suppress(OSError):  # a profile that is lost is measured again
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            _write(self._folder / name, json.dumps(encode(profile), indent=1))

    def profiles(self) -> Sequence[ModelProfile]:
        found = filter(None, map(_read, sorted(self._folder.glob("*.json"))))
        return sorted(found, key=lambda each: (each.model, each.base_url, each.measured_at))

    def _newest(self, base_url: str, model: str) -> ModelProfile | None:
        files = self._folder.glob(f"{_start_of(base_url, model)}-*.json")
        # Compared whole: the name is a digest, and the content anybody's.
        found = [
            each
            for each in filter(None, map(_read, files))
            if (each.base_url, each.model) == (base_url, model)
        ]
        return max(found, key=lambda each: each.measured_at, default=None)


def _start_of(base_url: str, model: str) -> str:
    return hashlib.sha256(f"{base_url}\n{model}".encode("utf-8", "surrogatepass")).hexdigest()[:24]


def _read(path: Path) -> ModelProfile | None:
    """The profile in the file; None: it cannot be read, or holds none."""
    try:
        content = read_regular(path, _MOST_BYTES)
        if len(content) > _MOST_BYTES:
            return None
        profile = decode(json.loads(content), ModelProfile)
    except (OSError, ValueError, RecursionError):
        return None
    return profile if profile.measured_at.tzinfo is not None else None


def _write(path: Path, text: str) -> None:
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".part")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
