"""A trace: what one recorded piece of agent work did, without how the model came to it."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import field, frozen

from minions.contracts.messages import TokenUsage
from minions.contracts.tools import Effect, ToolSpec
from minions.data.json_values import JsonValue


@frozen(kw_only=True)
class TracedCall:
    """One tool call with its result."""

    tool: str
    """The tool's full name."""
    arguments: Mapping[str, JsonValue]
    result: JsonValue = None
    error: str | None = None
    """Code and message of its failure; None: it gave `result`."""
    place: str
    """Run and address of the step that made it, for people: `run_12ab work`."""
    key: str
    """Key of the call in its run."""
    answer: int
    """Number of the model's answer that asked for it, over the trace; calls of one answer were made
    without knowing each other's results."""
    attempts: int = 1
    is_rejected: bool = False
    """Whether it was not made, because it was not allowed or a person rejected it."""


@frozen(kw_only=True)
class TracedText:
    """Words of the person who gave the task: trusted, as the recipe's own."""

    text: str
    before: int
    """How many calls had been made when they were said."""
    place: str
    """For people: `input 'request'`, `message 3`."""


@frozen(kw_only=True)
class TracedAnswer:
    """What a person answered to a question in the middle of the work."""

    step_id: str
    question: str
    value: JsonValue
    before: int
    """How many calls had been made when it was given."""


@frozen(kw_only=True)
class Trace:
    """One or several runs that together did a task once."""

    runs: tuple[str, ...]
    """Ids of its runs, in their order."""
    task: tuple[TracedText, ...]
    """What was to be done, in the words of the person; empty: only the recipe says so."""
    inputs: Mapping[str, JsonValue]
    """Inputs whose values are data: those that are the task itself are in `task`."""
    goal: str
    """Aim of the agent as its recipe says it, with templates over `inputs`; empty: the task is."""
    system: str = ""
    """The system texts of the recipe and the step, with templates over `inputs`."""
    calls: tuple[TracedCall, ...]
    answers: tuple[TracedAnswer, ...] = ()
    judged: tuple[JsonValue, ...] = ()
    """What steps gave in which a model answered."""
    output: JsonValue = None
    usage: TokenUsage = field(factory=TokenUsage)
    model_calls: int = 0

    @property
    def name(self) -> str:
        """For people: the ids of its runs."""
        return ", ".join(self.runs)


def is_effect(spec: ToolSpec | None) -> bool:
    """Whether a call of the tool may change something outside."""
    return spec is None or spec.effect is not Effect.PURE
