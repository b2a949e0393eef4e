"""Personal data in prompts: replaced before a request leaves, whatever kind of call it is."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from returns.result import Result, Success

import minions
from builders import deterministic_services, fake_tool
from minions.adapters.models.script_items import tool_request
from minions.adapters.models.scripted import ScriptedModel
from minions.app.wiring.built_in_extensions import built_in_extensions, extended
from minions.contracts.calls import (
    ChatModel,
    ModelCall,
    ModelCallResponse,
    ModelFailure,
    Prompt,
)
from minions.contracts.context import ModelCallExecutor, RunContext
from minions.contracts.journal.facts import ModelCallFinished
from minions.contracts.messages import Attachment, Message, user
from minions.contracts.redaction import Redacted
from minions.contracts.tools import Effect, Toolbox
from minions.data.errors import RecipeError, UsageError
from minions.data.json_values import JsonValue
from minions.engine.compile.extensions import Extensions
from minions.engine.run.agent_executor import AgentExecutor
from minions.engine.services.prompt_redaction import RunRedaction
from minions.engine.services.run_services import Services
from minions.recipe.catalog import Catalog
from minions.recipe.model import AgentRecipe
from minions.recipe.reading.load import load_recipe_text

SOURCES = Path(minions.__file__).parent
MAIL = "ann@mail.example"
CARD = "4111 1111 1111 1111"


class Seen(ScriptedModel):
    """Keeps all that would have left."""

    def __init__(self, *answers: Any) -> None:  # Any: as a script takes them
        first = answers[0] if answers else None
        super().__init__(first if callable(first) else answers or ["fine"] * 20)

    @property
    def text(self) -> str:
        parts = list[str]()
        for prompt in self.prompts:
            declared = prompt.instructions
            told = declared and (declared.instructions, declared.json_schema())
            sent = (prompt.messages[:], prompt.tools, prompt.output_request, prompt.options, told)
            parts.append(repr(sent))
        return "\n".join(parts)


async def mail_tool(arguments: Mapping[str, JsonValue]) -> object:
    return {"to": MAIL, "got": dict(arguments)}


def executor(model: ChatModel, services: Services | None = None) -> AgentExecutor:
    tool = fake_tool("mail", mail_tool, effect=Effect.PURE)
    own = Extensions(tools=Toolbox((tool,)))
    return AgentExecutor(
        model,
        extensions=extended(built_in_extensions(), own),
        services=services or deterministic_services(),
    )


def recipe_of_text(text: str) -> AgentRecipe:
    tool = fake_tool("mail", mail_tool, effect=Effect.PURE)
    catalog = Catalog(tools={"mail": tool.spec}, redactors=frozenset(("mail", "card", "iban")))
    return load_recipe_text(text, "r.yaml", catalog)


HEAD = "id: r\ninputs: {who: {type: string}}\n"
KINDS = {
    "goal": "steps: [{id: a, goal: 'Who is {{ inputs.who }}?'}]",
    "system prompt": f"system_prompt: You work for {MAIL}.\nsteps: [{{id: a, goal: Hello}}]",
    "structured": ("steps: [{id: a, goal: 'Who is {{ inputs.who }}?', output: {who: string}}]"),
    "schema": f"steps: [{{id: a, goal: Hello, output: {{who: {{enum: ['{MAIL}', none]}}}}}}]",
    "analyze": "steps: [{id: a, analyze: 'Who is it?', input: '{{ inputs }}'}]",
    "agent": "tools: [mail]\nsteps: [{id: a, goal: 'Mail {{ inputs.who }}.'}]",
    "loop": "steps: [{id: a, loop: ['{{ inputs.who }}', b], goal: 'Who is {{ loop.item }}?'}]",
    "earlier output": (
        "steps:\n  - {id: a, set: {who: '{{ inputs.who }}'}}\n"
        "  - {id: b, goal: 'Who is {{ a.who }}?'}"
    ),
    "example": (
        "steps: [{id: a, goal: 'Sort {{ inputs.who }}', examples: "
        f"[{{input: {{who: 'of {MAIL}'}}, output: 'to {MAIL}'}}]}}]"
    ),
    "choice of the next step": (
        "steps:\n  - {id: a, set: {who: '{{ inputs.who }}'}}\n"
        "  - {id: b, goal: 'Tell {{ a.who }}.'}\n  - {id: c, goal: Tell nobody.}\n"
        "graph: {a: [b, c]}"
    ),
    "stop": f"model: {{stop: ['{MAIL}']}}\nsteps: [{{id: a, goal: Hello}}]",
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("who", ["operator", "recipe"])
async def test_nothing_leaves_with_what_is_redacted(kind: str, who: str) -> None:
    """A-172: each kind of call, by the operator's word or the recipe's."""
    answers: list[Any] = ["fine"] * 20
    if kind == "structured":
        answers = ['{"who": "x"}'] * 3
    elif kind == "schema":
        answers = ['{"who": "none"}'] * 3
    elif kind == "agent":
        answers = [tool_request("mail", {"text": "x"}), "fine"]
    model = Seen(*answers)
    redact = "redact: [mail]\n" if who == "recipe" else ""
    services = deterministic_services()
    if who == "operator":
        services = evolve(services, redact=("mail",))
    recipe = recipe_of_text(HEAD + redact + KINDS[kind])
    run = executor(model, services).prepare(recipe, {"who": MAIL})
    result = await run.execute()
    assert model.prompts, result
    assert MAIL not in model.text
    assert "<mail-" in model.text
    entries = await services.journal.entries(kinds={"model_call"})
    redacted = [
        each
        for row in entries
        if isinstance(row.fact, ModelCallFinished)
        for each in row.fact.redacted
    ]
    assert redacted
    assert {each.kind for each in redacted} == {"mail"}
    assert MAIL not in repr(redacted)


async def test_a_recipe_within_brings_its_own_kinds() -> None:
    """A-172: the union counts, for all calls of the run."""
    inner = recipe_of_text(f"{HEAD}redact: [mail]\n{KINDS['goal']}")
    text = f"{HEAD}redact: [card]\nsteps:\n  - {{id: a, goal: 'To {{{{ inputs.who }}}} {CARD}'}}\n"
    text += "  - {id: b, recipe: inner, with: {who: '{{ inputs.who }}'}}\n"
    catalog = Catalog(recipes={"inner": inner}, redactors=frozenset(("mail", "card")))
    recipe = load_recipe_text(text, "r.yaml", catalog)
    assert recipe.redact == ("card", "mail")
    model = Seen()
    own = Extensions(recipes={"inner": inner})
    made = AgentExecutor(
        model, extensions=extended(built_in_extensions(), own), services=deterministic_services()
    )
    await made.prepare(recipe, {"who": MAIL}).execute()
    assert len(model.prompts) == 2
    assert MAIL not in model.text
    assert CARD not in model.text


async def test_without_redaction_a_prompt_leaves_as_it_is() -> None:
    model = Seen()
    services = deterministic_services()
    recipe = recipe_of_text(HEAD + KINDS["goal"])
    await executor(model, services).prepare(recipe, {"who": MAIL}).execute()
    assert MAIL in model.text
    (entry,) = await services.journal.entries(kinds={"model_call"})
    assert "redacted" not in entry.body


async def test_the_fact_says_what_was_replaced_where_and_how_often() -> None:
    """A-172: kinds, places and counts; no value."""
    model, services = Seen(), deterministic_services()
    text = f"{HEAD}redact: [mail, card]\nsystem_prompt: For {MAIL}.\n"
    text += f"steps: [{{id: a, goal: '{{{{ inputs.who }}}} {{{{ inputs.who }}}} {CARD}'}}]"
    await executor(model, services).prepare(recipe_of_text(text), {"who": MAIL}).execute()
    (entry,) = await services.journal.entries(kinds={"model_call"})
    assert isinstance(entry.fact, ModelCallFinished)
    assert set(entry.fact.redacted) == {
        Redacted(kind="mail", where="system", count=1),
        Redacted(kind="mail", where="user", count=2),
        Redacted(kind="card", where="user", count=1),
    }


@pytest.mark.parametrize(("restore", "who"), [(True, MAIL), (False, "<mail-")])
async def test_values_are_put_back_only_where_the_recipe_says_so(restore: bool, who: str) -> None:
    """A-172: in arguments of tools and in outputs; never in what leaves."""
    got = list[str]()

    def echo(prompt: Prompt) -> Any:  # Any: as a script takes it
        said = repr(prompt.messages[:])
        start = said.index("<mail-")
        placeholder = said[start : said.index(">", start) + 1]
        if not got:
            got.append(placeholder)
            return tool_request("mail", {"text": placeholder})
        return f'Told "{got[0]}".'

    model = Seen(echo)
    text = f"{HEAD}redact: [mail]\nrestore: {str(restore).lower()}\n{KINDS['agent']}"
    services = deterministic_services()
    result = await executor(model, services).prepare(recipe_of_text(text), {"who": MAIL}).execute()
    assert who in str(result.output)
    calls = await services.journal.entries(kinds={"tool_call"})
    assert who in str(dict(calls[0].body))
    assert MAIL not in model.text
    first, second = model.prompts
    assert str(got[0]) in repr(second.messages[:])
    assert len(first.messages[:]) < len(second.messages[:])


async def test_an_applications_own_executor_gets_placeholders_too() -> None:
    """A-172: whoever carries out the call."""
    seen = list[str]()

    class Own(ModelCallExecutor):
        async def execute(
            self, call: ModelCall, context: RunContext
        ) -> Result[ModelCallResponse, ModelFailure]:
            seen.append(repr(call.prompt.messages[:]))
            return Success(ModelCallResponse(message=Message(role="assistant", content="fine")))

    own = AgentExecutor(
        Seen(),
        extensions=built_in_extensions(),
        services=deterministic_services(),
        model_call_executor_factory=lambda _call, _context: Own(),
    )
    recipe = recipe_of_text(HEAD + "redact: [mail]\n" + KINDS["goal"])
    await own.prepare(recipe, {"who": MAIL}).execute()
    assert seen
    assert MAIL not in "".join(seen)


def test_a_model_is_asked_in_one_place_only() -> None:
    """A-172: a second one would let prompts leave as they are; judges, plans, reviewers and batches
    are runs."""
    asked = {
        file.relative_to(SOURCES).as_posix()
        for file in SOURCES.rglob("*.py")
        if re.search(r"\bmodel\.complete\(", file.read_text("utf-8"))
        and "adapters" not in file.parts
    }
    assert asked == {
        "engine/calls/model_executors.py",  # whose executors a run asks through its redaction
        "engine/sessions/session_context.py",  # of an application, in a docstring
    }


def test_a_kind_that_nothing_finds_is_refused_before_anything_is_sent() -> None:
    """A-172: also where the recipe comes from another machine, which knew it."""
    with pytest.raises(RecipeError) as caught:
        recipe_of_text(HEAD + "redact: [mial]\n" + KINDS["goal"])
    assert [each.code for each in caught.value.faults] == ["unknown-redactor"]
    model = Seen()
    services = evolve(deterministic_services(), redact=("plate",))
    with pytest.raises(UsageError) as refused:
        executor(model, services).prepare(recipe_of_text(HEAD + KINDS["goal"]), {"who": MAIL})
    assert refused.value.error_code == "unknown-redactor"
    assert model.prompts == []


def redaction(run_id: str = "run_1", *, restores: bool = False) -> RunRedaction:
    redactors = built_in_extensions().redactors
    chosen = {kind: redactors[kind] for kind in ("mail", "card")}
    return RunRedaction(chosen, run_id, restores=restores)


def test_a_placeholder_is_the_same_in_all_of_a_run_and_another_one_in_the_next() -> None:
    """In each process that executes it: nothing has to be remembered."""
    prompt = Prompt([user(f"{MAIL} or bob@mail.example, {MAIL}")])
    one, other, next_run = (redaction(each).redacted(prompt)[0] for each in ("r1", "r1", "r2"))
    text = str(one.messages[0].content)
    assert text.count(text.split(maxsplit=1)[0]) == 2
    assert one.messages[:] == other.messages[:]
    assert one.messages[:] != next_run.messages[:]


def test_a_prompt_without_findings_is_the_same_object() -> None:
    prompt = Prompt([user("nothing of anybody")])
    found, redacted = redaction().redacted(prompt)
    assert found is prompt
    assert redacted == ()


def test_texts_that_are_attached_are_looked_at_and_images_are_not() -> None:
    parts = tuple(
        Attachment(media_type=kind, digest="0" * 64, size=9, data=f"of {MAIL}".encode())
        for kind in ("text/plain", "image/png")
    )
    prompt = Prompt([evolve(user("see"), attachments=parts)])
    found, redacted = redaction().redacted(prompt)
    text, image = found.messages[0].attachments
    assert MAIL.encode() not in (text.data or b"")
    assert image.data == f"of {MAIL}".encode()
    assert redacted == (Redacted(kind="mail", where="user", count=1),)
