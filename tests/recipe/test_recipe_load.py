"""What a good recipe becomes, and the faults that need more than one look."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minions.contracts.calls import ModelOptions
from minions.contracts.completion import CompletionCriteria
from minions.contracts.executions import CompletionMode
from minions.contracts.instructions import OutputMode
from minions.contracts.retry_config import RetryConfig
from minions.contracts.tools import ToolSpec
from minions.data.errors import NotFoundError, RecipeError, UsageError
from minions.data.schema import JsonSchema
from minions.recipe.catalog import Catalog
from minions.recipe.kinds.goal_kind import GoalSpec
from minions.recipe.kinds.set_kind import SetSpec
from minions.recipe.kinds.tool_kind import ToolSpecStep
from minions.recipe.model import (
    ExecutionMode,
    InputSpec,
    MessageSpec,
    OnFailure,
    Permissions,
    StepSpec,
    ToolsetUse,
    Where,
)
from minions.recipe.model_config import ModelConfig
from minions.recipe.reading.load import (
    check_recipe_text,
    find_faults,
    load_recipe,
    load_recipe_text,
    recipe_from_document,
)
from patience import work_of
from recipe.sample_catalog import CATALOG, check, load

FULL = """
id: news.daily
version: 2
description: Writes the news.
inputs:
  topic: {type: string, description: About what}
  count: 3
  folder: {type: string, format: path, default: ./in}
context: You write for {{ inputs.topic }}.
goal: Good news
model: {name: openai/gpt-5-mini, temperature: 0, output_mode: json, timeout_s: 30}
tools:
  - files: {root: "{{ inputs.folder }}", as: out}
  - files
  - add
permissions: {allow_write: true}
limits: {maxModelCallsPerStep: 5, timeout_s: 60}
retry: {maxAttempts: 2, initial_delay: 0.5}
execution_mode: planned
max_parallel: 2
on_failure: continue
metadata: {owner: me}
steps:
  - id: summarize
    description: Sums up
    goal: Summarize {{ text }}
    system_prompt: Be brief.
    messages: [{user: "{{ inputs.topic }}"}, {role: system, content: Hush}]
    tools: [out, add]
    output: {title: string, tags: [string], author: {name: string}}
    completion: {patterns: ["DONE"], links: [polite]}
    tool_failure: report
    model: demo
    limits: {maxModelCallsPerStep: 3}
    optional: true
    timeout_s: 10
    when: inputs.count > 2
  - id: fetch
    tool: files__read
    params: {path: "{{ inputs.folder }}/a"}
    params_template: {max: 7}
    save_as: text
    metadata: {x: 1}
  - id: bind
    set: {t: "{{ summarize.title }}", deep: [1]}
    depends_on: text
