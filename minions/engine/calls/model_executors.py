"""The executors of model calls over a `ChatModel`, and what the engine asks of a factory's model.

How a logical call is made of attempts stands in `model_calls`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence

from attrs import evolve
from returns.result import Failure, Result, Success

from minions.contracts.call_executors import ModelCallExecutor, ModelCallExecutorFactory
from minions.contracts.calls import (
    ChatModel,
    ModelCall,
    ModelCallResponse,
    ModelFailure,
    ModelOptions,
    OutputParser,
    Prompt,
    StepCompletionInstruction,
)
from minions.contracts.context import RunContext, snake_case
from minions.contracts.instructions import OutputMode
from minions.contracts.messages import MessageRole, user
from minions.data.errors import OUTPUT_TRUNCATED
from minions.engine.services.retry import checked_result
from minions.recipe.model import UntrustedRule


class ModelCallExecutors:
    """The `ModelCallExecutorFactory` for one model; knows what its server can be trusted with."""

    def __init__(
        self,
        model: ChatModel | Callable[[], ChatModel],
        *,
        options: ModelOptions | None = None,
        tiers: Sequence[ModelCallExecutors] = (),
        is_fallback: bool = False,
        cooldown_s: float | None = None,
        private: UntrustedRule = UntrustedRule.ALLOW,
    ) -> None:
        """Take the model, or a way to it that is asked at the first call.

        Args:
            options: Of its calls, where it is the tier of another; None: those of the step.
            tiers: The models that are asked after it where its output does not fit or its server
                fails.
            is_fallback: Whether it takes the place of the one before it, where that one's server
                fails, and is no larger model.
            cooldown_s: Seconds for which it is not asked after its server failed; None: as usual.
            private: What becomes of its calls with private data in their prompts.
        """
        self._source = model
        self.options = options
        self.tiers = tuple(tiers)
        self.is_fallback = is_fallback
        self.cooldown_s = cooldown_s
        self.private = private
        self._executor: DefaultModelCallExecutor | None = None

    @property
    def model(self) -> ChatModel:
        """The model; looked up now if that was put off."""
        executor = self._executor
        return executor.model if executor is not None else self._open().model

    def __call__(self, call: ModelCall, context: RunContext) -> ModelCallExecutor:
        """The same executor for every call: it holds no state."""
        return self._executor or self._open()

    def _open(self) -> DefaultModelCallExecutor:
        if self._executor is None:
            source = self._source
            model = source if isinstance(source, ChatModel) else source()
            self._executor = DefaultModelCallExecutor(model)
        return self._executor


async def warm_up(
    factory: ModelCallExecutorFactory, parser: OutputParser, *, constrains: bool
) -> None:
    """Load libraries now: no step's time shall go into imports."""
    if not isinstance(factory, ModelCallExecutors):
        return
    model = factory.model
    await model.warm_up()
    mode = model.capabilities.output_mode
    if constrains and mode is not None:
        await parser.warm_up(mode)


def recall(factory: ModelCallExecutorFactory, prompt: Prompt) -> None:
    """Let a scripted model skip the answer of a call that is replayed."""
    if isinstance(factory, ModelCallExecutors):
        factory.model.recall(prompt)


def model_of(factory: ModelCallExecutorFactory) -> ChatModel | None:
    """The model that is asked; None where an application carries out calls in its own way."""
    return factory.model if isinstance(factory, ModelCallExecutors) else None


class DefaultModelCallExecutor(ModelCallExecutor):
    """Puts the prompt to a `ChatModel` and reads a completion instruction out of its answer."""

    def __init__(self, model: ChatModel) -> None:
        self.model = model

    async def execute(
        self, call: ModelCall, context: RunContext
    ) -> Result[ModelCallResponse, ModelFailure]:
        """Send the prompt once."""
        prompt = folded(call.prompt) if call.prompt.folds_system else call.prompt
        outcome = await self.model.complete(prompt, context.delta_sink)
        if not isinstance(outcome, Success):
            checked_result(self.model.complete, outcome)
            return outcome.lash(lambda failure: Failure(_of_forced_call(call.prompt, failure)))
        response = outcome.unwrap()
        text = response.message.content
        if response.completion_instruction is None and text and may_instruct(text):
            instruction = instruction_in(text, besides=_declared(call.prompt))
            if instruction is not None:
                return Success(evolve(response, completion_instruction=instruction))
        return outcome


def folded(prompt: Prompt) -> Prompt:
    """The prompt without system messages: their text begins the first message of the user."""
    is_system = [each.role is MessageRole.SYSTEM for each in prompt.messages]
    told = [each.content for each in prompt.messages if each.role is MessageRole.SYSTEM]
    others = [each for each, is_told in zip(prompt.messages, is_system, strict=True) if not is_told]
    text = "\n\n".join(filter(None, told))
    if not text:
        return prompt
    if others and others[0].role is MessageRole.USER:
        said = others.pop(0)
        first = evolve(said, content=f"{text}\n\n{said.content or ''}")
    else:
        first = user(text)
    return evolve(prompt, messages=(first, *others))


def _of_forced_call(prompt: Prompt, failure: ModelFailure) -> ModelFailure:
    """The failure; where a call was to be forced and none had begun before the cut, named so."""
    request = prompt.output_request
    is_forced = request is not None and request.mode is OutputMode.TOOLS
    if not is_forced or failure.code != OUTPUT_TRUNCATED or failure.has_begun_call:
        return failure
    return evolve(failure, code="no-tool-call", text=None)


def _declared(prompt: Prompt) -> Collection[str]:
    """Fields of the declared output: they are data, whatever they are called."""
    if prompt.instructions is None:
        return ()
    properties = prompt.instructions.json_schema().get("properties")
    return tuple(properties) if isinstance(properties, Mapping) else ()


# --- completion instructions in the text of an answer --------------------------------------------


_FLAGS = ("is_complete", "is_more_calls_needed", "is_non_recoverable")
_TEXTS = ("next_step_id", "failure_reason")


def may_instruct(text: str) -> bool:
    """Whether the text may be an object with a flag."""
    has_flag = "omplete" in text or "ecoverable" in text or "eeded" in text
    return has_flag and text.lstrip().startswith("{")


def instruction_in(text: str, *, besides: Collection[str] = ()) -> StepCompletionInstruction | None:
    """The instruction that a whole-text JSON object gives: at least one of its flags, as a bool.

    Both spellings count (`is_complete`, `isComplete`). JSON inside prose does not: what a model
    quotes is not what it says.

    Args:
        besides: Keys that mean something else here.
    """
    if not may_instruct(text):
        return None
    try:
        parsed = json.loads(text.strip())
    except (ValueError, RecursionError):
        return None
    if not isinstance(parsed, dict):
        return None
    values = {snake_case(key): value for key, value in parsed.items() if key not in besides}
    flags = {name: values[name] for name in _FLAGS if isinstance(values.get(name), bool)}
    texts = {name: values[name] for name in _TEXTS if isinstance(values.get(name), str)}
    return StepCompletionInstruction(**flags, **texts) if flags else None
