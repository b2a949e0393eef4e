"""One step of a dry run."""

from __future__ import annotations

from attrs import frozen

from minions.contracts.json_values import JsonValue

__all__ = ["PlannedStep"]


@frozen(kw_only=True)
class PlannedStep:
    """One step as far as it is known before the run."""

    step_id: str
    """`outer/inner` in a recipe that is a step."""
    kind: str
    """`model`, `tool`, `analysis`, `set`, `assert`, `recipe`, `ask`, `uses` or `code`."""
    target: str | None = None
    """The tool, the model that would be asked, the recipe, or the registered class."""
    shown: JsonValue = None
    """Arguments, goal, question or values, filled in as far as may be."""
    tools: tuple[str, ...] = ()
    """That the model may call."""
    writes: bool = False
    """Whether the call changes something."""
    asks_for: tuple[str, ...] = ()
    """Parameters that a model call would fill in."""
    loop: str | None = None
    """`3 items`, or over what."""
    when: str | None = None
    """`false: skipped`, or the condition as it stands."""
    next: tuple[str, ...] | None = None
    """In a transition graph: what may come next; empty at an end. None: it is no such graph."""
    next_by: str | None = None
    """What decides between them: the template or the question, or a tool."""
    depth: int = 0
    """How many recipes it stands in, but the run's own."""
    model: str | None = None
    """That a registered step would ask."""
    repeats_while: str | None = None
    """The condition under which it is done again."""
    max_iterations: int | None = None
    """How often it is done then, at most."""
    on_error: str = "fail"
    """Or `continue`, or `goto`."""
    goto: str | None = None
    """The step that runs again when this one fails."""
    max_returns: int | None = None
    """How often, at most."""
    memory: str | None = None
    """`conversation`: it sees what was said in the steps before it that have this, too."""
    needs_approval: tuple[str, ...] = ()
    """Tools that somebody has to consent to before each call."""
    denied: tuple[str, ...] = ()
    """Tools that it names and may not call."""
    refused: str | None = None
    """Why it cannot be done at all."""
