"""Classes of a program as outputs, inputs and parameters of tools: dataclasses and Pydantic's."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

import msgspec
import pydantic
import pytest
from attrs import frozen

import minions as m
from minions.data.hint_schemas import schema_of


@dataclass(frozen=True)
class Plain:
    name: str
    count: int = 1


@frozen
class Attrs:
    name: str
    count: int = 1


class Part(pydantic.BaseModel):
    size: Literal["s", "l"] = "s"


class Model(pydantic.BaseModel):
    name: str
    count: int = 1
    parts: list[Part] = []


class Order(pydantic.BaseModel):
    name: str
    count: int = 1


class Tree(pydantic.BaseModel):
    name: str
    below: list[Tree] = []


ASKS = "id: asks\nsteps: [{id: a, goal: Who?}]\n"
TAKES = """
id: takes
inputs: {order: {type: object}}
steps: [{id: a, set: {all: "{{ inputs.order.name }} {{ inputs.order.count }}"}}]
output: "{{ a.all }}"
"""


@pytest.mark.parametrize("kind", [Plain, Attrs, Model])
def test_an_output_is_of_the_class(kind: type[Any]) -> None:
    model = m.ScriptedModel([{"name": "Ada", "count": 2}])
    recipe = "id: r\nsteps: [{id: a, goal: Who?, output: {name: string, count: integer}}]\n"
    output = m.run(recipe, model=model, output_class=kind).unwrap()
    assert output == kind(name="Ada", count=2)


@pytest.mark.parametrize("answer", [{"name": 1}, {"count": 2}, {"name": "Ada", "count": "2"}])
def test_an_output_that_is_not_of_the_class_fails_the_run(answer: Mapping[str, Any]) -> None:
    recipe = "id: r\nsteps: [{id: a, goal: Who?, output: {type: object}}]\n"
    result = m.run(recipe, model=m.ScriptedModel([answer, answer]), output_class=Model)
    assert result.status is m.RunStatus.FAILED


@pytest.mark.parametrize("kind", [Plain, Attrs, Model])
def test_an_input_may_be_an_object(kind: type[Any]) -> None:
    assert m.run(TAKES, {"order": kind(name="tea", count=3)}).unwrap() == "tea 3"


SUMS = """
id: sums
inputs: {name: string, count: {type: integer, default: 7}}
steps: [{id: a, set: {all: "{{ inputs.name }} {{ inputs.count }}"}}]
output: "{{ a.all }}"
"""


class Struct(msgspec.Struct):
    name: str
    count: int = 1


class Typed(TypedDict):
    name: str
    count: int


@pytest.mark.parametrize("kind", [Plain, Attrs, Order, Struct, Typed])
def test_the_inputs_may_be_the_fields_of_an_object(kind: type[Any]) -> None:
    assert m.run(SUMS, kind(name="tea", count=3)).unwrap() == "tea 3"


def test_an_object_gives_a_secret_as_its_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUR_TOKEN", "s3cret-value")

    @frozen
    class Login:
        token: m.SecretRef

    recipe = """
id: login
inputs: {token: {type: string, secret: true}}
steps: [{id: a, set: {all: "{{ inputs.token }}"}}]
output: "{{ a.all }}"
"""
    result = m.run(recipe, Login(m.SecretRef("env:OUR_TOKEN")))
    assert result.unwrap() == "${secret:env:OUR_TOKEN}"


@pytest.mark.parametrize("given", [5, "tea", ["tea"], Attrs, object()])
def test_inputs_without_names_are_refused(given: Any) -> None:  # Any: what a caller may try
    with pytest.raises(m.UsageError, match="Inputs are values by name: give a mapping, or an"):
        m.run(SUMS, given)


def test_a_retried_run_takes_an_object_for_its_inputs() -> None:
    async def retried() -> object:
        async with m.Minions() as app:
            first = await app.arun(SUMS, Attrs("tea", 3))
            return (await app.retry(first.run_id, inputs=Attrs("milk", 4))).unwrap()

    assert m.run(retried()) == "milk 4"


def test_an_input_that_is_no_json_is_named() -> None:
    with pytest.raises(m.UsageError, match="The input 'order' cannot be written as JSON"):
        m.run(TAKES, {"order": object()})


def test_a_tool_takes_a_model() -> None:
    seen: list[Model] = []

    @m.tool(effect="pure")
    def order(what: Model) -> str:
        """Order something."""
        seen.append(what)
        return what.name

    recipe = """
id: r
tools: [order]
steps: [{id: a, tool: order, params: {what: {name: tea, parts: [{size: l}]}}}]
"""
    assert m.run(recipe, tools=[order]).unwrap() == "tea"
    assert seen == [Model(name="tea", parts=[Part(size="l")])]


def test_a_model_that_holds_itself_has_a_schema() -> None:
    schema = schema_of(Tree)
    assert schema["$defs"]["Tree"]["properties"]["below"]["items"] == {"$ref": "#/$defs/Tree"}  # type: ignore[index,call-overload]  # JSON


def test_a_programs_slips_are_told_by_name() -> None:
    def hello() -> str:
        """Say hello."""
        return "hello"

    slips: list[tuple[dict[str, Any], str]] = [
        ({"listeners": print}, "listeners=[print]"),
        ({"listeners": ["x"]}, "functions that take an event"),
        ({"tools": m.tool(effect="pure")(hello)}, "a list of tools"),
        ({"tools": [hello]}, "@minions.tool"),
        ({"extensions": {}}, "an Extensions"),
        ({"services": {}}, "a Services"),
        ({"model": 1}, "a ChatModel"),
    ]
    for given, words in slips:
        with pytest.raises(m.UsageError, match="Minions") as error:
            m.Minions(**given)
        assert words in error.value.message


def test_extensions_take_a_list_of_tools() -> None:
    @m.tool(effect="pure")
    def hello() -> str:
        """Say hello."""
        return "hello"

    recipe = "id: r\ntools: [hello]\nsteps: [{id: a, tool: hello}]\n"
    assert m.run(recipe, extensions=m.Extensions(tools=[hello])).unwrap() == "hello"
    with pytest.raises(m.UsageError, match="takes tools"):
        m.Extensions(tools=["hello"])  # type: ignore[list-item]  # the test is about it


async def test_what_is_refused_is_refused_before_the_first_event() -> None:
    async with m.Minions(model=m.ScriptedModel(["Hello."])) as app:
        with pytest.raises(m.UsageError, match="missing"):
            app.astream(TAKES, {})
        run = app.prepare(ASKS)
        stream = app.stream(run)
        first = await anext(stream)
        assert (first.type, first.run_id) == ("run_started", run.run_id)
        names = [first.type, *[event.type async for event in _rest(stream)]]
        assert names[-1] == "run_completed"
        assert stream.result.output == "Hello."


async def _rest(stream: AsyncIterator[m.RunEvent]) -> AsyncIterator[m.RunEvent]:
    while True:
        try:
            yield await anext(stream)
        except StopAsyncIteration:
            return


def test_a_journal_of_a_file_needs_no_clock(tmp_path: Any) -> None:
    journal = m.SqliteJournal(tmp_path / "journal.sqlite")
    result = m.run(ASKS, model=m.ScriptedModel(["Hi."]), services=m.Services(journal=journal))
    assert result.unwrap() == "Hi."
