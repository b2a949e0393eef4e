"""What a run takes in a journal: rows and bytes, of several shapes, in both databases.

`python -m benchmarks.scale` prints the table of docs/scale.md. PostgreSQL is started for it where
it is installed.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from attrs import frozen

from minions import Message, Minions, ModelCallResponse, Prompt, ScriptedModel, tool
from minions.guide import TokenUsage, ToolCallRequest

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

_RUNS: Final = 200
_ANSWER: Final = "A paragraph of an answer, as long as such answers are. " * 16
_TEXT: Final = "A report that came in, with all that somebody had to say about it. " * 30
"""2,000 characters, some 500 tokens; each run has its own, so that none is stored for all."""

RECIPES: Final[Mapping[str, str]] = {
    "three model steps": """
id: chain
inputs: {text: string}
steps:
  - {id: facts, goal: "List the facts: {{ inputs.text }}"}
  - {id: draft, goal: "Write a summary: {{ facts }}"}
  - {id: final, goal: "Shorten it: {{ draft }}"}
""",
    "an agent with five tool calls": """
id: agent
inputs: {text: string}
steps:
  - {id: work, goal: "Look things up: {{ inputs.text }}", tools: [look]}
""",
    "a loop of 100 items, a model call each": """
id: items
inputs: {text: string, numbers: {type: array, default: NUMBERS}}
steps:
  - {id: each, loop: "{{ inputs.numbers }}", goal: "Sort item {{ loop.item }}: {{ inputs.text }}"}
""".replace("NUMBERS", str(list(range(100)))),
}


@frozen(kw_only=True)
class Size:
    """What runs of one shape take."""

    rows: float
    """Facts of a run."""
    sqlite_bytes: float
    postgres_bytes: float | None
    """With indexes; None: there is no server here."""


@tool
def look(n: int) -> str:
    """Looks something up."""
    return f"{n}: {_ANSWER}"


def _answer(prompt: Prompt) -> ModelCallResponse | str:
    """Text; of the agent first five calls of its tool, one after the other."""
    calls = sum(bool(each.tool_calls) for each in prompt.messages)
    if not prompt.tools or calls == 5:
        return _ANSWER
    call = ToolCallRequest(id=f"call_{calls}", name="look", arguments=f'{{"n": {calls}}}')
    usage = TokenUsage(input_tokens=600, output_tokens=20)
    return ModelCallResponse(message=Message(role="assistant", tool_calls=(call,)), usage=usage)


async def _fill(journal: Path | str, recipe: str, runs: int) -> int:
    """Store runs; the number of their facts."""
    async with Minions(model=ScriptedModel(_answer), tools=[look], journal=journal) as app:
        for number in range(runs):
            result = await app.arun(recipe, {"text": f"{number}: {_TEXT}"})
            assert result.error is None, result.error  # failures say nothing here
        return len(await app.services.journal.entries())


async def measured(name: str, runs: int = _RUNS) -> Size:
    """What a run of that shape takes."""
    recipe = RECIPES[name]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "j.sqlite"
        rows = await _fill(path, recipe, runs)
        size = _size_of(Path(folder))
    return Size(
        rows=rows / runs,
        sqlite_bytes=size / runs,
        postgres_bytes=await _in_postgres(recipe, runs),
    )


def _size_of(folder: Path) -> int:
    return sum(each.stat().st_size for each in folder.iterdir())


async def _in_postgres(recipe: str, runs: int) -> float | None:
    from postgres import postgres_server, reason_without_postgres

    if reason_without_postgres() is not None:
        return None
    import psycopg

    with postgres_server() as server:
        url = server.url(server.new_database())
        await _fill(url, recipe, runs)
        with psycopg.connect(url) as connection:
            found = connection.execute(
                "SELECT sum(pg_total_relation_size(c.oid)) FROM pg_class c "
                "JOIN pg_namespace n ON n.oid = c.relnamespace "
                "WHERE n.nspname = 'minions' AND c.relkind = 'r'"
            ).fetchone()
    return None if found is None else float(found[0]) / runs


async def main() -> None:
    """Print the table."""
    print("| run | facts | bytes in SQLite | bytes in PostgreSQL |")  # the result
    print("|---|---|---|---|")
    for name in RECIPES:
        size = await measured(name, _RUNS if "loop" not in name else _RUNS // 10)
        postgres = "–" if size.postgres_bytes is None else f"{size.postgres_bytes:,.0f}"
        print(f"| {name} | {size.rows:g} | {size.sqlite_bytes:,.0f} | {postgres} |")


if __name__ == "__main__":
    asyncio.run(main())
