"""The test server fails in every way that it offers, and a model tells each as a value."""

from __future__ import annotations

import pytest
from returns.pipeline import is_successful

from minions import Message, OpenAIModel, Prompt
from minions.data.errors import UsageError
from minions.guide import ModelOptions
from minions.testing import ChatEndpoint, endpoint

HELLO = Prompt((Message(role="user", content="hello"),), options=ModelOptions(timeout_s=0.2))


@pytest.mark.parametrize("fault", endpoint.faults())
async def test_every_fault_of_a_server_is_a_typed_failure(fault: str) -> None:
    async with ChatEndpoint(default=endpoint.faults()[fault]) as server:
        model = OpenAIModel("tiny", base_url=server.base_url)
        outcome = await model.complete(HELLO)
        await model.aclose()
    assert not is_successful(outcome)
    assert outcome.failure().code


async def test_a_server_answers_as_scripted_and_remembers_what_it_was_asked() -> None:
    async with ChatEndpoint(endpoint.drop(), endpoint.answer("Hi.")) as server:
        model = OpenAIModel("tiny", base_url=server.base_url)
        assert not is_successful(await model.complete(HELLO))
        assert (await model.complete(HELLO)).unwrap().text == "Hi."
        await model.aclose()
    assert [request.body["model"] for request in server.requests] == ["tiny", "tiny"]


def test_a_server_that_does_not_listen_has_no_address() -> None:
    with pytest.raises(UsageError, match="async with"):
        _ = ChatEndpoint().base_url
