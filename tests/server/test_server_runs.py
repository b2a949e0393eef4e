"""Runs over HTTP: begun once, looked at, stopped."""

from __future__ import annotations

import asyncio
from pathlib import Path

from asgi_client import Client
from minions.contracts.journal.journal import EntryDraft
from served import RECIPES, Door, MakeApp


async def test_a_run_is_accepted_and_goes_on_by_itself(client: Client) -> None:
    reply = await client.post("/runs", {"recipe": "adds", "inputs": {"a": 2}})
    assert reply.status == 202
    run_id, session_id = reply.json["run_id"], reply.json["session_id"]
    assert reply.headers["location"] == f"/api/v1/runs/{run_id}"
    assert reply.json["links"] == {
        "run": f"/api/v1/runs/{run_id}",
        "events": f"/api/v1/runs/{run_id}/events",
        "cancel": f"/api/v1/runs/{run_id}/cancel",
        "session": f"/api/v1/sessions/{session_id}",
    }
    run = await client.ended(run_id)
    assert (run["status"], run["output"], run["inputs"]) == ("completed", 3, {"a": 2, "b": 1})
    assert [(step["id"], step["status"]) for step in run["steps"]] == [("sum", "completed")]


async def test_the_same_key_and_body_is_the_same_run(client: Client) -> None:
    body = {"recipe": "adds", "inputs": {"a": 2, "b": 3}}
    again = {"inputs": {"b": 3, "a": 2}, "recipe": "adds"}
    replies = await asyncio.gather(
        *(client.post("/runs", each, idempotency_key="k1") for each in (body, again, body))
    )
    assert {reply.status for reply in replies} == {202}
    assert len({reply.json["run_id"] for reply in replies}) == 1
    await client.ended(replies[0].json["run_id"])
    late = await client.post("/runs", body, idempotency_key="k1")
    assert (late.status, late.json["status"]) == (202, "completed")
    assert (await client.get("/runs")).json["total"] == 1


async def test_a_key_that_was_used_for_another_body_is_refused(client: Client) -> None:
    await client.post("/runs", {"recipe": "adds", "inputs": {"a": 2}}, idempotency_key="k1")
    reply = await client.post("/runs", {"recipe": "adds", "inputs": {"a": 3}}, idempotency_key="k1")
    assert (reply.status, reply.json["code"]) == (422, "idempotency-mismatch")


async def test_a_key_is_known_after_a_restart(make_app: MakeApp, tmp_path: Path) -> None:
    body = {"recipe": "adds", "inputs": {"a": 2}}
    first = make_app(journal=tmp_path / "j.sqlite")
    before = (await Client(first).post("/runs", body, idempotency_key="k1")).json["run_id"]
    await first.aclose()
    second = Client(make_app(journal=tmp_path / "j.sqlite"))
    assert (await second.post("/runs", body, idempotency_key="k1")).json["run_id"] == before


async def test_wrong_inputs_are_told_as_on_the_command_line(client: Client) -> None:
    reply = await client.post("/runs", {"recipe": "adds", "inputs": {"a": "2", "c": 1}})
    assert reply.status == 422
    assert reply.headers["content-type"] == "application/problem+json"
    assert reply.json == {
        "type": "urn:minions:problem:bad-input",
        "title": "Unprocessable Entity",
        "status": 422,
        "detail": "There is no input 'c'. Inputs are: a, b.\n"
        "The input 'a' does not fit: $: '2' is not of type 'integer'",
        "code": "bad-input",
        "category": "contract",
        "suggestions": [],
        "instance": "/api/v1/runs",
    }


async def test_an_unknown_key_is_refused_with_the_near_one(client: Client) -> None:
    reply = await client.post("/runs", {"recipee": "adds", "inputs": []})
    assert (reply.status, reply.json["suggestions"]) == (422, ["recipe"])
    assert reply.json["detail"] == (
        "The body has the unknown key 'recipee'. Did you mean 'recipe'?\n"
        "The body does not fit: $.inputs: [] is not of type 'object'\n"
        "Keys are: recipe, recipe_text, inputs, session, user, by, patience."
    )


