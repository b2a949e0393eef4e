"""Each text of a recipe is parsed once, however often it is checked, analysed, built and run."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Final

import pytest

from builders import deterministic_services
from minions.adapters.models.scripted import ScriptedModel
from minions.analysis.explanation import explain
from minions.app.wiring.built_in_extensions import built_in_extensions
from minions.contracts.executions import RunStatus
from minions.engine.compile.dry_run import planned_prompts
from minions.engine.run.agent_executor import AgentExecutor
from minions.recipe.expressions import template
from minions.recipe.expressions.syntax import ParsedExpression, parse_expression
from minions.recipe.expressions.template import Templates, has_templates
from minions.recipe.expressions.values import TemplateError
from minions.recipe.permissions import tool_specs
from minions.recipe.reading.load import load_recipe, load_recipe_text

TEXT: Final = """
id: r
inputs: {folder: {type: string, untrusted: true}, many: {type: array, default: [1, 2]}}
system_prompt: "There are {{ inputs.many | length }}."
goal: "All for {{ inputs.many }}."
tools: [{files: {root: "{{ inputs.folder }}"}}]
steps:
  - {id: a, set: {x: "{{ inputs.many | first }}", y: "Hi {{ inputs.folder }}"}}
  - {id: b, goal: "Say {{ a.x }} and {{ a.y }}.", completion: text, cache: true, when: "a.x != 'Z'"}
  - {id: c, set: {n: "{{ loop.item }} of {{ b }}"}, loop: "{{ inputs.many }}"}
  - {id: d, set: {n: "{{ loop.index }}"}, while: "loop.index < 2"}
  - {id: e, assert: ["c.total == 2", "{{ d.n == 2 }}"], message: "No {{ c }}"}
  - {id: f, tool: files__list, params: {path: "{{ a.x }}/."}, optional: true}
  - {id: g, analyze: "Judge {{ b }}", input: "{{ c }}", context: "{{ a.y }}", optional: true}
output: "{{ c }}"
tests:
  - {name: one, inputs: {folder: x}, answers: [hi], expect: {holds: ["output.total == 2"]}}
"""


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[str, int]]:
    """How often each expression was parsed, by its text and its place in it."""
    counts = Counter[tuple[str, int]]()

    def counted(text: str, start: int = 0, *, in_braces: bool = False) -> ParsedExpression:
        counts[text, start] += 1
        return parse_expression(text, start, in_braces=in_braces)

    monkeypatch.setattr(template, "parse_expression", counted)
    return counts


async def test_a_recipe_that_is_checked_planned_and_run_twice_is_parsed_once(
    parsed: Counter[tuple[str, int]], tmp_path: Path
) -> None:
    extensions = built_in_extensions()
    catalog = extensions.catalog()
    recipe = load_recipe_text(TEXT, "r.yaml", catalog)
    assert len(parsed) > 20
    explain(recipe, tool_specs(recipe, catalog))
    planned_prompts(recipe, extensions)
    model = ScriptedModel(["hi", "fine"] * 2)
    executor = AgentExecutor(model, extensions=extensions, services=deterministic_services())
    (tmp_path / "1").mkdir()
    for _ in range(2):
        result = await executor.execute(recipe, {"folder": str(tmp_path)})
        assert result.status is RunStatus.COMPLETED
        (call,) = result.step("b").model_calls
        assert str(tmp_path) in str(call.prompt.messages)
    assert {text: n for text, n in parsed.items() if n > 1} == {}


SHIPPED: Final = [
    path
    for path in sorted((Path(__file__).parents[2] / "recipes").glob("*.yaml"))
    if path.name != "activity_monitor.yaml"  # it names tools of its program
]


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_a_shipped_recipe_is_parsed_once(path: Path, parsed: Counter[tuple[str, int]]) -> None:
    """... and each recipe within it. A plan also reads expressions by themselves, to show them."""
    extensions = built_in_extensions()
    catalog = extensions.catalog()
    recipe = load_recipe(path, catalog)
    before = parsed.copy()
    explain(recipe, tool_specs(recipe, catalog))
    assert parsed == before
    planned_prompts(recipe, extensions)
    assert {text: n for text, n in parsed.items() if n > 1} == {}


def test_equal_texts_of_one_recipe_are_one_and_those_of_two_are_two(
    parsed: Counter[tuple[str, int]],
) -> None:
    first, second = Templates(), Templates()
    for templates in (first, first, second):
        assert templates.compile({"a": ["{{ x }}", {"b": "{{ x }}"}]}).render({"x": 1}) == {
            "a": [1, {"b": 1}]
        }
        assert templates.compile_condition("{{ x }} ").holds({"x": 1})
    assert parsed == {("{{ x }}", 2): 2, ("{{ x }} ", 2): 2}


def test_a_wrong_text_is_refused_each_time() -> None:
    templates = Templates()
    for _ in range(2):
        with pytest.raises(TemplateError):
            templates.compile("{{ a b }}")
        with pytest.raises(TemplateError):
            templates.compile_condition("a b")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("plain", False),
        ("{{ x }}", True),
        ("a }} b", True),
        ({"a": [1, None, {"b": "{% if %}"}]}, True),
        ({"{{ key }}": [1, True, "x"]}, False),
    ],
)
def test_templates_are_seen_without_parsing(
    value: object, expected: bool, parsed: Counter[tuple[str, int]]
) -> None:
    """Keys are none."""
    assert has_templates(value) is expected  # type: ignore[arg-type]  # JSON, as written above
    assert not parsed
