"""Reading and checking a recipe of two hundred steps in a process that runs already."""

from __future__ import annotations

from benchmarks.clients import recipe_of
from benchmarks.endpoint import Endpoint
from benchmarks.measuring import Effort, Row, absolute_row, least_cpu_s


async def measure(effort: Effort, _: Endpoint) -> list[Row]:
    """One row."""
    text = big_recipe(200)

    async def load() -> None:
        assert len(recipe_of(text).steps) == 200

    taken = await least_cpu_s(effort, {"load": load})
    return [
        absolute_row(
            "load", "read and check 200 steps", value=taken["load"] * 1e3, most=50, unit="ms CPU"
        )
    ]


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
        return f"  - id: s{at}\n    set: {{before: '{{{{ s{at - 1} }}}}', number: {at}}}\n"
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
