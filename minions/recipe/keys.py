"""Every key of the recipe language, once: the loader and the editor schema both read these tables.

A key that a later version will serve stands here with `is_served=False` and is refused by name.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from attrs import field, frozen

from minions.contracts.calls import OutputMode
from minions.contracts.completion import CompletionMode
from minions.contracts.context import snake_case
from minions.contracts.executions import RunStatus
from minions.contracts.json_values import JsonValue
from minions.contracts.schema import JsonSchema
from minions.recipe.model import ExecutionMode, OnFailure

__all__ = [
    "ANALYZE",
    "ASK",
    "ASSERT",
    "CODE",
    "COMPLETION",
    "DECISION_TOOL",
    "EXPECT",
    "GOAL",
    "KINDS",
    "LIMITS",
    "MESSAGE",
    "MODEL",
    "ON_ERROR",
    "PERMISSIONS",
    "RECIPE",
    "RECIPE_STEP",
    "RETRY",
    "SECRET_INPUT",
    "SET",
    "STEP",
    "STEP_LIMITS",
    "TEST",
    "TOOL",
    "USES",
    "Key",
    "Table",
]

NAME_PATTERN: Final = r"^[A-Za-z0-9_.-]+$"
"""Of recipes."""
STEP_PATTERN: Final = r"^[A-Za-z_][A-Za-z0-9_-]*$"
"""Of steps, inputs, `save_as` names and tool prefixes."""


@frozen(kw_only=True)
class Key:
    """One key: what may stand there and what it means."""

    name: str
    description: str = ""
    types: tuple[str, ...] = ()
    """JSON types; empty: anything."""
    aliases: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    """The only texts allowed."""
    pattern: str | None = None
    minimum: float | None = None
    above: float | None = None
    """The number must be larger than this."""
    is_required: bool = False
    is_served: bool = True
    shape: JsonSchema | None = None
    """For editors, what is inside lists and mappings."""

    def schema(self) -> dict[str, JsonValue]:
        """What may stand there, as JSON Schema."""
        schema: dict[str, JsonValue] = {}
        if self.types:
            schema["type"] = self.types[0] if len(self.types) == 1 else list(self.types)
        if self.choices:
            schema["enum"] = list(self.choices)
        limits = {"pattern": self.pattern, "minimum": self.minimum, "exclusiveMinimum": self.above}
        schema.update({name: value for name, value in limits.items() if value is not None})
        schema.update(self.shape or {})
        if self.description:
            schema["description"] = self.description
        return schema


@frozen
class Table:
    """The keys of one mapping."""

    name: str
    """What the mapping is, for messages: `a step`."""
    keys: tuple[Key, ...]
    camel_case: bool = False
    """`maxSteps` is taken for `max_steps`."""
    _by_name: dict[str, Key] = field(init=False, repr=False, eq=False)

    def __attrs_post_init__(self) -> None:
        names = {alias: key for key in self.keys for alias in (key.name, *key.aliases)}
        object.__setattr__(self, "_by_name", names)  # frozen: set once, here

    def find(self, name: str) -> Key | None:
        """The key of that name or alias; None when there is none."""
        return self._by_name.get(snake_case(name) if self.camel_case else name)

    @property
    def names(self) -> tuple[str, ...]:
        """The keys that are served, in their own spelling."""
        return tuple(key.name for key in self.keys if key.is_served)

    @property
    def spellings(self) -> tuple[str, ...]:
        """Every name and alias that is served."""
        return tuple(name for name, key in self._by_name.items() if key.is_served)

    def plus(self, other: Table) -> Table:
        """This table and the keys of `other`, under its name."""
        return Table(other.name, (*self.keys, *other.keys), self.camel_case)


def _later(names: str) -> tuple[Key, ...]:
    return tuple(Key(name=name, is_served=False) for name in names.split())


def _text(name: str, description: str, *aliases: str, is_required: bool = False) -> Key:
    return Key(
        name=name,
        description=description,
        types=("string",),
        aliases=aliases,
        is_required=is_required,
    )


def _flag(name: str, description: str) -> Key:
    return Key(name=name, description=description, types=("boolean",))


def _count(name: str, description: str, minimum: int = 1) -> Key:
    return Key(name=name, description=description, types=("integer",), minimum=minimum)


def _seconds(name: str, description: str) -> Key:
    return Key(name=name, description=description, types=("number",), above=0)


def _choice(name: str, description: str, choices: Iterable[str]) -> Key:
    return Key(name=name, description=description, types=("string",), choices=tuple(choices))


def _mapping(name: str, description: str, *, is_required: bool = False) -> Key:
    return Key(name=name, description=description, types=("object",), is_required=is_required)


_TEXTS: Final[JsonSchema] = {"items": {"type": "string"}}

_MODEL_KEY: Final = Key(
    name="model",
    description="`provider/name`, a registered name, or a mapping with options.",
    types=("string", "object"),
    shape={"anyOf": [{"type": "string"}, {"$ref": "#/$defs/model"}]},
)
_LIMITS_KEY: Final = Key(
    name="limits",
    description="How much may be spent.",
    types=("object",),
    shape={"$ref": "#/$defs/limits"},
)
_STEP_LIMITS_KEY: Final = Key(
    name="limits",
    description="How much this step may spend.",
    types=("object",),
    shape={"$ref": "#/$defs/step_limits"},
)
_CACHE_KEY: Final = _flag(
    "cache",
    "Where what it asks and may use is the same as in an earlier run, its output is taken from "
    "there. Only with tools that are declared pure.",
)
_METADATA_KEY: Final = _mapping("metadata", "Whatever the application wants to keep beside it.")

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
        _text("description", "What it is for, for people."),
        _text("title", "A name for people."),
    ),
)

RECIPE: Final = Table(
    "a recipe",
    (
        Key(
            name="id",
            aliases=("name",),
            description="The recipe's name; without it the file's.",
            types=("string",),
            pattern=NAME_PATTERN,
        ),
        Key(name="version", description="The recipe's own.", types=("string", "number")),
        _text("description", "What the recipe is for, for people."),
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
        _text("system_prompt", "In the first prompt of each model step, once.", "context"),
        _text("goal", "The agent's aim, in the first prompt of each model step."),
        _MODEL_KEY,
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
        _LIMITS_KEY,
        Key(
            name="retry",
            description="How failed model and tool calls are tried again.",
            types=("object",),
            shape={"$ref": "#/$defs/retry"},
        ),
        _choice("execution_mode", "In which order steps run.", ExecutionMode),
        _count("max_parallel", "Steps that run together in parallel mode."),
        _choice("on_failure", "What a failed required step does to the others.", OnFailure),
        Key(
            name="steps",
            description="What is done.",
            types=("array",),
            is_required=True,
            shape={"minItems": 1, "items": {"$ref": "#/$defs/step"}},
        ),
        Key(name="output", description="A template of the run's result."),
        _METADATA_KEY,
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
        _flag("enabled", "For whatever runs recipes by a plan; `minions run` does not look at it."),
        Key(
            name="tests",
            description="What `minions test` runs: inputs, scripted answers, and what is expected.",
            types=("array",),
            shape={"items": {"$ref": "#/$defs/test"}},
        ),
        *_later("schedule"),
    ),
)

MODEL: Final = Table(
    "a model",
    (
        _text("name", "`provider/name` or a registered name."),
        _text("base_url", "Another address; it gets no key unless the operator allows it."),
        Key(name="temperature", types=("number",), minimum=0, description="Of sampling."),
        Key(name="top_p", types=("number",), above=0, description="Of sampling."),
        _count("max_output_tokens", "Longest answer."),
        _seconds("timeout_s", "The whole call, in seconds."),
        _seconds("idle_timeout_s", "Longest silence while the answer comes in, in seconds."),
        _text(
            "api_key_env",
            "The environment variable that holds the key: the provider's own, or one that the "
            "operator lists in `recipe_key_variables`.",
        ),
        _choice("output_mode", "How a schema is put to the server.", OutputMode),
        *_later("fallbacks tiers"),
    ),
)

PERMISSIONS: Final = Table(
    "permissions",
    (
        _flag("allow_write", "Tools that change something may run; false when absent."),
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
            shape=_TEXTS,
        ),
    ),
)

LIMITS: Final = Table(
    "limits",
    (
        _count("max_model_calls_per_step", "Logical model calls; repairs count."),
        _count("max_tool_call_retries", "Extra attempts per tool call.", minimum=0),
        _flag("sequential_tool_calls", "Tool calls of one answer one after the other."),
        _flag("allow_repeated_steps", "A transition graph may come back to a step."),
        _count("max_steps", "Steps executed in the run."),
        _count("max_tokens", "Tokens of the run, input and output."),
        Key(
            name="max_cost_usd",
            types=("number",),
            above=0,
            description="US dollars of the run; then only models of known price are asked.",
        ),
        _seconds("timeout_s", "Wall time in seconds."),
        _seconds("tool_timeout_s", "Wall time of one attempt at a tool call, in seconds."),
        _count("max_tool_result_bytes", "Longest tool result, as UTF-8 JSON."),
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
        _count("max_attempts", "Of a model call, the first included."),
        Key(name="initial_delay", types=("number",), minimum=0, description="In seconds."),
        Key(name="max_delay", types=("number",), minimum=0, description="In seconds."),
        Key(
            name="exponential_base",
            types=("number",),
            minimum=1,
            description="Each delay is this much longer than the one before.",
        ),
        _flag("jitter", "Each delay times a random factor."),
    ),
    camel_case=True,
)

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
        _text("description", "What the step is for."),
        _text("extends", "A template that says what this step does not."),
        Key(
            name="depends_on",
            description="Steps that must be done before: ids or `save_as` names.",
            types=("array", "string"),
            shape=_TEXTS,
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
        _flag(
            "aggregate",
            "Of a loop: its output is the list of the items' outputs. Else it has `results`, "
            "`errors`, `total`, `successful` and `failed`.",
        ),
        _count("max_parallel", "Of a loop: items that are done together; 1 when absent."),
        Key(
            name="while",
            description="A condition: the step is done, and done again as long as it holds. It and "
            "the step's templates read what the last attempt gave as `loop.last`, all of them as "
            "`loop.attempts`, the number of the attempt from 0 as `loop.index`.",
            types=("string",),
        ),
        _count("max_iterations", "Of `while`: attempts, after which the step fails; 10."),
        _flag(
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
        _flag("optional", "Its failure does not stop the run."),
        _text(
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
        _seconds("timeout_s", "Wall time of the step, in seconds."),
        _seconds("idle_timeout_s", "Longest silence while its model answers, in seconds."),
        Key(
            name="retry",
            description="How this step's model and tool calls are tried again, over the recipe's.",
            types=("object",),
            shape={"$ref": "#/$defs/retry"},
        ),
        _STEP_LIMITS_KEY,
        _METADATA_KEY,
        *_later(
            "plan "
            "distribute"
        ),
    ),
)

TEST: Final = Table(
    "a test",
    (
        _text("name", "What the test is about."),
        _mapping("inputs", "The run's inputs."),
        Key(
            name="answers",
            description="What the model answers, in order, as in a script file.",
            types=("array",),
        ),
        _text("model", "A scripted model instead: `scripted/FILE.yaml` or a registered name."),
        _mapping(
            "tools",
            "Full tool names and what they give here; the tools themselves are not called. One "
            "that is not pure must stand here.",
        ),
        Key(
            name="decisions",
            description="Step ids to `approve`, `reject` or `answer:VALUE`.",
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
        _choice("status", "How the run ends; `completed` when absent.", RunStatus),
        Key(name="output", description="The run's output, just so."),
        _text("error", "The code of the run's error."),
        Key(
            name="holds",
            description="A condition, or several, over `inputs`, `steps`, step names and `output`.",
            types=("string", "array"),
            shape=_TEXTS,
        ),
    ),
)

ON_ERROR: Final = Table(
    "on_error",
    (
        _text("goto", "The step that runs again.", is_required=True),
        _count("max", "How often; 2 when absent."),
    ),
)

DECISION_TOOL: Final = Table(
    "decision_tool",
    (
        _text("tool", "The tool's name.", is_required=True),
        _mapping("params", "Its arguments; templates are filled in."),
    ),
)

GOAL: Final = Table(
    "a goal step",
    (
        _text("goal", "What the model is to achieve; a template.", is_required=True),
        _text("system_prompt", "How to behave, for this step only; a template."),
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
            shape=_TEXTS,
        ),
        _mapping("output", "JSON Schema of the answer, or `{field: type}` in short."),
        _choice(
            "memory",
            "`isolated`: it sees what its templates name, and the bounded outputs of its "
            "`depends_on`. `conversation`: also all that was said in the steps before it that "
            "have this, too.",
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
        _choice(
            "tool_failure",
            "Whether a tool's failure ends the step or is reported to the model.",
            ("fail", "report"),
        ),
        _MODEL_KEY,
        _CACHE_KEY,
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
        _mapping("params", "Its arguments; templates are filled in."),
        _mapping("params_template", "Further arguments, over `params`."),
        _CACHE_KEY,
    ),
)

SET: Final = Table("a set step", (_mapping("set", "Names and values.", is_required=True),))

ANALYZE: Final = Table(
    "an analyze step",
    (
        _text("analyze", "What is to be found out; a template. Without it the description."),
        _choice("tool", "The older spelling of this kind.", ("llm_analyze",)),
        _text("context", "Rules, and what else has to be known; a template."),
        Key(name="input", description="What is looked at; a template. Shown also when empty."),
        _mapping("output_format", "An example of the answer, which becomes its schema."),
        _mapping("output", "JSON Schema of the answer, or `{field: type}` in short."),
        _MODEL_KEY,
        _CACHE_KEY,
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
            shape=_TEXTS,
        ),
        _text("message", "What is said when it does not; a template."),
    ),
)

RECIPE_STEP: Final = Table(
    "a recipe step",
    (
        _text(
            "recipe",
            "Another recipe: its file beside this one, its id there or under `recipes`, or a "
            "registered one.",
            is_required=True,
        ),
        _mapping("with", "Its inputs; templates are filled in."),
        _CACHE_KEY,
    ),
)

USES: Final = Table(
    "a uses step",
    (
        _text("uses", "A `Step` class that the operator registered.", is_required=True),
        _mapping("with", "Its constructor's arguments; templates are filled in."),
    ),
)

CODE: Final = Table(
    "a code step",
    (
        _text(
            "code",
            "Python for a sandbox. There is none yet: such a recipe is checked, and refused with "
            "exit code 4 when it is run.",
            is_required=True,
        ),
        _mapping("with", "The only names that it sees; templates are filled in."),
    ),
)

ASK: Final = Table(
    "an ask step",
    (
        _text("ask", "What a person is asked; a template.", is_required=True),
        _mapping("form", "JSON Schema of the answer, or `{field: type}` in short; else any text."),
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
        _choice("role", "Who speaks.", ("system", "user")),
        _text("content", "What is said; a template."),
        _text("system", "Short for a system message."),
        _text("user", "Short for a user message."),
    ),
)

COMPLETION: Final = Table(
    "completion",
    (
        _choice("mode", "What completes the step when nothing else decides.", CompletionMode),
        Key(
            name="patterns",
            description="Regular expressions; one found in the model's text completes the step.",
            types=("array",),
            shape=_TEXTS,
        ),
        Key(
            name="links",
            description="Registered completion links, asked first.",
            types=("array",),
            shape=_TEXTS,
        ),
    ),
)
