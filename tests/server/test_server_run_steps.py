"""One step of a run and the items of a loop over HTTP."""

from __future__ import annotations

import json
from pathlib import Path

from asgi_client import Client
from minions.adapters.models.script_items import Answer
from minions.contracts.calls import Prompt
from served import MakeApp

LOOP = """
id: loop
inputs: {names: {type: array}}
steps:
  - id: each
    loop: "{{ inputs.names }}"
    on_item_error: collect
    goal: "Greet {{ loop.item }}."
"""


def greet(prompt: Prompt) -> Answer:
    """The prompt again; nobody called Eve is greeted."""
    words = prompt.messages[-1].content or ""
    return RuntimeError("no Eve") if "Eve" in words else f"Hello: {words}"


async def _loop(make_app: MakeApp, recipes: Path, names: list[str]) -> tuple[Client, str]:
    (recipes / "loop.yaml").write_text(LOOP, "utf-8")
    client = Client(make_app(answers=greet))
    reply = await client.post("/runs", {"recipe": "loop", "inputs": {"names": names}})
    run_id = str(reply.json["run_id"])
    await client.ended(run_id)
    return client, run_id


async def test_the_items_of_a_loop_are_listed_in_pages_with_true_totals(
    make_app: MakeApp, recipes: Path
) -> None:
    client, run_id = await _loop(make_app, recipes, ["Ada", "Eve", "Ida", "Uta"])
    page = (await client.get(f"/runs/{run_id}/items?step=each&limit=2&offset=1")).json
    assert [(each["index"], each["status"]) for each in page["items"]] == [
        (1, "failed"),
        (2, "completed"),
    ]
    assert page["total"] == 4
    totals = page["totals"]
    assert (totals["total"], totals["ended"], totals["failed"]) == (4, 4, 1)
    assert totals["usage"]["total_tokens"] > 0
    assert "no Eve" in page["items"][0]["error"]["message"]


async def test_items_are_filtered_by_status(make_app: MakeApp, recipes: Path) -> None:
    client, run_id = await _loop(make_app, recipes, ["Ada", "Eve"])
    page = (await client.get(f"/runs/{run_id}/items?step=each&status=failed")).json
    assert [each["address"] for each in page["items"]] == ["each[1]"]
    assert page["totals"]["total"] == 2
    none = (await client.get(f"/runs/{run_id}/items?step=other")).json
    assert (none["items"], none["total"]) == ([], 0)


async def test_an_item_has_its_own_prompt_answer_and_sections(
    make_app: MakeApp, recipes: Path
) -> None:
    client, run_id = await _loop(make_app, recipes, ["Ada", "Ida"])
    found = (await client.get(f"/runs/{run_id}/steps?address=each%5B1%5D")).json
    assert [each["content"] for each in found["messages"]] == ["Greet Ida.", "Hello: Greet Ida."]
    assert found["step"]["output"] == "Hello: Greet Ida."
    assert [set(each["sections"]) for each in found["prompts"]] == [{"goal"}]
    whole = (await client.get(f"/runs/{run_id}/steps?address=each")).json
    assert whole["messages"] == []
    assert whole["step"]["output"]["results"][0] == "Hello: Greet Ada."


async def test_a_step_that_is_not_recorded_is_told(make_app: MakeApp, recipes: Path) -> None:
    client, run_id = await _loop(make_app, recipes, ["Ada"])
    reply = await client.get(f"/runs/{run_id}/steps?address=each%5B7%5D")
    assert (reply.status, reply.json["code"]) == (404, "unknown-step")


ESSAY = """
id: essay
steps:
  - {id: write, goal: Write.}
  - {id: list, depends_on: [write], set: {many: ["{{ write }}", "{{ write }}"], n: 1}}
output: "{{ write }}"
"""
LONG = ("a-long-text-" * 25 + " ") * 2_000  # few words: each is a delta of its stream


async def _essay(make_app: MakeApp, recipes: Path) -> tuple[Client, str]:
    (recipes / "essay.yaml").write_text(ESSAY, "utf-8")
    client = Client(make_app(answers=[LONG]))
    run_id = str((await client.post("/runs", {"recipe": "essay"})).json["run_id"])
    await client.ended(run_id)
    return client, run_id


