"""The keys of the recipe language but those of steps, models and tests, which stand beside: the
loader and the editor schema use these tables.

A key that a later version will support is listed with `is_served=False` and refused by name.
"""

from __future__ import annotations

from typing import Final

from minions.contracts.retry_config import CircuitPolicy
from minions.data.json_values import JsonValue
from minions.data.schema import JsonSchema
from minions.recipe.model import ExecutionMode, MissedRuns, OnFailure, Overlap
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
    mapping_key,
    seconds_key,
    text_key,
)
from minions.recipe.text.schemas import TYPES

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
            "tools receive the value.",
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

WATCH: Final = Table(
    "a watch",
    (
        Key(
            name="sample",
            description="The share of the runs that is scored: `5%` or 0.05. Which ones is decided "
            "by their ids.",
            types=("string", "number"),
            is_required=True,
        ),
        Key(
            name="scorers",
            description="As in an evaluation; those that compare with a known answer cannot be.",
            types=("array",),
            is_required=True,
        ),
        Key(
            name="at_least",
            description="The share of runs that each scorer has to pass; default: that of the "
            "first scored runs.",
            types=("number",),
            minimum=0.0,
            maximum=1.0,
        ),
        Key(
            name="window",
            description="How many of the newest scored runs are compared; default 50.",
            types=("integer",),
            minimum=10,
            maximum=500,
        ),
        Key(
            name="max_tokens_per_day",
            description="Tokens that models that grade may use within 24 hours; default 200,000.",
            types=("integer",),
            minimum=1,
        ),
        Key(
            name="max_cost_usd_per_day",
            description="What they may cost, in US dollars; their prices have to be known.",
            types=("number",),
            minimum=0.0,
        ),
    ),
)

SCHEDULE: Final = Table(
    "a schedule",
    (
        text_key(
            "cron",
            "Minute, hour, day of month, month, day of week: `0 8 * * 1-5`; or `@daily`.",
            is_required=True,
        ),
        text_key("timezone", "An IANA time zone, `Europe/Zurich`; default UTC."),
        choice_key(
            "missed",
            "Times at which no worker was there: `once` (default) starts one run for all, `all` "
            "one for each, `skip` none.",
            tuple(each.value for each in MissedRuns),
        ),
        choice_key(
            "overlap",
            "While an earlier run has not ended: `skip` (default) leaves the time out, `queue` "
            "starts its run afterwards, `allow` at once.",
            tuple(each.value for each in Overlap),
        ),
        mapping_key("inputs", "Inputs of its runs."),
        text_key(
            "patience",
            "How long after its time a run is to be done, `8h`: until then its model calls may "
            "wait for batches of their providers, at a lower price.",
        ),
    ),
)
_SCHEDULE_FORMS: Final[list[JsonValue]] = [{"type": "string"}, {"$ref": "#/$defs/schedule"}]

