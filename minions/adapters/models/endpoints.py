"""Resolves `provider/model` to a server and decides whether it receives the key. No I/O.

The rule: a key goes to the provider's own URL, to a URL that the operator configured, and to hosts
that the operator trusts. A recipe that names another URL is served without the key; one that names
another key variable than the provider's is refused unless the operator listed that variable.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Final, Protocol

from attrs import field, frozen
from msgspec import Struct

from minions.adapters.http.request_rules import (
    check_header,
    check_header_name,
    check_key,
    ollama_url,
    server_address,
)
from minions.adapters.models.cache_rules import prompt_cache_of
from minions.contracts.calls import ModelCapabilities
from minions.contracts.instructions import OutputMode
from minions.contracts.model_endpoints import (
    CacheRetention,
    EndpointLimits,
    ModelApi,
    PromptCacheRules,
    check_base_url,
    is_loopback_url,
)
from minions.contracts.prompt_caches import PromptCache
from minions.data.errors import EnvironmentRefusedError, UsageError, did_you_mean, near_names
from minions.data.field_repr import FieldsRepr


@frozen(kw_only=True)
class ProviderConfig(FieldsRepr):
    """One `[providers.NAME]` table of the operator's configuration."""

    base_url: str | None = None
    """Base URL of its API; None: the provider's own URL."""
    api_key_env: str | None = None
    """The variable that holds the key; None: the provider's usual one."""
    output_mode: OutputMode | None = None
    """How to constrain answers; None: the provider's usual way."""
    tools_with_schema: bool | None = None
    """Whether tools and a schema may be sent together; None: they may not."""
    headers: Mapping[str, str] = field(factory=dict, repr=False)
    """Further headers of each request; `env:NAME` stands for the value of that variable."""
    strict: bool | None = None
    """Whether the server takes `strict` beside a schema; None: it does."""
    context_tokens: int | None = None
    """The most tokens of a prompt that its models take; None: as listed for each model."""
    limits: EndpointLimits = field(factory=EndpointLimits)
    """How much its server is asked at most."""
    images: bool | None = None
    """Whether its models take images; None: they do."""
    deferred_tools: bool | None = None
    """Whether its server loads tools where they were found; None: as `defers_tools` says."""
    batches: bool | None = None
    """Whether it has a batch API; None: it has, but for the built-in providers without one."""
    api: ModelApi | None = None
    """The form of its requests; None: the provider's own at its own address, else chat."""
    prompt_cache: PromptCacheRules | None = None
    """Whose rules its cache of prompts follows; None: those of the provider, if they are known."""
    prompt_cache_retention: CacheRetention = CacheRetention.SHORT
    """For how long it is asked to keep beginnings of prompts."""


def _no_providers() -> Mapping[str, ProviderConfig]:
    return {}


def _as_hosts(hosts: Iterable[str]) -> frozenset[str]:
    return frozenset(host.strip().lower() for host in hosts)


@frozen(kw_only=True)
class OperatorModels(FieldsRepr):
    """The operator's settings for models; a recipe cannot change them."""

    providers: Mapping[str, ProviderConfig] = field(factory=_no_providers)
    """Configured providers by name."""
    trusted_hosts: frozenset[str] = field(default=frozenset(), converter=_as_hosts)
    """`host` (any port) or `host:port`: servers to which a recipe's
    own `base_url` may send the key.
    """
    recipe_key_variables: frozenset[str] = frozenset()
    """Variables that a recipe's `api_key_env` may name, besides the provider's own."""


class EndpointWishes(Protocol):
    """The endpoint settings of a recipe; a `ModelConfig` has them."""

    @property
    def base_url(self) -> str | None:
        """Base URL of the server; None: the provider's."""

    @property
    def api_key_env(self) -> str | None:
        """The variable that holds the key; None: the provider's."""

    @property
    def min_confidence(self) -> float | None:
        """The least probability of a value that is taken; None: none is asked for."""


@frozen(kw_only=True)
class Endpoint(FieldsRepr):
    """Everything needed to call one model; `api` says by which class."""

    provider: str
    model: str
    base_url: str
    api_key: str | None = field(default=None, repr=False)
    """The key; None: no Authorization header is sent."""
    headers: Mapping[str, str] = field(factory=dict, repr=False)
    """Further headers of each request."""
    capabilities: ModelCapabilities = field(factory=ModelCapabilities)
    limits: EndpointLimits = field(factory=EndpointLimits)
    """How much the server is asked at most."""
    api: ModelApi = ModelApi.CHAT
    """The form of requests and answers."""


