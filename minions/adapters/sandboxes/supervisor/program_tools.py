"""Code that calls tools: the module `tools` of the code, what makes the code repeatable, and the
channel between it and its supervisor.

Nothing here is trusted by whoever carries the calls out: code in a sandbox may write to the channel
what it likes, and is stopped where that is no request.
"""

from __future__ import annotations

import contextlib
import datetime
import importlib
import json
import os
import random
import sys
import time
import types
from collections.abc import Callable, Mapping
from datetime import UTC, tzinfo
from datetime import date as real_date
from datetime import datetime as real_datetime
from typing import Final, Self

from minions.adapters.sandboxes.supervisor.jobs import (
    ANSWER_BYTES,
    REQUEST_BYTES,
    CodeTools,
    ToolAnswer,
    ToolRequest,
)

MODULE: Final = "tools"
_MOST_AT_ONCE: Final = 65_536


class ToolError(RuntimeError):
    """A call of a tool that failed: `code` says how, `message` why."""

    def __init__(self, code: str, message: str) -> None:
        """Its text is `CODE: MESSAGE`."""
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


class ToolCaller:
    """Where code runs: asks for calls, and waits for what they give."""

    def __init__(self, ask: Callable[[bytes], bytes]) -> None:
        """Nothing is called yet.

        Args:
            ask: Hands a `ToolRequest` on, as a line of JSON; returns the line of its `ToolAnswer`.
        """
        self._ask = ask

    def functions(self, names: list[str]) -> dict[str, Callable[..., object]]:
        """A function for each tool, by its name."""
        return {name: self._function(name) for name in names}

    def _function(self, name: str) -> Callable[..., object]:
        def function(*unnamed: object, **arguments: object) -> object:
            if unnamed:
                raise TypeError(f"{name}() takes arguments by name only: {name}(name=value)")
            return self._call(name, arguments)

        function.__name__ = function.__qualname__ = name
        return function

    def _call(self, name: str, arguments: Mapping[str, object]) -> object:
        try:
            asked = {"tool": name, "arguments": arguments}
            request = json.dumps(asked, allow_nan=False).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise ToolError("bad-arguments", f"The arguments are not JSON: {error}") from None
        if len(request) >= REQUEST_BYTES:
            what = f"The arguments have {len(request):,} bytes of JSON; {REQUEST_BYTES:,} are taken"
            raise ToolError("bad-arguments", what)
        answer: ToolAnswer = json.loads(self._ask(request + b"\n"))
        if answer["code"] is not None:
            raise ToolError(answer["code"], answer["message"])
        return answer["value"]


def ask_over(requests: int, answers: int) -> Callable[[bytes], bytes]:
    """In the job's own process: asks the supervisor, over these descriptors."""

    def ask(data: bytes) -> bytes:
        while data:
            data = data[os.write(requests, data) :]
        line = bytearray()
        while not line.endswith(b"\n"):
            data = os.read(answers, _MOST_AT_ONCE)
            if not data:
                os._exit(1)  # the supervisor is gone
            line += data
        return bytes(line)

    return ask


def make_repeatable(tools: CodeTools, caller: ToolCaller) -> None:
    """Give Python code in this process its module `tools`, a clock that stands still, and random
    numbers of that seed.
    """
    sys.modules[MODULE] = tools_module(tools["names"], caller)
    _fix_random(tools["seed"])
    _stop_clock(tools["now"])
    _forget_process(tools["now"])


def tools_module(names: list[str], caller: ToolCaller) -> types.ModuleType:
    """The module `tools`."""
    module = types.ModuleType(MODULE, "The tools that this code may call.")
    vars(module).update(caller.functions(names), ToolError=ToolError)
    return module


def _fix_random(seed: str) -> None:
    """The same numbers, bytes and ids in each execution, wherever code takes them from."""
    source = random.Random(f"bytes {seed}")  # noqa: S311  # repeatable, and so no secret
    seeded = random.Random.seed

    def seed_fixed(self: random.Random, a: object = None, version: int = 2) -> None:
        seeded(self, source.random() if a is None else a, version)  # type: ignore[arg-type]  # as it is given

    os.urandom = source.randbytes
    setattr(os, "getrandom", lambda size, _=0: source.randbytes(size))  # noqa: B010  # not everywhere
    vars(random)["_urandom"] = source.randbytes
    random.Random.seed = seed_fixed  # type: ignore[method-assign]  # of generators without a seed
    random.seed(seed)


