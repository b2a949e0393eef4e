"""Inputs that a recipe makes the options of its tools from: a caller chooses what is offered."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from attrs import evolve

from asgi_client import Client
from minions import DefaultStep, MessageBundle
from minions.contracts.journal.start_note import Offer
from minions.data.json_values import JsonValue
from minions.engine.compile.extensions import Extensions
from minions.interfaces.http.http_answers import RefusedError
from minions.interfaces.server.server_runtime import CallerInputs
from minions.recipe.model import ToolsetUse
from minions.recipe.reading.load import load_recipe_text
from served import MakeApp

LOOKS = """
id: looks
inputs: {inputs}
tools: [{{files: {{root: '{root}'}}}}]
steps: [{{id: all, tool: files__list, params: {{}}}}]
output: "{{{{ all }}}}"
"""
ASKS_HOST = """
id: hosts
inputs: {host: {type: string, default: a.example}}
tools: [{http: {allow: ["{{ inputs.host }}"]}}]
steps: [{id: get, tool: http__get, params: {url: "http://a.example"}}]
"""
OUTER = """
id: outer
inputs: {where: {type: string}}
steps: [{id: within, recipe: looks, with: {folder: "{{ inputs.where }}"}}]
"""


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "hunter2.txt").write_text("a secret")
    return folder


async def begun(client: Client, recipe: str, inputs: Mapping[str, JsonValue]) -> tuple[int, str]:
    reply = await client.post("/runs", {"recipe": recipe, "inputs": inputs})
    return reply.status, reply.json.get("code", "")


REFUSED = (403, "input-refused")


@pytest.mark.parametrize("kind", ["{type: string, format: path}", "{type: string}", "{}"])
async def test_a_caller_chooses_no_folder_outside(
    client: Client, recipes: Path, outside: Path, kind: str
) -> None:
    """A-122."""
    text = LOOKS.format(inputs=f"{{folder: {kind}}}", root="{{ inputs.folder }}")
    (recipes / "looks.yaml").write_text(text)
    (recipes / "inner").mkdir()
    (recipes / "link").symlink_to(outside)
    places = (str(outside), "/", "~", "..", f"{recipes}/../outside", str(recipes / "link"), "\0")
    for place in places:
        assert await begun(client, "looks", {"folder": place}) == REFUSED, place
    assert (await begun(client, "looks", {"folder": str(recipes / "inner")}))[0] == 202


async def test_whether_a_folder_outside_exists_is_not_told(
    client: Client, recipes: Path, outside: Path
) -> None:
    text = LOOKS.format(inputs="{folder: {type: string}}", root="{{ inputs.folder }}")
    (recipes / "looks.yaml").write_text(text)
    answers = [
        await client.post("/runs", {"recipe": "looks", "inputs": {"folder": str(place)}})
        for place in (outside, outside / "none")
    ]
    assert answers[0].json["detail"] == answers[1].json["detail"]


async def test_parts_of_a_path_do_not_lead_outside_together(
    client: Client, recipes: Path, outside: Path
) -> None:
    """A-122."""
    text = LOOKS.format(
        inputs="{a: {type: string, default: inner}, b: {type: string, default: ''}}",
        root=f"{recipes}/{{{{ inputs.a }}}}{{{{ inputs.b }}}}/{outside.name}",
    )
    (recipes / "looks.yaml").write_text(text)
    assert await begun(client, "looks", {"a": ".", "b": "."}) == REFUSED


async def test_a_recipe_hands_no_folder_of_the_caller_to_a_recipe_within(
    client: Client, recipes: Path, outside: Path
) -> None:
    """A-122."""
    text = LOOKS.format(inputs="{folder: {type: string}}", root="{{ inputs.folder }}")
    (recipes / "looks.yaml").write_text(text)
    (recipes / "outer.yaml").write_text(OUTER)
    assert await begun(client, "outer", {"where": str(outside)}) == REFUSED


async def test_a_caller_chooses_no_host_that_a_tool_may_ask(client: Client, recipes: Path) -> None:
    """A-122."""
    (recipes / "hosts.yaml").write_text(ASKS_HOST)
    assert await begun(client, "hosts", {"host": "inside.example"}) == REFUSED
    assert (await begun(client, "hosts", {"host": "a.example"}))[0] == 202


async def test_what_the_recipe_lists_is_the_operators_choice(
    client: Client, recipes: Path, outside: Path
) -> None:
    listed = f"{{folder: {{enum: ['{outside}', '{recipes}']}}}}"
    text = LOOKS.format(inputs=listed, root="{{ inputs.folder }}")
    (recipes / "looks.yaml").write_text(text)
    assert (await begun(client, "looks", {"folder": str(outside)}))[0] == 202
    assert (await begun(client, "looks", {"folder": "/"}))[1] == "bad-input"


async def test_a_default_may_lead_anywhere_also_when_the_run_is_retried(
    client: Client, recipes: Path, outside: Path
) -> None:
    default = f"{{folder: {{type: string, format: path, default: ../{outside.name}}}}}"
    text = LOOKS.format(inputs=default, root="{{ inputs.folder }}")
    (recipes / "looks.yaml").write_text(text)
    reply = await client.post("/runs", {"recipe": "looks"})
    run_id = reply.json["run_id"]
    assert "hunter2.txt" in str((await client.ended(run_id))["output"])
    again = await client.post(f"/runs/{run_id}/retry", {"from_step": "all"})
    assert again.status == 202
    await client.ended(run_id)
    moved = {"inputs": {"folder": "/"}}
    assert (await client.post(f"/runs/{run_id}/retry", moved)).json["code"] == "input-refused"


async def test_the_operator_offers_further_folders(
    make_app: MakeApp, recipes: Path, outside: Path
) -> None:
    text = LOOKS.format(inputs="{folder: {type: string}}", root="{{ inputs.folder }}")
    (recipes / "looks.yaml").write_text(text)
    client = Client(make_app(input_folders=(str(outside),)))
    assert (await begun(client, "looks", {"folder": str(outside)}))[0] == 202


async def test_sessions_and_turns_take_no_folder_outside_either(
    client: Client, recipes: Path, outside: Path
) -> None:
    """A-122."""
    text = LOOKS.format(inputs="{folder: {type: string}}", root="{{ inputs.folder }}")
    (recipes / "looks.yaml").write_text(text)
    body = {"recipe": "looks", "inputs": {"folder": str(outside)}}
    assert (await client.post("/sessions", body)).json["code"] == "input-refused"
    task = {"inputs": {"folder": str(outside)}}
    assert (await client.post("/agents/looks/run", task)).json["code"] == "input-refused"


async def test_a_caller_chooses_no_workspace_of_a_plan_outside(
    client: Client, recipes: Path, outside: Path
) -> None:
    """A-122."""
    (recipes / "plans.yaml").write_text(
        "id: plans\npermissions: {allow_write: true}\ninputs: {where: {type: string}}\n"
        "steps: [{id: work, plan: Write, workspace: '{{ inputs.where }}'}]\n"
    )
    assert await begun(client, "plans", {"where": str(outside)}) == REFUSED


# --- the early check itself; what it passes over is refused where it is opened -------------------


def refusal(
    folder: Path, options: Mapping[str, JsonValue], inputs: str, given: Mapping[str, JsonValue]
) -> str:
    """What is said of the values; empty: nothing."""
    text = f"id: r\ninputs: {inputs}\nsteps: [{{id: s, set: {{n: 1}}}}]\n"
    read = load_recipe_text(text, "r.yaml", Extensions().catalog())
    steps = (*read.steps, DefaultStep(id="b", messages=MessageBundle.of(goal="Greet")))
    recipe = evolve(read, tools=(ToolsetUse(name="any", options=options),), steps=steps)
    try:
        CallerInputs(Offer.beneath([folder], way="http")).check(recipe, given)
    except RefusedError as error:
        return error.message
    return ""


HOSTS: Mapping[str, JsonValue] = {"allow": ["{{ inputs.a }}"]}
FILES: Mapping[str, JsonValue] = {"root": "{{ inputs.a }}"}


def test_a_folder_is_offered_where_one_is_meant_and_as_nothing_else(tmp_path: Path) -> None:
    inputs = "{a: {}}"
    assert refusal(tmp_path, FILES, inputs, {"a": "below"}) == ""
    folder = refusal(tmp_path, FILES, inputs, {"a": "/"})
    assert "or a folder beneath those of the server" in folder
    host = refusal(tmp_path, HOSTS, inputs, {"a": "below"})
    assert "chooses `allow`" in host
    assert "or a folder beneath" not in host


@pytest.mark.parametrize(
    ("value", "is_taken"),
    [
        *((each, True) for each in (5, 1.5, None, [], [1, None, 2.5], [[3]])),
        *((each, False) for each in (True, "x", "", ["x", 1], [1, "x"], {"a": 1}, [[True]])),
    ],
)
def test_a_number_opens_nothing(tmp_path: Path, value: JsonValue, is_taken: bool) -> None:
    assert (refusal(tmp_path, HOSTS, "{a: {}}", {"a": value}) == "") is is_taken


def test_inputs_that_no_tool_is_made_of_are_free_unless_they_are_paths(tmp_path: Path) -> None:
    assert refusal(tmp_path, {}, "{a: {type: string}}", {"a": "/"}) == ""
    assert refusal(tmp_path, {}, "{a: {type: string, format: path}}", {"a": "/"}) != ""


def test_an_input_that_is_not_declared_is_refused_by_the_run(tmp_path: Path) -> None:
    assert refusal(tmp_path, HOSTS, "{b: {}}", {"a": "x"}) == ""


@pytest.mark.parametrize(
    ("root", "given", "is_taken"),
    [
        ("/{{ inputs.a }}", {"a": "etc"}, False),
        ("{{ inputs.a }}/../..", {"a": "."}, False),
        ("{{ '/' ~ inputs.a }}", {"a": "etc"}, False),
        ("{{ inputs.a }}/x", {"a": "."}, True),
        ("{{ inputs.a }}/x", {"b": "free"}, True),  # the default is the operator's
        ("/{{ inputs.a }}", {"b": "free"}, True),
    ],
)
def test_a_folder_of_several_parts_is_looked_at_as_a_whole(
    tmp_path: Path, root: str, given: Mapping[str, JsonValue], is_taken: bool
) -> None:
    said = refusal(tmp_path, {"root": root}, "{a: {default: /elsewhere}, b: {default: x}}", given)
    assert (said == "") is is_taken
    assert is_taken or "The inputs together choose a folder" in said
