"""Reading and checking recipes in a process that runs already, and rendering a template."""

from __future__ import annotations

from functools import partial

from benchmarks.clients import recipe_of
from benchmarks.endpoint import Endpoint
from benchmarks.measuring import Effort, Row, absolute_row, least_cpu_s, ratio_row
from minions.data.json_values import JsonValue
from minions.recipe.expressions.template import compile_template


async def measure(effort: Effort, _: Endpoint) -> list[Row]:
    """The time for a usual recipe, how it grows with the steps, and that of one value."""
    sizes = {"few": 200, "some": effort.count(500), "many": effort.count(5_000)}
    renders = effort.count(100_000)

    async def load(steps: int) -> None:
        assert len(recipe_of(texts[steps]).steps) == steps

    texts = {steps: big_recipe(steps) for steps in sizes.values()}
    taken = await least_cpu_s(
        effort,
        {
            **{name: partial(load, steps) for name, steps in sizes.items()},
            "render": partial(_render, renders),
        },
    )
    some, many = (taken[name] / sizes[name] * 1e6 for name in ("some", "many"))
    return [
        absolute_row(
            "load", "read and check 200 steps", value=taken["few"] * 1e3, most=50, unit="ms CPU"
        ),
        ratio_row(
            "load-growth",
            f"read and check a step of {sizes['many']:,}, against one of {sizes['some']:,}",
            ratio=many / some,
            most=1.3,
            of=f"a step of {sizes['some']:,}",
            absolute=f"{many:.0f} µs; {some:.0f} µs",
        ),
        absolute_row(
            "render",
            "render `{{ a.b.c }}`",
            value=taken["render"] / renders * 1e6,
            most=3,
            unit="µs",
        ),
    ]


async def _render(times: int) -> None:
    template = compile_template("{{ found.files.total }}")
    scope: dict[str, JsonValue] = {"found": {"files": {"total": 7}}}
    for _ in range(times):
        template.render(scope)


def big_recipe(steps: int) -> str:
    """A recipe as people write them: conditions, values of earlier steps, declared outputs."""
    head = (
        "id: big\n"
        "description: Many steps.\n"
        "inputs:\n"
        "  topic: {type: string, default: ropes}\n"
        "steps:\n"
        "  - id: s0\n"
        "    goal: Say something about {{ inputs.topic }}.\n"
    )
    return head + "".join(_step(at) for at in range(1, steps))


def _step(at: int) -> str:
    if at % 4 == 0:
        set_ = f"set: {{before: '{{{{ s{at - 1} }}}}', number: {at}}}"
        return f"  - id: s{at}\n    depends_on: [s{at - 1}]\n    {set_}\n"
    output = (
        "    output:\n"
        "      type: object\n"
        "      properties: {title: {type: string}, size: {type: integer}}\n"
        "      required: [title]\n"
    )
    return (
        f"  - id: s{at}\n"
        f"    description: Step {at} of many.\n"
        f"    when: \"{{{{ inputs.topic != 'nothing' }}}}\"\n"
        f"    goal: Go on with {{{{ s{at - 1} }}}} and {{{{ inputs.topic }}}}.\n"
        f"{output if at % 4 == 1 else ''}"
    )
