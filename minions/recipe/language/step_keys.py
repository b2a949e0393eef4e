"""The keys of steps of every kind; keys of one kind are in `recipe/kinds`."""

from __future__ import annotations

from typing import Final

from minions.recipe.text.key_types import (
    METADATA_KEY,
    STEP_LIMITS_KEY,
    STEP_PATTERN,
    TEXTS,
    Key,
    Table,
    count_key,
    flag_key,
    mapping_key,
    seconds_key,
    text_key,
)

MOST_ROUNDS: Final = 10_000
"""Iterations of one step. Each is stored in the run's journal:
more than that is work for a tool.
"""

STEP: Final = Table(
    "a step",
    (
        Key(
            name="id",
            description="Unique; other steps read its output by this name.",
            types=("string",),
            pattern=STEP_PATTERN,
            is_required=True,
        ),
        text_key("description", "What the step is for."),
        text_key(
            "extends",
            "Name of a template, from which the step takes the keys that it does not state itself.",
        ),
        Key(
            name="depends_on",
            description="Steps that must end before this one: ids or `save_as` names.",
            types=("array", "string"),
            shape=TEXTS,
        ),
        Key(
            name="when",
            description="A condition; false skips the step.",
            types=("string", "boolean"),
        ),
        Key(
            name="loop",
            description="A list, or a template of one: the step is executed for each item, which "
            "templates read as `loop.item`, its index from 0 as `loop.index`.",
            types=("string", "array"),
        ),
        flag_key(
            "aggregate",
            "With `loop`: the output is the list of the items' outputs. Else it is an object with "
            "`results`, `errors`, `total`, `successful` and `failed`.",
        ),
        count_key(
            "max_parallel", "With `loop`: items that are executed at the same time; default 1."
        ),
        Key(
            name="on_item_error",
            description="With `loop`: `fail` (the default): the step fails if an item does; "
            "`collect`: it completes with the results that there are, null where an item failed, "
            "and the run is `partial`. All items are tried in any case.",
            types=("string",),
            shape={"type": "string", "enum": ["fail", "collect"]},
        ),
        count_key(
            "min_successful",
            "With `on_item_error: collect`: items that have to succeed, or the step fails; "
            "default 1.",
        ),
        Key(
            name="while",
            description="A condition: the step is repeated as long as it holds after an attempt. "
            "It and the step's templates read the output of the last attempt as `loop.last`, all "
            "outputs as `loop.attempts`, the number of the attempt from 0 as `loop.index`.",
            types=("string",),
        ),
        count_key(
            "max_iterations",
            "With `while`: attempts after which the step fails; default 10.",
            maximum=MOST_ROUNDS,
        ),
        flag_key(
            "allow_repeats",
            "With `while`: an attempt may have the same output as an earlier one. Else the step "
            "fails then, because it is stuck.",
        ),
        Key(
            name="on_error",
            description="`fail`; `continue`: as `optional`, and steps that only have to come after "
            "this one run; or `{goto: STEP, max: 2}`: an earlier step, or this one, runs again "
            "with all steps that depend on it, and reads the error as `feedback`.",
            types=("string", "object"),
            shape={
                "anyOf": [
                    {"type": "string", "enum": ["fail", "continue"]},
                    {"$ref": "#/$defs/on_error"},
                ]
            },
        ),
        Key(
            name="save_as",
            description="Another name for the step's output.",
            types=("string",),
            pattern=STEP_PATTERN,
        ),
        flag_key("optional", "Whether the run continues if the step fails."),
        text_key(
            "route",
            "Chooses among several next steps in `graph`: a template of the step's id, or a "
            "question that a model answers.",
        ),
        Key(
            name="decision_tool",
            description="A tool whose result names the next step: `name`, or `{tool: name, "
            "params: {…}}`.",
            types=("string", "object"),
            shape={"anyOf": [{"type": "string"}, {"$ref": "#/$defs/decision_tool"}]},
        ),
        seconds_key("timeout_s", "Wall time of the step, in seconds."),
        seconds_key(
            "idle_timeout_s", "Longest time without a byte of the model's answer, in seconds."
        ),
        Key(
            name="retry",
            description="How this step's model and tool calls are retried; overrides the recipe's.",
            types=("object",),
            shape={"$ref": "#/$defs/retry"},
        ),
        STEP_LIMITS_KEY,
        METADATA_KEY,
        flag_key(
            "distribute",
            "With `loop`, or of a `recipe` step: in a run that a worker executes, each item is a "
            "run of its own in the same queue, which any worker takes; `max_parallel` bounds how "
            "many wait or run at a time, default 256. Elsewhere as without it.",
        ),
    ),
)

ON_ERROR: Final = Table(
    "on_error",
    (
        text_key("goto", "The step that runs again.", is_required=True),
        count_key("max", "How often it runs again; default 2.", maximum=MOST_ROUNDS),
    ),
)

DECISION_TOOL: Final = Table(
    "decision_tool",
    (
        text_key("tool", "The tool's name.", is_required=True),
        mapping_key("params", "Its arguments; templates are rendered."),
    ),
)
