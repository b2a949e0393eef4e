"""The only place that knows everything: settings to models, journals, toolsets and executors."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from attrs import evolve

from minions.adapters.stores.postgres_url import is_postgres_url, without_password
from minions.adapters.stores.state_store import MemoryState, StateStore
from minions.adapters.tools.date_time import date_time_tools
from minions.adapters.tools.state import state_tools
from minions.analysis.spending import KnowModel, KnownModel
from minions.contracts.calls import ChatModel, OutputMode
from minions.contracts.decisions import Decider, Deny
from minions.contracts.errors import EnvironmentRefusedError, UsageError, near_hint, near_names
from minions.contracts.journal import Journal
from minions.contracts.messages import TokenUsage
from minions.contracts.runtime import Log, PriceBook
from minions.contracts.step_cache import StepCache
from minions.contracts.tools import Toolbox, Toolset
from minions.interfaces.built_in_toolsets import BuiltInToolsets
from minions.interfaces.settings import Settings
from minions.recipe.catalog import Catalog
from minions.recipe.model import AgentRecipe, ModelConfig
from minions.recipe.project_folders import NamedFiles

if TYPE_CHECKING:
    from minions.adapters.models.endpoints import OperatorModels
    from minions.engine.compile.extensions import Extensions, ModelSource
    from minions.engine.services.services import Services

if TYPE_CHECKING:  # `validate` needs none, and facts take their time to load
    from minions.contracts.journal import Journal

__all__ = [
    "Models",
    "built_in_extensions",
    "built_in_tools",
    "built_in_toolsets",
    "catalog_of",
    "database_of",
    "default_database",
    "extended",
    "has_database",
    "knowledge_of_models",
    "make_cache",
    "make_journal",
    "make_log",
    "make_prices",
    "make_services",
    "make_state",
    "place_of_journal",
    "postgres_of",
]

SCRIPTED: Final = "scripted/"
_MODEL_OF_KEY: Final = {
    "OPENAI_API_KEY": "openai/gpt-5-mini",
    "ANTHROPIC_API_KEY": "anthropic/claude-haiku-4-5",
}
"""Which model a bare key means: each provider's small one."""


def built_in_toolsets() -> Mapping[str, Toolset]:
    """What comes along; nothing is opened."""
    return BuiltInToolsets(lambda: datetime.now(UTC))


def built_in_tools(state: StateStore | None = None) -> Toolbox:
    """Tools that every recipe may use without naming their toolset; nothing is opened.

    Args:
        state: Where `saveState` keeps its values; None: in memory.
    """
    tools = (*state_tools(state or MemoryState()), *date_time_tools(lambda: datetime.now(UTC)))
    return Toolbox(tools)


def built_in_extensions(state: StateStore | None = None) -> Extensions:
    """Both, as the operator brings his own."""
    from minions.engine.compile.extensions import Extensions

    return Extensions(toolsets=built_in_toolsets(), tools=built_in_tools(state))


def extended(base: Extensions, own: Extensions) -> Extensions:
    """What comes along and what the operator brought; under one name the operator's counts."""
    from minions.engine.compile.extensions import Extensions

    kept = tuple(tool for tool in base.tools if tool.spec.name not in own.tools)
    return Extensions(
        toolsets={**base.toolsets, **own.toolsets} if own.toolsets else base.toolsets,
        tools=own.tools.plus(kept),
        links={**base.links, **own.links},
        models={**base.models, **own.models},
        recipes={**base.recipes, **own.recipes},
        steps={**base.steps, **own.steps},
    )


def catalog_of(extensions: Extensions) -> Catalog:
    """What recipes may name, for the static checks."""
    return extensions.catalog()


# --- models -----------------------------------------------------------------------------------


