"""Runs a recipe's own tests, with scripted answers, or with a model where a command says so; tools
are faked, and nothing is stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

from attrs import field, frozen
from returns.result import Failure, Result, Success

from minions.adapters.models.recorded import MISS, Cassette, ReplayModel
from minions.adapters.models.scripted import ScriptedModel
from minions.app.wiring.configured_models import ModelChoice
from minions.app.wiring.configured_runtime import Runtime
from minions.contracts.addresses import around
from minions.contracts.call_executors import ToolCallExecutor, ToolCallExecutorFactory
from minions.contracts.calls import ChatModel, ModelCall, ToolCall, ToolCallResponse, ToolFailure
from minions.contracts.context import RunContext
from minions.contracts.decisions import (
    Answer,
    ApprovalRequest,
    Approve,
    Decider,
    Decision,
    NoAnswer,
    Question,
    Reject,
    Rejection,
    Verdict,
    said_decision,
)
from minions.contracts.executions import AgentResult
from minions.contracts.messages import TokenUsage
from minions.contracts.tools import Effect
from minions.data.codec import encode
from minions.data.errors import MinionsError, UsageError
from minions.data.json_values import JsonValue, dumps
from minions.engine.calls.decisions import read_answer
from minions.engine.calls.tool_calls import tool_call_executors
from minions.engine.compile.borders import as_data
from minions.engine.compile.extensions import ModelSource
from minions.engine.compile.prompt_sections import (
    PromptPart,
    parts_of_call,
    section_tokens,
    section_words,
)
from minions.engine.context.agent_context import AgentContext
from minions.engine.history.keys import path_of
from minions.engine.services.memory_journal import MemoryJournal
from minions.recipe.model import AgentRecipe, RecipeTest
from minions.recipe.model_config import ModelConfig
from minions.recipe.reading.test_reading import OFFLINE
from minions.recipe.reading.tested_examples import without_cases


@frozen(kw_only=True)
class TestOutcome:
    """The outcome of one test."""

    test: RecipeTest
    faults: tuple[str, ...]
    """Differences from what the test expects, one line each; empty: it passed."""
    duration_ms: float
    usage: TokenUsage = field(factory=TokenUsage)
    """What its model calls used; nothing where answers were scripted."""

    def to_json(self) -> dict[str, JsonValue]:
        """The outcome as JSON: `name`, `passed`, `faults`, `duration_ms`."""
        return {
            "name": self.test.name,
            "passed": not self.faults,
            "faults": list(self.faults),
            "duration_ms": self.duration_ms,
        }


async def run_test(recipe: AgentRecipe, test: RecipeTest, runtime: Runtime) -> TestOutcome:
    """Run one test in a journal of its own, which is dropped afterwards.

    Args:
        runtime: Supplies the test's model if it names one, and the tools that it does not fake.
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
    script = ScriptedModel.from_answers(test.answers, name=f"scripted/{test.name}")
    models = _source(recipe, test, script, runtime)
    scripted = _faked(runtime, test).evolve(models=models, prices=None)
    recipe = without_cases(recipe, [test.inputs])
    run = scripted.executor(recipe).prepare(recipe, test.inputs)
    result = await run.execute()
    faults = list(_differences(test, result, run.context))
    if isinstance(models, ReplayModel):
        faults += _missed(test, models.cassette, faults)
    return [*faults, *_describe_unused(script)] if result.status is test.status else faults


async def ask_test(
    recipe: AgentRecipe, test: RecipeTest, runtime: Runtime, choice: ModelChoice
) -> TestOutcome:
    """Run one test with the models of the recipe, or the chosen one, instead of its answers.

    Everything else is as in `run_test`: tools are faked, nothing is stored, and no example is taken
    from the test.

    Raises:
        EnvironmentRefusedError, UsageError: There is no such model.
    """
    clock = runtime.services.clock
    begin = clock.monotonic()
    recipe = without_cases(recipe, [test.inputs])
    run = _faked(runtime, test).executor(recipe, choice).prepare(recipe, test.inputs)
    result = await run.execute()
    return TestOutcome(
        test=test,
        faults=tuple(_differences(test, result, run.context)),
        duration_ms=round((clock.monotonic() - begin) * 1000, 3),
        usage=result.usage,
    )


