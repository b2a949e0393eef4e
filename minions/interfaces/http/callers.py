"""Who sends a request, and what their token lets them do."""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from http import HTTPStatus
from typing import Final

from attrs import frozen

from minions.interfaces.http.problems import RefusedError
from minions.interfaces.http.tokens import CallerToken, TokenScope, digest_of

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
            found = Caller(name=each.name, scopes=each.scopes, user=each.user)
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