class Models:
    """Gives each configuration its model, made once; closes them at the end."""

    def __init__(
        self,
        settings: Settings,
        extensions: Extensions,
        *,
        environ: Mapping[str, str],
        override: str | None = None,
        asked_as: str | None = None,
        command: str = "run",
        recipe_folders: tuple[Path, ...] = (),
        warn: Callable[[str], None] | None = None,
    ) -> None:
        """Configure.

        Args:
            warn: Told of what slows calls down; None: a logger of the models'.
            override: `provider/name` that answers whatever recipes name.
            asked_as: How the caller named the recipe, for commands to try.
            command: The command that was called, likewise.
            recipe_folders: As of a `Catalog`.
        """
        self._recipe_folders = recipe_folders
        self._warn = warn
        self._settings = settings
        self._extensions = extensions
        self._environ = environ
        self._override = override
        self._asked_as = asked_as
        self._command = command
        self._made: dict[tuple[str, ModelConfig, Path], ChatModel] = {}
        self._own: dict[int, ChatModel] = {}

    def source(self, recipe: AgentRecipe, folder_of: Callable[[str], Path]) -> ModelSource:
        """The source for one recipe: scripts it names lie in its own folder.

        Args:
            folder_of: A settings key to the folder where scripts named under it lie.
        """
        return lambda config: self._get(config, recipe, folder_of)

    def _for(self, name: str, config: ModelConfig) -> ModelConfig:
        """The settings that go with that model: a server belongs to the model it was named with."""
        if self._override is None or name == config.name:
            return config
        return evolve(config, name=name, base_url=None, api_key_env=None, output_mode=None)

    @property
    def has_made(self) -> bool:
        """Whether there is any to close."""
        return bool(self._own)

    async def aclose(self) -> None:
        """Close every model that was made here; those of extensions belong to the operator."""
        async with contextlib.AsyncExitStack() as stack:
            for model in self._own.values():
                stack.push_async_callback(model.aclose)

    def _get(
        self, config: ModelConfig, recipe: AgentRecipe, folder_of: Callable[[str], Path]
    ) -> ChatModel:
        own = self._override is None and config.name is not None
        name = self._override or config.name or self._fallback(recipe)
        is_offline = not own and name == self._settings.offline_models.get(recipe.id)
        home = folder_of("offline_models" if is_offline and not self._override else "model")
        if own and recipe.directory:
            home = Path(recipe.directory)
        if own and name.startswith(SCRIPTED) and name not in self._extensions.models:
            NamedFiles(home, self._recipe_folders).check(_script_path(name, home), name)
        key = (name, self._for(name, config), home)
        model = self._made.get(key)
        if model is None:
            model = self._made[key] = self._make(*key)
        return model

    def _fallback(self, recipe: AgentRecipe) -> str:
        """What answers when neither recipe nor flag names a model.

        Raises:
            EnvironmentRefusedError: Nothing is configured; three commands to try.
        """
        if self._settings.model is not None:
            return self._settings.model
        for variable, name in _MODEL_OF_KEY.items():
            if self._environ.get(variable):
                return name
        offline = self._settings.offline_models.get(recipe.id)
        if offline is not None:
            return offline
        named = recipe.id if self._asked_as is None else self._asked_as
        asked = f"minions {self._command} {named}".rstrip()
        scripts = [name for name in self._extensions.models if name.startswith(SCRIPTED)]
        offline_try = f"-m {scripts[0]}" if scripts else "-m scripted/answers.yaml"
        raise EnvironmentRefusedError(
            f"Recipe '{recipe.id}' needs a model and none is configured. Try one of:\n"
            f"  {asked} -m ollama/llama3.2   (a local server, no key)\n"
            f"  OPENAI_API_KEY=… {asked}   (OpenAI)\n"
            f"  {asked} {offline_try}   (scripted answers, offline)",
            code="no-model",
        )

    def _make(self, name: str, config: ModelConfig, folder: Path) -> ChatModel:
        if name in self._extensions.models:
            return self._extensions.models[name]
        is_script = name.startswith(SCRIPTED)
        model = self._scripted(name, folder) if is_script else self._endpoint(name, config)
        self._own[id(model)] = model
        return model

    def _scripted(self, name: str, folder: Path) -> ChatModel:
        from minions.adapters.models.scripted import ScriptedModel

        path = _script_path(name, folder)
        if path.suffix not in (".yaml", ".yml"):
            known = [other for other in self._extensions.models if other.startswith(SCRIPTED)]
            near = near_names(name, known)
            hint = near_hint(near)
            raise UsageError(
                f"No scripted model '{name}' is registered.{hint} Registered: "
                f"{', '.join(known) or 'none'}; or name a file: scripted/ANSWERS.yaml.",
                code="unknown-model",
                suggestions=near,
            )
        return ScriptedModel.from_yaml(path)

    def _endpoint(self, name: str, config: ModelConfig) -> ChatModel:
        from minions.adapters.models.endpoints import resolve_endpoint
        from minions.adapters.models.openai import OpenAIModel

        endpoint = resolve_endpoint(name, config, self._environ, _operator(self._settings))
        capabilities = endpoint.capabilities
        if config.output_mode is not None:
            capabilities = evolve(capabilities, output_mode=config.output_mode)
        return OpenAIModel(
            provider=endpoint.provider,
            model=endpoint.model,
            base_url=endpoint.base_url,
            api_key=endpoint.api_key,
            capabilities=capabilities,
            max_requests=self._settings.max_model_requests,
            warn=self._warn,
        )