def _faked(runtime: Runtime, test: RecipeTest) -> Runtime:
    """The runtime with the test's results of tools and decisions, and a journal of its own."""
    return runtime.evolve(
        tool_calls=_faking(test.tools),
        decider=_ScriptedDecider(test.decisions),
        journal=MemoryJournal(runtime.services.clock),
        cache=None,
    )


def _source(
    recipe: AgentRecipe, test: RecipeTest, script: ChatModel, runtime: Runtime
) -> ModelSource | ChatModel:
    """The model of the test, whatever model its steps name.

    Raises:
        UsageError: `real-model`; it is one that costs money.
    """
    if test.model is None:
        return script
    if not test.model.startswith(OFFLINE) and test.model not in runtime.extensions.models:
        raise UsageError(
            f"The test '{test.name}' must not call a real model, but names '{test.model}'. Name "
            "scripted/FILE.yaml, replay/FILE or a registered model, or write `answers`.",
            code="real-model",
        )
    named = runtime.named_model(recipe, ModelConfig(name=test.model))
    # Another test may have used answers of the same script or cassette.
    return named.restarted() if isinstance(named, ScriptedModel | ReplayModel) else named


# --- what stands for the world ---------------------------------------------------------------


@frozen
class _ScriptedDecider(Decider):
    """Decides as the test says, whoever may decide."""

    stands_in: ClassVar[bool] = True

    words: Mapping[str, str]

    async def approve(self, request: ApprovalRequest) -> Verdict | Rejection:
        """The verdict for the address, or for the nearest one around it; else the run waits."""
        names = (*around(request.address), *around(request.step_id))
        match self._decision(next((each for each in names if each in self.words), "")):
            case Approve(None):
                return Verdict.APPROVED
            case Reject(None, reason):
                return Rejection(reason) if reason else Verdict.REJECTED
            case _:
                return Verdict.LATER

    async def answer(self, question: Question) -> JsonValue | NoAnswer:
        """The answer for the step; without one the run waits."""
        names = (question.address, question.step_id)
        match self._decision(next((each for each in names if each in self.words), "")):
            case Answer(text):
                return read_answer(text, question.form)
            case _:
                return NoAnswer.LATER

    def _decision(self, step: str) -> Decision | None:
        return said_decision(self.words[step]) if step in self.words else None


@frozen
class _FakedTools(ToolCallExecutor):
    """Returns the results that the test gives; refuses other tools that may change something."""

    results: Mapping[str, JsonValue]
    usual: ToolCallExecutorFactory

    async def execute(
        self, call: ToolCall, context: RunContext
    ) -> Result[ToolCallResponse, ToolFailure]:
        """Return the result of the test, or run a tool that changes nothing."""
        tool = context.tools.find(call.name)
        names = (call.name, tool.spec.origin if tool is not None else None)
        faked = next((name for name in names if name is not None and name in self.results), None)
        if faked is not None:
            value = self.results[faked]
            content = value if isinstance(value, str) else dumps(value)
            return Success(ToolCallResponse(content=content, value=value))
        if tool is not None and tool.spec.effect is not Effect.PURE:
            return Failure(
                ToolFailure(
                    code="not-faked",
                    message=f"The tool '{call.name}' may change something, and the test does not "
                    "give its result. Write it under `tools` of the test.",
                )
            )
        return await self.usual(call, context).execute(call, context)


def _faking(results: Mapping[str, JsonValue]) -> ToolCallExecutorFactory:
    faking = _FakedTools(results, tool_call_executors())
    return lambda _call, _context: faking


