"""What the operator configured, and where each value came from.

Flags win over `MINIONS_*`, then `minions.toml` or `[tool.minions]` upwards to the repository's
root, then the user's own file, then defaults.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, TypeGuard, cast

import attrs
from attrs import evolve, field, frozen

from minions.contracts.errors import UsageError, did_you_mean, near_hint, near_names
from minions.recipe.project_folders import project_file, read_toml

__all__ = [
    "Origin",
    "PriceSettings",
    "ProviderSettings",
    "Settings",
    "environment",
    "load_settings",
    "user_settings_file",
]


@frozen(kw_only=True)
class ProviderSettings:
    """A provider the operator defined: `[providers.NAME]`."""

    base_url: str
    api_key_env: str | None = None
    output_mode: str | None = None
    tools_with_schema: bool = False


@frozen(kw_only=True)
class PriceSettings:
    """What the operator pays for one model: `[prices."provider/name"]`, dollars per million."""

    input_per_mtok: float
    output_per_mtok: float
    cached_input_per_mtok: float | None = None


def _described(text: str) -> dict[str, str]:
    return {"description": text}


@frozen(kw_only=True)
class Settings:
    """Every key of the configuration; the flags that are not about one call have one each."""

    model: str | None = field(
        default=None, metadata=_described("Model for recipes that name none: provider/name.")
    )
    params: str | None = field(default=None, metadata=_described("File with inputs, YAML or JSON."))
    extensions: tuple[str, ...] = field(
        default=(),
        metadata=_described("Python files or modules with tools, completion links and models."),
    )
    db: str | None = field(
        default=None,
        metadata=_described(
            "Journal: path of an SQLite file, sqlite:///PATH, or postgresql://USER@HOST/DATABASE."
        ),
    )
    no_store: bool = field(
        default=False, metadata=_described("Keep the journal in memory only; nothing to resume.")
    )
    no_cache: bool = field(
        default=False,
        metadata=_described("Do every step, also those that say `cache: true`; keep nothing."),
    )
    max_parallel: int | None = field(
        default=None, metadata=_described("Steps at a time in execution mode parallel.")
    )
    timeout: str | None = field(
        default=None, metadata=_described("Most time a run may take: 90, 90s, 10m, 2h.")
    )
    max_cost_usd: float | None = field(
        default=None,
        metadata=_described(
            "Most a run may cost, in US dollars; the lower of this and the recipe's own holds."
        ),
    )
    approve: str | None = field(
        default=None,
        metadata=_described(
            "Who consents to calls that need approval: ask (at the terminal; elsewhere nobody "
            "does), deny, all, or wait (the run ends and goes on after `minions approve`)."
        ),
    )
    dry_run: bool = field(
        default=False,
        metadata=_described("Show what a run would do; no tool, no model, nothing is written."),
    )
    json: bool = field(default=False, metadata=_described("Print one JSON object at the end."))
    events: bool = field(default=False, metadata=_described("Print one JSON event per line."))
    debug: bool = field(default=False, metadata=_described("Show logs and tracebacks."))
    trusted_hosts: tuple[str, ...] = field(
        default=(),
        metadata=_described("Hosts that a recipe's own base_url may send the provider's key to."),
    )
    recipe_key_variables: tuple[str, ...] = field(
        default=(),
        metadata=_described(
            "Environment variables that a recipe's own api_key_env may name, beside the provider's."
        ),
    )
    caller_secrets: tuple[str, ...] = field(
        default=(),
        metadata=_described(
            "References to secrets that callers over HTTP may give, beside a recipe's own "
            "defaults: env:NAME, file:/absolute/path."
        ),
    )
    max_model_requests: int = field(
        default=256,
        metadata=_described("Requests in flight at a time to one model; further ones wait."),
    )
    providers: Mapping[str, ProviderSettings] = field(
        factory=dict, metadata=_described("OpenAI-compatible servers, by provider name.")
    )
    prices: Mapping[str, PriceSettings] = field(
        factory=dict,
        metadata=_described(
            "Your own prices by provider/name, in US dollars per million tokens; they win over the "
            "bundled ones."
        ),
    )
    offline_models: Mapping[str, str] = field(
        factory=dict,
        metadata=_described(
            "Recipe id to the scripted model that answers when none is configured."
        ),
    )


@frozen(kw_only=True)
class Origin:
    """Settings and, per key, where the value came from."""

    settings: Settings
    origins: Mapping[str, str]
    folder: Path
    """The current one: where relative paths of flags and environment start."""

    def folder_of(self, key: str) -> Path:
        """Where a relative path under that key starts: its file's folder, or the current one."""
        origin = Path(self.origins[key])
        return origin.parent if origin.suffix == ".toml" else self.folder


