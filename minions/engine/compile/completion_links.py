"""The links of the default completion chain, one rule each, in the order of asking."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from attrs import field, frozen

from minions.contracts.completion import CompletionLink, StepCompletionChain
from minions.contracts.executions import Completion, CompletionMode, StepExecution, Verdict
from minions.data.errors import MAX_MODEL_CALLS
from minions.data.field_repr import FieldsRepr
from minions.data.patterns import search

SIGNAL_WORDS: Final = (
    "Work in as many turns as you need. When the goal is reached, say so with the line "
    "`status: done`. If it can never be reached, answer with the JSON object "
    '{"is_non_recoverable": true, "failure_reason": "…"} and nothing else.'
)
"""What a step in `signal` mode is told."""
FINAL_ANSWER: Final = "final_Answer"
"""A call of this tool ends the step, also if no such tool exists (name from the Java guide)."""

_SAYS_DONE: Final = re.compile(
    r"\b(?:step_status|status|next_step)[\"']?\s*[:=]\s*[\"']?(?:completed|complete|done|success)\b",
    re.IGNORECASE,
)
"""A key, `:` or `=`, and a word for done, in any case. Source: pattern link of the Java guide."""


@frozen
class InstructionLink(FieldsRepr, CompletionLink):
    """Follows the model's own instruction: complete, or failed and not recoverable."""

    def check(self, execution: StepExecution[object]) -> Completion:
        """Looks at the newest answer only."""
        calls = execution.model_calls
        response = calls[-1].response if calls else None
        instruction = response.completion_instruction if response else None
        if instruction is None:
            return Completion.UNDECIDED
        if instruction.is_non_recoverable:
            reason = instruction.failure_reason or "The model gave the step up, without a reason."
            return Completion.failed(reason, code="non-recoverable")
        if not instruction.is_complete:
            return Completion.UNDECIDED
        done = Completion.complete("the model's instruction says complete")
        return _with_wish(done, instruction.next_step_id)


def _with_wish(completion: Completion, next_step_id: str | None) -> Completion:
    return Completion(
        completion.verdict, completion.reason, completion.evidence, next_step_id=next_step_id
    )


@frozen
class PatternLink(FieldsRepr, CompletionLink):
    """Completes on text that means done: `status: done` and the like, or a pattern of the step."""

    def check(self, execution: StepExecution[object]) -> Completion:
        """Looks at the newest text. The built-in patterns count in mode `signal` only."""
        is_signal = execution.completion_mode is CompletionMode.SIGNAL
        if not is_signal and not execution.completion_patterns:
            return Completion.UNDECIDED
        text = execution.last_text
        if not text:
            return Completion.UNDECIDED
        for pattern in execution.completion_patterns:
            try:
                matched = search(pattern, text)
            except TimeoutError:
                return Completion.failed(
                    f"The completion pattern {pattern!r} took too long on the model's text.",
                    code="slow-pattern",
                )
            if matched is not None:
                return Completion.complete("a pattern of the step matched", evidence=matched)
        if is_signal and (found := _SAYS_DONE.search(text)):
            return Completion.complete("the text says it is done", evidence=found[0])
        return Completion.UNDECIDED


@frozen
class ToolOutcomeLink(FieldsRepr, CompletionLink):
    """Completes on a call of `final_Answer`, or a tool result with `step_complete: true`."""

    def check(self, execution: StepExecution[object]) -> Completion:
        """Looks at the newest batch of tool calls."""
        if not execution.tool_calls:
            return Completion.UNDECIDED
        for call in execution.last_tool_calls:
            if call.name == FINAL_ANSWER and call.failure is None:
                return Completion.complete(f"{FINAL_ANSWER} was called", evidence=call.key)
            value = call.response.value if call.response else None
            if isinstance(value, Mapping) and value.get("step_complete") is True:
                return Completion.complete(f"{call.name} says step_complete", evidence=call.key)
        return Completion.UNDECIDED


@frozen
class StructuredOutputLink(FieldsRepr, CompletionLink):
    """Completes on an answer without tool calls where an output is declared.

    The validation of the output then decides.
    """

    def check(self, execution: StepExecution[object]) -> Completion:
        """Looks at the newest answer; COMPLETE only starts the validation."""
        if not execution.declares_output or execution.completion_mode is CompletionMode.SIGNAL:
            return Completion.UNDECIDED
        return _on_plain_answer(execution, "an answer where output is declared")


