"""Agents of many kinds of work against the recipes that are captured from their runs.

python -m benchmarks.capture    writes benchmarks/capture.md

No model is asked: an agent is a function of its task and of what its calls gave, a model step of a
captured recipe is answered by a function of its prompt. Counted is what every request sends and
what is answered; four characters are a token, so that the page is the same on any machine.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from attrs import frozen

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from benchmarks.token_counting import Counts, Request, counted, estimate
from minions import Message, RunStatus
from minions.contracts.messages import ToolCallRequest
from minions.data.json_values import dumps
from minions.testing import Answer
from recorded_kinds import KINDS, Played, capture_work, run_agent, run_recipe
from recorded_works import WORKS, Work

PAGE: Final = Path(__file__).with_name("capture.md")
_HEAD: Final = """\
# Captured recipes

Each row is a kind of agent work: its run, or runs, were captured, and then the agent and the captured recipe did another task of the kind, in a world with the same tools.
`python -m benchmarks.capture` writes this page. No model is asked: agents and model steps are functions.
So this shows what captures find and what the second run costs; it does not measure how well a model works.

Counted is what every request sends (messages, tool calls and results, schemas of tools and answers) and what is answered; four characters are a token.
Money: a token of output costs five of input, and a prefix of at least 1,024 tokens that an earlier request of the same run had costs a tenth, in steps of 128.
The agents have no more than the tools that they use, and each gives its calls in as few turns as it can, so the share that is saved is a low one.

**without a hand**: captured and proved with nothing asked and nothing edited. **same**: the same calls with an effect, the same files and the same output as the agent on that task.

| work | runs captured | without a hand | model calls: agent | recipe | tokens: agent | recipe | saved | money saved | same |
|---|--:|---|--:|--:|--:|--:|--:|--:|---|
"""  # noqa: E501  # the head of a table
_TOKENS_GOAL: Final = 90
"""Percent of the tokens that a captured recipe is meant to save."""
_MONEY_GOAL: Final = 80
"""Percent of the money that it is meant to save, where the agent's requests are cached."""
_OUTPUT_PRICE: Final = 5
"""A token of output costs about five times as much as one of input."""


@frozen(kw_only=True)
class Row:
    """One kind of work, on the tasks that were not recorded."""

    name: str
    runs: int
    is_proved: bool
    agent: Counts
    recipe: Counts
    is_same: bool

    @property
    def saved(self) -> int:
        """Percent of the agent's tokens that the recipe does not use, rounded down."""
        return _saved(_tokens(self.agent), _tokens(self.recipe))

    @property
    def money_saved(self) -> int:
        """Percent of the agent's money that the recipe does not cost, rounded down."""
        return _saved(_money(self.agent), _money(self.recipe))

    def __str__(self) -> str:
        yes = {True: "yes", False: "**no**"}
        return (
            f"| {_words(self)} | {self.runs} | {yes[self.is_proved]} | "
            f"{self.agent.calls} | {self.recipe.calls} | {_tokens(self.agent):,} | "
            f"{_tokens(self.recipe):,} | {self.saved} % | {self.money_saved} % | "
            f"{yes[self.is_same]} |"
        )


async def measure(work: Work) -> Row:
    """The capture of a work, and its other tasks by agent and recipe."""
    capture = await capture_work(work)
    pairs = [
        (await run_agent(work, task), await run_recipe(work, capture.text, inputs))
        for task, inputs in zip(work.tasks[work.recorded :], work.new, strict=True)
    ]
    return Row(
        name=work.name,
        runs=work.recorded,
        is_proved=capture.is_proved,
        agent=_counted([each for each, _ in pairs]),
        recipe=_counted([each for _, each in pairs]),
        is_same=all(map(_is_same, *zip(*pairs, strict=True))),
    )


def page_of(rows: list[Row]) -> str:
    """The page about the rows."""
    proved = sum(each.is_proved and each.is_same for each in rows)
    tokens = sum(each.saved >= _TOKENS_GOAL for each in rows)
    money = sum(each.money_saved >= _MONEY_GOAL for each in rows)
    largest = max(rows, key=lambda each: _tokens(each.agent))
    others = [each for each in rows if each is not largest]
    less = ", ".join(
        _words(each) for each in rows if each.saved < _TOKENS_GOAL or each.money_saved < _MONEY_GOAL
    )
    table = "\n".join(map(str, rows))
    return (
        f"{_HEAD}{table}\n"
        f"\n{proved} of {len(rows)} kinds are captured without a hand and do the same on another "
        f"task. All together they use {_share(rows, _tokens)} fewer tokens and cost "
        f"{_share(rows, _money)} less; without {_words(largest)}, which alone is much of it, "
        f"{_share(others, _tokens)} and {_share(others, _money)}. {tokens} use at least "
        f"{_TOKENS_GOAL} % fewer tokens, {money} cost at least {_MONEY_GOAL} % less; less is saved "
        f"where a model has to judge or write something each time: {less}.\n"
    )


def _share(rows: list[Row], amount: Callable[[Counts], float]) -> str:
    """What recipes save of an amount, all together."""
    agent, recipe = sum(amount(each.agent) for each in rows), sum(amount(e.recipe) for e in rows)
    return f"{100 * (agent - recipe) / agent:.1f} %"


def _words(row: Row) -> str:
    return row.name.replace("_", " ")


def _saved(before: float, after: float) -> int:
    return int(100 * (before - after) / before)


def _tokens(counts: Counts) -> int:
    return counts.input + counts.output


def _money(counts: Counts) -> float:
    return counts.price + counts.output * _OUTPUT_PRICE


def _is_same(agent: Played, recipe: Played) -> bool:
    return (
        agent.result.status is recipe.result.status is RunStatus.COMPLETED
        and agent.effects == recipe.effects
        and agent.files == recipe.files
        and agent.result.output == recipe.result.output
    )


def _counted(played: list[Played]) -> Counts:
    """What the requests of runs cost; each run begins with an empty cache."""
    runs = [
        counted(
            [Request.of(prompt, _texts(answer), "/work") for prompt, answer in each.asked], estimate
        )
        for each in played
    ]
    return Counts(
        calls=sum(each.calls for each in runs),
        input=sum(each.input for each in runs),
        largest=max(each.largest for each in runs),
        output=sum(each.output for each in runs),
        price=sum(each.price for each in runs),
    )


def _texts(answer: Answer) -> list[str]:
    """What the model wrote."""
    if isinstance(answer, ToolCallRequest):
        return [answer.name, answer.arguments]
    if isinstance(answer, Message):
        calls = (text for call in answer.tool_calls for text in (call.name, call.arguments))
        return [answer.content or "", *calls]
    if isinstance(answer, str):
        return [answer]
    assert isinstance(answer, dict)  # no work answers in another form
    return [dumps(answer)]


async def _main() -> None:
    rows = [await measure(work) for work in (*WORKS, *KINDS)]
    PAGE.write_text(page_of(rows), "utf-8")
    sys.stdout.write(PAGE.read_text("utf-8"))


if __name__ == "__main__":
    asyncio.run(_main())
