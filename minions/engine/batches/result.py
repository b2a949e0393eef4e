"""The result of one line of a batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from attrs import field, frozen

from minions.contracts.executions import RunState
from minions.contracts.messages import TokenUsage
from minions.contracts.secrets import InputValue
from minions.data.codec import encode
from minions.data.errors import FailureInfo
from minions.data.failure_categories import is_outage
from minions.data.json_values import JsonValue

NOT_STARTED: Final = "not_started"
"""The status of a line that has no run yet."""


@frozen(kw_only=True)
class BatchResult:
    """What became of one line."""

    index: int
    """Number of the line among the inputs, from 0."""
    run_id: str | None
    """Its run; None: none was started."""
    status: str
    """The state of its run, a member of `RunState`, or `not_started`."""
    output: object = None
    error: FailureInfo | None = None
    step_failures: tuple[FailureInfo, ...] = ()
    """Why steps of a partial run failed."""
    usage: TokenUsage = field(factory=TokenUsage)
    """Tokens and cost of the whole run, also of its earlier executions."""
    duration_ms: float | None = None
    """From the start of the run to its last end; None: it has not ended."""
    is_recorded: bool = False
    """Whether the run had ended before this execution of the batch."""
    is_changed: bool = False
    """Whether an earlier execution of the batch ran this line with other inputs."""
    kept: Mapping[str, InputValue] = field(factory=dict)
    """What of the line was to stand beside its result, by name."""

    @property
    def is_successful(self) -> bool:
        """Whether the run completed, at least in part."""
        return self.status in (RunState.COMPLETED, RunState.PARTIAL)

    @property
    def outage(self) -> FailureInfo | None:
        """The failure because of which the run does not tell what its model answers: of a server,
        an account, or a limit of time; None: there is none.
        """
        ended = (self.error, *self.step_failures)
        found = (each for each in ended if each is not None)
        return next((each for each in found if is_outage(each.code, each.category)), None)

    def to_json(self) -> dict[str, JsonValue]:
        """The result as a line of the output file; these keys are stable."""
        error = self.error
        return {
            "index": self.index,
            "run_id": self.run_id,
            "status": self.status,
            "output": encode(self.output),
            "error": {"code": error.code, "message": error.message} if error else None,
            "cost_usd": self.usage.cost_usd,
            "tokens": self.usage.total_tokens,
            **({"kept": encode(self.kept)} if self.kept else {}),
        }
