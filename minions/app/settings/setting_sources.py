"""The sources of settings, and how they are merged.

Flags win over `MINIONS_*`, then `minions.toml` or `[tool.minions]` upwards to the repository's
root, then the user's own file, then defaults. Of a project's file that nobody trusted only harmless
keys are read.
"""

from __future__ import annotations

import enum
import functools
import itertools
import os
import re
import types
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias, cast

import attrs
from attrs import evolve
from msgspec import Struct

from minions.app.settings.settings import BUILT_IN_PROVIDERS, Settings, Strictness
from minions.app.settings.user_folders import (
    FolderTrust,
    UnreadKeys,
    harmless_keys,
    user_config_folder,
)
from minions.contracts.tool_servers import Grant
from minions.data.codec import Constraint
from minions.data.errors import UsageError, did_you_mean, near_names
from minions.data.json_values import as_object
from minions.recipe.recipe_files import project_file, read_bytes, toml_values

if TYPE_CHECKING:
    from minions.data.decoding_faults import DecodingFault


class Origin(Struct, frozen=True, kw_only=True):
    """The settings, and where the value of each key came from."""

    settings: Settings
    origins: Mapping[str, str]
    folder: Path
    """The current folder: relative paths of flags and environment start here."""
    unread: UnreadKeys | None = None
    """What was not read of the project's file; None: nothing."""

    def folder_of(self, key: str) -> Path:
        """The folder where a relative path under that key starts: of its file, or the current
        one.
        """
        origin = Path(self.origins[key])
        return origin.parent if origin.suffix == ".toml" else self.folder


def environment() -> Mapping[str, str]:
    """A copy of the process's environment."""
    return dict(os.environ)


def user_settings_file() -> Path:
    """The path of the user's own configuration, which need not exist."""
    return user_config_folder() / "minions.toml"


def load_settings(
    flags: Mapping[str, object],
    environ: Mapping[str, str],
    *,
    folder: Path,
    user_file: Path | None,
    trust: FolderTrust,
) -> Origin:
    """Read all sources; a later one replaces values of the earlier ones.

    Args:
        flags: Only those that were given.
        folder: Where the search for `minions.toml` starts.
        user_file: The user's own configuration; None: there is none.
        trust: Which files of projects count.
    Raises:
        UsageError: A file that cannot be read, an unknown key, a value of the wrong type.
    """
    settings, origins = Settings(), dict.fromkeys(setting_types(), "default")
    found = project_file(folder)
    project = None if found is None else ProjectFile.read(found)
    own = _from_file(user_file) if user_file is not None and user_file.is_file() else {}
    read = {} if project is None else project.counting(trust, own)
    sources = (
        (str(user_file), own),
        (str(found), {} if project is None else project.values(read)),
        ("environment", _check_values("environment", _from_environment(environ))),
        ("flag", _check_values("flag", flags)),
    )
    for name, said in sources:
        values = _without_weaker(said, settings)
        settings = evolve(settings, **values)  # type: ignore[arg-type]  # of the keys' types
        origins.update(dict.fromkeys(values, name))
    unread = None if project is None else project.unread(read, trust)
    return Origin(settings=settings, origins=origins, folder=folder, unread=unread)


def _without_weaker(values: Mapping[str, object], before: Settings) -> Mapping[str, object]:
    """Without a `strict = true` where an earlier source says `full`: it asks for that much, too."""
    if values.get("strict") is True and before.strict is Strictness.FULL:
        return {key: value for key, value in values.items() if key != "strict"}
    return values


# --- files --------------------------------------------------------------------------------------


