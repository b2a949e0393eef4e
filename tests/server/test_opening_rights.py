"""A run that a caller began opens what was offered, wherever a value came from."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asgi_client import Client
from builders import fake_tool
from minions.adapters.models.scripted import ScriptedModel
from minions.adapters.stores.memory_stores import MemoryStepCache
from minions.app.settings.settings import Settings
from minions.app.wiring.configured_runtime import Runtime, make_runtime
from minions.contracts.executions import AgentResult, RunStatus
from minions.contracts.journal.start_note import Offer
from minions.contracts.tools import Effect
from minions.data.json_values import JsonValue
from minions.engine.compile.extensions import Extensions
from minions.engine.run.recorded_run import load_recorded_run
from minions.engine.services.run_services import NullLog
from minions.interfaces.http.tokens import OVER_MCP
from minions.interfaces.server.app import App
from minions.interfaces.server.recipe_store import RecipeStore
from minions.interfaces.server.recipe_tools import RecipeTools
from minions.interfaces.server.server_runtime import ServerRuntime
from patience import HANG_S
from served import MakeApp

INNER = """
id: inner
inputs: {d: {type: string}}
tools: [{files: {root: "{{ inputs.d }}"}}]
steps: [{id: all, tool: files__list, params: {}}]
output: "{{ all }}"
"""
PATHS = INNER.replace("{type: string}", "{type: string, format: path}").replace("inner", "paths")
DOCUMENTS = """
id: documents_in
inputs: {d: {type: string}}
tools: [{documents: {root: "{{ inputs.d }}"}}]
steps: [{id: all, tool: documents__search, params: {query: secret}}]
output: "{{ all }}"
"""
PARTS = """
id: parts
inputs: {a: {type: string}, b: {type: string}}
tools: [{files: {root: "{{ inputs.a }}/{{ inputs.b }}"}}]
steps: [{id: all, tool: files__list, params: {}}]
output: "{{ all }}"
"""
MIDDLE = """
id: middle
inputs: {d: {type: string, default: .}}
steps: [{id: go, recipe: inner, with: {d: "{{ inputs.d }}"}}]
output: "{{ go }}"
"""
WHERE = "inputs: {x: {type: string}, many: {type: array, default: []}}"
OUTERS: Mapping[str, str] = {
    "computed": f"""
id: computed
{WHERE}
steps:
  - {{id: pre, set: {{d: "{{{{ inputs.x | trim }}}}"}}}}
  - {{id: go, recipe: inner, with: {{d: "{{{{ pre.d }}}}"}}}}
""",
    "prefixed": f"""
id: prefixed
{WHERE}
steps: [{{id: go, recipe: inner, with: {{d: "/{{{{ inputs.x }}}}"}}}}]
""",
    "looped": f"""
id: looped
{WHERE}
steps:
  - {{id: go, loop: "{{{{ inputs.many }}}}", recipe: inner, with: {{d: "{{{{ loop.item }}}}"}}}}
""",
    "listed": f"""
id: listed
{WHERE}
steps:
  - {{id: go, loop: ["{{{{ inputs.x }}}}"], recipe: inner, with: {{d: "{{{{ loop.item }}}}"}}}}
""",
    "deeper": f"""
id: deeper
{WHERE}
steps:
  - {{id: pre, set: {{d: "{{{{ inputs.x }}}}"}}}}
  - {{id: go, recipe: middle, with: {{d: "{{{{ pre.d }}}}"}}}}
""",
    "pathed": f"""
id: pathed
{WHERE}
steps:
  - {{id: pre, set: {{d: "{{{{ inputs.x }}}}"}}}}
  - {{id: go, recipe: paths, with: {{d: "{{{{ pre.d }}}}"}}}}
""",
    "read": f"""
id: read
{WHERE}
steps:
  - {{id: pre, set: {{d: "{{{{ inputs.x }}}}"}}}}
  - {{id: go, recipe: documents_in, with: {{d: "{{{{ pre.d }}}}"}}}}
