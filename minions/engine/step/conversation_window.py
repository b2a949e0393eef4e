"""The earlier messages that a prompt holds: a conversation that outgrows its window is cut.

What is left out depends on the messages alone, so that a resumed run sends what it sent before. The
cut moves in blocks of a quarter of the window: between two of them each prompt begins like the one
before it, which servers keep in their cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Final, TypeAlias

from attrs import evolve, frozen
from returns.pipeline import is_successful
from returns.result import Failure, Result, Success

from minions.contracts.calls import ModelCall, ModelOptions, Prompt, PromptLayout, context_exceeded
from minions.contracts.context import ModelCallExecutorFactory
from minions.contracts.instructions import HistoryStrategy, HistoryWindow
from minions.contracts.messages import Message, MessageRole, border_words, system, user
from minions.data.errors import FailureInfo
from minions.engine.calls.model_calls import ModelCalls
from minions.engine.calls.trace import StepTrace
from minions.engine.compile.completion_links import budget_spent
from minions.engine.compile.prompt_sections import (
    CHARACTERS_PER_TOKEN,
    message_text,
    prompt_characters,
)
from minions.engine.context.run_progress import RunProgress
from minions.engine.context.step_view import StepView
from minions.engine.history.conversation import SUMMARY, ConversationSummary

_PARTS: Final = 4
"""The cut moves by a quarter of the window, and a summary has at most a quarter of it."""
_ASKED: Final = (
    "Write notes of the conversation in the tags, for whoever continues it: facts, names, numbers, "
    "decisions, promises and open questions. At most {} words, no introduction."
)
_TOLD: Final = "Notes of the conversation so far:\n"
_STARTS: Final = (MessageRole.USER, MessageRole.GOAL)
"""The roles that begin a turn: a tool's result is never sent without its call."""

Fitted: TypeAlias = tuple[Prompt, PromptLayout]
"""A prompt and its layout."""