def _script_path(name: str, folder: Path) -> Path:
    return folder / name.removeprefix(SCRIPTED)


def _operator(settings: Settings) -> OperatorModels:
    from minions.adapters.models.endpoints import OperatorModels, ProviderConfig

    providers = {
        name: ProviderConfig(
            base_url=provider.base_url,
            api_key_env=provider.api_key_env,
            output_mode=_output_mode(name, provider.output_mode),
            tools_with_schema=provider.tools_with_schema,
        )
        for name, provider in settings.providers.items()
    }
    return OperatorModels(
        providers=providers,
        trusted_hosts=frozenset(settings.trusted_hosts),
        recipe_key_variables=frozenset(settings.recipe_key_variables),
    )


def _output_mode(name: str, text: str | None) -> OutputMode | None:
    if text is None:
        return None
    try:
        return OutputMode(text)
    except ValueError as error:
        modes = ", ".join(OutputMode)
        raise UsageError(
            f"providers.{name}.output_mode is {text!r}; expected one of {modes}.",
            code="bad-configuration",
        ) from error


# --- journal, logs, services ---------------------------------------------------------------------


def default_database() -> Path:
    """Where the command line keeps its journal."""
    from platformdirs import user_data_path

    return user_data_path("minions") / "journal.sqlite"


def database_of(settings: Settings, folder: Path) -> Path:
    """The configured database file, where it is a file (`postgres_of`).

    Raises:
        UsageError: A URL of another kind.
    """
    if settings.db is None:
        return default_database()
    text = settings.db.removeprefix("sqlite:///")
    if "://" in text:
        raise UsageError(
            f"db={without_password(settings.db)!r}: expected PATH or sqlite:///PATH of an SQLite "
            "file, or postgresql://USER@HOST/DATABASE.",
            code="unknown-database",
        )
    return (folder / Path(text).expanduser()).resolve()


def postgres_of(settings: Settings) -> str | None:
    """The URL of the configured PostgreSQL database, with its password; None: it is a file."""
    return settings.db if settings.db is not None and is_postgres_url(settings.db) else None


def place_of_journal(settings: Settings, folder: Path) -> str:
    """Where the journal is, in words that may be shown.

    Raises:
        UsageError: A URL of another kind.
    """
    url = postgres_of(settings)
    return without_password(url) if url is not None else str(database_of(settings, folder))


def has_database(settings: Settings, folder: Path) -> bool:
    """Whether there may be one already: a server is not asked."""
    return postgres_of(settings) is not None or database_of(settings, folder).exists()


def make_journal(settings: Settings, folder: Path) -> Journal:
    """SQLite or PostgreSQL, or memory with `no_store`; opens nothing yet."""
    from minions.engine.services.services import SystemClock

    if settings.no_store:
        from minions.engine.services.memory_journal import MemoryJournal

        return MemoryJournal(SystemClock())
    if (url := postgres_of(settings)) is not None:
        from minions.adapters.stores.postgres_journal import PostgresJournal

        return PostgresJournal(url, SystemClock())
    from minions.adapters.stores.sqlite_journal import SqliteJournal

    return SqliteJournal(database_of(settings, folder), SystemClock())