RECIPE: Final = Table(
    "a recipe",
    (
        Key(
            name="id",
            description="The id by which it is run; default: made of `name`, else the file's name.",
            types=("string",),
            pattern=NAME_PATTERN,
        ),
        text_key("name", "The name shown to people: any text."),
        Key(
            name="version",
            description="The version of the recipe, of any form.",
            types=("string", "number"),
        ),
        text_key("description", "What the recipe is for, for people."),
        Key(
            name="inputs",
            description="Inputs by name: a type (`string`, `[string]`), a JSON Schema (with "
            "`default`, `description`), a default that names no type, null for any required value, "
            "or `{type: string, secret: true}`. `untrusted: true` beside the type: a stranger may "
            "have written the value; `private: true`: so may one, and it is meant for nobody else.",
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
                        {
                            "type": ["string", "number", "boolean"],
                            "description": "A type or a default.",
                        },
                        {
                            "type": "array",
                            "items": {"type": "string", "enum": list(TYPES)},
                            "minItems": 1,
                            "maxItems": 1,
                            "description": "A list of that type.",
                        },
                        {"type": "null", "description": "Any value, required."},
                    ]
                },
            },
        ),
        text_key("system_prompt", "System message of each model step."),
        Key(
            name="context",
            description="What each `goal` step reads, at the same place of its prompt, so that a "
            "server finds it in its cache: a list of `{text: …}`, a template of inputs, and "
            "`{file: …}`. A text is another name of `system_prompt`.",
            types=("string", "array"),
            shape={
                "anyOf": [
                    {"type": "string"},
                    {"type": "array", "items": {"$ref": "#/$defs/context_part"}},
                ]
            },
        ),
        text_key("goal", "The agent's aim: part of the first prompt of each model step."),
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
            name="redact",
            description="Kinds of personal data that are replaced by placeholders in everything "
            "that is sent to a model: `mail`, `card`, `iban`, and those of the operator.",
            types=("array",),
            shape=TEXTS,
        ),
        flag_key(
            "restore",
            "With `redact`: whether outputs and arguments of tools get the values back in place of "
            "their placeholders; default false.",
        ),
        Key(
            name="retain",
            description="How long its runs stay in the journal after their end: `30d`, `12h`; of "
            "this and the operator's own time the shorter one counts.",
            types=("number", "string"),
        ),
        Key(
            name="retry",
            description="How failed model and tool calls are retried.",
            types=("object",),
            shape={"$ref": "#/$defs/retry"},
        ),
        choice_key("execution_mode", "The order in which steps run.", ExecutionMode),
        count_key("max_parallel", "Steps that run at the same time in parallel mode."),
        choice_key(
            "on_failure", "What happens to the other steps when a required step fails.", OnFailure
        ),
        text_key(
            "on_surprise",
            "The last step, which is executed only where another one fails for what it was given "
            "or got, and whose output is then that of the run; default `fail`: there is none.",
        ),
        flag_key(
            "strict",
            "Whether the recipe is refused where untrusted text can reach, without an approval, a "
            "tool that writes, sends or spends; default false: a warning.",
        ),
        Key(
            name="steps",
            description="The steps, at least one.",
            types=("array",),
            is_required=True,
            shape={"minItems": 1, "items": {"$ref": "#/$defs/step"}},
        ),
        Key(name="output", description="A template of the run's output."),
        METADATA_KEY,
        Key(
            name="templates",
            description="Steps without an id, by name: a step with `extends: name` takes the keys "
            "from there that it does not state itself.",
            types=("object",),
            shape={"additionalProperties": {"type": "object"}},
        ),
        Key(
            name="graph",
            description="Transitions: for each step those that may come next. The run starts with "
            "the first of `steps`. Not together with `depends_on`.",
            types=("object",),
            shape={
                "propertyNames": {"pattern": STEP_PATTERN},
                "additionalProperties": {
                    "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]
                },
            },
        ),
        flag_key("enabled", "Whether `schedules add` lets its schedule begin; else it is paused."),
        Key(
            name="tests",
            description="Tests for `minions test`: inputs, scripted answers and expected results.",
            types=("array",),
            shape={"items": {"$ref": "#/$defs/test"}},
        ),
        Key(
            name="schedule",
            types=("string", "object", "array"),
            description="When it is due: a cron expression, a mapping, or a list of these. Workers "
            "start its runs, after `minions schedules add`; `minions run` ignores it.",
            shape={
                "anyOf": [*_SCHEDULE_FORMS, {"type": "array", "items": {"anyOf": _SCHEDULE_FORMS}}]
            },
        ),
        Key(
            name="watch",
            description="Which runs are scored after their end, and by what: `minions watch`.",
            types=("object",),
            shape={"$ref": "#/$defs/watch"},
        ),
    ),
)


MCP_SERVER: Final = Table(
    "an MCP server",
    (
        text_key("server", "A server of the operator's configuration: `[mcp.NAME]`."),
        Key(
            name="command",
            description="The recipe's own server: the program with its arguments. It is started "
            "only where the operator locked it.",
            types=("array",),
            shape=TEXTS,
        ),
        text_key("url", "The recipe's own server: its address. Asked only where it is locked."),
        Key(
            name="tools",
            description="Names of the tools that the recipe uses; else all that are locked.",
            types=("array",),
            shape=TEXTS,
        ),
        Key(
            name="as",
            description="The tools are named `as__tool`; required for the recipe's own server. "
            "Else the server's name.",
            types=("string",),
            pattern=STEP_PATTERN,
        ),
        Key(
            name="reads",
            description="Who wrote what its tools give; `untrusted` by default.",
            types=("string",),
            choices=("trusted", "untrusted", "private"),
        ),
    ),
)

_STAGE_KEYS: Final = (
    Key(
        name="deciders",
        description="Who may decide: persons, and `role:NAME`; default: anybody.",
        types=("array",),
        shape=TEXTS,
    ),
    count_key("quorum", "How many different persons have to approve; default 1."),
    Key(
        name="expires",
        description="How long it waits: seconds, or `30m`, `2h`. Then what `then` says follows.",
        types=("number", "string"),
    ),
    Key(
        name="then",
        description="What follows: `reject` (the default), or `{ask: [OTHERS]}`, with `expires`, "
        "`quorum` and `then` of its own.",
        types=("string", "object"),
        shape={"anyOf": [{"const": "reject"}, {"type": "object", "required": ["ask"]}]},
    ),
)
APPROVAL: Final = Table(
    "an approval",
    (
        text_key("tool", "The tool.", is_required=True),
        text_key("when", "The condition, such as `args.amount > 100`; default: each call."),
        *_STAGE_KEYS,
        count_key(
            "rejections", "How many different persons have to reject it; default: one is enough."
        ),
        flag_key("not_by_starter", "Whether whoever started the run may not decide."),
        text_key(
            "reviewer",
            "A recipe that looks at each call first: it may reject it, and passes the others to a "
            "person.",
        ),
    ),
)
NEXT_DECIDERS: Final = Table(
    "what follows an expiry",
    (
        Key(
            name="ask",
            description="Who is asked next: persons, and `role:NAME`.",
            types=("array",),
            shape=TEXTS,
            is_required=True,
        ),
        *(key for key in _STAGE_KEYS if key.name != "deciders"),
    ),
)
_APPROVALS: Final[JsonSchema] = {
    "items": {
        "anyOf": [
            {"type": "string"},
            {
                "type": "object",
                "properties": {key.name: key.schema() for key in APPROVAL.keys},
                "required": ["tool"],
                "additionalProperties": False,
            },
        ]
    }
}

