"""The sandbox of an executor of agent steps, as MARS names its limits."""

from __future__ import annotations

import re
from typing import Any, Final

from minions.app.wiring.built_in_extensions import BuiltInSandboxes
from minions.contracts.sandbox import SandboxLimits
from minions.data.errors import UsageError
from minions.data.json_values import JsonValue
from minions.engine.agents.agent_step_executor import AgentStepExecutor as EngineExecutor

_UNITS: Final = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9}
_AMOUNT: Final = re.compile(r"([0-9]{1,12}) ?(|B|KB|MB|GB)", re.IGNORECASE)


class AgentSandbox:
    """Executes Python code in a process of its own, without files, network or environment.

    It is the `process` sandbox: where this machine cannot confine code, it refuses.
    """

    def __init__(
        self,
        memory_limit: str | int = "100MB",
        cpu_limit: float = 0.5,
        *,
        network_access: bool = False,
    ) -> None:
        """Take the limits; nothing is started.

        Args:
            memory_limit: Bytes, or a text such as `100MB`.
            cpu_limit: CPU time as a share of the time that the code may take.
            network_access: False; there is no sandbox with a network.
        Raises:
            UsageError: `bad-limit`; a limit that is none, or a network.
        """
        if network_access:
            raise UsageError("Code in a sandbox has no network.", code="bad-limit")
        self._memory_bytes = _bytes(memory_limit)
        self._cpus = cpu_limit

    async def execute(self, code: str, timeout: float = 5.0) -> JsonValue:  # noqa: ASYNC109  # as MARS calls it
        """The value of the last expression of the code.

        Args:
            timeout: Seconds, after which the code is stopped.
        Raises:
            StepFailedError: The code failed, or reached a limit; the codes begin with `sandbox-`.
            EnvironmentRefusedError: `no-sandbox`; this machine cannot confine code.
        """
        limits = SandboxLimits(memory_bytes=self._memory_bytes, cpus=self._cpus, wall_s=timeout)
        result = await BuiltInSandboxes()["process"].execute(code, limits=limits)
        return result.unwrap()


def _bytes(limit: str | int) -> int:
    found = _AMOUNT.fullmatch(str(limit).strip())
    if found is None:
        raise UsageError(
            f"The memory limit '{limit}' is no amount: write bytes, or a text such as '100MB'.",
            code="bad-limit",
        )
    return int(found[1]) * _UNITS[found[2].upper()]


class AgentStepExecutor(EngineExecutor):
    """Runs single steps of agents and tools by name, as the step executor of MARS.

    Its `execute_sandboxed` uses the sandbox that it is given, else an `AgentSandbox`.
    """

    async def execute_sandboxed(self, code: str, timeout: float = 5.0) -> Any:  # noqa: ASYNC109  # Any: what the code gives
        """Execute code that is not trusted, in the sandbox, within so many seconds.

        Raises:
            StepFailedError: The code failed, or reached a limit.
            EnvironmentRefusedError: `no-sandbox`; this machine cannot confine code.
        """
        if self._sandbox is None:
            return await AgentSandbox().execute(code, timeout)
        return await super().execute_sandboxed(code, timeout)