def resolve_endpoint(
    model_name: str,
    config: EndpointWishes,
    environ: Mapping[str, str],
    operator: OperatorModels,
) -> Endpoint:
    """Resolve the endpoint of `provider/model`.

    Args:
        model_name: `ollama/llama3.2`; everything after the first slash is the model.
        config: The recipe's endpoint settings.
        environ: Usually `os.environ`.
        operator: The operator's configuration, which decides which servers receive a key.

    Raises:
        UsageError: `bad-model-name`, `unknown-provider`, `bad-base-url`, or `key-not-allowed` for
            an `api_key_env` that is neither the provider's nor listed by the operator;
            `no-confidence`: it has `min_confidence`, and the server's form has no probabilities.
        EnvironmentRefusedError: `no-key` or `bad-key` (names the variable), `insecure-base-url`,
            `no-header-value` or `bad-header`.
    """
    provider, model = _split_name(model_name)
    homes = _homes(provider, environ, operator)
    base_url = _base_url(config, homes)
    api = _api(provider, base_url, operator)
    if config.min_confidence is not None and api is not ModelApi.CHAT:
        raise UsageError(
            f"{model_name} is asked in the form '{api.value}', which tells no probabilities that "
            f"'min_confidence' could be compared with. Leave it out for this model: only the form "
            f"'{ModelApi.CHAT.value}' tells them.",
            code="no-confidence",
        )
    return Endpoint(
        provider=provider,
        model=model,
        base_url=_chat_url(base_url) if api is ModelApi.CHAT else base_url,
        api_key=_key(model_name, base_url, homes, config, environ, operator),
        headers=_headers(provider, base_url, homes, environ, operator),
        capabilities=_capabilities(provider, model, api, base_url, operator),
        limits=_limits(provider, base_url, homes, operator),
        api=api,
    )


def base_url_of(
    model_name: str,
    config: EndpointWishes,
    environ: Mapping[str, str],
    operator: OperatorModels,
) -> str:
    """Base URL of the calls of `provider/model`; the key need not be available.

    Raises:
        UsageError: As for `resolve_endpoint`.
    """
    provider, _ = _split_name(model_name)
    return _base_url(config, _homes(provider, environ, operator))


def prompt_cache_for(
    model_name: str,
    config: EndpointWishes,
    environ: Mapping[str, str],
    operator: OperatorModels,
) -> PromptCache | None:
    """How the server of `provider/model` keeps beginnings of prompts; None: it is not known.

    Raises:
        UsageError: As for `resolve_endpoint`; `no-long-retention`, `no-such-cache`.
    """
    provider, model = _split_name(model_name)
    base_url = base_url_of(model_name, config, environ, operator)
    own = operator.providers.get(provider)
    chosen = own.prompt_cache if own is not None else None
    api = _api(provider, base_url, operator)
    cache = prompt_cache_of(model, base_url, api, chosen, _retention(own))
    return cache if cache is not None and cache.is_known else None


def _retention(config: ProviderConfig | None) -> CacheRetention:
    return CacheRetention.SHORT if config is None else config.prompt_cache_retention


def usual_server(provider: str) -> tuple[str | None, str | None]:
    """Address and variable of the key of a built-in provider; None each: there is none."""
    known = _KNOWN.get(provider)
    return (known.base_url, known.api_key_env) if known is not None else (None, None)


def _base_url(config: EndpointWishes, homes: Sequence[_KeyHost]) -> str:
    if config.base_url is None:
        return homes[0].base_url
    return check_base_url(config.base_url, "the recipe's `base_url`")


def _split_name(model_name: str) -> tuple[str, str]:
    provider, slash, model = model_name.strip().partition("/")
    if provider and model:
        return provider, model
    raise UsageError(
        f"The model name {model_name!r} is not `provider/model`. "
        "Examples: `ollama/llama3.2`, `openai/gpt-4.1-mini`, `anthropic/claude-sonnet-4-5`.",
        code="bad-model-name",
        suggestions=tuple(f"{known}/{model_name}" for known in _KNOWN if not slash),
    )


# --- where a provider lives, and which key belongs there ------------------------------------


