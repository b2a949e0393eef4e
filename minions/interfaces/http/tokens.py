"""The tokens of a server and their holders: whose they are, and what they let a caller do."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from http import HTTPStatus
from typing import Final, Self

from attrs import Attribute, field, frozen
from attrs.validators import deep_iterable

from minions.contracts.approvals import DecisionMaker
from minions.contracts.budgets import LONGEST_USER
from minions.data.errors import UsageError
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


class CallerRole(StrEnum):
    """What a person does here: scopes that go together. Each includes the one before."""

    VIEWER = "viewer"
    APPROVER = "approver"
    OPERATOR = "operator"


ROLES: Final[Mapping[CallerRole, frozenset[TokenScope]]] = {
    CallerRole.VIEWER: frozenset({TokenScope.READ}),
    CallerRole.APPROVER: frozenset({TokenScope.READ, TokenScope.DECIDE}),
    CallerRole.OPERATOR: frozenset(TokenScope) - {TokenScope.ALL},
}
"""The scopes of each role."""


def _as_scopes(names: Iterable[str]) -> frozenset[TokenScope]:
    try:
        scopes = frozenset(map(TokenScope, names))
    except ValueError as error:
        known = ", ".join(TokenScope)
        raise UsageError(f"A scope of a token is unknown. Scopes are: {known}.") from error
    return scopes | ROLES[CallerRole.OPERATOR] if TokenScope.ADMIN in scopes else scopes


@frozen(kw_only=True)
class Rights:
    """What somebody may do, and in which projects something else."""

    scopes: frozenset[TokenScope] = field(default=frozenset(), converter=_as_scopes)
    projects: Mapping[str, frozenset[TokenScope]] = field(factory=dict)
    """Scopes instead of `scopes`, by the name of a project of `minions serve --projects`."""

    @classmethod
    def union(cls, parts: Sequence[Rights]) -> Self:
        """What any of them allows."""
        return cls(
            scopes=frozenset().union(*(each.scopes for each in parts)),
            projects={
                project: frozenset().union(*(each.within(project) for each in parts))
                for project in {name for each in parts for name in each.projects}
            },
        )

    def within(self, project: str | None) -> frozenset[TokenScope]:
        """The scopes in that project; None: on a server without projects."""
        return self.scopes if project is None else self.projects.get(project, self.scopes)


def rights_of(
    role: str | None = None, scopes: Iterable[str] = (), projects: Mapping[str, str] | None = None
) -> Rights:
    """The rights of a role and further scopes; in some projects another role instead.

    Args:
        projects: The role in each of these projects. `all` of `scopes` holds there, too.
    Raises:
        UsageError: A role or a scope is unknown, or nothing is given.
    """
    own = _as_scopes(scopes)
    rights = Rights(
        scopes=own if role is None else own | _scopes_of_role(role),
        projects={
            project: _scopes_of_role(name) | (own & {TokenScope.ALL})
            for project, name in (projects or {}).items()
        },
    )
    _check_rights(rights)
    return rights


def _scopes_of_role(name: str) -> frozenset[TokenScope]:
    if name not in set(CallerRole):
        raise UsageError(f"A role is unknown. Roles are: {', '.join(CallerRole)}.")
    return ROLES[CallerRole(name)]


def _check_rights(rights: Rights) -> None:
    if not (rights.scopes or rights.projects):
        raise UsageError(
            f"A role ({', '.join(CallerRole)}) or at least one scope is needed: "
            f"{', '.join(TokenScope)}."
        )


def _check_name(_token: CallerToken, attribute: Attribute[str], name: str | None) -> None:
    if name is not None and not (0 < len(name) <= LONGEST_USER and name.isprintable()):
        raise UsageError(
            f"The {attribute.name} of a token has 1 to {LONGEST_USER} printable characters."
        )


def check_digest(_of: object, _attribute: Attribute[str], digest: str) -> None:
    """Check that a field can be a SHA-256.

    Raises:
        UsageError: It cannot.
    """
    if len(digest) != 64 or set(digest) - set("0123456789abcdef"):
        raise UsageError(
            "The `sha256` of a token or secret is its SHA-256 in lower case hexadecimal digits."
        )


def _check_expires(
    _token: CallerToken, _attribute: Attribute[datetime | None], expires: datetime | None
) -> None:
    if expires is not None and expires.tzinfo is None:
        raise UsageError(
            "`expires` of a token is a date and time with its offset: 2026-12-31T00:00:00Z."
        )


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
class CallerToken(Rights):
    """A token with the name of its holder and what it lets them do."""

    name: str = field(validator=_check_name)
    """Who decides, where a decision was made with this token."""
    sha256: str = field(validator=check_digest, repr=False)
    """The SHA-256 of the token, in hexadecimal digits."""
    user: str | None = field(default=None, validator=_check_name)
    """The user for whom all runs of this token are, who spends from a daily budget. The token sees
    and acts on what is that user's alone, unless it has the scope `all`. None: each request may
    name a user, and the token sees everything."""
    roles: tuple[str, ...] = field(default=(), validator=deep_iterable(_check_name))
    """What its holder is, where recipes say who may decide: `finance`."""
    expires: datetime | None = field(default=None, validator=_check_expires)
    """From when on it lets nobody in, by the server's clock; None: it does not expire."""

    def __attrs_post_init__(self) -> None:
        """Check that it lets its holder do something."""
        _check_rights(self)

    @classmethod
    def of(
        cls,
        name: str,
        token: str,
        scopes: Iterable[str] = (),
        *,
        role: str | None = None,
        projects: Mapping[str, str] | None = None,
        user: str | None = None,
        roles: Iterable[str] = (),
        expires: datetime | None = None,
    ) -> Self:
        """The entry for that token, which is not kept.

        Args:
            role: `viewer`, `approver` or `operator`: its scopes beside `scopes`.
            projects: The role in each of these projects of the server, instead of `role`.
        Raises:
            UsageError: `bad-token`, or an unknown scope or role.
        """
        rights = rights_of(role, scopes, projects)
        return cls(
            name=name,
            sha256=digest_of(check_token(token)),
            scopes=rights.scopes,
            projects=rights.projects,
            user=user,
            roles=tuple(roles),
            expires=expires,
        )


