"""What code in a sandbox writes to the channel of its calls, which is not what it should be."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import UTC, datetime

import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from minions.adapters.sandboxes.python_sandboxes import ProcessSandbox
from minions.adapters.sandboxes.supervisor.jobs import REQUEST_BYTES
from minions.adapters.sandboxes.supervisor.program_tools import BadRequestError, ToolChannel
from minions.contracts.sandbox import (
    CODE_LIMITS,
    ProgramAnswer,
    ProgramTools,
    SandboxCode,
    SandboxResult,
    probe_words,
)
from minions.data.json_values import JsonValue

FIND = """
import os
def each(act):
    for number in range(3, 32):
        try:
            act(number)
        except OSError:
            pass
"""


async def result_of(code: str, made: list[str]) -> SandboxResult:
    sandbox = ProcessSandbox()
    if not all(probe.ok for probe in sandbox.probe()):
        pytest.skip(f"process does not hold here: {probe_words(sandbox.probe())}")

    async def call(name: str, _: Mapping[str, JsonValue]) -> ProgramAnswer:
        made.append(name)
        return ProgramAnswer(value=1)

    tools = ProgramTools(names=("look",), call=call, now=datetime(2026, 1, 1, tzinfo=UTC), seed="")
    limits = evolve(CODE_LIMITS, wall_s=10)
    return await sandbox.execute_with_tools(f"{FIND}\n{code}", {}, limits, tools)


@pytest.mark.parametrize(
    "written",
    [
        "b'garbage\\n'",
        "b'\\xff\\xfe\\n'",
        "b'[1, 2]\\n'",
        'b\'{"tool": 1, "arguments": {}}\\n\'',
        'b\'{"tool": "look", "arguments": {}, "value": 1}\\n\'',
        'b\'{"refused": null, "stop": null, "value": 5, "has_value": true}\\n\'',
        'b\'{"tool": "look", "arguments": {}}\\n\' * 2',
        "b'[' * 100_000 + b'\\n'",
        "b'x' * 3_000_000",
    ],
)
async def test_code_that_writes_no_request_is_stopped_and_nothing_is_called(written: str) -> None:
    made: list[str] = []
    code = f"each(lambda n: os.write(n, {written}))\nimport time\ntime.sleep(9)"
    result = await result_of(code, made)
    assert result.failure is not None
    assert result.failure.code == SandboxCode.CALLS
    assert made == []


async def test_a_request_before_the_answer_to_the_last_one_ends_the_code() -> None:
    made: list[str] = []
    request = 'b\'{"tool": "look", "arguments": {}}\\n\''
    code = f"for _ in range(2):\n    each(lambda n: os.write(n, {request}))\n1"
    result = await result_of(code, made)
    assert result.failure is not None
    assert result.failure.code in (SandboxCode.CALLS, SandboxCode.FAILED)
    assert len(made) <= 1


async def test_code_that_closes_its_channel_calls_nothing_more() -> None:
    made: list[str] = []
    result = await result_of("each(os.close)\nimport tools\ntools.look()", made)
    assert result.failure is not None
    assert result.value is None
    assert made == []


async def test_code_cannot_fork_to_call_beside_itself() -> None:
    made: list[str] = []
    code = "import tools\ntry:\n    os.fork()\nexcept OSError:\n    said = tools.look()\nsaid"
    assert (await result_of(code, made)).unwrap() == 1
    assert made == ["look"]


@given(parts=st.lists(st.binary(min_size=1, max_size=60), max_size=6))
@settings(max_examples=200)
def test_any_bytes_are_a_request_or_refused(parts: list[bytes]) -> None:
    requests, write = os.pipe()
    read, answers = os.pipe()
    channel = ToolChannel(requests, answers)
    try:
        for part in parts:
            os.write(write, part)
            try:
                channel.read_request()
            except BadRequestError:
                break
    finally:
        for each in (requests, write, read, answers):
            os.close(each)


def test_a_request_without_an_end_is_refused_when_it_is_too_long() -> None:
    requests, write = os.pipe()
    read, answers = os.pipe()
    channel = ToolChannel(requests, answers)
    for _ in range(REQUEST_BYTES // 60_000):
        os.write(write, b"x" * 60_000)
        assert channel.read_request() is None
    os.write(write, b"x" * 60_000)
    with pytest.raises(BadRequestError):
        channel.read_request()
    for each in (requests, write, read, answers):
        os.close(each)