def _stop_clock(now: float) -> None:
    """Let all that tells the time tell this one."""
    gmtime, localtime, strftime, asctime = time.gmtime, time.localtime, time.strftime, time.asctime
    for name in ("time", "monotonic", "perf_counter", "process_time", "thread_time"):
        setattr(time, name, lambda: now)
        setattr(time, f"{name}_ns", lambda: int(now * 1e9))
    time.clock_gettime = lambda _: now
    time.clock_gettime_ns = lambda _: int(now * 1e9)
    time.gmtime = lambda seconds=None: gmtime(now if seconds is None else seconds)
    time.localtime = lambda seconds=None: localtime(now if seconds is None else seconds)
    time.ctime = lambda seconds=None: asctime(time.localtime(seconds))

    def strftime_then(form: str, at: time.struct_time | None = None) -> str:
        return strftime(form, time.localtime() if at is None else at)

    def asctime_then(at: time.struct_time | None = None) -> str:
        return asctime(time.localtime() if at is None else at)

    for name, then in (("strftime", strftime_then), ("asctime", asctime_then)):
        setattr(time, name, then)

    class _InstancesOfReal(type):
        real: type

        def __instancecheck__(cls, value: object) -> bool:
            return isinstance(value, cls.real)

    class StoppedDatetime(real_datetime, metaclass=_InstancesOfReal):
        real = real_datetime

        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Self:
            return cls.fromtimestamp(now, tz)

        @classmethod
        def utcnow(cls) -> Self:
            return cls.now(UTC).replace(tzinfo=None)

        @classmethod
        def today(cls) -> Self:
            return cls.now()

    class StoppedDate(real_date, metaclass=_InstancesOfReal):
        real = real_date

        @classmethod
        def today(cls) -> Self:
            return cls.fromtimestamp(now)

    for stopped, name in ((StoppedDatetime, "datetime"), (StoppedDate, "date")):
        stopped.__name__ = stopped.__qualname__ = name
        stopped.__module__ = datetime.__name__  # by which a value is pickled
        setattr(datetime, name, stopped)


def _forget_process(now: float) -> None:
    """What the operating system tells of one process and not of the next: ids of messages and of
    time-based UUIDs are made of it.
    """
    os.getpid = lambda: 1
    os.times = lambda: os.times_result((0.0, 0.0, 0.0, 0.0, now))
    with contextlib.suppress(ImportError):  # else `uuid` asks a service of the machine
        vars(importlib.import_module("_uuid")).pop("generate_time_safe", None)


class BadRequestError(Exception):
    """What code wrote to its channel is no request, or comes before the answer to the last one."""


class ToolChannel:
    """In the supervisor: takes one request after the other, and hands answers on."""

    def __init__(self, requests: int, answers: int) -> None:
        """Take the descriptors that requests are read from and answers are written to; neither
        blocks.
        """
        self.requests = requests
        self.answers = answers
        self._incoming = bytearray()
        self._outgoing = bytearray()
        self._answer = bytearray()
        self._asked_at: float | None = None
        self._waited_s = 0.0

    @property
    def waited_s(self) -> float:
        """Seconds in which code waited for calls of tools."""
        now = time.monotonic()
        return self._waited_s + (now - self._asked_at if self._asked_at is not None else 0.0)

    @property
    def has_outgoing(self) -> bool:
        """Whether a part of an answer waits until code reads."""
        return bool(self._outgoing)

    def read_request(self) -> ToolRequest | None:
        """A request that code has written; None: it is not whole yet.

        Raises:
            BadRequestError: It is none.
            EOFError: Code has closed the channel.
        """
        data = os.read(self.requests, _MOST_AT_ONCE)
        if not data:
            raise EOFError
        if self._asked_at is not None:
            raise BadRequestError
        self._incoming += data
        line, end, rest = self._incoming.partition(b"\n")
        if len(self._incoming) > REQUEST_BYTES or rest:
            raise BadRequestError
        if not end:
            return None
        self._incoming.clear()
        try:
            found: object = json.loads(line)
            json.dumps(found, allow_nan=False)  # `NaN` and 1e999 are read, and are no JSON
        except (ValueError, RecursionError):
            raise BadRequestError from None
        match found:
            case {"tool": str(tool), "arguments": dict(arguments), **others} if not others:
                self._asked_at = time.monotonic()
                return ToolRequest(tool=tool, arguments=arguments)
        raise BadRequestError

    def take_answer(self, data: bytes) -> None:
        """Take what the starter says; a whole line is for code."""
        self._answer += data
        if self._asked_at is None or not self._answer.endswith(b"\n"):
            return
        self._waited_s = self.waited_s
        self._asked_at = None
        self._outgoing += self._answer
        self._answer.clear()

    def write_answer(self) -> None:
        """Hand on as much of an answer as code takes now."""
        try:
            del self._outgoing[: os.write(self.answers, self._outgoing[:_MOST_AT_ONCE])]
        except BlockingIOError:
            return
        except OSError:  # code has closed its end, or is gone
            self._outgoing.clear()


def fitting_answer(answer: ToolAnswer) -> bytes:
    """The line of an answer; one that is too long says so in its place."""
    try:
        line = json.dumps(answer).encode() + b"\n"
    except RecursionError:
        told = "The result is nested too deep."
    else:
        if len(line) <= ANSWER_BYTES:
            return line
        told = f"The result has {len(line):,} bytes of JSON; {ANSWER_BYTES:,} are handed to code"
    return fitting_answer(ToolAnswer(value=None, code="tool-result-too-large", message=told))