def digest_of(token: str) -> str:
    """The SHA-256 of a token, in hexadecimal digits."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


# --- who sends a request, and what their token lets them do --------------------------------------


TOKEN_EXPIRED: Final = "token-expired"  # noqa: S105  # the code of an error
"""The code of what is refused, or ends, as the caller's token has expired."""
EXPIRED: Final = "minions.expired"
"""Key of the message of ASGI by which an app is told that the caller has left, where it is their
token that has expired meanwhile: the refusal."""
CALLER: Final = "minions.caller"
"""Key of the ASGI scope for the `Caller`; there is none where no token is needed."""


@frozen(kw_only=True)
class Caller(Rights):
    """Who sends a request. `scopes` are those in the project of the request."""

    name: str | None = None
    """The name of the token or user; None: the one token of the server, which has no name."""
    is_user: bool = False
    """Whether a proxy says who it is; False: a token does."""
    user: str | None = None
    """The user for whom the caller's runs are; None: each request may name one."""
    roles: tuple[str, ...] = ()
    """What the holder of the token is, where recipes say who may decide: `finance`."""
    expires: datetime | None = None
    """When the token expires; None: it does not, or a proxy says who it is."""

    def expired(self, now: datetime) -> RefusedError | None:
        """The refusal of a token that has expired; None: it has not.

        Args:
            now: By the server's clock, with its zone.
        """
        if self.expires is None or now < self.expires:
            return None
        holder = f"The token '{self.name}'" if self.name is not None else "This token"
        return RefusedError(
            HTTPStatus.UNAUTHORIZED,
            TOKEN_EXPIRED,
            f"{holder} expired at {self.expires.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}. Ask the "
            "operator for a new one.",
            headers={"www-authenticate": 'Bearer error="invalid_token"'},
        )

    @property
    def _kind(self) -> str:
        return "user" if self.is_user else "token"

    @property
    def role(self) -> CallerRole | None:
        """The role whose scopes these are, but for `all`; None: they are of no role."""
        own = self.scopes - {TokenScope.ALL}
        return next((role for role, scopes in ROLES.items() if scopes == own), None)

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
            holder = f"The {self._kind} '{self.name}'" if self.name is not None else "This token"
            role = next((each for each, scopes in ROLES.items() if scope in scopes), None)
            raise RefusedError(
                HTTPStatus.FORBIDDEN,
                "missing-scope",
                f"{holder} lacks the scope '{scope}' for {what}. It has: "
                f"{', '.join(sorted(self.scopes)) or 'none'}."
                + (f" The role '{role}' has it." if role is not None else ""),
            )

    def user_of(self, asked: str | None) -> str | None:
        """The user of a new run.

        Raises:
            RefusedError: `other-user`; the token is bound to another one.
        """
        if self.user is None:
            return asked
        return _own(self.user, asked, "other-user", f"This {self._kind} runs for the user")

    def decides_as(self, asked: str | None) -> str | None:
        """Who is recorded as having decided.

        Raises:
            RefusedError: `other-name`; the token has another name.
        """
        if self.name is None:
            return asked
        return _own(self.name, asked, "other-name", f"This {self._kind} decides as")

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
        HTTPStatus.FORBIDDEN, code, f"{does} '{own}', and as nobody else. Leave it out."
    )


FULL: Final = Caller(scopes=ROLES[CallerRole.OPERATOR])
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
            found = Caller(
                name=each.name,
                scopes=each.scopes,
                projects=each.projects,
                user=each.user,
                roles=each.roles,
                expires=each.expires,
            )
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
