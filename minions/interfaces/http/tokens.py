"""The tokens of a server and their holders: whose they are, and what they let a caller do."""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from http import HTTPStatus
from pathlib import Path
from typing import Final, Self

from attrs import Attribute, field, frozen
from attrs.validators import deep_iterable

from minions.contracts.approvals import DecisionMaker
from minions.contracts.budgets import LONGEST_USER
from minions.data.bounded_files import open_regular
from minions.data.errors import EnvironmentRefusedError, UsageError, did_you_mean
from minions.data.texts import parse_toml
from minions.interfaces.http.http_answers import RefusedError

_SHORTEST: Final = 16
"""The fewest characters of a token: it cannot be guessed."""


class TokenScope(StrEnum):
    """What a token lets its holder do. `admin` includes `read`, `run` and `decide`; no other
    includes one.
    """

    READ = "read"
    RUN = "run"
    DECIDE = "decide"
    ADMIN = "admin"
    ALL = "all"


SCOPES: Final[Mapping[TokenScope, str]] = {
    TokenScope.READ: "look at recipes, runs, sessions, decisions and metrics.",
    TokenScope.RUN: "start, resume, retry and cancel runs, and take turns of sessions.",
    TokenScope.DECIDE: "approve, reject and answer, mark outputs as good or bad, or have a plan "
    "carried out unasked.",
    TokenScope.ADMIN: "delete sessions and messages, roll files back, bring recipes along; and "
    "everything else.",
    TokenScope.ALL: "with a token that has a user: see and act on the runs and sessions of all "
    "users, and the operator's.",
}
"""What each scope is for."""


def _as_scopes(names: Iterable[str]) -> frozenset[TokenScope]:
    try:
        scopes = frozenset(map(TokenScope, names))
    except ValueError as error:
        known = ", ".join(TokenScope)
        raise UsageError(f"A scope of a token is unknown. Scopes are: {known}.") from error
    everything = frozenset(TokenScope) - {TokenScope.ALL}
    return scopes | everything if TokenScope.ADMIN in scopes else scopes


def _check_name(_token: CallerToken, attribute: Attribute[str], name: str | None) -> None:
    if name is not None and not (0 < len(name) <= LONGEST_USER and name.isprintable()):
        raise UsageError(
            f"The {attribute.name} of a token has 1 to {LONGEST_USER} printable characters."
        )


def _check_digest(_token: CallerToken, _attribute: Attribute[str], digest: str) -> None:
    if len(digest) != 64 or set(digest) - set("0123456789abcdef"):
        raise UsageError(
            "The `sha256` of a token is the SHA-256 of the token in lower case hexadecimal digits."
        )


def _check_scopes(
    _token: CallerToken, _attribute: Attribute[frozenset[TokenScope]], value: frozenset[TokenScope]
) -> None:
    if not value:
        raise UsageError(f"A token has at least one scope: {', '.join(TokenScope)}.")


def check_token(token: str) -> str:
    """The token, if it can be one.

    Raises:
        UsageError: `bad-token`; the text is not repeated, for it is a secret.
    """
    if len(token) < _SHORTEST or not token.isascii() or not token.isprintable():
        raise UsageError(
            f"The server's token has at least {_SHORTEST} printable ASCII characters.",
            code="bad-token",
        )
    return token


@frozen(kw_only=True)
class CallerToken:
    """A token with the name of its holder and what it lets them do."""

    name: str = field(validator=_check_name)
    """Who decides, where a decision was made with this token."""
    sha256: str = field(validator=_check_digest, repr=False)
    """The SHA-256 of the token, in hexadecimal digits."""
    scopes: frozenset[TokenScope] = field(converter=_as_scopes, validator=_check_scopes)
    user: str | None = field(default=None, validator=_check_name)
    """The user for whom all runs of this token are, who spends from a daily budget. The token sees
    and acts on what is that user's alone, unless it has the scope `all`. None: each request may
    name a user, and the token sees everything."""
    roles: tuple[str, ...] = field(default=(), validator=deep_iterable(_check_name))
    """What its holder is, where recipes say who may decide: `finance`."""

    @classmethod
    def of(
        cls,
        name: str,
        token: str,
        scopes: Iterable[str],
        *,
        user: str | None = None,
        roles: Iterable[str] = (),
    ) -> Self:
        """The entry for that token, which is not kept.

        Raises:
            UsageError: `bad-token`, or an unknown scope.
        """
        digest = digest_of(check_token(token))
        return cls(name=name, sha256=digest, scopes=scopes, user=user, roles=tuple(roles))