""",
    "joined": f"""
id: joined
{WHERE}
steps:
  - {{id: pre, set: {{d: "{{{{ inputs.x }}}}"}}}}
  - {{id: go, recipe: parts, with: {{a: "{{{{ pre.d }}}}", b: "."}}}}
""",
    "told": f"""
id: told
{WHERE}
steps:
  - {{id: pre, tool: echo_back, params: {{text: "{{{{ inputs.x }}}}"}}}}
  - {{id: go, recipe: inner, with: {{d: "{{{{ pre }}}}"}}}}
""",
    "conditional": f"""
id: conditional
{WHERE}
steps:
  - {{id: no, when: "{{{{ false }}}}", set: {{d: .}}}}
  - {{id: go, recipe: inner, with: {{d: "{{{{ no.d | default(inputs.x) }}}}"}}}}
""",
    "planned": f"""
id: planned
permissions: {{allow_write: true}}
{WHERE}
steps:
  - {{id: pre, set: {{d: "{{{{ inputs.x }}}}"}}}}
  - {{id: go, plan: Write a file, workspace: "{{{{ pre.d }}}}", approval: none}}
""",
}


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "hunter2.txt").write_text("a secret\n")
    return folder


@pytest.fixture
def served_recipes(recipes: Path) -> Path:
    inner = {"inner": INNER, "paths": PATHS, "documents_in": DOCUMENTS, "parts": PARTS}
    for name, text in {**inner, "middle": MIDDLE, **OUTERS}.items():
        (recipes / f"{name}.yaml").write_text(text)
    return recipes


@pytest.fixture
def app(make_app: MakeApp, served_recipes: Path, tmp_path: Path) -> App:
    tool = fake_tool("echo_back", lambda given: given["text"], effect=Effect.PURE, parameters=TEXT)
    return make_app(tools=[tool], journal=tmp_path / "journal.sqlite")


TEXT: Mapping[str, JsonValue] = {"type": "object", "properties": {"text": {"type": "string"}}}


async def outcome(client: Client, recipe: str, inputs: Mapping[str, JsonValue]) -> tuple[str, str]:
    """The code of the refusal, wherever it came, and all that the caller can read of the run."""
    reply = await client.post("/runs", {"recipe": recipe, "inputs": inputs})
    if reply.status != 202:  # the early check, which names no value
        return reply.json["code"], str([reply.json, inputs])
    run = await client.ended(reply.json["run_id"])
    code = (run["error"] or {}).get("code", "")
    is_item = code == "loop-failed" and "was not offered" in str(run)
    return "input-refused" if is_item else code, str(run)


@pytest.mark.parametrize("name", sorted(OUTERS))
async def test_no_computed_value_opens_a_folder_outside(app: App, outside: Path, name: str) -> None:
    """A-148."""
    inputs = {"x": str(outside), "many": [str(outside)]}
    code, told = await outcome(Client(app), name, inputs)
    assert code == "input-refused"
    assert "hunter2" not in told
    assert str(outside) in told  # what was asked for is named


@pytest.mark.parametrize("name", sorted(OUTERS.keys() - {"planned", "prefixed"}))
async def test_the_same_ways_open_what_is_offered(
    app: App, served_recipes: Path, name: str
) -> None:
    inputs = {"x": str(served_recipes), "many": [str(served_recipes)]}
    code, told = await outcome(Client(app), name, inputs)
    assert (code, "inner.yaml" in told or name == "read") == ("", True)


@pytest.mark.parametrize(
    "given",
    ['"{{ inputs.x }}"', '["{{ inputs.x }}"]', '["a.example", "{{ inputs.x }}"]'],
)
async def test_no_computed_value_names_a_host(app: App, recipes: Path, given: str) -> None:
    """A-148."""
    (recipes / "asks.yaml").write_text(
        "id: asks_host\ninputs: {h: {}}\ntools: [{http: {allow: '{{ inputs.h }}'}}]\n"
        "steps: [{id: get, tool: http__get, params: {url: 'http://inside.example'}}]\n"
    )
    (recipes / "hosts.yaml").write_text(
        "id: hosts\ninputs: {x: {type: string}}\nsteps:\n"
        f"  - {{id: pre, set: {{h: {given}}}}}\n"
        '  - {id: go, recipe: asks_host, with: {h: "{{ pre.h }}"}}\n'
    )
    code, _ = await outcome(Client(app), "hosts", {"x": "inside.example"})
    assert code == "input-refused"


@pytest.mark.parametrize(
    ("option", "value"),
    [("allow_private", True), ("idempotent", True), ("answer_headers", ["x-a"])],
)
async def test_a_caller_switches_no_option_of_a_tool(
    app: App, recipes: Path, option: str, value: JsonValue
) -> None:
    """A-148."""
    (recipes / "direct.yaml").write_text(
        "id: direct\ninputs: {v: {}}\n"
        f"tools: [{{http: {{allow: [a.example], {option}: '{{{{ inputs.v }}}}'}}}}]\n"
        "steps: [{id: get, tool: http__get, params: {url: 'http://a.example'}}]\n"
    )
    (recipes / "around.yaml").write_text(
        "id: around\ninputs: {v: {}}\nsteps:\n"
        "  - {id: pre, set: {v: '{{ inputs.v }}'}}\n"
        '  - {id: go, recipe: direct, with: {v: "{{ pre.v }}"}}\n'
    )
    for name in ("direct", "around"):
        assert (await outcome(Client(app), name, {"v": value}))[0] == "input-refused"


async def test_what_the_recipes_say_themselves_is_opened(
    app: App, recipes: Path, outside: Path
) -> None:
    """A folder that stands in a recipe is the operator's choice, also for a recipe within."""
    (recipes / "says.yaml").write_text(
        "id: says\ninputs: {which: {enum: [here, there], default: there}}\nsteps:\n"
        f"  - {{id: a, recipe: inner, with: {{d: {outside}}}}}\n"
        f"  - {{id: b, recipe: inner, with: {{d: '{outside.parent}/outside'}}}}\n"
    )
    code, told = await outcome(Client(app), "says", {"which": "here"})
    assert (code, "hunter2.txt" in told) == ("", True)


