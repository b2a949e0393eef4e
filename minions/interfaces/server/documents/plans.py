"""The body of a request for a plan, as a class."""

from __future__ import annotations

from attrs import field, frozen

from minions.interfaces.server.documents.common import MAYBE_TEXT, USER, text_schema


@frozen(kw_only=True)
class PlanRequest:
    """A task to plan and to carry out."""

    requirements: str = field(metadata=text_schema(100_000))
    """What is to be done."""
    workspace: str | None = field(default=None, metadata=MAYBE_TEXT)
    """The folder: one that the operator offers, or a path below one; None: the first of them."""
    context: str | None = field(default=None, metadata=text_schema(20_000, "null"))
    """What every step is told besides its own; None: nothing."""
    share: str = field(
        default="outline", metadata={"schema": {"enum": ["names", "outline", "whole"]}}
    )
    """How steps see the files that earlier ones made."""
    form: str = field(default="structured", metadata={"schema": {"enum": ["structured", "text"]}})
    """How the model writes the plan."""
    approval: str = field(default="required", metadata={"schema": {"enum": ["required", "none"]}})
    """Whether the run waits until a person approves the plan."""
    execute: bool = True
    """Whether the plan is carried out; false: it is the run's output."""
    session: str | None = field(default=None, metadata=MAYBE_TEXT)
    """The session that the run belongs to; None: a new one."""
    user: str | None = field(default=None, metadata=USER)
    """The label of the user for whom it runs, whose daily budget it spends from; None: none."""
