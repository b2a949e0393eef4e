"""New runs of an application: awaited, as a stream of events, or prepared and executed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Unpack

from minions.app.runs.application_runs import (
    ApplicationRuns,
    RecipeLike,
    SessionRunOptions,
    shows_options,
)
from minions.app.runs.run_stream import RunStream
from minions.contracts.calls import ChatModel
from minions.contracts.executions import AgentResult, OutputT
from minions.contracts.secrets import GivenInputs, plain_inputs
from minions.data.json_values import JsonValue
from minions.data.patterns import match_beside_loop
from minions.engine.run.agent_run import AgentRun


class NewRuns(ApplicationRuns):
    """The part of `Minions` that begins runs."""

    @shows_options(SessionRunOptions)
    async def arun(
        self,
        recipe: RecipeLike,
        inputs: GivenInputs | None = None,
        *,
        output_class: type[OutputT] | None = None,
        **options: Unpack[SessionRunOptions],
    ) -> AgentResult[OutputT]:
        """Run a recipe to its end. Once begun, every end is a result, never an exception.

        Args:
            inputs: Values by name; for a secret its `SecretRef`, or that as text (`env:NAME`).
            output_class: The class of `result.output`; an output that does not fit fails the run.
            model: The model for this run; None: the application's.
            session: The id of the session whose conversation it continues; None: a new session.
            user: The label of the user for whom it runs, whose daily budget it spends from; None:
                none.
        Raises:
            RecipeError, NotFoundError: As `load`.
            UsageError: Inputs or limits are wrong; nothing was started.
            EnvironmentRefusedError: There is no model, a secret is missing, or the journal refuses.
        """
        run = await match_beside_loop(
            lambda: self.prepare(recipe, inputs, output_class=output_class, **options)
        )
        return await self.execute(run)

    @shows_options(SessionRunOptions)
    def astream(
        self,
        recipe: RecipeLike,
        inputs: GivenInputs | None = None,
        *,
        output_class: type[OutputT] | None = None,
        **options: Unpack[SessionRunOptions],
    ) -> RunStream[OutputT]:
        """Run a recipe, and yield its events as they happen; at the end there is `stream.result`.

        Args:
            output_class, model, session, user: As for `arun`.
        Raises:
            As `arun`, at once: what is refused is refused before the first event is asked for.
        """
        return self.stream(self.prepare(recipe, inputs, output_class=output_class, **options))

    def stream(self, run: AgentRun[OutputT]) -> RunStream[OutputT]:
        """The events of a run that `prepare` made; it begins when the first one is asked for."""

        async def begin() -> AgentRun[OutputT]:
            return run

        return RunStream(begin, self.execute)

    def prepare(
        self,
        recipe: RecipeLike,
        inputs: GivenInputs | None = None,
        *,
        output_class: type[OutputT] | None = None,
        model: ChatModel | str | None = None,
        session: str | None = None,
        user: str | None = None,
        note: Mapping[str, JsonValue] | None = None,
    ) -> AgentRun[OutputT]:
        """Check everything that can be refused; the run has its id, and has not begun.

        Args:
            output_class, model, session, user: As for `arun`.
            note: Recorded with the start of the run, for the application to read.
        Raises:
            As `arun`.
        """
        found, answers = self.load(recipe), self._model if model is None else model
        if found.document is None:
            self._remember(found)
        return self._executor(found, answers).prepare(
            found,
            plain_inputs(inputs),
            session_id=session,
            output_class=output_class,
            user=user,
            note={**(note or {}), **({"model": answers} if isinstance(answers, str) else {})},
        )
