"""The inbox: what runs wait for, bound to what was shown."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from asgi_client import Client
from builders import fake_tool
from minions import tool
from minions.app.settings.settings import Settings
from minions.contracts.tools import Effect, ToolScope
from minions.data.errors import ToolError
from minions.data.json_values import JsonValue
from served import MakeApp, resume


async def waiting(client: Client, recipe: str, inputs: JsonValue = None) -> dict[str, Any]:
    """The one decision that a new run of it waits for."""
    body = {"recipe": recipe, "inputs": inputs or {}}
    run_id = (await client.post("/runs", body)).json["run_id"]
    run = await client.ended(run_id)
    assert run["status"] == "needs_decision"
    [view] = (await client.get("/approvals")).json["approvals"]
    assert run["waiting"] == [view]
    return dict(view)


async def test_the_inbox_is_filtered_by_kind_and_recipe_and_comes_in_pages(client: Client) -> None:
    for recipe in ("signs", "asks", "asks"):
        run_id = (await client.post("/runs", {"recipe": recipe, "inputs": {}})).json["run_id"]
        await client.ended(run_id)

    async def listed(query: str) -> tuple[list[str], int]:
        found = (await client.get(f"/approvals?{query}")).json
        return [each["recipe"] for each in found["approvals"]], found["total"]

    assert await listed("kind=question") == (["asks", "asks"], 2)
    assert await listed("kind=question&limit=1&offset=1") == (["asks"], 2)
    assert await listed("recipe=signs") == (["signs"], 1)
    assert await listed("recipe=signs&kind=plan") == ([], 0)
    refused = await client.get("/approvals?kind=answer")
    assert (refused.status, refused.json["code"]) == (400, "bad-query")


async def test_an_approved_call_is_made_and_the_run_goes_on(client: Client) -> None:
    view = await waiting(client, "signs")
    assert (view["what"], view["tool"], view["arguments"], view["step_id"]) == (
        "approval",
        "sign",
        '{"text":"a treaty"}',
        "sign",
    )
    said = {"decision": "approve", "digest": view["digest"]}
    reply = await client.post(f"/approvals/{view['id']}", said)
    assert (reply.status, reply.json["run_id"]) == (202, view["run_id"])
    run = await client.ended(view["run_id"])
    assert (run["status"], run["output"]) == ("completed", "sign: a treaty")
    assert (await client.get("/approvals")).json["approvals"] == []
    again = await client.post(f"/approvals/{view['id']}", said)
    assert (again.status, again.json["code"]) == (409, "already-decided")


async def test_a_rejected_call_is_not_made(client: Client) -> None:
    view = await waiting(client, "signs")
    said = {"decision": "reject", "digest": view["digest"]}
    assert (await client.post(f"/approvals/{view['id']}", said)).status == 202
    run = await client.ended(view["run_id"])
    assert (run["status"], run["error"]["code"]) == ("failed", "approval-denied")


async def test_an_approval_may_edit_the_arguments(client: Client) -> None:
    """A-118."""
    view = await waiting(client, "signs")
    said = {"decision": "approve", "digest": view["digest"], "arguments": {"text": "a letter"}}
    assert (await client.post(f"/approvals/{view['id']}", said)).status == 202
    assert (await client.ended(view["run_id"]))["output"] == "sign: a letter"


async def test_a_rejection_carries_its_reason(client: Client) -> None:
    """A-118."""
    view = await waiting(client, "signs")
    said = {"decision": "reject", "digest": view["digest"], "reason": "not ours"}
    assert (await client.post(f"/approvals/{view['id']}", said)).status == 202
    run = await client.ended(view["run_id"])
    assert "it was rejected: not ours. It was not called." in run["error"]["message"]
    assert run["notes"][-1]["facts"]["reason"] == "not ours"


async def test_consent_is_to_the_arguments_that_were_shown(client: Client) -> None:
    view = await waiting(client, "signs")
    path = f"/approvals/{view['id']}"
    other = await client.post(path, {"decision": "approve", "digest": "0123456789abcdef"})
    assert (other.status, other.json["code"]) == (409, "other-arguments")
    assert view["digest"] in other.json["detail"]
    without = await client.post(path, {"decision": "approve"})
    assert (without.status, without.json["code"]) == (422, "bad-decision")
    answer = await client.post(path, {"decision": "answer", "value": "yes"})
    assert answer.status == 422
    assert (await client.get("/approvals")).json["total"] == 1


async def test_an_answer_has_to_fit_the_form_and_is_not_coerced(client: Client) -> None:
    view = await waiting(client, "asks")
    assert (view["what"], view["question"], view["form"]) == (
        "answer",
        "How many?",
        {"type": "integer", "minimum": 1},
    )
    path = f"/approvals/{view['id']}"
    for wrong in (0, "3", None, [3]):
        reply = await client.post(path, {"decision": "answer", "value": wrong})
        assert (reply.status, reply.json["code"]) == (422, "bad-answer")
    approve = await client.post(path, {"decision": "approve", "digest": "x"})
    assert (approve.status, approve.json["code"]) == (422, "bad-decision")
    assert (await client.post(path, {"decision": "answer", "value": 3})).status == 202
    assert (await client.ended(view["run_id"]))["output"] == 3


async def test_two_people_who_decide_at_once_do_not_both_count(client: Client) -> None:
    view = await waiting(client, "signs")
    path = f"/approvals/{view['id']}"
    replies = await asyncio.gather(
        *(
            client.post(path, {"decision": word, "digest": view["digest"]})
            for word in ("approve", "reject", "approve")
        )
    )
    assert sorted(reply.status for reply in replies) == [202, 409, 409]
    assert {reply.json.get("code") for reply in replies} == {None, "already-decided"}


async def test_who_decides_second_is_told_who_decided_first_and_when(client: Client) -> None:
    view = await waiting(client, "asks")
    first = {"decision": "answer", "value": 3, "by": "Ann"}
    by_address = f"/runs/{view['run_id']}/decisions"
    assert (await client.post(by_address, first)).status == 202
    for path in (f"/approvals/{view['id']}", by_address):
        late = await client.post(path, {"decision": "answer", "value": 4, "by": "Bob"})
        assert (late.status, late.json["code"]) == (409, "already-decided")
        assert "This was decided by Ann at 20" in late.json["detail"]
        assert late.json["detail"].endswith("Z: '3'. Yours was not used.")
    run = await client.ended(view["run_id"])
    assert run["output"] == 3
    [note] = [each for each in run["notes"] if each["state"] == "answer"]
    assert (note["facts"]["by"], note["facts"]["at"][:2]) == ("Ann", "20")


async def test_a_name_of_who_decides_is_bounded(client: Client) -> None:
    view = await waiting(client, "asks")
    said = {"decision": "answer", "value": 3, "by": "x" * 101}
    reply = await client.post(f"/approvals/{view['id']}", said)
    assert reply.status == 422


async def test_unknown_ids_are_not_found(client: Client) -> None:
    for wrong in ("x", "run_x.000000000000", ".", "ä"):
        reply = await client.post(f"/approvals/{wrong}", {"decision": "reject", "digest": "x"})
        assert (reply.status, reply.json["code"]) == (404, "unknown-approval")


@pytest.mark.parametrize(
    ("said", "output"),
    [({"decision": "done", "value": "signed before"}, "signed before"), ({"decision": "redo"}, 2)],
)
async def test_a_call_that_was_cut_off_is_decided_in_the_inbox(
    make_app: MakeApp, recipes: Path, said: JsonValue, output: JsonValue
) -> None:
    (recipes / "once.yaml").write_text(
        "id: once\npermissions: {allow_write: true}\nsteps: [{id: a, tool: pay}]\n"
        "output: '{{ a }}'\n"
    )
    calls: list[object] = []
    called = asyncio.Event()

    async def pay(_arguments: object) -> int:
        calls.append(None)
        called.set()
        if len(calls) == 1:
            await asyncio.Event().wait()
        return len(calls)

    app = make_app(tools=[fake_tool("pay", pay, effect=Effect.ONCE)])
    client = Client(app)
    run_id = (await client.post("/runs", {"recipe": "once"})).json["run_id"]
    await called.wait()
    execution = app.app_state.run_manager.find(run_id)
    assert execution is not None
    execution.task.cancel()
    assert (await client.ended(run_id))["status"] == "cancelled"
    await resume(app, run_id)
    await client.ended(run_id)
    [view] = (await client.get("/approvals")).json["approvals"]
    assert (view["what"], view["tool"], view["run_id"]) == ("doubt", "pay", run_id)
    wrong = await client.post(f"/approvals/{view['id']}", {"decision": "approve"})
    assert (wrong.status, wrong.json["code"]) == (422, "bad-decision")
    assert (await client.post(f"/approvals/{view['id']}", said)).status == 202
    assert (await client.ended(run_id))["output"] == output


async def test_an_operator_may_decide_beforehand(make_app: MakeApp) -> None:
    for policy, status in (("all", "completed"), ("deny", "failed")):
        client = Client(make_app(settings=Settings(no_store=True, approve=policy)))
        run_id = (await client.post("/runs", {"recipe": "signs"})).json["run_id"]
        assert (await client.ended(run_id))["status"] == status


EACH = """
id: each
steps:
  - {id: who, ask: "To whom, beside {{ loop.item }}?", loop: [Ada, Bob]}
