"""Recipes that review tool calls before a person is asked. They reject, or pass to a person; what
goes wrong with one passes, too: nothing that a model says here approves a call.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Final

from minions.contracts.calls import ToolCall
from minions.contracts.journal.facts import RecordedReview
from minions.data.codec import encode
from minions.data.errors import JournalError, MinionsError
from minions.data.json_values import JsonValue, dumps, parse_json
from minions.engine.context.step_view import StepView
from minions.engine.services.event_loop import leading_error
from minions.recipe.model import AgentRecipe, Reviewer

_LONGEST_REASON: Final = 2_000


async def review_call(
    view: StepView, call: ToolCall, reviewer: Reviewer, words_of: Sequence[str]
) -> RecordedReview:
    """What the reviewer says of a call. Its steps are recorded under the step of the call, so that
    an execution that was cut off repeats none of them.

    Raises:
        JournalError: A fact of it could not be stored: the run must stop.
    """
    recipe = reviewer.bounded
    runner = view.context.recipe_runner
    if runner is None:
        return _failed(recipe.id, "only an AgentExecutor runs recipes")
    text = dumps([call.key.removeprefix(view.key), "review", reviewer.name, call.request.arguments])
    place = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()
    secrets = view.secrets
    given: dict[str, JsonValue] = {
        "tool": call.name,
        "arguments": secrets.disarm(_arguments(secrets.clean_text(call.request.arguments))),
        "words_of": list(words_of),
        "step": view.step_id,
    }
    inputs = {name: _fitting(recipe, name, given[name]) for name in given if name in recipe.inputs}
    try:
        result = await runner.run(
            recipe, inputs, view.context, view.address, f"{view.key}#{place}", lambda _: None
        )
    except Exception as error:  # whatever goes wrong: a person is asked
        leading = leading_error(error)
        if isinstance(leading, JournalError):
            raise leading from error
        said = leading.message if isinstance(leading, MinionsError) else f"{leading}"
        return _failed(recipe.id, said)
    if result.error is not None:
        return _failed(recipe.id, result.error.message)
    output = encode(result.output)
    verdict = output.get("verdict") if isinstance(output, Mapping) else None
    reason = output.get("reason") if isinstance(output, Mapping) else None
    told = f"{reason}"[:_LONGEST_REASON] if reason else None
    if verdict == "reject":
        return RecordedReview(recipe=recipe.id, verdict="reject", reason=told)
    if verdict == "pass":
        return RecordedReview(recipe=recipe.id, verdict="pass", reason=told)
    return _failed(recipe.id, "its output has no verdict")


def _failed(recipe: str, problem: str) -> RecordedReview:
    return RecordedReview(recipe=recipe, verdict="failed", reason=problem[:_LONGEST_REASON])


def _arguments(text: str) -> JsonValue:
    try:
        return parse_json(text or "{}")
    except ValueError:
        return text


def _fitting(recipe: AgentRecipe, name: str, value: JsonValue) -> JsonValue:
    """The value as the input takes it: arguments may also be a text."""
    is_text = recipe.inputs[name].schema.get("type") == "string"
    if is_text and not isinstance(value, str):
        return ", ".join(map(str, value)) if isinstance(value, list) else dumps(value)
    return value
