"""Rules of requests to servers: their address, the headers an operator may set, and which hosts and
IP addresses are reached.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Final, TypeAlias
from urllib.parse import urlsplit

from msgspec import Struct

from minions.data.errors import EnvironmentRefusedError, ToolError


def server_address(base_url: str) -> tuple[str, str, int]:
    """Scheme, host and port, for comparison."""
    parts = urlsplit(base_url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return parts.scheme, (parts.hostname or "").rstrip("."), port


def origin_of(base_url: str) -> str:
    """Scheme, host and port as a text, without the scheme's usual port: `https://host.example`."""
    scheme, host, port = server_address(base_url)
    host = f"[{host}]" if ":" in host else host
    return f"{scheme}://{host}" if port == _USUAL_PORTS.get(scheme) else f"{scheme}://{host}:{port}"


_USUAL_PORTS: Final = {"http": 80, "https": 443}


def ollama_url(said: str) -> str:
    """The base URL of a value of OLLAMA_HOST: host, host:port, :port or a URL."""
    scheme, separator, rest = said.strip().strip("\"'").rpartition("://")
    host, slash, path = rest.partition("/")
    if host.count(":") > 1 and not host.startswith("["):
        host = f"[{host}]"
    if host.startswith(":") or not host:
        host = f"127.0.0.1{host}"
    for everywhere, here in (("0.0.0.0", "127.0.0.1"), ("[::]", "[::1]")):  # noqa: S104  # replaced
        if host == everywhere or host.startswith(f"{everywhere}:"):
            host = here + host.removeprefix(everywhere)
    has_port = re.search(r":[0-9]+$", host.rpartition("]")[2]) is not None
    port = "" if separator or has_port else ":11434"
    path = path.strip("/")
    base = f"{scheme or 'http'}://{host}{port}{slash if path else ''}{path}"
    return base if path.endswith("v1") else f"{base}/v1"


# --- which IP addresses are public, by a table of our own ----------------------------------------


_Address: TypeAlias = IPv4Address | IPv6Address

SPECIAL_RANGES: Final[Mapping[str, bool]] = {
    # IANA IPv4 Special-Purpose Address Registry
    "0.0.0.0/8": False,
    "10.0.0.0/8": False,
    "100.64.0.0/10": False,
    "127.0.0.0/8": False,
    "169.254.0.0/16": False,
    "172.16.0.0/12": False,
    "192.0.0.0/24": False,
    "192.0.2.0/24": False,
    "192.31.196.0/24": True,
    "192.52.193.0/24": True,
    "192.88.99.0/24": False,
    "192.168.0.0/16": False,
    "192.175.48.0/24": True,
    "198.18.0.0/15": False,
    "198.51.100.0/24": False,
    "203.0.113.0/24": False,
    "240.0.0.0/4": False,
    # IANA IPv6 Special-Purpose Address Registry
    "::/128": False,
    "::1/128": False,
    "64:ff9b:1::/48": False,
    "100::/64": False,
    "100:0:0:1::/64": False,
    "2001::/23": False,
    "2001:3::/32": True,
    "2001:4:112::/48": True,
    "2001:20::/28": True,
    "2001:30::/28": True,
    "2001:db8::/32": False,
    "2620:4f:8000::/48": True,
    "3fff::/20": False,
    "5f00::/16": False,
    "fc00::/7": False,
    "fe80::/10": False,
    # Not in these registries
    "168.63.129.16/32": False,  # the metadata service of a cloud
    "224.0.0.0/4": False,  # multicast
    "fec0::/10": False,  # site-local, given up (RFC 3879)
    "ff00::/8": False,  # multicast
}
"""By range: whether the whole internet reaches it; a range within another one overrides it.

Different from the registries: "N/A" is False here, relays and tunnels that were given up, such as
Teredo (2001::/32) whatever addresses are embedded in it. So are the anycast addresses of PCP, TURN
and SRP (192.0.0.9, 192.0.0.10, 2001:1::1 to 2001:1::3): the nearest router answers, one's own.
Source: https://www.iana.org/assignments/iana-ipv4-special-registry and iana-ipv6-special-registry.
"""

