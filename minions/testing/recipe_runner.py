"""The types of the fixtures `run_recipe` and `crash_recipe`: they run a recipe reproducibly."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from attrs import evolve

from minions.adapters.models.script_items import Answer
from minions.adapters.models.scripted import ScriptedModel
from minions.adapters.models.structured_output import InstructorParser
from minions.adapters.tools.file_restorer import LocalFileRestorer
from minions.app.application.application import Approve, Minions
from minions.app.application.synchronous_run import wait_for
from minions.app.runs.application_runs import RecipeLike
from minions.app.settings.settings import Settings
from minions.app.wiring.configured_runtime import make_runtime
from minions.contracts.calls import ChatModel
from minions.contracts.executions import AgentResult, OutputT
from minions.contracts.run_events import RunEvent
from minions.contracts.secrets import InputValue
from minions.contracts.tools import Tool
from minions.data.json_values import JsonValue
from minions.engine.compile.extensions import Extensions
from minions.engine.services.memory_journal import MemoryJournal
from minions.engine.services.run_services import NullLog, Services
from minions.recipe.model import AgentRecipe, RecipeTest
from minions.testing.virtual_time import FakeClock, counting_ids

if TYPE_CHECKING:
    from minions.testing.crash_findings import CrashReport
    from minions.testing.crash_stories import CrashStory

__all__ = ["MakeScriptedModel", "RecipeCrasher", "RecipeRunner"]


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


class RecipeCrasher:
    """Call it to play a recipe's run under kills and faults: `assert not report.findings, report`.

    Tools are doubles that count their effects, the time is virtual, nothing is stored. It works
    outside of an event loop only.
    """

    def __call__(
        self,
        recipe: RecipeLike,
        inputs: Mapping[str, JsonValue] | None = None,
        *,
        answers: Sequence[JsonValue] = (),
        results: Mapping[str, JsonValue] | None = None,
        tools: Iterable[Tool] = (),
        extensions: Extensions | None = None,
        test: str = "",
        stories: int = 500,
        seed: int = 0,
        real_tools: bool = False,
        story: CrashStory | str | None = None,
    ) -> CrashReport:
        """Say what can happen to it.

        Args:
            answers: Of the model, in the form of a recipe's tests; with `inputs` and `results` of
                tools by name they take the place of the recipe's own tests. Where nothing says what
                a model or tool gives, it is made up from schemas.
            test: A part of the name of the recipe's test whose answers and results are taken.
            real_tools: Whether tools that declare to change nothing are called themselves.
            story: Play this one alone: `"kill@7"`.
        Raises:
            UsageError: `crash-test-fails`; the run does not complete when nothing goes wrong.
            RecipeError, NotFoundError: As for `minions.run`.
        """
        from minions.testing.crash_findings import find_crash_faults, replay_story
        from minions.testing.crash_stories import CrashStory
        from minions.testing.crash_world import CrashedRecipe, choose_test

        own = extensions or Extensions()
        runtime = make_runtime(
            Settings(no_store=True),
            evolve(own, tools=own.tools.plus(tools)),
            environ={},
            folder_of=lambda _key: Path.cwd(),
            log=NullLog(),
            services=Services(parser=InstructorParser()),
        )
        loaded = recipe if isinstance(recipe, AgentRecipe) else runtime.recipes.get(str(recipe))
        if inputs is not None or answers or results is not None:
            chosen: RecipeTest | None = RecipeTest(
                name="given", inputs=inputs or {}, answers=tuple(answers), tools=results or {}
            )
        else:
            chosen = choose_test(loaded, test)
        crashed = CrashedRecipe(loaded, runtime, test=chosen, real_tools=real_tools)
        if story is not None:
            told = CrashStory.parse(story) if isinstance(story, str) else story
            return replay_story(crashed, told)
        return find_crash_faults(crashed, stories=stories, seed=seed)


# --- the type of the fixture `scripted_model` ----------------------------------------------------


class MakeScriptedModel(Protocol):
    """Makes a scripted model of its answers."""

    def __call__(self, *answers: Answer) -> ScriptedModel:
        """A model that gives these answers in order."""
