"""The configuration of an operator. `Settings` is the only list of keys, types and meanings.

What it bounds of a recipe is at the end.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Final, TypeAlias

import attrs
from attrs import field, frozen

from minions.adapters.stores.memory_stores import MAX_BYTES, MAX_ENTRIES
from minions.contracts.budgets import Budgets
from minions.contracts.context import Limits, snake_case
from minions.contracts.instructions import OutputMode
from minions.contracts.model_endpoints import (
    CacheRetention,
    ModelApi,
    PromptCacheRules,
    is_loopback_url,
)
from minions.contracts.tool_servers import Grant, Protocol
from minions.data.codec import Constraint
from minions.data.errors import UsageError
from minions.data.field_repr import FieldsRepr
from minions.data.texts import seconds_of
from minions.recipe.model import AgentRecipe, OperatorRules, UntrustedRule


def _is_price(value: float) -> bool:
    return 0 <= value < math.inf


def _is_amount(value: float) -> bool:
    return 0 < value < math.inf


def _is_duration(value: str) -> bool:
    try:
        return seconds_of(value) > 0
    except UsageError:
        return False


_Count: TypeAlias = Annotated[int, Constraint(lambda count: count >= 1, "a whole number from 1")]
_Amount: TypeAlias = Annotated[float, Constraint(_is_amount, "a number above 0")]
_Price: TypeAlias = Annotated[
    float, Constraint(_is_price, "an amount from 0 in US dollars per million tokens")
]

_Duration: TypeAlias = Annotated[str, Constraint(_is_duration, "a duration such as 30d or 12h")]

_Timeout: TypeAlias = Annotated[
    str | float, Constraint(lambda time: _is_duration(str(time)), "a time such as 90, 90s or 10m")
]

_Factor: TypeAlias = Annotated[
    float, Constraint(lambda factor: 0 <= factor <= 1, "a factor from 0 to 1")
]

BUILT_IN_PROVIDERS: Final = frozenset(("anthropic", "gemini", "ollama", "openai"))
"""Providers whose address is known; any other one needs a `base_url`."""


class LogFormat(StrEnum):
    """How the lines of the log look."""

    TEXT = "text"
    """`key=value`, for people."""
    JSON = "json"
    """One JSON object, for programs."""


class Strictness(StrEnum):
    """How much of what a recipe says itself makes untrusted text harmless."""

    FULL = "full"
    """Nothing: only an approval of the call does, and what the operator's own tools declare."""


@frozen(kw_only=True)
class ProviderSettings(FieldsRepr):
    """A provider that the operator defines, or a built-in one with limits: `[providers.NAME]`."""

    base_url: str | None = None
    api_key_env: str | None = None
    output_mode: OutputMode | None = None
    tools_with_schema: bool | None = None
    """None: as servers of its form usually take them."""
    api: ModelApi | None = None
    """The form of its requests; None: the provider's own at its own address, else chat."""
    strict: bool = True
    images: bool = True
    """Whether its models take images."""
    prompt_cache: PromptCacheRules | None = None
    """Whose rules its cache of prompts follows; None: those of the provider, if they are known."""
    prompt_cache_retention: CacheRetention = CacheRetention.SHORT
    """For how long it is asked to keep beginnings of prompts."""
    deferred_tools: bool | None = None
    """Whether its server loads tools where `find_tools` found them; None: as the provider itself is
    known to.
    """
    batches: bool | None = None
    """Whether calls that may wait go through its batch API; None: they do, but for `ollama`."""
    context_tokens: int | None = None
    headers: Mapping[str, str] = field(factory=dict, repr=False)
    max_concurrency: _Count | None = None
    """Requests in flight at a time; None: `max_model_requests`."""
    requests_per_minute: _Count | None = None
    tokens_per_minute: _Count | None = None


@frozen(kw_only=True)
class PriceSettings(FieldsRepr):
    """The operator's price of a model, in US dollars per million tokens:
    `[prices."provider/name"]`.
    """

    input_per_mtok: _Price
    output_per_mtok: _Price
    cached_input_per_mtok: _Price | None = None
    cache_write_per_mtok: _Price | None = None
    long_cache_write_per_mtok: _Price | None = None
    batch_factor: _Factor | None = None
    """What calls in batches cost, as a factor of these prices; None: as the provider lists it."""


