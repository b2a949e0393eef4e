"""The cassette of a process: calls of its models are recorded, or answered from a recording."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from minions.app.settings.settings import Settings
from minions.contracts.calls import ChatModel, ModelCapabilities
from minions.data.errors import UsageError

if TYPE_CHECKING:
    from minions.adapters.models.recorded import Cassette, CassetteRecorder, ReplayModel
    from minions.contracts.model_profiles import ProfileBook
    from minions.recipe.model_config import ModelConfig


REPLAY: Final = "replay/"
"""Begins the name of a model that answers from a cassette: `replay/FILE`."""
_MOST_BYTES: Final = 4_194_304
"""Bytes of a cassette that a recipe or `-m` names: it is read while other runs wait."""


def replayed_file(name: str, folder: Path) -> ReplayModel:
    """The model `replay/FILE`, whose file lies in that folder.

    Raises:
        UsageError: `bad-cassette`; it cannot be read, or has calls of several models.
    """
    from minions.adapters.models.recorded import Cassette

    path = folder / name.removeprefix(REPLAY)
    return Cassette.read(path, most_bytes=_MOST_BYTES).model()


class Cassettes:
    """Records the models of a process, or answers in their place. Opens a file at its first use."""

    def __init__(
        self,
        settings: Settings,
        *,
        folder_of: Callable[[str], Path],
        warn: Callable[[str], None],
        profiles: ProfileBook | None = None,
    ) -> None:
        """Nothing is opened yet.

        Args:
            folder_of: From a settings key to the folder where relative paths under it start.
            warn: Called with a line about a cassette that is incomplete.
            profiles: What was measured of servers; None: nothing.
        Raises:
            UsageError: Both are asked for.
        """
        if settings.record is not None and settings.replay is not None:
            raise UsageError(
                "--record and --replay exclude each other: what a cassette answers is recorded."
            )
        self._record = None if settings.dry_run else settings.record
        self._replay = settings.replay
        self._folder_of = folder_of
        self._warn = warn
        self._profiles = profiles
        self._recorder: CassetteRecorder | None = None
        self._cassette: Cassette | None = None
        self._named: list[Cassette] = []
        """Those that recipes and `-m` name as models."""

    @property
    def is_replaying(self) -> bool:
        """Whether a cassette answers in place of all models."""
        return self._replay is not None

    def check(self) -> None:
        """Read the cassette that answers, where one does.

        Raises:
            UsageError: `bad-cassette`.
        """
        if self.is_replaying:
            self._opened()

    def model(self, name: str | None, config: ModelConfig) -> ChatModel:
        """The model that answers from the cassette.

        Args:
            name: As it was asked for when the cassette was recorded; None: no name is configured.
        Raises:
            UsageError: `bad-cassette`.
        """
        return self._opened().model(None if name is None else _label(name, config))

    def recorded(self, model: ChatModel, name: str, config: ModelConfig) -> ChatModel:
        """The model, which records its calls under that name if they are to be recorded.

        Raises:
            UsageError, EnvironmentRefusedError: The cassette cannot be recorded.
        """
        if self._record is None:
            return model
        from minions.adapters.models.recorded import CassetteRecorder, RecordingModel

        if self._recorder is None:
            path = self._folder_of("record") / self._record
            self._recorder = CassetteRecorder(path, warn=self._warn)
        return RecordingModel(
            model, self._recorder, name=_label(name, config), measured=self._measured
        )

    def named(self, name: str, folder: Path) -> ChatModel:
        """The model `replay/FILE`, whose file lies in that folder; its misses count, too.

        Raises:
            UsageError: `bad-cassette`; it cannot be read, or has calls of several models.
        """
        model = replayed_file(name, folder)
        self._named.append(model.cassette)
        return model

    @property
    def misses(self) -> Sequence[str]:
        """What is said of each request that a cassette did not answer."""
        return [each for cassette in self._all for each in cassette.misses]

    @property
    def calls_left(self) -> int:
        """Number of recorded calls that nobody asked for."""
        return sum(cassette.calls_left for cassette in self._all)

    @property
    def first_left(self) -> str | None:
        """What the first of these asks; None: there is none."""
        return next((each for each in (of.first_left for of in self._all) if each), None)

    @property
    def _all(self) -> Sequence[Cassette]:
        return [*([self._cassette] if self._cassette is not None else []), *self._named]

    def close(self) -> None:
        """Close the cassette that is recorded."""
        if self._recorder is not None:
            self._recorder.close()

    def _opened(self) -> Cassette:
        from minions.adapters.models.recorded import Cassette

        if self._cassette is None:
            path = self._folder_of("replay") / (self._replay or "")
            self._cassette = Cassette.read(path)
            if self._cassette.is_cut:
                self._warn(
                    f"note: the last line of the cassette {path} is incomplete, and is left out: "
                    "the process that recorded it was killed"
                )
        return self._cassette

    def _measured(self, model: ChatModel) -> ModelCapabilities:
        profile = self._profiles.find(model) if self._profiles is not None else None
        declared = model.capabilities
        if profile is None:
            return declared
        from minions.contracts.runtime import SystemClock

        return profile.at(SystemClock().now()).applied(declared)


def _label(name: str, config: ModelConfig) -> str:
    """The name with what a step says of the way to ask for output: it makes other requests."""
    mode, ladder = config.output_mode, config.output_ladder
    wishes = [*([mode.value] if mode is not None else []), *(ladder or ())]
    return f"{name} ({', '.join(wishes)})" if wishes else name
