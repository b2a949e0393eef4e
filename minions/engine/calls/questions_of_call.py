"""Questions that a tool call asks: recorded as those of `ask` steps.

Most tools ask a person. A tool that the caller of the run brought asks the caller, for its result.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TypeAlias

from attrs import evolve, field, frozen

from minions.contracts.decision_types import Answer, Question, Reject
from minions.contracts.journal.facts import DecisionWaiting
from minions.contracts.journal.start_note import CallerTool
from minions.contracts.messages import ToolCallRequest
from minions.contracts.tools import CALLER_TOOLS, DECLINED, Tool, ToolQuestions, ToolScope, ToolSpec
from minions.data.errors import (
    NEEDS_DECISION,
    FailureInfo,
    JournalError,
    MinionsError,
    StepFailedError,
    ToolError,
)
from minions.data.field_repr import FieldsRepr
from minions.data.json_values import JsonValue, dumps
from minions.data.schema import JsonSchema
from minions.engine.calls.pending_decisions import answer_to
from minions.engine.context.step_view import StepView
from minions.engine.history.keys import question_key

Reply: TypeAlias = Answer | Reject
"""What a person says to a question: `Reject` declines to answer."""


@frozen
class ToolOfCaller(FieldsRepr, Tool):
    """A tool that the caller of the run carries out: each call waits for its result."""

    tool: CallerTool
    spec: ToolSpec = field(init=False, eq=False, repr=False)

    @spec.default
    def _spec(self) -> ToolSpec:
        return evolve(
            CALLER_TOOLS,
            name=self.tool.name,
            description=self.tool.description,
            parameters=self.tool.parameters,
            # Else the caller would choose a toolset whose private data may be given to it.
            origin=f"caller's {self.tool.name}",
        )

    async def invoke(self, arguments: Mapping[str, JsonValue], scope: ToolScope) -> object:
        """The text that the caller gave as the result.

        Raises:
            ToolError: There is none yet (`needs-decision`), or none is given (`question-declined`).
        """
        assert scope.questions is not None  # noqa: S101  # a run that was begun by a caller has them
        return await scope.questions.ask(f"What does the caller's tool '{self.tool.name}' give?")


async def pending_replies(view: StepView, call: str) -> dict[str, Reply]:
    """The replies, by the keys of their questions, that a call waits for since an earlier execution
    of the run. Its tool is not called before all of them are there.

    Args:
        call: The call's key.
    Raises:
        StepFailedError: One is still pending (`needs-decision`), or came too late (`ask-timeout`).
    """
    replay = view.context.scope.replay
    pending = replay.pending_questions(call) if replay is not None else ()
    return {key: await _reply_to(view, _repeated(view, key, fact)) for key, fact in pending}


async def _reply_to(view: StepView, question: Question) -> Reply:
    """What a person says.

    Raises:
        StepFailedError: As for `answer_to`, but where a person declined to answer.
    """
    try:
        return Answer.of(await answer_to(view, question))
    except StepFailedError as error:
        if error.failure.code != DECLINED:
            raise
        return Reject(reason=error.failure.message)


def _repeated(view: StepView, key: str, fact: DecisionWaiting) -> Question:
    return Question(
        key=key,
        run_id=view.run_id,
        step_id=fact.step_id,
        text=fact.question or "",
        form=fact.form,
        can_decline=True,
        timeout_s=fact.timeout_s,
        tool=fact.tool,
        arguments=fact.arguments,
    )


class QuestionsOfCall(ToolQuestions):
    """The questions of one tool call, which knows what the call waits for."""

    def __init__(
        self, view: StepView, key: str, request: ToolCallRequest, replies: Mapping[str, Reply]
    ) -> None:
        """Nothing is asked yet.

        Args:
            key: Of the tool call: its questions are found again under it.
            request: The call, which a tool of the run's caller asks that caller to make.
            replies: What was said already, by the keys of the questions.
        """
        scope = view.context.scope
        brought = scope.caller_tools
        is_of_caller = brought and isinstance(view.tools.find(request.name), ToolOfCaller)
        self._request = request if is_of_caller else None
        self._view = view
        self._rights = scope.rights
        self._key = key
        self._replies = dict(replies)
        self._count = 0
        self._blocked_by: FailureInfo | None = None
        self._journal_error: JournalError | None = None

    def begin_attempt(self) -> None:
        """Count from the first question again: each attempt has the answers of those before it."""
        self._count = 0

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
        key = question_key(self._key, f"{self._count}-{about}")
        question = Question(
            key=key,
            run_id=self._view.run_id,
            step_id=self._view.address,
            text=text,
            form=form,
            can_decline=True,
        )
        if self._request is not None:
            question = evolve(
                question,
                timeout_s=self._rights.approval_timeout_s,
                tool=self._request.name,
                arguments=self._request.arguments,
            )
        try:
            reply = self._replies.get(key) or await _reply_to(self._view, question)
        except JournalError as error:
            self._journal_error = error
            raise ToolError(error.message, code=error.error_code) from error
        except StepFailedError as error:
            if error.failure.code == NEEDS_DECISION:
                self._blocked_by = error.failure
            raise ToolError(error.failure.message, code=error.failure.code) from error
        except MinionsError as error:
            raise ToolError(error.message, code=error.error_code) from error
        self._replies[key] = reply
        if isinstance(reply, Answer):
            return reply.value
        raise ToolError(f"{reply.reason}", code=DECLINED)
