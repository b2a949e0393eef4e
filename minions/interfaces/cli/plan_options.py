"""The options of `minions plan` and `minions do`, and the recipe that they run."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeVar, cast

import click
from attrs import frozen

from minions.contracts.errors import UsageError
from minions.contracts.json_values import JsonValue
from minions.interfaces.cli.options import CommandContext
from minions.interfaces.cli.params import given_inputs, text_argument
from minions.interfaces.cli.run_follower import bounded
from minions.planning.plan_form import Sharing
from minions.planning.step_executor import PlanChoices, step_executor_document
from minions.recipe.catalog import Catalog
from minions.recipe.model import AgentRecipe
from minions.recipe.reading.load import recipe_from_document

__all__ = ["PlanTask", "plan_options", "settings_among"]

F = TypeVar("F", bound=Callable[..., object])

_OPTIONS: Final = (
    click.option(
        "-w", "--workspace", metavar="DIR", default=".", help="The folder to work in; default: ."
    ),
    click.option("-m", "--model", metavar="MODEL", help="provider/name of who plans and works."),
    click.option("--test", "command", metavar="COMMAND", help="The shell command that tests."),
    click.option(
        "--context", metavar="TEXT", default="", help="What every step is told, or @FILE."
    ),
    click.option(
        "--share",
        type=click.Choice([each.value for each in Sharing]),
        default=Sharing.OUTLINE.value,
        help="How steps see files that earlier steps made: names (cheapest), outline, whole.",
    ),
    click.option(
        "--form",
        type=click.Choice(["structured", "text"]),
        default="structured",
        help="How the model writes the plan; text for weak models.",
    ),
    click.option(
        "--trust-workspace",
        is_flag=True,
        help="Nobody but you writes there: its text is no stranger's.",
    ),
    click.option(
        "--allow-config",
        multiple=True,
        metavar="PATTERN",
        help="Files that may be written, unasked, although they configure tools: Makefile.",
    ),
    click.option(
        "--allow-secrets",
        multiple=True,
        metavar="PATTERN",
        help="Files that may be used although they are taken for secrets: .env.test.",
    ),
    click.option("--timeout", metavar="TIME", help="Most time for the run: 90, 90s, 10m."),
    click.option(
        "--max-cost", "max_cost_usd", type=float, metavar="USD", help="Most it may cost: 0.50."
    ),
)


_OWN: Final = (
    *("workspace", "command", "context", "share", "form", "trust_workspace"),
    *("allow_config", "allow_secrets"),
)


def settings_among(flags: Mapping[str, object]) -> dict[str, object]:
    """The flags that are settings."""
    return {name: value for name, value in flags.items() if name not in _OWN}


def plan_options(function: F) -> F:
    """Add what says how a task is planned."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


@frozen(kw_only=True)
class PlanTask:
    """A task, with the options that say how it is planned."""

    task: str
    """The task as it was typed: a text, @FILE, or @- for standard input."""
    workspace: str
    model: str | None
    choices: PlanChoices
    context: str

    @classmethod
    def of(cls, task: str, flags: Mapping[str, object], **more: object) -> PlanTask:
        """The task of a command line.

        Args:
            more: Further fields of `PlanChoices`.
        Raises:
            UsageError: The workspace is no folder, or the task is empty.
        """
        workspace = str(flags["workspace"])
        if not workspace:
            raise UsageError("--workspace is empty. Name the folder to work in.", code="empty")
        if Path(workspace).exists() and not Path(workspace).is_dir():
            raise UsageError(
                f"--workspace {workspace} is a file. Name the folder to work in.",
                code="bad-workspace",
            )
        if not Path(workspace).exists() and not Path(workspace).absolute().parent.is_dir():
            raise UsageError(
                f"--workspace {workspace}: there is no folder {Path(workspace).absolute().parent}. "
                "A missing workspace is made, the folder that it is in is not.",
                code="bad-workspace",
            )
        if Path(workspace).is_dir() and not os.access(workspace, os.R_OK | os.X_OK):
            raise UsageError(
                f"--workspace {workspace} cannot be listed: you have no right to read it.",
                code="bad-workspace",
            )
        if not task.strip():
            raise UsageError("The task is empty. Say what is to be done.", code="empty")
        choices = PlanChoices(
            share=Sharing(str(flags["share"])),
            form=str(flags["form"]),
            command=cast("str | None", flags["command"]),
            is_trusted=flags["trust_workspace"] is True,
            allow_config=tuple(cast("Sequence[str]", flags["allow_config"])),
            allow_secrets=tuple(cast("Sequence[str]", flags["allow_secrets"])),
            **more,  # type: ignore[arg-type]  # fields of PlanChoices
        )
        return cls(
            task=task,
            workspace=workspace,
            model=cast("str | None", flags["model"]),
            choices=choices,
            context=str(flags["context"]),
        )

    def recipe(self, context: CommandContext, catalog: Catalog) -> AgentRecipe:
        """The recipe that plans, with the operator's limits."""
        document = step_executor_document(self.choices)
        return bounded(recipe_from_document(document, catalog), context.settings)

    def inputs(self, recipe: AgentRecipe, context: CommandContext) -> Mapping[str, JsonValue]:
        """The inputs of that recipe."""
        texts: dict[str, JsonValue] = {
            "requirements": self._requirements(context),
            "workspace": str(Path(self.workspace).resolve()),
        }
        if self.context:
            texts["context"] = text_argument(self.context, context.stdin, "--context ")
        return given_inputs(recipe, (), context, before=texts)

    def _requirements(self, context: CommandContext) -> str:
        text = text_argument(self.task, context.stdin, "TASK ")
        if not text.strip():
            raise UsageError(
                f"TASK {self.task}: there is no text in it. Say what is to be done.", code="empty"
            )
        return text
