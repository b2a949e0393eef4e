"""What a `PythonStep` may do: journalled model calls and tool calls."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final, TypeVar, cast

from attrs import evolve
from msgspec import Struct

from minions.contracts.calls import ModelOptions, PromptLayout
from minions.contracts.completion import CompletionCriteria
from minions.contracts.context import ModelCallExecutorFactory, RunContext, ToolCallExecutorFactory
from minions.contracts.decision_types import Question
from minions.contracts.executions import CompletionMode, StepExecution
from minions.contracts.file_changes import RollbackReport
from minions.contracts.instructions import OutputInstructions
from minions.contracts.journal.facts import (
    DecisionWaiting,
    PlanLookup,
    PlanReplaced,
    ToolCallInDoubt,
    ToolCallOutcome,
    ToolCallStarted,
)
from minions.contracts.journal.run_rows import RunFilter
from minions.contracts.messages import Message, ToolCallRequest, message_to_json, user
from minions.contracts.plan_diffs import PlanDiff, PlanProposal
from minions.contracts.sandbox import CODE_DIVERGED, ProgramAnswer
from minions.contracts.steps import DefaultStep
from minions.data.codec import encode
from minions.data.errors import (
    LIMIT_REACHED,
    NEEDS_DECISION,
    FailureInfo,
    StepFailedError,
    UsageError,
)
from minions.data.json_parts import is_large
from minions.data.json_values import JsonValue, dumps, dumps_in_parts
from minions.data.schema import JsonSchema
from minions.engine.calls.pending_decisions import answer_to, shortened
from minions.engine.calls.tool_batch import ToolBatch
from minions.engine.calls.trace import StepTrace
from minions.engine.compile.completion_links import budget_spent
from minions.engine.compile.engine_scope import Default, EngineScope, NestedOutcome, ProgramCalls
from minions.engine.compile.opening_rights import MadeOf
from minions.engine.context.agent_context import RecipeRunner
from minions.engine.context.step_view import StepView
from minions.engine.history.keys import scope_of
from minions.engine.history.step_rows import StepRows
from minions.engine.services.event_loop import beside
from minions.engine.step.model_work import ModelLoop
from minions.engine.step.work import WorkParts, open_conversation, opening_messages
from minions.recipe.expressions.values import Reference
from minions.recipe.kinds.code_kind import function_name
from minions.recipe.kinds.plan_kind import KeptPlan, PlanFit
from minions.recipe.model import AgentRecipe
from minions.recipe.model_config import ModelConfig

T = TypeVar("T")
U = TypeVar("U")


class JournalledScope(EngineScope):
    """Everything done through here is in the step's record; each model call is a fresh one."""

    def __init__(
        self,
        view: StepView,
        trace: StepTrace,
        *,
        options: ModelOptions | None,
        model_call_executor_factory: ModelCallExecutorFactory,
        tool_call_executor_factory: ToolCallExecutorFactory,
        recorded: StepRows | None = None,
        begun_at: datetime | None = None,
    ) -> None:
        """Nothing is done yet.

        Args:
            recorded: What earlier executions of the run recorded of the step; None: nothing.
            begun_at: When the step began; None: now.
        """
        self._recorded = recorded
        self._begun_at = begun_at
        self._view = view
        self._context = context = view.context
        self._recipe = context.recipe
        self._values = context.run_values
        self._scope = context.scope
        self._replay = context.scope.replay
        self._recorder = context.scope.recorder
        self._services = context.scope.services
        self._trace = trace
        self._options = options
        self._models = model_call_executor_factory
        self._tools = tool_call_executor_factory
        self._asked: dict[str, int] = {}

    @property
    def context(self) -> RunContext:
        """The step's view of the run."""
        return self._view

    async def beside(self, references: Sequence[Reference], work: Callable[[], T]) -> T:
        """On the threads of the run's services."""
        is_long = self._values.reads_much(references, self._view.values)
        return await beside(self._services.beside, is_long, work)

    async def call_model(self, messages: Iterable[Message] | str) -> str:
        """One fresh call in a conversation of its own."""
        return cast("str | None", await self._converse(messages, None)) or ""

    async def ask_model(
        self, messages: Iterable[Message] | str, output: OutputInstructions[U]
    ) -> U:
        """As a model step with declared output, without tools."""
        return cast(U, await self._converse(messages, output))

    async def _converse(
        self, messages: Iterable[Message] | str, output: OutputInstructions[object] | None
    ) -> object:
        if self._trace.calls_left < 1:
            spent = budget_spent(self._trace.picture())
            raise StepFailedError(FailureInfo(code=spent.code, message=spent.reason))
        own = [user(messages)] if isinstance(messages, str) else list(messages)
        view = self._fresh_view(own, output)
        opening = opening_messages(view, own, output, CompletionMode.TEXT)
        await open_conversation(view, f"{view.key}/opening", opening)
        step: DefaultStep[object] = DefaultStep(
            id=view.step_id, completion_criteria=CompletionCriteria(mode=CompletionMode.TEXT)
        )
        parts = WorkParts(
            view=view,
            trace=self._trace.aside(view.key),
            recorded=None,
            output=output,
            options=self._options,
            models=self._models,
            tools=self._tools,
        )
        ending = await ModelLoop(step, parts, layout=PromptLayout(opening=len(opening))).run()
        if ending.error is not None:
            raise StepFailedError(ending.error)
        return self._disarmed(ending.output, output)

    def _disarmed(self, said: object, output: OutputInstructions[object] | None) -> object:
        """Disarm references to secrets in a model's output, which code may pass on to a tool."""
        secrets = self._view.secrets
        if not secrets or not secrets.are_named_in(plain := encode(said)):
            return said
        return output.convert(secrets.disarm(plain)) if output else secrets.disarm(plain)

    def _place(self, *asked: JsonValue) -> str:
        """The key of a call within the step: from the digest of what is asked, not from its order.

        Code may ask in another order when the step is entered again after a crash; equal
        questions are counted, and their answers are as good as each other's.
        """
        digest = _digest(asked)
        self._asked[digest] = nth = self._asked.get(digest, 0) + 1
        return f"{digest}.{nth}"

    def was_asked(self, messages: Iterable[Message], output: OutputInstructions[U]) -> bool:
        """Whether an earlier execution of the run recorded just this question."""
        asked: list[JsonValue] = [message_to_json(message) for message in messages]
        key = f"{self._view.key}#{_digest([asked, output.json_schema()])}.1/opening"
        return self._replay is not None and self._replay.newest("conversation", key) is not None

    def _fresh_view(
        self, own: Iterable[Message], output: OutputInstructions[object] | None
    ) -> StepView:
        schema = output.json_schema() if output is not None else None
        place = self._place([message_to_json(message) for message in own], schema)
        whole = self._view
        return StepView(
            whole.context,
            step_id=whole.step_id,
            key=f"{whole.key}#{place}",
            limits=whole.limits,
            metadata=whole.metadata,
            tools=whole.tools.subset(()),
            retry=whole.retry,
        )

    async def call_tool(self, name: str, arguments: Mapping[str, JsonValue]) -> JsonValue:
        """One call under the same retries, permissions and limits as a model's."""
        return await self.call_filled_tool(name, arguments, ())

    async def call_filled_tool(
        self, name: str, arguments: Mapping[str, JsonValue], filled: Sequence[str]
    ) -> JsonValue:
        """One call; the record and whoever approves it learn what a model made of it."""
        batch = ToolBatch(
            view=self._view, factory=self._tools, trace=self._trace, reports_failures=False
        )
        calls = self._services.beside
        try:
            text = await beside(calls, is_large(arguments), lambda: dumps_in_parts(arguments))
        except (TypeError, ValueError) as error:
            message = f"The arguments for '{name}' are not JSON: {error}."
            raise StepFailedError(FailureInfo(code="bad-arguments", message=message)) from error
        key = f"{self._trace.key}/call/{self._place(name, text)}"
        request = ToolCallRequest(id=key, name=name, arguments=text)
        done = await batch.run([request], key, remember=False, filled=tuple(filled))
        call = done[0]
        if call.failure is not None:
            raise StepFailedError(call.failure.info())
        return call.response.value if call.response is not None else None

    def program_calls(self, names: Sequence[str], *, by_model: bool) -> ProgramCalls:
        """Numbered, in the order in which they come."""
        return _JournalledCalls(
            self._view,
            self._trace,
            self._tools,
            names=tuple(names),
            by_model=by_model,
            begun_at=self._begun_at or self._view.now(),
            recorded=_recorded_calls(self._recorded),
        )

    async def call_recipe(self, name: str, inputs: Mapping[str, JsonValue]) -> JsonValue:
        """In a place of its own, known by what it is given."""
        recipe = self._runner().find(name)
        self._refuse_circle(recipe)
        key = f"{self._view.key}#{self._place(recipe.id, dict(inputs))}"
        output = await self._run_recipe(recipe, inputs, key)
        calls = self._services.beside
        return await beside(calls, is_large(output), lambda: encode(output))

    def _refuse_circle(self, recipe: AgentRecipe) -> None:
        """A recipe that runs again within itself would never end.

        Raises:
            StepFailedError: `recipe-cycle`.
        """
        around = self._scope.recipes
        if not any(each is recipe or each.id == recipe.id for each in around):
            return
        names = " → ".join(each.id for each in (*around, recipe))
        message = (
            f"Step '{self._view.address}' calls the recipe '{recipe.id}' within itself: {names}. "
            "Call another one, or do it again with `while` or a loop."
        )
        raise StepFailedError(FailureInfo(code="recipe-cycle", message=message))

    async def run_recipe(
        self, recipe: AgentRecipe, inputs: Mapping[str, JsonValue], made_of: MadeOf
    ) -> object:
        """The recipe that the step is.

        Raises:
            UsageError: Inputs that it does not take.
            StepFailedError: It failed.
        """
        return await self._run_recipe(recipe, inputs, self._view.key, made_of)

    async def _run_recipe(
        self,
        recipe: AgentRecipe,
        inputs: Mapping[str, JsonValue],
        key: str,
        made_of: MadeOf | None = None,
    ) -> object:
        tell = self._trace.add_executions
        view = self._view
        result = await self._runner().run(
            recipe, inputs, view.context, view.address, key, tell, made_of, retry=view.retry
        )
        if result.error is not None:
            if result.error.code == NEEDS_DECISION:
                self._trace.wait(result.error)
            raise StepFailedError(result.error)
        self._trace.is_partial |= result.is_partial
        return result.output

    async def try_recipe(
        self,
        recipe: AgentRecipe,
        inputs: Mapping[str, JsonValue],
        place: str,
        *,
        model: ModelConfig | None,
        made_of: MadeOf,
        tell: Callable[[Sequence[StepExecution[object]]], None] | None = None,
    ) -> NestedOutcome:
        """A recipe in a place of its own, with the models of the step's recipe."""
        around = self._recipe.model
        recipe = evolve(recipe, model=around.overlaid(model) if model is not None else around)
        executions: list[StepExecution[object]] = []

        def keep(found: Iterable[StepExecution[object]]) -> None:
            executions.extend(found)
            self._trace.add_executions(executions)
            if tell is not None:
                tell(executions)

        key = f"{self._view.key}#{place}"
        view = self._view
        result = await self._runner().run(
            recipe, inputs, view.context, view.address, key, keep, made_of, retry=view.retry
        )
        error = result.error
        if error is not None and error.code in (NEEDS_DECISION, LIMIT_REACHED):
            if error.code == NEEDS_DECISION:
                self._trace.wait(error)
            raise StepFailedError(error)
        self._trace.is_partial |= result.is_partial
        return NestedOutcome(output=result.output, error=error, executions=tuple(executions))

    def show_plan(self, steps: Sequence[Mapping[str, JsonValue]]) -> None:
        """It becomes part of the picture of the step."""
        self._trace.plan = tuple(steps)

    async def roll_back(self, places: Sequence[str]) -> Sequence[RollbackReport]:
        """Restores what the recorded changes say, each place by itself."""
        from minions.engine.history.file_rollback import roll_back_within

        return [
            await roll_back_within(
                self._services, self._recorder, scope_of(f"{self._view.key}#{place}")
            )
            for place in places
        ]

    async def ask_person(
        self,
        text: str,
        *,
        form: JsonSchema | None,
        default: Default,
        timeout_s: float | None,
        place: str = "ask",
        plan: PlanProposal | None = None,
    ) -> JsonValue:
        """Ask a person; the key is unique in the step."""
        question = Question(
            key=f"{self._view.key}/{place}",
            run_id=self._view.run_id,
            step_id=self._view.address,
            text=text,
            form=form,
            default=default.value,
            has_default=default.is_given,
            timeout_s=timeout_s,
            plan=plan,
        )
        return await answer_to(self._view, question)

    async def look_up_plan(
        self,
        task: str,
        tool: str,
        fit: Callable[[KeptPlan], PlanFit],
        *,
        place: str,
    ) -> PlanLookup:
        """Once: a recorded look-up is not made again, whatever was recorded since."""
        from minions.engine.views.kept_plans import kept_plans

        view = self._view
        scope, key = self._scope, f"{view.key}/{place}"
        known = self._replay.newest("plan", key) if self._replay is not None else None
        if known is not None and isinstance(known.fact, PlanLookup):
            return known.fact
        services, nearest = self._services, ""
        plans = kept_plans(
            services.journal,
            RunFilter(recipe=scope.recipes[0].id, project=services.project, user=scope.user),
            task,
            tool,
        )
        fact: PlanLookup | None = None
        async for kept in plans:
            found = await asyncio.to_thread(fit, kept)
            if found.plan is not None:
                changed = f", with {found.reason}" if found.reason else ""
                text = f"The plan of run {kept.run_id} is used again{changed}."
                plan = found.plan.to_json()
                fact = PlanLookup(step_id=view.address, text=text, run=kept.run_id, plan=plan)
                break
            nearest = nearest or f": of that of run {kept.run_id}, {found.reason}"
        if fact is None:
            text = f"No plan of an earlier run serves the task{nearest}."
            fact = PlanLookup(step_id=view.address, text=text)
        await self._recorder.record(key, fact)
        return fact

    async def refuse_plan(self, text: str, *, place: str) -> None:
        """Once: a replayed fact is not stored again."""
        view = self._view
        fact = PlanLookup(step_id=view.address, text=text)
        await self._recorder.record(f"{view.key}/{place}", fact)

    async def record_new_plan(self, diff: PlanDiff, *, place: str) -> None:
        """Once: a replayed fact is not stored again."""
        view = self._view
        fact = PlanReplaced(step_id=view.address, text=diff.to_text(), diff=diff.to_json())
        await self._recorder.record(f"{view.key}/{place}", fact)

    def _runner(self) -> RecipeRunner:
        runner = self._context.recipe_runner
        if runner is None:
            raise UsageError(
                "A recipe can be a step only in a run of an AgentExecutor.", code="no-executor"
            )
        return runner


