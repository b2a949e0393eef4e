"""One recipe from its first step to its last: the whole of a run, or one of its steps.

`Routes` asks the models that choose a step's successor.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from attrs import evolve
from msgspec import Struct

from minions.contracts.context import ToolCallExecutorFactory
from minions.contracts.executions import RunStatus, StepExecution, StepStatus
from minions.contracts.instructions import OutputInstructions
from minions.contracts.journal.facts import RouteFailed, RouteFinished
from minions.contracts.messages import Message, border_words, system, user
from minions.contracts.runtime import WorkSlices
from minions.contracts.steps import Step
from minions.data.codec import encode
from minions.data.errors import (
    NEEDS_DECISION,
    FailureInfo,
    MinionsError,
    StepFailedError,
    did_you_mean,
    near_names,
)
from minions.data.json_values import JsonValue, as_object_of_objects, as_object_of_texts, dumps
from minions.data.schema import JsonSchema
from minions.engine.calls.trace import StepTrace
from minions.engine.compile.build import BuiltRecipe
from minions.engine.compile.recipe_step import as_text, bounded
from minions.engine.compile.selection import DependencyStepGraph
from minions.engine.context.agent_context import AgentContext
from minions.engine.context.step_view import StepView
from minions.engine.run.run_models import RunModels
from minions.engine.run.run_steps import RunSteps
from minions.engine.run.scheduler import DependencyWalk, Skip
from minions.engine.services.event_loop import beside
from minions.engine.services.run_services import room_for_more
from minions.engine.step.next_step import StepManager
from minions.engine.step.work import all_waiting
from minions.recipe.expressions.template import Template
from minions.recipe.model import MOST_ROUTING_CALLS, ExecutionMode, OnFailure

if TYPE_CHECKING:
    from minions.engine.step.code_scope import JournalledScope


_DEFAULT_BOUND: Final = 100
"""Steps of a run whose graph may repeat steps and whose recipe sets no `max_steps`."""
_STEPS: Final = 8
"""Steps after which others work, also where none of them waits for anything."""


class WalkEnd(Struct, frozen=True, kw_only=True):
    """The end of a walk."""

    status: RunStatus
    error: FailureInfo | None = None


class RecipeWalk:
    """Walks once. Steps know how they run; the walk knows which one is next."""

    def __init__(
        self,
        context: AgentContext,
        manager: StepManager,
        built: BuiltRecipe,
        steps: RunSteps,
        routes: Routes,
        tool_call_executor_factory: ToolCallExecutorFactory,
    ) -> None:
        """Take what was prepared."""
        self._context = context
        self._recipe = context.recipe
        self._progress = context.progress
        self._budget = context.progress.budget
        self._scope = context.scope
        self._manager = manager
        self._routes = routes
        self._built = built
        self._steps = steps
        self._tool_factory = tool_call_executor_factory
        self._problem: FailureInfo | None = None
        self._choice_waits_for: FailureInfo | None = None
        """The decision without which a tool may not say what comes next."""
        self._has_returned = False
        """Whether a failure led back: then steps run again, boundedly."""

    def walk(self) -> Awaitable[None]:
        """Run steps until no further one may start.

        Raises:
            JournalError: A fact could not be stored.
        """
        graph = self._built.graph
        if not isinstance(graph, DependencyStepGraph):
            return self._walk_transitions()
        recipe = self._recipe
        is_parallel = recipe.execution_mode is ExecutionMode.PARALLEL
        walk = DependencyWalk(
            graph,
            run=self._steps.run,
            skip=self._steps.skip,
            stop_reason=self._stop_reason,
            back_edges=self._steps.back_edges,
            is_brief=self._steps.is_brief,
            max_parallel=recipe.max_parallel if is_parallel else 1,
            room=partial(room_for_more, self._scope.services),
        )
        return walk.walk()

    async def _walk_transitions(self) -> None:
        manager, limits, slices = self._manager, self._context.limits, WorkSlices(_STEPS)
        bound = limits.max_steps or (_DEFAULT_BOUND if limits.allow_repeated_steps else None)
        skipped = 0  # they count: a circle of steps that are all skipped would have no end
        while (step := manager.current_step) is not None:
            if self._progress.open_calls and not self._steps.has_ended_before(step):
                return
            if manager.visits(step.id) and not (limits.allow_repeated_steps or self._has_returned):
                self._problem = _repeated(step.id)
                return
            if bound is not None and self._budget.steps + skipped >= bound:
                self._budget.stop_at("max_steps", bound)
                return
            if not self._steps.may_start():
                return
            if slices.is_over():  # steps may take no time, and others wait: a timeout, a person
                await asyncio.sleep(0)
            status = await self._steps.run(step)
            if status is StepStatus.IN_PROGRESS:
                return
            skipped += status is StepStatus.SKIPPED
            edges = self._steps.back_edges
            if status is StepStatus.FAILED and (target := edges.target(step)) is not None:
                await edges.follow(step)
                manager.set_current_step(target)
                self._has_returned = True
                continue
            if self._steps.failed is not None:
                return
            if self._progress.open_calls and self._is_choice_in_doubt(step):
                return
            if not await self._advance(step):
                return

    async def _advance(self, step: Step[object]) -> bool:
        """Choose the next step by the `route` of the last one, else by the next-step chain.

        Returns:
            False where the route leads nowhere: the run has failed, the step has not.
        """
        context, manager = self._context, self._manager
        try:
            has_route = self._built.control(step.id).route is not None
            chosen = await self._routes.choose(step) if has_route else None
            if chosen is not None:
                manager.set_current_step(chosen)
            else:
                await manager.advance_to_next_step(context, self._tool_factory)
        except StepFailedError as error:
            if error.failure.code == NEEDS_DECISION:
                self._choice_waits_for = error.failure
            elif not self._budget.has_refused:
                self._problem = error.failure
            return False
        return True

    def _is_choice_in_doubt(self, step: Step[object]) -> bool:
        """Whether the call that names what follows `step` waits for a decision."""
        key = self._scope.execution_key(step.id, self._manager.visits(step.id))
        return any(call.key.startswith(f"{key}/decide/") for call in self._progress.open_calls)

    def _stop_reason(self, step: Step[object]) -> str | None:
        """Why the step may not start; what ended before the failure is replayed."""
        surprise = self._recipe.on_surprise
        if surprise is not None and not self._steps.has_ended_before(step):
            found = self._steps.surprise
            if step.id == surprise and found is None:
                return "nothing was surprising"
            if step.id != surprise and found is not None:
                return f"step '{surprise}' does what is left: step '{found.step_id}' failed"
        failed = self._steps.failed
        is_stopped = failed is not None and self._recipe.on_failure is OnFailure.STOP
        if failed is not None and is_stopped and not self._steps.has_ended_before(step):
            return f"the run stopped: step '{failed.step_id}' failed"
        return None

    def end(self) -> WalkEnd:
        """How it ended, after the walk or whatever broke it off."""
        budget = self._budget
        open_calls = self._progress.open_calls
        # A recipe that is a step is replayed only where it had ended: nothing of it is in doubt.
        if open_calls and self._scope.is_whole_run:
            from minions.engine.calls.resume_decisions import doubt

            error = doubt(open_calls, self._context.run_id)
            return WalkEnd(status=RunStatus.NEEDS_DECISION, error=error)
        if self._problem is not None:
            return WalkEnd(status=RunStatus.FAILED, error=self._problem)
        if budget.has_refused:
            return WalkEnd(status=RunStatus.LIMIT_REACHED, error=budget.failure())
        goes_on = self._recipe.on_failure is OnFailure.CONTINUE
        is_waiting = goes_on and bool(self._steps.waiting)
        if self._steps.failed is not None and not is_waiting:
            return WalkEnd(status=RunStatus.FAILED, error=_step_failure(self._steps.failed))
        if self._steps.waiting or self._choice_waits_for is not None:
            return WalkEnd(status=RunStatus.NEEDS_DECISION, error=self._waiting_failure())
        if self._manager.has_failures:
            return WalkEnd(status=RunStatus.PARTIAL)
        return WalkEnd(status=RunStatus.COMPLETED)

    def _waiting_failure(self) -> FailureInfo:
        """All that the recipe waits for; the run adds the commands that decide it."""
        found = (*(each.error for each in self._steps.waiting), self._choice_waits_for)
        return all_waiting(error for error in found if error is not None)

    async def record_what_never_started(self, end: WalkEnd) -> None:
        """Steps that the run's time or a cancellation kept from starting: passed over, and why."""
        graph, manager = self._built.graph, self._manager
        if end.error is None or not isinstance(graph, DependencyStepGraph):
            return
        why = f"the run ended before: {end.error.code}"
        if end.error.code == NEEDS_DECISION:
            why = "the run waits for a person"
        for step in graph.steps:
            if manager.latest(step.id) is None:
                await self._steps.skip(step, Skip(why))


