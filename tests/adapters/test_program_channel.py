"""What code in a sandbox writes to the channel of its calls, which is not what it should be."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from minions.adapters.sandboxes.python_sandboxes import ProcessSandbox
from minions.adapters.sandboxes.supervisor.jobs import (
    ANSWER_BYTES,
    REQUEST_BYTES,
    ToolAnswer,
    ToolRequest,
)
from minions.adapters.sandboxes.supervisor.program_tools import (
    BadRequestError,
    ToolCaller,
    ToolChannel,
    ToolError,
    fitting_answer,
)
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


async def result_of(code: str, made: list[str], *, call_s: float = 0.0) -> SandboxResult:
    sandbox = ProcessSandbox()
    if not all(probe.ok for probe in sandbox.probe()):
        pytest.skip(f"process does not hold here: {probe_words(sandbox.probe())}")

    async def call(name: str, _: Mapping[str, JsonValue]) -> ProgramAnswer:
        made.append(name)
        await asyncio.sleep(call_s)
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
    result = await result_of(code, made, call_s=1.0)  # longer than two writes take
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


# --- the supervisor's end ------------------------------------------------------------------------


class Ends:
    """A channel, and the ends of its pipes that code holds."""

    def __init__(self) -> None:
        requests, self.write = os.pipe()
        self.read, answers = os.pipe()
        os.set_blocking(answers, False)
        os.set_blocking(self.read, False)
        self.channel = ToolChannel(requests, answers)

    def close(self) -> None:
        for each in (self.channel.requests, self.write, self.read, self.channel.answers):
            with contextlib.suppress(OSError):
                os.close(each)

    def asked(self, data: bytes) -> ToolRequest | None:
        os.write(self.write, data)
        return self.channel.read_request()


@pytest.fixture
def ends() -> Iterator[Ends]:
    made = Ends()
    yield made
    made.close()


REQUEST = b'{"tool": "look", "arguments": {"n": 1}}\n'


def test_a_request_may_come_in_pieces_and_is_taken_when_it_is_whole(ends: Ends) -> None:
    assert ends.asked(REQUEST[:9]) is None
    assert ends.asked(REQUEST[9:]) == {"tool": "look", "arguments": {"n": 1}}


def test_an_answer_goes_to_code_when_it_is_whole_and_the_next_request_is_taken(ends: Ends) -> None:
    ends.asked(REQUEST)
    ends.channel.take_answer(b'{"value"')
    assert not ends.channel.has_outgoing
    ends.channel.take_answer(b": 1}\n")
    ends.channel.write_answer()
    assert os.read(ends.read, 100) == b'{"value": 1}\n'
    assert not ends.channel.has_outgoing
    assert ends.asked(REQUEST) is not None
    ends.channel.take_answer(b"2\n")
    ends.channel.write_answer()
    assert os.read(ends.read, 100) == b"2\n"


def test_what_the_starter_says_without_a_request_is_for_nobody(ends: Ends) -> None:
    ends.channel.take_answer(b"1\n")
    assert not ends.channel.has_outgoing


@pytest.mark.parametrize(
    "data",
    [
        REQUEST * 2,
        REQUEST + b"{",
        b"[" * 60_000 + b"\n",
        b'{"tool": "look", "arguments": {}, "more": 1}\n',
        b'{"tool": "look", "arguments": []}\n',
        b'{"tool": "look"}\n',
        b'{"tool": "look", "arguments": {"n": NaN}}\n',
        b'{"tool": "look", "arguments": {"n": [-1e999]}}\n',
        b"no\n",
    ],
)
def test_what_is_no_single_request_is_refused(ends: Ends, data: bytes) -> None:
    with pytest.raises(BadRequestError):
        ends.asked(data)


def test_a_request_before_the_last_one_was_answered_is_refused(ends: Ends) -> None:
    ends.asked(REQUEST)
    with pytest.raises(BadRequestError):
        ends.asked(REQUEST)


def test_the_end_of_the_channel_is_told(ends: Ends) -> None:
    os.close(ends.write)
    with pytest.raises(EOFError):
        ends.channel.read_request()


def test_an_answer_that_code_does_not_take_waits_and_one_that_nobody_takes_is_left(
    ends: Ends,
) -> None:
    ends.asked(REQUEST)
    ends.channel.take_answer(b"x" * 300_000 + b"\n")
    for _ in range(9):
        ends.channel.write_answer()
    assert ends.channel.has_outgoing
    os.close(ends.read)
    ends.channel.write_answer()
    assert not ends.channel.has_outgoing


def test_only_the_time_between_a_request_and_its_answer_is_waited(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    assert ends.channel.waited_s == 0
    ends.asked(REQUEST)
    now = 103.0
    assert ends.channel.waited_s == 3
    ends.channel.take_answer(b"1\n")
    now = 110.0
    assert ends.channel.waited_s == 3
    ends.asked(REQUEST)
    now = 112.0
    assert ends.channel.waited_s == 5


@pytest.mark.parametrize("more", [0, 1])
def test_a_request_has_at_most_its_bytes(ends: Ends, more: int) -> None:
    frame = b'{"tool": "", "arguments": {"a": ""}}\n'
    whole = frame.replace(b'""}}', b'"' + b"x" * (REQUEST_BYTES + more - len(frame)) + b'"}}')
    refused = False
    for at in range(0, len(whole), 60_000):
        os.write(ends.write, whole[at : at + 60_000])
        try:
            ends.channel.read_request()
        except BadRequestError:
            refused = True
            break
    assert refused == bool(more)


@given(parts=st.lists(st.binary(min_size=1, max_size=60), max_size=6))
def test_any_bytes_are_a_request_or_refused(parts: list[bytes]) -> None:
    made = Ends()
    try:
        for part in parts:
            try:
                made.asked(part)
            except BadRequestError:
                break
    finally:
        made.close()


# --- where code runs ------------------------------------------------------------------------------


def nested(depth: int) -> object:
    value: object = None
    for _ in range(depth):
        value = [value]
    return value


def refuses_to_ask(_: bytes) -> bytes:
    raise AssertionError("it is asked for nothing")


@pytest.mark.parametrize("value", [{1}, float("nan"), nested(100_000)], ids=["set", "nan", "deep"])
def test_arguments_that_are_no_json_are_an_error_of_the_call(value: object) -> None:
    look = ToolCaller(refuses_to_ask).functions(["look"])["look"]
    with pytest.raises(ToolError, match=r"^bad-arguments: The arguments are not JSON") as caught:
        look(n=value)
    assert caught.value.code == "bad-arguments"


def test_a_request_may_have_all_its_bytes_but_the_end_of_its_line() -> None:
    asked: list[int] = []

    def ask(line: bytes) -> bytes:
        asked.append(len(line))
        return b'{"value": 1, "code": null, "message": ""}\n'

    look = ToolCaller(ask).functions(["look"])["look"]
    room = REQUEST_BYTES - len(b'{"tool": "look", "arguments": {"n": ""}}\n')
    assert look(n="x" * room) == 1
    assert asked == [REQUEST_BYTES]
    with pytest.raises(ToolError, match="bad-arguments"):
        look(n="x" * (room + 1))


def test_an_answer_may_have_all_its_bytes() -> None:
    room = ANSWER_BYTES - len(fitting_answer(ToolAnswer(value="", code=None, message="")))
    for more in (0, 1):
        line = fitting_answer(ToolAnswer(value="x" * (room + more), code=None, message=""))
        assert (b"tool-result-too-large" in line) is bool(more)
        assert line.endswith(b"\n")