PERMISSIONS: Final = Table(
    "permissions",
    (
        flag_key("allow_write", "Whether tools that declare a write may be called; default false."),
        Key(
            name="allow_<tool>",
            description="Whether that tool may be called; overrides `allow_write`.",
            types=("boolean",),
        ),
        Key(
            name="requires_approval",
            description="Tools of which every call needs approval; a toolset's name stands for "
            "all of its tools. `{tool: …, when: …}`: calls of which the condition over `args` and "
            "`inputs` is true; with `deciders`, `quorum`, `expires`, `then`, `rejections` and "
            "`not_by_starter` it says who decides, and until when; `reviewer` names a recipe that "
            "looks at it first.",
            types=("array",),
            shape=_APPROVALS,
        ),
        seconds_key(
            "approval_timeout_s",
            "After so many seconds a call that nobody approved counts as rejected; default: it "
            "waits.",
        ),
        Key(
            name="remind_every",
            description="How often those who are told of waiting runs are reminded, until it is "
            "decided: seconds, or `30m`, `2h`; default: once.",
            types=("number", "string"),
        ),
        mapping_key(
            "policies",
            "By tool: a condition over `args`, `inputs`, and whose words are in which argument: "
            "`words_of`, `stands_in`, `decided_by`. A call of which it is true is made also where "
            "words of a stranger may be in its arguments.",
        ),
        Key(
            name="untrusted",
            description="Whether a call that writes, sends or spends is made when words of a "
            "stranger may be in its arguments: `ask` a person (the default), `allow` or `refuse` "
            "it.",
            types=("string",),
            choices=("ask", "allow", "refuse"),
        ),
        Key(
            name="private_models",
            description="Models, `provider` or `provider/name`, beside the run's own in whose "
            "prompts private data may be without asking.",
            types=("array",),
            shape=TEXTS,
        ),
    ),
)

LIMITS: Final = Table(
    "limits",
    (
        count_key("max_model_calls_per_step", "Logical model calls; repairs count."),
        count_key(
            "max_tool_calls_per_answer",
            "Tool calls of one answer that are made; the model is told of the others.",
        ),
        count_key("max_tool_calls_per_step", "Tool calls that a model has made in one step."),
        count_key("max_tool_call_retries", "Extra attempts per tool call.", minimum=0),
        flag_key(
            "sequential_tool_calls", "Execute the tool calls of one answer one after the other."
        ),
        flag_key(
            "allow_repeated_steps", "Whether a transition graph may execute a step more than once."
        ),
        count_key("max_steps", "Steps executed in the run."),
        count_key("max_model_calls", "Logical model calls of the run."),
        count_key("max_tokens", "Tokens of the run, input and output."),
        Key(
            name="max_cost_usd",
            types=("number",),
            above=0,
            description="US dollars of the run; only models with a known price are then called.",
        ),
        seconds_key("timeout_s", "Wall time in seconds."),
        seconds_key("tool_timeout_s", "Wall time of one attempt at a tool call, in seconds."),
        count_key("max_tool_result_bytes", "Longest tool result, as UTF-8 JSON."),
        count_key(
            "max_tool_result_characters",
            "Characters of a tool result that a model reads at once; it reads the rest in pieces.",
            minimum=100,
        ),
    ),
    camel_case=True,
)

_OF_THE_RUN: Final = (
    "allow_repeated_steps",
    "max_steps",
    "max_model_calls",
    "max_tokens",
    "max_cost_usd",
)
STEP_LIMITS: Final = Table(
    "limits of a step",
    tuple(key for key in LIMITS.keys if key.name not in _OF_THE_RUN),
    camel_case=True,
)

RETRY: Final = Table(
    "retry",
    (
        count_key("max_attempts", "Attempts at a model call, the first included."),
        Key(
            name="initial_delay",
            types=("number",),
            minimum=0,
            description="First delay in seconds.",
        ),
        Key(
            name="max_delay", types=("number",), minimum=0, description="Longest delay in seconds."
        ),
        Key(
            name="exponential_base",
            types=("number",),
            minimum=1,
            description="Factor by which each delay is longer than the one before.",
        ),
        flag_key("jitter", "Whether each delay is multiplied by a random factor."),
        choice_key(
            "circuit",
            "What a model call does while its server is not asked because it failed too often in a "
            "row: `wait` until it is back, or `fail` at once. Default: wait, where the server is "
            "tried again within the time that is left of the step, or, without a limit of that, "
            "within ten seconds.",
            CircuitPolicy,
        ),
    ),
    camel_case=True,
)