output: {all: "{{ bind }}"}
"""


def test_a_full_recipe_becomes_a_value() -> None:
    recipe = load_recipe_text(FULL, "/recipes/daily.yaml", CATALOG)
    schema: JsonSchema = {
        "type": "object",
        "properties": {
            "title": {"type": "string"},
            "tags": {"type": "array", "items": {"type": "string"}},
            "author": {
                "type": "object",
                "properties": {"name": {"type": "string"}},
                "required": ["name"],
                "additionalProperties": False,
            },
        },
        "required": ["title", "tags", "author"],
        "additionalProperties": False,
    }
    assert recipe.steps == (
        GoalSpec(
            id="summarize",
            description="Sums up",
            depends_on=("fetch",),
            when="inputs.count > 2",
            optional=True,
            timeout_s=10,
            limits={"max_model_calls_per_step": 3},
            goal="Summarize {{ text }}",
            system_prompt="Be brief.",
            messages=(
                MessageSpec(role="user", content="{{ inputs.topic }}"),
                MessageSpec(role="system", content="Hush"),
            ),
            tools=("out__read", "out__write", "add"),
            output=schema,
            completion=CompletionCriteria(mode=CompletionMode.STRUCTURED, patterns=["DONE"]),
            completion_links=("polite",),
            tool_failure="report",
            model=ModelConfig(name="demo"),
        ),
        ToolSpecStep(
            id="fetch",
            save_as="text",
            metadata={"x": 1},
            tool="files__read",
            params={"path": "{{ inputs.folder }}/a"},
            params_template={"max": 7},
            is_older=True,
        ),
        SetSpec(
            id="bind",
            depends_on=("fetch", "summarize"),
            declared=("fetch",),
            set={"t": "{{ summarize.title }}", "deep": [1]},
        ),
    )
    assert (recipe.id, recipe.version, recipe.description) == (
        "news.daily",
        "2",
        "Writes the news.",
    )
    assert recipe.inputs == {
        "topic": InputSpec(
            schema={"type": "string", "description": "About what"}, description="About what"
        ),
        "count": InputSpec(schema={"type": "integer"}, default=3, has_default=True),
        "folder": InputSpec(
            schema={"type": "string", "format": "path"}, default="./in", has_default=True
        ),
    }
    assert recipe.system_prompt == "You write for {{ inputs.topic }}."
    assert recipe.model == ModelConfig(
        name="openai/gpt-5-mini", temperature=0, output_mode=OutputMode.JSON, timeout_s=30
    )
    assert recipe.tools == (
        ToolsetUse(name="files", options={"root": "{{ inputs.folder }}"}, prefix="out"),
        ToolsetUse(name="files"),
        ToolsetUse(name="add"),
    )
    assert recipe.permissions == Permissions(allow_write=True)
    assert recipe.limits == {"max_model_calls_per_step": 5, "timeout_s": 60}
    assert recipe.retry == RetryConfig(max_attempts=2, initial_delay=0.5)
    assert recipe.execution_mode is ExecutionMode.PLANNED
    assert (recipe.max_parallel, recipe.on_failure) == (2, OnFailure.CONTINUE)
    assert (recipe.output, recipe.metadata) == ({"all": "{{ bind }}"}, {"owner": "me"})
    assert recipe.directory == "/recipes"


def test_a_step_knows_where_it_stands() -> None:
    recipe = load("steps:\n  - id: a\n    goal: A\n")
    (step,) = recipe.steps
    assert isinstance(step, StepSpec)
    assert step.where == Where("/recipes/sample.yaml", 2, 5)


def test_the_smallest_recipe_is_named_after_its_file() -> None:
    recipe = load_recipe_text("steps: [{id: a, goal: A}]", "my recipe!.yaml", CATALOG)
    assert recipe.id == "my-recipe"
    assert recipe.document == {"id": "my-recipe", "steps": [{"id": "a", "goal": "A"}]}
    assert recipe.directory == str(Path.cwd())


def test_a_stored_document_gives_the_same_recipe_again() -> None:
    recipe = load(FULL)
    assert recipe.document is not None
    stored = json.loads(json.dumps(recipe.document))
    assert recipe_from_document(stored, CATALOG, directory=recipe.directory) == recipe


def test_faults_of_plain_data_have_no_source() -> None:
    with pytest.raises(RecipeError) as caught:
        recipe_from_document({"steps": [{"id": "a", "gaol": "A"}]}, CATALOG, "run_1")
    assert [fault.code for fault in caught.value.faults] == ["kind-missing", "unknown-key"]
    assert {fault.source_line for fault in caught.value.faults} == {None}


def links(text: str) -> dict[str, tuple[tuple[str, ...], tuple[str, ...]]]:
    """Step id to (depends_on, after)."""
    return {
        step.id: (step.depends_on, step.after)
        for step in load(text).steps
        if isinstance(step, StepSpec)
    }


def test_a_reference_is_a_dependency_and_a_guarded_one_only_an_order() -> None:
    assert links(
        """
steps:
  - {id: a, goal: A, save_as: one}
  - {id: b, goal: "{{ a }} {{ steps.a.output }}"}
  - {id: c, goal: "{{ one|default('x') }}", when: steps.b.status == 'completed'}
  - {id: d, goal: "{{ a|default('x') }} {{ a }}", depends_on: [c], output: {n: number}}
  - {id: e, tool: add, params: {a: 1, b: "{{ steps['d'].output.n }}"}}
  - {id: f, set: {x: "{{ e is defined }}"}, depends_on: e}
  - {id: g, goal: G}
"""
    ) == {
        "a": ((), ()),
        "b": (("a",), ()),
        "c": ((), ("b", "a")),
        "d": (("c", "a"), ()),
        "e": (("d",), ()),
        "f": (("e",), ()),
        "g": ((), ()),
    }


def test_planned_recipes_may_name_later_steps() -> None:
    text = """
execution_mode: {mode}
steps:
  - {{id: a, goal: "Reads {{{{ b }}}}"}}
  - {{id: b, goal: B}}
