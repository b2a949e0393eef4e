"""`minions stubs` writes a client of a recipe that type checkers understand, and that runs."""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mypy import api as mypy

from command_line import Cli, Write
from minions.analysis.client_stubs import class_name, client_text, doc_text, field_name
from minions.data.json_values import JsonValue
from minions.data.schema import JsonSchema
from minions.recipe.catalog import Catalog
from minions.recipe.model import AgentRecipe, InputSpec
from minions.recipe.reading.load import check_recipe_text
from minions.testing import ScriptedModel

ROOT = Path(__file__).parents[2]
RECIPE = """
id: news
name: News digest
description: Sums up what is new.
inputs:
  topic: {type: string, description: What about.}
  count: {type: integer, default: 3}
  class: {type: string, default: x}
  mood: {enum: [good, bad, null], default: good}
  filters:
    type: array
    items:
      type: object
      properties: {field: {type: string}, my-key: {type: number}}
      required: [field]
    default: []
  tree:
    $ref: "#/$defs/node"
    $defs:
      node:
        type: object
        properties: {name: {type: string}, children: {type: array, items: {$ref: "#/$defs/node"}}}
        required: [name]
    default: {name: root}
  token: {type: string, secret: true, default: "env:NEWS_TOKEN"}
  anything: {default: null}
  table: {type: object, additionalProperties: {type: integer}, default: {}}
steps:
  - id: each-topic
    loop: ["{{ inputs.topic }}"]
    aggregate: true
    goal: "Tell of {{ loop.item }}."
  - id: report
    goal: "Report {{ steps['each-topic'].output | join(' ') }} as {{ inputs.class }}."
    output: {title: string, kind: {enum: [short, long]}, lines: [{text: string, number: integer}]}
output: {report: "{{ report }}", all: "{{ steps['each-topic'].output }}", note: made}
"""
RIGHT = """
from typing import assert_type

from client import Event, NewsDigest, StepId, step_outputs
from minions import SecretRef

client = NewsDigest(model="openai/x")
result = client.run(topic="a", mood=None, filters=[{"field": "a", "my-key": 1.5}], class_="b")
report = result.unwrap()["report"]
assert_type(report["lines"][0]["number"], int)
assert_type(result.unwrap()["all"], list[str])
if (made := step_outputs(result).get("report")) is not None:
    kind = made["kind"]
    assert kind == "short" or kind == "long"
client.run(topic="a", tree={"name": "a", "children": [{"name": "b"}]}, table={"a": 1})
client.run(topic="a", token=SecretRef("env:A"), anything=[1, {"a": None}], count=1)
step: StepId = "each-topic"


async def watch() -> None:
    stream = client.stream(topic="a")
    async for event in stream:
        own: Event = event
        print(own.run_id)
    assert_type(stream.result.unwrap()["note"], str)
    assert_type((await client.arun(topic="a")).unwrap()["note"], str)
"""
KID = """
id: kid
inputs: {a: integer}
steps:
  - id: judged
    goal: "Judge {{ inputs.a }}."
    output: {verdict: {enum: [good, bad]}, notes: [{text: string}]}
output: {v: "{{ judged.verdict }}", all: "{{ judged }}"}
"""
TREE = """
id: tree
steps:
  - id: node
    goal: Grow.
    output:
      $ref: "#/$defs/node"
      $defs:
        node:
          type: object
          properties: {name: {type: string}, below: {type: array, items: {$ref: "#/$defs/node"}}}
          required: [name, below]
"""
PARENT = """
id: parent
steps:
  - {id: k, recipe: kid.yaml, with: {a: 1}}
  - {id: grown, recipe: tree.yaml}
  - {id: now, recipe: untyped.yaml}
  - {id: each, loop: [1, 2], aggregate: true, recipe: kid.yaml, with: {a: "{{ loop.item }}"}}
  - {id: deeper, recipe: between.yaml}
output:
  verdict: "{{ k.v }}"
  judged: "{{ k.all }}"
  each: "{{ each }}"
  now: "{{ now }}"
  deeper: "{{ deeper }}"
"""
NESTED: Mapping[str, str] = {
    "kid": KID,
    "tree": TREE,
    "untyped": "id: untyped\ntools: [data]\n"
    "steps: [{id: t, tool: data__parse_json, params: {text: '1'}}]\n",
    "around": "id: around\nsteps: [{id: t, recipe: untyped.yaml}]\n",
    "between": "id: between\nsteps: [{id: k, recipe: kid.yaml, with: {a: 1}}]\n",
    "parent": PARENT,
}
RIGHT += """
import parent
from minions.recipes import JsonValue
from around import Around
from between import Between
from untyped import Untyped

assert_type(Untyped().run().unwrap(), JsonValue)
assert_type(Around().run().unwrap(), JsonValue)
assert_type(Around().stream().result.unwrap(), JsonValue)
assert_type(Between().run().unwrap()["all"]["notes"][0]["text"], str)
done = parent.Parent().run()
assert_type(done.unwrap()["judged"]["notes"][0]["text"], str)
assert_type(done.unwrap()["each"][0]["all"]["notes"][0]["text"], str)
assert_type(done.unwrap()["deeper"]["all"]["notes"][0]["text"], str)
assert_type(done.unwrap()["now"], JsonValue)
assert done.unwrap()["verdict"] == "good" or done.unwrap()["verdict"] == "bad"
if (k := parent.step_outputs(done).get("k")) is not None:
    assert_type(k["all"]["notes"][0]["text"], str)
if (grown := parent.step_outputs(done).get("grown")) is not None:
    assert_type(grown["below"][0]["below"][0]["name"], str)
"""
WRONG = """
client.run(topc="a", topic="a")
client.run()
client.run(topic=3)
client.run(topic="a", mood="ugly")
client.run(topic="a", filters=[{"feld": "a"}])
report["titel"]
step = "each_topic"
done.unwrap()["judged"]["note"]
"""
SAYS = (
    'Unexpected keyword argument "topc" for "run"',
    'Missing named argument "topic"',
    'Argument "topic" to "run" of "NewsDigest" has incompatible type "int"',
    'Argument "mood" to "run" of "NewsDigest" has incompatible type',
    'Extra key "feld"',
    'has no key "titel"',
    "Incompatible types in assignment",
    'has no key "note"',
)


