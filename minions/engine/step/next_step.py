"""The choice of the next step in a transition graph: links in order, first answer wins; and the
manager that advances a run to it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Final

from attrs import field, frozen

from minions.contracts.calls import ToolCall
from minions.contracts.context import ToolCallExecutorFactory
from minions.contracts.executions import StepExecution
from minions.contracts.messages import ToolCallRequest
from minions.contracts.steps import Step, StepGraph
from minions.data.errors import FailureInfo, MinionsError, StepFailedError, UsageError
from minions.data.field_repr import FieldsRepr
from minions.engine.calls.trace import StepTrace
from minions.engine.compile.recipe_step import WrittenStep
from minions.engine.context.agent_context import AgentContext
from minions.engine.context.run_progress import StepProgress
from minions.engine.context.step_view import StepView


@frozen(kw_only=True)
class Transition(FieldsRepr):
    """What a link may look at: the step that ended and where it may lead."""

    current: Step[object]
    candidates: Sequence[Step[object]]
    """In edge order; at least one."""
    execution: StepExecution[object] | None
    context: AgentContext
    tool_call_executor_factory: ToolCallExecutorFactory

    def candidate(self, step_id: str) -> Step[object] | None:
        """The legal successor of that id."""
        return next((step for step in self.candidates if step.id == step_id), None)


class NextStepLink(ABC):
    """One rule that may choose the next step."""

    @abstractmethod
    async def select(self, transition: Transition) -> Step[object] | None:
        """The next step, or None to let the next link choose."""


@frozen
class InstructedStepLink(FieldsRepr, NextStepLink):
    """The model's completion instruction named the next step: honoured where it is legal."""

    async def select(self, transition: Transition) -> Step[object] | None:
        """An illegal wish is recorded as a warning and ignored."""
        execution = transition.execution
        wish = execution.completion.next_step_id if execution and execution.completion else None
        if wish is None:
            return None
        step = transition.candidate(wish)
        if step is None:
            await _warn(transition, "illegal-next-step", f"the model asked for '{wish}'")
        return step


@frozen
class SingleNextStepLink(FieldsRepr, NextStepLink):
    """Exactly one successor: no choice to make."""

    async def select(self, transition: Transition) -> Step[object] | None:
        """The only candidate."""
        return transition.candidates[0] if len(transition.candidates) == 1 else None


@frozen
class DecisionToolLink(FieldsRepr, NextStepLink):
    """The step's decision tool names the successor."""

    async def select(self, transition: Transition) -> Step[object] | None:
        """Runs the tool only when there is a choice; an unknown answer is a recorded warning."""
        try:
            request = _request(transition)
        except MinionsError as error:
            await _warn(transition, "decision-tool-failed", error.message)
            return None
        if request is None:
            return None
        call = await _carried_out(transition, request)
        if call.failure is not None:
            await _warn(transition, "decision-tool-failed", call.failure.message)
            return None
        answer = call.response.content.strip().strip('"') if call.response else ""
        step = transition.candidate(answer)
        if step is None:
            await _warn(transition, "unknown-decision", f"{request.name} said '{answer}'")
        return step


def _request(transition: Transition) -> ToolCallRequest | None:
    """The decision call. A recipe that was read has templates in it.

    Raises:
        MissingValueError: One of them names a value that is not there.
    """
    step, context = transition.current, transition.context
    if isinstance(step, WrittenStep):
        return step.filled_decision(context.values, context.recipe.templates)
    return step.decision_tool


async def _carried_out(transition: Transition, request: ToolCallRequest) -> ToolCall:
    """The decision call, under the same retries, permissions and journal as any other."""
    from minions.engine.calls.tool_batch import ToolBatch

    context, current = transition.context, transition.current
    key = context.scope.execution_key(current.id, context.step_manager.visits(current.id))
    view = StepView(
        context,
        step_id=context.scope.path_of(current.id),
        key=key,
        limits=context.limits,
        metadata=context.metadata,
        tools=context.tools,
    )
    trace = StepTrace(
        current,
        step_id=current.id,
        execution_id=key,
        key=key,
        is_code=True,
        limits=context.limits,
        declares_output=False,
        started_at=context.scope.services.clock.now(),
    )
    batch = ToolBatch(
        view=view,
        factory=transition.tool_call_executor_factory,
        trace=trace,
        reports_failures=False,
    )
    (call,) = await batch.run([request], f"{key}/decide/1", remember=False)
    return call