async def test_an_unknown_recipe_or_session_is_not_found(client: Client) -> None:
    reply = await client.post("/runs", {"recipe": "add"})
    assert (reply.status, reply.json["code"]) == (404, "recipe-not-found")
    assert reply.json["suggestions"] == ["adds"]
    body = {"recipe": "adds", "inputs": {"a": 1}, "session": "ses_none"}
    assert (await client.post("/runs", body)).json["code"] == "unknown-session"


async def test_a_path_is_no_id_of_a_recipe(client: Client, recipes: Path) -> None:
    for name in (str(recipes / "adds.yaml"), "adds.yaml", "../recipes/adds.yaml"):
        assert (await client.post("/runs", {"recipe": name})).status == 404


async def test_a_broken_recipe_is_refused(client: Client) -> None:
    reply = await client.post("/runs", {"recipe": "broken"})
    assert (reply.status, reply.json["code"]) == (422, "invalid-recipe")


async def test_the_faults_of_a_recipe_in_the_request_are_told(make_app: MakeApp) -> None:
    client = Client(make_app(allow_recipe_bodies=True))
    reply = await client.post("/runs", {"recipe_text": RECIPES["broken"]})
    assert (reply.status, reply.json["code"]) == (422, "invalid-recipe")
    assert [(fault["line"], fault["code"]) for fault in reply.json["faults"]][:1] == [
        (3, "kind-missing")
    ]


async def test_a_request_brings_no_recipe_unless_that_is_allowed(make_app: MakeApp) -> None:
    body = {"recipe_text": "id: own\nsteps: [{id: a, set: {n: 5}}]\noutput: '{{ a.n }}'\n"}
    refused = await Client(make_app()).post("/runs", body)
    assert (refused.status, refused.json["code"]) == (403, "recipe-text-refused")
    client = Client(make_app(allow_recipe_bodies=True))
    run_id = (await client.post("/runs", body)).json["run_id"]
    assert (await client.ended(run_id))["output"] == 5


async def test_a_cancelled_run_keeps_what_it_did(client: Client, door: Door) -> None:
    run_id = (await client.post("/runs", {"recipe": "waits"})).json["run_id"]
    await door.reached.wait()
    assert (await client.get(f"/runs/{run_id}")).json["is_active"] is True
    reply = await client.post(f"/runs/{run_id}/cancel")
    assert (reply.status, reply.json) == (202, {"run_id": run_id, "status": "running"})
    run = await client.ended(run_id)
    assert (run["status"], run["steps"][0]["status"]) == ("cancelled", "completed")
    again = await client.post(f"/runs/{run_id}/cancel")
    assert (again.status, again.json["code"]) == (409, "run-over")


async def test_a_session_has_one_run_at_a_time(client: Client, door: Door) -> None:
    first = (await client.post("/runs", {"recipe": "waits"})).json
    await door.reached.wait()
    body = {"recipe": "adds", "inputs": {"a": 1}, "session": first["session_id"]}
    reply = await client.post("/runs", body)
    assert (reply.status, reply.json["code"]) == (409, "lease-held")
    door.opened.set()
    await client.ended(first["run_id"])
    assert (await client.post("/runs", body)).status == 202


async def test_more_runs_than_allowed_are_sent_away_for_a_while(
    make_app: MakeApp, door: Door
) -> None:
    client = Client(make_app(max_runs=1))
    await client.post("/runs", {"recipe": "waits"})
    reply = await client.post("/runs", {"recipe": "waits"})
    assert (reply.status, reply.json["code"]) == (429, "too-many-runs")
    assert int(reply.headers["retry-after"]) > 0
    door.opened.set()