def test_the_client_passes_mypy_strict_and_a_wrong_input_is_an_error(
    cli: Cli, write: Write, here: Path
) -> None:
    """A-139."""
    write("news.yaml", RECIPE)
    assert cli("stubs", "news.yaml", "-o", "client.py").code == 0
    for name, text in NESTED.items():
        write(f"{name}.yaml", text)
        assert cli("stubs", f"{name}.yaml", "-o", f"{name}.py").code == 0
    write("use.py", RIGHT + WRONG)
    clients = ["client.py", *(f"{name}.py" for name in NESTED)]
    # The cache of the checkout: without it this takes ten seconds, with it half of one.
    settings = ("--config-file", str(ROOT / "mypy.ini"), "--cache-dir", str(ROOT / ".mypy_cache"))
    out, errors, _ = mypy.run([*settings, *clients, "use.py"])
    faults = [line for line in out.splitlines() if ": error: " in line]
    wrong = RIGHT.count("\n") + 2
    for number, words in enumerate(SAYS):
        own = [line for line in faults if line.startswith(f"use.py:{wrong + number}:")]
        assert any(words in line for line in own), (words, out, errors)
    of_wrong = tuple(f"use.py:{wrong + number}:" for number in range(len(SAYS)))
    assert [line for line in faults if not line.startswith(of_wrong)] == []


# --- the client at work -----------------------------------------------------------------------


