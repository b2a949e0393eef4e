"""The type of the fixture `cassette`: models that are recorded once, and replayed afterwards."""

from __future__ import annotations

import hashlib
import re
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

from minions.adapters.models.recorded import Cassette, CassetteRecorder, RecordingModel
from minions.contracts.calls import ChatModel
from minions.contracts.errors import UsageError
from minions.engine.compile.extensions import Extensions
from minions.interfaces.environment_models import EnvironmentModels
from minions.interfaces.synchronous_run import wait_for
from minions.interfaces.wiring.models import ModelChoice
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

    def __init__(self, path: Path, *, is_recording: bool) -> None:
        """Nothing is opened yet.

        Args:
            path: The cassette of the test.
            is_recording: Whether models are asked; an older cassette is replaced then.
        """
        self.path = path
        self.is_recording = is_recording
        self._recorder: CassetteRecorder | None = None
        self._cassette: Cassette | None = None
        self._environment = EnvironmentModels(Extensions())

    def __call__(self, model: str | ChatModel | Callable[[], ChatModel]) -> ChatModel:
        """The model for the test.

        Args:
            model: `provider/name`; or a model, or a function that makes it while it is recorded,
                for models that cannot be made without their key.
        Raises:
            UsageError: `bad-cassette`; it was not recorded.
        """
        return self._recording(model) if self.is_recording else self._replaying(model)

    @property
    def misses(self) -> Sequence[str]:
        """What is said of each request that was not recorded."""
        return self._cassette.misses if self._cassette is not None else ()

    def close(self) -> None:
        """Close the cassette, and models that were made by their name."""
        if self._recorder is not None:
            self._recorder.close()
        wait_for(self._environment.aclose())

    def _recording(self, model: str | ChatModel | Callable[[], ChatModel]) -> ChatModel:
        if self._recorder is None:
            self.path.unlink(missing_ok=True)
            self._recorder = CassetteRecorder(self.path, warn=warnings.warn)
        if isinstance(model, ChatModel):
            return RecordingModel(model, self._recorder)
        if callable(model):
            return RecordingModel(model(), self._recorder, name=_ONLY)
        recipe = AgentRecipe(id="cassette", steps=[])
        source = self._environment.source(recipe, ModelChoice(override=model))
        return RecordingModel(source(ModelConfig()), self._recorder, name=model)

    def _replaying(self, model: str | ChatModel | Callable[[], ChatModel]) -> ChatModel:
        if self._cassette is None:
            if not self.path.is_file():
                raise UsageError(
                    f"There is no cassette {self.path}. Record it with "
                    "`pytest --minions-record`, which asks the real models.",
                    code="bad-cassette",
                )
            self._cassette = Cassette.read(self.path)
        if isinstance(model, ChatModel):
            return self._cassette.model(model.name)
        return self._cassette.model(_ONLY if callable(model) else model)


_ONLY = "own"
"""The name of a model that a function makes."""
