"""`Runtime`: the parts of a process that its runs share, and the executors made of them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self, TypeAlias, TypedDict, Unpack

import attrs
from attrs import Factory, field, frozen
from msgspec import Struct
from msgspec.structs import replace

from minions.app.settings.settings import Settings, Strictness, TelemetrySettings
from minions.app.settings.user_folders import BorderSecret
from minions.app.wiring.built_in_extensions import (
    built_in_extensions,
    check_watch,
    extended,
    pattern_redactors,
)
from minions.app.wiring.chosen_models import user_profiles
from minions.app.wiring.configured_models import Cassettes, ModelChoice, Models
from minions.app.wiring.configured_prices import make_prices
from minions.app.wiring.configured_servers import make_mcp_toolsets
from minions.app.wiring.databases import make_cache, make_journal, make_state, state_beside
from minions.contracts.budgets import Budgets
from minions.contracts.calls import ChatModel
from minions.contracts.context import ToolCallExecutorFactory
from minions.contracts.decision_types import Decider, Deny
from minions.contracts.flow import FlowControl, Priority
from minions.contracts.journal.child_run_links import ChildRunQueue
from minions.contracts.journal.journal import Journal
from minions.contracts.metrics import Metrics
from minions.contracts.model_endpoints import check_base_url
from minions.contracts.runtime import Ids, IsWorkerGone, Log, PriceBook
from minions.contracts.steps import StepCache
from minions.data.errors import EnvironmentRefusedError, UsageError
from minions.engine.compile.extensions import (
    Extensions,
    JoinedAgents,
    ModelSource,
    NamedAgents,
    unknown_agent,
)
from minions.engine.compile.preparation import Preparation
from minions.engine.run.agent_executor import AgentExecutor
from minions.engine.services.flow.flow_control import SharedFlowControl
from minions.engine.services.run_services import Services
from minions.engine.step.next_step import NextStepChain
from minions.recipe.catalog import Catalog, FoundRecipe
from minions.recipe.model import AgentRecipe
from minions.recipe.model_config import ModelConfig
from minions.recipe.reading.load import load_recipe, load_recipe_text
from minions.recipe.reading.sub_recipes import recipe_files
from minions.recipe.recipe_files import (
    SUFFIXES,
    USUAL_FOLDER,
    NamedFiles,
    find_recipe,
    is_recipe_text,
    recipe_ids,
)

if TYPE_CHECKING:
    from minions.adapters.telemetry.otel_variables import OtlpTarget
    from minions.contracts.patience import Patience
    from minions.contracts.tracing import Tracer
    from minions.engine.services.run_pause import RunPause

ModelsOfRecipe: TypeAlias = Callable[[AgentRecipe, ModelChoice], ModelSource | ChatModel]
"""Returns the models that answer the steps of one recipe."""
Closer: TypeAlias = Callable[[], Awaitable[None]]
"""Closes one part that was opened."""


class ServiceChanges(TypedDict, total=False):
    """The services in which runtimes of one process differ."""

    journal: Journal
    cache: StepCache | None
    prices: PriceBook | None
    decider: Decider
    flow: FlowControl | None
    metrics: Metrics
    priority: Priority | None
    ids: Ids
    worker_id: str
    is_worker_gone: IsWorkerGone
    children: ChildRunQueue | None
    pause: RunPause | None
    patience: Patience | None


@frozen(kw_only=True, eq=False, repr=False)
class Runtime:
    """The parts that all runs of a process, command or application share, made once."""

    models: ModelsOfRecipe
    extensions: Extensions
    services: Services
    tool_calls: ToolCallExecutorFactory | None = None
    """Executes tool calls; None: the run's toolbox does."""
    next_step_chain: NextStepChain | None = None
    """Chooses among several next steps; None: the usual rules do."""
    is_strict: bool | Strictness = False
    """Whether untrusted text may reach no tool with an effect in any recipe, as with `strict: true`
    in each; and whether what recipes say themselves makes it harmless.
    """
    recipes: CompiledRecipes = Factory(
        lambda self: self._compile_recipes(self.extensions), takes_self=True
    )
    """The recipe store of the process: recipes by path or id, read once."""
    preparation: Preparation = Factory(lambda self: Preparation(self.extensions), takes_self=True)
    cassettes: Cassettes | None = None
    """Records the calls of models, or answers them; None: nothing does."""
    recipe_folders: tuple[Path, ...] = ()
    """The server's folders of recipes, whose recipes are agents; empty: `recipes` below the current
    folder.
    """
    closers: tuple[Closer, ...] = field(default=(), repr=False)
    """Closes the parts that were opened for this runtime, in this order."""

    @property
    def catalog(self) -> Catalog:
        """Everything that recipes may name, for the static checks."""
        return self.recipes.catalog

    @property
    def agents(self) -> NamedAgents:
        """What can be run by name: what extensions register, then the recipes in folders."""
        return JoinedAgents(
            (self.extensions.named_agents(), FolderAgents(self.recipes, self.recipe_folders))
        )

    def executor(self, recipe: AgentRecipe, choice: ModelChoice | None = None) -> AgentExecutor:
        """An executor for runs of that recipe; it shares compiled recipes with all others.

        Args:
            choice: None: the recipe's own models, or the configured one.
        """
        return AgentExecutor(
            self.models(recipe, choice or ModelChoice()),
            extensions=self.extensions,
            services=self.services,
            tool_call_executor_factory=self.tool_calls,
            next_step_chain=self.next_step_chain,
            preparation=self.preparation,
            agents=self.agents,
        )

    def named_model(self, recipe: AgentRecipe, config: ModelConfig) -> ChatModel:
        """The model that a step of the recipe with that configuration would use."""
        models = self.models(recipe, ModelChoice())
        return models if isinstance(models, ChatModel) else models(config)

    def evolve(
        self,
        *,
        models: ModelSource | ChatModel | None = None,
        extensions: Extensions | None = None,
        tool_calls: ToolCallExecutorFactory | None = None,
        **services: Unpack[ServiceChanges],
    ) -> Runtime:
        """This runtime with other parts. Both share what was opened: close one of them.

        Args:
            models: Answer instead of the models that recipes name.
            services: Fields of `Services`. A journal or cache given here is the caller's to close.
        """
        changes: _Changes = {}
        if extensions is not None:
            # Recipes that were compiled with other extensions may differ.
            changes = {
                "extensions": extensions,
                "recipes": self._compile_recipes(extensions),
                "preparation": Preparation(extensions),
            }
        if services:
            changes["services"] = attrs.evolve(self.services, **services)
        if models is not None:
            changes["models"] = _always(models)
        if tool_calls is not None:
            changes["tool_calls"] = tool_calls
        return attrs.evolve(self, **changes)

    def _compile_recipes(self, extensions: Extensions) -> CompiledRecipes:
        catalog, operator = extensions.catalog(), self.services.operator
        return CompiledRecipes(
            replace(catalog, strict=self.is_strict, operator=operator, check_watch=check_watch)
        )

    async def aclose(self) -> None:
        """Close the parts that were opened for it."""
        async with contextlib.AsyncExitStack() as stack:
            for close in reversed(self.closers):
                stack.push_async_callback(close)

    async def __aenter__(self) -> Self:
        """Return the runtime; nothing is opened before it is needed."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Call `aclose`."""
        await self.aclose()


