"""`ProfileFiles`: the profiles of models in a folder of the user's, one file each."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from attrs import evolve

from minions.contracts.calls import ChatModel
from minions.contracts.model_profiles import Feature, ModelProfile, ProfileBook
from minions.data.bounded_files import read_regular
from minions.data.codec import decode, encode

_MOST_BYTES: Final = 65_536
"""Bytes of a file that is read; a larger one is no profile."""


class ProfileFiles(ProfileBook):
    """One file for each base URL, model and server version; a damaged one harms only itself.

    What was measured counts for all projects, what runs told for the project in which they ran:
    its lessons lie in a folder of their own, a file for each base URL and model.

    Files are read at the first question for a model, and written whole or not at all. What another
    process writes meanwhile is seen by the next process.
    """

    def __init__(
        self,
        folder: Path,
        *,
        project: str | None = None,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        """Read nothing yet; the folder need not exist.

        Args:
            project: The folder of the project; None: of none, whose lessons are in a place of their
                own.
            tell: Called with a line when a lesson begins or ceases to count; None: nobody is told.
        """
        self._folder = folder
        digest = hashlib.sha256((project or "").encode("utf-8", "surrogatepass")).hexdigest()[:24]
        self._lessons = folder / "learned" / digest
        self._tell = tell
        self._known: dict[tuple[str, str], ModelProfile | None] = {}

    def find(self, model: ChatModel) -> ModelProfile | None:
        if model.base_url is None:
            return None
        key = (model.base_url, model.name)
        if key not in self._known:
            self._known[key] = self._newest(*key)
        return self._known[key]

    def keep(self, profile: ModelProfile) -> None:
        profile = evolve(profile, lessons={}, is_learned=False)
        self._known[profile.base_url, profile.model] = profile
        with contextlib.suppress(OSError):
            self._lesson_file(profile.base_url, profile.model).unlink(missing_ok=True)
        version = hashlib.sha256((profile.server_version or "").encode()).hexdigest()[:12]
        name = f"{_start_of(profile.base_url, profile.model)}-{version}.json"
        with contextlib.suppress(OSError):  # a profile that is lost is measured again
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            _write(self._folder / name, json.dumps(encode(profile), indent=1))

    def learn(self, profile: ModelProfile, changed: Feature, *, is_told: bool) -> None:
        self._known[profile.base_url, profile.model] = profile
        lesson = profile.lessons[changed]
        # An answer that was held to is written once, which says that the server takes it; else each
        # answer would be a file.
        if lesson.is_news or is_told:
            file = self._lesson_file(profile.base_url, profile.model)
            told = evolve(profile, features={}, is_learned=True)
            with contextlib.suppress(OSError):
                self._lessons.mkdir(parents=True, exist_ok=True, mode=0o700)
                _write(file, json.dumps(encode(told), indent=1))
        if is_told and self._tell is not None:
            self._tell(profile.words_of(changed))

    def _lesson_file(self, base_url: str, model: str) -> Path:
        return self._lessons / f"{_start_of(base_url, model)}.json"

    def profiles(self) -> Sequence[ModelProfile]:
        """Those that were measured, and those that only runs of this project tell, with what they
        tell.
        """
        files = [*sorted(self._folder.glob("*.json")), *sorted(self._lessons.glob("*.json"))]
        names = {(each.base_url, each.model) for each in filter(None, map(_read, files))}
        newest = (self._newest(*name) for name in names)
        found = [each for each in newest if each is not None]
        return sorted(found, key=lambda each: (each.model, each.base_url, each.measured_at))

    def _newest(self, base_url: str, model: str) -> ModelProfile | None:
        files = self._folder.glob(f"{_start_of(base_url, model)}-*.json")
        # Compared whole: the name is a digest, and the content anybody's.
        found = [
            each
            for each in filter(None, map(_read, files))
            if (each.base_url, each.model) == (base_url, model)
        ]
        # Of a program that kept what single answers told as if it had been measured: nothing.
        measured = [each for each in found if not each.is_learned]
        profile = max(measured, key=lambda each: each.measured_at, default=None)
        told = _read(self._lesson_file(base_url, model))
        if told is None or (told.base_url, told.model) != (base_url, model):
            return profile
        return told if profile is None else evolve(profile, lessons=told.lessons)


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
    import tempfile  # here: it brings compressors along

    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".part")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
