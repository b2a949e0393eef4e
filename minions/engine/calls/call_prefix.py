"""What a call has to do with a server's cache of prompts: who writes the beginning that several
share, what it can expect to be read for less, and where a prompt departs from an earlier one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from minions.contracts.calls import ChatModel, ModelCall, ModelCallResponse, Prompt
from minions.contracts.flow import Priority
from minions.contracts.messages import Message, MessageRole
from minions.contracts.prompt_caches import PromptCache
from minions.contracts.tool_search import found_names, found_tools
from minions.contracts.tools import ToolSpec
from minions.data.json_values import JsonValue
from minions.engine.calls.call_records import model_place
from minions.engine.calls.model_executors import priority_of
from minions.engine.compile.prompt_sections import message_text, schema_text, tool_text
from minions.engine.context.step_view import StepView
from minions.engine.services.prompt_prefixes import (
    TOOL_PART,
    EnteredPrompt,
    PromptPrefixes,
    PromptSegment,
)

if TYPE_CHECKING:
    from minions.engine.context.run_progress import RunPrefix

_FORM: Final = "form of the answer"


class CallPrefix(Struct, kw_only=True):
    """The beginning of one call's prompt."""

    cache: PromptCache
    entered: EnteredPrompt | None = None
    """What its prompt has in common with earlier ones; None: it continues a step's conversation."""
    before: ModelCall | None = None
    """The call of the step before it, whose prompt and answer this one continues; None: there is
    none that the server still has.
    """
    differs: str | None = None
    """Where it does not continue it, in words; None: it does."""
    waited_s: float = 0.0
    """Seconds that it waited for another call to write what both begin with."""
    is_answered: bool = False
    stored: RunPrefix | None = None
    """The beginning that its provider keeps under a name; None: the whole prompt is sent."""

    @classmethod
    async def of(
        cls,
        call: ModelCall,
        model: ChatModel,
        cache: PromptCache,
        view: StepView,
        made: Sequence[ModelCall],
    ) -> CallPrefix:
        """What is known before the call is made.

        Args:
            cache: That of the model.
            made: The calls of the step before it.
        """
        services = view.context.scope.services
        if made and made[-1].tier == call.tier:  # else another server was asked
            before = made[-1]
            differs = _difference(call, before, cache, model)
            ended, now = before.completed_at, services.clock.now()
            is_late = ended is not None and (now - ended).total_seconds() > cache.lifetime_s
            return cls(cache=cache, before=None if is_late else before, differs=differs)
        begin = services.clock.monotonic()
        place = model_place(model)
        prefixes = services.prefixes.get(place)
        if prefixes is None:
            prefixes = services.prefixes[place] = PromptPrefixes(services.clock, services.sleep)
        entered = await prefixes.enter(
            [*_segments(call, cache, model)],
            cache,
            view.address,
            longest_wait_s=_longest_wait_s(cache, view),
        )
        waited_s = services.clock.monotonic() - begin
        return cls(cache=cache, entered=entered, waited_s=waited_s)

    def take_answer(self, response: ModelCallResponse) -> Mapping[str, JsonValue]:
        """What is recorded of it with the answer: tokens that were to be expected from the cache,
        that were stored in it, and where the prompt departs from which step's; empty: nothing.
        """
        self.is_answered = True
        usage = response.usage
        if self.entered is not None:
            return self.entered.facts(self.cache, usage)
        found: dict[str, JsonValue] = {}
        before = self.before
        if before is not None and before.response is not None and self.differs is None:
            expected = self.cache.kept_of(before.response.usage.input_tokens)
            if expected:
                found["expected_tokens"] = min(expected, usage.input_tokens)
        if usage.cache_write_tokens:
            found["written_tokens"] = usage.cache_write_tokens
        if self.differs is not None:
            found["differs"] = self.differs
        return found

    def end(self) -> None:
        """Let calls begin that wait for it."""
        if self.entered is not None:
            self.entered.end(is_answered=self.is_answered)


_LONGEST_WAIT_S: Final = 60.0
"""What an answer rarely takes: whoever waits longer saves too little."""
_WAIT_SHARE: Final = 0.25
"""The part of its time that a step may wait."""


def _longest_wait_s(cache: PromptCache, view: StepView) -> float:
    """For how many seconds a call may wait for another one to write what both begin with."""
    if not cache.asks_one_first or priority_of(view) is Priority.INTERACTIVE:
        return 0.0
    if view.context.scope.services.patience is not None:
        return 0.0  # the first answer may come tomorrow, with those of the others
    left_s = view.time_left_s
    return _LONGEST_WAIT_S if left_s is None else min(_LONGEST_WAIT_S, left_s * _WAIT_SHARE)


def _first_tools(prompt: Prompt, model: ChatModel) -> tuple[ToolSpec, ...]:
    """The tools with which the prompt begins: what was found is read later, where a server can."""
    if not prompt.searches_tools or not model.capabilities.defers_tools:
        return prompt.tools
    found = found_tools(prompt)
    return tuple([tool for tool in prompt.tools if tool.name not in found])


def _segments(call: ModelCall, cache: PromptCache, model: ChatModel) -> Iterator[PromptSegment]:
    """The parts of a step's first prompt, in the order in which servers read them."""
    prompt = call.prompt
    form, request = prompt.instructions, prompt.output_request
    if cache.includes_form and request is not None and form is not None:
        yield PromptSegment(_FORM, f"{request.mode} {schema_text(form)}")
    first = _first_tools(prompt, model)
    later: dict[str, ToolSpec] = {}
    if first is not prompt.tools:
        names = {tool.name for tool in first}
        later = {tool.name: tool for tool in prompt.tools if tool.name not in names}
    for tool in first:
        yield PromptSegment(TOOL_PART, tool_text(tool), tool.name)
    history = call.layout.history
    for message in prompt.messages:
        text = message_text(message)
        if message.attachments:
            text = "".join((text, *(each.digest for each in message.attachments)))
        if later:
            loaded = [later.pop(name) for name in found_names(message) if name in later]
            text = "".join((text, *map(tool_text, loaded)))
        yield PromptSegment(_name_of(message, is_history=message in history), text)


def _name_of(message: Message, *, is_history: bool) -> str:
    if message.role is MessageRole.SYSTEM:
        return "system text"
    if message.is_context:
        return "context"
    if message.is_example:
        return "examples"
    if is_history:
        return "history"
    return "goal" if message.role is MessageRole.GOAL else "message"


def _difference(
    call: ModelCall, before: ModelCall, cache: PromptCache, model: ChatModel
) -> str | None:
    """Why a prompt does not continue the one before it; None: it does."""
    new, old = call.prompt, before.prompt
    if new.tools != old.tools:
        now, were = _first_tools(new, model), _first_tools(old, model)
        count = sum(1 for one, other in zip(now, were, strict=False) if one == other)
        if count < len(were):
            return f"{TOOL_PART}: without {were[count].name}"
        if count < len(now):
            return f"{TOOL_PART}: with {now[count].name}"
    if cache.includes_form and (new.output_request is None) is not (old.output_request is None):
        return _FORM
    kept = len(old.messages)
    if len(new.messages) < kept or new.messages[kept - 1] is not old.messages[kept - 1]:
        return "history: earlier messages were left out"
    return None
