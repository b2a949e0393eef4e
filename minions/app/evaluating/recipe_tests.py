"""Runs a recipe's own tests, with scripted answers, or with a model where a command says so; tools
are faked, and nothing is stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import ClassVar, Final

from attrs import evolve, field, frozen, mutable
from returns.result import Failure, Result, Success

from minions.adapters.models.cassette_models import MISS, Cassette, ReplayModel
from minions.adapters.models.scripted import ScriptedModel
from minions.app.wiring.configured_models import ModelChoice
from minions.app.wiring.configured_runtime import Runtime
from minions.contracts.calls import ChatModel, ModelCall, ToolCall, ToolCallResponse, ToolFailure
from minions.contracts.context import RunContext, ToolCallExecutor, ToolCallExecutorFactory
from minions.contracts.decision_types import (
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
from minions.contracts.executions import AgentResult, around
from minions.contracts.messages import TokenUsage
from minions.contracts.runtime import PriceBook
from minions.contracts.tools import Effect, ToolSpec
from minions.data.codec import encode
from minions.data.errors import MinionsError, UsageError
from minions.data.json_values import JsonValue, as_object, as_text, dumps, parse_json
from minions.engine.calls.resume_decisions import read_answer
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
from minions.engine.run.run_factory import tool_call_executors
from minions.engine.services.memory_journal import MemoryJournal
from minions.recipe.model import AgentRecipe, RecipeTest, RecordedCall
from minions.recipe.model_config import ModelConfig
from minions.recipe.permissions import tool_specs
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


@mutable
class ArgumentMutation:
    """Changes one argument of one call with an effect, to see whether a test notices."""

    at: int | None = None
    """Number of the call among those with an effect, from 0; None: nothing is changed."""
    path: tuple[str | int, ...] = ()
    """Where in its arguments."""
    value: JsonValue = None
    effects: list[tuple[str, str, str]] = field(factory=list, init=False)
    """The calls with an effect as they came: key, tool and arguments as JSON."""

    def changed(self, call: ToolCall) -> ToolCall:
        """The call as it is made."""
        self.effects.append((call.key, call.name, call.request.arguments))
        if self.at != len(self.effects) - 1:
            return call
        arguments = _with_part(parse_json(call.request.arguments or "{}"), self.path, self.value)
        return evolve(call, request=evolve(call.request, arguments=dumps(arguments)))


def _with_part(value: JsonValue, path: Sequence[str | int], part: JsonValue) -> JsonValue:
    if not path:
        return part
    key, rest = path[0], path[1:]
    if isinstance(value, Mapping) and isinstance(key, str):
        return {**value, key: _with_part(value[key], rest, part)}
    assert isinstance(value, list)  # noqa: S101  # the path is one of the value
    return [_with_part(each, rest, part) if at == key else each for at, each in enumerate(value)]


async def run_test(
    recipe: AgentRecipe,
    test: RecipeTest,
    runtime: Runtime,
    *,
    tampering: ArgumentMutation | None = None,
) -> TestOutcome:
    """Run one test in a journal of its own, which is dropped afterwards.

    Args:
        runtime: Supplies the test's model if it names one, and the tools that it does not fake.
        tampering: Sees the calls with an effect, and may change one; None: nothing does.
    """
    clock = runtime.services.clock
    begin = clock.monotonic()
    try:
        faults = tuple(await _faults(recipe, test, runtime, tampering))
    except MinionsError as error:
        faults = (f"{error.error_code}: {error.message}",)
    duration_ms = round((clock.monotonic() - begin) * 1000, 3)
    return TestOutcome(test=test, faults=faults, duration_ms=duration_ms)


@frozen
class _Free(PriceBook):
    """The prices of answers that are scripted or replayed: a recipe that limits its cost can be
    tested without a price.
    """

    def cost_usd(
        self, model: str, usage: TokenUsage, *, at: datetime, base_url: str | None = None
    ) -> float | None:
        return 0.0


async def _faults(
    recipe: AgentRecipe, test: RecipeTest, runtime: Runtime, tampering: ArgumentMutation | None
) -> list[str]:
    script = ScriptedModel.from_answers(test.answers, name=f"scripted/{test.name}")
    models = _source(recipe, test, script, runtime)
    recorded = _recorded_calls(recipe, test, runtime)
    scripted = _fake_runtime(runtime, test, recorded, tampering).evolve(
        models=models, prices=_Free()
    )
    recipe = without_cases(recipe, [test.inputs])
    run = scripted.executor(recipe).prepare(recipe, test.inputs)
    result = await run.execute()
    faults = list(_differences(test, result, run.context))
    if recorded is not None:
        faults += recorded.faults(faults)
    if isinstance(models, ReplayModel):
        faults += _describe_misses(test, models.cassette, faults)
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
    recorded = _recorded_calls(recipe, test, runtime)
    run = (
        _fake_runtime(runtime, test, recorded).executor(recipe, choice).prepare(recipe, test.inputs)
    )
    result = await run.execute()
    return TestOutcome(
        test=test,
        faults=tuple(_differences(test, result, run.context)),
        duration_ms=round((clock.monotonic() - begin) * 1000, 3),
        usage=result.usage,
    )


def _fake_runtime(
    runtime: Runtime,
    test: RecipeTest,
    recorded: _RecordedCalls | None,
    tampering: ArgumentMutation | None = None,
) -> Runtime:
    """The runtime with the test's results of tools and decisions, and a journal of its own."""
    return runtime.evolve(
        tool_calls=_faking(test.tools, recorded, tampering),
        decider=_ScriptedDecider(test.decisions),
        journal=MemoryJournal(runtime.services.clock),
        cache=None,
    )


