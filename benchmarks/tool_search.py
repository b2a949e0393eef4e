"""Counts what finding tools saves, and how often the right one is found.

python -m benchmarks.tool_search             writes tool_search.md
python -m benchmarks.tool_search --estimate  counts four characters as a token, printed only
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Final

from attrs import frozen

from benchmarks.token_counting import (
    Request,
    Tokenizer,
    TokenizerMissingError,
    cl100k,
    counted,
    estimate,
)
from benchmarks.token_workloads import NotDoneError
from benchmarks.tool_servers import SearchTask, tasks, tool_specs
from minions import AgentExecutor, DefaultStep, Extensions, Message, ScriptedModel, ToolSpec
from minions.contracts.calls import Prompt
from minions.contracts.completion import CompletionCriteria
from minions.contracts.messages import MessageBundle, ToolCallRequest
from minions.contracts.steps import ToolSearch
from minions.contracts.tool_search import FIND_TOOLS, found_names
from minions.contracts.tools import Effect, Tool, Toolbox, ToolScope
from minions.data.json_values import JsonValue, dumps
from minions.engine.compile.offered_tools import ToolIndex
from minions.recipe.model import AgentRecipe
from minions.testing import Answer, tool_request

__all__ = ["Form", "Work", "measured", "page", "rank_rows", "stuffed_rows"]

PAGE: Final = Path(__file__).with_name("tool_search.md")
_SYSTEM: Final = "You do what you are asked with your tools, and say in one sentence what you did."
_RESULT: Final = "Done. " + "One line of what the tool gave, as such tools give it. " * 6
_WORKS: Final = 20
_LONG: Final = 10


_HEAD: Final = """\
# Tools that are found

Sixty tools of eight servers, in the manner of the public reference servers of the Model Context Protocol, described in our own words ({characters:,} characters of texts).
A scripted model does the tasks: it is offered all tools, or it is offered `find_tools` and asks for each tool in the words of its task, by a further search where the first did not
find it. Counted is what the requests send ({tokenizer}). `python -m benchmarks.tool_search` writes this page.

## Tokens

**price** is the input with a prefix cache: what a request shares with an earlier one, from 1,024 tokens on, costs a tenth. Where a server loads tools where they were found, the
start of a prompt stays as it was. Each search is one more request, and is counted. In one conversation found tools stay offered, so that more of them come with each request.
"""  # noqa: E501  # a paragraph of the page
_TOKEN_COLUMNS: Final = """\
| tools are | requests | first request | all input | saved | price | saved |
|---|--:|--:|--:|--:|--:|--:|
"""
_RANKS: Final = """
## The right tool

A hundred tasks in plain words, written before the ranking. Its weights and groups of words were chosen with the half `tuned`; the other half was looked at once they stood. Tasks and
tools have the same author: what a model asks, and what strangers' tools say of themselves, may be further apart.

| half | tasks | first | in three | in five |
|---|--:|--:|--:|--:|
{ranks}
Not among the first three:

{missed}
## A tool that says everything

One more tool, of a server that wants its tool to be found for whatever is asked.

