"""Which connections are closed: those that keep the server waiting too long, and too many."""

from __future__ import annotations

import pytest

from minions.interfaces.server.http.connections import (
    PROMPT_S,
    Awaited,
    ConnectionLimits,
    Connections,
    client_of,
)


class FakeConnection:
    """An open connection."""

    def __init__(
        self, client: str = "a", awaited: Awaited | None = Awaited.HEAD, since: float = 0.0
    ) -> None:
        self.owner = client
        self.awaited = awaited
        self.since = since
        self.is_dropped = False

    def drop(self) -> None:
        self.is_dropped = True


def connections(most_open: int = 1_000, most_late_heads: int = 100) -> Connections:
    return Connections(ConnectionLimits(most_open=most_open, most_late_heads=most_late_heads))


def dropped(*of: FakeConnection) -> list[bool]:
    return [each.is_dropped for each in of]


@pytest.mark.parametrize("awaited", Awaited)
def test_a_wait_ends_after_its_seconds_and_not_before(awaited: Awaited) -> None:
    all_open = connections()
    late = FakeConnection(awaited=awaited, since=100.0)
    assert all_open.add(late, 100.0)
    seconds = all_open.limits.seconds[awaited]
    all_open.drop_late(100.0 + seconds - 0.1)
    assert dropped(late) == [False]
    all_open.drop_late(100.0 + seconds)
    assert dropped(late) == [True]
    assert len(all_open) == 0


def test_a_connection_that_is_being_answered_has_no_limit() -> None:
    all_open = connections()
    stream = FakeConnection(awaited=None)
    all_open.add(stream, 0.0)
    all_open.drop_late(1e9)
    assert dropped(stream) == [False]


def test_of_too_many_late_heads_of_a_client_the_oldest_are_closed() -> None:
    all_open = connections(most_late_heads=2)
    heads = [FakeConnection(since=each / 10) for each in range(4)]
    other = FakeConnection("b")
    for each in (*heads, other):
        all_open.add(each, each.since)
    all_open.drop_late(PROMPT_S + 1.0)
    assert dropped(*heads, other) == [True, True, False, False, False]


def test_a_burst_of_new_connections_is_spared() -> None:
    all_open = connections(most_late_heads=2)
    heads = [FakeConnection() for _ in range(10)]
    for each in heads:
        all_open.add(each, 0.0)
    all_open.drop_late(PROMPT_S / 2)
    assert not any(dropped(*heads))


def test_at_the_limit_the_client_with_most_waits_makes_room_for_another_one() -> None:
    all_open = connections(most_open=4)
    stream = FakeConnection("c", awaited=None)
    own = FakeConnection("b", since=0.5)
    many = [FakeConnection("a", since=1.0), FakeConnection("a", since=2.0)]
    for each in (stream, own, *many):
        all_open.add(each, each.since)
    assert all_open.add(FakeConnection("d", since=2.1), 2.1)
    assert dropped(stream, own, *many) == [False, False, True, False]
    assert len(all_open) == 4


def test_a_client_does_not_push_out_its_own_new_connections() -> None:
    all_open = connections(most_open=2)
    young = [FakeConnection(), FakeConnection()]
    for each in young:
        all_open.add(each, 0.0)
    assert not all_open.add(FakeConnection(), PROMPT_S / 2)
    assert dropped(*young) == [False, False]
    assert all_open.add(FakeConnection(since=PROMPT_S), PROMPT_S)
    assert dropped(*young) == [True, False]


def test_where_nobody_waits_there_is_no_room() -> None:
    all_open = connections(most_open=1)
    all_open.add(FakeConnection(awaited=None), 0.0)
    assert not all_open.add(FakeConnection("b"), 100.0)


def test_connections_that_wait_for_their_next_request_make_room_too() -> None:
    all_open = connections(most_open=1)
    idle = FakeConnection(awaited=Awaited.REQUEST)
    all_open.add(idle, 0.0)
    assert all_open.add(FakeConnection("b"), 1.0)
    assert dropped(idle) == [True]


def test_a_closed_connection_is_forgotten() -> None:
    all_open = connections(most_open=1)
    first = FakeConnection(awaited=None)
    all_open.add(first, 0.0)
    all_open.remove(first)
    all_open.remove(first)
    assert all_open.add(FakeConnection(), 0.0)


@pytest.mark.parametrize(
    ("address", "client"),
    [
        (("192.0.2.7", 4711), "192.0.2.7"),
        (("::ffff:192.0.2.7", 4711, 0, 0), "192.0.2.7"),
        (("2001:db8:1:2:3:4:5:6", 4711, 0, 0), "2001:db8:1:2::/64"),
        (("fe80::1%eth0", 4711, 0, 2), "fe80::/64"),
        ("", ""),
        (None, ""),
    ],
)
def test_a_client_has_one_ipv4_address_or_one_network_of_ipv6(address: object, client: str) -> None:
    assert client_of(address) == client
