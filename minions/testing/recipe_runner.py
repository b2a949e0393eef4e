"""The type of the fixture `run_recipe`: runs a recipe reproducibly."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from minions.adapters.models.script_items import Answer
from minions.adapters.models.scripted import ScriptedModel
from minions.adapters.models.structured_output import InstructorParser
from minions.adapters.tools.file_restorer import LocalFileRestorer
from minions.app.application.application import Approve, Minions
from minions.app.application.synchronous_run import wait_for
from minions.app.runs.application_runs import RecipeLike
from minions.contracts.calls import ChatModel
from minions.contracts.events import RunEvent
from minions.contracts.executions import AgentResult, OutputT
from minions.contracts.secrets import InputValue
from minions.contracts.tools import Tool
from minions.engine.compile.extensions import Extensions
from minions.engine.services.memory_journal import MemoryJournal
from minions.engine.services.services import Services
from minions.testing.virtual_time import FakeClock, counting_ids

__all__ = ["MakeScriptedModel", "RecipeRunner"]


class RecipeRunner:
    """Call it to run a recipe to its end; afterwards its attributes tell what happened.

    The clock moves only when something sleeps, ids count up and retries do not wait: two runs of
    one test are the same. It works inside and outside of an event loop.
    """

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.journal = MemoryJournal(self.clock)
        """The journal of all runs of the test."""
        self.events: list[RunEvent] = []
        """The events of all runs of the test, in order."""
        self.model: ChatModel | None = None
        """The model that answered last; `model.prompts` of a scripted one holds its prompts."""
        self._services = Services(
            clock=self.clock,
            sleep=self.clock.sleep,
            random=lambda: 0.5,
            ids=counting_ids(),
            journal=self.journal,
            parser=InstructorParser(),
            file_restorer=LocalFileRestorer(),
        )

    def __call__(
        self,
        recipe: RecipeLike,
        inputs: Mapping[str, InputValue] | None = None,
        *,
        output_class: type[OutputT] | None = None,
        answers: Iterable[Answer] = (),
        model: ChatModel | None = None,
        tools: Iterable[Tool] = (),
        extensions: Extensions | None = None,
        approve: Approve = "all",
    ) -> AgentResult[OutputT]:
        """Run the recipe; a failed run is returned, not raised.

        Args:
            answers: Answers of the model in order, whatever model the recipe names.
            model: A model to use instead of `answers`.
            approve: The decision about calls that need approval.
        Raises:
            RecipeError, UsageError, NotFoundError: As for `minions.run`.
        """
        self.model = answering = model or ScriptedModel(answers)

        async def work() -> AgentResult[OutputT]:
            application = Minions(
                model=answering,
                tools=tools,
                extensions=extensions,
                services=self._services,
                approve=approve,
                listeners=[self.events.append],
            )
            async with application:
                return await application.arun(recipe, inputs, output_class=output_class)

        return wait_for(work())


# --- the type of the fixture `scripted_model` ----------------------------------------------------


class MakeScriptedModel(Protocol):
    """Makes a scripted model of its answers."""

    def __call__(self, *answers: Answer) -> ScriptedModel:
        """A model that gives these answers in order."""