class ProjectFile(Struct, frozen=True, kw_only=True):
    """The configuration of a project, read once: what is trusted is what counts."""

    path: Path
    content: bytes
    """What is trusted: of a `pyproject.toml` its section alone."""
    keys: Mapping[str, object]

    @classmethod
    def read(cls, path: Path) -> ProjectFile:
        """Read the file.

        Raises:
            UsageError: `bad-configuration`: it cannot be read.
        """
        content = read_bytes(path)
        keys = _section(path, content)
        if path.name == "pyproject.toml":
            import json

            content = json.dumps(keys, sort_keys=True, default=str).encode()
        return cls(path=path, content=content, keys=keys)

    def counting(self, trust: FolderTrust, user: Mapping[str, object]) -> Collection[str]:
        """The keys that are read: all if it is trusted, else the harmless ones.

        Args:
            user: Values of the user's own file.
        """
        is_trusted = trust.holds(self.path, self.content)
        return frozenset(self.keys) if is_trusted else harmless_keys(self.keys, user)

    def unread(self, counting: Collection[str], trust: FolderTrust) -> UnreadKeys | None:
        """What is not read, where these keys are; None: nothing."""
        keys = tuple(key for key in self.keys if key not in counting)
        if not keys:
            return None
        return UnreadKeys(file=self.path, keys=keys, is_changed=trust.knows(self.path))

    def values(self, counting: Collection[str]) -> Mapping[str, object]:
        """The values of these keys; faults of the others wait until it is trusted.

        Raises:
            UsageError: Has every fault of these keys.
        """
        counted = {key: self.keys[key] for key in self.keys if key in counting}
        if not _OF_USERS.isdisjoint(counted):
            raise bad_configuration(str(self.path), _misplaced_faults(counted))
        return _values(self.path, counted)


_OF_USERS: Final = frozenset({"policies"})
"""Keys that count in the user's own file alone: they let calls through in whatever folder."""


def _misplaced_faults(counted: Collection[str]) -> Iterator[SettingFault]:
    for key in sorted(_OF_USERS.intersection(counted)):
        text = (
            f"'{key}' counts in your own file alone, {user_settings_file()}; what a project's "
            "recipes let through they say in their `permissions`"
        )
        yield SettingFault(table=(), order=0, text=text)


def _from_file(path: Path) -> Mapping[str, object]:
    """The values of the keys that a file has.

    Raises:
        UsageError: Has every fault that was found.
    """
    return _values(path, _section(path, read_bytes(path)))


def _values(path: Path, content: Mapping[str, object]) -> Mapping[str, object]:
    if not content:  # the codec takes its time to load
        return {}
    decoded = _decode_settings(path, content)
    return {key: getattr(decoded, key) for key in content}


def _section(path: Path, content: bytes) -> Mapping[str, object]:
    values = toml_values(path, content)
    if path.name != "pyproject.toml":
        return values
    return as_object(as_object(values.get("tool", {})).get("minions", {}))


def _decode_settings(path: Path, content: Mapping[str, object]) -> Settings:
    from minions.data.codec import decode
    from minions.data.decoding_faults import decoding_faults

    faults: list[SettingFault] = [
        *price_name_faults(content),
        *provider_faults(content),
        *mcp_faults(content),
        *policy_faults(content),
    ]
    try:
        decoded = decode(as_object(content), Settings)
    except ValueError as error:
        faults += faults_of(decoding_faults(error, content, Settings))
        raise bad_configuration(str(path), faults) from error
    if faults:
        raise bad_configuration(str(path), faults)
    return decoded


# --- environment and flags ----------------------------------------------------------------------


def _from_environment(environ: Mapping[str, str]) -> Mapping[str, object]:
    """The values of `MINIONS_*` variables; tables can only be set in files."""
    found: dict[str, object] = {}
    for key, kind in setting_types().items():
        text = environ.get(_variable(key))
        if text is not None and not kind.is_table:
            found[key] = _parse(key, text, kind.kind)
    _refuse_relative_code(found.get("extensions"))
    return found


def _refuse_relative_code(extensions: object) -> None:
    """Refuse code of whatever folder a command is called in: the variable holds in all of them.

    Raises:
        UsageError: A path in MINIONS_EXTENSIONS is relative.
    """
    for name in extensions if isinstance(extensions, tuple) else ():
        if name.endswith(".py") and not Path(name).is_absolute():
            raise UsageError(
                f"MINIONS_EXTENSIONS names {name!r}, which is another file in each folder. Write "
                "the whole path, name the file in minions.toml, or use --extensions.",
                code="bad-configuration",
            )


def _variable(key: str) -> str:
    return f"MINIONS_{key.upper()}"


def _parse(key: str, text: str, kind: object) -> object:
    """The text as a value of that type.

    Raises:
        UsageError: It is no such value.
    """
    parse: Callable[[str], object]
    if key == "strict":
        parse, expected = _strictness, "true, false or full"
    elif isinstance(kind, type) and issubclass(kind, enum.Enum):
        parse = kind
        expected = SettingType(kind).expected
    elif kind in _PARSERS:
        parse, expected = _PARSERS[kind]
    else:
        return text
    try:
        return parse(text)
    except (ValueError, KeyError) as error:
        raise UsageError(f"{_variable(key)}={text!r}: expected {expected}.") from error