def _recorded_calls(
    recipe: AgentRecipe, test: RecipeTest, runtime: Runtime
) -> _RecordedCalls | None:
    calls = test.calls if test.calls_file is None else read_calls(recipe, test.calls_file)
    if not calls:
        return None
    return _RecordedCalls(calls, tool_specs(recipe, runtime.catalog))


def read_calls(recipe: AgentRecipe, name: str) -> tuple[RecordedCall, ...]:
    """The recorded calls of a file beside the recipe.

    Raises:
        UsageError: `bad-calls`; it cannot be read, is outside of the recipe's folder, or a line is
            no call.
    """
    folder = Path(recipe.directory or Path.cwd())
    path = (folder / name).resolve()
    if not path.is_relative_to(folder.resolve()):
        raise UsageError(
            f"The calls of a test are in a file beside the recipe, and '{name}' is elsewhere.",
            code="bad-calls",
        )
    try:
        with path.open(encoding="utf-8") as file:
            lines = file.read(_MOST_CALLS + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}.", code="bad-calls") from error
    if len(lines) > _MOST_CALLS:
        raise UsageError(f"{path} is longer than {_MOST_CALLS} characters.", code="bad-calls")
    found = []
    for number, line in enumerate(lines.splitlines(), start=1):
        try:
            call = parse_json(line)
            found.append(recorded_call(call if isinstance(call, Mapping) else {}))
        except (ValueError, TypeError) as error:
            raise UsageError(
                f"{path}:{number}: expected an object with `tool`, `arguments` and `result`: "
                f"{error}",
                code="bad-calls",
            ) from error
    return tuple(found)


def recorded_call(call: Mapping[str, JsonValue]) -> RecordedCall:
    """The call that a line of such a file holds.

    Raises:
        TypeError: It holds none.
    """
    error = call.get("error")
    return RecordedCall(
        tool=as_text(call.get("tool")),
        arguments=as_object(call.get("arguments", {})),
        result=call.get("result"),
        error=None if error is None else as_text(error),
    )


_MOST_CALLS: Final = 64 * 1024 * 1024
"""Characters of a file of recorded calls."""


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
    recorded: _RecordedCalls | None = None
    tampering: ArgumentMutation | None = None

    async def execute(
        self, call: ToolCall, context: RunContext
    ) -> Result[ToolCallResponse, ToolFailure]:
        """Return the result of the test, or run a tool that changes nothing."""
        tool = context.tools.find(call.name)
        changes = tool is None or tool.spec.effect is not Effect.PURE
        if self.tampering is not None and changes:
            call = self.tampering.changed(call)
        names = (call.name, tool.spec.origin if tool is not None else None)
        faked = next((name for name in names if name is not None and name in self.results), None)
        if faked is not None:
            value = self.results[faked]
            content = value if isinstance(value, str) else dumps(value)
            return Success(ToolCallResponse(content=content, value=value))
        if self.recorded is not None and (self.recorded.holds(call.name) or changes):
            return self.recorded.result(call)
        if tool is not None and tool.spec.effect is not Effect.PURE:
            return Failure(
                ToolFailure(
                    code="not-faked",
                    message=f"The tool '{call.name}' may change something, and the test does not "
                    "give its result. Write it under `tools` of the test.",
                )
            )
        return await self.usual(call, context).execute(call, context)


