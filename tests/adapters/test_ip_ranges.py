"""Which addresses are public: each range of the table by its first and last address and its
neighbours, the same under every Python.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

import pytest

from minions.adapters.http.request_rules import (
    SPECIAL_RANGES,
    check_address,
    is_loopback,
    is_public,
)
from minions.data.errors import ToolError

Network = IPv4Network | IPv6Network

NEIGHBOURS = {
    # range: whether the address before its first one, and the one behind its last one, are public
    "0.0.0.0/8": (None, True),
    "10.0.0.0/8": (True, True),
    "100.64.0.0/10": (True, True),
    "127.0.0.0/8": (True, True),
    "169.254.0.0/16": (True, True),
    "172.16.0.0/12": (True, True),
    "192.0.0.0/24": (True, True),
    "192.0.2.0/24": (True, True),
    "192.31.196.0/24": (True, True),
    "192.52.193.0/24": (True, True),
    "192.88.99.0/24": (True, True),
    "192.168.0.0/16": (True, True),
    "192.175.48.0/24": (True, True),
    "198.18.0.0/15": (True, True),
    "198.51.100.0/24": (True, True),
    "203.0.113.0/24": (True, True),
    "240.0.0.0/4": (False, None),
    "::/128": (None, False),
    "::1/128": (False, False),
    "64:ff9b:1::/48": (False, False),
    "100::/64": (False, False),
    "100:0:0:1::/64": (False, False),
    "2001::/23": (True, True),
    "2001:3::/32": (False, False),
    "2001:4:112::/48": (False, False),
    "2001:20::/28": (False, True),
    "2001:30::/28": (True, False),
    "2001:db8::/32": (True, True),
    "2620:4f:8000::/48": (True, True),
    "3fff::/20": (True, True),
    "5f00::/16": (False, False),
    "fc00::/7": (False, False),
    "fe80::/10": (False, False),
    "168.63.129.16/32": (True, True),
    "224.0.0.0/4": (True, False),
    "fec0::/10": (False, False),
    "ff00::/8": (False, None),
}


def test_every_range_of_the_table_is_tested() -> None:
    assert NEIGHBOURS.keys() == SPECIAL_RANGES.keys()


@pytest.mark.parametrize("name", SPECIAL_RANGES)
def test_a_range_is_as_the_table_says_from_its_first_to_its_last_address(name: str) -> None:
    network: Network = ipaddress.ip_network(name)
    assert is_public(network[0]) is SPECIAL_RANGES[name]
    assert is_public(network[-1]) is SPECIAL_RANGES[name]


@pytest.mark.parametrize("name", SPECIAL_RANGES)
def test_the_neighbours_of_a_range_do_not_belong_to_it(name: str) -> None:
    network: Network = ipaddress.ip_network(name)
    before, behind = NEIGHBOURS[name]
    if before is not None:
        assert is_public(network[0] - 1) is before
    if behind is not None:
        assert is_public(network[-1] + 1) is behind


def _ipv4() -> Iterator[IPv4Address]:
    for name in SPECIAL_RANGES:
        network = ipaddress.ip_network(name)
        if isinstance(network, IPv4Network):
            yield from (network[0], network[-1])
    yield from map(IPv4Address, ("1.1.1.1", "8.8.8.8", "93.184.216.34", "191.255.255.255"))


@pytest.mark.parametrize("inner", [*_ipv4()], ids=str)
def test_an_address_that_leads_to_an_embedded_one_is_as_public_as_that(inner: IPv4Address) -> None:
    mapped = IPv6Address((0xFFFF << 32) | int(inner))
    translated = IPv6Address(int(IPv6Address("64:ff9b::")) | int(inner))
    six_to_four = IPv6Address((0x2002 << 112) | (int(inner) << 80) | 1)
    found = {is_public(each) for each in (mapped, translated, six_to_four)}
    assert found == {is_public(inner)}


@pytest.mark.parametrize("client", ["8.8.8.8", "10.0.0.1"])
@pytest.mark.parametrize("server", ["8.8.4.4", "127.0.0.1"])
def test_teredo_is_never_public(server: str, client: str) -> None:
    hidden = int(IPv4Address(client)) ^ 0xFFFF_FFFF
    address = (0x2001_0000 << 96) | (int(IPv4Address(server)) << 64) | hidden
    assert not is_public(IPv6Address(address))


@pytest.mark.parametrize(
    "address",
    [
        "192.0.0.8",
        "192.0.0.9",
        "192.0.0.10",
        "192.0.0.170",
        "192.0.0.171",
        "2001:1::1",
        "2001:1::2",
    ],
)
def test_what_the_nearest_router_answers_is_not_public(address: str) -> None:
    with pytest.raises(ToolError) as caught:
        check_address("router.example", address)
    assert caught.value.error_code == "address-refused"


@pytest.mark.parametrize(
    "address", ["::8.8.8.8", "::2", "1::1", "200::1", "400::1", "4000::1", "8000::1", "f000::1"]
)
def test_what_no_registry_hands_out_is_not_public(address: str) -> None:
    assert not is_public(IPv6Address(address))


@pytest.mark.parametrize("address", ["2000::1", "2606:4700::1111", "2a00:1450:4001::1", "3ffe::1"])
def test_global_unicast_is_public(address: str) -> None:
    assert is_public(IPv6Address(address))


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("127.0.0.1", True),
        ("127.255.255.254", True),
        ("126.255.255.255", False),
        ("128.0.0.0", False),
        ("::1", True),
        ("::2", False),
        ("::ffff:127.0.0.1", True),
        ("::ffff:128.0.0.1", False),
        ("64:ff9b::7f00:1", False),
    ],
)
def test_loopback_is_this_machine_also_as_a_mapped_address(address: str, expected: bool) -> None:
    assert is_loopback(ipaddress.ip_address(address)) is expected
