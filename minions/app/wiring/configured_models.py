"""Makes the models of configurations, each once."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from attrs import evolve
from msgspec import Struct

from minions.app.settings.settings import Settings
from minions.contracts.calls import ChatModel, ModelCapabilities
from minions.contracts.instructions import OutputMode, OutputRung
from minions.contracts.model_endpoints import ModelApi
from minions.data.errors import EnvironmentRefusedError, UsageError, near_hint, near_names
from minions.data.texts import shell_word
from minions.recipe.model import AgentRecipe
from minions.recipe.model_config import LOCAL_MODEL, ModelConfig
from minions.recipe.recipe_files import NamedFiles

if TYPE_CHECKING:
    from minions.adapters.models.cassette_models import Cassette, CassetteRecorder, ReplayModel
    from minions.adapters.models.endpoints import OperatorModels
    from minions.adapters.models.local.engines import Server
    from minions.adapters.models.openai import OpenAIModel
    from minions.app.wiring.local_models import LocalModels
    from minions.contracts.model_profiles import ProfileBook
    from minions.engine.compile.extensions import Extensions, ModelSource
    from minions.recipe.catalog import CheckModel

SCRIPTED: Final = "scripted/"
_LITELLM: Final = "litellm/"
_MODEL_OF_KEY: Final = {
    "OPENAI_API_KEY": "openai/gpt-5-mini",
    "ANTHROPIC_API_KEY": "anthropic/claude-haiku-4-5",
    "GEMINI_API_KEY": "gemini/gemini-2.5-flash",
}
"""The model that an API key alone selects: each provider's small one."""


class ModelChoice(Struct, frozen=True, kw_only=True):
    """Which model was chosen for one run, and by which command."""

    override: str | None = None
    """`provider/name` that answers instead of the recipe's models; None: the recipe's models."""
    folder: Path | None = None
    """The folder of a script that `override` names; None: the one that settings say."""
    asked_as: str | None = None
    """How the caller named the recipe, for commands in messages; None: its id."""
    command: str = "run"
    """The command that was called, for commands in messages."""


