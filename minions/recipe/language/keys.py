"""All keys of the recipe language but those of steps: the loader and the editor schema use
these tables.

A key that a later version will support is listed with `is_served=False` and refused by name.
"""

from __future__ import annotations

from typing import Final

from minions.contracts.calls import OutputMode
from minions.contracts.executions import RunStatus
from minions.recipe.model import ExecutionMode, OnFailure
from minions.recipe.text.key_types import (
    LIMITS_KEY,
    METADATA_KEY,
    MODEL_KEY,
    NAME_PATTERN,
    STEP_PATTERN,
    TEXTS,
    Key,
    Table,
    choice_key,
    count_key,
    flag_key,
    later_keys,
    mapping_key,
    seconds_key,
    text_key,
)

__all__ = [
    "EXPECT",
    "LIMITS",
    "MODEL",
    "PERMISSIONS",
    "RECIPE",
    "RETRY",
    "SECRET_INPUT",
    "STEP_LIMITS",
    "TEST",
]

SECRET_INPUT: Final = Table(
    "a secret input",
    (
        Key(
            name="type",
            description="Always `string`.",
            types=("string",),
            choices=("string",),
            is_required=True,
        ),
        Key(
            name="secret",
            description="The input takes a reference, `env:NAME` or `file:/absolute/path`; only "
            "tools get the value.",
            types=("boolean",),
            is_required=True,
        ),
        Key(
            name="default",
            description="A reference such as `env:API_TOKEN`; never the value itself.",
            types=("string",),
            shape={"pattern": r"^(env:[A-Za-z_][A-Za-z0-9_]*|file:/.+|\$\{secret:.+\})$"},
        ),
        text_key("description", "What it is for, for people."),
        text_key("title", "A name for people."),
    ),
)

RECIPE: Final = Table(
    "a recipe",
    (
        Key(
            name="id",
            description="By which it is run; without it made of `name`, else the file's name.",
            types=("string",),
            pattern=NAME_PATTERN,
        ),
        text_key("name", "What people call it: any text."),
        Key(name="version", description="The recipe's own.", types=("string", "number")),
        text_key("description", "What the recipe is for, for people."),
        Key(
            name="inputs",
            description="Name to JSON Schema (with `default`, `description`), to a default, to "
            "null: any value, required; or to `{type: string, secret: true}`.",
            types=("object",),
            shape={
                "propertyNames": {"pattern": STEP_PATTERN},
                "additionalProperties": {
                    "anyOf": [
                        {
                            "type": "object",
                            "if": {
                                "properties": {"secret": {"const": True}},
                                "required": ["secret"],
                            },
                            "then": {"$ref": "#/$defs/secret_input"},
                            "else": {"properties": {"secret": {"const": False}}},
                        },
                        {"type": ["string", "number", "boolean"], "description": "A default."},
                        {"type": "null", "description": "Any value, required."},
                    ]
                },
            },
        ),
        text_key("system_prompt", "In the first prompt of each model step, once.", "context"),
        text_key("goal", "The agent's aim, in the first prompt of each model step."),
        MODEL_KEY,
        Key(
            name="tools",
            description="Toolsets with options (`files: {root: .}`) and registered tools.",
            types=("array",),
            shape={
                "items": {
                    "anyOf": [
                        {"type": "string"},
                        {"type": "object", "minProperties": 1, "maxProperties": 1},
                    ]
                }
            },
        ),
        Key(
            name="permissions",
            description="What the run may change.",
            types=("object",),
            shape={"$ref": "#/$defs/permissions"},
        ),
        LIMITS_KEY,
        Key(
            name="retry",
            description="How failed model and tool calls are tried again.",
            types=("object",),
            shape={"$ref": "#/$defs/retry"},
        ),
        choice_key("execution_mode", "In which order steps run.", ExecutionMode),
        count_key("max_parallel", "Steps that run together in parallel mode."),
        choice_key("on_failure", "What a failed required step does to the others.", OnFailure),
        Key(
            name="steps",
            description="What is done.",
            types=("array",),
            is_required=True,
            shape={"minItems": 1, "items": {"$ref": "#/$defs/step"}},
        ),
        Key(name="output", description="A template of the run's result."),
        METADATA_KEY,
        Key(
            name="templates",
            description="Steps without an id, by name: a step that says `extends: name` takes "
            "from there what it does not say itself.",
            types=("object",),
            shape={"additionalProperties": {"type": "object"}},
        ),
        Key(
            name="graph",
            description="Transitions: each step to the ones that may come next. The first step of "
            "`steps` begins. Not together with `depends_on`.",
            types=("object",),
            shape={
                "propertyNames": {"pattern": STEP_PATTERN},
                "additionalProperties": {
                    "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]
                },
            },
        ),
        flag_key(
            "enabled", "For whatever runs recipes by a plan; `minions run` does not look at it."
        ),
        Key(
            name="tests",
            description="What `minions test` runs: inputs, scripted answers, and what is expected.",
            types=("array",),
            shape={"items": {"$ref": "#/$defs/test"}},
        ),
        Key(
            name="schedule",
            types=("string", "object", "array"),
            description="When it is to run: for whatever runs recipes by a plan, as `enabled`.",
        ),
    ),
)

