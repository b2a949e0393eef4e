"""The keys of a model, as a recipe, a step or a tier states it."""

from __future__ import annotations

from typing import Final

from minions.contracts.instructions import OutputMode, OutputRung
from minions.recipe.text.key_types import (
    TEXTS,
    Key,
    Table,
    choice_key,
    count_key,
    flag_key,
    later_keys,
    seconds_key,
    text_key,
)

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
