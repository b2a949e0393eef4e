"""Which connections are closed: those that keep the server waiting too long, and too many."""

from __future__ import annotations

import pytest

from minions.interfaces.http.connections import (
    PROMPT_S,
    SPARED_S,
    ConnectionLimits,
    Connections,
    ConnectionWait,
    client_of,
)


class FakeConnection:
    """An open connection."""

    def __init__(
        self,
        client: str = "a",
        awaited: ConnectionWait | None = ConnectionWait.HEAD,
        since: float = 0.0,
    ) -> None:
        self.owner = client
        self.awaited = awaited
        self.since = since
        self.is_dropped = False
        self.looks = 0

    def look(self) -> None:
        self.looks += 1

    def drop(self) -> None:
        self.is_dropped = True


def connections(most_open: int = 1_000, most_late_heads: int = 100) -> Connections:
    return Connections(ConnectionLimits(most_open=most_open, most_late_heads=most_late_heads))


def admitted(all_open: Connections, connection: FakeConnection, now: float) -> bool:
    """Whether it was added."""
    has_room = all_open.has_room(connection.owner, now)
    if has_room:
        all_open.add(connection)
    return has_room


def dropped(*of: FakeConnection) -> list[bool]:
    return [each.is_dropped for each in of]


@pytest.mark.parametrize("awaited", ConnectionWait)
def test_a_wait_ends_after_its_seconds_and_not_before(awaited: ConnectionWait) -> None:
    all_open = connections()
    late = FakeConnection(awaited=awaited, since=100.0)
    assert admitted(all_open, late, 100.0)
    seconds = all_open.limits.seconds[awaited]
    all_open.drop_late(100.0 + seconds - 0.1)
    assert dropped(late) == [False]
    all_open.drop_late(100.0 + seconds)
    assert dropped(late) == [True]
    assert len(all_open) == 0


def test_a_connection_that_is_being_answered_has_no_limit() -> None:
    all_open = connections()
    stream = FakeConnection(awaited=None)
    admitted(all_open, stream, 0.0)
    all_open.drop_late(1e9)
    assert dropped(stream) == [False]


def test_of_too_many_late_heads_of_a_client_the_oldest_are_closed() -> None:
    all_open = connections(most_late_heads=2)
    heads = [FakeConnection(since=each / 10) for each in range(4)]
    other = FakeConnection("b")
    for each in (*heads, other):
        admitted(all_open, each, each.since)
    all_open.drop_late(PROMPT_S + 1.0)
    assert dropped(*heads, other) == [True, True, False, False, False]


def test_a_burst_of_new_connections_is_spared() -> None:
    all_open = connections(most_late_heads=2)
    heads = [FakeConnection() for _ in range(10)]
    for each in heads:
        admitted(all_open, each, 0.0)
    all_open.drop_late(PROMPT_S / 2)
    assert not any(dropped(*heads))


def test_at_the_limit_the_client_with_most_waits_makes_room_for_another_one() -> None:
    all_open = connections(most_open=4)
    stream = FakeConnection("c", awaited=None)
    own = FakeConnection("b", since=0.5)
    many = [FakeConnection("a", since=1.0), FakeConnection("a", since=2.0)]
    for each in (stream, own, *many):
        admitted(all_open, each, each.since)
    assert admitted(all_open, FakeConnection("d", since=2.1), 2.1)
    assert dropped(stream, own, *many) == [False, False, True, False]
    assert len(all_open) == 4


def test_a_client_does_not_push_out_its_own_new_connections() -> None:
    all_open = connections(most_open=2)
    young = [FakeConnection(), FakeConnection()]
    for each in young:
        admitted(all_open, each, 0.0)
    assert not admitted(all_open, FakeConnection(), SPARED_S / 2)
    assert dropped(*young) == [False, False]
    assert admitted(all_open, FakeConnection(since=SPARED_S), SPARED_S)
    assert dropped(*young) == [True, False]


def test_a_client_without_room_is_not_searched_for_again_at_once() -> None:
    all_open = connections(most_open=2)
    young = [FakeConnection(), FakeConnection()]
    for each in young:
        admitted(all_open, each, 0.0)
    assert not all_open.has_room("a", SPARED_S - 0.01)
    assert not all_open.has_room("a", SPARED_S)  # a burst of them costs one search
    assert dropped(*young) == [False, False]
    assert all_open.has_room("b", SPARED_S)
    assert dropped(*young) == [True, False]
    assert not connections(most_open=2).has_room("a", 0.0, coming=2)


def test_a_reader_that_takes_something_is_not_late() -> None:
    all_open = connections()
    reader = FakeConnection(awaited=ConnectionWait.READER)
    admitted(all_open, reader, 0.0)
    assert reader.looks == 0
    all_open.drop_late(1.0)
    assert reader.looks == 1
    reader.since = 1.0
    all_open.drop_late(all_open.limits.reader_s)
    assert dropped(reader) == [False]


def test_one_that_cannot_be_closed_keeps_no_other_open() -> None:
    class Stuck(FakeConnection):
        def drop(self) -> None:
            raise OSError("no files")

    all_open = connections(most_open=2)
    stuck, late = Stuck("b"), FakeConnection("b")
    for each in (stuck, late):
        admitted(all_open, each, 0.0)
    assert not all_open.drop_late(100.0)
    assert (dropped(late), len(all_open)) == ([True], 1)
    assert isinstance(all_open.failure, OSError)
    admitted(all_open, FakeConnection("c", awaited=None), 100.0)
    assert not all_open.has_room("a", 100.0)


def test_very_many_late_connections_are_closed_in_turns() -> None:
    all_open = connections(most_open=1_000)
    late = [FakeConnection(str(number)) for number in range(450)]
    for each in late:
        admitted(all_open, each, 0.0)
    assert [all_open.drop_late(100.0) for _ in range(3)] == [True, True, False]
    assert all(each.is_dropped for each in late)


def test_where_nobody_waits_there_is_no_room() -> None:
    all_open = connections(most_open=1)
    admitted(all_open, FakeConnection(awaited=None), 0.0)
    assert not admitted(all_open, FakeConnection("b"), 100.0)


def test_connections_that_wait_for_their_next_request_make_room_too() -> None:
    all_open = connections(most_open=1)
    idle = FakeConnection(awaited=ConnectionWait.REQUEST)
    admitted(all_open, idle, 0.0)
    assert admitted(all_open, FakeConnection("b"), 1.0)
    assert dropped(idle) == [True]


def test_a_closed_connection_is_forgotten() -> None:
    all_open = connections(most_open=1)
    first = FakeConnection(awaited=None)
    admitted(all_open, first, 0.0)
    all_open.remove(first)
    all_open.remove(first)
    assert admitted(all_open, FakeConnection(), 0.0)


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
