"""How many streams there are at a time: the rest of the connections is for other requests."""

from __future__ import annotations

from contextlib import AsyncExitStack

import pytest

from asgi_client import Client
from minions.interfaces.http.http_answers import RefusedError
from minions.interfaces.http.tokens import CallerToken
from minions.interfaces.server.live.channels import StreamPlaces
from served import MakeApp


def test_a_quarter_of_the_connections_is_left_for_other_requests() -> None:
    places = StreamPlaces(100)
    places.keep_room(8)
    for _ in range(6):
        places.take(None)
    with pytest.raises(RefusedError, match="6 streams are open"):
        places.take(None)
    places.give(None)
    places.take("ann")
    few = StreamPlaces(3)
    few.keep_room(1_000)
    for _ in range(3):
        few.take(None)
    assert len(few) == 3


def test_one_of_several_tokens_has_half_of_the_places() -> None:
    places = StreamPlaces(4)
    places.take("ann")
    places.take("ann")
    with pytest.raises(RefusedError, match="2 streams of the token 'ann' are open"):
        places.take("ann")
    places.take("board")
    places.give("ann")
    places.take("ann")
    assert len(places) == 3


async def test_a_token_with_streams_without_end_leaves_others_theirs(make_app: MakeApp) -> None:
    """A-152."""
    tokens = [CallerToken.of(name, f"the-token-of-{name}", ["read"]) for name in ("ann", "board")]
    app = make_app(tokens=tokens, max_followers=4)
    ann, board = ({"authorization": f"Bearer the-token-of-{name}"} for name in ("ann", "board"))
    client = Client(app)
    async with AsyncExitStack() as stack:
        for _ in range(2):
            await stack.enter_async_context(client.follow("/changes", **ann))
        refused = await client.get("/changes", **ann)
        assert (refused.status, refused.json["code"]) == (503, "too-many-followers")
        assert (await client.get("/runs", **ann)).status == 200
        for _ in range(2):
            await stack.enter_async_context(client.follow("/changes", **board))
    assert len(app.app_state.places) == 0
