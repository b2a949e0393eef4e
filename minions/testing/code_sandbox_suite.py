"""Conformance tests for every implementation of `CodeSandbox`, also for your own.

In a test module, with pytest-asyncio in its mode `auto`:

    from minions.testing.code_sandbox_suite import *

    @pytest.fixture
    def sandbox():
        return MySandbox()
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

import pytest
from attrs import evolve, field, frozen

from minions.contracts.sandbox import (
    CODE_LIMITS,
    CodeSandbox,
    ProgramAnswer,
    ProgramTools,
    SandboxCode,
    SandboxLimits,
    SandboxResult,
)
from minions.data.errors import FailureInfo, StepFailedError
from minions.data.json_values import JsonValue
from minions.testing.processes import descendants, gone

LIMITS = evolve(CODE_LIMITS, wall_s=20)
"""Long enough for a busy machine: what has to be stopped is given less."""
SHORT = evolve(CODE_LIMITS, wall_s=3, cpus=0.5)


def code_of(result: SandboxResult) -> str:
    assert result.failure is not None, result
    return result.failure.code


@contextlib.contextmanager
def listening() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        yield server


async def test_the_value_of_the_last_expression_is_the_result(sandbox: CodeSandbox) -> None:
    code = "names = sorted(people)\n{'first': names[0], 'count': len(names)}"
    result = await sandbox.execute(code, {"people": ["Urs", "Eva"]}, LIMITS)
    assert (result.unwrap(), result.failure) == ({"first": "Eva", "count": 2}, None)


async def test_code_without_a_last_expression_has_no_value(sandbox: CodeSandbox) -> None:
    result = await sandbox.execute("x = 1", limits=LIMITS)
    assert (result.value, result.failure) == (None, None)


async def test_one_execution_leaves_nothing_for_the_next(sandbox: CodeSandbox) -> None:
    await sandbox.execute("left_behind = 1", limits=LIMITS)
    result = await sandbox.execute("left_behind", limits=LIMITS)
    assert code_of(result) == SandboxCode.CODE


async def test_executions_at_the_same_time_do_not_mix(sandbox: CodeSandbox) -> None:
    wanted = range(4)
    done = await asyncio.gather(*(sandbox.execute("n * n", {"n": n}, LIMITS) for n in wanted))
    assert [result.unwrap() for result in done] == [n * n for n in wanted]


async def test_an_exception_of_the_code_is_told_with_its_line(sandbox: CodeSandbox) -> None:
    result = await sandbox.execute("x = 1\nraise ValueError('no such town')", limits=LIMITS)
    assert code_of(result) == SandboxCode.CODE
    with pytest.raises(StepFailedError, match=r"ValueError: no such town \(line 2\)"):
        result.unwrap()


async def test_code_that_is_not_python_fails(sandbox: CodeSandbox) -> None:
    assert code_of(await sandbox.execute("1 +", limits=LIMITS)) == SandboxCode.CODE


async def test_a_value_that_is_not_json_fails(sandbox: CodeSandbox) -> None:
    assert code_of(await sandbox.execute("{1, 2}", limits=LIMITS)) == SandboxCode.RESULT


@pytest.mark.parametrize("code", ["float('nan')", "[float('inf')]", "{'x': {1: 2}}"])
async def test_a_value_is_json_or_a_failure(sandbox: CodeSandbox, code: str) -> None:
    result = await sandbox.execute(code, limits=LIMITS)
    assert result.failure is not None or result.value == {"x": {"1": 2}}


async def test_what_the_code_prints_is_kept(sandbox: CodeSandbox) -> None:
    result = await sandbox.execute("print('hello')\n1", limits=LIMITS)
    assert (result.stdout, result.value) == ("hello\n", 1)


async def test_a_loop_without_end_is_stopped(sandbox: CodeSandbox) -> None:
    result = await sandbox.execute("while True:\n    pass", limits=SHORT)
    assert code_of(result) in (SandboxCode.CPU, SandboxCode.TIMEOUT)
    assert result.value is None


async def test_code_that_sleeps_too_long_is_stopped(sandbox: CodeSandbox) -> None:
    code = "import time\nwhile True:\n    time.sleep(5)"
    assert code_of(await sandbox.execute(code, limits=SHORT)) == SandboxCode.TIMEOUT


@pytest.mark.parametrize(
    "code",
    [
        "big = [0] * 10**9",
        "held = []\nwhile True:\n    held.append('x' * 1_000_000)",
        "text = 'x'\nwhile True:\n    text = text + text",
    ],
)
async def test_memory_beyond_the_limit_is_refused(sandbox: CodeSandbox, code: str) -> None:
    assert code_of(await sandbox.execute(code, limits=LIMITS)) == SandboxCode.MEMORY


async def test_output_beyond_the_limit_is_stopped(sandbox: CodeSandbox) -> None:
    result = await sandbox.execute("while True:\n    print('x' * 1000)", limits=LIMITS)
    assert code_of(result) == SandboxCode.OUTPUT
    assert result.is_cut
    assert len(result.stdout) < 2 * LIMITS.shown_bytes


async def test_a_file_of_the_machine_cannot_be_read(sandbox: CodeSandbox, tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("sesame")
    for place in (str(secret), "/etc/passwd"):
        result = await sandbox.execute("open(place).read()", {"place": place}, LIMITS)
        assert code_of(result) in (SandboxCode.DENIED, SandboxCode.CODE)
        assert "sesame" not in repr(result)
        assert "root:" not in repr(result)


async def test_a_file_of_the_machine_cannot_be_written(
    sandbox: CodeSandbox, tmp_path: Path
) -> None:
    place = tmp_path / "made.txt"
    result = await sandbox.execute("open(place, 'w').write('x')", {"place": str(place)}, LIMITS)
    assert result.failure is not None
    assert not place.exists()


async def test_a_socket_reaches_nobody(sandbox: CodeSandbox) -> None:
    with listening() as server:
        code = "import socket\nsocket.create_connection(('127.0.0.1', port), 2)\n1"
        port: int = server.getsockname()[1]
        result = await sandbox.execute(code, {"port": port}, LIMITS)
        with pytest.raises(BlockingIOError):
            server.accept()
    assert code_of(result) in (SandboxCode.DENIED, SandboxCode.CODE)


async def test_no_other_process_can_be_made(sandbox: CodeSandbox) -> None:
    for act in ("os.fork()", "os.execv('/bin/true', ['true'])", "os.kill(os.getppid(), 9)"):
        result = await sandbox.execute(f"import os\n{act}\n1", limits=LIMITS)
        assert code_of(result) in (SandboxCode.DENIED, SandboxCode.CODE), act


async def test_the_callers_environment_is_unknown(
    sandbox: CodeSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("API_KEY_OF_THE_CALLER", "sesame")
    for code in (
        "import os\nstr(dict(os.environ))",
        "open('/proc/self/environ').read()",
        "import os\nopen(f'/proc/{os.getppid()}/environ').read()",
    ):
        result = await sandbox.execute(code, limits=LIMITS)
        assert "sesame" not in repr(result)


async def test_a_cancelled_execution_leaves_no_process(sandbox: CodeSandbox) -> None:
    before = descendants()
    working = asyncio.ensure_future(
        sandbox.execute("import time\ntime.sleep(60)", limits=evolve(LIMITS, wall_s=60))
    )
    while len(descendants() - before) < 2:  # the one that watches, and the one that is watched
        await asyncio.sleep(0.01)
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working
    assert gone(descendants() - before)


# --- code that calls tools, where the sandbox has them -------------------------------------------


@frozen
class Calls:
    """Carries calls out by giving their arguments back, and keeps them."""

    made: list[tuple[str, Mapping[str, JsonValue]]] = field(factory=list)

    async def call(self, name: str, arguments: Mapping[str, JsonValue]) -> ProgramAnswer:
        """Whatever the arguments ask for."""
        self.made.append((name, arguments))
        match arguments:
            case {"fails": str(code)}:
                return ProgramAnswer(failure=FailureInfo(code=code, message="It is not there."))
            case {"raises": str(text)}:
                raise LookupError(text)
            case {"takes_s": float(seconds)}:
                await asyncio.sleep(seconds)
            case {"size": int(size)}:
                return ProgramAnswer(value="x" * size)
        return ProgramAnswer(value={"name": name, "given": dict(arguments)})


async def with_tools(
    sandbox: CodeSandbox,
    code: str,
    calls: Calls | None = None,
    limits: SandboxLimits = LIMITS,
) -> SandboxResult:
    if not sandbox.has_tools:
        pytest.skip(f"{sandbox.name} hands no calls on")
    tools = ProgramTools(
        names=("look", "files__read"),
        call=(calls or Calls()).call,
        now=datetime(2026, 5, 4, 3, 2, 1, tzinfo=UTC),
        seed="seed",
    )
    return await sandbox.execute_with_tools(f"import tools\n{code}", {"n": 2}, limits, tools)


async def test_a_call_gives_code_the_value_of_its_tool(sandbox: CodeSandbox) -> None:
    calls = Calls()
    code = "from tools import look\n[look(n=n)['given']['n'], tools.files__read(p={'a': [1]})]"
    result = await with_tools(sandbox, code, calls)
    assert result.unwrap() == [2, {"name": "files__read", "given": {"p": {"a": [1]}}}]
    assert calls.made == [("look", {"n": 2}), ("files__read", {"p": {"a": [1]}})]


async def test_a_call_that_fails_raises_a_runtime_error_with_code_and_message(
    sandbox: CodeSandbox,
) -> None:
    code = (
        "try:\n    tools.look(fails='no-file')\nexcept RuntimeError as e:\n    said = str(e)\nsaid"
    )
    assert (await with_tools(sandbox, code)).unwrap() == "no-file: It is not there."
    uncaught = await with_tools(sandbox, "tools.look(fails='no-file')")
    with pytest.raises(StepFailedError, match=r"no-file: It is not there. \(line 2\)"):
        uncaught.unwrap()


async def test_what_the_caller_of_a_tool_raises_ends_the_code_and_leaves_no_process(
    sandbox: CodeSandbox,
) -> None:
    before = descendants()
    code = "try:\n    tools.look(raises='stop')\nexcept BaseException:\n    tools.look(n=1)"
    calls = Calls()
    with pytest.raises(LookupError, match="stop"):
        await with_tools(sandbox, code, calls)
    assert len(calls.made) == 1
    assert gone(descendants() - before)


async def test_the_time_of_a_call_is_not_that_of_the_code(sandbox: CodeSandbox) -> None:
    short = evolve(SHORT, wall_s=1.5)
    result = await with_tools(sandbox, "tools.look(takes_s=2.0)['name']", limits=short)
    assert result.unwrap() == "look"


async def test_code_that_sleeps_after_a_call_is_stopped_all_the_same(sandbox: CodeSandbox) -> None:
    code = "import time\ntools.look(n=1)\nwhile True:\n    time.sleep(1)"
    result = await with_tools(sandbox, code, limits=SHORT)
    assert code_of(result) == SandboxCode.TIMEOUT


async def test_arguments_have_names_and_are_json(sandbox: CodeSandbox) -> None:
    calls = Calls()
    for arguments in ("1", "n={1}", "n=float('nan')"):
        result = await with_tools(sandbox, f"tools.look({arguments})", calls)
        assert code_of(result) == SandboxCode.CODE, arguments
    assert calls.made == []


async def test_arguments_and_results_that_are_too_long_are_errors_of_the_call(
    sandbox: CodeSandbox,
) -> None:
    calls = Calls()
    result = await with_tools(sandbox, "tools.look(text='x' * 10_000_000)", calls)
    with pytest.raises(StepFailedError, match="bad-arguments: "):
        result.unwrap()
    assert calls.made == []
    assert (await with_tools(sandbox, "len(tools.look(size=4_000_000))")).unwrap() == 4_000_000
    result = await with_tools(sandbox, "tools.look(size=9_000_000)")
    with pytest.raises(StepFailedError, match="tool-result-too-large: "):
        result.unwrap()


async def test_code_with_tools_reads_the_same_clock_and_numbers_each_time(
    sandbox: CodeSandbox,
) -> None:
    code = (
        "import datetime, random, time\n"
        "places = {'Rom', 'Oslo', 'Bern', 'Wien', 'Lima'}\n"
        "[time.time(), time.monotonic() == time.monotonic(), str(datetime.datetime.now()),\n"
        " datetime.date.today().isoformat(), random.random(), random.Random().random(),\n"
        " random.sample(sorted(places), 2), list(places),\n"
        " isinstance(datetime.datetime.now(), datetime.date)]"
    )
    first, again = [(await with_tools(sandbox, code)).unwrap() for _ in range(2)]
    assert first == again
    assert isinstance(first, list)
    assert (first[2], first[3], first[-1]) == ("2026-05-04 03:02:01", "2026-05-04", True)


WHAT_TELLS_TIME_AND_CHANCE = """
import email.utils, os, pickle, secrets, time, uuid
now = __import__("datetime").datetime.now()
[time.clock_gettime(0), time.clock_gettime_ns(1), time.asctime(), time.ctime(), time.time_ns(),
 str(uuid.uuid1()), str(uuid.uuid4()), secrets.token_hex(4), os.getpid(), list(os.times()),
 os.getrandom(4).hex(), email.utils.make_msgid(domain="a"), str(pickle.loads(pickle.dumps(now)))]