MODEL: Final = Table(
    "a model",
    (
        text_key("name", "`provider/name` or a registered name."),
        text_key("base_url", "Another address; it gets no key unless the operator allows it."),
        Key(name="temperature", types=("number",), minimum=0, description="Of sampling."),
        Key(name="top_p", types=("number",), above=0, description="Of sampling."),
        count_key("max_output_tokens", "Longest answer."),
        seconds_key("timeout_s", "The whole call, in seconds."),
        seconds_key("idle_timeout_s", "Longest silence while the answer comes in, in seconds."),
        text_key(
            "api_key_env",
            "The environment variable that holds the key: the provider's own, or one that the "
            "operator lists in `recipe_key_variables`.",
        ),
        choice_key("output_mode", "How a schema is put to the server.", OutputMode),
        *later_keys("fallbacks tiers"),
    ),
)

PERMISSIONS: Final = Table(
    "permissions",
    (
        flag_key("allow_write", "Tools that change something may run; false when absent."),
        Key(
            name="allow_<tool>",
            description="Whether that one tool may run, whatever `allow_write` says.",
            types=("boolean",),
        ),
        Key(
            name="requires_approval",
            description="Tools that somebody must consent to before each call; a toolset's name "
            "stands for all of its tools.",
            types=("array",),
            shape=TEXTS,
        ),
    ),
)

LIMITS: Final = Table(
    "limits",
    (
        count_key("max_model_calls_per_step", "Logical model calls; repairs count."),
        count_key("max_tool_call_retries", "Extra attempts per tool call.", minimum=0),
        flag_key("sequential_tool_calls", "Tool calls of one answer one after the other."),
        flag_key("allow_repeated_steps", "A transition graph may come back to a step."),
        count_key("max_steps", "Steps executed in the run."),
        count_key("max_tokens", "Tokens of the run, input and output."),
        Key(
            name="max_cost_usd",
            types=("number",),
            above=0,
            description="US dollars of the run; then only models of known price are asked.",
        ),
        seconds_key("timeout_s", "Wall time in seconds."),
        seconds_key("tool_timeout_s", "Wall time of one attempt at a tool call, in seconds."),
        count_key("max_tool_result_bytes", "Longest tool result, as UTF-8 JSON."),
    ),
    camel_case=True,
)

_OF_THE_RUN: Final = ("allow_repeated_steps", "max_steps", "max_tokens", "max_cost_usd")
STEP_LIMITS: Final = Table(
    "limits of a step",
    tuple(key for key in LIMITS.keys if key.name not in _OF_THE_RUN),
    camel_case=True,
)

RETRY: Final = Table(
    "retry",
    (
        count_key("max_attempts", "Of a model call, the first included."),
        Key(name="initial_delay", types=("number",), minimum=0, description="In seconds."),
        Key(name="max_delay", types=("number",), minimum=0, description="In seconds."),
        Key(
            name="exponential_base",
            types=("number",),
            minimum=1,
            description="Each delay is this much longer than the one before.",
        ),
        flag_key("jitter", "Each delay times a random factor."),
    ),
    camel_case=True,
)

TEST: Final = Table(
    "a test",
    (
        text_key("name", "What the test is about."),
        mapping_key("inputs", "The run's inputs."),
        Key(
            name="answers",
            description="What the model answers, in order, as in a script file.",
            types=("array",),
        ),
        text_key("model", "A scripted model instead: `scripted/FILE.yaml` or a registered name."),
        mapping_key(
            "tools",
            "Full tool names and what they give here; the tools themselves are not called. One "
            "that is not pure must stand here.",
        ),
        Key(
            name="decisions",
            description="Steps to `approve`, `reject` or `answer:VALUE`; a nested recipe's as "
            "`step/inner_step`. Without a word the run waits: `needs_decision`.",
            types=("object",),
            shape={"additionalProperties": {"type": "string"}},
        ),
        Key(
            name="expect",
            description="What has to come out.",
            types=("object",),
            shape={"$ref": "#/$defs/expect"},
        ),
    ),
)

EXPECT: Final = Table(
    "expect",
    (
        choice_key("status", "How the run ends; `completed` when absent.", RunStatus),
        Key(name="output", description="The run's output, just so."),
        text_key("error", "The code of the run's error."),
        Key(
            name="holds",
            description="A condition, or several, over `inputs`, `steps`, step names and `output`.",
            types=("string", "array"),
            shape=TEXTS,
        ),
    ),
)
