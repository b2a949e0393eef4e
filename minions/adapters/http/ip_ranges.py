"""Which IP addresses are public, by a table of our own: that of `ipaddress` differs between patch
releases of Python.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Final, TypeAlias

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
        inner = _embedded(address)
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


def _embedded(address: IPv6Address) -> IPv4Address | None:
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
