"""The chaos endpoint does each fault of a plan as it says, and counts what it has reported."""

from __future__ import annotations

import random

import pytest
from attrs import frozen
from returns.pipeline import is_successful
from returns.result import Result

from minions import Message, OpenAIModel, Prompt
from minions.contracts.calls import ModelCallResponse, ModelFailure
from minions.contracts.messages import TokenUsage
from minions.data.json_values import JsonValue
from minions.testing import ChaosEndpoint, FaultPlan, Served, ServerFault, VirtualTime
from minions.testing.plausible_answers import plausible_value

HELLO = Prompt((Message(role="user", content="hello"),))


@frozen
class Asked:
    """What a model and its server say of some requests."""

    outcomes: list[Result[ModelCallResponse, ModelFailure]]
    served: Served


def ask(plan: str, *, times: int = 1, streams: bool = False) -> Asked:
    time = VirtualTime()

    async def work() -> Asked:
        async with ChaosEndpoint(FaultPlan.parse(plan), now=time.now) as server:
            model = OpenAIModel(
                "tiny", base_url=server.base_url, clock=time.monotonic, now=time.now
            )
            sink = (lambda _: None) if streams else None
            outcomes = [await model.complete(HELLO, sink) for _ in range(times)]
            await model.aclose()
            return Asked(outcomes, server.served)

    return time.run(work())


def usage_of(outcome: Result[ModelCallResponse, ModelFailure]) -> TokenUsage:
    return outcome.unwrap().usage if is_successful(outcome) else outcome.failure().usage


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("fault", ServerFault)
def test_of_every_fault_the_client_counts_what_the_server_reported(
    fault: ServerFault, *, streams: bool
) -> None:
    asked = ask(fault.value, streams=streams)
    (outcome,), served = asked.outcomes, asked.served
    assert served.faults == {fault: 1}
    assert is_successful(outcome) is (served.answers == 1)
    found = usage_of(outcome)
    assert (found.input_tokens, found.output_tokens) == (
        served.usage.input_tokens,
        served.usage.output_tokens,
    )
    assert served.without_usage == (served.answers if not found.total_tokens else 0)


def test_requests_fail_in_the_order_of_the_plan_and_then_no_more() -> None:
    asked = ask("429-seconds - 503 closed", times=6)
    codes = [None if is_successful(each) else each.failure().code for each in asked.outcomes]
    assert codes == ["rate-limited", None, "model-unavailable", "model-unreachable", None, None]
    assert (asked.served.requests, asked.served.answers) == (6, 3)


def test_each_attempt_at_a_request_gets_the_same_answer() -> None:
    first, second = ask("-", times=2).outcomes
    assert first.unwrap().text == second.unwrap().text


def test_dates_of_a_server_are_those_of_its_clock() -> None:
    (outcome,) = ask("429-date").outcomes
    assert outcome.failure().retry_after_s == 9


_SCHEMAS: list[dict[str, JsonValue]] = [
    {"type": "object", "required": ["a"], "properties": {"a": {"type": "integer", "minimum": 5}}},
    {"type": "array", "items": {"enum": ["x", "y"]}, "minItems": 2, "maxItems": 3},
    {"anyOf": [{"type": "null"}, {"type": "string", "minLength": 30}]},
    {"const": {"b": 1}},
    {"type": ["boolean", "number"]},
    {
        "$ref": "#/$defs/tree",
        "$defs": {
            "tree": {
                "type": "object",
                "required": ["children"],
                "properties": {
                    "children": {"type": "array", "items": {"$ref": "#/$defs/tree"}},
                },
            }
        },
    },
]


@pytest.mark.parametrize("schema", _SCHEMAS)
def test_a_plausible_value_fits_its_schema(schema: dict[str, JsonValue]) -> None:
    import jsonschema

    for seed in range(20):
        jsonschema.validate(plausible_value(schema, random.Random(seed)), schema)
