"""The next step after one with a `route`: a template names it, or a model chooses.

Steps without one are `routing`'s.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, cast

from attrs import evolve, frozen

from minions.contracts.border_names import border_words
from minions.contracts.call_executors import ToolCallExecutorFactory
from minions.contracts.executions import StepExecution
from minions.contracts.instructions import OutputInstructions
from minions.contracts.journal.facts import RouteFailed, RouteFinished
from minions.contracts.messages import Message, system, user
from minions.contracts.steps import Step
from minions.data.codec import encode
from minions.data.errors import (
    FailureInfo,
    MinionsError,
    StepFailedError,
    did_you_mean,
    near_names,
)
from minions.data.json_values import JsonValue, dumps
from minions.data.schema import JsonSchema
from minions.engine.calls.trace import StepTrace
from minions.engine.compile.borders import as_data, border_of_run, within
from minions.engine.compile.build import BuiltRecipe
from minions.engine.compile.recipe_step import as_text, bounded
from minions.engine.context.agent_context import AgentContext
from minions.engine.context.step_view import StepView
from minions.engine.run.run_models import RunModels
from minions.engine.services.breathing import beside
from minions.engine.step.code_scope import JournalledScope
from minions.recipe.control_flow import MOST_ROUTING_CALLS
from minions.recipe.expressions.template import Template

_WORDS: Final = (
    "You choose which step of a workflow comes next. Decide by the question and by the result "
    "given here. `next` is one of the ids listed, exactly as it is written."
)


@frozen
class _Choice:
    """A step that has ended and those that may come next."""

    step: Step[object]
    nexts: Sequence[Step[object]]
    """The steps to choose from; at least two."""

    @property
    def ids(self) -> list[str]:
        """The ids of the steps that may come next."""
        return [each.id for each in self.nexts]

    @property
    def listed(self) -> str:
        """Ids and descriptions, a line each."""
        return "\n".join(
            f"- {each.id}: {each.description}" if each.description else f"- {each.id}"
            for each in self.nexts
        )


class Routes:
    """Of the steps of one recipe in one run."""

    def __init__(
        self,
        context: AgentContext,
        built: BuiltRecipe,
        models: RunModels,
        tool_call_executor_factory: ToolCallExecutorFactory,
    ) -> None:
        """Take what was prepared."""
        self._context = context
        self._built = built
        self._models = models
        self._tool_factory = tool_call_executor_factory

    async def choose(self, step: Step[object]) -> Step[object] | None:
        """The next step after one that has ended; None: its `route` names none.

        A template says it also where the step was skipped or failed; a model is asked about
        results only.

        Raises:
            StepFailedError: The template gives no id that may come next, or no answer came.
            JournalError: A fact could not be stored.
        """
        control = self._built.control(step.id)
        nexts = self._built.graph.possible_next_steps(step)
        if control.route is None or len(nexts) < 2:
            return None
        choice = _Choice(step, nexts)
        if control.route.is_whole:
            return await self._by_value(choice, control.route)
        execution = self._context.step_manager.latest(step.id)
        if execution is None or not execution.is_complete:
            return None
        return await self._by_model(choice, control.route, execution)

    # --- a template ---------------------------------------------------------------------------

    async def _by_value(self, choice: _Choice, route: Template) -> Step[object]:
        value = await self._rendered(choice, route)
        found = next((each for each in choice.nexts if each.id == value), None)
        if found is not None:
            return found
        said = value if isinstance(value, str) else dumps(value)
        near = near_names(said, choice.ids)
        raise StepFailedError(
            FailureInfo(
                code="bad-route",
                message=f"The route of step '{choice.step.id}' gave '{said:.100}', which is no "
                f"step that may come next.{did_you_mean(said, choice.ids)} "
                f"It has to give one of: {', '.join(choice.ids)}.",
                where=choice.step.id,
                suggestions=near,
            )
        )

    async def _rendered(self, choice: _Choice, route: Template) -> JsonValue:
        context = self._context
        is_long = context.run_values.reads_much(route.references)
        calls = context.scope.services.beside
        try:
            return await beside(calls, is_long, lambda: route.render(context.values))
        except MinionsError as error:
            raise StepFailedError(_of_route(choice, error.info())) from error

    # --- a question ---------------------------------------------------------------------------

    async def _by_model(
        self, choice: _Choice, route: Template, execution: StepExecution[object]
    ) -> Step[object]:
        context, step = self._context, choice.step
        question = as_text(await self._rendered(choice, route))
        key = self._key(step)
        scope = await self._scope(step, key)
        try:
            form, output = _form(choice.ids), self._output(execution)
            messages = self._messages(choice, question, output)
            older = _older_messages(choice, question, output)
            answer = await scope.ask_model(
                older if scope.was_asked(older, form) else messages, form
            )
        except StepFailedError as error:
            failure = _of_route(choice, error.failure)
            if not context.progress.budget.has_refused:
                failed = RouteFailed(
                    step_id=context.scope.path_of(step.id),
                    error=failure.to_json(),
                    reason=failure.message,
                )
                await context.scope.recorder.record(key, failed)
            raise StepFailedError(failure) from error
        said = cast("Mapping[str, str]", answer)
        chosen = RouteFinished(
            step_id=context.scope.path_of(step.id), output=said["next"], reason=said["reason"]
        )
        await context.scope.recorder.record(key, chosen)
        return next(each for each in choice.nexts if each.id == said["next"])

    def _key(self, step: Step[object]) -> str:
        context = self._context
        base = f"{context.scope.execution_key(step.id, context.step_manager.visits(step.id))}/route"
        return base if context.scope.replay is None else context.scope.replay.key_of_choice(base)

    async def _scope(self, step: Step[object], key: str) -> JournalledScope:
        """A conversation of its own, beside the step's."""
        context = self._context
        limits = evolve(context.limits, max_model_calls_per_step=MOST_ROUTING_CALLS)
        view = StepView(
            context,
            step_id=context.scope.path_of(step.id),
            key=key,
            limits=limits,
            metadata=context.metadata,
            tools=context.tools.subset(()),
        )
        trace = StepTrace(
            step,
            step_id=step.id,
            execution_id=view.conversation_id,
            key=key,
            limits=limits,
            is_code=True,
            declares_output=True,
            started_at=context.scope.services.clock.now(),
        )
        return JournalledScope(
            view,
            trace,
            options=self._models.options(step),
            model_call_executor_factory=await self._models.ready(step, constrains=True),
            tool_call_executor_factory=self._tool_factory,
        )

    def _output(self, execution: StepExecution[object]) -> JsonValue:
        values = cast("Mapping[str, Mapping[str, JsonValue]]", self._context.values["steps"])
        known = values.get(execution.step_id, {})
        return known["output"] if "output" in known else encode(execution.output)

    def _messages(self, choice: _Choice, question: str, output: JsonValue) -> tuple[Message, ...]:
        listed = choice.listed
        shown = bounded(as_data(output))
        border = border_of_run(self._context.run_id, [question, listed, shown])
        text = (
            f"Question: {question}\n\n"
            f"{within(border, shown, step_id=choice.step.id)}\n\n"
            f"Steps that may come next:\n{listed}"
        )
        return system(_WORDS), border_words(border), user(text)


def _older_messages(choice: _Choice, question: str, output: JsonValue) -> tuple[Message, ...]:
    """As runs recorded it before outputs had a border: what was asked is not asked again."""
    text = (
        f"Question: {question}\n\n"
        f"Result of step '{choice.step.id}':\n{bounded(as_text(output))}\n\n"
        f"Steps that may come next:\n{choice.listed}"
    )
    return system(_WORDS), user(text)


def _form(ids: Sequence[str]) -> OutputInstructions[JsonValue]:
    schema: JsonSchema = {
        "type": "object",
        "properties": {
            "next": {"type": "string", "enum": list(ids)},
            "reason": {"type": "string"},
        },
        "required": ["next", "reason"],
        "additionalProperties": False,
    }
    return OutputInstructions[JsonValue](schema=schema, name="next_step")


def _of_route(choice: _Choice, failure: FailureInfo) -> FailureInfo:
    """The failure of a route, with its place in the recipe."""
    message = f"The route of step '{choice.step.id}': {failure.message}"
    return evolve(failure, message=message, where=choice.step.id)
