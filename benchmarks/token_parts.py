"""What each way to use fewer words saves by itself: the same work with it and without."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, Protocol

from attrs import frozen

from benchmarks import example_choice, tool_search
from benchmarks.token_counting import Request, Tokenizer, counted
from benchmarks.token_forms import offered_requests
from benchmarks.token_workloads import NotDoneError, Workload
from minions import RecipeError, ScriptedModel, load, tool
from minions.adapters.models.script_items import Answer
from minions.contracts.calls import Prompt
from minions.contracts.completion import CompletionCriteria
from minions.contracts.context import Limits
from minions.contracts.executions import CompletionMode
from minions.contracts.messages import MessageBundle, MessageRole
from minions.contracts.steps import DefaultStep
from minions.contracts.tools import Toolbox
from minions.data.json_values import dumps
from minions.data.schema import JsonSchema
from minions.data.schema_words import schema_words
from minions.engine.compile.extensions import Extensions
from minions.engine.history.memory import READ_RESULT
from minions.engine.run.agent_executor import AgentExecutor
from minions.engine.services.run_services import Services
from minions.engine.sessions.runner import ChatAgent, StepRunner
from minions.engine.sessions.store import StepRepository
from minions.recipe.examples import ExampleStepSpec
from minions.recipe.model import AgentRecipe
from minions.recipe.nested_recipes import steps_within
from minions.testing import tool_request

__all__ = ["Part", "parts", "rows"]


class Counted(Protocol):
    """Tokens of requests."""

    @property
    def input(self) -> int:
        """All that is sent."""

    @property
    def price(self) -> float:
        """Of that with a prefix cache, in tokens at full price."""


@frozen(kw_only=True)
class Part:
    """One way, on one work."""

    name: str
    work: str
    without: Counted
    used: Counted


async def parts(tokenizer: Tokenizer, works: Sequence[Workload]) -> list[Part]:
    """All ways but `share`, which the forms of the works show.

    Raises:
        NotDoneError: A work was not done.
    """
    return [
        *[await _named_tools(work, tokenizer) for work in works],
        await _found_tools(tokenizer),
        await _near_examples(tokenizer),
        _compact_schemas(tokenizer),
        *[await _long_results(work, tokenizer) for work in _READINGS],
    ]


def rows(parts: Sequence[Part]) -> Iterator[str]:
    """The table."""
    yield "| left out | work | input without | with | saved | with a cache saved |"
    yield "|---|---|--:|--:|--:|--:|"
    for part in parts:
        saved = _saved(part.without.input, part.used.input)
        cheaper = _saved(part.without.price, part.used.price)
        yield (
            f"| {part.name} | {part.work} | {part.without.input:,} | {part.used.input:,} | "
            f"{saved} | {cheaper} |"
        )


def _saved(without: float, used: float) -> str:
    share = 1 - used / without
    return f"{share:.0%}" if share >= 0 else f"**{share:.0%}**"


async def _named_tools(work: Workload, tokenizer: Tokenizer) -> Part:
    """Steps that name the tools that they call, and not the toolsets."""
    without, used = [
        counted(await offered_requests(work, all_of_toolsets=each), tokenizer)
        for each in (True, False)
    ]
    name = "tools that a step does not call (`tools` of the step)"
    return Part(name=name, work=f"{work.title}, agents step by step", without=without, used=used)


async def _found_tools(tokenizer: Tokenizer) -> Part:
    (name, works), *_ = (await tool_search.measured(tokenizer)).items()
    by_form = {each.form: each for each in works}
    return Part(
        name="tools that are not found (`search`)",
        work=f"60 tools, {name}",
        without=by_form[tool_search.Form.ALL],
        used=by_form[tool_search.Form.FOUND],
    )


async def _near_examples(tokenizer: Tokenizer) -> Part:
    """Two that are near to the question, in place of one for each label."""
    by_name = {each.name: each for each in example_choice.CHOICES}
    found = []
    for name in ("fixed, one for each of the 12 labels", "nearest, 2"):
        prompts = (await example_choice.measured(by_name[name])).prompts
        requests = [Request.of(each, [], "/nowhere") for each in prompts]
        found.append(counted(requests, tokenizer))
    return Part(
        name="examples that are far from the question (`choose: nearest`, 2 of 60, for 12 fixed)",
        work=f"{found[0].calls} messages of customers",
        without=found[0],
        used=found[1],
    )


def _compact_schemas(tokenizer: Tokenizer) -> Part:
    """Where a server does not bind answers, the schema stands in the prompt: as a list of fields.

    Raises:
        NotDoneError: No recipe declares an output.
    """
    schemas = []
    for path in sorted((Path(__file__).parents[1] / "recipes").glob("*.yaml")):
        try:
            recipe = load(path)
        except RecipeError:
            continue  # of an example's own extensions
        for _, _, step in steps_within(recipe):
            if isinstance(step, ExampleStepSpec) and step.output is not None:
                schemas.append(step.output)
    if not schemas:
        raise NotDoneError("No recipe declares an output.")
    writers: Sequence[Callable[[JsonSchema], str]] = (dumps, schema_words)
    without, used = [
        counted([Request(sent=tuple(map(write, schemas)), answer=())], tokenizer)
        for write in writers
    ]
    name = "what JSON Schema writes around fields (profiles without binding)"
    return Part(
        name=name, work=f"{len(schemas)} outputs of the recipes", without=without, used=used
    )


# --- results by reference -------------------------------------------------------------------------


@frozen(kw_only=True)
class Reading:
    """A step that reads a long result, and makes some more calls."""

    title: str
    reads_all: bool
    further: int = 6


_READINGS: Final = (
    Reading(title="a log of 120,000 characters whose beginning is enough", reads_all=False),
    Reading(title="the same, read to its end", reads_all=True),
)
_LINES: Final = (f"{at:06} GET /orders/{at * 7919 % 1_000} 200\n" for at in range(4_400))
_LOG: Final = "".join(_LINES)[:120_000]


@tool(effect="pure")
def log() -> str:
    """The log of the server."""
    return _LOG


@tool(effect="pure")
def order(number: int) -> str:
    """The state of an order."""
    return f"order {number} is paid"


async def _long_results(work: Reading, tokenizer: Tokenizer) -> Part:
    most = Limits().max_tool_result_characters
    without, used = [
        counted(await _read(work, characters), tokenizer) for characters in (len(_LOG), most)
    ]
    name = f"what a result has after {most:,} characters (`{READ_RESULT}`)"
    return Part(name=name, work=work.title, without=without, used=used)


async def _read(work: Reading, characters: int) -> list[Request]:
    requests: list[Request] = []
    starts = range(characters, len(_LOG), characters) if work.reads_all else ()
    answers: list[Answer] = [tool_request("log", {}, id="log")]
    answers += [tool_request(READ_RESULT, {"call": "log", "start": start}) for start in starts]
    answers += [tool_request("order", {"number": at}) for at in range(work.further)]
    left = iter([*answers, "It is done."])

    def answer(prompt: Prompt) -> Answer:
        said = next(left)
        requests.append(Request.of(prompt, [], "/nowhere"))
        return said

    step: DefaultStep[object] = DefaultStep(
        id="read",
        messages=MessageBundle.of(goal="Which orders of the log are paid?"),
        available_tools=["log", "order"],
        completion_criteria=CompletionCriteria(mode=CompletionMode.TEXT),
        metadata={"max_model_calls_per_step": 50, "max_tool_result_characters": characters},
    )
    executor = AgentExecutor(
        ScriptedModel(answer), extensions=Extensions(tools=Toolbox((log, order)))
    )
    result = await executor.execute(AgentRecipe(id="read", steps=(step,)))
    if result.output != "It is done.":
        raise NotDoneError(f"{work.title}: {result}")
    return requests


# --- turns of a chat ------------------------------------------------------------------------------


async def chat_requests(turns: int = 40) -> list[Request]:
    """What the turns of a chat send, some of which call a tool."""
    requests: list[Request] = []

    def answer(prompt: Prompt) -> Answer:
        requests.append(Request.of(prompt, [], "/nowhere"))
        last = prompt.messages[-1]
        at = len(requests)
        if last.role is MessageRole.USER and at % 3 == 0:
            return tool_request("order", {"number": at}, id=f"order-{at}")
        return f"Answer {at}: " + " ".join(f"line {each} of order {at}," for each in range(30))

    agent = ChatAgent(
        model=ScriptedModel(answer), tools=(order,), system_prompt="You answer about orders. " * 40
    )
    runner = StepRunner(agent, repository=StepRepository(Services()))
    for turn in range(turns):
        async for _ in runner.run_stream("chat", f"What about order {turn} of the last month?"):
            pass
    return requests
