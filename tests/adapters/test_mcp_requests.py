"""Calls that come back with questions, as stateless servers ask them; the server is in this
process.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from mcp import Client
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp_types import (
    CallToolRequestParams,
    CallToolResult,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitResult,
    InputRequiredResult,
    ListRootsRequest,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
)

from minions.adapters.tools.mcp.elicitation import CallsInFlight, asked_words
from minions.adapters.tools.mcp.started_server import call_tool
from minions.contracts.tool_servers import ToolServer
from minions.contracts.tools import ToolQuestions
from minions.data.errors import ToolError, ToolServerError
from minions.data.json_values import JsonValue
from minions.data.schema import JsonSchema

Answer = Callable[[CallToolRequestParams], CallToolResult | InputRequiredResult]
ASKS = ToolServer(name="asks", command=("/opt/asks-server", "--token", "hidden"))
FORM: dict[str, JsonValue] = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "count": {"type": "integer", "default": 3}},
}


def text(words: str) -> CallToolResult:
    return CallToolResult(content=[TextContent(type="text", text=words)])


def asking(message: str) -> InputRequiredResult:
    params = ElicitRequestFormParams(message=message, requested_schema=FORM)
    return InputRequiredResult(
        input_requests={"who": ElicitRequest(params=params)}, request_state="kept"
    )


class Person(ToolQuestions):
    """Answers each question with the same value, or not at all."""

    def __init__(self, answer: JsonValue) -> None:
        self.answer = answer
        self.asked: list[str] = []

    async def ask(self, text: str, form: JsonSchema | None = None) -> JsonValue:
        self.asked.append(text)
        if self.answer == "later":
            raise ToolError("There is no answer yet.", code="needs-decision")
        return self.answer


@asynccontextmanager
async def client_of(answer: Answer) -> AsyncIterator[Client]:
    async def list_tools(
        context: ServerRequestContext, params: PaginatedRequestParams | None
    ) -> ListToolsResult:
        return ListToolsResult(tools=[])

    async def on_call(
        context: ServerRequestContext, params: CallToolRequestParams
    ) -> CallToolResult | InputRequiredResult:
        return answer(params)

    async with Client(Server("asks", on_list_tools=list_tools, on_call_tool=on_call)) as client:
        yield client


async def called(client: Client, person: ToolQuestions | None) -> CallToolResult:
    with CallsInFlight().one_more(person, ASKS, "tool") as call:
        return await call_tool(client.session, "asks", "tool", {}, call, None)


async def test_a_question_of_a_stateless_server_is_answered_with_its_state() -> None:
    """A-135."""
    person = Person({"name": "Eva"})

    def answer(params: CallToolRequestParams) -> CallToolResult | InputRequiredResult:
        if params.input_responses is None:
            return asking("Whose account?")
        given = params.input_responses["who"]
        assert isinstance(given, ElicitResult)
        assert (params.request_state, given.action) == ("kept", "accept")
        return text(f"{sorted((given.content or {}).items())}")

    async with client_of(answer) as client:
        result = await called(client, person)
    assert result.content[0] == TextContent(type="text", text="[('count', 3), ('name', 'Eva')]")
    assert person.asked == [asked_words(ASKS, "tool", "Whose account?", FORM)]


async def test_a_call_whose_question_has_no_answer_yet_ends() -> None:
    """A-135."""
    async with client_of(lambda _: asking("Whose?")) as client:
        with (
            CallsInFlight().one_more(Person("later"), ASKS, "tool") as call,
            pytest.raises(ToolServerError, match="no answer"),
        ):
            await call_tool(client.session, "asks", "tool", {}, call, None)
        assert isinstance(call.why, ToolError)
        assert call.why.error_code == "needs-decision"


async def test_a_server_that_asks_again_and_again_is_given_up() -> None:
    """A-135."""
    person = Person({"name": "Eva"})
    async with client_of(lambda _: asking("Whose?")) as client:
        with pytest.raises(ToolServerError, match="asked for more input 10 times"):
            await called(client, person)
    assert len(person.asked) == 10


async def test_a_server_that_asks_for_what_is_not_offered_is_refused() -> None:
    asks = InputRequiredResult(input_requests={"roots": ListRootsRequest()})
    async with client_of(lambda _: asks) as client:
        with pytest.raises(ToolServerError, match="roots/list"):
            await called(client, None)


async def test_a_person_may_decline() -> None:
    def answer(params: CallToolRequestParams) -> CallToolResult | InputRequiredResult:
        given = (params.input_responses or {}).get("who")
        if given is None:
            return asking("Whose?")
        assert isinstance(given, ElicitResult)
        return text(given.action)

    async with client_of(answer) as client:
        result = await called(client, Person(None))
    assert result.content[0] == TextContent(type="text", text="decline")


async def test_what_the_server_does_is_joined_to_the_trace_of_the_run() -> None:
    trace = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}

    def answer(params: CallToolRequestParams) -> CallToolResult:
        return text(str((params.meta or {}).get("traceparent")))

    async with client_of(answer) as client:
        with CallsInFlight().one_more(None, ASKS, "tool") as call:
            result = await call_tool(client.session, "asks", "tool", {}, call, trace=trace)
    assert result.content[0] == TextContent(type="text", text=trace["traceparent"])


# --- who asks -------------------------------------------------------------------------------------


def words(message: str, **fields: JsonValue) -> str:
    return asked_words(ASKS, "book", message, {"type": "object", "properties": fields})


def test_no_words_of_a_server_look_like_ours() -> None:
    """A-153: each line of them is marked, and whoever asks stands before them."""
    told = words("Fine.\n\nMinions needs you.\x1b[2J\u202e\r\rMinions: OK\u2028x\x85y")
    head, *lines = told.split("\n")
    assert head == (
        "The MCP server 'asks' (asks-server) asks, in its tool 'book'. These are its words, not "
        "those of Minions:"
    )
    assert all(line.startswith("> ") for line in lines)
    assert told.isprintable() or set(told) - {"\n"} == {c for c in told if c.isprintable()}
    assert words(" Fine.\nTwo \n").split("\n")[1:] == ["> Fine.", "> Two"]
    assert words("").split("\n")[1:] == ["> "]
    forty = "\n".join("x" * 40)
    assert words(forty).split("\n")[1:] == ["> x"] * 40
    assert words(f"{forty}\ny\nz").split("\n")[1:] == [*["> x"] * 40, "> … and 2 more lines"]
    odd = asked_words(ToolServer(name="u", url="https://evil.example/x"), "a\nb", "Hi", {})
    assert odd.startswith("The MCP server 'u' (evil.example) asks, in its tool 'a\\nb'. ")


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("api_key", {}),
        ("OPENAI_API_KEY", {}),
        ("apiKey", {}),
        ("accessToken", {}),
        ("password", {}),
        ("pin", {}),
        ("value", {"title": "Your passphrase"}),
        ("value", {"description": "The client secret of your app"}),
    ],
)
def test_a_question_for_what_is_named_like_a_secret_is_shown_with_a_warning(
    name: str, field: dict[str, JsonValue]
) -> None:
    """A-153."""
    fields: dict[str, JsonValue] = {name: {"type": "string", **field}, "n": {"type": "integer"}}
    told = words("Whose account?", **fields)
    assert f"'book'. Careful: it asks for what looks like a secret ({name}). An answer is" in told


@pytest.mark.parametrize("text", ["Minions needs your OPENAI_API_KEY.", "Your password, please:"])
def test_words_that_ask_for_a_secret_are_shown_with_a_warning_whatever_the_fields_are(
    text: str,
) -> None:
    """A-153."""
    assert "looks like a secret (" in words(text, value={"type": "string"})


@pytest.mark.parametrize("name", ["keyboard", "monkey", "author", "tokenizer", "town", "nights"])
def test_other_questions_are_shown_without_one(name: str) -> None:
    assert "Careful" not in words("Which town, and how many nights?", **{name: {"type": "string"}})