@frozen(kw_only=True)
class LocalSettings(FieldsRepr):
    """How the engine serves the models of `local/`: `[local]`."""

    context_tokens: _Count | None = None
    """Tokens of a prompt and its answer together; None: as the model was trained, up to 8,192."""
    max_concurrency: _Count | None = None
    """Calls that are answered at a time, each with such a context; None: 2."""
    threads: _Count | None = None
    """Threads that compute; None: as many as this process has processors."""
    folders: tuple[str, ...] = ()
    """Folders whose GGUF files recipes may name as `local/PATH.gguf`."""


@frozen(kw_only=True)
class McpSettings(FieldsRepr):
    """An MCP server that recipes may name: `[mcp.NAME]`, or an entry of
    `Minions(mcp_servers=…)`. It has a `command` or a `url`.
    """

    command: tuple[str, ...] = ()
    """The program with its arguments."""
    folder: str | None = None
    """Where the program starts; None: the folder of the configuration file, else the current
    one."""
    env: Mapping[str, str] = field(factory=dict, repr=False)
    """Variables of the program: texts, or references to secrets (`env:NAME`, `file:/path`)."""
    url: str | None = None
    headers: Mapping[str, str] = field(factory=dict, repr=False)
    """Headers of each request: texts, or references to secrets."""
    oauth: Grant = Grant.BROWSER
    """Who logs in, where the server asks for that."""
    client_id: str | None = None
    """Our name at the server that gives out tokens; None: we register there."""
    client_secret: str | None = field(default=None, repr=False)
    """A text, or a reference to a secret."""
    private_key: str | None = field(default=None, repr=False)
    """Instead of a secret: a key as PEM, or a reference to one."""
    issuer: str | None = None
    """The address of the server that gives out tokens, for `client_secret` and `private_key`."""
    scope: str | None = None
    """What is asked for; None: what the server says."""
    protocol: Protocol = Protocol.AUTO
    tools: tuple[str, ...] = ()
    """The only tools that are used, as the server calls them; empty: all."""
    start_timeout_s: _Amount = 30.0
    """Seconds within which it has to be ready."""
    max_calls: _Count = 8
    """Calls at a time; further ones wait."""


@frozen(kw_only=True)
class TelemetrySettings(FieldsRepr):
    """Traces and metrics for OpenTelemetry: `[telemetry]`."""

    traces: bool | None = None
    """Whether spans are sent; None: where OpenTelemetry's own variables say so."""
    metrics: bool | None = None
    """Whether metrics are sent, beside those of `GET /metrics`; None: as for traces."""
    endpoint: str | None = None
    """Base URL of the collector, for OTLP over HTTP; None: as OpenTelemetry's variables say, else
    `http://localhost:4318`."""
    content: bool = False
    """Whether prompts, answers, arguments and results are attributes of spans."""


@frozen(kw_only=True)
class JournalSettings(FieldsRepr):
    """How the journal keeps what runs say: `[journal]`."""

    encryption_key_file: str | None = None
    """File with the keys that encrypt it: an absolute path; None: it is not encrypted."""
    retain: _Duration | None = None
    """How long sessions stay after the end of their last run; None: until somebody removes them."""
    replica: str | None = field(default=None, repr=False)
    """URL of a standby of the PostgreSQL server, where lists are read; None: on the primary."""
    signing_key_file: str | None = None
    """File with the key that signs the head of a session at the end of each run: an absolute path;
    None: nothing is signed."""
    anchor_url: str | None = None
    """Address to which each signed head is posted; None: it is kept beside the journal alone."""
    anchor_secret: str | None = field(default=None, repr=False)
    """Secret that signs these posts, by reference; None: they are not signed."""

    @property
    def retain_s(self) -> float | None:
        """The same in seconds."""
        return None if self.retain is None else seconds_of(self.retain)


@frozen(kw_only=True)
class RedactionSettings(FieldsRepr):
    """What is replaced in prompts before they leave for a model: `[redaction]`."""

    kinds: tuple[str, ...] = ()
    """Kinds that are replaced in every prompt: `mail`, `card`, `iban`, those of `patterns` and of
    extensions."""
    patterns: Mapping[str, str] = field(factory=dict)
    """Further kinds: regular expressions by name."""