class _Changes(TypedDict, total=False):
    """Fields of a `Runtime`."""

    models: ModelsOfRecipe
    extensions: Extensions
    services: Services
    tool_calls: ToolCallExecutorFactory
    recipes: CompiledRecipes
    preparation: Preparation


def _always(models: ModelSource | ChatModel) -> ModelsOfRecipe:
    return lambda _recipe, _choice: models


def make_runtime(
    settings: Settings,
    extensions: Extensions,
    *,
    environ: Mapping[str, str],
    folder_of: Callable[[str], Path],
    log: Log,
    services: Services | None = None,
    recipe_folders: tuple[Path, ...] = (),
    warn: Callable[[str], None] | None = None,
    project: str | None = None,
) -> Runtime:
    """A runtime as the operator configured it; opens nothing yet.

    Args:
        extensions: The operator's own, added to the built-in ones.
        folder_of: From a settings key to the folder where relative paths under it start.
        services: Services that the caller closes; None: made from `settings`.
        recipe_folders: As for a `Catalog`.
        warn: Called with a line about things that slow model calls down; None: the models' logger.
        project: The folder of the project in which runs are made; None: that of the services.
    Raises:
        UsageError: A setting is wrong.
    """
    from minions.adapters.tools.file_restorer import LocalFileRestorer

    folder = folder_of("db")
    state = make_state(settings, folder)
    servers = make_mcp_toolsets(settings, folder_of, environ)
    extensions = extended(built_in_extensions(state, servers), extensions)
    if patterns := pattern_redactors(settings.redaction.patterns):
        extensions = extended(extensions, Extensions(redactors=patterns))
    telemetry = make_telemetry(settings, environ, warn or _warn_of_telemetry)
    tracer = services.tracer if services is not None and services.tracer else telemetry.tracer
    closers: tuple[Closer, ...] = (state.aclose,)
    is_given = services is not None
    if services is None:
        journal, cache = make_journal(settings, folder), make_cache(settings, folder)
        services = make_services(journal, log, make_prices(settings), cache, warn)
        # A cassette tells what was known of the servers when it was recorded.
        if not settings.no_store and settings.replay is None:
            services = attrs.evolve(
                services, profiles=user_profiles(project, warn), border_secret=BorderSecret()
            )
        closers = (cache.aclose, journal.aclose, state.aclose)
    cassettes = Cassettes(
        settings,
        folder_of=folder_of,
        warn=warn or (lambda line: log.warning("cassette_incomplete", reason=line)),
        profiles=services.profiles,
    )
    models = Models(
        settings,
        extensions,
        environ=environ,
        folder_of=folder_of,
        recipe_folders=recipe_folders,
        warn=warn,
        trace_headers=tracer.headers if tracer is not None else None,
        cassettes=cassettes,
    )
    services = _with_telemetry(services, telemetry)
    if project is not None:
        services = attrs.evolve(services, project=project)
    if not is_given or services.operator is None:
        services = attrs.evolve(services, operator=settings.operator_rules(environ))
    if settings.journal.signing_key_file is not None or settings.journal.anchor_url is not None:
        from minions.app.wiring.signed_heads import make_heads

        heads = make_heads(
            settings,
            services.journal,
            state,
            clock=services.clock,
            sleep=services.sleep,
            log=services.log,
            secrets=services.secrets,
        )
        services = attrs.evolve(services, heads=services.heads or heads)
    if settings.redaction.kinds:
        services = attrs.evolve(services, redact=settings.redaction.kinds)
    if (retain_s := settings.journal.retain_s) is not None:
        services = attrs.evolve(services, retain_s=retain_s)
    closers = (servers.aclose, models.aclose, *closers)
    if (close := telemetry.close) is not None:
        closers = (_off_the_loop(close), *closers)
    if services.file_restorer is None:
        services = attrs.evolve(services, file_restorer=LocalFileRestorer())
    if services.budgets is None and settings.budgets != Budgets():
        from minions.engine.services.shared_budgets import SharedBudgets

        store = state_beside(services.journal) if is_given else state
        closers = (*closers, store.aclose) if is_given else closers
        budgets = SharedBudgets(
            settings.budgets,
            store,
            sleep=services.sleep,
            is_worker_gone=services.is_worker_gone,
        )
        services = attrs.evolve(services, budgets=budgets)
    return Runtime(
        models=models.source,
        extensions=extensions,
        services=services,
        is_strict=settings.strict,
        recipe_folders=recipe_folders,
        cassettes=cassettes,
        closers=closers,
    )