"""
    assert links(text.format(mode="planned")) == {"a": (("b",), ()), "b": ((), ())}
    assert links(text.format(mode="parallel")) == {"a": (("b",), ()), "b": ((), ())}
    faults = check(text.format(mode="sequential")).faults
    assert [fault.code for fault in faults] == ["forward-dependency"]


def test_several_steps_may_save_under_one_name_in_sequence() -> None:
    assert links(
        """
steps:
  - {id: a, goal: A, save_as: page}
  - {id: b, goal: "{{ page }}", save_as: page}
  - {id: c, goal: "{{ page }}"}
"""
    ) == {"a": ((), ()), "b": (("a",), ()), "c": (("a", "b"), ())}


def test_a_warning_does_not_stop_the_load() -> None:
    loaded = check("steps:\n  - {id: a, goal: A, save_as: x}\n")
    assert loaded.recipe is not None
    assert [(fault.code, fault.is_warning) for fault in loaded.faults] == [("unused-save-as", True)]
    assert loaded.errors == ()


def test_a_name_that_only_the_output_reads_is_used() -> None:
    assert check("steps:\n  - {id: a, goal: A, save_as: x}\noutput: '{{ x }}'\n").faults == ()


def test_files_in_the_older_declarative_format_load() -> None:
    recipe = load(
        """
name: strava
tools: [add]
steps:
  - id: "get"
    description: "Get it"
    tool: "add"
    params: {a: 1, b: 2}
    save_as: "sum"
  - id: "again"
    tool: "add"
    params_template:
      a: "{{sum.value.deep}}"
      b: "{{get}}"
    depends_on: ["sum"]
    optional: true
"""
    )
    assert recipe.id == "strava"
    assert [step.id for step in recipe.steps] == ["get", "again"]


def test_schemas_in_full_stay_as_they_are() -> None:
    recipe = load(
        """
steps:
  - id: a
    goal: A
    output: {type: array, items: {$ref: "#/$defs/item"}, $defs: {item: {enum: [x, y]}}}
  - id: b
    goal: "{{ a[0] }}"
    output: {type: object, properties: {type: {type: string}}, additionalProperties: true}
  - id: c
    goal: "{{ b.anything }}"
    output: {type: string, name: string}
"""
    )
    outputs = [step.output for step in recipe.steps if isinstance(step, GoalSpec)]
    assert outputs == [
        {
            "type": "array",
            "items": {"$ref": "#/$defs/item"},
            "$defs": {"item": {"enum": ["x", "y"]}},
        },
        {
            "type": "object",
            "properties": {"type": {"type": "string"}},
            "additionalProperties": True,
        },
        {
            "type": "object",
            "properties": {"type": {"type": "string"}, "name": {"type": "string"}},
            "required": ["type", "name"],
            "additionalProperties": False,
        },
    ]


def test_a_completion_without_a_mode_follows_the_output() -> None:
    recipe = load(
        """
steps:
  - {id: a, goal: A, completion: signal}
  - {id: b, goal: B, completion: {patterns: [x]}}
  - {id: c, goal: C, output: {t: string}, completion: text}