_UNICAST: Final = IPv6Network("2000::/3")
"""All public IPv6 addresses are in it; what is outside is reserved, or in the table."""
_EMBEDDING: Final = (
    (IPv6Network("::ffff:0:0/96"), 0),  # IPv4-mapped (RFC 4291)
    (IPv6Network("64:ff9b::/96"), 0),  # translated by NAT64 (RFC 6052)
    (IPv6Network("2002::/16"), 80),  # 6to4 (RFC 3056)
)
"""Ranges whose addresses lead to an IPv4 address in them, and how many bits follow it."""


def is_public(address: _Address) -> bool:
    """Whether the whole internet reaches the address: it is not private, reserved or multicast.

    One that leads to an embedded IPv4 address is as public as that.
    """
    if isinstance(address, IPv6Address):
        inner = _find_embedded(address)
        if inner is not None:
            return is_public(inner)
    for network in _containing(address):
        return _TABLE[network]
    return isinstance(address, IPv4Address) or address in _UNICAST


def is_loopback(address: _Address) -> bool:
    """Whether the address is of this machine: 127.0.0.0/8, also IPv4-mapped, and ::1."""
    if isinstance(address, IPv6Address):
        return address == IPv6Address(1) or (
            address.ipv4_mapped is not None and is_loopback(address.ipv4_mapped)
        )
    return address in _LOOPBACK


_LOOPBACK: Final = IPv4Network("127.0.0.0/8")


def _find_embedded(address: IPv6Address) -> IPv4Address | None:
    for network, bits_behind in _EMBEDDING:
        if address in network:
            return IPv4Address((int(address) >> bits_behind) & 0xFFFF_FFFF)
    return None


def _containing(address: _Address) -> Iterator[IPv4Network | IPv6Network]:
    """The ranges of the table with that address, the smallest first."""
    return (network for network in _TABLE if address in network)


_TABLE: Final = {
    network: SPECIAL_RANGES[str(network)]
    for network in sorted(
        map(ipaddress.ip_network, SPECIAL_RANGES), key=lambda each: -each.prefixlen
    )
}


# --- what an HTTP header can carry, and which headers an operator may set ------------------------


_OWN_HEADERS: Final = frozenset(
    (
        *("accept", "accept-encoding", "connection", "content-length", "content-type", "host"),
        "transfer-encoding",
    )
)
"""Headers that belong to the transport."""


def check_key(key: str, source: str) -> str:
    """`key`, if it is valid in an HTTP header.

    Raises:
        EnvironmentRefusedError: `bad-key`; names the key's source without showing the key.
    """
    if re.fullmatch(r"[!-~]+", key):
        return key
    raise EnvironmentRefusedError(
        f"{source[0].upper()}{source[1:]} holds blanks, line breaks or characters outside ASCII, "
        "which no HTTP header can carry. Copy it again, on one line.",
        code="bad-key",
    )


def check_header(value: str, source: str) -> str:
    """`value`, if it is valid in an HTTP header.

    Raises:
        EnvironmentRefusedError: `bad-header`; names the value's source without showing the value.
    """
    if re.fullmatch(r"[\t -~]*", value):
        return value
    raise EnvironmentRefusedError(
        f"{source[0].upper()}{source[1:]} holds line breaks or characters outside ASCII, which "
        "no HTTP header can carry.",
        code="bad-header",
    )


def check_header_name(name: str, provider: str) -> str:
    """`name`, if the operator may set that header.

    Raises:
        EnvironmentRefusedError: `bad-header`: it is no name of a header, or belongs to the
            transport.
    """
    if re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", name) and name.lower() not in _OWN_HEADERS:
        return name
    raise EnvironmentRefusedError(
        f"[providers.{provider}] headers cannot set '{name:.60}': it is no header's name, or one "
        "that the transport sets.",
        code="bad-header",
    )


# --- the hosts that requests may reach -----------------------------------------------------------


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


class AllowedHost(Struct, frozen=True):
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