def _describe_key(text: str, expected: str | None = None) -> dict[str, str]:
    """The description of a key, as field metadata.

    Args:
        expected: What messages say is expected; None: words for the type.
    """
    words = {"description": text}
    return words if expected is None else {**words, "expected": expected}


@frozen(kw_only=True)
class Settings(FieldsRepr):
    """Every key of the configuration; each has a flag, if it is not about one call only."""

    model: str | None = field(
        default=None, metadata=_describe_key("Model for recipes that name none: provider/name.")
    )
    params: str | None = field(
        default=None, metadata=_describe_key("File with inputs, YAML or JSON.")
    )
    extensions: tuple[str, ...] = field(
        default=(),
        metadata=_describe_key("Python files or modules with tools, completion links and models."),
    )
    db: str | None = field(
        default=None,
        metadata=_describe_key(
            "Journal: path of an SQLite file, sqlite:///PATH, or postgresql://USER@HOST/DATABASE."
        ),
    )
    journal: JournalSettings = field(
        factory=JournalSettings,
        metadata=_describe_key(
            "How the journal keeps what runs say: `encryption_key_file`, with the keys that "
            "encrypt it, `retain`, how long sessions stay, `replica`, a standby where lists are "
            "read, `signing_key_file`, the key that signs the head of a session when a run ends, "
            "and `anchor_url`, which is told of it."
        ),
    )
    redaction: RedactionSettings = field(
        factory=RedactionSettings,
        metadata=_describe_key(
            "What is replaced in prompts before they leave for a model: `kinds`, such as `mail`, "
            "and `patterns`, further kinds."
        ),
    )
    give_up_after: Annotated[str, Constraint(_is_duration, "a duration such as 7d or 12h")] = field(
        default="7d",
        metadata=_describe_key(
            "How long a queued run waits for a worker that has what it needs; then it has failed."
        ),
    )
    no_store: bool = field(
        default=False, metadata=_describe_key("Keep the journal in memory only; nothing to resume.")
    )
    no_cache: bool = field(
        default=False,
        metadata=_describe_key("Run every step, also those with `cache: true`; cache no output."),
    )
    max_cache_entries: _Count = field(
        default=MAX_ENTRIES,
        metadata=_describe_key(
            "Outputs and answers that the cache keeps; beyond it the least recently used are "
            "evicted."
        ),
    )
    max_cache_bytes: _Count = field(
        default=MAX_BYTES,
        metadata=_describe_key("Bytes that they have in all; by default 256 MiB."),
    )
    record: str | None = field(
        default=None,
        metadata=_describe_key("File to which each call of a model is added, with its answer."),
    )
    replay: str | None = field(
        default=None,
        metadata=_describe_key(
            "Recorded file that answers in place of all models: no request is made, no key needed."
        ),
    )
    max_parallel: _Count | None = field(
        default=None, metadata=_describe_key("Steps at a time in execution mode parallel.")
    )
    timeout: _Timeout | None = field(
        default=None, metadata=_describe_key("Most time a run may take: 90, 90s, 10m, 2h.")
    )
    max_cost_usd: _Amount | None = field(
        default=None,
        metadata=_describe_key(
            "Most a run may cost, in US dollars; the lower of this and the recipe's own counts."
        ),
    )
    approve: str | None = field(
        default=None,
        metadata=_describe_key(
            "Who decides about calls that need approval: ask (a person at the terminal; elsewhere "
            "as deny), deny, all, or wait (the run ends; `minions approve` resumes it)."
        ),
    )
    dry_run: bool = field(
        default=False,
        metadata=_describe_key("Show what a run would do; no tool, no model, nothing is written."),
    )
    strict: bool | Strictness = field(
        default=False,
        metadata=_describe_key(
            "Refuse recipes in which untrusted text can reach, without an approval, a tool that "
            "writes, sends or spends; `full`: also where the recipe's own questions, `endorse`, or "
            "`reads: trusted` are all that is between.",
            "true, false or 'full'",
        ),
    )
    untrusted: UntrustedRule | None = field(
        default=None,
        metadata=_describe_key(
            "What becomes of a call that writes, sends or spends, and whose arguments may hold "
            "strangers' words: `ask` or `refuse`, whatever recipes allow and their policies let "
            "through; the stricter of this and the recipe's own counts."
        ),
    )
    policies: Mapping[str, str] = field(
        factory=dict,
        metadata=_describe_key(
            "By tool, `toolset__tool`: a condition over `args`, `words_of`, `stands_in` and "
            "`decided_by`. A call of which it is true is made also where strangers' words may be "
            "in its arguments, if the recipe does not object; any other one is not made unasked, "
            "whatever recipes say. In your own file alone.",
            "a table of conditions",
        ),
    )
    private_models: tuple[str, ...] = field(
        default=(),
        metadata=_describe_key(
            "Models, `provider` or `provider/name`, in whose prompts private data may be without "
            "asking, beside those of `model`, of the run, and of this machine."
        ),
    )
    json: bool = field(default=False, metadata=_describe_key("Print one JSON object at the end."))
    events: bool = field(default=False, metadata=_describe_key("Print one JSON event per line."))
    debug: bool = field(default=False, metadata=_describe_key("Show logs and tracebacks."))
    log_format: LogFormat | None = field(
        default=None,
        metadata=_describe_key(
            "Write the log to standard error as `text` or `json`, one line for each event; without "
            "it there is a log with `debug` only."
        ),
    )
    trusted_hosts: tuple[str, ...] = field(
        default=(),
        metadata=_describe_key(
            "Hosts that a recipe's own base_url may send the provider's key to."
        ),
    )
    recipe_key_variables: tuple[str, ...] = field(
        default=(),
        metadata=_describe_key(
            "Environment variables that a recipe's own api_key_env may name, beside the provider's."
        ),
    )
    caller_models: tuple[str, ...] = field(
        default=(),
        metadata=_describe_key(
            "Models, `provider/name`, that callers over HTTP may choose for a turn of a "
            "conversation; empty: the recipe's own, or the configured one, answers."
        ),
    )
    caller_patience: _Duration | None = field(
        default=None,
        metadata=_describe_key(
            "The longest time, such as 24h, for which callers over HTTP may let the model calls of "
            "a run wait for batches of their provider; without it they may not."
        ),
    )
    approval_roles: tuple[str, ...] = field(
        default=(),
        metadata=_describe_key(
            "Roles that whoever decides about calls may have; `validate` warns of others in "
            "`deciders`. Empty: any."
        ),
    )
    caller_secrets: tuple[str, ...] = field(
        default=(),
        metadata=_describe_key(
            "References to secrets that callers over HTTP may give, beside a recipe's own "
            "defaults: env:NAME, file:/absolute/path."
        ),
    )
    on_waiting_url: str | None = field(
        default=None,
        metadata=_describe_key(
            "Address that `minions serve` tells of each run that begins to wait for a person: one "
            "JSON document, posted as Standard Webhooks says."
        ),
    )
    on_waiting_secret: str | None = field(
        default=None,
        metadata=_describe_key(
            "Secret that signs these posts, by reference: env:NAME, file:/absolute/path."
        ),
    )
    worker_token: str | None = field(
        default=None,
        metadata=_describe_key(
            "Token with which pieces of answers are read from the workers that execute followed "
            "runs, by reference: env:NAME, file:/absolute/path."
        ),
    )
    max_model_requests: _Count = field(
        default=256,
        metadata=_describe_key(
            "Requests in flight at a time to one server, of all runs; further ones wait."
        ),
    )
    providers: Mapping[str, ProviderSettings] = field(
        factory=dict,
        metadata=_describe_key("Servers of models, by provider name.", "tables [providers.NAME]"),
    )
    local: LocalSettings = field(
        factory=LocalSettings,
        metadata=_describe_key(
            "The engine of `local/` models: `context_tokens`, `max_concurrency` and `threads`; and "
            "`folders`, whose GGUF files recipes may name.",
        ),
    )
    mcp: Mapping[str, McpSettings] = field(
        factory=dict,
        metadata=_describe_key(
            "MCP servers whose tools recipes may name: `command` or `url`, `env` or `headers`.",
            "tables [mcp.NAME]",
        ),
    )
    telemetry: TelemetrySettings = field(
        factory=TelemetrySettings,
        metadata=_describe_key(
            "Traces and metrics for OpenTelemetry: `traces`, `metrics`, `endpoint`, and `content` "
            "for prompts and answers in spans."
        ),
    )
    prices: Mapping[str, PriceSettings] = field(
        factory=dict,
        metadata=_describe_key(
            "Your own prices by provider/name, in US dollars per million tokens; they win over the "
            "bundled ones.",
            'tables [prices."provider/name"]',
        ),
    )
    budgets: Budgets = field(
        factory=Budgets,
        metadata=_describe_key(
            "What runs may spend together: `session_usd`, `user_usd_per_day`, `usd_per_day`, and "
            "`session_tokens`, `user_tokens_per_day`, `tokens_per_day`; days are those of UTC. "
            "Others, of a recipe, schedule, token or project, or by week or month, in tables "
            "`[budgets.limits.NAME]`; with `threshold`, `on_threshold` and `raise_to`."
        ),
    )
    offline_models: Mapping[str, str] = field(
        factory=dict,
        metadata=_describe_key(
            "Recipe id to the scripted model that answers when none is configured."
        ),
    )

    def operator_rules(self, environ: Mapping[str, str]) -> OperatorRules:
        """What counts of strangers' words and of private data beside what recipes say.

        Private data may reach the provider of the configured model, and servers of this machine.

        Args:
            environ: The environment, which may name another server of Ollama.
        """
        named = {*self.private_models}
        provider, slash, _ = (self.model or "").partition("/")
        if slash:
            named.add(provider)
        if not environ.get("OLLAMA_HOST") and "ollama" not in self.providers:
            named.add("ollama")
        for name, server in self.providers.items():
            if server.base_url is not None and is_loopback_url(server.base_url):
                named.add(name)
        return OperatorRules(
            untrusted=self.untrusted, policies=self.policies, private_models=frozenset(named)
        )


