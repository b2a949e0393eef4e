"""The keys of steps: those that all kinds have, then kind by kind."""

from __future__ import annotations

from typing import Final

from minions.contracts.verdicts import CompletionMode
from minions.recipe.text.key_types import (
    CACHE_KEY,
    METADATA_KEY,
    MODEL_KEY,
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

__all__ = [
    "ANALYZE",
    "ASK",
    "ASSERT",
    "CODE",
    "COMPLETION",
    "DECISION_TOOL",
    "GOAL",
    "KINDS",
    "MESSAGE",
    "ON_ERROR",
    "RECIPE_STEP",
    "SET",
    "STEP",
    "TOOL",
    "USES",
]

MOST_ROUNDS: Final = 10_000
"""Of one step. Each is kept in the run's journal: more than that is work for a tool."""

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

GOAL: Final = Table(
    "a goal step",
    (
        text_key("goal", "What the model is to achieve; a template.", is_required=True),
        text_key("system_prompt", "How to behave, for this step only; a template."),
        Key(
            name="messages",
            description="Further messages, in order.",
            types=("array",),
            shape={"items": {"$ref": "#/$defs/message"}},
        ),
        Key(
            name="tools",
            description="The only tools that reach the model: names, or a toolset for all of its.",
            types=("array",),
            shape=TEXTS,
        ),
        mapping_key("output", "JSON Schema of the answer, or `{field: type}` in short."),
        choice_key(
            "memory",
            "`isolated`: it sees what its templates name, and the bounded outputs of the steps "
            "under `depends_on` that nothing in it reads. `conversation`: also all that was said "
            "in the steps before it that have this, too, and in earlier runs of its session.",
            ("isolated", "conversation"),
        ),
        Key(
            name="completion",
            description="What completes the step.",
            types=("string", "object"),
            shape={
                "anyOf": [
                    {"type": "string", "enum": [str(mode) for mode in CompletionMode]},
                    {"$ref": "#/$defs/completion"},
                ]
            },
        ),
        choice_key(
            "tool_failure",
            "Whether a tool's failure ends the step or is reported to the model.",
            ("fail", "report"),
        ),
        MODEL_KEY,
        CACHE_KEY,
    ),
)

TOOL: Final = Table(
    "a tool step",
    (
        Key(
            name="tool",
            description="The tool's name.",
            types=("string",),
            is_required=True,
            shape={"not": {"const": "llm_analyze"}},
        ),
        mapping_key("params", "Its arguments; templates are filled in."),
        mapping_key("params_template", "Further arguments, over `params`."),
        CACHE_KEY,
    ),
)

SET: Final = Table("a set step", (mapping_key("set", "Names and values.", is_required=True),))

ANALYZE: Final = Table(
    "an analyze step",
    (
        text_key("analyze", "What is to be found out; a template. Without it the description."),
        choice_key("tool", "The older spelling of this kind.", ("llm_analyze",)),
        text_key("context", "Rules, and what else has to be known; a template."),
        Key(name="input", description="What is looked at; a template. Shown also when empty."),
        mapping_key("output_format", "An example of the answer, which becomes its schema."),
        mapping_key("output", "JSON Schema of the answer, or `{field: type}` in short."),
        MODEL_KEY,
        CACHE_KEY,
    ),
)

ASSERT: Final = Table(
    "an assert step",
    (
        Key(
            name="assert",
            description="A condition that must hold, or several.",
            types=("string", "array"),
            is_required=True,
            shape=TEXTS,
        ),
        text_key("message", "What is said when it does not; a template."),
    ),
)

RECIPE_STEP: Final = Table(
    "a recipe step",
    (
        text_key(
            "recipe",
            "Another recipe: its file beside this one, its id there or under `recipes`, or a "
            "registered one.",
            is_required=True,
        ),
        mapping_key("with", "Its inputs; templates are filled in."),
        CACHE_KEY,
    ),
)

USES: Final = Table(
    "a uses step",
    (
        text_key("uses", "A `Step` class that the operator registered.", is_required=True),
        mapping_key("with", "Its constructor's arguments; templates are filled in."),
    ),
)

CODE: Final = Table(
    "a code step",
    (
        text_key(
            "code",
            "Python for a sandbox. There is none yet: such a recipe is checked, and refused with "
            "exit code 4 when it is run.",
            is_required=True,
        ),
        mapping_key("with", "The only names that it sees; templates are filled in."),
    ),
)

ASK: Final = Table(
    "an ask step",
    (
        text_key("ask", "What a person is asked; a template.", is_required=True),
        mapping_key("form", "JSON Schema of the answer, or `{field: type}`; else any text."),
        Key(
            name="timeout",
            description="How long the answer is waited for: seconds, or `10m`, `24h`.",
            types=("number", "string"),
        ),
        Key(name="default", description="The answer when nobody gives one in time."),
    ),
)

KINDS: Final[dict[str, Table]] = {
    "goal": GOAL,
    "tool": TOOL,
    "analyze": ANALYZE,
    "set": SET,
    "assert": ASSERT,
    "recipe": RECIPE_STEP,
    "ask": ASK,
    "uses": USES,
    "code": CODE,
}
"""The key that makes a step what it is, and the keys that go with it."""

MESSAGE: Final = Table(
    "a message",
    (
        choice_key("role", "Who speaks.", ("system", "user")),
        text_key("content", "What is said; a template."),
        text_key("system", "Short for a system message."),
        text_key("user", "Short for a user message."),
    ),
)

COMPLETION: Final = Table(
    "completion",
    (
        choice_key("mode", "What completes the step when nothing else decides.", CompletionMode),
        Key(
            name="patterns",
            description="Regular expressions; one found in the model's text completes the step.",
            types=("array",),
            shape=TEXTS,
        ),
        Key(
            name="links",
            description="Registered completion links, asked first.",
            types=("array",),
            shape=TEXTS,
        ),
    ),
)
