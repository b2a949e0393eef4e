"""Streamed answers in all four wire forms, and what may happen to them on the way.

A byte that a network changed is not among it: TCP and TLS see to that. Processes on the way are:
they die, time out, ask again, and write their own errors between the pieces.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from minions.adapters.models.answer_reader import AnswerReader
from minions.adapters.models.chat_failures import ChatPeer
from minions.contracts.calls import Prompt
from minions.contracts.messages import user
from minions.data.json_values import JsonValue
from strict_servers.anthropic import StrictAnthropic
from strict_servers.gemini import StrictGemini
from strict_servers.openai import StrictChat, StrictResponses
from strict_servers.server import Planned, StrictServer

__all__ = ["ERRORS", "PEER", "PLANS", "SERVERS", "join", "pieces_of", "reader_of"]

SERVERS: Final[tuple[StrictServer, ...]] = (
    StrictChat(),
    StrictResponses(),
    StrictAnthropic(),
    StrictGemini(),
)
PLANS: Final = (
    Planned(text="One two three four five six."),
    Planned(
        text='I look: \U0001f642 "é"\n\tso.',
        calls=(("look", {"q": "a\\b\u2028"}), ("look", {"q": ["b", {"c": 1.5}]})),
        thought="Two \U0001f642 places.",
    ),
    Planned(calls=(("look", {"q": "only"}),)),
)
PEER: Final = ChatPeer(provider="p", model="m", base_url="http://localhost/v1")
ERRORS: Final[dict[str, JsonValue]] = {
    "chat": {"error": {"message": "Overloaded", "code": 503}},
    "responses": {"type": "error", "code": "server_error", "message": "Overloaded"},
    "messages": {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}},
    "gemini": {"error": {"code": 503, "message": "Overloaded", "status": "UNAVAILABLE"}},
}
"""What a server says in the midst of a stream, by the form's name."""


def pieces_of(server: StrictServer, planned: Planned, answer_id: str = "a") -> list[bytes]:
    """The events of a streamed answer, with an id where the form has one in each piece."""
    own = {"chat": {"id": answer_id}, "gemini": {"responseId": answer_id}}.get(server.name, {})
    documents = [
        {**each, **own} if isinstance(each, dict) else each for each in server.events(planned)
    ]
    return [server.framed(each) for each in documents]


def join(first: Sequence[bytes], at: int, second: Sequence[bytes]) -> list[bytes]:
    """What a gateway sends that loses its server after some pieces, and asks another one."""
    return [*first[:at], *second]


def reader_of(server: StrictServer, *, stream: bool = True) -> AnswerReader:
    """The reader of one answer of that form."""
    wire, prompt = server.model("http://localhost/v1").wire, Prompt((user("hello"),))
    if not stream:
        return wire.plain_reader(PEER, prompt)
    return wire.stream_reader(PEER, prompt, lambda: 0.0, 0.0)
