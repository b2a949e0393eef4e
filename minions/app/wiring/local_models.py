"""The models of `local`: which weights a name means, and who may name them."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from minions.app.settings.settings import Settings
from minions.app.settings.user_folders import user_cache_folder
from minions.data.errors import EnvironmentRefusedError, UsageError

if TYPE_CHECKING:
    from minions.adapters.models.local.engines import LocalEngines, Server
    from minions.adapters.models.local.local_model import LocalModel
    from minions.adapters.models.local.weights import FindPackage, WeightsStore
    from minions.adapters.models.openai import OpenAIModel

    MakeOpenAI = Callable[[str, Server, int], OpenAIModel]


_SUFFIX: Final = ".gguf"
_ENGINE: Final = "xllamacpp"
_MOST_CONTEXT: Final = 8192
"""Tokens of a context where none is set: memory grows with it."""
_SLOTS: Final = 2


def most_context(settings: Settings) -> int:
    """The most tokens that a context of the engine has, whatever the weights are."""
    return settings.local.context_tokens or _MOST_CONTEXT


def weights_store(find_package: FindPackage | None = None) -> WeightsStore:
    """The user's weights; reads nothing yet."""
    from minions.adapters.models.local.weights import WeightsStore

    return WeightsStore(user_cache_folder() / "models", find_package or folder_of_package)


def folder_of_package(name: str) -> Path | None:
    """The folder of an installed package, which is not imported; None: it is not installed."""
    try:
        found = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None
    places = list(found.submodule_search_locations or ()) if found is not None else []
    return Path(places[0]) if places else None


def check_local_name(
    name: str, settings: Settings, folder_of: Callable[[str], Path], home: Path
) -> None:
    """Refuse weights that a recipe may not name. Native code reads them, so that a file of a
    stranger is like code: it has to lie where the operator said.

    Args:
        folder_of: From a settings key to the folder where relative paths under it start.
        home: The recipe's folder.
    Raises:
        UsageError: `weights-refused`.
    """
    said = _read_said(name)
    if not said.endswith(_SUFFIX):
        return
    start, named = folder_of("local"), settings.local.folders
    roots = [os.path.realpath(start / Path(each).expanduser()) for each in named]
    place = Path(os.path.realpath(home / Path(said).expanduser()))
    if any(place.is_relative_to(root) for root in roots):
        return
    raise UsageError(
        f"The recipe names the weights '{said:.200}', a file that native code would read. A recipe "
        "may name 'local', what was pulled ('local/NAME'), and files in folders that the operator "
        f"lists as `folders` under [local] in minions.toml. Or choose it yourself: -m {name:.200}.",
        code="weights-refused",
    )


def _read_said(name: str) -> str:
    """What stands behind the provider; of `local` alone the name of the model in the box."""
    from minions.adapters.models.local.weights import IN_THE_BOX

    return name.partition("/")[2] or IN_THE_BOX.name


def _processors() -> int:
    """The processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class LocalModels:
    """Makes the models of `local`, which share their engines; closes these at the end."""

    def __init__(
        self,
        settings: Settings,
        *,
        folder_of: Callable[[str], Path],
        find_package: FindPackage = folder_of_package,
        engines: LocalEngines | None = None,
        processors: Callable[[], int] = _processors,
    ) -> None:
        """No engine is started yet."""
        self._settings = settings
        self._folder_of = folder_of
        self._find_package = find_package
        self._engines = engines
        self._processors = processors

    def check(self, name: str, home: Path) -> None:
        """Refuse weights that a recipe in that folder may not name.

        Raises:
            UsageError: `weights-refused`.
        """
        check_local_name(name, self._settings, self._folder_of, home)

    def make(self, name: str, folder: Path, make_client: MakeOpenAI) -> LocalModel:
        """The model of that name.

        Args:
            folder: Where a relative path starts.
            make_client: Makes the model for a server, by its name, URL and key.
        Raises:
            EnvironmentRefusedError: `missing-extra`, `missing-weights`.
            UsageError: `bad-weights`.
        """
        from minions.adapters.models.local.engines import EngineSpec, LocalEngines
        from minions.adapters.models.local.gguf import read_gguf_head
        from minions.adapters.models.local.local_model import LocalModel
        from minions.contracts.calls import ModelCapabilities

        packages = self._packages()
        said = _read_said(name)
        path = self._path(said, folder)
        known = weights_store(self._find_package).known
        head, settings = read_gguf_head(path), self._settings.local
        spec = EngineSpec(
            name=said,
            weights=path,
            packages=str(packages),
            context_tokens=settings.context_tokens
            or min(head.context_tokens or _MOST_CONTEXT, _MOST_CONTEXT),
            slots=settings.max_concurrency or _SLOTS,
            threads=settings.threads or self._processors(),
            context_bytes=head.bytes_per_token,
        )
        if self._engines is None:
            self._engines = LocalEngines()
        return LocalModel(
            self._engines.engine(spec),
            lambda server: make_client(said, server, spec.slots),
            ModelCapabilities(takes_tools=said != known.name or known.takes_tools),
        )

    async def aclose(self) -> None:
        """End the engines; a later call starts new ones."""
        if self._engines is not None:
            await self._engines.aclose()

    def _packages(self) -> Path:
        folder = self._find_package(_ENGINE)
        if folder is None:
            raise EnvironmentRefusedError(
                f"The models of `local` need the package '{_ENGINE}', which is not installed. "
                "Type these two commands:\n"
                "  pip install 'minions-engine[local]'\n"
                "  minions models pull",
                code="missing-extra",
                suggestions=("pip install 'minions-engine[local]'", "minions models pull"),
            )
        return folder.parent

    def _path(self, said: str, folder: Path) -> Path:
        if not said.endswith(_SUFFIX):
            return weights_store(self._find_package).require(said).path
        return (folder / Path(said).expanduser()).resolve()
