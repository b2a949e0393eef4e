"""Questions that a tool call asks a person: recorded as those of `ask` steps."""

from __future__ import annotations

import hashlib

from minions.contracts.decisions import Question
from minions.contracts.errors import (
    NEEDS_DECISION,
    FailureInfo,
    JournalError,
    MinionsError,
    StepFailedError,
    ToolError,
)
from minions.contracts.json_values import JsonValue, dumps
from minions.contracts.schema import JsonSchema
from minions.contracts.tool_questions import ToolQuestions
from minions.engine.calls.pending_decisions import answer_to, question_key
from minions.engine.context.step_view import StepView

__all__ = ["QuestionsOfCall"]


class QuestionsOfCall(ToolQuestions):
    """The questions of one tool call, which knows what the call waits for."""

    def __init__(self, view: StepView, key: str) -> None:
        """Nothing is asked yet.

        Args:
            key: Of the tool call: its questions are found again under it.
        """
        self._view = view
        self._key = key
        self._count = 0
        self._blocked_by: FailureInfo | None = None
        self._journal_error: JournalError | None = None

    def check(self) -> None:
        """Refuse to continue the step where a person has to answer first.

        Raises:
            JournalError: A question could not be stored: the run must stop.
            StepFailedError: The call waits for an answer.
        """
        if self._journal_error is not None:
            raise self._journal_error
        if self._blocked_by is not None:
            raise StepFailedError(self._blocked_by)

    async def ask(self, text: str, form: JsonSchema | None = None) -> JsonValue:
        """Ask under a key of the call, the question's number in it, and the question itself."""
        self._count += 1
        about = hashlib.blake2b(dumps([text, dict(form or {})]).encode(), digest_size=4).hexdigest()
        question = Question(
            key=question_key(self._key, f"{self._count}-{about}"),
            run_id=self._view.run_id,
            step_id=self._view.address,
            text=text,
            form=form,
        )
        try:
            return await answer_to(self._view, question)
        except JournalError as error:
            self._journal_error = error
            raise ToolError(error.message, code=error.error_code) from error
        except StepFailedError as error:
            if error.failure.code == NEEDS_DECISION:
                self._blocked_by = error.failure
            raise ToolError(error.failure.message, code=error.failure.code) from error
        except MinionsError as error:
            raise ToolError(error.message, code=error.error_code) from error
