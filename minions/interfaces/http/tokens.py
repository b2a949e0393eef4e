"""The tokens of a server: whose they are, and what they let their holders do."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final, Self

from attrs import Attribute, field, frozen

from minions.contracts.budgets import LONGEST_USER
from minions.data.errors import UsageError

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

    @classmethod
    def of(cls, name: str, token: str, scopes: Iterable[str], *, user: str | None = None) -> Self:
        """The entry for that token, which is not kept.

        Raises:
            UsageError: `bad-token`, or an unknown scope.
        """
        return cls(name=name, sha256=digest_of(check_token(token)), scopes=scopes, user=user)


def digest_of(token: str) -> str:
    """The SHA-256 of a token, in hexadecimal digits."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()