async def test_runs_are_listed_in_pages_and_by_what_they_are(client: Client) -> None:
    ids = []
    for number in range(3):
        reply = await client.post("/runs", {"recipe": "adds", "inputs": {"a": number}})
        ids.append(reply.json["run_id"])
        await client.ended(ids[-1])
    page = (await client.get("/runs?limit=2&offset=1&recipe=adds&status=completed")).json
    assert [run["run_id"] for run in page["runs"]] == [ids[1], ids[0]]
    assert (page["total"], page["limit"], page["offset"]) == (3, 2, 1)
    assert (await client.get("/runs?status=failed")).json["runs"] == []


async def test_the_words_of_a_filter_are_looked_for_in_all_runs(client: Client) -> None:
    added = await client.post("/runs", {"recipe": "adds", "inputs": {"a": 1}})
    asked = await client.post("/runs", {"recipe": "asks"})
    for reply in (added, asked):
        await client.ended(reply.json["run_id"])
    run_id, session_id = added.json["run_id"], added.json["session_id"]
    for text in (run_id, session_id, f"ADDS%20{run_id[4:9]}", "completed", f"%20{run_id}+adds"):
        page = (await client.get(f"/runs?text={text}&limit=1")).json
        assert [run["run_id"] for run in page["runs"]] == [run_id], text
    assert (await client.get(f"/runs?text={run_id}+asks")).json["total"] == 0
    assert (await client.get("/runs?text=completed&recipe=asks")).json["total"] == 0
    assert (await client.get("/runs?text=a&limit=1&offset=1")).json["total"] == 2


async def test_a_search_narrows_the_list_of_runs_by_its_terms(client: Client) -> None:
    added = await client.post("/runs", {"recipe": "adds", "inputs": {"a": 1}})
    asked = await client.post("/runs", {"recipe": "asks"})
    for reply in (added, asked):
        await client.ended(reply.json["run_id"])
    for query, count in {
        "status%3Acompleted+recipe%3Aadds+since%3A2d": 1,
        "status%3Acompleted+status%3Aneeds_decision": 2,
        "%22a%3A+1%22": 1,
        "recipe%3Aasks+cost%3E1000": 0,
    }.items():
        page = (await client.get(f"/runs?q={query}")).json
        assert (page["total"], len(page["runs"])) == (count, count), query
    assert (await client.get("/runs?q=recipe%3Aadds&status=failed")).json["total"] == 0


async def test_a_search_that_cannot_be_read_is_refused_with_the_place(client: Client) -> None:
    reply = await client.get("/runs?q=late+stauts%3Afailed")
    assert (reply.status, reply.json["code"]) == (422, "bad-search")
    assert "character 6 of the search" in reply.json["detail"]
    assert "Did you mean 'status'?" in reply.json["detail"]
    reply = await client.get("/runs?q=recipe%3Aadds&recipe=adds")
    assert (reply.status, reply.json["code"]) == (422, "bad-search")


async def test_a_query_is_read_strictly(client: Client) -> None:
    for query, words in {
        "limit=0": "$.limit: 0 is less than the minimum of 1",
        "limit=1001": "$.limit: 1001 is greater than the maximum of 1000",
        "limit=x": "$.limit: 'x' is not of type 'integer'",
        "limt=1": "the unknown key 'limt'. Did you mean 'limit'?",
        "limit=1&limit=2": "gives 'limit' twice",
    }.items():
        reply = await client.get(f"/runs?{query}")
        assert (reply.status, reply.json["code"]) == (400, "bad-query")
        assert words in reply.json["detail"]


