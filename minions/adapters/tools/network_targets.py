"""The hosts that requests may reach: an allow-list, and checks that addresses are public.

Nothing is sent here; names are resolved by a function that is handed in.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeAlias

from attrs import frozen

from minions.adapters.http.ip_ranges import is_public
from minions.data.errors import ToolError

Resolve: TypeAlias = Callable[[str, int], Awaitable[Sequence[str]]]
"""Resolves a host and port to addresses as text, the best one first.

Raises:
    OSError: The host does not exist.
"""

HOST_PATTERN: Final = (
    r"^(\*\.)?[A-Za-z0-9_][A-Za-z0-9_.-]*(:[0-9]{1,5})?$|^\[[0-9A-Fa-f:.]+\](:[0-9]{1,5})?$"
)
"""`api.example.com`, `*.example.org:8443`, `127.0.0.1:80`, `[::1]`."""

_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


@frozen
class AllowedHost:
    """One entry of an allow-list."""

    host: str
    """Lower case; for `*.example.org` the part after the star, with its dot."""
    port: int | None
    """The port; None: the default port of the scheme."""

    @classmethod
    def of(cls, text: str) -> AllowedHost:
        """The entry of a text that matches `HOST_PATTERN`."""
        found = re.fullmatch(r"(.*?)(?::([0-9]{1,5}))?", text)
        host, port = (found[1], found[2]) if found and not text.endswith("]") else (text, None)
        host = _canonical(host.removeprefix("*").strip("[]"))
        return cls(host, int(port) if port else None)

    def covers(self, scheme: str, host: str, port: int) -> bool:
        """Whether the entry allows that host and port. `*.a.b` covers `x.a.b`, not `a.b`."""
        host = _canonical(host)
        names = host.endswith(self.host) if self.host.startswith(".") else host == self.host
        return names and port == (self.port or _DEFAULT_PORTS[scheme])


def _canonical(host: str) -> str:
    """The one spelling of a host under which it is compared; the shortest for an address."""
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return host.lower().rstrip(".")


async def resolve_by_system(host: str, port: int) -> Sequence[str]:
    """Resolve a host by the operating system, in its order."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(item[4][0]) for item in found))


def check_address(host: str, address: str) -> None:
    """Refuse an address that is not public.

    Raises:
        ToolError: It is private, loopback, link-local, multicast, reserved, or of a metadata
            service.
    """
    if is_public(ipaddress.ip_address(address.partition("%")[0])):
        return
    raise ToolError(
        f"{host} is at {address}, which is not a public address. Requests into private networks, "
        "to this machine and to metadata services are refused; the operator can allow them with "
        "the toolset's option `allow_private: true`.",
        code="address-refused",
    )
