"""A-124: an expression neither holds the event loop nor fills the memory; it fails and says so."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from builders import recipe_of, run_of
from minions.data.json_values import JsonValue
from minions.recipe.expressions.template import compile_condition, compile_template
from minions.recipe.expressions.values import (
    MAX_NODES,
    EvaluationError,
    ExpressionBudgetError,
    Meter,
    MissingValueError,
    weighed,
)
from minions.recipe.kinds.set_kind import SetSpec
from minions.recipe.model import LoopSpec


def tenfold(count: int, leaves: int = 10) -> list[SetSpec]:
    """Steps of which each holds the value of the one before ten times."""
    steps = [SetSpec(id="s0", set={"v": [0] * leaves})]
    for n in range(1, count):
        ten = ", ".join([f"s{n - 1}"] * 10)
        steps.append(
            SetSpec(id=f"s{n}", set={"v": f"{{{{ [{ten}] }}}}"}, depends_on=(f"s{n - 1}",))
        )
    return steps


async def test_values_that_grow_tenfold_with_each_step_fail_before_they_fill_the_memory() -> None:
    ran = await run_of(recipe_of(tenfold(9)))
    assert ran.result.error is not None
    assert ran.result.error.code == "expression-budget"
    done = [each for each in ran.result.executions if each.is_complete]
    assert 3 <= len(done) <= 6


async def test_the_results_of_a_loop_are_weighed_together() -> None:
    """Each of them is small, and in memory they share what is large."""
    steps = [
        *tenfold(3, leaves=1_000),  # of long lists: these are weighed in no time
        SetSpec(
            id="each",
            set={"all": "{{ s2 }}"},
            loop=LoopSpec(over=list(range(50))),
            depends_on=("s2",),
        ),
    ]
    ran = await run_of(recipe_of(steps))
    assert ran.result.error is not None
    assert "expression-budget" in repr(ran.result)
    assert "Let each item give less" in repr(ran.result)


@pytest.mark.parametrize(
    "expression",
    [
        "[{0}]",
        "{{'a': {0}, 'b': {0}}}",
        "{0} + {0}",
        "{0}|tojson",
        "{0}|string",
        "'' ~ {0}",
        "{0}|unique",
        "{0}|sort",
        "[{0}, {0}]|map('tojson')",
        "{0} == other",
        "{0}|join",
        "{0} in [other]",
        "[{0}]|select('in', [other])",
        "{0}|reverse",
    ],
)
def test_a_value_that_is_small_in_memory_and_large_as_text_is_weighed(expression: str) -> None:
    def grown() -> JsonValue:
        value: JsonValue = [0]
        for _ in range(12):
            value = [value] * 10
        return value

    template = compile_template("{{ " + expression.format("deep") + " }}")
    with pytest.raises(EvaluationError) as caught:
        template.render({"deep": grown(), "other": grown()})
    assert caught.value.error_code in ("expression-budget", "template-failed")


@pytest.fixture(scope="module")
def much() -> Mapping[str, JsonValue]:
    """Values that take longer to make than a test takes."""
    return {
        "many": list(range(300_000)),
        "others": [f"x{n}" for n in range(300_000)],
        "nested": [[n] for n in range(100_000)],
        "rows": [{"n": n} for n in range(200_000)],
        "text": "a b " * 200_000,
    }


@pytest.mark.parametrize(
    "expression",
    [
        "many|select('in', many)|list",
        "many|reject('in', others)|list",
        "many|map('string')|join|length",
        "many|sort|sort|sort|sort",
        "nested|select('in', nested)",
        "nested|unique",
        "text|list|sort",
        "text|split|unique",
        "rows|sort(attribute='n')|map(attribute='n')|sum",
        "|".join(["many", *["map('string')"] * 40]),
        " + ".join(["many"] * 150),
        " and ".join(["many in nested"] * 100),
    ],
)
def test_work_that_would_take_long_is_refused(
    expression: str, much: Mapping[str, JsonValue]
) -> None:
    with pytest.raises(EvaluationError) as caught:
        compile_template("{{ " + expression + " }}").render(much)
    assert caught.value.error_code in ("expression-budget", "template-failed")


def test_a_condition_has_a_budget_too() -> None:
    condition = compile_condition("nested|select('in', nested)|length > 0")
    with pytest.raises(ExpressionBudgetError, match="Work on less at a time"):
        condition.holds({"nested": [[n] for n in range(100_000)]})


def test_the_budget_is_of_the_whole_rendering_and_of_each_one() -> None:
    many: list[JsonValue] = list(range(20_000))
    once = compile_template({"a": "{{ many|map('string')|list }}"})
    for _ in range(20):
        once.render({"many": many})
    with pytest.raises(ExpressionBudgetError):
        compile_template(dict.fromkeys("abcdefgh", "{{ many|map('string')|list }}")).render(
            {"many": many}
        )


def test_what_is_handed_on_as_it_is_costs_nothing() -> None:
    rows: JsonValue = [{"n": n} for n in range(200_000)]
    assert compile_template("{{ rows }}").render({"rows": rows}) is rows


def test_what_looks_into_no_item_is_free_of_the_size() -> None:
    rows: JsonValue = [0] * 5_000_000
    for expression in ("rows|length", "rows is none", "rows is sequence", "rows|bool", "rows[-1]"):
        compile_template("{{ " + expression + " }}").render({"rows": rows})


def test_membership_is_that_of_equal_values_also_by_set() -> None:
    scope: dict[str, JsonValue] = {"items": [1, 1.0, True, "1", None, [1], {"a": 1}, [True]]}
    cases: list[tuple[list[JsonValue], list[JsonValue]]] = [
        ([1], [1, 1.0]),
        ([True], [True]),
        (["1", None], ["1", None]),
        ([[1], {"a": 1}], [[1], {"a": 1}, [True]]),
    ]
    for members, expected in cases:
        template = compile_template("{{ items|select('in', members) }}")
        found = template.render({**scope, "members": members})
        assert repr(found) == repr(expected)
        singly = compile_template("{{ it in members }}")
        assert [
            item
            for item in scope["items"]  # type: ignore[union-attr]  # a list
            if singly.render({"it": item, "members": members})
        ] == expected


def test_a_missing_value_among_many_names_is_told_soon() -> None:
    keys = {f"{'k' * 90}{n}": 0 for n in range(100_000)}
    with pytest.raises(MissingValueError) as caught:
        compile_template("{{ m.%s }}" % ("k" * 95)).render({"m": keys})
    assert len(caught.value.message) < 2_000


def test_a_weight_counts_what_stands_in_a_value_twice_each_time() -> None:
    shared: JsonValue = ["ab", {"key": "c"}]
    weight = weighed([shared, shared], Meter())
    assert (weight.nodes, weight.characters) == (1 + 2 * 4, 2 * (2 + 3 + 1))
    assert weight.nodes < MAX_NODES