async def test_a_value_that_holds_one_of_the_recipes_own_is_still_the_callers(
    app: App, recipes: Path, outside: Path
) -> None:
    """A-148."""
    (recipes / "says.yaml").write_text(
        f"id: says\ninputs: {{base: {{type: string, default: {outside.parent}}}, x: {{}}}}\n"
        "steps: [{id: a, recipe: inner, with: {d: '{{ inputs.base }}/{{ inputs.x }}'}}]\n"
    )
    assert (await outcome(Client(app), "says", {"x": "outside"}))[0] == "input-refused"


ASKED = """
id: asked
steps:
  - {id: q, ask: 'Where?', form: {type: string}}
  - {id: go, recipe: inner, with: {d: "{{ q }}"}}
"""


async def test_an_answer_of_a_caller_opens_nothing_outside_even_in_a_run_of_the_operator(
    app: App, served_recipes: Path, outside: Path
) -> None:
    """A-148."""
    (served_recipes / "asked.yaml").write_text(ASKED)
    runtime = app.app_state.runtime
    recipe = app.app_state.recipe_store.get("asked")
    run = runtime.executor_of(recipe).prepare(recipe, {}, note={"cwd": str(Path.cwd())})
    assert (await run.execute()).status == RunStatus.NEEDS_DECISION
    client = Client(app)
    answer = {"decision": "answer", "value": str(outside)}
    assert (await client.post(f"/runs/{run.run_id}/decisions", answer)).status == 202
    ended = await client.ended(run.run_id)
    assert ended["error"]["code"] == "input-refused"


