"""Runs a recipe's own tests: scripted answers, faked tools, nothing stored, and what came out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from attrs import frozen
from returns.result import Failure, Result, Success

from minions.adapters.models.scripted import ScriptedModel
from minions.contracts.call_executors import ToolCallExecutor, ToolCallExecutorFactory
from minions.contracts.calls import ChatModel, ToolCall, ToolCallResponse, ToolFailure
from minions.contracts.codec import encode
from minions.contracts.context import RunContext
from minions.contracts.decision_words import (
    Answer,
    Approve,
    Decision,
    Reject,
    said_decision,
)
from minions.contracts.decisions import (
    ApprovalRequest,
    Decider,
    NoAnswer,
    Question,
    Verdict,
)
from minions.contracts.errors import MinionsError, UsageError
from minions.contracts.executions import AgentResult
from minions.contracts.json_values import JsonValue, dumps
from minions.contracts.tools import Effect
from minions.engine.calls.decisions import read_answer
from minions.engine.calls.tool_calls import tool_call_executors
from minions.engine.compile.extensions import ModelSource
from minions.engine.context.agent_context import AgentContext
from minions.engine.services.memory_journal import MemoryJournal
from minions.interfaces.wiring.runtime import Runtime
from minions.recipe.expressions.template import compile_condition
from minions.recipe.model import AgentRecipe, ModelConfig, RecipeTest
from minions.recipe.reading.recipe_tests import SCRIPTED

__all__ = ["TestOutcome", "run_test"]


@frozen(kw_only=True)
class TestOutcome:
    """How one test ended."""

    test: RecipeTest
    faults: tuple[str, ...]
    """What is not as expected, for a person; none: it passed."""
    duration_ms: float

    def to_json(self) -> dict[str, JsonValue]:
        """For programs."""
        return {
            "name": self.test.name,
            "passed": not self.faults,
            "faults": list(self.faults),
            "duration_ms": self.duration_ms,
        }


async def run_test(recipe: AgentRecipe, test: RecipeTest, runtime: Runtime) -> TestOutcome:
    """One test, in a run of its own of which nothing is stored.

    Args:
        runtime: Gives the test's model where it names one, and the tools that it does not fake.
    """
    clock = runtime.services.clock
    begin = clock.monotonic()
    try:
        faults = tuple(await _faults(recipe, test, runtime))
    except MinionsError as error:
        faults = (f"{error.error_code}: {error.message}",)
    duration_ms = round((clock.monotonic() - begin) * 1000, 3)
    return TestOutcome(test=test, faults=faults, duration_ms=duration_ms)


async def _faults(recipe: AgentRecipe, test: RecipeTest, runtime: Runtime) -> list[str]:
    script = ScriptedModel.from_answers(test.answers, name=f"{SCRIPTED}{test.name}")
    scripted = runtime.evolve(
        models=_source(recipe, test, script, runtime),
        tool_calls=_faking(test.tools),
        decider=_ScriptedDecider(test.decisions),
        journal=MemoryJournal(runtime.services.clock),
        cache=None,
        prices=None,
    )
    run = scripted.executor(recipe).prepare(recipe, test.inputs)
    result = await run.execute()
    return list(_differences(test, result, run.context, script))


def _source(
    recipe: AgentRecipe, test: RecipeTest, script: ChatModel, runtime: Runtime
) -> ModelSource | ChatModel:
    """Whatever steps name, the test's model answers.

    Raises:
        UsageError: It is one that would be paid for.
    """
    if test.model is None:
        return script
    if not test.model.startswith(SCRIPTED) and test.model not in runtime.extensions.models:
        raise UsageError(
            f"The test '{test.name}' asks no real model, but it names '{test.model}'. Name "
            f"{SCRIPTED}FILE.yaml or a registered model, or write `answers`.",
            code="real-model",
        )
    named = ModelConfig(name=test.model)
    return lambda _: runtime.named_model(recipe, named)


# --- what stands for the world ---------------------------------------------------------------


@frozen
class _ScriptedDecider(Decider):
    """Says what the test says."""

    words: Mapping[str, str]

    async def approve(self, request: ApprovalRequest) -> Verdict:
        """By step, or by the steps around it, nearest first; without a word the run waits."""
        path = request.step_id
        while path and path not in self.words:
            path = path.rpartition("/")[0]
        match self._said(path):
            case Approve(None):
                return Verdict.APPROVED
            case Reject(None):
                return Verdict.REJECTED
            case _:
                return Verdict.LATER

    async def answer(self, question: Question) -> JsonValue | NoAnswer:
        """By step."""
        match self._said(question.step_id):
            case Answer(text):
                return read_answer(text, question.form)
            case _:
                return NoAnswer.LATER

    def _said(self, step: str) -> Decision | None:
        return said_decision(self.words[step]) if step in self.words else None


@frozen
class _FakedTools(ToolCallExecutor):
    """Gives what the test says; lets nothing through that changes something."""

    results: Mapping[str, JsonValue]
    usual: ToolCallExecutorFactory

    async def execute(
        self, call: ToolCall, context: RunContext
    ) -> Result[ToolCallResponse, ToolFailure]:
        """One attempt."""
        tool = context.tools.find(call.name)
        names = (call.name, tool.spec.origin if tool is not None else None)
        said = next((name for name in names if name is not None and name in self.results), None)
        if said is not None:
            value = self.results[said]
            content = value if isinstance(value, str) else dumps(value)
            return Success(ToolCallResponse(content=content, value=value))
        if tool is not None and tool.spec.effect is not Effect.PURE:
            return Failure(
                ToolFailure(
                    code="not-faked",
                    message=f"The tool '{call.name}' may change something, and the test does not "
                    "say what it gives. Write it under `tools` of the test.",
                )
            )
        return await self.usual(call, context).execute(call, context)


def _faking(results: Mapping[str, JsonValue]) -> ToolCallExecutorFactory:
    faking = _FakedTools(results, tool_call_executors())
    return lambda _call, _context: faking


# --- what came out -----------------------------------------------------------------------------


def _differences(
    test: RecipeTest, result: AgentResult[object], context: AgentContext, script: ScriptedModel
) -> Iterator[str]:
    if result.status is not test.status:
        error = f" ({result.error.code}: {result.error.message})" if result.error else ""
        yield f"the run is {result.status.value}, not {test.status.value}{error}"
        return
    code = result.error.code if result.error is not None else None
    if test.error is not None and code != test.error:
        yield f"the error is {code}, not {test.error}"
    output = encode(result.output)
    if test.has_output and dumps(output) != dumps(test.output):
        yield f"the output is {_short(output)}, not {_short(test.output)}"
    values = {**context.values, "output": output}
    for text in test.holds:
        try:
            if not compile_condition(text).holds(values):
                yield f"'{text}' does not hold; the output is {_short(output)}"
        except MinionsError as error:
            yield f"'{text}': {error.message}"
    if left := script.answers_left:
        yield "1 answer was not used" if left == 1 else f"{left} answers were not used"


def _short(value: JsonValue) -> str:
    text = dumps(value)
    return text if len(text) <= 300 else f"{text[:300]}…"
