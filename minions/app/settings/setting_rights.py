"""What each key of a configuration lets Minions do, in words: what a person looks at before they
trust a file. `RIGHTS` has every key of every table; a test holds that.

A key that sends, runs, reads, loads, chooses a server or spends says what, where to, and which
variable or file it takes for it; texts that may be secrets are told by their hash.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, TypeAlias

from attrs import evolve, frozen

from minions.app.settings.settings import (
    JournalSettings,
    LocalSettings,
    McpSettings,
    PriceSettings,
    ProviderSettings,
    RedactionSettings,
    Settings,
    TelemetrySettings,
)
from minions.contracts.budgets import BudgetRule, Budgets
from minions.data.json_values import JsonValue


@frozen(kw_only=True)
class Right:
    """One thing that a key lets Minions do."""

    key: str
    """The key with its table, as in `mcp.tracker.command`."""
    words: str

    def to_json(self) -> dict[str, JsonValue]:
        """The right for programs."""
        return {"key": self.key, "right": self.words}


@frozen(kw_only=True)
class _Place:
    """Where a key stands."""

    folder: Path
    """The folder where relative paths start."""
    name: str = ""
    """The name of its table, as `tracker` in `[mcp.tracker]`."""
    table: Mapping[str, object]
    """All keys of that table."""

    def path(self, said: str) -> str:
        """The path that a text means."""
        return str(self.folder / Path(said).expanduser())


_Words: TypeAlias = Callable[[_Place, object], Iterable[str]]


def rights_of(keys: Mapping[str, object], folder: Path) -> tuple[Right, ...]:
    """What a configuration with these keys lets Minions do, in the order of the file.

    Args:
        keys: As they stand in the file, checked.
        folder: That of the file.
    """
    return tuple(_rights(keys, folder))


def _rights(keys: Mapping[str, object], folder: Path) -> Iterator[Right]:
    place = _Place(folder=folder, table=keys)
    for key, value in keys.items():
        inner = TABLES.get(key)
        if inner is None or not isinstance(value, Mapping):
            yield from _read_said(Settings, key, key, value, place)
        elif key in _NAMED:
            for name, table in value.items():
                within = evolve(place, name=str(name), table=_mapping(table))
                for own, each in within.table.items():
                    yield from _read_said(inner, own, f"{key}.{name}.{own}", each, within)
        else:
            for own, each in value.items():
                named = TABLES.get(f"{key}.{own}")
                if named is None or not isinstance(each, Mapping):
                    within = evolve(place, table=value)
                    yield from _read_said(inner, own, f"{key}.{own}", each, within)
                    continue
                for name, table in each.items():
                    within = evolve(place, name=str(name), table=_mapping(table))
                    for at, said in within.table.items():
                        yield from _read_said(named, at, f"{key}.{own}.{name}.{at}", said, within)


def _read_said(
    table: type[object], key: str, full: str, value: object, place: _Place
) -> Iterator[Right]:
    words = RIGHTS[table].get(key)
    told = [f"sets {key} = {value!r}"] if words is None else words(place, value)
    for each in told:
        yield Right(key=full, words=each)


def server_rights(
    name: str, command: tuple[str, ...], url: str | None, folder: Path
) -> tuple[Right, ...]:
    """What an MCP server that a recipe brings along does."""
    table: dict[str, object] = {"command": list(command)} if command else {"url": url}
    place = _Place(folder=folder, name=name, table=table)
    return tuple(
        right
        for key, value in table.items()
        for right in _read_said(McpSettings, key, f"{name}.{key}", value, place)
    )


# --- words ----------------------------------------------------------------------------------------


def _file_words(path: Path) -> str:
    """The file with the beginning of its hash."""
    from minions.adapters.tools.mcp.program import digest_of_file, short_digest

    try:
        return f"{path} ({short_digest(digest_of_file(path))})"
    except OSError as error:
        return f"{path} ({error.strerror})"


_SECRET_NAME: Final = re.compile(r"key|token|secret|passw|auth|credential|cookie", re.IGNORECASE)
_LOADS_CODE: Final = re.compile(
    r"LD_.*|DYLD_.*|PATH|NODE_OPTIONS|NODE_PATH|PYTHON.*|RUBY(?:OPT|LIB)|PERL5.*|JAVA_TOOL_OPTIONS|"
    r"BASH_ENV|ENV|GIT_.*|.*_PRELOAD|ZDOTDIR|CLASSPATH|GCONV_PATH|.*PAGER|.*EDITOR|IFS|SHELL"
)


def _text_words(text: str) -> str:
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    return f"a text of this file ({len(text)} characters, sha256 {digest[:12]}…)"


def _source(text: str) -> str:
    """What a reference takes: a variable, a file; or a text, which may be a secret itself."""
    if text.startswith("env:"):
        return text.removeprefix("env:")
    if text.startswith("file:"):
        return f"what is in the file {text.removeprefix('file:')}"
    return _text_words(text)


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}


def _texts(value: object) -> list[str]:
    return [str(each) for each in value] if isinstance(value, list | tuple) else [str(value)]


def _plain(words: str) -> _Words:
    """Words of which nothing but the value changes."""
    return lambda _place, value: [words.replace("{value}", str(value))]


def _each(words: str) -> _Words:
    return lambda _place, value: [words.replace("{value}", each) for each in _texts(value)]


def _flag(yes: str, no: str) -> _Words:
    return lambda _place, value: [yes if value else no]


def _file(words: str) -> _Words:
    return lambda place, value: [words.replace("{value}", place.path(str(value)))]


# --- what stands at the top -----------------------------------------------------------------------


def _extensions(place: _Place, value: object) -> Iterator[str]:
    for name in _texts(value):
        if name.endswith(".py"):
            yield f"runs the Python code of {_file_words(Path(place.path(name)))}"
        else:
            yield f"runs the Python code of the module {name}, looked for in {place.folder}, too"


def _journal(place: _Place, value: object) -> Iterator[str]:
    text = str(value)
    if "://" in text and not text.startswith("sqlite:"):
        from minions.adapters.stores.postgres_url import without_password

        shown = without_password(text)
        yield (
            f"keeps prompts, answers and results of all runs in the database {shown}, logging in "
            "with its password, PGPASSWORD or your .pgpass"
        )
        yield f"resumes runs that stand in the database {shown}"
    else:
        path = place.path(text.removeprefix("sqlite:///"))
        yield f"keeps prompts, answers and results of all runs in {path}"
        yield f"resumes runs that stand in {path}"


def _replica(_place: _Place, value: object) -> Iterator[str]:
    from minions.adapters.stores.postgres_url import without_password

    yield (
        f"shows lists of runs from the database {without_password(str(value))}, logging in with "
        "its password, PGPASSWORD or your .pgpass"
    )


def _model(place: _Place, value: object) -> Iterator[str]:
    name = str(value)
    provider = name.partition("/")[0]
    if provider == "local":
        yield f"answers by the weights {name}, which native code reads, where a recipe names none"
        return
    server, variable = _server_of(provider, _mapping(_mapping(place.table.get("providers"))))
    key = f", with the key {variable}," if variable else ""
    yield f"sends prompts of recipes that name no model to {name} at {server}{key} at your cost"


def _server_of(provider: str, providers: Mapping[str, object]) -> tuple[str, str | None]:
    from minions.adapters.models.endpoints import usual_server

    table = _mapping(providers.get(provider))
    url, variable = usual_server(provider)
    own_url, own_variable = table.get("base_url"), table.get("api_key_env")
    return (
        str(own_url or url or f"the server of {provider}"),
        str(own_variable) if own_variable else variable,
    )


_DECIDES: Final = {
    "all": "approves every call that needs approval, without asking",
    "ask": "asks at the terminal about calls that need approval",
    "deny": "denies every call that needs approval",
    "wait": "lets runs wait for a decision about calls that need approval",
}


def _approve(_place: _Place, value: object) -> Iterator[str]:
    yield _DECIDES.get(str(value), f"decides about calls that need approval by {value!r}")


def _strict(_place: _Place, value: object) -> Iterator[str]:
    if value:
        how = ", whatever they say themselves" if value == "full" else ""
        yield f"refuses recipes that let untrusted text reach an effect{how}"
    else:
        yield "takes recipes that let untrusted text reach a tool that writes, sends or spends"


def _signs(place: _Place, value: object) -> Iterator[str]:
    where = place.table.get("on_waiting_url", "on_waiting_url")
    yield f"signs posts to {where} with {_source(str(value))}"


def _signs_heads(place: _Place, value: object) -> Iterator[str]:
    where = place.table.get("anchor_url", "anchor_url")
    yield f"signs posts to {where} with {_source(str(value))}"


def _worker_token(_place: _Place, value: object) -> Iterator[str]:
    yield f"sends {_source(str(value))} to the workers of the journal's database"


def _caller_secrets(_place: _Place, value: object) -> Iterator[str]:
    for each in _texts(value):
        yield f"lets callers over HTTP give tools {_source(each)}"


# --- tables ---------------------------------------------------------------------------------------


def _base_url(place: _Place, value: object) -> Iterator[str]:
    yield f"sends prompts for models {place.name}/… to {value}"
    if "api_key_env" not in place.table:
        _, variable = _server_of(place.name, {})
        if variable is not None:
            yield f"sends {variable} to {value}"


def _api_key(place: _Place, value: object) -> Iterator[str]:
    yield f"sends {value} to {_server_of(place.name, {place.name: place.table})[0]}"


def _provider_headers(place: _Place, value: object) -> Iterator[str]:
    server, _ = _server_of(place.name, {place.name: place.table})
    for header, text in _mapping(value).items():
        said = str(text)  # `file:` is no reference here
        what = said.removeprefix("env:") if said.startswith("env:") else _text_words(said)
        yield f"sends {what} to {server}, as the header {header}"


def _command(place: _Place, value: object) -> Iterator[str]:
    from minions.adapters.tools.mcp.program import find_program, short_digest

    command = _texts(value)
    folder = str(place.folder / str(place.table.get("folder") or "."))
    variables = {str(k): str(v) for k, v in _mapping(place.table.get("env")).items()}
    whole = shlex.join(command)
    try:
        program = find_program(command, folder, variables)
        seen = program.seen()
    except (OSError, IndexError) as error:
        yield f"runs {whole} in {folder} ({error})"
        return
    first, *others = seen.items()
    yield f"runs {whole} in {folder}: {program.path} ({short_digest(first[1])})"
    for name, digest in others:
        yield f"runs or loads {name} ({short_digest(digest)}) with it"


def _server_folder(place: _Place, value: object) -> Iterator[str]:
    if not place.table.get("command"):
        yield f"starts in {place.path(str(value))}"  # else the command says it


def _variables(place: _Place, value: object) -> Iterator[str]:
    whom = f"the program of [mcp.{place.name}]"
    for name, text in _mapping(value).items():
        said = str(text)
        if said.startswith(("env:", "file:/")):
            what = _source(said)
        else:
            what = _text_words(said) if _SECRET_NAME.search(str(name)) else repr(said)
        loads = ", which can load code" if _LOADS_CODE.fullmatch(str(name)) else ""
        yield f"gives {what} to {whom}, as {name}{loads}"


def _server_url(place: _Place, value: object) -> Iterator[str]:
    yield f"sends arguments of tools to {value}, and takes results from there"
    if not place.table.get("oauth"):
        yield f"sends the token of your login to {value}, where you logged in there"


def _server_headers(place: _Place, value: object) -> Iterator[str]:
    for header, text in _mapping(value).items():
        what = _source(str(text))
        yield f"sends {what} to {place.table.get('url')}, as the header {header}"


def _to_issuer(place: _Place, value: object) -> Iterator[str]:
    issuer = place.table.get("issuer") or f"the login server of {place.table.get('url')}"
    yield f"sends {_source(str(value))} to {issuer}, to log in"


def _signs_login(place: _Place, value: object) -> Iterator[str]:
    issuer = place.table.get("issuer") or f"the login server of {place.table.get('url')}"
    yield f"logs in at {issuer} by signing with {_source(str(value))}"


def _oauth(place: _Place, value: object) -> Iterator[str]:
    who = "you log in, in a browser" if value == "browser" else "Minions logs in by itself"
    yield f"lets {place.table.get('url')} say where {who}"


def _collector(_place: _Place, value: object) -> Iterator[str]:
    yield f"sends spans and metrics of runs to {value}"
    yield f"sends OTEL_EXPORTER_OTLP_HEADERS to {value}, if that is set"


def _folders(place: _Place, value: object) -> Iterator[str]:
    for each in _texts(value):
        yield f"lets recipes name GGUF files in {place.path(each)}, which native code reads"


def _patterns(_place: _Place, value: object) -> Iterator[str]:
    for kind, pattern in _mapping(value).items():
        yield f"finds {kind} in prompts by the pattern {pattern}"


def _answers_for(_place: _Place, value: object) -> Iterator[str]:
    for recipe, model in _mapping(value).items():
        yield f"answers {recipe} by {model}, where no model is configured"


RIGHTS: Final[Mapping[type[object], Mapping[str, _Words]]] = {
    Settings: {
        "model": _model,
        "params": _file("reads {value} as inputs"),
        "extensions": _extensions,
        "db": _journal,
        "give_up_after": _plain("gives up queued runs that no worker can execute after {value}"),
        "no_store": _flag("keeps no journal", "keeps the journal"),
        "no_cache": _flag("runs every step again", "takes outputs from the cache"),
        "max_cache_entries": _plain("keeps up to {value} outputs in the cache"),
        "max_cache_bytes": _plain("keeps up to {value} bytes in the cache"),
        "record": _file("writes prompts and answers of models to {value}"),
        "replay": _file("answers from {value} in place of all models"),
        "max_parallel": _plain("runs up to {value} steps at a time"),
        "timeout": _plain("lets a run last up to {value}"),
        "max_cost_usd": _plain("lets a run spend up to {value} US dollars"),
        "approve": _approve,
        "dry_run": _flag("only shows what a run would do", "runs what is asked for"),
        "strict": _strict,
        "untrusted": _plain("calls with strangers' words in them: {value}, whatever recipes say"),
        "private_models": _each("sends private data to {value} without asking"),
        "policies": _plain("lets calls with strangers' words in them through: {value}"),
        "json": _flag("prints JSON", "prints text"),
        "events": _flag("prints events", "prints no events"),
        "debug": _flag("shows logs and tracebacks", "shows no logs"),
        "log_format": _plain("writes the log to standard error as {value}"),
        "trusted_hosts": _each(
            "sends the key of a provider to {value}, where a recipe names that host"
        ),
        "recipe_key_variables": _each("sends {value} to servers that recipes name, as their key"),
        "caller_models": _each("lets callers over HTTP choose the model {value}, at your cost"),
        "caller_patience": _plain("lets callers over HTTP have runs wait for batches for {value}"),
        "approval_roles": _each("names the role {value} of whoever decides about calls"),
        "caller_secrets": _caller_secrets,
        "on_waiting_url": _plain("sends the tools and questions that runs wait for to {value}"),
        "on_waiting_secret": _signs,
        "worker_token": _worker_token,
        "max_model_requests": _plain("sends up to {value} requests at a time to a server"),
        "offline_models": _answers_for,
        # Tables, key by key below.
        "providers": _plain("configures servers of models"),
        "local": _plain("configures the engine of local models"),
        "mcp": _plain("configures MCP servers"),
        "telemetry": _plain("configures traces and metrics"),
        "prices": _plain("configures prices"),
        "budgets": _plain("configures budgets"),
        "journal": _plain("configures how the journal keeps what runs say"),
        "redaction": _plain("configures what is replaced in prompts"),
    },
    RedactionSettings: {
        "kinds": _each("replaces what is found as {value} in prompts before they leave"),
        "patterns": _patterns,
    },
    JournalSettings: {
        "encryption_key_file": _plain("encrypts the journal with the keys of {value}"),
        "replica": _replica,
        "signing_key_file": _plain("signs heads of sessions with the key of {value}"),
        "anchor_url": _plain("sends the names of sessions and their signed heads to {value}"),
        "anchor_secret": _signs_heads,
        "retain": _plain("removes sessions {value} after the end of their last run"),
    },
    ProviderSettings: {
        "base_url": _base_url,
        "api_key_env": _api_key,
        "headers": _provider_headers,
        "output_mode": _plain("asks for outputs by {value}"),
        "tools_with_schema": _plain("sends tools and a schema together: {value}"),
        "api": _plain("speaks the form {value} of requests"),
        "strict": _plain("sends `strict` beside schemas: {value}"),
        "images": _plain("sends images: {value}"),
        "prompt_cache": _plain("uses the server's cache of prompts as {value}"),
        "prompt_cache_retention": _plain("asks the server to keep beginnings of prompts {value}"),
        "deferred_tools": _plain("sends tools that were found as deferred ones: {value}"),
        "batches": _plain("asks for batches: {value}"),
        "context_tokens": _plain("sends prompts of up to {value} tokens"),
        "max_concurrency": _plain("sends up to {value} requests at a time"),
        "requests_per_minute": _plain("sends up to {value} requests a minute"),
        "tokens_per_minute": _plain("sends up to {value} tokens a minute"),
    },
    LocalSettings: {
        "context_tokens": _plain("uses up to {value} tokens of context"),
        "max_concurrency": _plain("answers up to {value} calls at a time"),
        "threads": _plain("computes on {value} threads"),
        "folders": _folders,
    },
    McpSettings: {
        "command": _command,
        "folder": _server_folder,
        "env": _variables,
        "url": _server_url,
        "headers": _server_headers,
        "oauth": _oauth,
        "client_id": _plain("calls itself {value} where it logs in"),
        "client_secret": _to_issuer,
        "private_key": _signs_login,
        "issuer": _plain("logs in at {value}"),
        "scope": _plain("asks for the scope {value} where it logs in"),
        "protocol": _plain("speaks the protocol {value}"),
        "tools": _each("lets recipes call its tool {value}, once it is locked"),
        "start_timeout_s": _plain("waits up to {value} s for its start"),
        "max_calls": _plain("makes up to {value} calls at a time"),
    },
    TelemetrySettings: {
        "traces": _flag("sends spans of runs to the collector", "sends no spans"),
        "metrics": _flag("sends metrics of runs to the collector", "sends no metrics"),
        "endpoint": _collector,
        "content": _flag(
            "sends prompts, answers, arguments and results with the spans",
            "sends no prompts with the spans",
        ),
    },
    PriceSettings: {
        "input_per_mtok": _plain("counts {value} US dollars for a million tokens of prompts"),
        "output_per_mtok": _plain("counts {value} US dollars for a million tokens of answers"),
        "cached_input_per_mtok": _plain("counts {value} US dollars for a million cached tokens"),
        "cache_write_per_mtok": _plain("counts {value} US dollars to cache a million tokens"),
        "long_cache_write_per_mtok": _plain(
            "counts {value} US dollars to cache a million tokens for an hour"
        ),
        "batch_factor": _plain("counts calls in batches as {value} of the prices"),
    },
    Budgets: {
        "session_usd": _plain("lets a session spend up to {value} US dollars"),
        "session_tokens": _plain("lets a session spend up to {value} tokens"),
        "user_usd_per_day": _plain("lets a user spend up to {value} US dollars a day"),
        "user_tokens_per_day": _plain("lets a user spend up to {value} tokens a day"),
        "usd_per_day": _plain("lets all runs spend up to {value} US dollars a day"),
        "tokens_per_day": _plain("lets all runs spend up to {value} tokens a day"),
        "threshold": _plain("acts when the share {value} of a budget is used"),
        "on_threshold": _plain("says what happens at the threshold of a budget: {value}"),
        "raise_to": _plain("lets approvals raise a budget up to {value} times its limit"),
        "limits": _plain("sets further budgets"),
    },
    BudgetRule: {
        "per": _plain("sets a budget per {value}"),
        "only": _plain("sets it for {value} alone"),
        "period": _plain("begins a new budget each {value}"),
        "usd": _plain("lets them spend up to {value} US dollars"),
        "tokens": _plain("lets them spend up to {value} tokens"),
        "threshold": _plain("acts when the share {value} of it is used"),
        "on_threshold": _plain("says what happens at the threshold: {value}"),
        "raise_to": _plain("lets approvals raise it up to {value} times its limit"),
    },
}
"""By table and key what it lets Minions do."""
TABLES: Final[Mapping[str, type[object]]] = {
    "providers": ProviderSettings,
    "local": LocalSettings,
    "mcp": McpSettings,
    "telemetry": TelemetrySettings,
    "prices": PriceSettings,
    "budgets": Budgets,
    "budgets.limits": BudgetRule,
    "journal": JournalSettings,
    "redaction": RedactionSettings,
}
"""The tables of the configuration; `budgets.limits` has tables by names."""
_NAMED: Final = frozenset({"providers", "mcp", "prices"})
"""Tables of tables, by names."""
