"""The type of the fixture `cassette`: models that are recorded once, and replayed afterwards."""

from __future__ import annotations

import contextlib
import hashlib
import re
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from minions.adapters.models.cassette_models import Cassette, CassetteRecorder, RecordingModel
from minions.app.application.synchronous_run import wait_for
from minions.app.settings.setting_sources import environment, load_settings, user_settings_file
from minions.app.settings.user_folders import FolderTrust
from minions.app.wiring.configured_models import ModelChoice, Models
from minions.app.wiring.extension_files import load_extensions
from minions.contracts.calls import ChatModel
from minions.data.errors import UsageError
from minions.engine.compile.extensions import Extensions
from minions.recipe.model import AgentRecipe
from minions.recipe.model_config import ModelConfig

__all__ = ["CassetteModels", "cassette_path"]


def cassette_path(test_file: Path, test_name: str) -> Path:
    """`cassettes/TEST_FILE/TEST_NAME.jsonl` beside the file of the test.

    Args:
        test_name: With its class and parameters; what no file name may have becomes `-`, and a
            digest is added then.
    """
    safe = re.sub(r"[^A-Za-z0-9_.-]", "-", test_name)[:120]
    if safe != test_name:
        safe = f"{safe}-{hashlib.sha256(test_name.encode()).hexdigest()[:8]}"
    return test_file.parent / "cassettes" / test_file.stem / f"{safe}.jsonl"


class CassetteModels:
    """Call it with a model to get one that is recorded, or that answers from the recording."""

    def __init__(self, path: Path, *, is_recording: bool, folder: Path | None = None) -> None:
        """Nothing is opened yet.

        Args:
            path: The cassette of the test.
            is_recording: Whether models are asked; an older cassette is replaced at the end, if one
                has answered and the test has passed.
            folder: Where the search for `minions.toml` starts, whose providers and models have
                names; None: the current one.
        """
        self.path = path
        self.is_recording = is_recording
        self._folder = folder
        self._recorder: CassetteRecorder | None = None
        self._cassette: Cassette | None = None
        self._models: Models | None = None

    def __call__(self, model: str | ChatModel | Callable[[], ChatModel]) -> ChatModel:
        """The model for the test.

        Args:
            model: `provider/name`; or a model, or a function that makes it while it is recorded,
                for models that cannot be made without their key.
        Raises:
            UsageError: `bad-cassette`; it was not recorded. While it is recorded, as for a model of
                that name on the command line.
            EnvironmentRefusedError: While it is recorded: the model has no key, or the cassette
                cannot be written.
        """
        return self._recording(model) if self.is_recording else self._replaying(model)

    @property
    def misses(self) -> Sequence[str]:
        """What is said of each request that was not recorded."""
        return self._cassette.misses if self._cassette is not None else ()

    @property
    def unused(self) -> str | None:
        """How many recorded calls nobody asked for, and what the first asks; None: there are none.

        After a miss, too, there are none: it says what differs.
        """
        cassette = self._cassette
        if cassette is None or cassette.misses or not (count := cassette.calls_left):
            return None
        calls = "1 recorded call was" if count == 1 else f"{count} recorded calls were"
        return f"{self.path}: {calls} not asked for. The first is {cassette.first_left}"

    def close(self, *, has_passed: bool = True) -> None:
        """Close the cassette, and models that were made by their name.

        A recording becomes the cassette if the test has passed, or if there was none; else it is
        left beside it, as `NAME.jsonl.new`, with a warning.

        Args:
            has_passed: Whether the test has.
        Raises:
            OSError: The recording cannot take the place of the cassette; it lies beside it.
        """
        try:
            if self._recorder is not None:
                self._end(self._recorder, has_passed=has_passed)
        finally:
            if self._models is not None:
                wait_for(self._models.aclose())

    def _recording(self, model: str | ChatModel | Callable[[], ChatModel]) -> ChatModel:
        asked, label = self._asked(model)  # first: without a model, no file is made
        if self._recorder is None:
            with contextlib.suppress(OSError):  # the recorder says what is the matter
                folder = self.path.parent
                folder.mkdir(parents=True, exist_ok=True)
            self._recorder = CassetteRecorder(self._new, warn=warnings.warn, replaces=True)
        return RecordingModel(asked, self._recorder, name=label)

    @property
    def _new(self) -> Path:
        """Where it is recorded: the cassette was paid for, and stays until another one is good."""
        return self.path.with_name(f"{self.path.name}.new")

    def _end(self, recorder: CassetteRecorder, *, has_passed: bool) -> None:
        has_older = self.path.exists()
        is_good = has_passed and not recorder.is_broken
        if recorder.has_answers and (is_good or not has_older):
            recorder.close(move_to=self.path)
            return
        recorder.close()
        stays = f"The cassette {self.path} stays as it was"
        if recorder.has_answers:
            why = "the test did not pass" if not has_passed else "not all could be recorded"
            warnings.warn(f"{stays}, since {why}. The new recording is {self._new}.", stacklevel=3)
        elif recorder.has_calls and has_older:
            warnings.warn(f"{stays}: no model has answered, so nothing was recorded.", stacklevel=3)

    def _asked(
        self, model: str | ChatModel | Callable[[], ChatModel]
    ) -> tuple[ChatModel, str | None]:
        """The model that is asked, and the name that it is recorded under; None: its own."""
        if isinstance(model, ChatModel):
            return model, None
        if callable(model):
            return model(), _ONLY
        self._models = self._models or self._configured()
        choice = ModelChoice(override=model, folder=Path.cwd())
        source = self._models.source(AgentRecipe(id="cassette", steps=[]), choice)
        return source(ModelConfig()), model

    def _configured(self) -> Models:
        """Models as the command line has them: of `minions.toml`, the environment and the user."""
        environ = environment()
        origin = load_settings(
            {},
            environ,
            folder=self._folder or Path.cwd(),
            user_file=user_settings_file(),
            trust=FolderTrust.of(environ),
        )
        if origin.unread is not None:
            words = f"{origin.unread.words} For pytest `MINIONS_TRUST=1` does."
            warnings.warn(words, stacklevel=2)
        names, folder = origin.settings.extensions, origin.folder_of("extensions")
        return Models(
            origin.settings,
            load_extensions(names, folder, Extensions()),
            environ=environ,
            folder_of=origin.folder_of,
        )

    def _replaying(self, model: str | ChatModel | Callable[[], ChatModel]) -> ChatModel:
        if self._cassette is None:
            if not self.path.is_file():
                raise UsageError(
                    f"There is no cassette {self.path}. Record it with `{_RECORD_BY}`, which asks "
                    "the real models; none is made where no model has answered.",
                    code="bad-cassette",
                )
            self._cassette = Cassette.read(self.path, record_by=_RECORD_BY)
        if isinstance(model, ChatModel):
            return self._cassette.model(model.name)
        return self._cassette.model(_ONLY if callable(model) else model)


_ONLY: Final = "own"
"""The name of a model that a function makes."""
_RECORD_BY: Final = "pytest --minions-record"
