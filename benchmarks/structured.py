"""A declared output of six fields, two of them nested, against `instructor`'s own call and against
a step that declares none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import frozen

from benchmarks.clients import GOAL, MESSAGES, SYSTEM, executor_of, model_at, sdk_at
from benchmarks.endpoint import SETTLEMENT, Endpoint
from benchmarks.measuring import Effort, Row, least_cpu_s, ratio_row
from minions import (
    AgentRecipe,
    CompletionCriteria,
    DefaultStep,
    MessageBundle,
    OpenAIModel,
    OutputInstructions,
    Services,
)
from minions.services import InstructorParser

if TYPE_CHECKING:
    from openai import AsyncOpenAI


@frozen(kw_only=True)
class Customer:
    name: str
    city: str


@frozen(kw_only=True)
class Line:
    item: str
    count: int
    price: float


@frozen(kw_only=True)
class Settlement:
    number: str
    customer: Customer
    lines: list[Line]
    total: float
    is_paid: bool
    notes: list[str]


async def measure(effort: Effort, endpoint: Endpoint) -> list[Row]:
    """One row."""
    calls = effort.count(300)
    base_url = endpoint.base_url("structured")
    async with model_at(base_url) as model, sdk_at(base_url) as client:
        taken = await least_cpu_s(
            effort,
            {
                "instructor": lambda: _with_instructor(client, calls),
                "own": lambda: _runs(model, calls),
                "plain": lambda: _plain_runs(model, calls),
            },
        )
    own, other = taken["own"] / calls, taken["instructor"] / calls
    plain = taken["plain"] / calls
    return [
        ratio_row(
            "structured",
            "one step, structured output",
            ratio=own / other,
            most=0.3,
            of="instructor's own call",
            absolute=f"{own * 1e6:.0f} µs; instructor {other * 1e6:.0f} µs",
        ),
        ratio_row(
            "structured-plain",
            "structured output beside none",
            ratio=own / plain,
            most=1.25,
            of="the same step without an output",
            absolute=f"{own * 1e6:.0f} µs; plain {plain * 1e6:.0f} µs",
        ),
    ]


async def _plain_runs(model: OpenAIModel, calls: int) -> None:
    step: DefaultStep[object] = DefaultStep(
        id="ask",
        messages=MessageBundle.of(system=SYSTEM, goal=GOAL),
        completion_criteria=CompletionCriteria(mode="text"),
    )
    recipe = AgentRecipe(id="one", steps=[step])
    executor = executor_of(model, Services(parser=InstructorParser()))
    for _ in range(calls):
        result = await executor.execute(recipe)
        assert result.output is not None, result.error


async def _runs(model: OpenAIModel, calls: int) -> None:
    step = DefaultStep(
        id="ask",
        messages=MessageBundle.of(system=SYSTEM, goal=GOAL),
        output=OutputInstructions(output_class=Settlement),
    )
    recipe = AgentRecipe(id="one", steps=[step])
    executor = executor_of(model, Services(parser=InstructorParser()))
    for _ in range(calls):
        result = await executor.execute(recipe, output_class=Settlement)
        assert result.output is not None, result.error
        assert result.output.customer.city == "Turin"


async def _with_instructor(client: AsyncOpenAI, calls: int) -> None:
    import instructor
    from pydantic import create_model

    customer = create_model("Customer", name=str, city=str)
    line = create_model("Line", item=str, count=int, price=float)
    settlement = create_model(
        "Settlement",
        number=str,
        customer=customer,
        lines=list[line],  # type: ignore[valid-type]  # a class made here
        total=float,
        is_paid=bool,
        notes=list[str],
    )
    asking = instructor.from_openai(client, mode=instructor.Mode.JSON_SCHEMA)
    for _ in range(calls):
        answer = await asking.chat.completions.create(
            model="fake",
            messages=list(MESSAGES),  # type: ignore[arg-type]  # plain mappings
            response_model=settlement,
        )
        assert answer.model_dump() == SETTLEMENT
