"""The keys of a recipe's tests, and of what they expect."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from minions.contracts.executions import RunStatus
from minions.data.json_values import JsonValue
from minions.recipe.text.key_types import TEXTS, Key, Table, choice_key, mapping_key, text_key

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