# --- texts without what looks like a key, for pages and logs -------------------------------------


_KEYS: Final = re.compile(
    r"\b(?:sk|pk|rk)-[A-Za-z0-9_-]{16,}|\bgh[pousr]_[A-Za-z0-9]{20,}|\bAKIA[0-9A-Z]{16}\b"
    r"|\bxox[abeoprs]-[A-Za-z0-9-]{10,}"
    r"|(?<=[Bb]earer )[\w.~+/=-]{16,}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
)
"""Texts that look like keys: of model providers, code hosts, clouds and chats, JWTs, PEM."""


def masked(text: str) -> str:
    """The text without what looks like a key or a token."""
    return _KEYS.sub("[masked]", _JWT.sub(_without_token, text))


_JWT: Final = re.compile(r"\beyJ[\w-]{10,}(\.[\w-]{10,}\.[\w-]{5,})?")
"""A beginning without the rest matches, too: each of many is then looked at once."""


def _without_token(found: re.Match[str]) -> str:
    return "[masked]" if found[1] else found[0]


def bounded(recipe: AgentRecipe, settings: Settings) -> AgentRecipe:
    """The recipe with the operator's limits; of two limits on cost the lower one counts."""
    if settings.max_parallel is not None:
        recipe = attrs.evolve(recipe, max_parallel=settings.max_parallel)
    if settings.timeout is not None:
        recipe = _limit_recipe(recipe, "timeout_s", seconds_of(str(settings.timeout)))
    if settings.max_cost_usd is not None:
        own = Limits.from_metadata(recipe.limits).max_cost_usd
        most = settings.max_cost_usd if own is None else min(own, settings.max_cost_usd)
        recipe = _limit_recipe(recipe, "max_cost_usd", most)
    return recipe


def within_share(recipe: AgentRecipe, share: Mapping[str, float]) -> AgentRecipe:
    """The recipe with the part of the limits that a child run has; of two the lower one counts."""
    own = Limits.from_metadata(recipe.limits)
    if (tokens := share.get("max_tokens")) is not None:
        most = min(int(tokens), own.max_tokens or sys.maxsize)
        recipe = _limit_recipe(recipe, "max_tokens", max(1, most))
    if (cost := share.get("max_cost_usd")) is not None:
        recipe = _limit_recipe(recipe, "max_cost_usd", min(cost, own.max_cost_usd or math.inf))
    return recipe


def _limit_recipe(recipe: AgentRecipe, name: str, value: float) -> AgentRecipe:
    """The recipe with that limit instead of its own, whose name may be written in another case."""
    limits = {key: limit for key, limit in recipe.limits.items() if snake_case(key) != name}
    return attrs.evolve(recipe, limits={**limits, name: value})