def cut_of(messages: Sequence[Message], excess: int, block: int) -> int | None:
    """How many of the oldest messages are left out; None: all of them are too few.

    The rest begins with a turn, or is empty. Where it leaves something, more is left out than
    needed, up to the next multiple of `block`.

    Args:
        excess: The characters that have to go.
        block: In characters.
    """
    if excess <= 0:
        return 0
    gone = [0, *accumulate(len(message_text(each)) for each in messages)]
    if gone[-1] < excess:
        return None
    turns = [at for at, each in enumerate(messages) if each.role in _STARTS and gone[at] >= excess]
    wanted = -(-excess // block) * block
    return next((at for at in turns if gone[at] >= wanted), turns[-1] if turns else len(messages))


@frozen(kw_only=True)
class ConversationWindow:
    """Cuts the prompts of one step to its window."""

    window: HistoryWindow
    view: StepView
    progress: RunProgress
    """That of the run, which has the newest summary."""
    trace: StepTrace
    factory: ModelCallExecutorFactory
    options: ModelOptions
    first: int
    """Index in the prompt of the first earlier message."""
    count: int
    """How many earlier messages there are."""
    stored: int
    """How many of these the session holds."""

    async def fit(self, prompt: Prompt, layout: PromptLayout) -> Result[Fitted, FailureInfo]:
        """The prompt within the window.

        A failure is `context-exceeded`, where it does not fit without any earlier message, or that
        of the call for a summary.
        """
        if self.window.strategy is HistoryStrategy.DROP:
            cut = self._cut(prompt, reserved=0)
            if cut is None:
                return Failure(self._too_long(prompt))
            return Success(self._without(prompt, layout, cut))
        return await self._with_summary(prompt, layout)

    @property
    def _most(self) -> int:
        """The characters of the window."""
        return self.window.max_tokens * CHARACTERS_PER_TOKEN

    def _earlier(self, prompt: Prompt) -> tuple[Message, ...]:
        return prompt.messages[self.first : self.first + self.count]

    def _cut(self, prompt: Prompt, *, reserved: int) -> int | None:
        excess = prompt_characters(prompt) + reserved - self._most
        return cut_of(self._earlier(prompt), excess, max(1, self._most // _PARTS))

    def _without(self, prompt: Prompt, layout: PromptLayout, cut: int) -> Fitted:
        """Without the oldest messages."""
        if not cut:
            return prompt, layout
        rest = (*prompt.messages[: self.first], *prompt.messages[self.first + cut :])
        return evolve(prompt, messages=rest), evolve(layout, opening=layout.opening - cut)

    # --- summaries --------------------------------------------------------------------------

    async def _with_summary(
        self, prompt: Prompt, layout: PromptLayout
    ) -> Result[Fitted, FailureInfo]:
        summary = self._known_summary()
        shown = self._summarised(prompt, layout, summary)
        if prompt_characters(shown[0]) <= self._most:
            return Success(shown)
        # A summary may be as long as it is allowed to be, whatever the one before it was.
        cut = self._cut(prompt, reserved=self._most // _PARTS + self._frame(prompt))
        if cut is None:
            return Failure(self._too_long(prompt))
        while summary is None or summary.count < cut:
            asked = await self._ask(self._earlier(prompt), summary, cut)
            if not is_successful(asked):
                return Failure(asked.failure())
            summary = asked.unwrap()
            self.progress.note_summary(summary)
        return Success(self._summarised(prompt, layout, summary))

    def _known_summary(self) -> ConversationSummary | None:
        """The newest summary; None also where it is of the question that is asked again here."""
        summary = self.progress.summary
        return summary if summary is not None and summary.count <= self.count else None

    def _summarised(
        self, prompt: Prompt, layout: PromptLayout, summary: ConversationSummary | None
    ) -> Fitted:
        """The prompt with the summary in the place of the messages that it is of.

        It stands in the first message that is left: servers expect that turns alternate.
        """
        from minions.engine.compile.borders import as_text_data, border_of, within

        if summary is None:
            return prompt, layout
        shorter, moved = self._without(prompt, layout, summary.count)
        before, rest = shorter.messages[: self.first], shorter.messages[self.first :]
        texts = [each.content or "" for each in shorter.messages]
        border = border_of(self.view.border_seed, [*texts, summary.text])
        notes = f"{_TOLD}{within(border, as_text_data(summary.text))}"
        joins = bool(rest) and rest[0].role in _STARTS
        told = evolve(rest[0], content=f"{notes}\n\n{rest[0].content}") if joins else user(notes)
        messages = (*before, border_words(border), told, *rest[1 if joins else 0 :])
        return evolve(shorter, messages=messages), PromptLayout(
            opening=moved.opening + (1 if joins else 2), history=moved.history | {told}
        )

    def _frame(self, prompt: Prompt) -> int:
        """The characters of a summary's border and words."""
        empty = ConversationSummary(count=0, text="")
        layout = PromptLayout()
        framed, _ = self._summarised(prompt, layout, empty)
        return prompt_characters(framed) - prompt_characters(prompt)

    async def _ask(
        self, earlier: Sequence[Message], before: ConversationSummary | None, cut: int
    ) -> Result[ConversationSummary, FailureInfo]:
        """A summary of some more messages and of the summary before; a call of the model."""
        if self.trace.calls_left < 1:
            spent = budget_spent(self.trace.picture())
            return Failure(FailureInfo(code=spent.code, message=spent.reason))
        done = before.count if before is not None else 0
        end = self._piece(earlier, done, cut)
        is_start = end == len(earlier) or earlier[end].role in _STARTS
        call = ModelCall(
            key=self.trace.reserve_model_key(SUMMARY),
            prompt=self._prompt_of(earlier[done:end], before),
            phase=SUMMARY,
            summarises=end,
            is_of_session=is_start and end <= self.stored,
        )
        calls = ModelCalls(
            view=self.view.without_deltas(),
            factory=self.factory,
            trace=self.trace,
            keeps_cut_text=True,
        )
        answered = await calls.carry_out(call, remember=False)
        self.trace.add_model_call(answered)
        summary = ConversationSummary.of(answered)
        if summary is None:
            assert answered.failure is not None  # noqa: S101  # FAILED carries its failure
            return Failure(answered.failure.info())
        return Success(summary)

    def _piece(self, earlier: Sequence[Message], done: int, cut: int) -> int:
        """The end of the messages that one call summarises: half of the window, at least one."""
        size, end = 0, done
        while end < cut:
            size += len(message_text(earlier[end]))
            if size > self._most // 2 and end > done:
                break
            end += 1
        return end

    def _prompt_of(self, messages: Sequence[Message], before: ConversationSummary | None) -> Prompt:
        from minions.engine.compile.borders import as_data, as_text_data, border_of, within

        said = as_data([{each.role.value: self._bounded(message_text(each))} for each in messages])
        notes = as_text_data(before.text) if before is not None else ""
        border = border_of(self.view.border_seed, [said, notes])
        data = f"{_TOLD}{notes}\n\n{said}" if notes else said
        return Prompt(
            (
                system(_ASKED.format(max(10, self.window.max_tokens // (2 * _PARTS)))),
                border_words(border),
                user(within(border, data)),
            ),
            evolve(self.options, max_output_tokens=self._most_output(), stop=()),
        )

    def _most_output(self) -> int:
        own, most = self.options.max_output_tokens, max(1, self.window.max_tokens // _PARTS)
        return most if own is None else min(own, most)

    def _bounded(self, text: str) -> str:
        left_out = len(text) - self._most // 2
        if left_out <= 0:
            return text
        return f"{text[: self._most // 2]}… ({left_out} more characters left out)"

    def _too_long(self, prompt: Prompt) -> FailureInfo:
        tokens = -(-prompt_characters(prompt) // CHARACTERS_PER_TOKEN)
        info = context_exceeded(
            f"The prompt of step '{self.view.address}' has about {tokens} tokens, and more than "
            f"{self.window.max_tokens} (max_tokens of its `history`) without any earlier message."
        ).info()
        return evolve(info, suggestions=("raise max_tokens of `history`", *info.suggestions[1:]))
