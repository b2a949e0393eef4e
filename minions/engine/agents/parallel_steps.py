"""Steps that are executed together, and when their results suffice."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Final

from attrs import field, frozen

from minions.contracts.agent_errors import StepResult
from minions.contracts.messages import ToolCallRequest
from minions.data.errors import UsageError


class StepType(StrEnum):
    """What an execution step does."""

    AGENT = "agent"
    TOOL = "tool"


@frozen(kw_only=True)
class ExecutionStep:
    """One of the steps that `execute_parallel_steps` executes together."""

    step_type: StepType | str
    """A `StepType` or its text; a step of any other kind gives an error result."""
    agent_name: str = ""
    """Of an agent step: the name of the agent."""
    request: object = None
    """Of an agent step: what the agent is asked."""
    metadata: Mapping[str, object] | None = None
    """Of an agent step: see `execute_agent_step`."""
    tool_calls: Sequence[Mapping[str, object] | ToolCallRequest] = ()
    """Of a tool step: see `execute_tool_calls`."""
    timeout: float | None = None
    """Seconds for this step; None: those of the context, else of the executor."""


_SHARES: Final[Mapping[str, float]] = {"all": 1.0, "majority": 0.5, "any": 0.0}


@frozen
class JoinPolicy:
    """How many steps have to succeed; when they have, the others are cancelled."""

    share: float = field(default=1.0)
    """The share of the steps from 0 to 1: at least one, and with 1 all of them."""
    is_more_than: bool = False
    """Whether more than `share` is needed, as for a majority."""

    @share.validator
    def _is_share(self, _: object, share: float) -> None:
        if not 0 <= share <= 1:
            raise UsageError(
                f"The ratio of a join policy is from 0 to 1, not {share!r}.", code="bad-join"
            )

    @classmethod
    def of(cls, policy: JoinPolicy | str | float) -> JoinPolicy:
        """The policy itself, one by its name (`all`, `any`, `majority`), or a ratio such as 0.6.

        Raises:
            UsageError: `bad-join`; it is none of these.
        """
        if isinstance(policy, JoinPolicy):
            return policy
        if isinstance(policy, str):
            if policy not in _SHARES:
                raise UsageError(
                    f"'{policy}' is no join policy. Policies are: {', '.join(_SHARES)}, or a ratio "
                    "from 0 to 1.",
                    code="bad-join",
                )
            return cls(_SHARES[policy], is_more_than=policy == "majority")
        return cls(float(policy))

    def needed(self, count: int) -> int:
        """How many of `count` steps have to succeed."""
        if self.is_more_than:
            return math.floor(self.share * count) + 1 if count else 0
        return min(count, max(1, math.ceil(self.share * count - 1e-9)))


class ParallelResults(list[StepResult]):
    """The results of steps that were executed together, in the order of the steps."""

    def __init__(self, results: Iterable[StepResult], policy: JoinPolicy) -> None:
        super().__init__(results)
        self.policy = policy
        """The join policy of the execution."""

    @property
    def successes(self) -> list[StepResult]:
        """The results of the steps that succeeded, in order."""
        return [result for result in self if result.get("error") is None]

    @property
    def is_joined(self) -> bool:
        """Whether as many steps succeeded as the join policy needs."""
        return len(self.successes) >= self.policy.needed(len(self))