| its description | first, of 100 tasks | right tool still in three |
|---|--:|--:|
{stuffed}"""  # noqa: E501  # a paragraph of the page


class Form(StrEnum):
    """How a model comes to its tools."""

    ALL = "all offered"
    FOUND = "found"
    DEFERRED = "found, loaded where they were found"


@frozen(kw_only=True)
class Work:
    """The tokens of the same tasks in one form."""

    form: Form
    first: int
    """Of the first request, on average."""
    calls: int
    input: int
    price: float
    """Of the input with a prefix cache, in tokens at full price."""


@frozen
class _Served(Tool):
    """A tool of a server that is played."""

    _spec: ToolSpec

    @property
    def spec(self) -> ToolSpec:
        return self._spec

    async def invoke(self, arguments: Mapping[str, JsonValue], scope: ToolScope) -> object:
        return _RESULT


def _tools() -> list[_Served]:
    return [
        _Served(ToolSpec(
            name=spec.name, description=spec.description, parameters=spec.parameters,
            effect=Effect.PURE,
        ))
        for spec in tool_specs()
    ]  # fmt: skip


def _arguments(spec: ToolSpec) -> dict[str, JsonValue]:
    """Arguments that fit the required parameters of a tool."""
    properties, required = spec.parameters["properties"], spec.parameters["required"]
    assert isinstance(properties, Mapping)
    assert isinstance(required, list)
    usual: Mapping[str, JsonValue] = {
        "array": ["a value"],
        "integer": 7,
        "string": "a value of some words",
    }
    values: dict[str, JsonValue] = {}
    for name in map(str, required):
        schema = properties[name]
        assert isinstance(schema, Mapping)
        values[name] = usual[str(schema["type"])]
        if schema.get("items") == {"type": "object"}:
            values[name] = [{"name": "a value"}]
    return values


class _Agent:
    """Does tasks one after the other: finds a tool where it has to, calls it, and says so."""

    def __init__(self, work: Sequence[SearchTask], form: Form) -> None:
        self.requests: list[Request] = []
        self.missed = 0
        """Tools that a first search did not find."""
        self._work = work
        self._form = form
        self._specs = {spec.name: spec for spec in tool_specs()}

    def answer(self, prompt: Prompt) -> Answer:
        """The next call, or the last word."""
        results = [each for each in prompt.messages if each.role.value == "tool"]
        done = sum(each.name != FIND_TOOLS for each in results)
        said = self._next(prompt, done)
        written = said if isinstance(said, str) else f"{said.name}\n{said.arguments}"
        self.requests.append(self._sent(prompt, written))
        return said

    def _next(self, prompt: Prompt, done: int) -> ToolCallRequest | str:
        if done == len(self._work):
            return "It is done."
        task = self._work[done]
        if any(tool.name == task.tool for tool in prompt.tools):
            return tool_request(task.tool, _arguments(self._specs[task.tool]))
        if prompt.messages[-1].name == FIND_TOOLS:  # it was not among those: ask for it by its name
            self.missed += 1
            return tool_request(FIND_TOOLS, {"query": task.tool.replace("__", " ")})
        return tool_request(FIND_TOOLS, {"query": task.words})

    def _sent(self, prompt: Prompt, written: str) -> Request:
        """The request; where tools are loaded later, their texts stand behind their search."""
        if self._form is not Form.DEFERRED:
            return Request.of(prompt, [written], "/nowhere")
        found = [name for message in prompt.messages for name in found_names(message)]
        own = {tool.name: tool for tool in prompt.tools}
        first = [tool for tool in prompt.tools if tool.name not in found]
        texts = [dumps([tool.to_message_dict() for tool in first])]
        loaded: set[str] = set()
        for message in prompt.messages:
            texts += _message_texts(message)
            for name in found_names(message):
                if name in own and name not in loaded:
                    loaded.add(name)
                    texts.append(dumps(own[name].to_message_dict()))
        return Request(sent=tuple(texts), answer=(written,))


def _message_texts(message: Message) -> Iterator[str]:
    """The texts of a message; of a search references alone."""
    names = found_names(message)
    yield f"{message.role.value}\n{' '.join(names) if names else message.content or ''}"
    for call in message.tool_calls:
        yield f"{call.name}\n{call.arguments}"


async def _requests(work: Sequence[SearchTask], form: Form) -> list[Request]:
    agent = _Agent(work, form)
    goal = "\n".join(f"{at}. {task.words}" for at, task in enumerate(work, 1))
    tools = _tools()
    step: DefaultStep[object] = DefaultStep(
        id="work",
        messages=MessageBundle.of(system=_SYSTEM, goal=goal),
        available_tools=[tool.spec.name for tool in tools],
        completion_criteria=CompletionCriteria(mode="text"),
        metadata={"max_model_calls_per_step": 50},
        tool_search=ToolSearch(is_on=form is not Form.ALL),
    )
    executor = AgentExecutor(
        ScriptedModel(agent.answer), extensions=Extensions(tools=Toolbox(tools))
    )
    result = await executor.execute(AgentRecipe(id="tools", steps=(step,)))
    if result.output != "It is done.":
        raise NotDoneError(f"{work[0].words}: {result}")
    return agent.requests


def _chosen(count: int) -> list[SearchTask]:
    """Tasks of both halves, evenly spread."""
    halves = tasks()
    each = [
        half[at * len(half) // (count // 2)] for half in halves.values() for at in range(count // 2)
    ]
    return list(each)


async def measured(tokenizer: Tokenizer) -> dict[str, list[Work]]:
    """The works in each form: twenty tasks, each on its own, and ten in one conversation.

    Raises:
        NotDoneError: A task was not done.
    """
    alone = [[task] for task in _chosen(_WORKS)]
    together = [_chosen(_LONG)]
    return {
        f"{_WORKS} tasks, each on its own": [await _work(alone, form, tokenizer) for form in Form],
        f"{_LONG} tasks in one conversation": [
            await _work(together, form, tokenizer) for form in Form
        ],
    }


async def _work(works: Sequence[list[SearchTask]], form: Form, tokenizer: Tokenizer) -> Work:
    runs = [await _requests(work, form) for work in works]
    counts = [counted(requests, tokenizer) for requests in runs]
    firsts = [sum(len(tokenizer(text)) for text in requests[0].sent) for requests in runs]
    return Work(
        form=form,
        first=sum(firsts) // len(firsts),
        calls=sum(each.calls for each in counts),
        input=sum(each.input for each in counts),
        price=sum(each.price for each in counts),
    )


# --- the ranking ---------------------------------------------------------------------------------


def rank_rows() -> list[str]:
    """How often the right tool is first, among three and among five, for each half."""
    index = ToolIndex(tool_specs())
    rows = []
    for half, listed in tasks().items():
        places = [_place(index, task) for task in listed]
        within = [sum(place <= most for place in places) for most in (1, 3, 5)]
        rows.append(
            f"| {half.replace('_', ' ')} | {len(places)} | {' | '.join(map(str, within))} |"
        )
    return rows


def missed_rows() -> list[str]:
    """The tasks whose tool is not among the first three, with what is."""
    index = ToolIndex(tool_specs())
    return [
        f"- *{task.words}*: `{task.tool}` is number {_place(index, task)}, before it "
        f"{', '.join(f'`{name}`' for name in index.find(task.words, 3))}."
        for listed in tasks().values()
        for task in listed
        if _place(index, task) > 3
    ]


def _place(index: ToolIndex, task: SearchTask) -> int:
    found = index.find(task.words, len(tool_specs()))
    return found.index(task.tool) + 1 if task.tool in found else len(tool_specs())


def stuffed_rows() -> list[str]:
    """What becomes of the tasks beside a tool that describes itself by the words of others."""
    specs = tool_specs()
    every = [task for listed in tasks().values() for task in listed]
    said = " ".join(f"{spec.description} {spec.name}" for spec in specs)
    asked = " ".join(task.words for task in every)
    common = " ".join(word for word, _ in Counter(f"{said} {asked}".split()).most_common(60))
    texts = {
        "the texts of all other tools": said,
        "the words of all tasks": asked,
        "the words of all tasks, fifty times": f"{asked} " * 50,
        "the 60 most frequent words of both": common,
    }
    rows = []
    for title, text in texts.items():
        index = ToolIndex((*specs, ToolSpec(name="evil__do", description=text)))
        found = [index.find(task.words, 3) for task in every]
        first = sum(names[0] == "evil__do" for names in found)
        right = sum(task.tool in names for task, names in zip(every, found, strict=True))
        rows.append(f"| {title} | {first} | {right} |")
    return rows


# --- the page ------------------------------------------------------------------------------------


def page(works: Mapping[str, Sequence[Work]], tokenizer: str) -> str:
    """The page that tells all of it."""
    characters = len(dumps([spec.to_message_dict() for spec in tool_specs()]))
    parts = [_HEAD.format(characters=characters, tokenizer=tokenizer)]
    for title, forms in works.items():
        base = forms[0]
        parts += [f"\n### {title}\n\n", _TOKEN_COLUMNS]
        parts += [
            f"| {each.form} | {each.calls} | {each.first:,} | {each.input:,} | "
            f"{_saved(base.input, each.input)} | {each.price:,.0f} | "
            f"{_saved(base.price, each.price)} |\n"
            for each in forms
        ]
    rows = ["".join(f"{row}\n" for row in each) for each in (rank_rows(), missed_rows())]
    stuffed = "".join(f"{row}\n" for row in stuffed_rows())
    return "".join([*parts, _RANKS.format(ranks=rows[0], missed=rows[1], stuffed=stuffed)])


def _saved(whole: float, part: float) -> str:
    return f"{100 * (1 - part / whole):.0f} %" if part != whole else "–"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.tool_search")
    parser.add_argument("--estimate", action="store_true", help="four characters are a token")
    options = parser.parse_args(arguments)
    tokenizer: Callable[[str], tuple[object, ...]]
    try:
        tokenizer = estimate if options.estimate else cl100k()
    except TokenizerMissingError as error:
        print(error, file=sys.stderr)
        return 2
    name = "four characters are a token" if options.estimate else "tokenizer cl100k_base"
    text = page(asyncio.run(measured(tokenizer)), name)
    if options.estimate:
        print(text)
    else:
        PAGE.write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
