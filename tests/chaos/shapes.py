"""Recipes of every shape from a seed: what steps can say, drawn at random, with tools to call."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

from attrs import frozen

from crash.random_runs import Deed, Outside, RandomRun
from minions.contracts.tools import Effect, Tool, ToolScope, ToolSpec
from minions.data.errors import RecipeError, ToolError
from minions.data.json_values import JsonValue
from minions.recipe.catalog import Catalog, FoundRecipe
from minions.recipe.model import AgentRecipe
from minions.recipe.reading.load import recipe_from_document

__all__ = ["ChaosShape", "Quiet"]

_Step: TypeAlias = dict[str, JsonValue]

_NUMBER: Final[Mapping[str, JsonValue]] = {
    "type": "object",
    "required": ["n"],
    "properties": {"n": {"type": "integer"}},
}
_OUTPUT: Final[Mapping[str, JsonValue]] = {
    "type": "object",
    "required": ["good"],
    "properties": {"good": {"type": "boolean"}, "words": {"type": "string"}},
}
_EFFECTS: Final = {
    "look": Effect.PURE,
    "note": Effect.IDEMPOTENT,
    "send": Effect.ONCE,
    "slow": Effect.PURE,
    "fails": Effect.UNDECLARED,
}


class Quiet(Outside):
    """A world in which nothing is noted down."""

    def is_first(self, what: str) -> bool:
        return False

    async def approach(self) -> None:
        await asyncio.sleep(0)

    async def act(self, deed: Deed) -> None:
        await asyncio.sleep(0)

    async def ask(self, question: str) -> None:
        await asyncio.sleep(0)


@frozen(eq=False)
class _ChaosTool(Tool):
    """Works, takes minutes, or fails, by its name and its number."""

    spec: ToolSpec

    async def invoke(self, arguments: Mapping[str, JsonValue], scope: ToolScope) -> object:
        number = int(str(arguments["n"]))
        if self.spec.name == "slow":
            await asyncio.sleep(number * 4)
        if self.spec.name == "fails":
            raise (ToolError("Give another number."), TypeError("never"), OSError("gone"))[
                number % 3
            ]
        return {"n": number, "text": "seen " * (number % 50)}


@frozen
class ChaosShape:
    """A recipe with its tools and what its run is held to."""

    seed: int

    @property
    def is_of_crash_tests(self) -> bool:
        """Whether the recipe is one of those that are killed elsewhere."""
        return self.seed % 4 == 3

    @property
    def has_outage(self) -> bool:
        """Whether its server is down for a while, and the recipe is one that can sit that out."""
        return self.seed % 8 == 6

    def tools(self) -> list[Tool]:
        """All that the recipe may call."""
        if self.is_of_crash_tests:
            return RandomRun(self.seed).tools(Quiet())
        return [_ChaosTool(spec) for spec in _specs().values()]

    def recipe(self) -> AgentRecipe:
        """A new one each time, always the same."""
        if self.is_of_crash_tests:
            return RandomRun(self.seed).recipe()
        rng = random.Random(f"shape {self.seed}")
        if self.has_outage:
            return recipe_from_document({"id": "chaos", **_patient(rng)}, Catalog(tools=_specs()))
        for _ in range(100):
            inner = {"id": "inner", **_body(rng, 2, nested=False)}
            whole = {"id": "chaos", **_body(rng, 5, nested=True)}
            catalog = Catalog(tools=_specs(), find_recipe=_Finds(inner))
            with contextlib.suppress(RecipeError):
                return recipe_from_document(whole, catalog)
        raise AssertionError("no recipe in a hundred was sound")


@frozen
class _Finds:
    """Finds the one nested recipe."""

    inner: Mapping[str, JsonValue]

    def __call__(self, name: str, directory: str | None) -> FoundRecipe:
        return FoundRecipe(identity=name, file=f"{name}.yaml", document=self.inner)


def _specs() -> dict[str, ToolSpec]:
    return {
        name: ToolSpec(name=name, effect=effect, parameters=_NUMBER)
        for name, effect in _EFFECTS.items()
    }


# --- a recipe ------------------------------------------------------------------------------------


def _body(rng: random.Random, most: int, *, nested: bool) -> _Step:
    count = rng.randint(1, most)
    body: _Step = {
        "tools": list(_EFFECTS),
        "permissions": _permissions(rng),
        "retry": _retry(rng),
        "limits": _limits(rng, nested=nested),
        "on_failure": rng.choice(("stop", "continue")),
    }
    if rng.random() < 0.5:
        body["model"] = _model(rng)
    if nested and rng.random() < 0.2:
        return body | _graph(rng, max(count, 3))
    steps: list[_Step] = []
    for _ in range(count):
        steps.append(_step(rng, steps, nested=nested))
    mode = rng.choice(("sequential", "planned", "parallel", "parallel"))
    if mode == "parallel":
        steps = [{k: v for k, v in step.items() if k != "memory"} for step in steps]
    return body | {"execution_mode": mode, "steps": list(steps)}


def _patient(rng: random.Random) -> _Step:
    """Many calls at once that are tried often, with and without other limits."""
    loop: _Step = {
        "id": "s0",
        **_goal(rng, 0, ["{{ loop.item }}"]),
        "loop": list(range(rng.randint(4, 9))),
        "max_parallel": rng.choice((2, 4, 6)),
        "on_item_error": "collect",
        "optional": True,
    }
    retry: _Step = {"max_attempts": 8, "initial_delay": rng.choice((0.1, 1, 10)), "max_delay": 60}
    limits: _Step = {} if rng.random() < 0.7 else _limits(rng, nested=True)
    last: _Step = {"id": "s1", **_goal(rng, 1, ["{{ s0 | default('none') | string }}"])}
    return {
        "tools": list(_EFFECTS),
        "permissions": {"allow_write": True},
        "retry": retry,
        "limits": limits,
        "steps": [loop, last],
    }


def _permissions(rng: random.Random) -> _Step:
    allowed: _Step = {"allow_write": rng.random() < 0.9}
    if rng.random() < 0.2:
        allowed["requires_approval"] = [rng.choice(("send", "look"))]
    return allowed


def _retry(rng: random.Random) -> _Step:
    return {
        "max_attempts": rng.choice((1, 2, 3, 3, 3, 5, 8)),
        "initial_delay": rng.choice((0, 0.1, 1, 10)),
        "max_delay": rng.choice((1, 60)),
        "jitter": rng.random() < 0.5,
    }


def _limits(rng: random.Random, *, nested: bool) -> _Step:
    limits: _Step = {"sequential_tool_calls": rng.random() < 0.3}
    if rng.random() < 0.2:
        limits["max_model_calls"] = rng.randint(1, 12)
    if rng.random() < 0.2:
        limits["max_tokens"] = rng.choice((1, 50, 300, 1_000, 3_000))
    if rng.random() < 0.15:
        limits["max_cost_usd"] = rng.choice((0.0001, 0.002, 0.02))
    if rng.random() < 0.2:
        limits["timeout_s"] = rng.choice((5, 60, 400))
    if rng.random() < 0.2:
        limits["max_model_calls_per_step"] = rng.randint(1, 4)
    if rng.random() < 0.2:
        limits["tool_timeout_s"] = rng.choice((1, 100))
    if rng.random() < 0.1:
        limits["max_steps"] = rng.randint(1, 4)
    return limits


def _model(rng: random.Random) -> _Step:
    model: _Step = {"timeout_s": rng.choice((15, 100))}
    if rng.random() < 0.5:
        model["idle_timeout_s"] = rng.choice((5, 50))
    if rng.random() < 0.4:
        model["max_output_tokens"] = 60
    return model


def _graph(rng: random.Random, count: int) -> _Step:
    """Transitions: a template, a question or the model decides what comes next."""
    ids = [f"s{n}" for n in range(count)]
    steps: list[JsonValue] = []
    graph: _Step = {}
    for n, step_id in enumerate(ids):
        ways = [each for m, each in enumerate(ids) if m > n or rng.random() < 0.25]
        further = rng.sample(ways, k=min(len(ways), rng.choice((0, 1, 2))))
        chosen = list(dict.fromkeys([*ids[n + 1 : n + 2], *further]))
        graph[step_id] = list(chosen)
        step: _Step = {"id": step_id, **_goal(rng, n, ())}
        chance = rng.random()
        if chance < 0.4 and len(chosen) > 1:
            step["route"] = "Where shall it go?"
        elif chance < 0.5:
            step["completion"] = "signal"
        steps.append(step | _settings(rng, step))
    most: _Step = {"limits": {"allow_repeated_steps": True, "max_steps": rng.randint(3, 8)}}
    return {"graph": graph, "steps": steps, "on_failure": "stop", **most}


# --- a step --------------------------------------------------------------------------------------


def _step(rng: random.Random, earlier: Sequence[_Step], *, nested: bool) -> _Step:
    number = len(earlier)
    read = rng.sample(list(earlier), k=min(number, rng.choice((0, 1, 1, 2))))
    seen = [f"{{{{ {each['id']} | default('none') | string | truncate(40) }}}}" for each in read]
    step: _Step = {"id": f"s{number}"}
    kind = rng.choice(
        ("goal", "goal", "goal", "analyze", "tool", "asked", "set", "assert", "ask", "recipe")
    )
    match kind:
        case "analyze":
            step |= {"analyze": f"Question {number}: {' '.join(seen)}", "output": dict(_OUTPUT)}
        case "tool":
            step |= {"tool": rng.choice(list(_EFFECTS)), "params": {"n": rng.randrange(60)}}
        case "asked":
            step |= {"tool": "look", "description": f"Look for {number}.", "params": {}}
        case "set":
            step |= {"set": {"n": number, "seen": list(seen)}}
        case "assert":
            step |= {"assert": [f"{rng.randrange(4)} > 0"]}
        case "ask":
            step |= _ask(rng, number)
        case "recipe" if nested:
            step |= {"recipe": "inner"}
        case _:
            step |= _goal(rng, number, seen)
            if rng.random() < 0.25:
                step["memory"] = "conversation"
    step |= _repeated(rng)
    if read and rng.random() < 0.15:
        step["when"] = f"steps.{read[0]['id']}.status == 'completed'"
    return step | _settings(rng, step, read)


def _goal(rng: random.Random, number: int, seen: Sequence[str]) -> _Step:
    goal: _Step = {"goal": f"Goal {number}: {' '.join(seen)}"}
    if rng.random() < 0.6:
        goal["tools"] = rng.sample(list(_EFFECTS), k=rng.randint(1, 4))
    chance = rng.random()
    if chance < 0.4:
        goal["output"] = dict(_OUTPUT)
    elif chance < 0.7:
        goal["completion"] = "text"
    elif chance < 0.8:
        goal["completion"] = {"mode": "signal", "patterns": ["status: done"]}
    else:
        goal["completion"] = "signal"
    goal["tool_failure"] = rng.choice(("fail", "report", "report"))
    if rng.random() < 0.3:
        goal["at_limit"] = "answer"
    return goal


def _ask(rng: random.Random, number: int) -> _Step:
    ask: _Step = {"ask": f"What of {number}?"}
    if rng.random() < 0.5:
        ask |= {"timeout": rng.choice((1, 90)), "default": "nothing"}
    elif rng.random() < 0.3:
        ask["timeout"] = 1
    return ask


def _repeated(rng: random.Random) -> _Step:
    chance = rng.random()
    if chance < 0.2:
        loop: _Step = {
            "loop": list(range(rng.randint(0, 6))),
            "max_parallel": rng.choice((1, 3, 6)),
            "aggregate": rng.random() < 0.5,
        }
        if rng.random() < 0.4:
            loop |= {"on_item_error": "collect", "min_successful": rng.choice((1, 2))}
        return loop
    if chance < 0.3:
        again = rng.randrange(4)
        return {"while": f"loop.index < {again}", "allow_repeats": rng.random() < 0.7}
    return {}


def _settings(rng: random.Random, step: _Step, read: Sequence[_Step] = ()) -> _Step:
    more: _Step = {}
    if rng.random() < 0.2:
        more["optional"] = True
    elif read and rng.random() < 0.2:
        more["on_error"] = {"goto": rng.choice((str(step["id"]), str(read[0]["id"]))), "max": 1}
    if rng.random() < 0.15:
        more["timeout_s"] = rng.choice((2, 30, 300))
    if rng.random() < 0.1 and "ask" not in step:
        more["retry"] = _retry(rng)
    if rng.random() < 0.1:
        more["limits"] = {"max_model_calls_per_step": rng.randint(1, 3)}
    return more
