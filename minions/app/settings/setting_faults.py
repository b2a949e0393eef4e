"""Messages about a wrong configuration: what was read, where, and what was expected."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias, cast

import attrs
from attrs import frozen

from minions.app.settings.setting_types import SettingType, setting_types
from minions.app.settings.settings import BUILT_IN_PROVIDERS, Settings
from minions.contracts.tool_servers import Grant
from minions.data.errors import UsageError, did_you_mean, near_names

if TYPE_CHECKING:  # loads the codec, which most commands do without
    from minions.data.decoding_faults import DecodingFault


Path: TypeAlias = tuple[str | int, ...]
_SECRETS: Final = frozenset({"client_secret", "env", "headers", "private_key"})
"""Keys whose values may be secrets, which no message shows."""
_BARE_KEY: Final = re.compile(r"[A-Za-z0-9_-]+")


@frozen(kw_only=True)
class SettingFault:
    """One fault of a configuration."""

    table: Path
    """The path of its table; (): the top level of the file."""
    order: int
    """The order among the faults of a table: 0 unknown, 1 missing, 2 wrong."""
    text: str
    unknown: str | None = None
    """The key that the table does not have; None: the fault is another one."""
    keys: Sequence[str] = ()
    """The keys that the table has; empty unless `unknown` is set."""


def faults_of(faults: Iterable[DecodingFault]) -> Iterator[SettingFault]:
    """Turn the faults that the codec found into messages."""
    from minions.data.decoding_faults import FaultKind

    for fault in faults:
        name = _dotted(fault.path[len(fault.object_path) :])
        if fault.kind is FaultKind.UNKNOWN:
            yield _unknown(fault.object_path, str(fault.path[-1]), fault.hint)
        elif fault.kind is FaultKind.MISSING:
            yield SettingFault(table=fault.object_path, order=1, text=f"'{name}' is missing")
        else:
            expected = _expected(fault.path, SettingType.of(fault.hint))
            is_secret = not _SECRETS.isdisjoint(fault.path)
            shown = f"of type {type(fault.value).__name__}" if is_secret else f"{fault.value!r}"
            text = f"'{name}' is {shown}; {expected} was expected"
            yield SettingFault(table=fault.object_path, order=2, text=text)


def _unknown(table: Path, key: str, kind: object) -> SettingFault:
    keys = [each.name for each in attrs.fields(cast("type[attrs.AttrsInstance]", kind))]
    hint = did_you_mean(key, keys)
    text = f"unknown key '{key}'{'.' if hint else ''}{hint}"
    return SettingFault(table=table, order=0, text=text, unknown=key, keys=keys)


def _expected(path: Path, kind: SettingType) -> str:
    """What a key expects: the words of `Settings` if it has some, else those for its type."""
    if len(path) == 1:
        own: str | None = getattr(attrs.fields(Settings), str(path[0])).metadata.get("expected")
        return own or kind.expected
    return kind.expected


def bad_values(values: Mapping[str, object]) -> Iterator[SettingFault]:
    """Faults of values that have the right type and break a constraint, such as those of flags."""
    for key, value in values.items():
        kind = setting_types()[key]
        if not kind.takes(value):
            text = f"'{key}' is {value!r}; {_expected((key,), kind)} was expected"
            yield SettingFault(table=(), order=2, text=text)


def price_name_faults(content: Mapping[str, object]) -> Iterator[SettingFault]:
    """Faults of price tables whose name is no model: TOML splits `[prices.gpt-4.1]` at its dot."""
    prices = content.get("prices")
    for name, table in prices.items() if isinstance(prices, Mapping) else ():
        provider, _, model = str(name).partition("/")
        if isinstance(table, Mapping) and not (provider and model):
            text = "the table's name is no 'provider/name' in quotes"
            yield SettingFault(table=("prices", str(name)), order=0, text=text)


def provider_faults(content: Mapping[str, object]) -> Iterator[SettingFault]:
    """Faults of providers that are not built in and have no address."""
    providers = content.get("providers")
    for name, table in providers.items() if isinstance(providers, Mapping) else ():
        is_known = name in BUILT_IN_PROVIDERS
        if isinstance(table, Mapping) and not is_known and "base_url" not in table:
            place = ("providers", str(name))
            yield SettingFault(table=place, order=1, text="'base_url' is missing")


_SERVER_NAME: Final = re.compile(r"[A-Za-z0-9](?:_?[A-Za-z0-9-]){0,31}")


_OWNERS: Final[Mapping[str, str]] = {
    "env": "command",
    "folder": "command",
    **dict.fromkeys(("headers", "oauth", "client_id", "client_secret", "issuer", "scope"), "url"),
    "private_key": "url",
}
"""Which way to reach a server each key belongs to."""


def mcp_faults(content: Mapping[str, object]) -> Iterator[SettingFault]:
    """Faults of MCP servers: a name that no tool can bear, and more or less than one way to reach
    them.
    """
    servers = content.get("mcp")
    for name, table in servers.items() if isinstance(servers, Mapping) else ():
        place = ("mcp", str(name))
        if not _SERVER_NAME.fullmatch(str(name)):
            text = "the name has 1 to 32 letters, digits, '-' and single '_'"
            yield SettingFault(table=place, order=0, text=text)
        if not isinstance(table, Mapping):
            continue
        if ("command" in table) == ("url" in table):
            text = "it has one of 'command' and 'url'"
            yield SettingFault(table=place, order=1, text=text)
        for key, owner in _OWNERS.items():
            if key in table and owner not in table:
                text = f"'{key}' belongs to servers with '{owner}'"
                yield SettingFault(table=place, order=2, text=text)
        yield from _login_faults(place, table)


def _login_faults(place: Path, table: Mapping[object, object]) -> Iterator[SettingFault]:
    wanted: tuple[str, ...] = ()
    is_program = table.get("oauth") == Grant.CLIENT_CREDENTIALS.value
    if is_program:
        proof = "private_key" if "private_key" in table else "client_secret"
        wanted, why = ("client_id", proof, "issuer"), "oauth = 'client-credentials'"
    elif "client_secret" in table:
        wanted, why = ("client_id",), "'client_secret'"
    for key in wanted:
        if key not in table:
            yield SettingFault(table=place, order=3, text=f"{why} needs '{key}'")
    if "private_key" in table and not is_program:
        text = "'private_key' belongs to oauth = 'client-credentials'"
        yield SettingFault(table=place, order=3, text=text)
    if "private_key" in table and "client_secret" in table:
        text = "it has one of 'client_secret' and 'private_key'"
        yield SettingFault(table=place, order=3, text=text)


def bad_configuration(source: str, faults: Iterable[SettingFault]) -> UsageError:
    """One error for all these faults, with a line for each table.

    Args:
        source: The file, or another name of the place where the values came from.
    """
    in_order = sorted(faults, key=lambda fault: (_dotted(fault.table), fault.order))
    tables = itertools.groupby(in_order, key=lambda fault: fault.table)
    unknown = next((each for each in in_order if each.unknown and not each.table), None)
    return UsageError(
        "\n".join(_line(source, table, list(own)) for table, own in tables),
        code="bad-configuration" if unknown is None else "unknown-key",
        where=source if source.endswith(".toml") else None,
        suggestions=near_names(unknown.unknown or "", unknown.keys) if unknown else (),
    )


def _line(source: str, table: Path, faults: Sequence[SettingFault]) -> str:
    place = f"[{_dotted(table)}]: " if table else ""
    text = "; ".join(fault.text for fault in faults)
    end = "" if text.endswith("?") else "."
    keys = next((fault.keys for fault in faults if fault.keys), ())
    hint = f" Keys are: {', '.join(keys)}." if keys else ""
    return f"{source}: {place}{text}{end}{hint}"


def _dotted(path: Path) -> str:
    """The path as TOML writes it; an index of a list in brackets."""
    text = ""
    for key in path:
        if isinstance(key, int):
            text += f"[{key}]"
        else:
            shown = key if _BARE_KEY.fullmatch(key) else f'"{key}"'
            text += f".{shown}" if text else shown
    return text