def loaded(path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module of a client."""
    spec = importlib.util.spec_from_file_location("client_of_a_test", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "client_of_a_test", module)
    spec.loader.exec_module(module)
    return module


REPORT: dict[str, JsonValue] = {"title": "News", "kind": "short", "lines": []}


def test_the_client_runs_the_recipe_with_its_inputs(
    cli: Cli, write: Write, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEWS_TOKEN", "a-token-of-the-news")
    write("recipes/news.yaml", RECIPE)
    assert cli("stubs", "news", "-o", "client.py").code == 0
    client = loaded(here / "client.py", monkeypatch)
    model = ScriptedModel(["It rains.", REPORT])
    result = client.NewsDigest(model=model).run(topic="weather", class_="prose")
    assert result.unwrap() == {"report": REPORT, "all": ["It rains."], "note": "made"}
    assert client.step_outputs(result) == {"each-topic": ["It rains."], "report": REPORT}
    assert "as prose" in str(model.prompts[-1].messages)


async def test_the_client_streams_events_in_an_application(
    cli: Cli, write: Write, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import minions as m

    write("hi.yaml", "id: hi\nsteps:\n  - {id: a, goal: Speak.}\n")
    (here / "client.py").write_text(
        client_text(AgentRecipe(id="hi", steps=[]), output={}, step_outputs={}, file="hi.yaml")
    )
    client = loaded(here / "client.py", monkeypatch)
    async with m.Minions(model=ScriptedModel(["Hi.", "Ho."])) as application:
        stream = client.Hi(application=application).stream()
        names = [event.type async for event in stream]
        assert (names[0], stream.result.unwrap()) == ("run_started", "Hi.")
        assert (await client.Hi(application=application).arun()).unwrap() == "Ho."


# --- writing it -------------------------------------------------------------------------------


def test_a_client_is_the_same_until_the_recipe_takes_or_gives_something_else(
    cli: Cli, write: Write, here: Path
) -> None:
    write("news.yaml", RECIPE)
    told = ("stubs", "news.yaml", "-o", "client.py", "--check")
    assert "client.py is not there" in cli(*told).err
    cli("stubs", "news.yaml", "-o", "client.py")
    before = (here / "client.py").read_text()
    write("news.yaml", RECIPE.replace("Tell of", "Speak of"))
    assert cli(*told).code == 0  # another prompt, the same interface
    write("news.yaml", RECIPE.replace("topic:", "theme:").replace("inputs.topic", "inputs.theme"))
    stale = cli(*told)
    assert stale.code == 1
    assert "minions stubs news.yaml -o client.py" in stale.err
    assert (here / "client.py").read_text() == before
    assert cli("stubs", "news.yaml", "-o", "client.py").code == 0
    assert cli(*told).code == 0


def test_a_file_of_somebody_else_is_not_overwritten(cli: Cli, write: Write, here: Path) -> None:
    write("news.yaml", RECIPE)
    write("client.py", "my_own = 1\n")
    refused = cli("stubs", "news.yaml", "-o", "client.py")
    assert refused.code == 2
    assert "error[already-there]" in refused.err
    assert (here / "client.py").read_text() == "my_own = 1\n"
    assert cli("stubs", "news.yaml", "-o", "client.py", "--force").code == 0


def test_a_client_finds_its_recipe_from_another_folder(cli: Cli, write: Write, here: Path) -> None:
    write("recipes/deep/news.yaml", RECIPE)
    (here / "src").mkdir()
    cli("stubs", "recipes/deep/news.yaml", "-o", "src/client.py")
    text = (here / "src" / "client.py").read_text()
    assert "RECIPE: Final = Path(__file__).parent / '../recipes/deep/news.yaml'" in text
    assert str(here) not in text


def test_a_recipe_with_faults_has_no_client(cli: Cli, write: Write) -> None:
    write("news.yaml", RECIPE.replace("goal:", "gaol:"))
    assert cli("stubs", "news.yaml").code == 2
    assert cli("stubs", "news.yaml", "--check").code == 2


# --- what is known of outputs -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("recipe", "known"),
    [
        ("steps: [{id: a, goal: X}]", {"type": "string"}),
        ("steps: [{id: a, goal: X, when: '{{ inputs.i }}'}]", {}),
        ("steps: [{id: a, goal: X, optional: true}]", {}),
        ("steps: [{id: a, goal: X, on_error: continue}]", {}),
        ("execution_mode: parallel\nsteps: [{id: a, goal: X}, {id: b, goal: X}]", {}),
        ("steps: [{id: a, goal: X}]\noutput: '{{ a }}'", {"type": "string"}),
        ("steps: [{id: a, goal: X}]\noutput: 'it is {{ a }}'", {"type": "string"}),
        ("steps: [{id: a, goal: X}]\noutput: '{{ a | length }}'", {"type": ["integer"]}),
        ("steps: [{id: a, goal: X}]\noutput: '{{ inputs.i }}'", {"type": "integer"}),
        ("steps: [{id: a, goal: X}]\noutput: 7", {"type": "integer"}),
        ("steps: [{id: a, tool: loadState, params: {key: k}}]\noutput: '{{ a.value }}'", {}),
        (
            "steps: [{id: a, tool: loadState, params: {key: k}}]\noutput: '{{ a.key }}'",
            {"type": "string"},
        ),
    ],
)
def test_an_output_is_known_where_it_is_certain(recipe: str, known: JsonSchema) -> None:
    from minions.app.wiring.built_in_extensions import built_in_tools

    tools = {tool.spec.name: tool.spec for tool in built_in_tools()}
    text = f"id: r\ninputs: {{i: integer}}\n{recipe}\n"
    checked = check_recipe_text(text, "r.yaml", Catalog(tools=tools))
    assert not checked.errors
    assert checked.output == known


def test_a_schema_with_references_is_known_whole_and_without_them_in_parts() -> None:
    schema = "{$defs: {t: {type: string}}, type: object, properties: {a: {$ref: '#/$defs/t'}}}"
    for output, is_known in (("'{{ a }}'", True), ("'{{ a.a }}'", False), ("{x: '{{ a }}'}", None)):
        text = f"id: r\nsteps: [{{id: a, goal: X, output: {schema}}}]\noutput: {output}\n"
        known = check_recipe_text(text, "r.yaml", Catalog()).output
        if is_known is None:
            inner = {"type": "object", "properties": {"a": {"type": "string"}}}
            assert known["properties"] == {"x": inner}
        else:
            assert ("$defs" in known) is is_known


@pytest.mark.parametrize("output", ['{a: "{{ k }}", b: "{{ k }}"}', '["{{ k }}", "{{ k }}"]'])
def test_recipes_that_repeat_what_others_give_have_a_client(
    cli: Cli, write: Write, output: str
) -> None:
    """Each recipe gives twice what the next one gives: the whole has 2^30 parts."""
    write("r0.yaml", "id: r0\nsteps: [{id: k, goal: X}]\n")
    for number in range(1, 31):
        inner = f"steps: [{{id: k, recipe: r{number - 1}.yaml}}]"
        write(f"r{number}.yaml", f"id: r{number}\n{inner}\noutput: {output}\n")
    made = cli("stubs", "r30.yaml")
    assert (made.code, len(made.out) < 1_000_000) == (0, True)


# --- words of strangers -----------------------------------------------------------------------

LEAVES = st.sampled_from(
    [{}, {"type": "string"}, {"type": ["number", "null"]}, {"const": "'\\\"]\n"}, {"enum": [1, ""]}]
)
SCHEMAS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.fixed_dictionaries({"type": st.just("array"), "items": inner}),
        st.fixed_dictionaries({"anyOf": st.lists(inner, max_size=3)}),
        st.fixed_dictionaries(
            {
                "type": st.just("object"),
                "description": st.text(max_size=20),
                "properties": st.dictionaries(st.text(max_size=8), inner, max_size=4),
                "required": st.lists(st.text(max_size=8), max_size=2),
            }
        ),
    ),
    max_leaves=10,
)
_STATEMENTS = (
    *(ast.Expr, ast.ImportFrom, ast.Import, ast.ClassDef, ast.FunctionDef, ast.Assign),
    ast.AnnAssign,
)


@given(st.dictionaries(st.text(max_size=8), SCHEMAS, max_size=3), SCHEMAS, st.text(max_size=30))
def test_whatever_a_recipe_says_the_client_is_python_and_defines_nothing_else(
    inputs: dict[str, dict[str, JsonValue]], output: dict[str, JsonValue], words: str
) -> None:
    recipe = AgentRecipe(
        id="r",
        name=words,
        description=words,
        inputs={
            name: InputSpec(schema=schema, description=words) for name, schema in inputs.items()
        },
        steps=[],
    )
    text = client_text(recipe, output=output, step_outputs={words: output}, file=f"{words}.yaml")
    tree = ast.parse(text.encode("utf-8", "replace").decode())
    assert all(isinstance(each, _STATEMENTS) for each in tree.body)
    classes = [each.name for each in tree.body if isinstance(each, ast.ClassDef)]
    assert len(set(classes)) == len(classes)
    own = [name for name in classes if name not in text.partition("class Inputs")[2]]
    assert not {"Path", "Literal", "AgentResult"} & set(own)


@pytest.mark.parametrize("text", ['"""', "\\", '\\"""', '"', "a\n  b", "\u202eabc", "x" * 999])
def test_a_description_stays_within_its_docstring(text: str) -> None:
    (statement,) = ast.parse(f'"""{doc_text(text)}"""').body
    assert isinstance(statement, ast.Expr)
    assert isinstance(statement.value, ast.Constant)


@pytest.mark.parametrize(
    ("words", "as_class", "as_field"),
    [
        ("order-lines", "OrderLines", "order_lines"),
        ("None", "ItemNone", "None_"),
        ("class", "Class", "class_"),
        ("2nd", "Item2nd", "item_2nd"),
        ("é", "Item", "item_"),
    ],
)
def test_names_are_made_of_words(words: str, as_class: str, as_field: str) -> None:
    assert (class_name(words), field_name(words)) == (as_class, as_field)


def test_a_client_needs_a_file_of_its_recipe(cli: Cli) -> None:
    assert cli("stubs", "-").code == 2