_TRUTH: Final[Mapping[str, bool]] = {
    **dict.fromkeys(("1", "true", "yes"), True),
    **dict.fromkeys(("0", "false", "no", ""), False),
}


def _truth(text: str) -> bool:
    return _TRUTH[text.lower()]


def _strictness(text: str) -> bool | Strictness:
    return Strictness.FULL if text.lower() == Strictness.FULL.value else _truth(text)


def _parts(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


_PARSERS: Final[Mapping[object, tuple[Callable[[str], object], str]]] = {
    bool: (_truth, "true or false"),
    int: (int, "a whole number"),
    float: (float, "a number"),
    tuple: (_parts, "texts with commas between them"),
}
"""The parser of each type, and what it expects; other types stay texts."""


def _check_values(source: str, values: Mapping[str, object]) -> Mapping[str, object]:
    """The values, checked; they have their types already.

    Raises:
        UsageError: A value breaks the constraint of its key.
    """
    if faults := list(bad_values(values)):
        raise bad_configuration(source, faults)
    return values


# --- the types of settings -----------------------------------------------------------------------


_WORDS: Final[Mapping[object, str]] = {
    str: "a text",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    tuple: "a list of texts",
    Mapping: "a table of texts",
}


class SettingType(Struct, frozen=True):
    """The type of a setting, without whether the key may be left out."""

    kind: object
    """A class, a container's class, or a union."""
    constraint: Constraint | None = None

    @classmethod
    def of(cls, hint: object) -> SettingType:
        """The type of a hint; of `X | None` it is that of X."""
        members = [each for each in typing.get_args(hint) if each is not type(None)]
        if _is_union(hint) and len(members) == 1:
            return cls.of(members[0])
        if typing.get_origin(hint) is typing.Annotated:
            constraints = (each for each in members if isinstance(each, Constraint))
            return cls(members[0], next(constraints, None))
        return cls(hint if _is_union(hint) else typing.get_origin(hint) or hint)

    @property
    def is_table(self) -> bool:
        """Whether it is a table, which only a file can hold."""
        return self.kind is Mapping or (isinstance(self.kind, type) and attrs.has(self.kind))

    def takes(self, value: object) -> bool:
        """Whether a value of this type fulfils the constraint."""
        return value is None or self.constraint is None or self.constraint.holds(value)

    @property
    def expected(self) -> str:
        """What is expected, in words for messages."""
        if self.constraint is not None:
            return self.constraint.expected
        if _is_union(self.kind):
            return " or ".join(
                SettingType.of(each).expected
                for each in typing.get_args(self.kind)
                if each is not type(None)
            )
        if isinstance(self.kind, type) and issubclass(self.kind, enum.Enum):
            return f"one of {', '.join(str(each.value) for each in self.kind)}"
        if isinstance(self.kind, type) and attrs.has(self.kind):
            return f"a table of {', '.join(each.name for each in attrs.fields(self.kind))}"
        return _WORDS[self.kind]


def _is_union(hint: object) -> bool:
    return typing.get_origin(hint) in (typing.Union, types.UnionType)


@functools.cache  # of the one class that there is
def setting_types() -> Mapping[str, SettingType]:
    """Each key of the settings with its type."""
    hints = typing.get_type_hints(Settings, include_extras=True)
    return {each.name: SettingType.of(hints[each.name]) for each in attrs.fields(Settings)}


# --- messages about a wrong configuration --------------------------------------------------------


KeyPath: TypeAlias = tuple[str | int, ...]
_SECRETS: Final = frozenset({"client_secret", "env", "headers", "private_key"})
"""Keys whose values may be secrets, which no message shows."""
_BARE_KEY: Final = re.compile(r"[A-Za-z0-9_-]+")


class SettingFault(Struct, frozen=True, kw_only=True):
    """One fault of a configuration."""

    table: KeyPath
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
        name = _toml_path(fault.path[len(fault.object_path) :])
        if fault.kind is FaultKind.UNKNOWN:
            yield _unknown(fault.object_path, str(fault.path[-1]), fault.hint)
        elif fault.kind is FaultKind.MISSING:
            yield SettingFault(table=fault.object_path, order=1, text=f"'{name}' is missing")
        else:
            expected = _describe_expected(fault.path, SettingType.of(fault.hint))
            is_secret = not _SECRETS.isdisjoint(fault.path)
            shown = f"of type {type(fault.value).__name__}" if is_secret else f"{fault.value!r}"
            text = f"'{name}' is {shown}; {expected} was expected"
            yield SettingFault(table=fault.object_path, order=2, text=text)


def _unknown(table: KeyPath, key: str, kind: object) -> SettingFault:
    keys = [each.name for each in attrs.fields(cast("type[attrs.AttrsInstance]", kind))]
    hint = did_you_mean(key, keys)
    text = f"unknown key '{key}'{'.' if hint else ''}{hint}"
    return SettingFault(table=table, order=0, text=text, unknown=key, keys=keys)


def _describe_expected(path: KeyPath, kind: SettingType) -> str:
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
            text = f"'{key}' is {value!r}; {_describe_expected((key,), kind)} was expected"
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


def _login_faults(place: KeyPath, table: Mapping[object, object]) -> Iterator[SettingFault]:
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


def policy_faults(content: Mapping[str, object]) -> Iterator[SettingFault]:
    """Faults of conditions over calls, which read the arguments and whose words are in them."""
    from minions.recipe.expressions.template import compile_condition
    from minions.recipe.expressions.values import TemplateError
    from minions.recipe.permissions import BY_ARGUMENT, READ_BY_POLICIES

    policies = content.get("policies")
    for tool, condition in policies.items() if isinstance(policies, Mapping) else ():
        if not isinstance(condition, str):
            continue  # the codec reports it
        try:
            read = compile_condition(condition).references
        except TemplateError as error:
            text = f"'{tool}' is {condition!r:.200}, which is no condition: {error.message}"
            yield SettingFault(table=("policies",), order=2, text=text)
            continue
        for whole in [each for each in BY_ARGUMENT if any(x.path == (each,) for x in read)]:
            text = (
                f"'{tool}' reads '{whole}', which as a whole is true of every call; name the "
                f"argument that the policy is about, `{whole}.NAME`"
            )
            yield SettingFault(table=("policies",), order=2, text=text)
        for other in sorted({str(each.path[0]) for each in read}.difference(READ_BY_POLICIES)):
            text = (
                f"'{tool}' reads '{other:.60}'; a condition of an operator reads the arguments of "
                "the call, `args.NAME`, and whose words are in them: `words_of.NAME`, "
                "`stands_in.NAME`, `decided_by`"
            )
            yield SettingFault(table=("policies",), order=2, text=text)


def bad_configuration(source: str, faults: Iterable[SettingFault]) -> UsageError:
    """One error for all these faults, with a line for each table.

    Args:
        source: The file, or another name of the place where the values came from.
    """
    in_order = sorted(faults, key=lambda fault: (_toml_path(fault.table), fault.order))
    tables = itertools.groupby(in_order, key=lambda fault: fault.table)
    unknown = next((each for each in in_order if each.unknown and not each.table), None)
    return UsageError(
        "\n".join(_line(source, table, list(own)) for table, own in tables),
        code="bad-configuration" if unknown is None else "unknown-key",
        where=source if source.endswith(".toml") else None,
        suggestions=near_names(unknown.unknown or "", unknown.keys) if unknown else (),
    )


def _line(source: str, table: KeyPath, faults: Sequence[SettingFault]) -> str:
    place = f"[{_toml_path(table)}]: " if table else ""
    text = "; ".join(fault.text for fault in faults)
    end = "" if text.endswith("?") else "."
    keys = next((fault.keys for fault in faults if fault.keys), ())
    hint = f" Keys are: {', '.join(keys)}." if keys else ""
    return f"{source}: {place}{text}{end}{hint}"


def _toml_path(path: KeyPath) -> str:
    """The path as TOML writes it; an index of a list in brackets."""
    text = ""
    for key in path:
        if isinstance(key, int):
            text += f"[{key}]"
        else:
            shown = key if _BARE_KEY.fullmatch(key) else f'"{key}"'
            text += f".{shown}" if text else shown
    return text
