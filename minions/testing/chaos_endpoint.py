"""`ChaosEndpoint`: a chat-completions server on 127.0.0.1 that fails as a `FaultPlan` says.

time = VirtualTime()
server = ChaosEndpoint(FaultPlan.from_seed(7), now=time.now)
async with server:
model = OpenAIModel("m", base_url=server.base_url)
...
assert server.served.usage == result.usage
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Final, cast

from attrs import field, mutable

from minions.contracts.messages import TokenUsage
from minions.data.json_values import JsonValue
from minions.testing.endpoint import ChatEndpoint
from minions.testing.exchange import Exchange, RecordedRequest
from minions.testing.fault_behaviours import Delivery, delivery_of
from minions.testing.fault_plans import FaultPlan, ServerFault
from minions.testing.plausible_answers import MakeAnswer, plausible_answer

__all__ = ["ChaosEndpoint", "Served"]

MOST_TOKENS: Final = 10**9
"""A count above this is no count: a server that reports it counts nothing."""


@mutable
class Served:
    """What a `ChaosEndpoint` has done so far, for a test to compare with what its client says."""

    requests: int = 0
    faults: Counter[ServerFault] = field(factory=Counter)
    """Requests that failed, by how."""
    answers: int = 0
    """Answers that were sent to their end and that a client can take."""
    usage: TokenUsage = field(factory=TokenUsage)
    """The sum of what was reported: in answers, and in documents that are refused for another
    reason. Each was sent in whole; counts that are none (text, negative, absurd) are 0."""
    largest: int = 0
    """The most tokens that one document reported."""
    without_usage: int = 0
    """Answers of `answers` with no usable usage: clients have to estimate it."""


class ChaosEndpoint(ChatEndpoint):
    """A server for `async with`, again and again: the plan and the counts continue."""

    def __init__(
        self,
        plan: FaultPlan | str,
        *,
        answers: MakeAnswer = plausible_answer,
        seed: int = 0,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        port: int = 0,
    ) -> None:
        """Prepare; it listens within `async with`.

        Args:
            plan: What fails; a text is read by `FaultPlan.parse`.
            answers: Makes the correct answers.
            seed: Of the random numbers for `answers`; they also depend on the request.
            now: The time of dates in headers, as the client knows it.
        """
        super().__init__(default=self._play, port=port)
        self.plan = FaultPlan.parse(plan) if isinstance(plan, str) else plan
        self.served = Served()
        self._answers = answers
        self._seed = seed
        self._now = now

    async def _play(self, exchange: Exchange) -> None:
        index, request = self.served.requests, exchange.request
        self.served.requests += 1
        fault = self.plan.fault(index)
        if fault is not None:
            self.served.faults[fault] += 1
        delivery = delivery_of(
            fault,
            self._answers(request, self._random(request)),
            is_stream=request.wants_stream,
            tools=_tools_of(request),
            now=self._now(),
        )
        if delivery.first is not None:
            await delivery.first(exchange)
            if exchange.client_has_left:
                raise ConnectionResetError("the client left")
        # Counted before the last byte is sent: the client may have it before this task goes on.
        self._count(delivery)
        await delivery.behave(exchange)

    def _random(self, request: RecordedRequest) -> random.Random:
        """The same for each attempt at a request."""
        digest = blake2b(request.raw, digest_size=8).hexdigest()
        return random.Random(f"{self._seed} {digest}")  # noqa: S311  # a test

    def _count(self, delivery: Delivery) -> None:
        if delivery.document is None:
            return
        usage = usage_of(delivery.document)
        self.served.usage += usage
        self.served.largest = max(self.served.largest, usage.total_tokens)
        self.served.answers += delivery.is_answer
        self.served.without_usage += delivery.is_answer and not usage.total_tokens


def usage_of(document: Mapping[str, JsonValue]) -> TokenUsage:
    """The usage that a document reports; 0 for what is no count of tokens."""
    usage = document.get("usage")
    if not isinstance(usage, dict):
        return TokenUsage()
    return TokenUsage(
        input_tokens=_count(usage.get("prompt_tokens")),
        output_tokens=_count(usage.get("completion_tokens")),
    )


def _count(value: JsonValue) -> int:
    is_count = isinstance(value, int) and not isinstance(value, bool)
    return cast("int", value) if is_count and 0 <= cast("int", value) <= MOST_TOKENS else 0


def _tools_of(request: RecordedRequest) -> list[str]:
    tools = cast("list[dict[str, dict[str, str]]]", request.body.get("tools") or [])
    return [tool["function"]["name"] for tool in tools]