class _ProviderFacts(Struct, frozen=True, kw_only=True):
    """Built-in facts about a provider."""

    base_url: str
    base_url_env: str | None = None
    api_key_env: str | None = None
    api: ModelApi = ModelApi.CHAT
    """The form of requests at its own URL."""
    batches: bool = True


_KNOWN: Final[Mapping[str, _ProviderFacts]] = {
    "openai": _ProviderFacts(
        base_url="https://api.openai.com/v1",
        base_url_env="OPENAI_BASE_URL",
        api_key_env="OPENAI_API_KEY",
    ),
    "ollama": _ProviderFacts(
        base_url="http://127.0.0.1:11434/v1", base_url_env="OLLAMA_HOST", batches=False
    ),
    "anthropic": _ProviderFacts(
        base_url="https://api.anthropic.com/v1",
        api_key_env="ANTHROPIC_API_KEY",
        api=ModelApi.MESSAGES,
    ),
    "gemini": _ProviderFacts(
        base_url="https://generativelanguage.googleapis.com/v1beta",
        api_key_env="GEMINI_API_KEY",
        api=ModelApi.GEMINI,
    ),
}


class _KeyHost(Struct, frozen=True, kw_only=True):
    """A URL that may receive a provider's key, with the variable of that key."""

    base_url: str
    api_key_env: str | None
    needs_key: bool
    may_be_plain: bool = False
    """Whether the key may be sent unencrypted: the operator configured both URL and variable."""


def _homes(
    provider: str, environ: Mapping[str, str], operator: OperatorModels
) -> tuple[_KeyHost, ...]:
    """The operator's URL, then the environment's, then the provider's own; never empty."""
    known, config = _KNOWN.get(provider), operator.providers.get(provider)
    if known is None and config is None:
        raise _unknown_provider(provider, operator)
    usual_key = known.api_key_env if known else None
    homes: list[_KeyHost] = []
    if config is not None and config.base_url is not None:
        source = f"`base_url` of [providers.{provider}]"
        homes.append(
            _KeyHost(
                base_url=check_base_url(config.base_url, source),
                api_key_env=config.api_key_env or usual_key,
                needs_key=config.api_key_env is not None,
                may_be_plain=config.api_key_env is not None,
            )
        )
    if known is not None:
        own_key = config.api_key_env if config and not homes else None
        homes += _known_homes(known, own_key, environ)
    if not homes:
        raise UsageError(
            f"[providers.{provider}] has no `base_url`, and '{provider}' is not built in. "
            "Add the URL of its OpenAI-compatible API, such as base_url = "
            '"https://host.example/v1".',
            code="unknown-provider",
        )
    return tuple(homes)


def _known_homes(
    known: _ProviderFacts, own_key: str | None, environ: Mapping[str, str]
) -> list[_KeyHost]:
    """The environment's URL and the provider's own.

    Args:
        own_key: The operator's variable; None: the provider's usual one.
    """
    api_key_env = own_key or known.api_key_env
    own = _KeyHost(
        base_url=known.base_url, api_key_env=api_key_env, needs_key=api_key_env is not None
    )
    said = environ.get(known.base_url_env, "").strip() if known.base_url_env else ""
    if not said or known.base_url_env is None:
        return [own]
    url = ollama_url(said) if known.base_url_env == "OLLAMA_HOST" else said
    theirs = _KeyHost(
        base_url=check_base_url(url, f"the environment variable {known.base_url_env}"),
        api_key_env=api_key_env,
        needs_key=False,
        may_be_plain=own_key is not None,
    )
    return [theirs, own]


def _unknown_provider(provider: str, operator: OperatorModels) -> UsageError:
    names = sorted({*_KNOWN, *operator.providers})
    return UsageError(
        f"There is no model provider '{provider}'.{did_you_mean(provider, names)} "
        f"Providers are: {', '.join(names)}. To add one that speaks the OpenAI protocol, write "
        f'[providers.{provider}] with base_url = "https://host.example/v1" in minions.toml.',
        code="unknown-provider",
        suggestions=near_names(provider, names),
    )


def _api(provider: str, base_url: str, operator: OperatorModels) -> ModelApi:
    """The operator's word; else the provider's own form at its own URL. Anywhere else stands a
    server of which chat completions can be expected at most.
    """
    known, config = _KNOWN.get(provider), operator.providers.get(provider)
    if config is not None and config.api is not None:
        return config.api
    return known.api if known is not None and known.base_url == base_url else ModelApi.CHAT