def digest_of(token: str) -> str:
    """The SHA-256 of a token, in hexadecimal digits."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


# --- the file with the tokens of a server --------------------------------------------------------


_MOST_BYTES: Final = 100_000
_TABLE: Final = re.compile(r"(?m)^[ \t]*(?:\[\[?[ \t]*tokens\b|tokens[ \t]*=)")
"""What a file with a table has, and no token."""
_KEYS: Final = ("name", "token", "sha256", "scopes", "user", "roles")


@frozen(kw_only=True)
class FileTokens:
    """What the file gives: one of the two."""

    token: str = field(default="", repr=False)
    """The only token; empty: there are `tokens`."""
    tokens: tuple[CallerToken, ...] = ()


def read_token_file(path: Path) -> FileTokens:
    """The tokens of the file; where there is no file, one with a new token is written.

    It is read once: a change needs a new start of the server.

    Raises:
        EnvironmentRefusedError: The file cannot be read or written, other users may read it, or its
            table has faults. No message repeats anything of a token.
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
    return FileTokens(tokens=_table(path, text))


def _reason(error: OSError | UnicodeDecodeError) -> str:
    """Why, without the bytes that a decoder quotes."""
    return (error.strerror or "") if isinstance(error, OSError) else "it is no UTF-8 text"


def _table(path: Path, text: str) -> tuple[CallerToken, ...]:
    try:
        document = parse_toml(text)
    except ValueError as error:
        # The parser's message quotes characters of the file, but its place does not.
        place = re.search(r"\(at [^()]*\)\Z", str(error))
        raise _refusal(path, f"is no TOML {place[0] if place else ''}".rstrip()) from None
    entries = document.pop("tokens", None)
    if document or not isinstance(entries, list) or not entries:
        raise _refusal(path, "has [[tokens]] tables and nothing else")
    return tuple(_entry(path, number, each) for number, each in enumerate(entries, start=1))


def _entry(path: Path, number: int, entry: object) -> CallerToken:
    try:
        return _token(entry)
    except UsageError as error:
        raise _refusal(path, f"has a fault in its table number {number}: {error.message}") from None


def _token(entry: object) -> CallerToken:
    """The token of one table.

    Raises:
        UsageError: It has faults.
    """
    if not isinstance(entry, Mapping):
        raise UsageError("a table with name, token or sha256, and scopes is expected.")
    for key in entry:
        if key not in _KEYS:
            raise UsageError(f"'{key[:40]}' is no key of a token.{did_you_mean(key, _KEYS)}")
    texts = {key: _text(entry, key) for key in ("name", "token", "sha256", "user") if key in entry}
    scopes: object = entry.get("scopes")
    if not isinstance(scopes, list) or not all(isinstance(each, str) for each in scopes):
        raise UsageError('`scopes` is a list, such as ["read", "run"].')
    roles: object = entry.get("roles", [])
    if not isinstance(roles, list) or not all(isinstance(each, str) for each in roles):
        raise UsageError('`roles` is a list, such as ["finance"].')
    if "name" not in texts or ("token" in texts) is ("sha256" in texts):
        raise UsageError("a `name` and either `token` or `sha256` are needed.")
    name, user = texts["name"], texts.get("user")
    if "token" in texts:
        return CallerToken.of(name, texts["token"], scopes, user=user, roles=roles)
    sha256 = texts["sha256"]
    return CallerToken(name=name, sha256=sha256, scopes=scopes, user=user, roles=tuple(roles))


