"""The recipe `StepExecutor`: it plans a task on a folder, and carries the plan out."""

from __future__ import annotations

from importlib.resources import files
from typing import Final

import yaml
from attrs import frozen

from minions.data.json_values import JsonValue, as_object, as_object_of_objects, as_objects
from minions.planning.plan_json import Sharing

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
    given: str | None = None
    """A plan that is carried out instead of one that a model writes."""
    context: str = ""
    """What every step is told besides its own."""
    opens_named: bool = True
    """Whether consent to a plan lets it write what it names although it configures tools."""
    rolls_back: bool = False
    """Whether files are taken back to what they were when the plan fails."""
    reuses: bool = False
    """Whether a plan that served a similar task is carried out again."""
    is_trusted: bool = False
    """Whether the text of the workspace is trusted."""
    tools: tuple[str, ...] = ()
    """Registered tools that the planner may give to steps."""
    allow_config: tuple[str, ...] = ()
    """Patterns of files that may be written although they configure tools outside."""
    allow_secrets: tuple[str, ...] = ()
    """Patterns of files that may be used although they are taken for secrets."""


def step_executor_document(choices: PlanChoices) -> dict[str, JsonValue]:
    """The recipe `step_executor.yaml` with these choices; its inputs are `requirements`,
    `workspace`, `context` and, where they are chosen, `command` and `plan`.
    """
    text = files("minions.planning").joinpath("step_executor.yaml").read_text("utf-8")
    document = dict(as_object(yaml.safe_load(text)))
    [template] = as_objects(document["steps"])
    inputs = {**as_object_of_objects(document["inputs"])}
    step: dict[str, JsonValue] = {
        **template,
        "form": choices.form,
        "share": choices.share.value,
        "approval": "required" if choices.needs_approval else "none",
        "max_replans": choices.max_replans,
        "max_repairs": choices.max_repairs,
        "rollback_on_failure": choices.rolls_back,
        "trusted": choices.is_trusted,
        "execute": choices.is_run,
        "opens_named": choices.opens_named,
    }
    if choices.reuses:
        step["reuse"] = True
    inputs["context"] = {**inputs["context"], "default": choices.context}
    if choices.tools:
        step["tools"], document["tools"] = list(choices.tools), list(choices.tools)
    if choices.allow_config:
        step["allow_config"] = list(choices.allow_config)
    if choices.allow_secrets:
        step["allow_secrets"] = list(choices.allow_secrets)
    if choices.command is not None:
        step["command"] = "{{ inputs.command }}"
        inputs["command"] = {
            "type": "string",
            "default": choices.command,
            "description": "The shell command that tests the work.",
        }
    if choices.given is not None:
        step["given"] = "{{ inputs.plan }}"
        inputs["plan"] = {
            "type": "string",
            "default": choices.given,
            "description": "The plan to carry out.",
        }
    return {**document, "steps": [step], "inputs": inputs}