output: "{{ who.results }}"
"""


async def test_what_a_run_waits_for_is_decided_by_its_address(
    make_app: MakeApp, recipes: Path
) -> None:
    """A-115: also a retry starts there, and one execution is shown."""
    (recipes / "each.yaml").write_text(EACH, "utf-8")
    client = Client(make_app())
    run_id = (await client.post("/runs", {"recipe": "each", "inputs": {}})).json["run_id"]
    run = await client.ended(run_id)
    assert [each["address"] for each in run["waiting"]] == ["who[0]", "who[1]"]
    path = f"/runs/{run_id}/decisions"
    several = await client.post(path, {"decision": "answer", "value": "x", "address": "who"})
    assert several.json["code"] == "unknown-call"
    assert "'who' means 2 of them" in several.json["detail"]
    none = await client.post(path, {"decision": "answer", "value": "x", "address": "who[7]"})
    assert (none.status, none.json["code"]) == (404, "unknown-approval")
    said = {"decision": "answer", "value": "Eve", "address": "who[1]"}
    assert (await client.post(path, said)).status == 202
    run = await client.ended(run_id)
    assert [each["address"] for each in run["waiting"]] == ["who[0]"]
    assert (await client.post(path, {"decision": "answer", "value": "Flo"})).status == 202
    assert (await client.ended(run_id))["output"] == ["Flo", "Eve"]
    again = await client.post(f"/runs/{run_id}/retry", {"from_step": "who[0]"})
    assert again.status == 202
    run = await client.ended(run_id)
    assert [each["address"] for each in run["waiting"]] == ["who[0]"]
    shown = await client.get(f"/runs/{run_id}/steps?address=who%5B1%5D")
    assert shown.json["step"]["output"] == "Eve"


async def test_a_question_of_a_tool_is_answered_or_declined(
    make_app: MakeApp, recipes: Path
) -> None:
    """A-135."""
    (recipes / "orders.yaml").write_text(
        "id: orders\nsteps:\n  - {id: lamp, tool: order}\noutput: '{{ lamp }}'\n"
    )
    client = Client(make_app(tools=[order]))
    answered = await waiting(client, "orders")
    assert (answered["what"], answered["question"], answered["can_decline"]) == (
        "answer",
        "Which colour?",
        True,
    )
    body = {"decision": "answer", "value": {"colour": "red"}}
    assert (await client.post(f"/approvals/{answered['id']}", body)).status == 202
    assert (await client.ended(answered["run_id"]))["output"] == {"colour": "red", "count": 1}
    declined = await waiting(client, "orders")
    path = f"/approvals/{declined['id']}"
    assert (await client.post(path, {"decision": "reject", "reason": "none"})).status == 202
    assert (await client.ended(declined["run_id"]))["output"] == "question-declined"


async def test_the_question_of_a_step_is_not_declined(client: Client) -> None:
    """A-135."""
    view = await waiting(client, "asks")
    reply = await client.post(f"/approvals/{view['id']}", {"decision": "reject"})
    assert (reply.status, reply.json["code"]) == (422, "bad-decision")
    assert view["can_decline"] is False


@tool(effect="pure")
async def order(scope: ToolScope) -> object:
    """Orders a lamp."""
    form: dict[str, JsonValue] = {
        "type": "object",
        "properties": {"colour": {"type": "string"}, "count": {"type": "integer", "default": 1}},
        "required": ["colour", "count"],
    }
    assert scope.questions is not None
    try:
        return await scope.questions.ask("Which colour?", form)
    except ToolError as error:
        if error.error_code == "needs-decision":
            raise
        return error.error_code