# --- what came out -----------------------------------------------------------------------------


def _differences(
    test: RecipeTest, result: AgentResult[object], context: AgentContext
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
    yield from _wrong_fields(test.fields, output)
    values = {**context.values, "output": output}
    for text in test.holds:
        try:
            if not context.recipe.templates.compile_condition(text).holds(values):
                yield f"'{text}' does not hold; the output is {_short(output)}"
        except MinionsError as error:
            yield f"'{text}': {error.message}"
    yield from _prompt_faults(test, result)


def _wrong_fields(fields: Mapping[str, JsonValue], output: JsonValue) -> Iterator[str]:
    if not fields:
        return
    from minions.evaluation.cases import NotGiven
    from minions.evaluation.scorers import is_same, value_at

    for path, wanted in fields.items():
        found = value_at(output, path)
        if isinstance(found, NotGiven):
            yield f"the output has no '{path}': it is {_short(output)}"
        elif not is_same(found, wanted):
            yield f"'{path}' of the output is {_short(found)}, not {_short(wanted)}"


def _describe_unused(script: ScriptedModel) -> Iterator[str]:
    if left := script.answers_left:
        yield "1 answer was not used" if left == 1 else f"{left} answers were not used"


def _missed(test: RecipeTest, cassette: Cassette, told: Sequence[str]) -> Iterator[str]:
    """Requests that were not answered, whatever the recipe made of that; told before, or wanted by
    the test: none.
    """
    misses = cassette.misses
    if not misses or test.error == MISS or any(misses[0] in each for each in told):
        return
    yield f"requests that were not answered: {len(misses)}. The first: {misses[0]}"


def _prompt_faults(test: RecipeTest, result: AgentResult[object]) -> Iterator[str]:
    """What the prompts that were sent hold and must not, or lack, or that they are too long."""
    sent: dict[str, list[ModelCall]] = {}
    for call in (call for execution in result.executions for call in execution.model_calls):
        sent.setdefault(path_of(call.key), []).append(call)
    for step_id, most in test.prompt_tokens_max.items():
        for path in (step_id,) if step_id else tuple(sent):
            for each in sent.get(path, []):
                yield from _too_long(path, each, most)
    for step_id, texts in test.prompt_contains.items():
        yield from _missing(step_id, sent.get(step_id, []), texts)
    for step_id, texts in test.prompt_excludes.items():
        yield from _present(step_id, sent.get(step_id, []), texts)


def _missing(step_id: str, calls: Sequence[ModelCall], texts: Sequence[str]) -> Iterator[str]:
    if not calls:
        yield f"step '{step_id}' sent no prompt"
        return
    parts = list(parts_of_call(calls[0]))
    sections = ", ".join(section_tokens(parts))
    for text in texts:
        if not any(_holds(part, text) for part in parts):
            yield f"no section of the prompt of '{step_id}' ({sections}) holds '{text:.80}'"


def _present(step_id: str, calls: Sequence[ModelCall], texts: Sequence[str]) -> Iterator[str]:
    parts = [part for call in calls for part in parts_of_call(call)]
    for text in texts:
        for section in dict.fromkeys(p.section.value for p in parts if _holds(p, text)):
            yield f"the section {section} of a prompt of '{step_id}' holds '{text:.80}'"


def _too_long(step_id: str, call: ModelCall, most: int) -> Iterator[str]:
    sections = section_tokens(parts_of_call(call))
    if sum(sections.values()) > most:
        yield f"a prompt of '{step_id}' has {section_words(sections)}; at most {most} are expected"


def _holds(part: PromptPart, text: str) -> bool:
    """As it stands, or as it stands within JSON."""
    return text in part.text or as_data(text)[1:-1] in part.text


def _short(value: JsonValue) -> str:
    text = dumps(value)
    return text if len(text) <= 300 else f"{text[:300]}…"