@frozen
class TextLink(FieldsRepr, CompletionLink):
    """Completes on an answer without tool calls, in completion mode `text`."""

    def check(self, execution: StepExecution[object]) -> Completion:
        """Looks at the newest answer; undecided in every other mode."""
        if execution.completion_mode is not CompletionMode.TEXT:
            return Completion.UNDECIDED
        return _on_plain_answer(execution, "an answer without tool calls")


def _on_plain_answer(execution: StepExecution[object], reason: str) -> Completion:
    calls = execution.model_calls
    response = calls[-1].response if calls else None
    if response is None or response.message.tool_calls:
        return Completion.UNDECIDED
    instruction = response.completion_instruction
    if instruction is not None and instruction.is_more_calls_needed:
        return Completion.UNDECIDED
    return Completion.complete(reason)


@frozen
class ArtifactsLink(FieldsRepr, CompletionLink):
    """Completes on a plain answer that holds the declared artifacts, and fails one that does not.

    Its evidence are the artifacts.
    """

    declared: tuple[str, ...]

    def check(self, execution: StepExecution[object]) -> Completion:
        """Looks at the newest answer; undecided while it calls tools."""
        if _on_plain_answer(execution, "").verdict is Verdict.UNDECIDED:
            return Completion.UNDECIDED
        from minions.recipe.artifacts import artifacts_of, missing_artifacts

        found = artifacts_of(execution.last_text or "")
        missing = missing_artifacts(self.declared, found)
        if not missing:
            reason = "the answer holds the declared artifacts"
            return Completion.complete(reason, evidence=", ".join(self.declared))
        was_cut = " The answer was cut off." if found["is_cut"] else ""
        forms = " ".join(dict.fromkeys(_FORMS.get(each, _FILE_FORM) for each in missing))
        return Completion.failed(
            f"The answer lacks {', '.join(missing)}.{was_cut} {forms}", code="missing-artifacts"
        )


_FILE_FORM: Final = "Give each file in a fenced code block, its path alone on the line before."
_FORMS: Final = {
    "files": _FILE_FORM,
    "code_blocks": "Give code in fenced blocks.",
    "edits": (
        "Give each change as a line with the path, then `<<<<<<< SEARCH`, the old lines, "
        "`=======`, the new lines, `>>>>>>> REPLACE`."
    ),
    "config": "Give the configuration in a fenced block of JSON, YAML or TOML.",
    "validation": "End with one line `VERDICT: PASS` or `VERDICT: FAIL`.",
}


@frozen
class CallBudgetLink(FieldsRepr, CompletionLink):
    """Fails a step that used all its model calls; it follows all links that may complete one."""

    def check(self, execution: StepExecution[object]) -> Completion:
        """Counts the model calls; the last permitted one may still complete the step."""
        if len(execution.model_calls) < execution.model_call_limit:
            return Completion.UNDECIDED
        return budget_spent(execution)


def budget_spent(execution: StepExecution[object]) -> Completion:
    """The failure of a step that has no model call left."""
    return Completion.failed(
        f"Step '{execution.step_id}' made {execution.model_call_limit} model calls, its limit "
        "max_model_calls_per_step, and was not complete. Raise the limit, or say more clearly "
        "when the step is done.",
        code=MAX_MODEL_CALLS,
    )


@frozen
class FallbackLink(FieldsRepr, CompletionLink):
    """The end of a chain: fails a step without model calls left, as `CallBudgetLink` does."""

    def check(self, execution: StepExecution[object]) -> Completion:
        """Counts the model calls; undecided while some are left."""
        if len(execution.model_calls) < execution.model_call_limit:
            return Completion.UNDECIDED
        return budget_spent(execution)


def _default_links() -> tuple[CompletionLink, ...]:
    return (
        InstructionLink(),
        PatternLink(),
        ToolOutcomeLink(),
        StructuredOutputLink(),
        TextLink(),
        CallBudgetLink(),
        FallbackLink(),
    )


@frozen
class DefaultStepCompletionChain(StepCompletionChain):
    """Instruction, pattern, tool outcome, structured output, text, call budget, fallback."""

    links: tuple[CompletionLink, ...] = field(factory=_default_links, init=False)
