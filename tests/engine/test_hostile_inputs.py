"""A-124: over inputs made to hold the event loop, nothing of ours works for long in it."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from builders import answer_of, fake_tool, recipe_of, run_of, text_step
from minions.adapters.models.answer_assembly import AnswerAssembly
from minions.adapters.telemetry.loop_watchdog import LIMIT_S, LongCallback, watched_loop
from minions.app.settings.settings import masked
from minions.contracts.messages import ToolCallRequest
from minions.contracts.tools import Effect, Toolbox
from minions.data.errors import MinionsError, near_names
from minions.data.json_values import JsonValue, find_json_value
from minions.data.schema import SchemaValidator
from minions.data.texts import parse_toml, seconds_of
from minions.engine.calls.duplicate_calls import first_of_each
from minions.engine.compile.prompt_sections import _data_in
from minions.engine.views.run_search import hits_in
from minions.recipe.artifacts import artifacts_of
from minions.recipe.expressions.template import compile_template
from minions.recipe.recipe_files import recipe_ids, slug_of

MIB: Final = 1_048_576
_TRIES: Final = 3
"""What holds the loop holds it each time; a busy machine does not."""


def slowness() -> float:
    """How much slower this machine is just now than the one on which the limit was set."""
    begin = time.thread_time()
    sum(number * number for number in range(100_000))
    return max(1.0, (time.thread_time() - begin) / 0.01)


@pytest.fixture
def watched() -> Iterator[list[LongCallback]]:
    """Reports on callbacks of the loop, without what a collection of the suite's garbage takes."""
    found: list[LongCallback] = []
    gc.disable()
    try:
        with watched_loop(found.append, limit_s=LIMIT_S * 2 * max(slowness() for _ in range(3))):
            yield found
    finally:
        gc.enable()


def refused(work: Callable[[], object]) -> Callable[[], object]:
    """It may be refused, if only at once."""

    def run() -> object:
        try:
            return work()
        except (MinionsError, ValueError) as error:
            return error

    return run


def rendering(expression: str, **scope: JsonValue) -> Callable[[], object]:
    template = compile_template("{{ " + expression + " }}")
    return refused(lambda: template.render(scope))


def fragments() -> Callable[[], object]:
    assembly = AnswerAssembly()
    calls: list[dict[str, object]] = [
        {"index": 0, "function": {"name": "f", "arguments": '{"a": "' + "x" * MIB}}
    ]
    calls += [{"index": 0, "function": {"name": "f", "arguments": "}"}} for _ in range(2_000)]

    def take() -> None:
        for call in calls:
            assembly._take_fragment(call)

    return take


def numbers(count: int) -> JsonValue:
    return list(range(count))