async def test_an_answer_of_the_operator_opens_what_it_says(
    app: App, served_recipes: Path, outside: Path
) -> None:
    (served_recipes / "asked.yaml").write_text(ASKED)
    runtime = app.app_state.runtime
    recipe = app.app_state.recipe_store.get("asked")
    run = runtime.executor_of(recipe).prepare(recipe, {}, note={"cwd": str(Path.cwd())})
    await run.execute()
    result = await answered(app, run.run_id, str(outside))
    assert "hunter2.txt" in str(result.output)


async def answered(app: App, run_id: str, value: str) -> AgentResult[JsonValue]:
    """As a worker or the command line resumes the run: with what its record says."""
    runtime = app.app_state.runtime
    recorded = await load_recorded_run(runtime.services.journal, run_id)
    recipe = runtime.own_recipe(recorded)
    executor = runtime.executor_of(recipe, note=recorded.note)
    (key,) = (each.key for each in recorded.entries if each.state == "waiting")
    run = executor.prepare_resume(recorded, recipe=recipe, decisions={key: f"answer:{value}"})
    return await run.execute()


async def test_a_run_of_a_caller_stays_one_wherever_it_is_resumed(
    app: App, served_recipes: Path, outside: Path
) -> None:
    """A-148."""
    (served_recipes / "asked.yaml").write_text(ASKED)
    client = Client(app)
    run_id = (await client.post("/runs", {"recipe": "asked"})).json["run_id"]
    await client.ended(run_id)
    result = await answered(app, run_id, str(outside))
    assert result.error is not None
    assert result.error.code == "input-refused"


async def test_a_caller_gets_no_cached_output_of_a_folder_outside(
    served_recipes: Path, outside: Path
) -> None:
    """A-148."""
    (served_recipes / "kept.yaml").write_text(
        "id: kept\ninputs: {x: {type: string}}\nsteps:\n"
        "  - {id: pre, set: {d: '{{ inputs.x | trim }}'}}\n"
        '  - {id: go, recipe: inner, cache: true, with: {d: "{{ pre.d }}"}}\n'
    )
    runtime = made_runtime(served_recipes).evolve(cache=MemoryStepCache(), models=ScriptedModel([]))
    recipe = runtime.recipes.get(served_recipes / "kept.yaml")
    executor, inputs = runtime.executor(recipe), {"x": str(outside)}
    for _ in range(2):
        result = await executor.prepare(recipe, inputs).execute()
    assert result.executions[-1].cached_from is not None
    offer = Offer.beneath([served_recipes], way="http")
    refused = await executor.prepare(recipe, inputs, note=offer.to_note()).execute()
    assert refused.error is not None
    assert refused.error.code == "input-refused"


def made_runtime(folder: Path) -> Runtime:
    return make_runtime(
        Settings(no_store=True),
        Extensions(),
        environ={},
        folder_of=lambda _: folder,
        log=NullLog(),
    )


