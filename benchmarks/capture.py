"""Agents of many kinds of work against the recipes that are captured from their runs.

python -m benchmarks.capture    writes benchmarks/capture.md

No model is asked: an agent is a function of its task and of what its calls gave, a model step of a
captured recipe is answered by a function of its prompt. Tokens are the scripted model's estimate
(four characters each), for the agent and the recipe alike.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Final

from attrs import frozen

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from minions import RunStatus
from recorded_kinds import KINDS, Played, capture_work, run_agent, run_recipe
from recorded_works import WORKS, Work

PAGE: Final = Path(__file__).with_name("capture.md")
_HEAD: Final = """\
# Captured recipes

Each row is a kind of agent work: its run, or runs, were captured, and then the agent and the captured recipe did another task of the kind, in a world with the same tools.
`python -m benchmarks.capture` writes this page. No model is asked: agents and model steps are functions, and tokens are the scripted model's estimate, four characters each.
So this shows what captures find and what the second run costs; it does not measure how well a model works.

**without a hand**: captured and proved with nothing asked and nothing edited. **same**: the same calls with an effect, the same files and the same output as the agent on that task.

| work | runs captured | without a hand | model calls: agent | recipe | tokens: agent | recipe | saved | same |
|---|--:|---|--:|--:|--:|--:|--:|---|
"""  # noqa: E501  # the head of a table
_SHARE: Final = 90
"""Percent of the tokens that a captured recipe is meant to save."""


@frozen(kw_only=True)
class Row:
    """One kind of work, on the tasks that were not recorded."""

    name: str
    runs: int
    is_proved: bool
    calls: tuple[int, int]
    """Of the agent and of the recipe."""
    tokens: tuple[int, int]
    is_same: bool

    @property
    def saved(self) -> int:
        """Percent of the agent's tokens that the recipe does not use, rounded down."""
        agent, recipe = self.tokens
        return 100 * (agent - recipe) // agent

    def __str__(self) -> str:
        yes = {True: "yes", False: "**no**"}
        agent, recipe = self.calls
        before, after = (f"{each:,}" for each in self.tokens)
        return (
            f"| {self.name.replace('_', ' ')} | {self.runs} | {yes[self.is_proved]} | {agent} | "
            f"{recipe} | {before} | {after} | {self.saved} % | {yes[self.is_same]} |"
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
        calls=(
            _model_calls([each for each, _ in pairs]),
            _model_calls([each for _, each in pairs]),
        ),
        tokens=(_tokens([each for each, _ in pairs]), _tokens([each for _, each in pairs])),
        is_same=all(map(_is_same, *zip(*pairs, strict=True))),
    )


def page_of(rows: list[Row]) -> str:
    """The page about the rows."""
    proved = sum(each.is_proved and each.is_same for each in rows)
    enough = [each for each in rows if each.saved >= _SHARE]
    less = ", ".join(each.name.replace("_", " ") for each in rows if each.saved < _SHARE)
    agent, recipe = (sum(each.tokens[at] for each in rows) for at in (0, 1))
    table = "\n".join(map(str, rows))
    return (
        f"{_HEAD}{table}\n"
        f"\n{proved} of {len(rows)} kinds are captured without a hand and do the same on another "
        f"task. {len(enough)} use at least {_SHARE} % fewer tokens; all together "
        f"{100 * (agent - recipe) / agent:.1f} %. Less is saved where a model has to judge "
        f"or write something each time: {less}.\n"
    )


def _is_same(agent: Played, recipe: Played) -> bool:
    return (
        agent.result.status is recipe.result.status is RunStatus.COMPLETED
        and agent.effects == recipe.effects
        and agent.files == recipe.files
        and agent.result.output == recipe.result.output
    )


def _tokens(played: list[Played]) -> int:
    return sum(each.result.usage.total_tokens for each in played)


def _model_calls(played: list[Played]) -> int:
    return sum(each.model_calls for each in played)


async def _main() -> None:
    rows = [await measure(work) for work in (*WORKS, *KINDS)]
    PAGE.write_text(page_of(rows), "utf-8")
    sys.stdout.write(PAGE.read_text("utf-8"))


if __name__ == "__main__":
    asyncio.run(_main())