_KEYS: Final[Mapping[str, str]] = {
    attribute.name: str(attribute.type) for attribute in attrs.fields(Settings)
}
"""Each key's type as written; taken now, for a codec may resolve the hints later."""
_TABLES: Final = ("providers", "prices", "offline_models")


def environment() -> Mapping[str, str]:
    """The process's environment, read once where everything is wired."""
    return dict(os.environ)


def user_settings_file() -> Path:
    """The user's own configuration; need not exist."""
    from platformdirs import user_config_path

    return user_config_path("minions") / "minions.toml"


def load_settings(
    flags: Mapping[str, object],
    environ: Mapping[str, str],
    *,
    folder: Path,
    user_file: Path | None,
) -> Origin:
    """Read all sources, strongest last.

    Args:
        flags: Only those that were given.
        folder: Where the search for `minions.toml` starts.
        user_file: The user's own configuration; None: there is none.
    Raises:
        UsageError: A file that cannot be read, an unknown key, a value of the wrong type.
    """
    settings, origins = Settings(), dict.fromkeys(_KEYS, "default")
    project = project_file(folder)
    for name, values in _sources(flags, environ, project, user_file):
        checked = {key: _checked(name, key, value) for key, value in values.items()}
        settings = evolve(settings, **checked)  # type: ignore[arg-type]  # checked just above
        origins.update(dict.fromkeys(checked, name))
    return Origin(settings=settings, origins=origins, folder=folder)


def _sources(
    flags: Mapping[str, object],
    environ: Mapping[str, str],
    project: Path | None,
    user_file: Path | None,
) -> Iterator[tuple[str, Mapping[str, object]]]:
    if user_file is not None and user_file.is_file():
        yield str(user_file), _read(user_file)
    if project is not None:
        yield str(project), _read(project)
    yield "environment", _from_environment(environ)
    yield "flag", flags


def _read(path: Path) -> Mapping[str, object]:
    content: Mapping[str, object] = read_toml(path)
    if path.name == "pyproject.toml":
        tools = cast("Mapping[str, Mapping[str, object]]", content.get("tool", {}))
        content = tools.get("minions", {})
    for key in content:
        if key not in _KEYS:
            near = near_names(key, _KEYS)
            hint = near_hint(near)
            raise UsageError(
                f"{path}: unknown key '{key}'.{hint} Keys are: {', '.join(_KEYS)}.",
                code="unknown-key",
                where=str(path),
                suggestions=near,
            )
    return content


def _from_environment(environ: Mapping[str, str]) -> Mapping[str, object]:
    found: dict[str, object] = {}
    for key, kind in _KEYS.items():
        text = environ.get(f"MINIONS_{key.upper()}")
        if text is None or key in _TABLES:
            continue
        if kind.startswith("tuple"):
            found[key] = [part.strip() for part in text.split(",") if part.strip()]
        elif kind == "bool":
            found[key] = _truth(key, text)
        elif kind.startswith("int"):
            found[key] = _whole(key, text)
        elif kind.startswith("float"):
            found[key] = _number(key, text)
        else:
            found[key] = text
    return found


def _truth(key: str, text: str) -> bool:
    words = {
        "1": True,
        "true": True,
        "yes": True,
        "0": False,
        "false": False,
        "no": False,
        "": False,
    }
    if text.lower() not in words:
        raise UsageError(f"MINIONS_{key.upper()}={text!r}: expected true or false.")
    return words[text.lower()]