async def test_large_values_are_cut_where_that_is_asked_for_and_can_be_had_in_whole(
    make_app: MakeApp, recipes: Path
) -> None:
    client, run_id = await _essay(make_app, recipes)
    whole = (await client.get(f"/runs/{run_id}")).json
    assert (whole["output"], whole["cut"]) == (LONG, [])
    reply = await client.get(f"/runs/{run_id}?cut=1000")
    assert len(reply.body) < 20_000
    view = reply.json
    assert LONG.startswith(view["output"])
    assert 900 < len(view["output"]) <= 1000
    cut = {each["path"]: each for each in view["cut"]}
    assert cut["/output"]["total"] == len(LONG)
    assert cut["/output"]["shown"] == len(view["output"])
    assert cut["/output"]["digest"] == cut["/messages/1/message/content"]["digest"]
    assert cut["/steps/1/output"]["total"] == 2  # of its members, one is shown
    for path, part in (("/output", LONG), ("/messages/1/message/content", LONG)):
        value = (await client.get(f"/runs/{run_id}/value?at={path}")).json["value"]
        assert value == part


async def test_a_step_is_cut_likewise_and_what_is_short_stays_whole(
    make_app: MakeApp, recipes: Path
) -> None:
    client, run_id = await _essay(make_app, recipes)
    view = (await client.get(f"/runs/{run_id}/steps?address=write&cut=500")).json
    assert [each["path"] for each in view["cut"]] == ["/step/output", "/messages/1/content"]
    assert view["messages"][1]["metrics"]
    query = "address=write&at=/messages/1/content"
    assert (await client.get(f"/runs/{run_id}/value?{query}")).json["value"] == LONG
    short = (await client.get(f"/runs/{run_id}/steps?address=write&cut=1000000")).json
    assert (short["cut"], short["step"]["output"]) == ([], LONG)


async def test_a_run_without_messages_has_its_steps_only(make_app: MakeApp, recipes: Path) -> None:
    client, run_id = await _essay(make_app, recipes)
    view = (await client.get(f"/runs/{run_id}?parts=steps&cut=100")).json
    assert (view["messages"], view["prompts"]) == ([], [])
    assert len(view["steps"]) == 2


async def test_a_value_that_is_not_there_is_told(make_app: MakeApp, recipes: Path) -> None:
    client, run_id = await _essay(make_app, recipes)
    for path in ("/nothing", "/steps/99", "/steps/x", "/output/0"):
        reply = await client.get(f"/runs/{run_id}/value?at={path}")
        assert (reply.status, reply.json["code"]) == (404, "unknown-value")


async def test_a_text_is_found_in_prompts_answers_and_outputs_of_a_run(
    make_app: MakeApp, recipes: Path
) -> None:
    client, run_id = await _loop(make_app, recipes, ["Ada", "Eve", "Ida"])
    found = (await client.get(f"/runs/{run_id}/search?text=GREET%20ida")).json
    assert {(each["address"], each["part"], each["match"]) for each in found["hits"]} == {
        ("each[2]", "prompt", "Greet Ida"),
        ("each[2]", "response", "Greet Ida"),
        ("each[2]", "output", "Greet Ida"),
        ("each", "output", "Greet Ida"),
        (None, "run", "Greet Ida"),
    }
    assert found["hits"][1]["before"] == "Hello: "
    few = (await client.get(f"/runs/{run_id}/search?text=Greet&limit=2")).json
    assert (len(few["hits"]), few["has_more"]) == (2, True)
    none = (await client.get(f"/runs/{run_id}/search?text=%20")).json
    assert (none["hits"], none["has_more"]) == ([], False)


async def test_a_run_is_exported_as_journal_lines_and_as_a_page(
    make_app: MakeApp, recipes: Path
) -> None:
    client, run_id = await _loop(make_app, recipes, ["Ada <b>", "Eve"])
    lines = await client.get(f"/runs/{run_id}/journal")
    assert lines.headers["content-type"] == "application/x-ndjson"
    rows = [json.loads(line) for line in lines.body.splitlines()]
    assert [row["position"] for row in rows] == list(range(1, len(rows) + 1))
    assert rows[0]["body"]["recipe"] == "loop"
    page = await client.get(f"/runs/{run_id}/export.html")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert page.headers["content-disposition"] == f'attachment; filename="{run_id}.html"'
    text = page.body.decode()
    assert "Hello: Greet Ada &lt;b&gt;." in text
    assert "<b>each[1]</b>" in text
    assert "<svg" in text
    assert "<script" not in text
