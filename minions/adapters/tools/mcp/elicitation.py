"""Questions that a server asks a person in the middle of a call."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias, cast
from urllib.parse import urlsplit

from attrs import define, field

from minions.contracts.tool_servers import ToolServer
from minions.contracts.tools import DECLINED, ToolQuestions
from minions.data.errors import ToolError, words_of
from minions.data.json_values import JsonValue, as_object
from minions.data.patterns import match_beside_loop
from minions.data.schema import JsonSchema, check_schema
from minions.data.texts import one_line, printable_text

if TYPE_CHECKING:
    from mcp.client.context import ClientRequestContext
    from mcp_types import ElicitRequestParams, ElicitResult, ErrorData


_MOST_TEXT: Final = 4_000
"""Characters of a question."""
_MOST_LINES: Final = 40
"""Lines of it, and fields of its form that are looked at."""
_MOST_NAME: Final = 80


@define(eq=False)
class CallInFlight:
    """One call that waits for its result, in the task that made it."""

    questions: ToolQuestions | None
    """Asks a person; None: there is nobody to ask."""
    server: ToolServer
    """Who asks."""
    tool: str
    """The tool that was called, as the server calls it."""
    _task: asyncio.Task[object] | None = field(factory=asyncio.current_task, init=False)
    why: Exception | None = field(default=None, init=False)
    """Why it ends before its result: there is no answer yet, or there will be none."""

    def stop(self, error: Exception) -> None:
        """End the call."""
        if self.why is None:
            self.why = error
            if self._task is not None and self._task is not asyncio.current_task():
                self._task.cancel()

    def was_stopped(self) -> bool:
        """Whether the cancellation of its task was `stop`, and nobody else wants the task to
        end.
        """
        return self.why is not None and self._task is not None and self._task.uncancel() == 0

    async def answer(self, text: str, form: JsonSchema) -> JsonValue:
        """What a person answers.

        Raises:
            ToolError: A person declined to answer (`question-declined`); else there is no answer,
                and the call has ended.
        """
        try:
            await match_beside_loop(lambda: check_schema(form))
            if self.questions is None:
                raise ToolError("Nobody can be asked here.", code="no-person")
            return await self.questions.ask(asked_words(self.server, self.tool, text, form), form)
        except Exception as error:
            if not _is_declined(error):  # that is an answer, too
                self.stop(error)
            raise


def asked_words(server: ToolServer, tool: str, text: str, form: JsonSchema) -> str:
    """The question as a person is shown it, wherever that is: who asks, what in its words, and
    whether it asks for what should not be told. Its words cannot be taken for those of Minions:
    each line of them is marked.
    """
    lines = printable_text(text[:_MOST_TEXT]).strip().splitlines() or [""]
    more = [f"… and {len(lines) - _MOST_LINES} more lines"] if len(lines) > _MOST_LINES else []
    quoted = "\n".join(f"> {line}" for line in [*lines[:_MOST_LINES], *more])
    place = urlsplit(server.url).netloc if server.url else Path(*server.command[:1]).name
    who = (
        f"The MCP server '{server.name}' ({one_line(place)}) asks, in its tool "
        f"'{one_line(tool)[:_MOST_NAME]}'."
    )
    if secrets := _secrets_in(text, form):  # before its words, which may be cut where it is shown
        who = (
            f"{who} Careful: it asks for what looks like a secret ({', '.join(secrets)}). An "
            "answer is sent to that server, and stands in the journal. Minions itself asks for no "
            "key here."
        )
    return f"{who} These are its words, not those of Minions:\n{quoted}"


_SECRET_WORDS: Final = frozenset(
    {
        *("key", "keys", "apikey", "apikeys", "secret", "secrets", "token", "tokens", "bearer"),
        *("password", "passwords", "passwd", "pwd", "passphrase", "passcode", "pin", "otp", "pat"),
        *("credential", "credentials", "auth", "authorization", "cookie", "cookies", "login"),
    }
)
_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


def _secrets_in(text: str, form: JsonSchema) -> list[str]:
    """The fields that are named, or described, like a secret; else the word of the text that is."""
    properties = form.get("properties")
    fields = list(properties.items()) if isinstance(properties, Mapping) else []
    found = [
        one_line(name)[:_MOST_NAME]
        for name, field_ in fields[:_MOST_LINES]
        if _secret_word(name) or any(map(_secret_word, _about(field_)))
    ]
    if found:
        return found
    word = next((each for each in text[:_MOST_TEXT].split() if _secret_word(each)), None)
    return [] if word is None else [one_line(word)[:_MOST_NAME].strip(".,:;!?\"'()`")]


def _about(schema: JsonValue) -> Iterator[str]:
    """What a form says of a field, for people."""
    if isinstance(schema, Mapping):
        for key in ("title", "description"):
            if isinstance(said := schema.get(key), str):
                yield said[:_MOST_TEXT]


def _secret_word(text: str) -> bool:
    words = {each.lower() for each in _WORD.findall(text)}
    return not words.isdisjoint(_SECRET_WORDS)


def _is_declined(error: Exception) -> bool:
    return isinstance(error, ToolError) and error.error_code == DECLINED


@define(eq=False)
class CallsInFlight:
    """The calls of a connection, one of which a question belongs to."""

    _calls: list[CallInFlight] = field(factory=list, init=False)

    @property
    def is_empty(self) -> bool:
        """Whether no call waits for its result."""
        return not self._calls

    @contextmanager
    def one_more(
        self, questions: ToolQuestions | None, server: ToolServer, tool: str
    ) -> Iterator[CallInFlight]:
        """A call of a tool, from its beginning to its end."""
        call = CallInFlight(questions, server, tool)
        self._calls.append(call)
        try:
            yield call
        finally:
            self._calls.remove(call)

    async def elicit(
        self, context: ClientRequestContext, params: ElicitRequestParams
    ) -> ElicitResult | ErrorData:
        """Answer a question of the server. It does not say which call it belongs to."""
        from mcp_types import INVALID_REQUEST, ErrorData

        if len(self._calls) != 1:
            error = ToolError(
                f"The server asks a person while {len(self._calls)} calls are in flight, and "
                "does not say for which. Set `max_calls = 1` for it.",
                code="mcp-unknown-asker",
            )
            for call in self._calls:
                call.stop(error)
            return ErrorData(code=INVALID_REQUEST, message="Which call asks is not known.")
        return await elicited(self._calls[0], params)


async def elicited(call: CallInFlight, params: ElicitRequestParams) -> ElicitResult | ErrorData:
    """The answer to a question of that call, as the protocol has it."""
    from mcp_types import INVALID_PARAMS, ElicitResult, ErrorData

    form = getattr(params, "requested_schema", None)
    if not isinstance(form, dict):
        call.stop(
            ToolError(
                "The server wants a person to open a page in a browser, which is not supported.",
                code="mcp-page-asked",
            )
        )
        return ErrorData(code=INVALID_PARAMS, message="Only forms can be asked.")
    try:
        value = await call.answer(params.message, cast("JsonSchema", form))
    except Exception as error:  # noqa: BLE001  # the call reports it; the server is told that much
        if _is_declined(error):
            return ElicitResult(action="decline")
        return ErrorData(code=INVALID_PARAMS, message=words_of(error)[:200])
    if not isinstance(value, dict):
        return ElicitResult(action="decline")
    # What the person leaves out is what the form proposes.
    content = cast("_Content", {**_defaults(form), **as_object(value)})
    return ElicitResult(action="accept", content=content)


_Content: TypeAlias = "dict[str, str | int | float | bool | list[str] | None]"


def _defaults(form: JsonSchema) -> dict[str, JsonValue]:
    properties = form.get("properties")
    fields = properties.items() if isinstance(properties, Mapping) else ()
    return {
        name: each["default"]
        for name, each in fields
        if isinstance(each, Mapping) and "default" in each
    }