def _digest(asked: Sequence[JsonValue]) -> str:
    text = dumps(list(asked)).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(text, digest_size=6).hexdigest()


# --- calls of a program in a sandbox -------------------------------------------------------------


class _JournalledCalls(ProgramCalls):
    """Each call is a fact under its number, so a program that is run again is given the recorded
    results, and one that goes another way is noticed before it does anything.
    """

    def __init__(
        self,
        view: StepView,
        trace: StepTrace,
        factory: ToolCallExecutorFactory,
        *,
        names: tuple[str, ...],
        by_model: bool,
        begun_at: datetime,
        recorded: Mapping[int, _RecordedCall],
    ) -> None:
        self.names = tuple(map(function_name, names))
        self.begun_at = begun_at
        self.seed = f"{view.run_id}/{trace.key}"
        self.made: list[tuple[str, str]] = []
        self._tools = {function_name(each): each for each in names}
        self._trace = trace
        self._by_model = by_model
        self._recorded = recorded
        self._secrets = view.secrets
        self._limits = view.limits
        self._beside = view.context.scope.services.beside
        self._batch = ToolBatch(
            view=view.with_only(names), factory=factory, trace=trace, reports_failures=False
        )

    async def call(self, name: str, arguments: Mapping[str, JsonValue]) -> ProgramAnswer:
        """Under the same retries, permissions, approvals and limits as a model's."""
        if name not in self._tools:
            what = f"There is no tool '{name:.60}' here. Named are: {', '.join(self.names)}."
            return ProgramAnswer(failure=FailureInfo(code="unknown-tool", message=what))
        name = self._tools[name]
        given = self._secrets.disarm(arguments) if self._by_model else arguments
        text = await beside(self._beside, is_large(given), lambda: _in_order(given))
        number = len(self.made) + 1
        self._refuse_other(number, name, text)
        if not self._trace.reserve_tool_calls(1):
            most = self._limits.max_tool_calls_per_step
            message = f"The program makes more than {most} tool calls (max_tool_calls_per_step)."
            raise StepFailedError(FailureInfo(code="too-many-tool-calls", message=message))
        self.made.append((name, shortened(text)))
        key = f"{self._trace.key}/call/{number}"
        request = ToolCallRequest(id=key, name=name, arguments=text)
        (done,) = await self._batch.run([request], key, remember=False)
        if done.failure is not None:
            return ProgramAnswer(failure=done.failure.info())
        return ProgramAnswer(value=done.response.value if done.response is not None else None)

    def check_end(self) -> None:
        """Return if no recorded call is left."""
        made, before = len(self.made), max(self._recorded, default=0)
        if before > made:
            call = self._recorded[before]
            raise _diverged(
                f"it ended after {made} calls, but call {before} was recorded: "
                f"{call.tool}({shortened(call.arguments)})"
            )

    def _refuse_other(self, number: int, name: str, text: str) -> None:
        known = self._recorded.get(number)
        if known is None:
            return
        if (known.tool, known.arguments) != (name, text):
            raise _diverged(
                f"call {number} is {name}({shortened(text)}), and recorded is "
                f"{known.tool}({shortened(known.arguments)})"
            )