"""
    )
    assert [step.completion for step in recipe.steps if isinstance(step, GoalSpec)] == [
        CompletionCriteria(mode=CompletionMode.SIGNAL),
        CompletionCriteria(mode=CompletionMode.TEXT, patterns=["x"]),
        CompletionCriteria(mode=CompletionMode.TEXT),
    ]


def test_a_condition_may_be_true_or_false() -> None:
    recipe = load("steps:\n  - {id: a, goal: A, when: false}\n  - {id: b, goal: B, when: true}\n")
    assert [step.when for step in recipe.steps if isinstance(step, StepSpec)] == ["false", "true"]


def test_files_are_read_from_disk(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text("steps: [{id: a, goal: A}]")
    assert load_recipe(path, CATALOG) == load_recipe(str(path), CATALOG)
    assert find_faults(path, Catalog()) == ()
    with pytest.raises(NotFoundError) as caught:
        load_recipe(tmp_path / "none.yaml", CATALOG)
    assert caught.value.error_code == "recipe-not-found"
    with pytest.raises(UsageError) as refused:
        load_recipe(tmp_path, CATALOG)
    assert refused.value.error_code == "recipe-unreadable"


def test_faults_carry_the_line_and_what_to_underline() -> None:
    loaded = check(
        "steps:\n  - id: a\n    goal: A\n    depends_on: [sumarize]\n  - {id: summarize, goal: B}\n"
    )
    (fault,) = loaded.faults
    assert fault.source_line == "    depends_on: [sumarize]"
    assert (fault.line, fault.column, fault.length) == (4, 18, 8)
    assert fault.label == "did you mean 'summarize'?"


def chain_of(count: int) -> str:
    steps = "".join(
        f"  - {{id: s{n}, goal: 'Use {{{{ {f's{n - 1}' if n else 'inputs.n'} }}}}', "
        "output: {title: string}}\n"
        for n in range(count)
    )
    return f"inputs: {{n: 1}}\nsteps:\n{steps}"


def test_twice_as_many_steps_load_with_twice_the_work() -> None:
    assert len(load(chain_of(200)).steps) == 200
    assert work_of(lambda: load(chain_of(200))) < 2.2 * work_of(lambda: load(chain_of(100)))


def test_a_long_chain_and_a_long_cycle_need_no_recursion() -> None:
    steps = "".join(f"  - {{id: s{n}, goal: G, depends_on: [s{n + 1}]}}\n" for n in range(3_000))
    text = (
        f"execution_mode: planned\nsteps:\n{steps}  - {{id: s3000, goal: G, depends_on: [{{}}]}}\n"
    )
    assert check(text.replace("[{}]", "[]")).faults == ()
    faults = check(text.replace("[{}]", "[s0]")).faults
    assert [fault.code for fault in faults] == ["cycle"]


def test_a_parameter_that_does_not_fit_is_the_one_that_is_named() -> None:
    numbers = ("l", "lit", "o")
    kinds = ToolSpec(
        name="kinds",
        parameters={
            "type": "object",
            "properties": {name: {"items": {"type": "integer"}} for name in numbers}
            | {"lit": {"enum": ["a", "b"]}, "a-b": {"type": "integer"}},
        },
    )
    text = "steps: [{id: x, tool: kinds, params: {l: [1], lit: c, o: [x], a-b: y}}]"
    faults = check_recipe_text(text, "x.yaml", Catalog(tools={"kinds": kinds})).faults
    assert [fault.message.partition(" does")[0] for fault in faults] == ["'lit'", "'o'", "'a-b'"]


WORDS = st.sampled_from(
    """
    id name steps goal tool set params output depends_on when save_as inputs tools files add model
    limits retry permissions completion messages user role content string type properties a b {{
    }} {{a}} {{inputs.a}} true null 1 -1 0.5 [] {}
    """.split()  # noqa: SIM905  # fifty quotes would hide the words
)
documents = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=5),
    max_leaves=20,
)


@given(st.dictionaries(WORDS, documents, max_size=6), st.lists(documents, max_size=3))
def test_any_document_loads_or_shows_its_faults(
    document: dict[str, object], steps: list[object]
) -> None:
    text = json.dumps({**document, "steps": steps} if steps else document)
    loaded = check_recipe_text(text, "x.yaml", CATALOG)
    assert (loaded.recipe is None) is bool(loaded.errors)


def test_a_hundred_faults_are_enough() -> None:
    text = "".join(f"key{n}: 1\n" for n in range(500))
    assert len(check(text).faults) == 100


def test_a_model_takes_options_of_its_server() -> None:
    text = (
        "model: {seed: 7, reasoning_effort: low, stop: END, extra: {top_k: 40}}\n"
        "steps: [{id: a, goal: A, model: {stop: [X, Y]}}]"
    )
    recipe = load_recipe_text(text, "r.yaml", Catalog())
    assert recipe.model.options() == ModelOptions(
        seed=7, reasoning_effort="low", stop=("END",), extra={"top_k": 40}
    )
    (step,) = recipe.steps
    assert isinstance(step, StepSpec)
    assert step.own_model is not None
    own = recipe.model.overlaid(step.own_model).options()
    assert (own.stop, own.seed, own.extra) == (("X", "Y"), 7, {"top_k": 40})


@pytest.mark.parametrize("name", ["model", "messages", "temperature", "tools", "stream", "seed"])
def test_further_fields_of_a_request_cannot_be_those_that_are_set_anyway(name: str) -> None:
    text = f"model: {{extra: {{{name}: 1, top_k: 40}}}}\nsteps: [{{id: a, goal: A}}]"
    with pytest.raises(RecipeError) as caught:
        load_recipe_text(text, "r.yaml", Catalog())
    (fault,) = caught.value.faults
    assert fault.code == "bad-value"
    assert f"cannot set '{name}'" in fault.message