class Models:
    """Makes the model of each configuration once, and closes them at the end."""

    def __init__(
        self,
        settings: Settings,
        extensions: Extensions,
        *,
        environ: Mapping[str, str],
        folder_of: Callable[[str], Path],
        recipe_folders: tuple[Path, ...] = (),
        warn: Callable[[str], None] | None = None,
        local: LocalModels | None = None,
        trace_headers: Callable[[], Mapping[str, str]] | None = None,
        cassettes: Cassettes | None = None,
    ) -> None:
        """No model is made yet.

        Args:
            folder_of: From a settings key to the folder of the scripts that it names.
            recipe_folders: As for a `Catalog`.
            warn: Called with a line about things that slow calls down; None: the models' logger.
            local: Makes the models of `local`; None: as the settings say.
            trace_headers: As for an `HttpModel`.
            cassettes: Records calls or answers them; None: nothing does.
        """
        self._cassettes = cassettes
        self._local = local
        self._settings = settings
        self._offline_models = settings.offline_models
        self._extensions = extensions
        self._environ = environ
        self._folder_of = folder_of
        self._recipe_folders = recipe_folders
        self._warn = warn
        self._trace_headers = trace_headers
        self._made: dict[tuple[str, ModelConfig, Path], ChatModel] = {}
        self._own: dict[int, ChatModel] = {}

    def source(self, recipe: AgentRecipe, choice: ModelChoice | None = None) -> ModelSource:
        """The models of one recipe; scripts that it names are in its own folder.

        Args:
            choice: None: the recipe's own models, or the configured one.
        """
        chosen = choice or ModelChoice()
        from minions.app.wiring.chosen_models import ChosenModels

        return ChosenModels(lambda config: self._get(config, recipe, chosen), chosen.override)

    @property
    def _local_models(self) -> LocalModels:
        if self._local is None:
            from minions.app.wiring.local_models import LocalModels

            self._local = LocalModels(self._settings, folder_of=self._folder_of)
        return self._local

    @property
    def has_made(self) -> bool:
        """Whether there is any to close."""
        return bool(self._own)

    async def aclose(self) -> None:
        """Close every model that was made here; those of extensions belong to the operator."""
        async with contextlib.AsyncExitStack() as stack:
            if self._cassettes is not None:
                stack.callback(self._cassettes.close)
            if self._local is not None:
                stack.push_async_callback(self._local.aclose)
            for model in self._own.values():
                stack.push_async_callback(model.aclose)

    def _get(self, config: ModelConfig, recipe: AgentRecipe, choice: ModelChoice) -> ChatModel:
        if self._cassettes is not None and self._cassettes.is_replaying:
            asked = choice.override or config.name or self._settings.model
            return self._cassettes.model(asked, _config_for(config, asked or "", choice))
        name = choice.override or config.name or self._fallback(recipe, choice)
        is_own = choice.override is None and config.name is not None
        home = self._home(recipe, choice, name, is_own=is_own)
        if is_own and _names_file(name) and name not in self._extensions.models:
            NamedFiles(home, self._recipe_folders).check(_file_of(name, home), name)
        if is_own and is_local(name, self._settings):
            self._local_models.check(name, home)
        key = (name, _config_for(config, name, choice), home)
        model = self._made.get(key)
        if model is None:
            model = self._made[key] = self._record_model(*key)
        return model

    def _record_model(self, name: str, config: ModelConfig, folder: Path) -> ChatModel:
        model = self._make_model(name, config, folder)
        return model if self._cassettes is None else self._cassettes.recorded(model, name, config)

    def _home(self, recipe: AgentRecipe, choice: ModelChoice, name: str, *, is_own: bool) -> Path:
        """The folder of a script with that name.

        Args:
            is_own: Whether the recipe itself names it.
        """
        if is_own:
            return Path(recipe.directory) if recipe.directory else self._folder_of("model")
        if choice.override is not None:
            return choice.folder or self._folder_of("model")
        is_offline = name == self._offline_models.get(recipe.id)
        return self._folder_of("offline_models" if is_offline else "model")

    def _fallback(self, recipe: AgentRecipe, choice: ModelChoice) -> str:
        """The model that answers when neither recipe nor flag names one.

        Raises:
            EnvironmentRefusedError: `no-model`; none is configured. It has four commands to try.
        """
        if self._settings.model is not None:
            return self._settings.model
        for variable, name in _MODEL_OF_KEY.items():
            if self._environ.get(variable):
                return name
        offline = self._offline_models.get(recipe.id)
        if offline is not None:
            return offline
        raise self._no_model(recipe, choice)

    def _no_model(self, recipe: AgentRecipe, choice: ModelChoice) -> EnvironmentRefusedError:
        named = recipe.id if choice.asked_as is None else choice.asked_as
        asked = f"minions {choice.command} {named}".rstrip()
        scripts = self._registered_scripts()
        offline_try = f"-m {scripts[0]}" if scripts else "-m scripted/answers.yaml"
        return EnvironmentRefusedError(
            f"Recipe '{recipe.id}' needs a model and none is configured. Try one of:\n"
            f"  {asked} -m local   (a small model that comes along; see minions models)\n"
            f"  {asked} -m ollama/llama3.2   (a local server, no key)\n"
            f"  OPENAI_API_KEY=… {asked}   (OpenAI)\n"
            f"  {asked} {offline_try}   (scripted answers, offline)",
            code="no-model",
        )

    def _registered_scripts(self) -> list[str]:
        return [name for name in self._extensions.models if name.startswith(SCRIPTED)]

    def _make_model(self, name: str, config: ModelConfig, folder: Path) -> ChatModel:
        if name in self._extensions.models:
            return self._extensions.models[name]
        model = self._new(name, config, folder)
        self._own[id(model)] = model
        return model

    def _new(self, name: str, config: ModelConfig, folder: Path) -> ChatModel:
        if name.startswith(SCRIPTED):
            return self._script(name, folder)
        if name.startswith(REPLAY):
            named = replayed_file if self._cassettes is None else self._cassettes.named
            return named(name, folder)
        if config.base_url is None and is_local(name, self._settings):
            return self._local_models.make(name, folder, self._local_client)
        if _is_of_litellm(name, config, self._settings):
            return self._litellm(name, config)
        return self._endpoint(name, config)

    def _litellm(self, name: str, config: ModelConfig) -> ChatModel:
        from minions.adapters.models.litellm_model import LiteLLMModel, secrets_of

        return LiteLLMModel(
            name.removeprefix(_LITELLM),
            capabilities=_with_wishes(ModelCapabilities(), config),
            secrets=secrets_of(self._environ),
            max_requests=self._settings.max_model_requests,
        )

    def _local_client(self, name: str, server: Server, slots: int) -> OpenAIModel:
        from minions.adapters.models.openai import OpenAIModel

        return OpenAIModel(
            name,
            base_url=server.base_url,
            api_key=server.key,
            provider="local",
            capabilities=ModelCapabilities(takes_batches=False),
            max_requests=slots,
            warn=self._warn,
            trace_headers=self._trace_headers,
        )

    def _script(self, name: str, folder: Path) -> ChatModel:
        from minions.adapters.models.scripted import ScriptedModel

        path = _file_of(name, folder)
        if path.suffix not in (".yaml", ".yml"):
            known = self._registered_scripts()
            near = near_names(name, known)
            raise UsageError(
                f"No scripted model '{name}' is registered.{near_hint(near)} Registered: "
                f"{', '.join(known) or 'none'}; or name a file: scripted/ANSWERS.yaml.",
                code="unknown-model",
                suggestions=near,
            )
        return ScriptedModel.from_yaml(path)

    def _endpoint(self, name: str, config: ModelConfig) -> ChatModel:
        from minions.adapters.models.endpoints import resolve_endpoint

        operator = operator_models(self._settings)
        endpoint = resolve_endpoint(name, config, self._environ, operator)
        capabilities = _with_wishes(endpoint.capabilities, config)
        return _class_for(endpoint.api)(
            provider=endpoint.provider,
            model=endpoint.model,
            base_url=endpoint.base_url,
            api_key=endpoint.api_key,
            headers=endpoint.headers,
            capabilities=capabilities,
            max_requests=endpoint.limits.max_concurrency or self._settings.max_model_requests,
            limits=endpoint.limits,
            warn=self._warn,
            trace_headers=self._trace_headers,
        )


