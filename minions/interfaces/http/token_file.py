"""The file that says who may send requests: the only token, or tables of tokens and a proxy."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Collection, Mapping
from datetime import datetime
from pathlib import Path
from typing import Final

from attrs import field, frozen

from minions.data.bounded_files import open_regular
from minions.data.errors import EnvironmentRefusedError, UsageError, did_you_mean
from minions.data.texts import parse_toml
from minions.interfaces.http.proxy_access import ProxyAccess
from minions.interfaces.http.tokens import CallerToken, Rights, check_token, digest_of, rights_of

_MOST_BYTES: Final = 100_000
_TABLE: Final = re.compile(r"(?m)^[ \t]*(?:\[\[?[ \t]*(?:tokens|proxy)\b|tokens[ \t]*=)")
"""What a file with a table has, and no token."""


@frozen(kw_only=True)
class FileTokens:
    """What the file gives: the only token, or tables."""

    token: str = field(default="", repr=False)
    """The only token; empty: there are tables."""
    tokens: tuple[CallerToken, ...] = ()
    proxy: ProxyAccess | None = None

    def check_projects(self, known: Collection[str]) -> None:
        """Check that all projects for which there are rights exist.

        Raises:
            UsageError: `bad-projects`; one does not.
        """
        entries: list[Rights] = [*self.tokens]
        if self.proxy is not None:
            proxy = self.proxy
            entries += [proxy.anyone, *proxy.groups.values(), *proxy.users.values()]
        for name in {name for each in entries for name in each.projects}:
            if name not in known:
                listed = f"Projects are: {', '.join(known)}." if known else "It has none."
                raise UsageError(
                    f"--token-file gives rights in the project '{name}', which this server does "
                    f"not have. {listed}{did_you_mean(name, known)}",
                    code="bad-projects",
                )


def read_token_file(path: Path) -> FileTokens:
    """The tokens of the file; where there is no file, one with a new token is written.

    It is read once: a change needs a new start of the server.

    Raises:
        EnvironmentRefusedError: The file cannot be read or written, other users may read it, or its
            tables have faults. No message repeats anything of a token.
    """
    try:
        with open_regular(path) as known:
            if os.fstat(known.fileno()).st_mode & 0o077:
                raise EnvironmentRefusedError(
                    f"--token-file {path}: others may read it. chmod 600 {path}",
                    code="open-token-file",
                )
            text = known.read(_MOST_BYTES + 1).decode()
    except FileNotFoundError:
        return FileTokens(token=_new_token(path))
    except (OSError, UnicodeDecodeError) as error:
        raise _refusal(path, f"cannot be read: {_reason(error)}") from error
    if len(text) > _MOST_BYTES:
        raise _refusal(path, f"has more than {_MOST_BYTES:,} bytes")
    if not _TABLE.search(text):
        return FileTokens(token=text.strip())
    return _tables(path, text)


def _reason(error: OSError | UnicodeDecodeError) -> str:
    """Why, without the bytes that a decoder quotes."""
    return (error.strerror or "") if isinstance(error, OSError) else "it is no UTF-8 text"


def _tables(path: Path, text: str) -> FileTokens:
    try:
        document = parse_toml(text)
    except ValueError as error:
        # The parser's message quotes characters of the file, but its place does not.
        place = re.search(r"\(at [^()]*\)\Z", str(error))
        raise _refusal(path, f"is no TOML {place[0] if place else ''}".rstrip()) from None
    entries, proxy = document.pop("tokens", []), document.pop("proxy", None)
    if document or not isinstance(entries, list) or not (entries or proxy):
        raise _refusal(path, "has [[tokens]], a table [proxy], and nothing else")
    tokens = list[CallerToken]()
    for number, each in enumerate(entries, start=1):
        try:
            tokens.append(_token(each))
        except UsageError as error:
            says = f"has a fault in its table number {number}: {error.message}"
            raise _refusal(path, says) from None
    try:
        access = None if proxy is None else _proxy(proxy)
    except UsageError as error:
        raise _refusal(path, f"has a fault in its table [proxy]: {error.message}") from None
    return FileTokens(tokens=tuple(tokens), proxy=access)


_RIGHTS: Final = ("role", "scopes", "projects")
_TOKEN_KEYS: Final = ("name", "token", "sha256", *_RIGHTS, "user", "roles", "expires")
_HEADERS: Final = ("user_header", "groups_header", "secret_header")
_PROXY_KEYS: Final = (*_HEADERS, "secret", "sha256", "peers", *_RIGHTS, "groups", "users")


def _token(entry: object) -> CallerToken:
    """The token of one table.

    Raises:
        UsageError: It has faults.
    """
    table = _table_of(entry, "token", _TOKEN_KEYS, "name, token or sha256, and role or scopes")
    texts = {key: _text(table, key) for key in ("name", "token", "sha256", "user") if key in table}
    rights, roles = _rights(table), _texts(table, "roles", '["finance"]')
    if "name" not in texts or ("token" in texts) is ("sha256" in texts):
        raise UsageError("a `name` and either `token` or `sha256` are needed.")
    return CallerToken(
        name=texts["name"],
        sha256=texts.get("sha256") or digest_of(check_token(texts.get("token", ""))),
        scopes=rights.scopes,
        projects=rights.projects,
        user=texts.get("user"),
        roles=roles,
        expires=_time(table, "expires") if "expires" in table else None,
    )


def _proxy(entry: object) -> ProxyAccess:
    """The table of the proxy.

    Raises:
        UsageError: It has faults.
    """
    table = _table_of(entry, "proxy", _PROXY_KEYS, "user_header and a proof")
    texts = {key: _text(table, key) for key in (*_HEADERS, "secret", "sha256") if key in table}
    if "user_header" not in texts:
        raise UsageError("`user_header` is needed, such as X-Forwarded-User.")
    if "secret" in texts and "sha256" in texts:
        raise UsageError("either `secret` or `sha256` is expected.")
    secret = texts.pop("secret", None)
    sha256 = texts.pop("sha256", None)
    return ProxyAccess(
        user_header=texts["user_header"],
        groups_header=texts.get("groups_header"),
        secret_header=texts.get("secret_header"),
        secret_sha256=sha256 if secret is None else digest_of(check_token(secret)),
        peers=_texts(table, "peers", '["127.0.0.1"]'),
        anyone=_rights(table) if any(key in table for key in _RIGHTS) else Rights(),
        groups=_named_rights(table, "groups"),
        users=_named_rights(table, "users"),
    )


def _named_rights(proxy: Mapping[str, object], key: str) -> Mapping[str, Rights]:
    entries = proxy.get(key, [])
    if not isinstance(entries, list):
        raise UsageError(f"`{key}` are tables [[proxy.{key}]].")
    found = dict[str, Rights]()
    for entry in entries:
        table = _table_of(entry, key, ("name", *_RIGHTS), "name, and role or scopes")
        name = _text(table, "name") if "name" in table else ""
        if not name or name in found or "," in name:
            raise UsageError(f"each of [[proxy.{key}]] has a `name` of its own, without a comma.")
        found[name] = _rights(table)
    return found


def _rights(table: Mapping[str, object]) -> Rights:
    projects: object = table.get("projects", {})
    if not isinstance(projects, Mapping):
        raise UsageError('`projects` is a table, such as {shop = "operator"}.')
    return rights_of(
        _text(table, "role") if "role" in table else None,
        _texts(table, "scopes", '["read", "run"]'),
        {str(name): _text(projects, name) for name in projects},
    )


def _table_of(
    entry: object, what: str, keys: Collection[str], expected: str
) -> Mapping[str, object]:
    if not isinstance(entry, Mapping):
        raise UsageError(f"a table with {expected} is expected.")
    for key in entry:
        if key not in keys:
            raise UsageError(f"'{key[:40]}' is no key of a {what}.{did_you_mean(key, keys)}")
    return entry


def _texts(table: Mapping[str, object], key: str, example: str) -> tuple[str, ...]:
    found: object = table.get(key, [])
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise UsageError(f"`{key}` is a list, such as {example}.")
    return tuple(found)


def _text(entry: Mapping[str, object], key: str) -> str:
    value = entry[key]
    if not isinstance(value, str):
        raise UsageError(f"`{key}` is a text.")
    return value


def _time(entry: Mapping[str, object], key: str) -> datetime:
    value = entry[key]
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise UsageError(
            f"`{key}` is a date and time with its offset, without quotes: 2026-12-31T00:00:00Z."
        )
    return value


def _new_token(path: Path) -> str:
    token = secrets.token_urlsafe(24)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as new:
            new.write(f"{token}\n")
    except OSError as error:
        raise _refusal(path, f"cannot be written: {error.strerror}") from error
    return token


def _refusal(path: Path, what: str) -> EnvironmentRefusedError:
    return EnvironmentRefusedError(f"--token-file {path} {what}.", code="token-file")
