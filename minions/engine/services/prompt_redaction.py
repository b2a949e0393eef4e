"""Replaces personal data in the prompts of one run by placeholders, before a request leaves.

The placeholder of a value is a hash under the run's id, which no provider gets: it is the same in
every call, step and execution of the run, and nothing has to be remembered for that.
"""

from __future__ import annotations

import hmac
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, TypeVar

from attrs import evolve
from returns.result import Result, Success

from minions.contracts.calls import ModelCall, ModelCallResponse, ModelFailure, Prompt
from minions.contracts.context import ModelCallExecutor, ModelCallExecutorFactory, RunContext
from minions.contracts.instructions import OutputInstructions
from minions.contracts.messages import Message, ToolCallRequest
from minions.contracts.redaction import Redacted, Redactor
from minions.contracts.tools import ToolSpec
from minions.data.errors import UsageError, did_you_mean
from minions.data.json_values import JsonValue, as_object

J = TypeVar("J", bound=JsonValue)

_PLACEHOLDER: Final = re.compile(r"<[a-z][a-z0-9_-]{0,30}-[0-9a-f]{8}>")
_MOST_TEXTS: Final = 4_096
"""Texts whose replacement is remembered: a conversation sends each of its messages many times."""


class RunRedaction:
    """The redaction of one run."""

    def __init__(self, redactors: Mapping[str, Redactor], run_id: str, *, restores: bool) -> None:
        """Nothing is looked at yet.

        Args:
            redactors: By kind; where two find the same, the first one counts.
            restores: Whether answers get the values back in place of their placeholders.
        """
        self.kinds = tuple(redactors)
        """What is replaced, in order."""
        self._redactors = redactors
        self._key = run_id.encode("utf-8", "surrogatepass")
        self._restores = restores
        self._values: dict[str, str] = {}
        """By placeholder, what this process replaced."""
        self._known: dict[str, tuple[str, Mapping[str, int]]] = {}

    def around(self, factory: ModelCallExecutorFactory) -> ModelCallExecutorFactory:
        """The factory with executors that are given redacted prompts, whoever wrote them."""
        return lambda _call, _context: _RedactingExecutor(self, factory)

    def redacted(self, prompt: Prompt) -> tuple[Prompt, tuple[Redacted, ...]]:
        """The prompt with placeholders, and how many of which kind stand where; the prompt itself
        if nothing was found.
        """
        found = _Found(self)
        messages = [found.message(each) for each in prompt.messages]
        tools = [found.tool(each) for each in prompt.tools]
        instructions = found.instructions(prompt.instructions)
        request = prompt.output_request
        if request is not None:
            unbounded = request.unbounded
            request = evolve(
                request,
                body=as_object(found.value("output", dict(request.body))),
                messages=tuple(found.message(each) for each in request.messages),
                unbounded=None
                if unbounded is None
                else as_object(found.value("output", dict(unbounded))),
            )
        options = evolve(
            prompt.options,
            stop=tuple(found.text("options", each) for each in prompt.options.stop),
            extra=as_object(found.value("options", dict(prompt.options.extra))),
        )
        if not found.counts:
            return prompt, ()
        changed = evolve(
            prompt,
            messages=messages,
            tools=tools,
            instructions=instructions,
            output_request=request,
            options=options,
        )
        return changed, tuple(
            Redacted(kind=kind, where=where, count=count)
            for (where, kind), count in found.counts.items()
        )

    def answered(
        self, response: ModelCallResponse, redacted: tuple[Redacted, ...]
    ) -> ModelCallResponse:
        """The answer with what was replaced in its prompt, and with values where they are put
        back.
        """
        response = evolve(response, redacted=redacted) if redacted else response
        if not self._restores or not self._values:
            return response
        message = response.message
        text = message.content
        calls = tuple(
            evolve(call, arguments=self._restore_values(call.arguments, is_json=True))
            for call in message.tool_calls
        )
        if text is not None:
            text = self._restore_values(text, is_json=text.lstrip()[:1] in ("{", "["))
        return evolve(response, message=evolve(message, content=text, tool_calls=calls))

    def replaced(self, text: str) -> tuple[str, Mapping[str, int]]:
        """The text with placeholders, and how many of each kind."""
        known = self._known.get(text)
        if known is None:
            if len(self._known) >= _MOST_TEXTS:
                self._known.clear()
            known = self._known[text] = self._replace(text)
        return known

    def _replace(self, text: str) -> tuple[str, Mapping[str, int]]:
        findings = [
            (finding.start, order, finding.end, kind)
            for order, (kind, redactor) in enumerate(self._redactors.items())
            for finding in redactor.find(text)
        ]
        parts, counts, behind = list[str](), Counter[str](), 0
        for start, _, end, kind in sorted(findings):
            if start < behind:
                continue
            parts += (text[behind:start], self._placeholder(kind, text[start:end]))
            counts[kind] += 1
            behind = end
        return ("".join((*parts, text[behind:])), counts) if counts else (text, counts)

    def _placeholder(self, kind: str, value: str) -> str:
        data = f"{kind}\0{value}".encode("utf-8", "surrogatepass")
        digest = hmac.digest(self._key, data, "sha256").hex()[:8]
        placeholder = f"<{kind}-{digest}>"
        self._values[placeholder] = value
        return placeholder

    def _restore_values(self, text: str, *, is_json: bool) -> str:
        def value_of(found: re.Match[str]) -> str:
            value = self._values.get(found[0])
            if value is None:
                return found[0]
            return json.dumps(value, ensure_ascii=False)[1:-1] if is_json else value

        return _PLACEHOLDER.sub(value_of, text)