def _class_for(api: ModelApi) -> Callable[..., ChatModel]:
    """The class of models of that form; loaded when the first one is made."""
    match api:
        case ModelApi.CHAT:
            from minions.adapters.models.openai import OpenAIModel

            return OpenAIModel
        case ModelApi.RESPONSES:
            from minions.adapters.models.responses import ResponsesModel

            return ResponsesModel
        case ModelApi.MESSAGES:
            from minions.adapters.models.anthropic import AnthropicModel

            return AnthropicModel
        case ModelApi.GEMINI:
            from minions.adapters.models.gemini import GeminiModel

            return GeminiModel


def _with_wishes(capabilities: ModelCapabilities, config: ModelConfig) -> ModelCapabilities:
    """The capabilities with the way to ask for output that the recipe says."""
    if config.output_mode is not None:
        capabilities = evolve(capabilities, output_mode=config.output_mode, is_mode_declared=True)
    ladder = config.output_ladder
    if ladder is None:
        return capabilities
    modes = tuple(mode for mode in OutputMode if mode.value in ladder)
    modes = tuple(sorted(modes, key=lambda mode: ladder.index(mode.value)))
    rungs = tuple(rung for rung in OutputRung if rung.value in ladder)
    capabilities = evolve(capabilities, output_rungs=rungs)
    if not modes:
        return capabilities
    return evolve(
        capabilities, output_mode=modes[0], fallback_modes=modes[1:], is_mode_declared=True
    )


def _config_for(config: ModelConfig, name: str, choice: ModelChoice) -> ModelConfig:
    """The configuration for the model `name`; server settings do not apply to another model. How
    outputs are asked for holds for any, unless the recipe says it of a model that it names.
    """
    if choice.override is None or name == config.name:
        return config
    return evolve(
        config,
        name=name,
        base_url=None,
        api_key_env=None,
        output_mode=config.output_mode if config.name is None else None,
        output_ladder=config.output_ladder if config.name is None else None,
        tiers=None,
        fallbacks=None,
        cooldown_s=None,
        min_confidence=None,
    )


def _is_of_litellm(name: str, config: ModelConfig, settings: Settings) -> bool:
    """Whether LiteLLM's package is asked; a configured address is that of its proxy.

    Raises:
        UsageError: The recipe says which key to send: LiteLLM looks for its keys itself.
    """
    provider = settings.providers.get(_LITELLM.rstrip("/"))
    is_proxy = config.base_url is not None or (provider is not None and provider.base_url)
    if not name.startswith(_LITELLM) or is_proxy:
        return False
    if config.api_key_env is not None:
        raise UsageError(
            f"The model '{name}' has `api_key_env`, but LiteLLM looks for keys itself, under the "
            "names that its providers have. Leave it out.",
            code="key-not-allowed",
        )
    return True


def _names_file(name: str) -> bool:
    """Whether the model is a file: a script or a cassette."""
    return name.startswith((SCRIPTED, REPLAY))


def _file_of(name: str, folder: Path) -> Path:
    return folder / name.partition("/")[2]


