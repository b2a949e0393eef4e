"""Private data reach no model of another party than the run's, unless somebody says so."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest
from attrs import evolve
from msgspec.structs import replace

from builders import FakeTool, deterministic_services, fake_tool
from lab_models import UnavailableModel
from minions.adapters.models.script_items import Answer, tool_request
from minions.adapters.models.scripted import ScriptedModel
from minions.app.settings.settings import ProviderSettings, Settings
from minions.contracts.calls import ChatModel
from minions.contracts.decision_types import ApprovalRequest, Decider, Verdict
from minions.contracts.executions import AgentResult, RunStatus
from minions.contracts.journal.facts import DecisionRecorded, DecisionWaiting
from minions.contracts.tools import Effect, Reads, Toolbox
from minions.data.errors import UsageError
from minions.data.json_values import JsonValue
from minions.engine.compile.extensions import Extensions
from minions.engine.run.agent_executor import AgentExecutor
from minions.engine.services.run_services import Services
from minions.recipe.catalog import Catalog
from minions.recipe.model import OperatorRules, UntrustedRule
from minions.recipe.model_config import ModelConfig
from minions.recipe.reading.load import check_recipe_text, recipe_from_document
from nested import Document, among

PLAN = "the secret plan"
READ: Document = {"id": "read", "tool": "files__read"}
TELL: Document = {"id": "tell", "goal": "Sum up {{ read }}.", "model": "other/m"}
OF_FILE = ("files__read (step read)",)


def reader() -> FakeTool:
    tool = fake_tool("files__read", lambda _: PLAN, effect=Effect.PURE)
    return evolve(tool, spec=evolve(tool.spec, reads=Reads.PRIVATE))


class Person(Decider):
    """Says the same to everything; keeps what was asked."""

    def __init__(self, verdict: Verdict = Verdict.APPROVED) -> None:
        self.verdict = verdict
        self.asked: list[tuple[str, str, tuple[str, ...]]] = []

    async def approve(self, request: ApprovalRequest) -> Verdict:
        self.asked.append((request.tool, request.arguments, request.words_of))
        return self.verdict


def executor(
    services: Services, person: Decider, models: Mapping[str, ChatModel] | None = None
) -> AgentExecutor:
    """Each model answers `done`, but those that are given."""
    known: dict[str, ChatModel] = {**(models or {})}

    def find(config: ModelConfig) -> ChatModel:
        name = config.name or "run/m"
        return known.setdefault(name, ScriptedModel(lambda _: "done", name=name))

    tools = Toolbox((reader(),))
    services = evolve(services, decider=person)
    return AgentExecutor(find, extensions=Extensions(tools=tools), services=services)


INNER: Document = {
    "id": "inner",
    "inputs": {"text": {"type": "string"}},
    "model": "other/m",
    "steps": [{"id": "tell", "goal": "Sum up {{ inputs.text }}."}],
}


def catalog(operator: OperatorRules | None = None) -> Catalog:
    tools = {"files__read": reader().spec}
    return Catalog(tools=tools, find_recipe=among({"inner": INNER}), operator=operator)


def whole(*steps: Document, **more: JsonValue) -> Document:
    return {"id": "r", "model": "run/m", "tools": ["files__read"], "steps": [*steps], **more}


async def ran(
    document: Document,
    person: Person | None = None,
    operator: OperatorRules | None = None,
    models: Mapping[str, ChatModel] | None = None,
) -> tuple[AgentResult[object], Person]:
    person = person or Person()
    services = evolve(deterministic_services(), operator=operator)
    recipe = recipe_from_document(document, catalog(operator))
    return await executor(services, person, models).execute(recipe), person


def codes(document: Document, operator: OperatorRules | None = None) -> set[str]:
    checked = check_recipe_text(json.dumps(document), "r.yaml", catalog(operator))
    return {each.code for each in checked.faults}


FALLBACK: JsonValue = {"name": "run/m", "fallbacks": ["other/m"]}


@pytest.mark.parametrize(
    "document",
    [
        whole(READ, TELL),
        whole(READ, {"id": "tell", "recipe": "inner", "with": {"text": "{{ read }}"}}),
        whole({"id": "tell", "goal": "Look.", "tools": ["files__read"], "model": "other/m"}),
        whole(READ, {**TELL, "model": FALLBACK}),
        whole(READ, {"id": "one", "goal": "Hi."}, TELL, model=None),
        whole(
            {"id": "tell", "goal": "Sum up {{ inputs.plan }}.", "model": "other/m"},
            inputs={"plan": {"type": "string", "private": True, "default": PLAN}},
        ),
        whole(READ, {**TELL, "model": {"name": "run/m", "base_url": "https://x.example/v1"}}),
    ],
    ids=["step", "recipe", "offered tool", "fallback", "no model of its own", "input", "address"],
)
async def test_a_model_of_another_provider_reads_private_data_after_a_person_said_so(
    document: Document,
) -> None:
    """A-167, A-168: and the check names it before."""
    down = UnavailableModel("run/m") if "fallbacks" in json.dumps(document) else None
    answers: list[Answer] = [tool_request("files__read"), "done"]
    models: dict[str, ChatModel] = {} if down is None else {"run/m": down}
    if "Look." in json.dumps(document):
        models["other/m"] = ScriptedModel(answers, name="other/m")
    document = {key: value for key, value in document.items() if value is not None}
    ended, person = await ran(document, models=models)
    assert ended.status is RunStatus.COMPLETED
    (asked,) = person.asked
    tool, arguments, words = asked
    assert tool == "model call"
    assert json.loads(arguments)["model"] in ("other/m", "run/m")
    assert words
    assert "private-flow" in codes(document)


@pytest.mark.parametrize(
    ("document", "operator"),
    [
        (whole(READ, {**TELL, "model": "run/larger"}), OperatorRules()),
        (whole({"id": "read", "set": {"t": "x"}}, TELL), OperatorRules()),
        (whole(READ, TELL), OperatorRules(private_models=frozenset({"other"}))),
        (whole(READ, TELL), OperatorRules(private_models=frozenset({"other/m"}))),
        (whole(READ, TELL, permissions={"private_models": ["other"]}), OperatorRules()),
        (whole(READ, {**TELL, "model": "local/m"}), OperatorRules()),
        (
            whole(READ, {**TELL, "model": {"name": "lab/m", "base_url": "http://127.0.0.1:1/v1"}}),
            OperatorRules(),
        ),
        ({k: v for k, v in whole(READ, TELL).items() if k != "model"}, OperatorRules()),
    ],
    ids=[
        *("same provider", "nothing private", "operator's provider", "operator's model"),
        *("recipe's", "local", "loopback", "the only one"),
    ],
)
async def test_nobody_is_asked_about_a_model_that_may_read_private_data(
    document: Document, operator: OperatorRules
) -> None:
    ended, person = await ran(document, operator=operator)
    assert (ended.status, person.asked) == (RunStatus.COMPLETED, [])
    assert "private-flow" not in codes(document, operator)


async def test_a_model_that_a_command_chose_for_all_steps_reads_what_they_read() -> None:
    chosen = ScriptedModel(lambda _: "done", name="run/chosen")
    ended, person = await ran(whole(READ, TELL), models={"run/m": chosen, "other/m": chosen})
    assert (ended.status, person.asked) == (RunStatus.COMPLETED, [])


async def test_what_is_rejected_or_refused_is_not_sent() -> None:
    """A-167."""
    other = ScriptedModel(["done"], name="other/m")
    for verdict, permissions, operator, code in (
        (Verdict.REJECTED, {}, None, "approval-denied"),
        (Verdict.APPROVED, {"untrusted": "refuse"}, None, "private-data"),
        (
            Verdict.APPROVED,
            {"private_models": ["other"]},
            OperatorRules(untrusted=UntrustedRule.REFUSE),
            "private-data",
        ),
    ):
        document = whole(READ, TELL, permissions=permissions)
        person = Person(verdict)
        ended, _ = await ran(document, person, operator, models={"other/m": other})
        assert ended.error is not None
        assert (ended.status, ended.error.code) == (RunStatus.FAILED, code)
        assert other.prompts == []


async def test_the_approval_is_recorded_and_asked_for_once_in_an_execution_of_a_step() -> None:
    """A-169: also where the run waits for it, and is resumed."""
    look: Document = {"id": "tell", "goal": "Sum up {{ read }}.", "model": "other/m"}
    document = whole(READ, {**look, "tools": ["files__read"]})
    answers: list[Answer] = [tool_request("files__read"), tool_request("files__read"), "done"]
    services, later = deterministic_services(), Person(Verdict.LATER)
    models: dict[str, ChatModel] = {"other/m": ScriptedModel(answers, name="other/m")}
    runs = executor(services, later, models)
    first = await runs.execute(recipe_from_document(document, catalog()))
    assert first.status is RunStatus.NEEDS_DECISION
    assert "words in it may be of: files__read (step read)" in str(first.error)
    for word in ('approve::{"model": "run/m"}', 'approve-like::{"same": ["model"]}'):
        with pytest.raises(UsageError, match="decides nothing here"):
            await runs.resume(first.run_id, decisions={"tell": word})
    second = await runs.resume(first.run_id, decisions={"tell": "approve"})
    assert (second.status, len(later.asked)) == (RunStatus.COMPLETED, 1)
    facts = [each.fact for each in await services.journal.entries(first.session_id)]
    assert [
        type(fact) for fact in facts if isinstance(fact, DecisionWaiting | DecisionRecorded)
    ] == [
        DecisionWaiting,
        DecisionRecorded,
    ]


async def test_what_a_stranger_brought_lets_no_further_model_read_private_data() -> None:
    """A-167: as a recipe out of a session file, whose permissions do not count."""
    for is_strangers, asked in ((False, 0), (True, 1)):
        recipe = recipe_from_document(
            whole(READ, TELL, permissions={"private_models": ["other"]}), catalog()
        )
        rights = evolve(recipe.permissions, is_strangers=is_strangers)
        person = Person()
        ended = await executor(deterministic_services(), person).execute(
            evolve(recipe, permissions=rights)
        )
        assert ended.status is RunStatus.COMPLETED
        assert [tool for tool, _, _ in person.asked].count("model call") == asked


async def test_under_full_strictness_the_operator_alone_says_which_models_read_private_data() -> (
    None
):
    document = whole(READ, TELL, permissions={"private_models": ["other"]})
    for named, faults in ((["run"], {"private-flow"}), (["run", "other"], set())):
        strict = replace(catalog(OperatorRules(private_models=frozenset(named))), strict="full")
        checked = check_recipe_text(json.dumps(document), "r.yaml", strict)
        assert {each.code for each in checked.faults if not each.is_warning} == faults


def test_the_configured_model_and_servers_of_this_machine_may_read_private_data() -> None:
    settings = Settings(
        model="mine/m",
        private_models=("named/m",),
        providers={
            "near": ProviderSettings(base_url="http://localhost:1/v1"),
            "far": ProviderSettings(base_url="https://far.example/v1"),
        },
    )
    here = {"mine", "named/m", "near"}
    assert settings.operator_rules({}).private_models == {*here, "ollama"}
    elsewhere = settings.operator_rules({"OLLAMA_HOST": "https://far.example"})
    assert elsewhere.private_models == here
