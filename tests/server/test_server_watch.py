"""What scorers say of a server's runs: on its metrics, in its list of recipes, and by its hooks."""

from __future__ import annotations

from pathlib import Path

from asgi_client import Client
from minions.contracts.waiting import RunWait
from minions.interfaces.http.tokens import CallerToken
from served import MakeApp

WATCHED = """
id: watched
inputs: {n: integer}
watch: {sample: 1, at_least: 0.9, scorers: [{holds: "output > 0"}]}
steps: [{id: a, set: {n: "{{ inputs.n }}"}}]
output: "{{ a.n }}"
"""
LABELS = 'recipe="watched",scorer="holds output > 0"}'
OTHERS = "owner-token-of-the-tests-0123456789"


async def _run(client: Client, *numbers: int) -> list[str]:
    """Run the recipe with these; the ids of the runs."""
    ids = []
    for number in numbers:
        reply = await client.post("/runs", {"recipe": "watched", "inputs": {"n": number}})
        ids.append(str(reply.json["run_id"]))
        await client.ended(ids[-1])
    return ids


async def test_what_scorers_say_is_on_metrics_and_in_the_list(
    make_app: MakeApp, recipes: Path, tmp_path: Path
) -> None:
    (recipes / "watched.yaml").write_text(WATCHED, "utf-8")
    told: list[RunWait] = []
    app = make_app(
        journal=tmp_path / "j.sqlite", on_waiting=told.append, public_url="https://board.example/"
    )
    client = Client(app)
    assert "minions_watch" not in (await client.ask("GET", "/metrics")).body.decode()
    runs = await _run(client, *[1, -1] * 10)
    assert (await client.get("/recipes/watched")).json["watch"] is None
    assert await app.app_state.scores.look() == 20
    page = (await client.ask("GET", "/metrics")).body.decode()
    labels = f'{{project="{app.app_state.runtime.services.project}",{LABELS}'
    for name, value in (("pass_rate", "0.5"), ("scored_runs", "20.0"), ("alarm", "1.0")):
        assert f"minions_watch_{name}{labels} {value}\n" in page
    for name in ("pass_rate_low", "pass_rate_high"):
        assert f"minions_watch_{name}{labels} 0." in page
    (scorer,) = (await client.get("/recipes/watched")).json["watch"]["scorers"]
    assert (scorer["rate"], scorer["scored"], scorer["run_id"]) == (0.5, 20, runs[-1])
    assert scorer["low"] < 0.5 < scorer["high"] < 0.9
    assert scorer["alarm_since"] is not None
    rows = {row["id"]: row for row in (await client.get("/recipes")).json["recipes"]}
    assert rows["watched"]["watch"]["scorers"] == [scorer]
    assert rows["adds"]["watch"] is None
    await app.app_state.waiting_notices.told()
    (alarm,) = told
    assert (alarm.recipe, alarm.run_id) == ("watched", runs[-1])
    assert alarm.address == f"https://board.example/#/runs/{runs[-1]}"


async def test_a_user_is_not_told_of_the_runs_of_others(make_app: MakeApp, recipes: Path) -> None:
    (recipes / "watched.yaml").write_text(WATCHED, "utf-8")
    token = CallerToken.of(name="anna", token=OTHERS, scopes=("read", "run"), user="anna")
    app = make_app(tokens=(token,))
    client = Client(app)
    await _run(client, -1)
    await app.app_state.scores.look()
    assert (await client.get("/recipes/watched")).json["watch"] is not None
    reply = await client.ask(
        "GET", "/api/v1/recipes/watched", None, {"authorization": f"Bearer {OTHERS}"}
    )
    assert (reply.status, reply.json["watch"]) == (200, None)


async def test_a_server_looks_at_intervals_until_it_stops(make_app: MakeApp) -> None:
    app = make_app()
    await app.start()
    looking = app._scoring
    assert looking is not None
    assert not looking.done()
    await app.aclose()
    assert looking.cancelling() or looking.cancelled()