async def test_a_recipe_in_a_request_opens_no_folder_outside_and_no_private_network(
    make_app: MakeApp, served_recipes: Path, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A-148."""
    monkeypatch.chdir(served_recipes)
    client = Client(make_app(allow_recipe_bodies=True))
    folder = f"files: {{root: {outside}}}"
    private = "http: {allow: [inside.example], allow_private: true}"
    for tools in (folder, private):
        text = f"id: own\ntools: [{{{tools}}}]\nsteps: [{{id: a, set: {{n: 1}}}}]\n"
        reply = await client.post("/runs", {"recipe_text": text})
        assert (reply.status, reply.json["code"]) == (403, "input-refused")
    within = f"id: own\nsteps: [{{id: a, recipe: inner.yaml, with: {{d: {outside}}}}}]\n"
    reply = await client.post("/runs", {"recipe_text": within})
    run = await client.ended(reply.json["run_id"])
    assert run["error"]["code"] == "input-refused"
    fine = f"id: own\ntools: [{{files: {{root: {served_recipes}}}}}]\n"
    fine += "steps: [{id: a, tool: files__list, params: {}}]\n"
    reply = await client.post("/runs", {"recipe_text": fine})
    assert (await client.ended(reply.json["run_id"]))["status"] == "completed"


async def test_over_mcp_no_computed_value_opens_a_folder_outside_either(
    served_recipes: Path, outside: Path
) -> None:
    """A-148."""
    settings, runtime = Settings(no_store=True), made_runtime(served_recipes)
    note: Mapping[str, JsonValue] = {"cwd": str(served_recipes)}
    served = ServerRuntime(settings, runtime, note=note, way=OVER_MCP)
    (served_recipes / "told.yaml").unlink()  # it needs a tool that is not here
    store = RecipeStore([served_recipes], served.catalog, served.bounded, NullLog())
    tools = RecipeTools(store, served, max_runs=2)
    refused = await tools.run("computed", {"x": str(outside)})
    assert refused.error is not None
    assert refused.error.code == "input-refused"
    assert (await tools.run("computed", {"x": str(served_recipes)})).error is None
    await tools.aclose()


async def test_a_turn_of_a_session_opens_no_folder_outside(
    app: App, recipes: Path, outside: Path
) -> None:
    """A-148."""
    (recipes / "chats.yaml").write_text(
        "id: chats\ninputs: {message: {type: string}, x: {type: string, default: .}}\nsteps:\n"
        "  - {id: pre, set: {d: '{{ inputs.message | trim }}'}}\n"
        '  - {id: go, recipe: inner, with: {d: "{{ pre.d }}"}}\n'
        "  - {id: answer, goal: Answer., memory: conversation}\n"
    )
    client = Client(app)
    session = (await client.post("/sessions", {"recipe": "chats"})).json["id"]
    async with client.stream(
        "POST", f"/api/v1/sessions/{session}/messages", {"content": str(outside)}
    ) as stream:
        assert b"input-refused" in await asyncio.wait_for(stream.read(), HANG_S)


def test_a_damaged_offer_offers_nothing() -> None:
    damages: Sequence[JsonValue] = (None, 1, "x", {}, {"folders": "/"}, {"folders": [1, "a", None]})
    for damaged in damages:
        offer = Offer.of_note({"offer": damaged})
        assert offer is not None
        assert offer.place_of("/") is None
        assert offer.place_of(".") is None
    assert Offer.of_note({}) is None


@given(st.lists(st.sampled_from([".", "..", "a", "link", "", "~", "//", "\0", "outside"])))
def test_a_place_is_beneath_an_offered_folder_or_none(parts: list[str]) -> None:
    with tempfile.TemporaryDirectory() as name:
        offered = Path(name, "offered")
        (offered / "a").mkdir(parents=True)
        Path(name, "outside").mkdir()
        (offered / "link").symlink_to(Path(name, "outside"))
        offer = Offer.beneath([offered], way="http")
        place = offer.place_of("/".join(parts))
        root = offered.resolve()
        assert place is None or Path(place).resolve().is_relative_to(root)
        assert place is None or Path(place) == Path(place).resolve()


def test_an_offer_is_of_folders_to_a_recipe_of_the_operator(tmp_path: Path) -> None:
    offer = Offer.beneath([tmp_path], way="http")
    assert not offer.brings_recipe
    odd: Sequence[object] = (None, 1, True, [], b"/")
    assert [offer.place_of(each) for each in odd] == [None] * 5


def test_what_was_offered_is_read_as_it_was_written() -> None:
    offer = Offer(way="mcp", folders=("/srv/data",), brings_recipe=True)
    assert Offer.of_note(offer.to_note()) == offer