def make_state(settings: Settings, folder: Path) -> StateStore:
    """In the journal's database, or memory with `no_store`; opens and loads nothing yet."""
    if settings.no_store:
        return MemoryState()
    if (url := postgres_of(settings)) is not None:
        from minions.adapters.stores.postgres_state import PostgresState

        return PostgresState(url)
    from minions.adapters.stores.sqlite_state import SqliteState

    return SqliteState(database_of(settings, folder))


def make_cache(settings: Settings, folder: Path) -> StepCache:
    """In the journal's database, memory with `no_store`, none with `no_cache`; opens nothing."""
    from minions.adapters.stores.memory_step_cache import MemoryStepCache, NoStepCache

    if settings.no_cache:
        return NoStepCache()
    if settings.no_store:
        return MemoryStepCache()
    if (url := postgres_of(settings)) is not None:
        from minions.adapters.stores.postgres_step_cache import PostgresStepCache

        return PostgresStepCache(url)
    from minions.adapters.stores.sqlite_step_cache import SqliteStepCache

    return SqliteStepCache(database_of(settings, folder))


def make_log(settings: Settings, write: Callable[[str], None]) -> Log:
    """A structured log with `debug`, nothing otherwise; never a global configuration."""
    if not settings.debug:
        from minions.engine.services.services import NullLog

        return NullLog()
    import structlog

    class _Lines:
        def msg(self, message: str) -> None:
            write(message)

        info = warning = msg

    logger = structlog.wrap_logger(
        _Lines(),
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.KeyValueRenderer(key_order=["timestamp", "level", "event"]),
        ],
        wrapper_class=structlog.BoundLogger,
    )
    return cast(Log, logger.bind())


def make_prices(settings: Settings) -> PriceBook:
    """The operator's over the bundled ones; loads nothing yet."""
    from minions.adapters.models.prices import GenaiPriceBook, OwnPrice

    own = {
        name: OwnPrice(
            input_per_mtok=price.input_per_mtok,
            output_per_mtok=price.output_per_mtok,
            cached_input_per_mtok=price.cached_input_per_mtok,
        )
        for name, price in settings.prices.items()
    }
    return GenaiPriceBook(own)


def knowledge_of_models(settings: Settings, environ: Mapping[str, str]) -> KnowModel:
    """Context and price of each model that a recipe would ask today; no key is needed."""
    prices, now = make_prices(settings), datetime.now(UTC)

    def know(config: ModelConfig) -> KnownModel:
        name = config.name or settings.model
        if name is None:
            return KnownModel(name=None)
        url = _server_of(name, config, settings, environ)

        def cost_usd(usage: TokenUsage) -> float | None:
            return prices.cost_usd(name, usage, at=now, base_url=url)

        context = prices.context_tokens(name, base_url=url)
        return KnownModel(name=name, context_tokens=context, cost_usd=cost_usd)

    return know


def _server_of(
    name: str, config: ModelConfig, settings: Settings, environ: Mapping[str, str]
) -> str | None:
    """None: no server, or none that is configured."""
    from minions.adapters.models.endpoints import base_url_of

    try:
        return base_url_of(name, config, environ, _operator(settings))
    except UsageError:
        return config.base_url


def make_services(
    journal: Journal,
    log: Log,
    prices: PriceBook | None = None,
    decider: Decider | None = None,
    cache: StepCache | None = None,
) -> Services:
    """The real world, with the full output parser."""
    from minions.adapters.models.structured_output import InstructorParser
    from minions.engine.services.services import Services

    return Services(
        journal=journal,
        parser=InstructorParser(),
        log=log,
        prices=prices,
        decider=decider or Deny(),
        cache=cache,
    )


def environment() -> Mapping[str, str]:
    """The process's environment, read once where everything is wired."""
    return dict(os.environ)