def _chat_url(base_url: str) -> str:
    """Where chat completions are at that address."""
    return f"{base_url}/openai" if base_url == _KNOWN["gemini"].base_url else base_url


_TAKE_BOTH: Final = (ModelApi.MESSAGES, ModelApi.RESPONSES)
"""Forms whose servers take tools and a schema together."""


def _takes_batches(provider: str, config: ProviderConfig | None) -> bool:
    if config is not None and config.batches is not None:
        return config.batches
    known = _KNOWN.get(provider)
    return known is None or known.batches


def _capabilities(
    provider: str, model: str, api: ModelApi, base_url: str, operator: OperatorModels
) -> ModelCapabilities:
    config = operator.providers.get(provider)
    usual = _usual_mode(provider, model, api)
    both = config.tools_with_schema if config is not None else None
    deferred = config.deferred_tools if config is not None else None
    return ModelCapabilities(
        output_mode=(config.output_mode if config else None) or usual,
        tools_with_schema=api in _TAKE_BOTH if both is None else both,
        takes_images=config is None or config.images is not False,
        takes_batches=_takes_batches(provider, config),
        takes_strict=config is None or config.strict is not False,
        context_tokens=config.context_tokens if config is not None else None,
        prompt_cache=config.prompt_cache if config is not None else None,
        prompt_cache_retention=_retention(config),
        defers_tools=defers_tools(provider, model, base_url, api) if deferred is None else deferred,
        is_mode_declared=config is not None and config.output_mode is not None,
        is_together_declared=config is not None and config.tools_with_schema is not None,
    )


def _usual_mode(provider: str, model: str, api: ModelApi) -> OutputMode:
    if api is ModelApi.MESSAGES:
        return OutputMode.JSON_SCHEMA if takes_schema(model) else OutputMode.TOOLS
    # Anthropic's compatible endpoint ignores `response_format`.
    is_compatible = api is ModelApi.CHAT and provider == "anthropic"
    return OutputMode.TOOLS if is_compatible else OutputMode.JSON_SCHEMA


def _limits(
    provider: str, base_url: str, homes: Sequence[_KeyHost], operator: OperatorModels
) -> EndpointLimits:
    """The operator's limits for the provider; a recipe's own server has none of them."""
    config = operator.providers.get(provider)
    is_home = any(server_address(home.base_url) == server_address(base_url) for home in homes)
    return config.limits if config is not None and is_home else EndpointLimits()


# --- the key -----------------------------------------------------------------------------------


def _key(
    model_name: str,
    base_url: str,
    homes: tuple[_KeyHost, ...],
    config: EndpointWishes,
    environ: Mapping[str, str],
    operator: OperatorModels,
) -> str | None:
    """The key for `base_url`; None: none is needed, or this URL may not receive it."""
    home = next(
        (home for home in homes if server_address(home.base_url) == server_address(base_url)), None
    )
    if config.api_key_env is not None:
        own = {place.api_key_env for place in ((home,) if home else homes)} - {None}
        _check_variable(config.api_key_env, own, model_name, operator)
    if home is None and not _is_trusted(base_url, operator.trusted_hosts):
        return None
    variable = config.api_key_env or (home or homes[0]).api_key_env
    if variable is None:
        return None
    key = environ.get(variable, "").strip()
    if not key:
        if config.api_key_env is not None or (home is not None and home.needs_key):
            raise _no_key(model_name, variable)
        return None
    check_key(key, f"the key in the environment variable {variable}")
    if not (home is not None and home.may_be_plain and variable == home.api_key_env):
        _refuse_plain_http(base_url, variable)
    return key


def _check_variable(
    variable: str, own: Set[str | None], model_name: str, operator: OperatorModels
) -> None:
    """Refuse a variable that the recipe may not name: it could
    send any secret of the environment.
    """
    if variable in own or variable in operator.recipe_key_variables:
        return
    provider = _split_name(model_name)[0]
    names = ", ".join(sorted(filter(None, own)))
    usual = f"its own is {names}" if names else "it has none of its own"
    raise UsageError(
        f"The recipe's api_key_env names the environment variable '{variable}', which is not a "
        f"key of the provider '{provider}' ({usual}), so it is not sent. If recipes may use it, "
        f'set recipe_key_variables = ["{variable}"] in minions.toml, or api_key_env of '
        f"[providers.{provider}].",
        code="key-not-allowed",
        suggestions=(f'recipe_key_variables = ["{variable}"]',),
    )