def _with_telemetry(services: Services, telemetry: Telemetry) -> Services:
    """The services with what an application has not chosen itself."""
    if telemetry.tracer is not None and services.tracer is None:
        services = attrs.evolve(services, tracer=telemetry.tracer)
    if telemetry.metrics is not None and type(services.metrics) is Metrics:
        services = attrs.evolve(services, metrics=telemetry.metrics)
    return services


def _off_the_loop(close: Callable[[], None]) -> Closer:
    async def closed() -> None:
        await asyncio.to_thread(close)

    return closed


def _warn_of_telemetry(line: str) -> None:
    logging.getLogger("minions.telemetry").warning("%s", line)


def make_services(
    journal: Journal,
    log: Log,
    prices: PriceBook | None = None,
    cache: StepCache | None = None,
    warn: Callable[[str], None] | None = None,
) -> Services:
    """Real services, with the full output parser; calls that need approval are denied.

    Args:
        warn: Called with a line about calls that wait for one another; None: the models' logger.
    """
    from minions.adapters.models.structured_output import InstructorParser

    services = Services(
        journal=journal,
        parser=InstructorParser(),
        log=log,
        prices=prices,
        decider=Deny(),
        cache=cache,
    )
    if warn is None:
        return services
    flow = SharedFlowControl(services.clock, services.sleep, services.random, warn=warn)
    return attrs.evolve(services, flow=flow)