@frozen
class FirstInOrderLink(FieldsRepr, NextStepLink):
    """The default: the first successor in edge order."""

    async def select(self, transition: Transition) -> Step[object] | None:
        """The first candidate; this rule always decides."""
        return transition.candidates[0]


async def _warn(transition: Transition, code: str, what: str) -> None:
    legal = ", ".join(step.id for step in transition.candidates)
    await transition.context.warn(
        code, f"After step '{transition.current.id}' {what}; legal next steps are: {legal}."
    )


def _default_links() -> tuple[NextStepLink, ...]:
    return (InstructedStepLink(), SingleNextStepLink(), DecisionToolLink(), FirstInOrderLink())


def _as_links(links: Iterable[NextStepLink]) -> tuple[NextStepLink, ...]:
    found = tuple(links)
    given: tuple[object, ...] = found
    for each in given:
        if not isinstance(each, NextStepLink):
            raise UsageError(
                f"NextStepChain takes objects of subclasses of NextStepLink, not {each!r:.80}.",
                code="bad-link",
            )
    return found


@frozen
class NextStepChain(FieldsRepr):
    """Instruction, single successor, decision tool, first in order; or links of your own.

    A resumed run asks again: what a link chooses follows from what it looks at.
    """

    links: tuple[NextStepLink, ...] = field(factory=_default_links, converter=_as_links)

    def prepend(self, *links: NextStepLink) -> NextStepChain:
        """A chain that asks these links first."""
        return NextStepChain((*links, *self.links))

    async def select(
        self,
        current: Step[object],
        candidates: Sequence[Step[object]],
        execution: StepExecution[object] | None,
        context: AgentContext,
        tool_call_executor_factory: ToolCallExecutorFactory,
    ) -> Step[object] | None:
        """The first link's choice; None when there is no successor.

        Raises:
            StepFailedError: `bad-next-step`; a link chose no candidate, or raised something.
        """
        if not candidates:
            return None
        transition = Transition(
            current=current,
            candidates=candidates,
            execution=execution,
            context=context,
            tool_call_executor_factory=tool_call_executor_factory,
        )
        for link in self.links:
            step = await _selected(link, transition)
            if step is not None:
                return step
        return None


async def _selected(link: NextStepLink, transition: Transition) -> Step[object] | None:
    name, current = type(link).__name__, transition.current.id
    try:
        chosen: object = await link.select(transition)
    except MinionsError:
        raise
    except Exception as error:
        words = f"{type(error).__name__}: {error}"
        message = f"The link {name} of the next-step chain raised after step '{current}': {words}"
        raise StepFailedError(
            FailureInfo(code="bad-next-step", message=message, where=current)
        ) from error
    if chosen is None:
        return None
    for step in transition.candidates:
        if step is chosen:
            return step
    legal = ", ".join(step.id for step in transition.candidates)
    message = (
        f"The link {name} of the next-step chain chose {getattr(chosen, 'id', chosen)!r:.80} after "
        f"step '{current}'; legal next steps are: {legal}. Return one of transition.candidates."
    )
    raise StepFailedError(FailureInfo(code="bad-next-step", message=message, where=current))


_USUAL_CHAIN: Final = NextStepChain()


class StepManager(StepProgress):
    """Knows the current step and chooses the next one; only an `AgentExecutor` moves it."""

    def __init__(self, graph: StepGraph, *, next_step_chain: NextStepChain | None = None) -> None:
        super().__init__(graph)
        self._chain = next_step_chain or _USUAL_CHAIN

    async def advance_to_next_step(
        self, context: AgentContext, tool_call_executor_factory: ToolCallExecutorFactory
    ) -> Step[object] | None:
        """Choose the successor of the step that just COMPLETED, was SKIPPED, or failed optionally.

        Called by `AgentExecutor`, once per step.
        """
        current = self._current
        if current is None:
            return None
        candidates = self.graph.possible_next_steps(current)
        execution = self.latest(current.id)
        chosen = await self._chain.select(
            current, candidates, execution, context, tool_call_executor_factory
        )
        self._current = chosen
        return chosen