def _whole(key: str, text: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise UsageError(f"MINIONS_{key.upper()}={text!r}: expected a whole number.") from error


def _number(key: str, text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise UsageError(f"MINIONS_{key.upper()}={text!r}: expected a number.") from error


def _checked(source: str, key: str, value: object) -> object:
    """A value of one source as its field's type."""
    kind = _KEYS[key]
    if key in _TABLES:
        return _table(source, key, value)
    if kind.startswith("float"):
        return _positive(source, key, value)
    if kind.startswith("tuple") and isinstance(value, list | tuple):
        if all(isinstance(item, str) for item in value):
            return tuple(value)
    elif kind == "bool" and isinstance(value, bool):
        return value
    elif kind.startswith("int") and isinstance(value, int) and not isinstance(value, bool):
        if value >= 1:
            return value
    elif kind.startswith("str") and isinstance(value, str):
        return value
    elif key == "timeout" and isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    expected = {"tuple": "a list of texts", "bool": "true or false", "int": "a whole number from 1"}
    wanted = next((text for word, text in expected.items() if kind.startswith(word)), "a text")
    raise _bad_value(source, key, value, wanted)


def _bad_value(source: str, key: str, value: object, wanted: str) -> UsageError:
    return UsageError(
        f"{source}: '{key}' is {value!r}; {wanted} was expected.", code="bad-configuration"
    )


def _table(source: str, key: str, value: object) -> object:
    if key == "providers":
        return _providers(source, value)
    return _prices(source, value) if key == "prices" else _texts_by_name(source, key, value)


def _positive(source: str, key: str, value: object) -> float:
    if not _is_amount(value) or not value:
        raise _bad_value(source, key, value, "a number above 0")
    return value


def _is_amount(value: object) -> TypeGuard[float]:
    """A finite number from 0."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and 0 <= cast(float, value) < math.inf


def _texts_by_name(source: str, key: str, value: object) -> Mapping[str, str]:
    if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
        raise _bad_value(source, key, value, "a table of texts")
    return value


def _providers(source: str, value: object) -> Mapping[str, ProviderSettings]:
    if not isinstance(value, dict):
        raise _bad_value(source, "providers", value, "tables [providers.NAME]")
    return {name: _provider(source, name, table) for name, table in value.items()}


_PROVIDER_KINDS: Final[Mapping[str, type[object]]] = {
    "base_url": str,
    "api_key_env": str,
    "output_mode": str,
    "tools_with_schema": bool,
}


def _provider(source: str, name: str, table: object) -> ProviderSettings:
    wanted = f"a table with base_url, and of {', '.join(_PROVIDER_KINDS)}"
    if not isinstance(table, dict) or "base_url" not in table or set(table) - set(_PROVIDER_KINDS):
        raise _bad_value(source, f"providers.{name}", table, wanted)
    for key, kind in _PROVIDER_KINDS.items():
        if key in table and not isinstance(table[key], kind):
            word = "a text" if kind is str else "true or false"
            raise _bad_value(source, f"providers.{name}.{key}", table[key], word)
    return ProviderSettings(**table)


def _prices(source: str, value: object) -> Mapping[str, PriceSettings]:
    if not isinstance(value, dict):
        raise _bad_value(source, "prices", value, 'tables [prices."provider/name"]')
    return {name: _price(source, name, table) for name, table in value.items()}


_PRICE_KEYS: Final = tuple(attribute.name for attribute in attrs.fields(PriceSettings))


def _price(source: str, name: str, table: object) -> PriceSettings:
    """All faults at once: a price that is misread costs money."""
    place = f'prices."{name}"'
    if not isinstance(table, dict):
        raise _bad_value(source, place, table, f"a table of {', '.join(_PRICE_KEYS)}")
    faults = [] if _is_full_name(name) else ["the table's name is no 'provider/name' in quotes"]
    faults += [
        f"unknown key '{key}'.{did_you_mean(key, _PRICE_KEYS)}"
        for key in table
        if key not in _PRICE_KEYS
    ]
    faults += [f"'{key}' is missing" for key in _PRICE_KEYS[:2] if key not in table]
    faults += [
        f"'{key}' is {table[key]!r}; US dollars per million tokens were expected, from 0"
        for key in _PRICE_KEYS
        if key in table and not _is_amount(table[key])
    ]
    if faults:
        raise UsageError(f"{source}: [{place}]: {'; '.join(faults)}.", code="bad-configuration")
    return PriceSettings(**table)


def _is_full_name(name: str) -> bool:
    provider, _, model = name.partition("/")
    return bool(provider and model)