class _RedactingExecutor(ModelCallExecutor):
    """Carries out a call by another executor, which sees placeholders only."""

    def __init__(self, redaction: RunRedaction, factory: ModelCallExecutorFactory) -> None:
        self._redaction = redaction
        self._factory = factory

    async def execute(
        self, call: ModelCall, context: RunContext
    ) -> Result[ModelCallResponse, ModelFailure]:
        """Redact the prompt, and put back values as the recipe says."""
        prompt, redacted = self._redaction.redacted(call.prompt)
        sent = evolve(call, prompt=prompt)
        outcome = await self._factory(sent, context).execute(sent, context)
        if not isinstance(outcome, Success):  # an application's own executor may return anything
            return outcome
        return Success(self._redaction.answered(outcome.unwrap(), redacted))


class _Found:
    """What was replaced in one prompt."""

    def __init__(self, redaction: RunRedaction) -> None:
        self._redaction = redaction
        self.counts: Counter[tuple[str, str]] = Counter()

    def text(self, where: str, text: str) -> str:
        replaced, counts = self._redaction.replaced(text)
        for kind, count in counts.items():
            self.counts[where, kind] += count
        return replaced

    def value(self, where: str, value: JsonValue) -> JsonValue:
        """The value with all its texts replaced, names of members too."""
        if isinstance(value, str):
            return self.text(where, value)
        if isinstance(value, Mapping):
            return {self.text(where, name): self.value(where, each) for name, each in value.items()}
        if isinstance(value, Sequence):
            return [self.value(where, each) for each in value]
        return value

    def message(self, message: Message) -> Message:
        where = "user" if message.role._value_ == "goal" else message.role._value_
        content = None if message.content is None else self.text(where, message.content)
        calls = tuple(self._call(where, each) for each in message.tool_calls)
        attachments = tuple(
            evolve(each, data=self._data(where, each.data))
            if each.data is not None and each.media_type.startswith("text/")
            else each
            for each in message.attachments
        )
        if (content, calls) == (message.content, message.tool_calls) and all(
            new.data is old.data for new, old in zip(attachments, message.attachments, strict=True)
        ):
            return message
        return evolve(message, content=content, tool_calls=calls, attachments=attachments)

    def _call(self, where: str, call: ToolCallRequest) -> ToolCallRequest:
        arguments = self.text(where, call.arguments)
        return call if arguments == call.arguments else evolve(call, arguments=arguments)

    def _data(self, where: str, data: bytes) -> bytes:
        text = data.decode("utf-8", "surrogateescape")
        replaced = self.text(where, text)
        return data if replaced == text else replaced.encode("utf-8", "surrogateescape")

    def tool(self, spec: ToolSpec) -> ToolSpec:
        description = self.text("tools", spec.description)
        parameters = as_object(self.value("tools", dict(spec.parameters)))
        if (description, parameters) == (spec.description, spec.parameters):
            return spec
        return evolve(spec, description=description, parameters=parameters)

    def instructions(
        self, instructions: OutputInstructions[object] | None
    ) -> OutputInstructions[object] | None:
        if instructions is None:
            return None
        texts = tuple(self.text("output", each) for each in instructions.instructions)
        schema = instructions.json_schema()
        replaced = as_object(self.value("output", dict(schema)))
        if (texts, replaced) == (instructions.instructions, schema):
            return instructions
        return evolve(instructions, instructions=texts, schema=replaced)


def run_redaction(
    kinds: Sequence[str], redactors: Mapping[str, Redactor], run_id: str, *, restores: bool
) -> RunRedaction | None:
    """The redaction of a run; None: nothing is to be redacted.

    Raises:
        UsageError: `unknown-redactor`; nothing finds such a kind here.
    """
    chosen = dict[str, Redactor]()
    for kind in kinds:
        redactor = redactors.get(kind)
        if redactor is None:
            known = tuple(redactors)
            raise UsageError(
                f"Nothing here finds '{kind}', which is to be redacted.{did_you_mean(kind, known)} "
                f"Known kinds are: {', '.join(known) or 'none'}. An operator adds kinds by "
                "[redaction.patterns], or by Extensions(redactors=…).",
                code="unknown-redactor",
            )
        chosen[kind] = redactor
    return RunRedaction(chosen, run_id, restores=restores) if chosen else None