class _RecordedCalls:
    """The recorded calls of a test: gives their results, and tells which were not made."""

    def __init__(self, calls: Sequence[RecordedCall], specs: Mapping[str, ToolSpec]) -> None:
        self._specs = specs
        self._left = list(calls)
        self._tools = frozenset(each.tool for each in calls)
        self._last: dict[str, RecordedCall] = {}
        """By tool and arguments, the call that was made last: one that changes nothing may be made
        again."""
        self._effects: list[RecordedCall] = []
        """The calls with an effect that were made, in their order."""
        self._all = tuple(calls)
        self._others: list[str] = []

    def holds(self, name: str) -> bool:
        """Whether calls of that tool were recorded."""
        return name in self._tools

    def result(self, call: ToolCall) -> Result[ToolCallResponse, ToolFailure]:
        """What the recorded call with these arguments gave."""
        arguments = _parsed(call.request.arguments)
        key = self._key(call.name, arguments)
        is_pure = not self._writes(call.name)
        found = next(
            (each for each in self._left if self._key(each.tool, each.arguments) == key), None
        )
        if found is not None:
            self._left.remove(found)
            self._last[key] = found
            if not is_pure:
                self._effects.append(found)
        elif is_pure:
            found = self._last.get(key)
        if found is None:
            message = self._difference(call.name, arguments)
            self._others.append(message)
            return Failure(ToolFailure(code="not-recorded", message=message))
        if found.error is not None:
            return Failure(ToolFailure(code="recorded-failure", message=found.error))
        value = found.result
        content = value if isinstance(value, str) else dumps(value)
        return Success(ToolCallResponse(content=content, value=value))

    def _key(self, tool: str, arguments: JsonValue) -> str:
        """The same for calls of a tool that do the same: what is left out has its default."""
        spec = self._specs.get(tool)
        properties = spec.parameters.get("properties") if spec is not None else None
        if isinstance(arguments, Mapping) and isinstance(properties, Mapping):
            defaults = {
                name: schema["default"]
                for name, schema in properties.items()
                if isinstance(schema, Mapping) and "default" in schema
            }
            arguments = {**defaults, **arguments}
        return f"{tool} {dumps(_plain(arguments))}"

    def _difference(self, tool: str, arguments: JsonValue) -> str:
        """Why a call is none of the recorded ones: by the one that is most like it."""
        told = f"'{tool}' is called with {_short(arguments)}"
        same = [each for each in self._left if each.tool == tool]
        if not same:
            return f"{told}, and no such call is left among the recorded ones"
        nearest = max(same, key=lambda each: _likeness(each.arguments, arguments))
        return f"{told}; recorded is {_short(dict(nearest.arguments))}"

    def faults(self, told: Sequence[str]) -> Iterator[str]:
        """Calls that were not recorded, effects that were not made, or in another order."""
        for message in self._others:
            if not any(message in other for other in told):
                yield message
        missing = [each for each in self._left if self._writes(each.tool)]
        for each in missing:
            yield f"'{each.tool}' is not called with {_short(dict(each.arguments))}, as recorded"
        made = [each for each in self._all if any(each is other for other in self._effects)]
        for wanted, effect in zip(made, self._effects, strict=True):
            if wanted is not effect:
                yield (
                    f"'{effect.tool}' is called with {_short(dict(effect.arguments))} where "
                    f"'{wanted.tool}' with {_short(dict(wanted.arguments))} was, as recorded"
                )
                return

    def _writes(self, tool: str) -> bool:
        spec = self._specs.get(tool)
        return spec is None or spec.effect is not Effect.PURE


def _parsed(arguments: str) -> JsonValue:
    try:
        return parse_json(arguments or "{}")
    except ValueError:
        return arguments


def _plain(value: JsonValue) -> JsonValue:
    """With keys in order, and numbers of one value written alike."""
    if isinstance(value, Mapping):
        return {key: _plain(value[key]) for key in sorted(value)}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, float) and value == int(value):
        return int(value)
    return value


def _likeness(recorded: Mapping[str, JsonValue], arguments: JsonValue) -> int:
    given = arguments if isinstance(arguments, Mapping) else {}
    return sum(
        1 for key, value in recorded.items() if key in given and dumps(given[key]) == dumps(value)
    )


def _faking(
    results: Mapping[str, JsonValue],
    recorded: _RecordedCalls | None,
    tampering: ArgumentMutation | None,
) -> ToolCallExecutorFactory:
    faking = _FakedTools(results, tool_call_executors(), recorded, tampering)
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


def _describe_misses(test: RecipeTest, cassette: Cassette, told: Sequence[str]) -> Iterator[str]:
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