def _no_key(model_name: str, variable: str) -> EnvironmentRefusedError:
    return EnvironmentRefusedError(
        f"The model '{model_name}' needs a key, but the environment variable {variable} is not "
        f"set. Try `export {variable}=...`, or use a local model such as `ollama/llama3.2`, "
        "which needs none.",
        code="no-key",
        suggestions=(f"export {variable}=...", "--model ollama/llama3.2"),
    )


def _refuse_plain_http(base_url: str, variable: str) -> None:
    """Refuse to send a key unencrypted: only the operator may allow it,
    by configuring URL and variable.
    """
    if base_url.startswith("https:") or is_loopback_url(base_url):
        return
    raise EnvironmentRefusedError(
        f"The base_url {base_url} would carry the key of {variable} unencrypted. Use https, or "
        "set this URL as base_url, with its api_key_env, of a [providers.NAME] table in "
        "minions.toml.",
        code="insecure-base-url",
    )


def _is_trusted(base_url: str, trusted_hosts: frozenset[str]) -> bool:
    _, host, port = server_address(base_url)
    return host in trusted_hosts or f"{host}:{port}" in trusted_hosts


# --- further headers ---------------------------------------------------------------------------


_FROM_VARIABLE: Final = "env:"


def _headers(
    provider: str,
    base_url: str,
    homes: Sequence[_KeyHost],
    environ: Mapping[str, str],
    operator: OperatorModels,
) -> dict[str, str]:
    """The operator's further headers, which go where the provider's key may go."""
    config = operator.providers.get(provider)
    is_home = any(server_address(home.base_url) == server_address(base_url) for home in homes)
    if config is None or not (is_home or _is_trusted(base_url, operator.trusted_hosts)):
        return {}
    return {
        check_header_name(name, provider): _header_value(name, text, provider, environ)
        for name, text in config.headers.items()
    }


def _header_value(name: str, text: str, provider: str, environ: Mapping[str, str]) -> str:
    source = f"the header '{name}' of [providers.{provider}]"
    if not text.startswith(_FROM_VARIABLE):
        return check_header(text, source)
    variable = text.removeprefix(_FROM_VARIABLE)
    value = environ.get(variable, "").strip()
    if not value:
        raise EnvironmentRefusedError(
            f"{source[0].upper()}{source[1:]} takes its value from the environment variable "
            f"{variable}, which is not set. Try `export {variable}=...`.",
            code="no-header-value",
            suggestions=(f"export {variable}=...",),
        )
    return check_header(value, f"{source}, taken from {variable},")


_LATEST: Final = (99, 0)


def claude_version(model: str) -> tuple[int, int]:
    """Major and minor version in the name of a Claude model; of other names the highest."""
    found = re.search(r"claude-(?:[a-z]+-)?(\d{1,2})(?:[-.](\d{1,2}))?(?!\d)", model)
    return (int(found[1]), int(found[2] or 0)) if found else _LATEST


def takes_schema(model: str) -> bool:
    """Whether the model's answers can be bound to a schema: those from 4.5 on."""
    return claude_version(model) >= (4, 5)


def defers_tools(provider: str, model: str, base_url: str, api: ModelApi) -> bool:
    """Whether the server loads tools of the model where they were found: Anthropic and OpenAI
    themselves do, for Claude from 4.5 on, but Haiku 4, and in responses of GPT from 5.4 on, but
    nano.

    Sources: the pages on tool search of both.
    """
    known = _KNOWN.get(provider)
    if known is None or known.base_url != base_url:
        return False
    if provider == "anthropic" and api is ModelApi.MESSAGES:
        return claude_version(model) >= ((5, 0) if "haiku" in model else (4, 5))
    if provider != "openai" or api is not ModelApi.RESPONSES:
        return False
    found = re.match(r"gpt-(\d{1,2})(?:\.(\d{1,2}))?(?!\d)", model)
    version = (int(found[1]), int(found[2] or 0)) if found is not None else (0, 0)
    return version >= (5, 4) and "nano" not in model
