"""One step of a dry run."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen

from minions.data.field_repr import FieldsRepr
from minions.data.json_values import JsonValue
from minions.engine.compile.prompt_sections import PromptPart
from minions.recipe.model_config import ModelConfig


@frozen(kw_only=True)
class HiddenTools(FieldsRepr):
    """Tools that a model finds instead of being offered them."""

    count: int
    tokens: int
    """Estimated tokens that the first prompt would have more with all of them."""


@frozen(kw_only=True)
class PlannedPrompt(FieldsRepr):
    """The first prompt of a step, with what is known before the run: an output that only the run
    knows counts nothing.
    """

    sections: Mapping[str, int]
    """Estimated tokens by section."""
    parts: tuple[PromptPart, ...]
    """Its texts in the order in which servers read them."""
    form: str
    """The schema that binds the answer, which some servers read before all of them; empty: none."""
    config: ModelConfig
    """The model that it is sent to."""


@frozen(kw_only=True)
class PlannedStep(FieldsRepr):
    """One step as far as it is known before the run."""

    step_id: str
    """The path of the step: `outer/inner` within a recipe step."""
    kind: str
    """`model`, `tool`, `analysis`, `set`, `assert`, `recipe`, `ask`, `uses` or `code`."""
    target: str | None = None
    """The tool, the model that would be asked, the recipe, or the registered class."""
    shown: JsonValue = None
    """Arguments, goal, question or values, filled in as far as they are known."""
    tools: tuple[str, ...] = ()
    """Names of the tools that the model may call."""
    hidden_tools: HiddenTools | None = None
    """Those of `tools` that it finds by `find_tools`; None: all are offered."""
    writes: bool = False
    """Whether the tool call changes something outside the run."""
    asks_for: tuple[str, ...] = ()
    """Names of the parameters that a model call would fill in."""
    loop: str | None = None
    """The number of items, as `3 items`, or the list that is not known yet; None: no loop."""
    when: str | None = None
    """`true`, `false: skipped`, or the condition if it is not known yet; None: no condition."""
    next: tuple[str, ...] | None = None
    """In a transition graph, the steps that may come next; empty at an end. None: another graph."""
    next_by: str | None = None
    """What chooses among the next steps: a template, a question to a model, or a tool."""
    depth: int = 0
    """How many recipe steps enclose it."""
    model: str | None = None
    """The model that a registered step would ask; None: it asks none."""
    repeats_while: str | None = None
    """The condition of its `while`, under which it has another iteration; None: no `while`."""
    max_iterations: int | None = None
    """How many iterations its `while` has at most."""
    on_error: str = "fail"
    """What happens after a failure: `fail`, `continue` or `goto`."""
    goto: str | None = None
    """The step to which the run goes back if this one fails."""
    max_returns: int | None = None
    """How often the run goes back to it at most."""
    memory: str | None = None
    """`conversation`: the step sees the messages of earlier steps that also have this."""
    needs_approval: tuple[str, ...] = ()
    """Names of the tools that need a person's approval before each call."""
    denied: tuple[str, ...] = ()
    """Names of the tools that the step lists and may not call."""
    items: int | None = None
    """The number of items; None: it is not known yet, or there is no loop."""
    prompt: PlannedPrompt | None = None
    """Its first prompt; None: it asks no model, or code writes its prompt."""
    refused: str | None = None
    """Why the step cannot be done at all; None: it can."""
