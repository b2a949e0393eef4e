"""The sources of settings, and how they are merged.

Flags win over `MINIONS_*`, then `minions.toml` or `[tool.minions]` upwards to the repository's
root, then the user's own file, then defaults. Of a project's file that nobody trusted only harmless
keys are read.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Final, cast

from attrs import evolve, frozen

from minions.app.settings.folder_trust import FolderTrust, UnreadKeys, harmless_keys
from minions.app.settings.setting_faults import (
    SettingFault,
    bad_configuration,
    bad_values,
    faults_of,
    mcp_faults,
    price_name_faults,
    provider_faults,
)
from minions.app.settings.setting_types import SettingType, setting_types
from minions.app.settings.settings import Settings, Strictness
from minions.app.settings.user_folders import user_config_folder
from minions.data.errors import UsageError
from minions.data.json_values import JsonValue
from minions.recipe.project_folders import project_file, read_bytes, toml_tables


@frozen(kw_only=True)
class Origin:
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
        ("environment", _checked("environment", _from_environment(environ))),
        ("flag", _checked("flag", flags)),
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


@frozen(kw_only=True)
class ProjectFile:
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
        return _values(self.path, {key: self.keys[key] for key in self.keys if key in counting})


def _from_file(path: Path) -> Mapping[str, object]:
    """The values of the keys that a file has.

    Raises:
        UsageError: Has every fault that was found.
    """
    return _values(path, _section(path, read_bytes(path)))


def _values(path: Path, content: Mapping[str, object]) -> Mapping[str, object]:
    if not content:  # the codec takes its time to load
        return {}
    decoded = _decoded(path, content)
    return {key: getattr(decoded, key) for key in content}


def _section(path: Path, content: bytes) -> Mapping[str, object]:
    tables: Mapping[str, object] = toml_tables(path, content)
    if path.name != "pyproject.toml":
        return tables
    tools = cast("Mapping[str, Mapping[str, object]]", tables.get("tool", {}))
    return tools.get("minions", {})


def _decoded(path: Path, content: Mapping[str, object]) -> Settings:
    from minions.data.codec import decode
    from minions.data.decoding_faults import decoding_faults

    faults: list[SettingFault] = [
        *price_name_faults(content),
        *provider_faults(content),
        *mcp_faults(content),
    ]
    try:
        decoded = decode(cast("dict[str, JsonValue]", content), Settings)
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
            found[key] = _parsed(key, text, kind.kind)
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


def _parsed(key: str, text: str, kind: object) -> object:
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


def _checked(source: str, values: Mapping[str, object]) -> Mapping[str, object]:
    """The values, checked; they have their types already.

    Raises:
        UsageError: A value breaks the constraint of its key.
    """
    if faults := list(bad_values(values)):
        raise bad_configuration(source, faults)
    return values