def _text(entry: Mapping[str, object], key: str) -> str:
    value = entry[key]
    if not isinstance(value, str):
        raise UsageError(f"`{key}` is a text.")
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


# --- who sends a request, and what their token lets them do --------------------------------------


CALLER: Final = "minions.caller"
"""Key of the ASGI scope for the `Caller`; there is none where no token is needed."""


@frozen(kw_only=True)
class Caller:
    """Who sends a request."""

    name: str | None = None
    """The name of the token; None: the one token of the server, which has no name."""
    scopes: frozenset[TokenScope]
    user: str | None = None
    """The user for whom the caller's runs are; None: each request may name one."""
    roles: tuple[str, ...] = ()
    """What the holder of the token is, where recipes say who may decide: `finance`."""

    @property
    def owner(self) -> str | None:
        """The user whose runs and sessions alone there are for the caller; None: there are all."""
        return None if TokenScope.ALL in self.scopes else self.user

    def require(self, scope: TokenScope, what: str = "this request") -> None:
        """Check the rights of the caller.

        Raises:
            RefusedError: `missing-scope`.
        """
        if scope not in self.scopes:
            holder = f"The token '{self.name}'" if self.name is not None else "This token"
            raise RefusedError(
                HTTPStatus.FORBIDDEN,
                "missing-scope",
                f"{holder} lacks the scope '{scope}' for {what}. It has: "
                f"{', '.join(sorted(self.scopes)) or 'none'}.",
            )

    def user_of(self, asked: str | None) -> str | None:
        """The user of a new run.

        Raises:
            RefusedError: `other-user`; the token is bound to another one.
        """
        if self.user is None:
            return asked
        return _own(self.user, asked, "other-user", "runs for the user")

    def decides_as(self, asked: str | None) -> str | None:
        """Who is recorded as having decided.

        Raises:
            RefusedError: `other-name`; the token has another name.
        """
        if self.name is None:
            return asked
        return _own(self.name, asked, "other-name", "decides as")

    def decision_maker(self, asked: str | None) -> DecisionMaker:
        """Who makes a decision, with the roles of the token. Two tokens of a user are one person.

        Raises:
            RefusedError: `other-name`; the token has another name.
        """
        name = self.decides_as(asked)
        if self.name is None:
            return DecisionMaker(name=name, way="http", is_claimed=True)
        return DecisionMaker(name=name, user=self.user, roles=self.roles, way="http")


def _own(own: str, asked: str | None, code: str, does: str) -> str:
    if asked in (None, own):
        return own
    raise RefusedError(
        HTTPStatus.FORBIDDEN, code, f"This token {does} '{own}', and as nobody else. Leave it out."
    )


FULL: Final = Caller(scopes=frozenset(TokenScope) - {TokenScope.ALL})
"""The holder of a server's only token."""


def caller_of(given: str, sha256: str | None, tokens: Sequence[CallerToken]) -> Caller | None:
    """Whose token it is; None: nobody's. It takes the same time for every wrong token.

    Args:
        given: The token of a request.
        sha256: The digest of the server's only token; None: there is none.
        tokens: Those with names.
    """
    digest, found = digest_of(given), None
    if sha256 is not None and hmac.compare_digest(digest, sha256):
        found = FULL
    for each in tokens:
        if hmac.compare_digest(digest, each.sha256):
            found = Caller(name=each.name, scopes=each.scopes, user=each.user, roles=each.roles)
    return found


# --- how callers come in, for messages that say what the operator can offer them -----------------


@frozen(kw_only=True)
class CallerWay:
    """A way in."""

    name: str
    """`http` or `mcp`."""
    words: str
    """For the middle of a sentence."""
    command: str
    """The operator's command, whose options `--allow-folder` and `--allow-secret` offer more."""


OVER_HTTP: Final = CallerWay(name="http", words="over HTTP", command="minions serve")
OVER_MCP: Final = CallerWay(name="mcp", words="over MCP", command="minions mcp serve")