async def test_bodies_that_are_no_json_are_refused(client: Client) -> None:
    cases: dict[bytes, tuple[int, str]] = {
        b"{": (400, "bad-json"),
        b'{"recipe": "a", "recipe": "b"}': (400, "bad-json"),
        b'{"inputs": {"a": NaN}}': (400, "bad-json"),
        b"[" * 5000: (400, "bad-json"),
        b'{"inputs": ' + b'{"a":' * 200 + b"1" + b"}" * 201: (400, "bad-json"),
        b'{"recipe": "\xff"}': (400, "bad-json"),
        b'{"recipe": "\\ud800"}': (422, "bad-body"),
        b"[]": (422, "bad-body"),
    }
    for body, (status, code) in cases.items():
        reply = await client.ask("POST", "/api/v1/runs", body)
        assert (reply.status, reply.json["code"]) == (status, code), body[:30]
    other = await client.ask("POST", "/api/v1/runs", b"a=b", {"content-type": "text/plain"})
    assert (other.status, other.json["code"]) == (415, "not-json")


async def test_what_takes_no_body_and_no_query_takes_none(client: Client) -> None:
    no_json = {"content-type": "text/plain"}
    for method, path, body, headers, expected in (
        ("GET", "/health?limit=1", None, {}, (400, "bad-query")),
        ("GET", "/system", b'{"a": 1}', {}, (422, "bad-body")),
        ("POST", "/runs/none/cancel?a=1", None, {}, (400, "bad-query")),
        ("POST", "/runs/none/cancel", {"a": 1}, {}, (422, "bad-body")),
        ("POST", "/runs/none/cancel", b"{}", no_json, (415, "not-json")),
        ("POST", "/runs/none/cancel", b" {} ", {}, (404, "unknown-run")),
        ("POST", "/runs/none/cancel", b" \n", no_json, (404, "unknown-run")),
    ):
        reply = await client.ask(method, f"/api/v1{path}", body, headers)
        assert (reply.status, reply.json["code"]) == expected, (path, body)


async def test_an_empty_body_is_one_without_keys(client: Client) -> None:
    reply = await client.ask("POST", "/api/v1/sessions", b"", {"content-type": "text/plain"})
    assert (reply.status, reply.json["code"]) == (422, "bad-body")
    assert "'recipe' is a required property" in reply.json["detail"]
    assert (await client.ask("POST", "/api/v1/runs/none/retry", b"")).status == 404


async def test_an_unexpected_error_has_a_number_and_no_words(make_app: MakeApp) -> None:
    app = make_app()
    app.app_state.journal.runs = _bursts  # type: ignore[method-assign,assignment]  # what no journal does
    reply = await Client(app).get("/runs")
    assert (reply.status, reply.json["code"]) == (500, "internal")
    assert reply.json["instance"].startswith("urn:minions:incident:err_")
    assert "kaputt" not in reply.body.decode()


async def _bursts(*_: object, **__: object) -> list[EntryDraft]:
    raise ZeroDivisionError("kaputt")


async def test_runs_show_the_first_words_of_their_inputs_and_are_found_by_them(
    client: Client,
) -> None:
    for inputs in ({"text": "peace with  the\nneighbours"}, {}):
        begun = await client.post("/runs", {"recipe": "signs", "inputs": inputs})
        await client.ended(begun.json["run_id"])
    await client.ended(
        (await client.post("/runs", {"recipe": "adds", "inputs": {"a": 7}})).json["run_id"]
    )
    rows = (await client.get("/runs")).json["runs"]
    assert [row["about"] for row in rows] == [
        "a: 7 · b: 1",
        "a treaty",
        "peace with the neighbours",
    ]
    found = (await client.get("/runs?text=neighbours%20peace")).json
    assert [row["about"] for row in found["runs"]] == ["peace with the neighbours"]
    assert found["total"] == 1


async def test_long_inputs_are_shown_by_their_beginning_only(client: Client) -> None:
    text = "word " * 10_000
    begun = await client.post("/runs", {"recipe": "signs", "inputs": {"text": text}})
    await client.ended(begun.json["run_id"])
    (row,) = (await client.get("/runs")).json["runs"]
    assert row["about"] == f"{text[:159]}…"
