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
    later_keys,
    mapping_key,
    seconds_key,
    text_key,
)

__all__ = ["DECISION_TOOL", "MOST_ROUNDS", "ON_ERROR", "STEP"]

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
        text_key("extends", "A template that says what this step does not."),
        Key(
            name="depends_on",
            description="Steps that must be done before: ids or `save_as` names.",
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
            description="A template that gives a list: the step is done for each item, which "
            "templates read as `loop.item`, its place from 0 as `loop.index`.",
            types=("string", "array"),
        ),
        flag_key(
            "aggregate",
            "Of a loop: its output is the list of the items' outputs. Else it has `results`, "
            "`errors`, `total`, `successful` and `failed`.",
        ),
        count_key("max_parallel", "Of a loop: items that are done together; 1 when absent."),
        Key(
            name="while",
            description="A condition: the step is done, and done again as long as it holds. It and "
            "the step's templates read what the last attempt gave as `loop.last`, all of them as "
            "`loop.attempts`, the number of the attempt from 0 as `loop.index`.",
            types=("string",),
        ),
        count_key(
            "max_iterations",
            "Of `while`: attempts, after which the step fails; 10.",
            maximum=MOST_ROUNDS,
        ),
        flag_key(
            "allow_repeats",
            "Of `while`: an attempt may give what an earlier one gave. Else that fails the step: "
            "it is stuck.",
        ),
        Key(
            name="on_error",
            description="`fail`; `continue`: as `optional`, and steps that only have to come after "
            "this one go on; or `{goto: STEP, max: 2}`: an earlier step, or this one, runs again "
            "with all that depends on it, and reads what went wrong as `feedback`.",
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
        flag_key("optional", "Its failure does not stop the run."),
        text_key(
            "route",
            "Which step comes next, of several in `graph`: a template that gives its id, or a "
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
        seconds_key("idle_timeout_s", "Longest silence while its model answers, in seconds."),
        Key(
            name="retry",
            description="How this step's model and tool calls are tried again, over the recipe's.",
            types=("object",),
            shape={"$ref": "#/$defs/retry"},
        ),
        STEP_LIMITS_KEY,
        METADATA_KEY,
        *later_keys("plan distribute"),
    ),
)

ON_ERROR: Final = Table(
    "on_error",
    (
        text_key("goto", "The step that runs again.", is_required=True),
        count_key("max", "How often; 2 when absent.", maximum=MOST_ROUNDS),
    ),
)

DECISION_TOOL: Final = Table(
    "decision_tool",
    (
        text_key("tool", "The tool's name.", is_required=True),
        mapping_key("params", "Its arguments; templates are filled in."),
    ),
)
