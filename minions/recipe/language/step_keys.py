"""The keys of steps of every kind, of models, and of a recipe's tests; keys of one kind are in
`recipe/kinds`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from minions.contracts.executions import RunStatus
from minions.contracts.instructions import OutputMode, OutputRung
from minions.data.json_values import JsonValue
from minions.recipe.text.key_types import (
    METADATA_KEY,
    STEP_LIMITS_KEY,
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
            "`results`, `errors`, `total`, `successful` and `failed`. With `while`: it is the list "
            "of what all attempts gave, else that of the last one.",
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
        Key(
            name="endorse",
            description="What of the step counts as free of strangers' words although they "
            "influence it, as its author answers for: `output`, `output.FIELD`, `when`, `loop`, "
            "`route`, or a list of these. An output is a truth value, one of listed words, or a "
            "whole number between two bounds.",
            types=("string", "array"),
            shape=TEXTS,
        ),
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


# --- the keys of a model, as a recipe, a step or a tier states it --------------------------------


MODEL: Final = Table(
    "a model",
    (
        text_key("name", "`provider/name` or a registered name."),
        text_key("base_url", "Another server; it receives no key unless the operator allows it."),
        Key(name="temperature", types=("number",), minimum=0, description="Sampling temperature."),
        Key(name="top_p", types=("number",), above=0, description="Nucleus sampling."),
        count_key("max_output_tokens", "Longest answer in tokens."),
        count_key(
            "context_tokens",
            "Most tokens of a prompt that the model takes; longer ones fail before they are sent. "
            "Default: as listed for the model.",
        ),
        Key(name="seed", types=("integer",), description="Seed of the sampling."),
        text_key("reasoning_effort", "How much the model thinks: `low`, `medium`, `high` …"),
        Key(
            name="stop",
            types=("string", "array"),
            shape=TEXTS,
            description="Texts that end the answer.",
        ),
        Key(
            name="extra",
            types=("object",),
            description="Further fields of each request, as the server names them; none that has "
            "a key of its own or that Minions sets.",
        ),
        seconds_key("timeout_s", "Time for the whole call, in seconds."),
        seconds_key("idle_timeout_s", "Longest time without a byte of the answer, in seconds."),
        Key(
            name="min_confidence",
            types=("number",),
            above=0,
            maximum=1,
            description="The least probability that it gave to each value of its output; below it "
            "the next model is asked, and without one the step fails. Only servers of OpenAI's "
            "chat form tell probabilities.",
        ),
        flag_key(
            "cache",
            "Take answers that were given before to the same request from the cache; they cost "
            "nothing. Only whole answers are stored.",
        ),
        text_key(
            "api_key_env",
            "The environment variable that holds the key: the provider's own, or one that the "
            "operator lists in `recipe_key_variables`.",
        ),
        choice_key("output_mode", "How a schema is sent to the server.", OutputMode),
        Key(
            name="output_ladder",
            types=("array",),
            shape={"items": {"enum": [each.value for each in (*OutputMode, *OutputRung)]}},
            description="How output is asked for where the server refuses a way, in this order, "
            "and what is done with an answer that does not fit: `repair`, `fields`, `split`. "
            "Default: as the server's profile says.",
        ),
        Key(
            name="fallbacks",
            types=("array",),
            shape={"items": {"anyOf": [{"type": "string"}, {"$ref": "#/$defs/model"}]}},
            description="Models that are asked instead while its server is unavailable: "
            "unreachable, overloaded, at its limits. An output that does not fit is no reason.",
        ),
        seconds_key(
            "cooldown_s",
            "Time for which it is not asked again after its server failed, in seconds, where there "
            "is another model; default: 60.",
        ),
        *later_keys("tiers"),
    ),
)


# --- the keys of a recipe's tests, and of what they expect ---------------------------------------


RECORDED_CALL: Final = Table(
    "a recorded call",
    (
        text_key("tool", "The tool's full name.", is_required=True),
        mapping_key("arguments", "Its arguments."),
        Key(name="result", description="What it gave."),
        text_key("error", "In place of `result`: the message with which it failed."),
    ),
)

TEST: Final = Table(
    "a test",
    (
        text_key("name", "What the test checks."),
        mapping_key("inputs", "The run's inputs."),
        Key(
            name="answers",
            description="The model's answers in order, in the form of a script file.",
            types=("array",),
        ),
        text_key(
            "model",
            "A model without a server instead of `answers`: `scripted/FILE.yaml`, `replay/FILE` or "
            "a registered name.",
        ),
        mapping_key(
            "tools",
            "Results by full tool name; these tools are not called. A tool that is not pure must "
            "be listed.",
        ),
        Key(
            name="calls",
            description="Calls as they were recorded: `tool`, `arguments` and `result` or `error`. "
            "These tools are not called: a call that is not among them fails, and each one with an "
            "effect has to be made, once and in this order. A text: a file of them beside the "
            "recipe, one JSON object in each line.",
            types=("array", "string"),
            shape={"items": {"$ref": "#/$defs/recorded_call"}},
        ),
        Key(
            name="decisions",
            description="Decisions by step: `approve`, `reject` or `answer:VALUE`; steps of a "
            "nested recipe as `step/inner_step`. Without one the run ends `needs_decision`.",
            types=("object",),
            shape={"additionalProperties": {"type": "string"}},
        ),
        Key(
            name="expect",
            description="The expected result.",
            types=("object",),
            shape={"$ref": "#/$defs/expect"},
        ),
    ),
)


_TEXTS_BY_STEP: Final[Mapping[str, JsonValue]] = {
    "additionalProperties": {
        "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]
    }
}


EXPECT: Final = Table(
    "expect",
    (
        choice_key("status", "The run's status; default `completed`.", RunStatus),
        Key(name="output", description="The run's output, compared exactly."),
        mapping_key(
            "fields",
            "Fields of the output, each by its path (`items.0.name`); other fields do no harm.",
        ),
        text_key("error", "The code of the run's error."),
        Key(
            name="holds",
            description="A condition, or several, over `inputs`, `steps`, step names and `output`.",
            types=("string", "array"),
            shape=TEXTS,
        ),
        Key(
            name="prompt_tokens_max",
            description="Most tokens of any prompt, estimated from characters; or by step.",
            types=("integer", "object"),
            shape={"additionalProperties": {"type": "integer", "minimum": 1}},
        ),
        Key(
            name="prompt_contains",
            description="By step: a text, or several, that its first prompt holds.",
            types=("object",),
            shape=_TEXTS_BY_STEP,
        ),
        Key(
            name="prompt_excludes",
            description="By step: a text, or several, that none of its prompts holds.",
            types=("object",),
            shape=_TEXTS_BY_STEP,
        ),
    ),
)
