"""A sandbox for tests, which confines nothing."""

from __future__ import annotations

import asyncio
import builtins
import json
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import ClassVar

from minions.adapters.sandboxes.supervised import answer_of, result_of
from minions.adapters.sandboxes.supervisor.child import run_python
from minions.adapters.sandboxes.supervisor.jobs import CodeJob, Report
from minions.adapters.sandboxes.supervisor.program_tools import MODULE, ToolCaller, tools_module
from minions.contracts.sandbox import (
    CODE_LIMITS,
    CodeSandbox,
    ProgramTools,
    SandboxLimits,
    SandboxProbe,
    SandboxResult,
)
from minions.data.json_values import JsonValue

__all__ = ["UnconfinedSandbox"]


class _EndedError(BaseException):
    """Ends code whose call was not carried out."""


class UnconfinedSandbox(CodeSandbox):
    """Runs code on a thread of this process: in a millisecond, and on machines where no sandbox
    holds.

    It is for tests, and for code that you would run yourself. Files, network, clock and random
    numbers are those of this process, no limit holds, and what the code prints is printed.
    """

    has_tools: ClassVar[bool] = True

    def __init__(self, name: str = "monty") -> None:
        """Nothing is run yet.

        Args:
            name: The sandbox that it takes the place of.
        """
        self._name = name

    @property
    def name(self) -> str:
        return self._name

    def probe(self) -> Sequence[SandboxProbe]:
        return (SandboxProbe(name="unconfined", ok=True),)

    async def execute(
        self,
        code: str,
        inputs: Mapping[str, JsonValue] | None = None,
        limits: SandboxLimits = CODE_LIMITS,
    ) -> SandboxResult:
        return await self._execute_text(code, inputs or {}, limits, None)

    async def execute_with_tools(
        self,
        code: str,
        inputs: Mapping[str, JsonValue],
        limits: SandboxLimits,
        tools: ProgramTools,
    ) -> SandboxResult:
        loop = asyncio.get_running_loop()
        died: list[BaseException] = []

        async def carry_out(line: bytes) -> bytes | None:
            try:
                return await answer_of(tools, line)
            except BaseException as error:  # noqa: BLE001  # raised where the code has ended
                died.append(error)
                return None

        def ask(line: bytes) -> bytes:
            if died:
                raise _EndedError
            answer = asyncio.run_coroutine_threadsafe(carry_out(line), loop).result()
            if answer is None:
                raise _EndedError
            return answer

        module = tools_module(list(tools.names), ToolCaller(ask))
        result = await self._execute_text(code, inputs, limits, module)
        if died:
            raise died[0]
        return result

    async def _execute_text(
        self,
        text: str,
        inputs: Mapping[str, JsonValue],
        limits: SandboxLimits,
        tools: ModuleType | None,
    ) -> SandboxResult:
        def import_(name: str, *place: object) -> object:
            if name == MODULE and tools is not None:
                return tools
            return builtins.__import__(name, *place)  # type: ignore[arg-type]  # as they came

        job = CodeJob(
            engine="python",
            text=text,
            inputs={**inputs, "__builtins__": {**vars(builtins), "__import__": import_}},
            path=[],
            program="",
            memory_bytes=limits.memory_bytes,
            tools=None,
        )
        answer = json.loads(await asyncio.to_thread(run_python, job))
        report = Report(
            refused=None,
            stop=None,
            exit_code=0,
            signal=None,
            value=answer["value"],
            has_value=answer["trouble"] is None,
            trouble=answer["trouble"],
            stdout="",
            stderr="",
            output_bytes=0,
            is_cut=False,
            cpu_s=0.0,
            wall_s=0.0,
            peak_memory_bytes=0,
            restored=[],
            disk_bytes=0,
            unchecked=None,
        )
        return result_of(report, limits, self.name, is_code=True)