def _diverged(how: str) -> StepFailedError:
    message = (
        f"The program does not do what it did before it was interrupted: {how}. Nothing was "
        "called. It has to make the same calls for the same results; `minions retry` runs the step "
        "from its beginning."
    )
    return StepFailedError(FailureInfo(code=CODE_DIVERGED, message=message))


class _RecordedCall(Struct, frozen=True):
    tool: str
    arguments: str
    """JSON text, as the program gave them."""


_CALL_KEY: Final = re.compile(r".*/call/(\d+)/0(/approval)?")


def _recorded_calls(rows: StepRows | None) -> Mapping[int, _RecordedCall]:
    """The calls of earlier executions of the run by number. Whoever approved one may have edited
    its arguments: what was asked about is what the program gave.
    """
    begun: dict[int, _RecordedCall] = {}
    asked: dict[int, _RecordedCall] = {}
    for entry in rows.rows if rows is not None else ():
        found = _CALL_KEY.fullmatch(entry.key)
        if found is None:
            continue
        match entry.fact:
            case DecisionWaiting(tool=str(tool), arguments=str(arguments)) if found[2]:
                asked.setdefault(int(found[1]), _RecordedCall(tool, arguments))
            case (
                ToolCallStarted(tool=tool, arguments=arguments)
                | ToolCallInDoubt(tool=tool, arguments=arguments)
                | ToolCallOutcome(tool=tool, arguments=str(arguments))
            ):
                begun.setdefault(int(found[1]), _RecordedCall(tool, arguments))
    return {**begun, **asked}


def _in_order(value: JsonValue) -> str:
    """JSON text of a value whose objects have their keys in order."""
    return dumps_in_parts(_sorted(value))


def _sorted(value: JsonValue) -> JsonValue:
    if isinstance(value, Mapping):
        return {key: _sorted(value[key]) for key in sorted(value)}
    return [*map(_sorted, value)] if isinstance(value, list | tuple) else value
