"""Callers whom a proxy in front of the server has logged in: its headers, and what proves them."""

from __future__ import annotations

import hmac
import re
from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Final, TypeAlias

from attrs import Attribute, field, frozen
from attrs.validators import optional

from minions.contracts.budgets import LONGEST_USER
from minions.data.errors import UsageError
from minions.interfaces.http.http_answers import RefusedError
from minions.interfaces.http.tokens import Caller, Rights, check_digest, digest_of

Network: TypeAlias = IPv4Network | IPv6Network

_HEADER_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,99}")
_OWN: Final = (
    *("authorization", "connection", "content-length", "content-type"),
    *("cookie", "host", "origin", "transfer-encoding"),
)
"""Headers that say something else; lower case."""


def _as_header(name: str | None) -> str | None:
    return name.lower() if name is not None else None


def _check_header(_proxy: ProxyAccess, attribute: Attribute[str], name: str) -> None:
    if not _HEADER_NAME.fullmatch(name) or name in _OWN:
        raise UsageError(
            f"`{attribute.name}` is the name of a header that the proxy alone sets, such as "
            f"X-Forwarded-User: letters, digits and `-`; none of {', '.join(_OWN)}."
        )


def _as_networks(peers: Iterable[str | Network]) -> tuple[Network, ...]:
    try:
        return tuple(ip_network(each) for each in peers)
    except ValueError as error:
        raise UsageError(
            f"`peers` are addresses or networks, such as 127.0.0.1 or 10.1.0.0/24: {error}."
        ) from error


@frozen(kw_only=True)
class ProxyAccess:
    """Which headers of a proxy say who sends a request, what proves that they are the proxy's, and
    what its users may do. Every proof that is named has to be there.
    """

    user_header: str = field(converter=_as_header, validator=_check_header)
    """Has the user's name, in UTF-8."""
    groups_header: str | None = field(
        default=None, converter=_as_header, validator=optional(_check_header)
    )
    """Has the user's groups, with commas between. None: there are no groups."""
    secret_header: str | None = field(
        default=None, converter=_as_header, validator=optional(_check_header)
    )
    """Has the secret that only the proxy knows. None: `peers` alone are the proof."""
    secret_sha256: str | None = field(default=None, validator=optional(check_digest), repr=False)
    """The SHA-256 of that secret, in hexadecimal digits."""
    peers: tuple[Network, ...] = field(default=(), converter=_as_networks)
    """Addresses from which the proxy connects; empty: the secret alone is the proof."""
    anyone: Rights = field(factory=Rights)
    """What every user of the proxy may do."""
    groups: Mapping[str, Rights] = field(factory=dict)
    """What members of a group may do besides, by its name."""
    users: Mapping[str, Rights] = field(factory=dict)
    """What a user may do besides, by their name."""

    def __attrs_post_init__(self) -> None:
        """Check that there is a proof, and what goes together."""
        if (self.secret_header is None) is not (self.secret_sha256 is None):
            raise UsageError("`secret_header` and the secret, or its `sha256`, go together.")
        if self.secret_header is None and not self.peers:
            raise UsageError(
                "Anybody could send the header of a user. Name what proves that the proxy did: "
                "`secret_header` with `secret` or `sha256`, or `peers`."
            )
        names = [self.user_header, self.groups_header, self.secret_header]
        given = [name for name in names if name is not None]
        if len(set(given)) < len(given):
            raise UsageError("`user_header`, `groups_header` and `secret_header` are different.")
        if self.groups and self.groups_header is None:
            raise UsageError("`groups` need the `groups_header` that names them.")

    def caller_of(self, headers: _Headers, peer: str | None) -> Caller | None:
        """Whom the proxy names; None: the request has no header of a user or of groups.

        Args:
            headers: Of the request, with names in lower case.
            peer: The address that the request came from; None: it is not known.
        Raises:
            RefusedError: `proxy-refused`; the proof is missing, or the headers name no user.
        """
        users = _values_of(headers, self.user_header)
        groups = _values_of(headers, self.groups_header)
        if not (users or groups):
            return None
        if not self._is_proven(headers, peer):
            raise _refusal(
                f"The request names a user by the header '{self.user_header}', and nothing proves "
                "that the proxy did: its secret is missing or wrong, or it came from elsewhere. "
                "Go by the proxy, or send a token and no such header."
            )
        if len(users) != 1 or len(groups) > 1:
            raise _refusal(
                f"The proxy is to send the header '{self.user_header}' once, and that of groups "
                f"once at most; it sent {len(users)} and {len(groups)}. It has to replace what "
                "its own callers send."
            )
        name = _text_of(users[0], self.user_header)
        if not 0 < len(name) <= LONGEST_USER or not name.isprintable() or "," in name:
            raise _refusal(
                f"The header '{self.user_header}' has no name of a user: 1 to {LONGEST_USER} "
                "printable characters without a comma are expected."
            )
        listed = _text_of(groups[0], str(self.groups_header)).split(",") if groups else []
        members = tuple(dict.fromkeys(each.strip() for each in listed if each.strip()))
        parts = [self.anyone, *(self.groups[each] for each in members if each in self.groups)]
        if name in self.users:
            parts.append(self.users[name])
        rights = Rights.union(parts)
        return Caller(
            name=name,
            is_user=True,
            user=name,
            roles=members,
            scopes=rights.scopes,
            projects=rights.projects,
        )

    def _is_proven(self, headers: _Headers, peer: str | None) -> bool:
        if self.peers:
            try:
                address = ip_address(peer or "")
            except ValueError:
                return False
            address = getattr(address, "ipv4_mapped", None) or address
            if not any(address in network for network in self.peers):
                return False
        if self.secret_sha256 is None:
            return True
        given = _values_of(headers, self.secret_header)
        digest = digest_of(given[0].decode("latin-1")) if len(given) == 1 else ""
        return hmac.compare_digest(digest, self.secret_sha256)


_Headers: TypeAlias = Sequence[tuple[bytes, bytes]]


def _values_of(headers: _Headers, name: str | None) -> list[bytes]:
    return [] if name is None else [value for key, value in headers if key == name.encode()]


def _text_of(value: bytes, header: str) -> str:
    try:
        return value.decode().strip()
    except UnicodeDecodeError as error:
        raise _refusal(f"The header '{header}' is no UTF-8 text.") from error


def _refusal(message: str) -> RefusedError:
    return RefusedError(
        HTTPStatus.UNAUTHORIZED, "proxy-refused", message, headers={"www-authenticate": "Bearer"}
    )