def hostile() -> dict[str, Callable[[], object]]:
    near = [f"{'ab' * 48}{n}" for n in range(5_000)]
    strict: dict[str, JsonValue] = {"type": "object", "additionalProperties": False}
    escapes: dict[str, JsonValue] = {"a": "\\'" * 100_000}
    calls = [
        ToolCallRequest(id=f"c{n}", name="t", arguments='{"a": "' + "x" * 900 + f'{n}"}}')
        for n in range(1_000)
    ]
    validator = SchemaValidator({"properties": {"a": {"type": "integer"}}})
    closed = SchemaValidator(strict)
    return {
        "tokens": lambda: masked("eyJ-" * (MIB // 16)),
        "tokens that go on": lambda: masked(("eyJ" + "a" * 20 + ".") * (MIB // 96)),
        "keys": lambda: masked("-----BEGIN " * (MIB // 44)),
        "borders": lambda: _data_in("<data-00000000>\n" * (MIB // 16)),
        "borders without end": lambda: _data_in("<data-00000000" * (MIB // 16)),
        "borders that end": lambda: _data_in(
            "<data-00000000>\n" * (MIB // 32) + "\n</data-11111111>" * (MIB // 34)
        ),
        "dotted keys": refused(lambda: parse_toml(".".join(["a"] * 50_000) + " = 1")),
        "TOML in an answer": lambda: artifacts_of(
            "```toml\n" + ".".join(["a"] * 30_000) + " = 1\n```"
        ),
        "YAML in an answer": lambda: artifacts_of("```yaml\na:\n" + "- []\n" * 10_000 + "```"),
        "fences": lambda: artifacts_of("```\n" * 60_000),
        "lines": lambda: artifacts_of("x\n" * 60_000),
        "conflict marks": lambda: artifacts_of("<<<<<<< SEARCH\n" * 15_000),
        "similar names": lambda: near_names("ab" * 50, near),
        "long names": lambda: near_names("ab" * 50_000, near),
        "braces": refused(lambda: find_json_value("{" * 200_000)),
        "brackets": refused(lambda: find_json_value("[" * 200_000 + "x")),
        "openings in prose": refused(lambda: find_json_value('{"a": ' * 30_000)),
        "a duration": refused(lambda: seconds_of("1" + " " * 200_000 + "x")),
        "quotes of a mismatch": lambda: validator.errors(escapes),
        "names of a mismatch": lambda: closed.errors({f"k{n}": n for n in range(1_000)}),
        "a name of a recipe": lambda: slug_of("a" + " " * 60_000 + "x"),
        "a search": lambda: hits_in((), "a b " * 500, 10),
        "fragments of a call": fragments(),
        "a thousand calls": lambda: first_of_each(calls, Toolbox()),
        "membership": rendering("m|select('in', m)", m=[[n] for n in range(50_000)]),
        "rows": rendering("m|map(attribute='a.b')", m=[{"a": {"b": 1}} for _ in range(50_000)]),
        "a sort": rendering("m|sort|sort|sort|sort", m=numbers(200_000)),
        "texts": rendering("m|map('string')|join", m=numbers(200_000)),
        "a sum of lists": rendering(" + ".join(["m"] * 100), m=numbers(100_000)),
        "a missing key": rendering("m." + "k" * 95, m={f"{'k' * 90}{n}": 0 for n in range(50_000)}),
    }


async def held(work: Callable[[], object], watched: list[LongCallback]) -> list[str]:
    """What held the loop while it did the work."""
    await asyncio.sleep(0)
    watched.clear()  # making the input is not what is watched
    loop = asyncio.get_running_loop()
    done = loop.create_future()
    loop.call_soon(lambda: done.set_result(work()))
    await done
    return [str(each) for each in watched]


@pytest.mark.parametrize("name", list(hostile()))
async def test_nothing_of_ours_holds_the_loop(name: str, watched: list[LongCallback]) -> None:
    found = ["not tried"]
    for _ in range(_TRIES):
        if found:
            found = await held(hostile()[name], watched)
    assert not found


async def test_what_holds_the_loop_would_be_found(watched: list[LongCallback]) -> None:
    begin = time.thread_time()
    while time.thread_time() - begin < 2:
        pass
    await asyncio.sleep(0)
    assert "test_what_holds_the_loop_would_be_found" in watched[0].callback


async def test_a_name_line_that_never_ends_is_read_at_once(
    tmp_path: Path, watched: list[LongCallback]
) -> None:
    (tmp_path / "r.yaml").write_text("name: a" + " " * 64_000 + "x\n")
    recipe_ids([tmp_path])
    await asyncio.sleep(0)
    assert not watched


async def test_an_answer_of_many_large_calls_is_carried_out_in_turns(
    watched: list[LongCallback],
) -> None:
    tool = fake_tool("look", lambda arguments: "ok", effect=Effect.PURE)
    calls = [
        ToolCallRequest(id=f"c{n}", name="look", arguments='{"a": "' + "x" * 5_000 + f'{n}"}}')
        for n in range(900)
    ]
    ran = await run_of(
        recipe_of([text_step(tools=["look"])]), [calls, answer_of("done")], tools=[tool]
    )
    assert ran.result.output == "done"
    assert not [str(each) for each in watched]