def operator_models(settings: Settings) -> OperatorModels:
    """The operator's providers, and the servers that a recipe's own settings may reach."""
    from minions.adapters.models.endpoints import OperatorModels, ProviderConfig
    from minions.contracts.model_endpoints import EndpointLimits

    providers = {
        name: ProviderConfig(
            base_url=provider.base_url,
            api_key_env=provider.api_key_env,
            output_mode=provider.output_mode,
            tools_with_schema=provider.tools_with_schema,
            strict=provider.strict,
            api=provider.api,
            images=provider.images,
            prompt_cache=provider.prompt_cache,
            prompt_cache_retention=provider.prompt_cache_retention,
            deferred_tools=provider.deferred_tools,
            batches=provider.batches,
            context_tokens=provider.context_tokens,
            headers=provider.headers,
            limits=EndpointLimits(
                max_concurrency=provider.max_concurrency,
                requests_per_minute=provider.requests_per_minute,
                tokens_per_minute=provider.tokens_per_minute,
            ),
        )
        for name, provider in settings.providers.items()
    }
    return OperatorModels(
        providers=providers,
        trusted_hosts=frozenset(settings.trusted_hosts),
        recipe_key_variables=frozenset(settings.recipe_key_variables),
    )


def _check_file(name: str, folder: Path) -> None:
    """Refuse a script or cassette that is not there; a name that is no file's is one of code's.

    Raises:
        UsageError: `bad-script`, `bad-cassette`.
    """
    path = _file_of(name, folder)
    if name.startswith(REPLAY) and not path.is_file():
        raise UsageError(
            f"There is no cassette '{path}'. Record it beside the recipe with `minions run RECIPE "
            f"--record {shell_word(path.name)}`, or name another model.",
            code="bad-cassette",
        )
    if path.suffix in (".yaml", ".yml") and not path.is_file():
        raise UsageError(
            f"There is no script '{path}'. Write it beside the recipe, or name another model.",
            code="bad-script",
        )


def model_check(
    settings: Settings, environ: Mapping[str, str], folder_of: Callable[[str], Path]
) -> CheckModel:
    """A check of recipes' models that asks no server. A key that is missing in `environ` is no
    fault: the recipe may run elsewhere. A script that a recipe names has to be there.
    """

    def check(config: ModelConfig, file: str) -> None:
        name = config.name or ""
        if _names_file(name):
            _check_file(name, Path(file).parent)
            return
        if config.base_url is None and is_local(name, settings):
            from minions.app.wiring.local_models import check_local_name

            check_local_name(name, settings, folder_of, Path(file).parent)
            return
        if _is_of_litellm(name, config, settings):
            from minions.adapters.models.litellm_model import check_litellm_name

            check_litellm_name(name.removeprefix(_LITELLM))
            return
        from minions.adapters.models.endpoints import resolve_endpoint

        with contextlib.suppress(EnvironmentRefusedError):
            resolve_endpoint(name, config, environ, operator_models(settings))

    return check


# --- the cassette of a process -------------------------------------------------------------------


REPLAY: Final = "replay/"
"""Begins the name of a model that answers from a cassette: `replay/FILE`."""
_MOST_BYTES: Final = 4_194_304
"""Bytes of a cassette that a recipe or `-m` names: it is read while other runs wait."""


def replayed_file(name: str, folder: Path) -> ReplayModel:
    """The model `replay/FILE`, whose file lies in that folder.

    Raises:
        UsageError: `bad-cassette`; it cannot be read, or has calls of several models.
    """
    from minions.adapters.models.cassette_models import Cassette

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
            self._open_cassette()

    def model(self, name: str | None, config: ModelConfig) -> ChatModel:
        """The model that answers from the cassette.

        Args:
            name: As it was asked for when the cassette was recorded; None: no name is configured.
        Raises:
            UsageError: `bad-cassette`.
        """
        return self._open_cassette().model(None if name is None else _label(name, config))

    def recorded(self, model: ChatModel, name: str, config: ModelConfig) -> ChatModel:
        """The model, which records its calls under that name if they are to be recorded.

        Raises:
            UsageError, EnvironmentRefusedError: The cassette cannot be recorded.
        """
        if self._record is None:
            return model
        from minions.adapters.models.cassette_models import CassetteRecorder, RecordingModel

        if self._recorder is None:
            path = self._folder_of("record") / self._record
            self._recorder = CassetteRecorder(path, warn=self._warn)
        return RecordingModel(
            model, self._recorder, name=_label(name, config), measured=self._find_capabilities
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

    def _open_cassette(self) -> Cassette:
        from minions.adapters.models.cassette_models import Cassette

        if self._cassette is None:
            path = self._folder_of("replay") / (self._replay or "")
            self._cassette = Cassette.read(path)
            if self._cassette.is_cut:
                self._warn(
                    f"note: the last line of the cassette {path} is incomplete, and is left out: "
                    "the process that recorded it was killed"
                )
        return self._cassette

    def _find_capabilities(self, model: ChatModel) -> ModelCapabilities:
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


def is_local(name: str, settings: Settings) -> bool:
    """Whether the engine serves that model; a provider of the operator's with that name wins."""
    return (name == LOCAL_MODEL or name.startswith(f"{LOCAL_MODEL}/")) and (
        LOCAL_MODEL not in settings.providers
    )