def _repeated(step_id: str) -> FailureInfo:
    return FailureInfo(
        code="repeated-step",
        message=f"Step '{step_id}' would run a second time and allow_repeated_steps is false. "
        "Break the cycle, or set allow_repeated_steps with max_steps.",
        where=step_id,
    )


def _step_failure(execution: StepExecution[object]) -> FailureInfo:
    error = execution.error
    if error is None:
        return FailureInfo(code="step-failed", message=f"Step '{execution.step_id}' failed.")
    return evolve(error, where=error.where or execution.step_id)


_WORDS: Final = (
    "You choose which step of a workflow comes next. Decide by the question and by the result "
    "given here. `next` is one of the ids listed, exactly as it is written."
)


class _Choice(Struct, frozen=True):
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
        self._step_manager = context.step_manager
        self._built = built
        self._graph = built.graph
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
        nexts = self._graph.possible_next_steps(step)
        if control.route is None or len(nexts) < 2:
            return None
        choice = _Choice(step, nexts)
        if control.route.is_whole:
            return await self._by_value(choice, control.route)
        execution = self._step_manager.latest(step.id)
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
        said = as_object_of_texts(answer)
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
        from minions.engine.step.code_scope import JournalledScope

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
        values = as_object_of_objects(self._context.values["steps"])
        known = values.get(execution.step_id, {})
        return known["output"] if "output" in known else encode(execution.output)

    def _messages(self, choice: _Choice, question: str, output: JsonValue) -> tuple[Message, ...]:
        from minions.engine.compile.borders import as_data, border_of_run, within

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