# --- the recipes in folders as agents that can be run by name ------------------------------------


@frozen(eq=False, repr=False)
class FolderAgents(NamedAgents):
    """The recipes in some folders, by id: a name is never taken as a path."""

    recipes: CompiledRecipes
    """Reads the files; each once, as long as it does not change."""
    folders: tuple[Path, ...] = ()
    """The server's folders of recipes; empty: `recipes` below the current folder."""

    def names(self) -> Sequence[str]:
        """The ids of all recipes there; of each file only its head is read."""
        return tuple(self._paths())

    def find(self, name: str) -> AgentRecipe:
        """The recipe of that id."""
        paths = self._paths()
        if name not in paths:
            raise unknown_agent(name, tuple(paths))
        self._list_allowed().check(paths[name], name)  # a link may lead elsewhere
        return self.recipes.get(paths[name])

    def _paths(self) -> dict[str, Path]:
        return recipe_ids(self.folders or (USUAL_FOLDER,), self._list_allowed().hold)

    def _list_allowed(self) -> NamedFiles:
        return NamedFiles(Path.cwd(), self.folders)


# --- reads recipes by path or id, once; they are read again when one of their files has changed---


_Stamp: TypeAlias = tuple[int, int, int]
"""A file's time of change in ns, its size in bytes, and its inode."""


class _CompiledRecipe(Struct, frozen=True):
    """A recipe, and the stamps of its files when it was read."""

    recipe: AgentRecipe
    stamps: Mapping[str, _Stamp | None]

    def is_current(self) -> bool:
        """Whether none of its files has changed."""
        return all(_stamp(path) == stamp for path, stamp in self.stamps.items())


