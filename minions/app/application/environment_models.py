"""Models of an application, made with the keys that the environment has now."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path

from minions.app.settings.setting_sources import environment
from minions.app.settings.settings import Settings
from minions.app.wiring.models import ModelChoice, Models
from minions.engine.compile.extensions import Extensions, ModelSource
from minions.recipe.model import AgentRecipe

__all__ = ["EnvironmentModels"]


class EnvironmentModels:
    """Makes new models when the environment, and with it a key, has changed."""

    def __init__(self, extensions: Extensions) -> None:
        """No model is made yet."""
        self._extensions = extensions
        self._environ: Mapping[str, str] = {}
        self._models: Models | None = None
        self._replaced: list[Models] = []
        """Models with former keys, which active runs may still use."""

    def source(self, recipe: AgentRecipe, choice: ModelChoice) -> ModelSource:
        """See `Models.source`; scripts are looked up in the folder that is current then."""
        return self._current().source(recipe, choice)

    def _current(self) -> Models:
        environ = environment()
        if self._models is not None and environ == self._environ:
            return self._models
        if self._models is not None and self._models.has_made:
            self._replaced.append(self._models)
        self._environ = environ
        self._models = Models(
            Settings(), self._extensions, environ=environ, folder_of=lambda _: Path.cwd()
        )
        return self._models

    async def aclose(self) -> None:
        """Close every model that was made here."""
        current = [self._models] if self._models is not None else []
        async with contextlib.AsyncExitStack() as stack:
            for models in (*current, *self._replaced):
                stack.push_async_callback(models.aclose)
        self._models = None
        self._replaced.clear()
