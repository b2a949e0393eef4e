"""The recipe `StepExecutor`: it plans a task on a folder, and carries the plan out."""

from __future__ import annotations

from typing import Final

from attrs import frozen

from minions.contracts.json_values import JsonValue
from minions.planning.plan_recipe import Sharing

__all__ = ["STEP_EXECUTOR", "PlanChoices", "step_executor_document"]

STEP_EXECUTOR: Final = "StepExecutor"
"""The id of the recipe, and the name of the agent."""


@frozen(kw_only=True)
class PlanChoices:
    """How a task is planned and carried out."""

    needs_approval: bool = True
    """Whether a person approves each plan before it is carried out."""
    is_run: bool = True
    """Whether the plan is carried out; else it is the output."""
    max_replans: int = 1
    """How often what is left is planned again after a failure."""
    max_repairs: int = 2
    """How often a failed validation goes back to a repair."""
    share: Sharing = Sharing.OUTLINE
    """How steps see the files that earlier ones made."""
    form: str = "structured"
    """How the model writes the plan: `structured` or `text`."""
    command: str | None = None
    """The shell command that tests the work; None: the planner chooses."""
    context: str = ""
    """What every step is told besides its own."""
    rolls_back: bool = False
    """Whether files are taken back to what they were when the plan fails."""
    is_trusted: bool = False
    """Whether the text of the workspace is trusted."""
    tools: tuple[str, ...] = ()
    """Registered tools that the planner may give to steps."""


def step_executor_document(choices: PlanChoices) -> dict[str, JsonValue]:
    """The recipe as a YAML file would hold it; its inputs are `requirements` and `workspace`."""
    step: dict[str, JsonValue] = {
        "id": "work",
        "description": "Plans, and carries the plan out.",
        "plan": "{{ inputs.requirements }}",
        "workspace": "{{ inputs.workspace }}",
        "context": "{{ inputs.context }}",
        "form": choices.form,
        "share": choices.share.value,
        "approval": "required" if choices.needs_approval else "none",
        "max_replans": choices.max_replans,
        "max_repairs": choices.max_repairs,
        "rollback_on_failure": choices.rolls_back,
        "trusted": choices.is_trusted,
        "execute": choices.is_run,
    }
    if choices.tools:
        step["tools"] = list(choices.tools)
    if choices.command is not None:
        step["command"] = "{{ inputs.command }}"
    texts: dict[str, tuple[JsonValue, str]] = {
        "workspace": (".", "The folder to work in."),
        "context": (choices.context, "What every step is told."),
        "command": (choices.command or "", "The shell command that tests the work."),
    }
    return {
        "id": STEP_EXECUTOR,
        "description": "Plans a task on a folder, and carries the plan out in small steps.",
        "inputs": {
            "requirements": {"type": "string", "description": "What is to be done."},
            **{
                name: {"type": "string", "default": default, "description": words}
                for name, (default, words) in texts.items()
            },
        },
        "tools": list(choices.tools),
        "permissions": {"allow_write": True},
        "steps": [step],
    }