class CompiledRecipes:
    """The recipes that one runtime has read."""

    def __init__(self, catalog: Catalog) -> None:
        """Nothing is read yet.

        Args:
            catalog: Everything that recipes may name.
        """
        self.catalog = catalog
        self._compiled: dict[str, _CompiledRecipe] = {}

    def get(self, source: str | Path) -> AgentRecipe:
        """The recipe at that path, of that id under `recipes`, or with this YAML or JSON text.

        A text of several lines is YAML, one that begins with a brace JSON; it is read each time.

        Raises:
            RecipeError: Has every fault that was found.
            NotFoundError: There is no such file and no such id.
            UsageError: It cannot be read, or it is neither a text nor a path.
        """
        if not isinstance(source, str | Path):
            raise UsageError(
                f"{source!r:.80} is no recipe: give an AgentRecipe, a path, the id of one under "
                f"{USUAL_FOLDER}, YAML text of several lines, or JSON text.",
                code="no-recipe",
            )
        if isinstance(source, str) and is_recipe_text(source):
            return load_recipe_text(source, "<recipe>", self.catalog)
        path = os.path.abspath(_file(source))  # noqa: PTH100  # links are followed by no one here
        known = self._compiled.get(path)
        if known is None or not known.is_current():
            known = self._compiled[path] = self._read(path, str(source))
        return known.recipe

    def _read(self, path: str, source: str) -> _CompiledRecipe:
        files = [path]
        home = NamedFiles(Path(path).parent)

        def find(name: str, directory: str | None) -> FoundRecipe:
            found = recipe_files(name, directory, home)
            files.append(found.file)
            return found

        before = _stamps(files)  # a file that changes while it is read is read again
        named = source if source.endswith(SUFFIXES) else path
        recipe = load_recipe(named, replace(self.catalog, find_recipe=find))
        return _CompiledRecipe(recipe, {**_stamps(files), **before})


def _file(source: str | Path) -> Path:
    if isinstance(source, Path):
        return source
    return find_recipe(source, [USUAL_FOLDER])


def _stamps(files: Iterable[str]) -> dict[str, _Stamp | None]:
    return {path: _stamp(path) for path in files}


def _stamp(path: str) -> _Stamp | None:
    """The stamp of a file; None: it does not exist."""
    try:
        known = os.stat(path)  # noqa: PTH116  # asked for at every run
    except OSError:
        return None
    return known.st_mtime_ns, known.st_size, known.st_ino


# --- traces and metrics as the operator asks for them --------------------------------------------


_VARIABLE: Final = "OTEL_EXPORTER_OTLP_"
_USUAL_PLACE: Final = "http://localhost:4318"
"""Where a collector on this machine takes OTLP over HTTP."""
_DISABLED: Final = "OTEL_SDK_DISABLED"
_CONTENT: Final = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
_OF_SPANS: Final = ("true", "1", "span_only", "span_and_event")
_HTTP: Final = ("", "http/protobuf")


class Telemetry(Struct, frozen=True, kw_only=True):
    """What traces and counts; None each: nothing does."""

    tracer: Tracer | None = None
    metrics: Metrics | None = None
    close: Callable[[], None] | None = None
    """Sends what is left. None: there is nothing to close."""


def make_telemetry(
    settings: Settings, environ: Mapping[str, str], warn: Callable[[str], None]
) -> Telemetry:
    """The tracer and the metrics that were asked for.

    Args:
        warn: Called with one line where only the environment asks for them, and they cannot be had.
    Raises:
        EnvironmentRefusedError: The settings ask for them, and the extra `otel` is not installed,
            or a variable of OpenTelemetry cannot be followed.
        UsageError: `bad-base-url`; the collector's address is none.
    """
    asked = settings.telemetry
    if environ.get(_DISABLED, "").strip().lower() == "true":
        return Telemetry()
    try:
        target = _target(asked, environ)
        if target is None:
            return Telemetry()
        from minions.adapters.telemetry.otel_variables import check_variables

        check_variables(target, environ)
        return _open_telemetry(target, environ, has_content=_has_content(asked, environ), warn=warn)
    except (EnvironmentRefusedError, UsageError) as refused:
        if asked.traces or asked.metrics:
            raise
        warn(f"OTEL_* variables ask for telemetry, and there is none: {refused.message}")
        return Telemetry()


