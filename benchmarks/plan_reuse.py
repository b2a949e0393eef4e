"""Counts what planning costs for a first and for further tasks, with plans that are used again.

python -m benchmarks.plan_reuse             writes plan_reuse.md
python -m benchmarks.plan_reuse --estimate  counts four characters as a token, printed only
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from attrs import frozen

from benchmarks.token_counting import (
    Request,
    Tokenizer,
    TokenizerMissingError,
    cl100k,
    estimate,
)
from benchmarks.token_workloads import NotDoneError
from minions import Minions, ScriptedModel, Services
from minions.contracts.calls import Prompt
from minions.data.json_values import JsonValue, as_object
from minions.planning.step_executor import PlanChoices, step_executor_document
from minions.recipe.text.yaml_reader import yaml_text
from minions.testing.virtual_time import counting_ids

__all__ = ["Figures", "measured", "page"]

_ADD: Final = (
    "Add a command `{name}` that prints the {name} of shop/data.json, one a line, sorted by their "
    "names. Document it in docs/{name}.md, with an example of what it prints."
)
_COUNT: Final = (
    "Count the {name} of shop/data.json in a function. Describe it in docs/{name}.md in one line, "
    "and say what it gives for an empty file."
)
_TASKS: Final = (
    ("the first task", False, _ADD.format(name="users")),
    ("the same for another name, planned again", False, _ADD.format(name="orders")),
    ("the same for another name, with `--reuse`", True, _ADD.format(name="invoices")),
    ("another task, with `--reuse`", True, _COUNT.format(name="baskets")),
)


def _plan(name: str) -> JsonValue:
    words = f"the {name} of shop/data.json"
    return {
        "name": f"Command {name}",
        "steps": [
            {
                "id": f"read_{name}",
                "type": "generate",
                "goal": f"A function read_{name}(path) that reads {words}, sorted by name.",
                "files": ["shop/data.json"],
                "artifacts": [f"shop/{name}.py"],
            },
            {
                "id": f"print_{name}",
                "type": "generate",
                "goal": f"A function main(path) that prints what read_{name} gives, one a line.",
                "dependencies": [f"read_{name}"],
                "artifacts": [f"commands/{name}.py"],
            },
            {
                "id": "document",
                "type": "generate",
                "goal": f"Describe the command {name} with an example of its output.",
                "dependencies": [f"print_{name}"],
                "artifacts": [f"docs/{name}.md"],
            },
        ],
    }


@frozen(kw_only=True)
class Figures:
    """What the requests of one task cost."""

    title: str
    planning_calls: int
    planning_tokens: int
    """Sent to the planner and written by it."""
    calls: int
    tokens: int
    """Of all calls, planning included."""


async def measured(tokenizer: Tokenizer) -> list[Figures]:
    """Do the tasks one after the other over one journal, and count.

    Raises:
        NotDoneError: A task was not done.
    """
    with tempfile.TemporaryDirectory() as made:
        folder = Path(os.path.realpath(made), "work")  # noqa: ASYNC240  # nothing else runs
        (folder / "shop").mkdir(parents=True)
        (folder / "shop/data.json").write_text("{}\n", "utf-8")
        seen: list[tuple[bool, Request]] = []

        def answer(prompt: Prompt) -> str:
            text = "\n".join(message.content or "" for message in prompt.messages)
            is_planner = "You plan work" in text
            said = json.dumps(_plan(_name_in(text))) if is_planner else _written(text)
            seen.append((is_planner, Request.of(prompt, [said], str(folder))))
            return said

        figures: list[Figures] = []
        services = Services(ids=counting_ids())
        async with Minions(model=ScriptedModel(answer), services=services) as app:
            for title, reuses, task in _TASKS:
                seen.clear()
                choices = PlanChoices(needs_approval=False, max_replans=0, reuses=reuses)
                inputs = {"requirements": task, "workspace": str(folder)}
                result = await app.arun(yaml_text(step_executor_document(choices)), inputs)
                if result.error is not None:
                    raise NotDoneError(f"{title}: {result.error.message}")
                if [each["status"] for each in _steps(result.output)] != ["completed"] * 3:
                    raise NotDoneError(f"{title}: a step is not completed")
                figures.append(_figures(title, seen, tokenizer))
        return figures


def _name_in(text: str) -> str:
    return str(re.findall(r"docs/(\w+)\.md", text)[-1])


def _written(text: str) -> str:
    path = text.rpartition("Write: ")[2].splitlines()[0]
    return f"{path}\n```\nWhat {path} holds.\n```"


def _steps(output: object) -> list[dict[str, object]]:
    steps = as_object(output)["steps"]
    return [dict(as_object(each)) for each in steps] if isinstance(steps, list | tuple) else []


def _figures(title: str, seen: Sequence[tuple[bool, Request]], tokenizer: Tokenizer) -> Figures:
    def tokens(requests: Sequence[Request]) -> int:
        return sum(len(tokenizer(text)) for each in requests for text in (*each.sent, *each.answer))

    planning = [request for is_planner, request in seen if is_planner]
    return Figures(
        title=title,
        planning_calls=len(planning),
        planning_tokens=tokens(planning),
        calls=len(seen),
        tokens=tokens([request for _, request in seen]),
    )


def page(figures: Sequence[Figures], tokenizer: str) -> str:
    """The page with all figures."""
    rows = [
        f"| {each.title} | {each.planning_calls} | {each.planning_tokens:,} | {each.calls} "
        f"| {each.tokens:,} |"
        for each in figures
    ]
    return "\n".join([_HEAD.format(tokenizer=tokenizer), *rows, ""])


_HEAD: Final = """\
# Plans that are used again

Four tasks in one folder, one after the other, each a plan of three steps that write a file. A
scripted model plays planner and steps. Counted is what the requests send, and what the model
writes ({tokenizer}).
With `--reuse` a task of the kind takes the plan of an earlier one: no call and no token for it. A
look-up that finds nothing costs time alone. `python -m benchmarks.plan_reuse` writes this page.

| task | calls of the planner | tokens of planning | all calls | all tokens |
|---|--:|--:|--:|--:|"""


def main(arguments: Sequence[str]) -> None:
    """Count and print; write only figures of the tokenizer."""
    parser = argparse.ArgumentParser(description="What planning costs a second time.")
    parser.add_argument("--estimate", action="store_true", help="four characters are a token")
    options = parser.parse_args(arguments)
    try:
        tokenizer: Callable[[str], tuple[object, ...]] = estimate if options.estimate else cl100k()
        figures = asyncio.run(measured(tokenizer))
    except (TokenizerMissingError, NotDoneError) as error:
        sys.exit(f"error: {error}")
    words = "four characters are a token" if options.estimate else "tokenizer cl100k_base"
    text = page(figures, words)
    print(text)
    if not options.estimate:
        Path(__file__).with_name("plan_reuse.md").write_text(text, "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
