"""How a step is repeated, what follows its failure, and what chooses the next step."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from attrs import field, frozen

from minions.data.json_values import JsonValue


class OnItemError(StrEnum):
    """What becomes of a loop some of whose items fail."""

    FAIL = "fail"
    """The loop fails, after all items were tried."""
    COLLECT = "collect"
    """The loop completes with the results that there are, and the run is partial."""


@frozen(kw_only=True)
class LoopSpec:
    """A loop: the step is executed once for each item of a list."""

    over: JsonValue
    """The list, or a template of it."""
    aggregate: bool = False
    """Whether the output is the list of the items' outputs; else an
    object that also has their errors.
    """
    max_parallel: int = 1
    """Items that are executed at the same time."""
    most_queued: int | None = None
    """Items of a distributed loop that wait or run as child runs at the same time: `max_parallel`
    as the recipe states it; None: it states none.
    """
    on_item_error: OnItemError = OnItemError.FAIL
    min_successful: int = 1
    """With `collect`: items that have to succeed, where there are any items at all."""


@frozen(kw_only=True)
class WhileSpec:
    """A `while` loop: the step is repeated as long as a condition holds."""

    condition: str
    """The condition, evaluated after each attempt."""
    max_iterations: int = 10
    """Most attempts; the step fails if the condition still holds after the last one."""
    allow_repeats: bool = False
    """Whether an attempt may return the same output as an earlier
    one; else the step fails as stuck.
    """
    aggregate: bool = False
    """Whether the output is the list of what all attempts gave; else it is that of the last one."""


class OnError(StrEnum):
    """What happens to the run when a step fails."""

    FAIL = "fail"
    CONTINUE = "continue"
    """The step counts as optional; steps that only have to come after it run."""
    GOTO = "goto"
    """An earlier step runs again and is told the error."""


@frozen(kw_only=True)
class OnErrorSpec:
    """The `on_error` of one step."""

    action: OnError = OnError.FAIL
    goto: str | None = None
    """Target of the back edge: this step, or one that it depends on."""
    max_times: int = 2
    """How often the back edge is taken; after that the step has failed."""


MOST_ROUTING_CALLS: Final = 2
"""Model calls for one choice of the next step: the answer and one repair."""


@frozen(kw_only=True)
class DecisionToolSpec:
    """A tool call whose result names the next step."""

    tool: str
    params: Mapping[str, JsonValue] = field(factory=dict)
    """Arguments; their templates are rendered when the step has ended."""