"""


async def test_whatever_the_standard_library_makes_of_time_and_chance_is_the_same(
    sandbox: CodeSandbox,
) -> None:
    if (await with_tools(sandbox, "import email, uuid\nNone")).failure is not None:
        pytest.skip(f"{sandbox.name} has no such modules")
    first, again = [
        (await with_tools(sandbox, WHAT_TELLS_TIME_AND_CHANCE)).unwrap() for _ in range(2)
    ]
    assert first == again
    assert isinstance(first, list)
    assert (first[2], first[-1]) == ("Mon May  4 03:02:01 2026", "2026-05-04 03:02:01")


async def test_code_without_tools_has_no_module_of_that_name(sandbox: CodeSandbox) -> None:
    assert code_of(await sandbox.execute("import tools", limits=LIMITS)) == SandboxCode.CODE


async def test_code_that_is_cancelled_in_a_call_leaves_no_process(sandbox: CodeSandbox) -> None:
    before, calls = descendants(), Calls()
    working = asyncio.ensure_future(with_tools(sandbox, "tools.look(takes_s=60.0)", calls))
    while not calls.made and not working.done():
        await asyncio.sleep(0.01)
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working
    assert gone(descendants() - before)


async def test_what_code_prints_between_calls_is_kept(sandbox: CodeSandbox) -> None:
    code = "print('before')\ntools.look(n=1)\nprint('{\"tool\": \"look\"}')\n1"
    calls = Calls()
    result = await with_tools(sandbox, code, calls)
    assert (result.stdout, result.value) == ('before\n{"tool": "look"}\n', 1)
    assert len(calls.made) == 1