def _open_telemetry(
    target: OtlpTarget,
    environ: Mapping[str, str],
    *,
    has_content: bool,
    warn: Callable[[str], None],
) -> Telemetry:
    try:
        from minions.adapters.telemetry.open_telemetry import (
            OpenTelemetryMetrics,
            OpenTelemetryTracer,
        )
        from minions.adapters.telemetry.otlp import open_providers

        providers = open_providers(target, environ, warn)
    except ImportError as error:
        raise EnvironmentRefusedError(
            "Traces and metrics need the extra `otel`: pip install 'minions-engine[otel]' "
            f"({error}).",
            code="missing-extra",
        ) from error
    except ValueError as error:  # of the process's variables, where `environ` is another one
        raise EnvironmentRefusedError(
            f"OpenTelemetry refuses one of its variables: {error!s:.300}.", code="bad-telemetry"
        ) from error
    tracer = metrics = None
    if providers.traces is not None:
        from minions.contracts.tracing import TRACE_HEADERS

        said = {name: environ.get(name.upper()) for name in TRACE_HEADERS}
        parent = {name: value for name, value in said.items() if value is not None}
        tracer = OpenTelemetryTracer(providers.traces, has_content=has_content, parent=parent)
    if providers.metrics is not None:
        metrics = OpenTelemetryMetrics(providers.metrics)
    return Telemetry(tracer=tracer, metrics=metrics, close=providers.close)


def _target(asked: TelemetrySettings, environ: Mapping[str, str]) -> OtlpTarget | None:
    traces = _url(asked.traces, asked, environ, "traces")
    metrics = _url(asked.metrics, asked, environ, "metrics")
    if traces is None and metrics is None:
        return None
    from minions.adapters.telemetry.otel_variables import OtlpTarget

    return OtlpTarget(traces_url=traces, metrics_url=metrics)


def _url(
    is_wanted: bool | None, asked: TelemetrySettings, environ: Mapping[str, str], signal: str
) -> str | None:
    """Where that signal goes; None: nobody asks for it."""
    own_name = f"{_VARIABLE}{signal.upper()}_ENDPOINT"
    own, base = environ.get(own_name, ""), environ.get(f"{_VARIABLE}ENDPOINT", "")
    if is_wanted is None:
        is_wanted = _is_exported(environ, signal, has_endpoint=bool(own or base))
    if not is_wanted:
        return None
    _check_protocol(environ, signal)
    if asked.endpoint is None and own:
        check_base_url(own.partition("?")[0], own_name, f"{_USUAL_PLACE}/v1/{signal}")
        return own.strip()
    if asked.endpoint is not None:
        url = check_base_url(asked.endpoint, "`endpoint` of [telemetry]", _USUAL_PLACE)
    else:
        url = check_base_url(base or _USUAL_PLACE, f"{_VARIABLE}ENDPOINT", _USUAL_PLACE)
    return f"{url}/v1/{signal}"


def _is_exported(environ: Mapping[str, str], signal: str, *, has_endpoint: bool) -> bool:
    """Whether OpenTelemetry's variables ask for that signal."""
    name = f"OTEL_{signal.upper()}_EXPORTER"
    exporter = environ.get(name, "")
    if exporter in ("", "otlp"):
        return has_endpoint or exporter == "otlp"
    if exporter != "none":
        raise EnvironmentRefusedError(
            f"{name} is '{exporter:.40}'; {signal} are sent to a collector only: "
            f"{name}=otlp, or none.",
            code="bad-telemetry",
        )
    return False


def _has_content(asked: TelemetrySettings, environ: Mapping[str, str]) -> bool:
    return asked.content or environ.get(_CONTENT, "").lower() in _OF_SPANS


def _check_protocol(environ: Mapping[str, str], signal: str) -> None:
    own, of_all = f"{_VARIABLE}{signal.upper()}_PROTOCOL", f"{_VARIABLE}PROTOCOL"
    name = own if environ.get(own) else of_all
    protocol = environ.get(name, "")
    if protocol not in _HTTP:
        raise EnvironmentRefusedError(
            f"{name} is '{protocol:.40}'; {signal} are sent as http/protobuf. "
            f"Collectors take that on port 4318: {name}=http/protobuf.",
            code="bad-telemetry",
        )
