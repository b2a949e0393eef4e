"""Random runs from a seed: recipes of every kind, with their tools and their model.

The outside world (`Outside`) is handed in; how a run is killed and judged is not known here.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import random
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final, cast

from attrs import frozen

from builders import ConstrainedModel, ConstrainingParser
from minions.adapters.models.script_items import Answer, tool_request
from minions.adapters.models.scripted import ScriptedModel
from minions.contracts.calls import ChatModel, ModelCallResponse, ModelFailure, OutputParser, Prompt
from minions.contracts.completion import CompletionCriteria
from minions.contracts.instructions import OutputInstructions
from minions.contracts.messages import (
    Message,
    MessageBundle,
    MessageRole,
    TokenUsage,
    ToolCallRequest,
    assistant,
)
from minions.contracts.retry_config import RetryConfig
from minions.contracts.steps import DefaultStep, PythonStep, Step, StepScope
from minions.contracts.tools import Effect, Tool, ToolScope, ToolSpec
from minions.data.errors import RecipeError, StepFailedError, ToolError
from minions.data.json_values import JsonValue, dumps
from minions.engine.services.run_services import TextOutputParser
from minions.recipe.catalog import Catalog, FoundRecipe
from minions.recipe.model import AgentRecipe, Permissions
from minions.recipe.reading.load import recipe_from_document

__all__ = [
    "CHOOSERS",
    "EFFECTS",
    "Deed",
    "Outside",
    "RandomRun",
    "choice_of",
    "question_of",
    "result_of",
    "tail_of",
    "without_words_of_failure",
]

EFFECTS: Final[Mapping[str, Effect]] = {
    "look": Effect.PURE,
    "note": Effect.IDEMPOTENT,
    "send": Effect.ONCE,
    "post": Effect.UNDECLARED,
}
"""Of the working tools, by name."""
CHOOSERS: Final = {f"choose_{effect.value}": effect for effect in Effect}
"""Decision tools of every effect."""
_GOOD: Final[Mapping[str, JsonValue]] = {
    "type": "object",
    "required": ["good"],
    "properties": {"good": {"type": "boolean"}},
}
_ARGUMENTS: Final[Mapping[str, JsonValue]] = {
    "type": "object",
    "required": ["n"],
    "properties": {"n": {"type": "integer"}},
}


class How(StrEnum):
    """What becomes of a tool call, known by its argument."""

    WORKS = "works"
    FAILS = "fails"
    """Each time, before it has done anything."""
    MENDS = "mends"
    """Likewise, and tells the model what to do."""
    STUMBLES = "stumbles"
    """At the first attempt of a process."""
    ACTS_AND_FAILS = "acts_and_fails"


_HOWS: Final = (
    *(How.WORKS for _ in range(13)),
    How.FAILS,
    How.MENDS,
    How.STUMBLES,
    How.STUMBLES,
    How.ACTS_AND_FAILS,
    How.ACTS_AND_FAILS,
)


def how_of(n: int) -> How:
    """By the number it is given."""
    return _HOWS[n % len(_HOWS)]


@frozen(kw_only=True)
class Deed:
    """One effect of a tool on the world."""

    tool: str
    key: str
    """Idempotency key."""
    arguments: str
    has_failed: bool = False
    """Whether it raised after its effect."""


class Outside(ABC):
    """The world: it outlives the process that acts on it."""

    @abstractmethod
    def is_first(self, what: str) -> bool:
        """Whether this process does `what` for the first time."""

    @abstractmethod
    async def approach(self) -> None:
        """A tool is about to act."""

    @abstractmethod
    async def act(self, deed: Deed) -> None:
        """It has acted when this returns."""

    @abstractmethod
    async def ask(self, question: str) -> None:
        """A model was asked; its answer follows."""


# --- tools -------------------------------------------------------------------------------------


def tail_of(key: str) -> str:
    """An idempotency key without the run, which has another id each time."""
    return key.partition("/")[2]


def result_of(tool: str, arguments: str) -> JsonValue:
    """What a tool gives: depends on nothing else."""
    rng = random.Random(f"{tool} {arguments}")
    n = rng.randrange(1000)
    if tool == "look" and rng.random() < 0.1:
        return f"{n} " * 9_000  # more than a row holds
    choices: Sequence[JsonValue] = (n, f"seen {n}", [n, "é"], {"n": n, "deep": {"of": [n, None]}})
    return rng.choice(choices)


@frozen(eq=False)
class RandomTool(Tool):
    """Acts on the world as its argument says."""

    spec: ToolSpec
    outside: Outside

    async def invoke(self, arguments: Mapping[str, JsonValue], scope: ToolScope) -> object:
        how = how_of(int(str(arguments["n"])))
        await self.outside.approach()
        if how is How.FAILS:
            raise TypeError("it never works")
        if how is How.MENDS:
            raise ToolError("Give another number.")
        if how is How.STUMBLES and self.outside.is_first(scope.idempotency_key):
            raise ConnectionError("not now")
        deed = Deed(
            tool=self.spec.name,
            key=scope.idempotency_key,
            arguments=dumps(arguments),
            has_failed=how is How.ACTS_AND_FAILS,
        )
        await self.outside.act(deed)
        if deed.has_failed:
            raise TypeError("it fails in the end")
        return result_of(deed.tool, deed.arguments)


@frozen(eq=False)
class Chooser(Tool):
    """A decision tool: names one of the steps in its argument, by where it is asked."""

    spec: ToolSpec
    outside: Outside

    async def invoke(self, arguments: Mapping[str, JsonValue], scope: ToolScope) -> object:
        await self.outside.approach()
        text = dumps(arguments)
        await self.outside.act(Deed(tool=self.spec.name, key=scope.idempotency_key, arguments=text))
        return choice_of(scope.idempotency_key, text)


def choice_of(key: str, arguments: str) -> str:
    """The step that a decision tool names; now and then there is none of that name."""
    names = re.findall(r"s\d", arguments)
    choices: list[str] = [*names, *names, "nowhere"]
    return random.Random(f"{tail_of(key)} {arguments}").choice(choices)


# --- the model ---------------------------------------------------------------------------------


def question_of(prompt: Prompt) -> str:
    """What is asked, as a short name; of a failed tool call only that it failed."""
    said: list[JsonValue] = [
        [m.role.value, _words_of(m), [[c.name, c.arguments] for c in m.tool_calls]]
        for m in prompt.messages
    ]
    text = dumps([said, prompt.output_request is not None])
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _words_of(message: Message) -> str | None:
    return without_words_of_failure({"role": message.role.value, "content": message.content})


def without_words_of_failure(message: Mapping[str, JsonValue]) -> str | None:
    """The content; of a tool that failed only that it did: people say it in other words."""
    content = cast("str | None", message.get("content"))
    is_error = message["role"] == "tool" and (content or "").startswith("Error")
    return "Error" if is_error else content


@frozen
class RandomAnswers:
    """A pure function of the prompt, but for what fails at the first attempt of a process."""

    seed: int
    outside: Outside

    async def __call__(self, prompt: Prompt) -> Answer:
        question = question_of(prompt)
        stumbles = random.Random(f"{self.seed} {question}").random() < 0.1
        if stumbles and self.outside.is_first(question):
            return ConnectionError("the line is dead")
        await self.outside.ask(question)
        answer = self._answer(prompt)
        if isinstance(answer, ModelFailure):
            return answer
        used = random.Random(question)
        usage = TokenUsage(input_tokens=used.randint(1, 99), output_tokens=used.randint(1, 99))
        return ModelCallResponse(message=answer, usage=usage)

    def _answer(self, prompt: Prompt) -> Message | ModelFailure:
        messages = prompt.messages
        aims = [m.content or "" for m in messages if m.role is MessageRole.GOAL]
        aim = aims[0] if aims else messages[-1].content or ""
        said = [m for m in messages if m.role is MessageRole.ASSISTANT]
        fate = random.Random(f"{self.seed} {aim}")
        tool_turns, luck = fate.choice((0, 1, 1, 2)), fate.random()
        now = random.Random(f"{self.seed} {aim} {len(said)}")
        names = [spec.name for spec in prompt.tools]
        if names and len(said) < tool_turns:
            return assistant(
                tool_calls=[
                    tool_request(now.choice(names), {"n": now.randrange(100)}, id=f"c{index}")
                    for index in range(now.choice((1, 2, 3)))
                ]
            )
        if luck < 0.05:
            return ModelFailure(code="refused", message="I would rather not.")
        if prompt.instructions is not None:
            is_new = not any(m.content for m in said) and prompt.output_request is None
            is_wrong = luck < 0.1 or (luck < 0.5 and is_new)
            return assistant(dumps({"good": 3 if is_wrong else luck < 0.8}))
        return assistant(self._words(aim, now, turns=len(said) - tool_turns))

    def _words(self, aim: str, now: random.Random, *, turns: int) -> str:
        if "wish" in aim:
            names = re.findall(r"s\d", aim.partition("wish")[2])
            return dumps({"is_complete": True, "next_step_id": now.choice([*names, "nowhere"])})
        if "signal" in aim and turns < 1:
            return "still at it"
        done = "\nstatus: done" if "signal" in aim else ""
        return f"re {now.randrange(1000)}{done}"


# --- recipes -----------------------------------------------------------------------------------


class Kind(StrEnum):
    """Kinds of recipes."""

    DOCUMENT = "document"
    """As a file would give it: a dependency graph."""
    CODE = "code"
    """Python steps, one after the other."""
    TRANSITIONS = "transitions"
    """Steps of both kinds, with choices and ways back."""


@frozen
class RandomRun:
    """A recipe with what it needs, all of it from the seed."""

    seed: int

    @property
    def kind(self) -> Kind:
        kinds = (Kind.DOCUMENT,) * 3 + (Kind.CODE,) + (Kind.TRANSITIONS,) * 2
        return random.Random(f"kind {self.seed}").choice(kinds)

    @property
    def is_constrained(self) -> bool:
        """Whether the model's server takes schemas."""
        return random.Random(f"model {self.seed}").random() < 0.4

    def tools(self, outside: Outside) -> list[Tool]:
        """All that the recipe may name."""
        tools: list[Tool] = [RandomTool(spec, outside) for spec in _working_specs()]
        choosers = [ToolSpec(name=name, effect=effect) for name, effect in CHOOSERS.items()]
        return tools + [Chooser(spec, outside) for spec in choosers]

    def model(self, outside: Outside) -> ChatModel:
        """Answers as a function of the prompt."""
        answers = RandomAnswers(self.seed, outside)
        return ConstrainedModel(answers) if self.is_constrained else ScriptedModel(answers)

    def parser(self) -> OutputParser:
        """Goes with the model."""
        return ConstrainingParser() if self.is_constrained else TextOutputParser()

    def recipe(self) -> AgentRecipe:
        """A new one each time, always the same."""
        rng = random.Random(f"recipe {self.seed}")
        if self.kind is Kind.DOCUMENT:
            return _loaded(rng)
        steps = [_code(rng, number) for number in range(rng.randint(1, 3))]
        if self.kind is Kind.CODE:
            return _of_steps(steps)
        return _transitions(rng)


def _loaded(rng: random.Random) -> AgentRecipe:
    """Recipes within recipes; one that the checks refuse is drawn anew."""
    specs = {spec.name: spec for spec in _working_specs()}
    for _ in range(50):
        recipes = {"deep": _document(rng, "deep")}
        recipes["inner"] = _document(rng, "inner", recipes=["deep"])
        document = _document(rng, "random", recipes=["inner", "deep"])
        catalog = Catalog(tools=specs, find_recipe=_Among(recipes))
        with contextlib.suppress(RecipeError):
            return recipe_from_document(document, catalog)
    raise AssertionError("no recipe in fifty was sound")


@frozen
class _Among:
    """Finds these recipes."""

    recipes: Mapping[str, Mapping[str, JsonValue]]

    def __call__(self, name: str, directory: str | None) -> FoundRecipe:
        return FoundRecipe(identity=name, file=f"{name}.yaml", document=self.recipes[name])


def _working_specs() -> list[ToolSpec]:
    return [
        ToolSpec(name=name, effect=effect, parameters=_ARGUMENTS)
        for name, effect in EFFECTS.items()
    ]


def _number(rng: random.Random) -> int:
    """Of a call that mostly works."""
    return rng.randrange(100) if rng.random() < 0.6 else rng.randrange(13)


def _document(
    rng: random.Random, recipe_id: str, recipes: Sequence[str] = ()
) -> dict[str, JsonValue]:
    is_whole = recipe_id == "random"
    is_parallel = rng.random() < 0.5
    has_limit = is_whole and not is_parallel and rng.random() < 0.15
    steps: list[dict[str, JsonValue]] = []
    for _ in range(rng.randint(3, 8) if is_whole else rng.randint(1, 3)):
        # What of a loop had begun before a limit was reached is a matter of time.
        together = 1 if has_limit else 3
        steps.append(_step(rng, steps, together=together, recipes=() if has_limit else recipes))
    if is_parallel:
        # Which of several parallel steps had begun before the run went back is one, too.
        for step in steps:
            if "on_error" in step:
                step["on_error"] = {"goto": step["id"], "max": 1}
    limits: dict[str, JsonValue] = {"sequential_tool_calls": rng.random() < 0.3}
    if has_limit:
        limits["max_steps"] = rng.randint(2, len(steps))
    document: dict[str, JsonValue] = {
        "id": recipe_id,
        "inputs": {"seen": {"type": "array", "default": []}},
        "tools": list(EFFECTS),
        "permissions": {"allow_write": True},
        "retry": {"initial_delay": 0.001, "max_delay": 0.002},
        "limits": limits,
        "execution_mode": "parallel" if is_parallel else "sequential",
        "max_parallel": rng.choice((2, 16)),
        # Which of several parallel steps had begun before one failed is likewise.
        "on_failure": "continue" if is_parallel else rng.choice(("stop", "continue")),
        "steps": list(steps),
    }
    if rng.random() < 0.3:
        document["output"] = {"all": [_read(rng, each, guards=True) for each in steps[-3:]]}
    return document


def _step(
    rng: random.Random,
    earlier: Sequence[Mapping[str, JsonValue]],
    *,
    together: int,
    recipes: Sequence[str],
) -> dict[str, JsonValue]:
    read = rng.sample(list(earlier), k=min(len(earlier), rng.choice((0, 1, 1, 2))))
    step: dict[str, JsonValue] = {"id": f"s{len(earlier)}", "optional": rng.random() < 0.2}
    if read and rng.random() < 0.2:
        step["when"] = _condition(rng, read[0])
    if read and rng.random() < 0.1:
        return step | {"assert": [_condition(rng, read[0])]}
    seen = [_read(rng, each, guards=rng.random() < 0.4) for each in read]
    step |= (loop := _loop(rng, together) if rng.random() < 0.2 else {})
    if loop:
        seen.append("{{ loop.item }}")
    elif rng.random() < 0.1:
        step |= {"while": f"loop.index < {rng.randrange(3)}", "allow_repeats": True}
    if read and rng.random() < 0.15 and not step["optional"]:
        step["on_error"] = {"goto": rng.choice((step["id"], read[0]["id"])), "max": 1}
    kinds = ("set", "tool", "tool", "goal", "goal", "analyze", "recipe")
    match rng.choice(kinds if recipes else kinds[:-1]):
        case "recipe":
            step["recipe"] = rng.choice(recipes)
            step["with"] = {"seen": list(seen)}
        case "set":
            step["set"] = {"n": rng.randrange(10), "seen": list(seen)}
        case "tool":
            step["tool"] = rng.choice(list(EFFECTS))
            number = "{{ loop.item }}" if loop else _number(rng)
            step["params"] = {"n": number, "seen": list(seen)}
        case "analyze":
            step["analyze"] = f"Analysis s{len(earlier)}: {' '.join(seen)}"
            step["output"] = dict(_GOOD)
        case _:
            step |= _goal(rng, len(earlier), seen)
    return step


def _loop(rng: random.Random, together: int) -> dict[str, JsonValue]:
    return {
        "loop": [_number(rng) for _ in range(rng.randrange(4))],
        "max_parallel": rng.choice((1, together)),
        "aggregate": rng.random() < 0.5,
    }


def _goal(rng: random.Random, number: int, seen: Sequence[str]) -> dict[str, JsonValue]:
    goal: dict[str, JsonValue] = {
        "tool_failure": rng.choice(("fail", "report", "report")),
        "tools": list(rng.sample(list(EFFECTS), k=rng.randrange(4))),
    }
    mode = rng.choice(("text", "output", "output", "signal"))
    if mode == "output":
        goal["output"] = dict(_GOOD)
    elif mode == "signal":
        goal["completion"] = "signal"
    goal["goal"] = f"Goal of s{number}, {mode}: {' '.join(seen)}"
    return goal


def _read(rng: random.Random, step: Mapping[str, JsonValue], *, guards: bool) -> str:
    guard = " | default('nothing')" if guards else ""
    return f"{{{{ {step['id']}{guard} | string | truncate(30) }}}}"


def _condition(rng: random.Random, step: Mapping[str, JsonValue]) -> str:
    if "set" in step and not {"when", "loop"} & set(step):
        return f"{step['id']}.n > {rng.randrange(10)}"
    return f"steps.{step['id']}.status {rng.choice(('==', '!='))} 'completed'"


def _of_steps(
    steps: Sequence[Step[object]],
    *,
    limits: Mapping[str, JsonValue] | None = None,
    graph: Mapping[str, Sequence[str]] | None = None,
) -> AgentRecipe:
    return AgentRecipe(
        id="random",
        steps=steps,
        graph=graph,
        limits=limits or {},
        retry=RetryConfig(initial_delay=0.001, max_delay=0.002),
        permissions=Permissions(allow_write=True),
    )


def _transitions(rng: random.Random) -> AgentRecipe:
    size = rng.randint(3, 5)
    numbers = range(size)
    graph: dict[str, list[str]] = {}
    for number in numbers:
        ways = [other for other in numbers if other > number or rng.random() < 0.2]
        graph[f"s{number}"] = [
            f"s{way}" for way in rng.sample(ways, k=min(len(ways), rng.choice((1, 2, 2, 3))))
        ]
    steps = [_choosing_step(rng, number, graph[f"s{number}"]) for number in numbers]
    return _of_steps(steps, graph=graph, limits={"allow_repeated_steps": True, "max_steps": 7})


def _choosing_step(rng: random.Random, number: int, ways: Sequence[str]) -> Step[object]:
    request = None
    if rng.random() < 0.85:
        request = tool_request(rng.choice(list(CHOOSERS)), {"ways": list(ways)}, id="choice")
    if rng.random() < 0.3:
        return _code(rng, number, decision_tool=request)
    wish = f"wish {' '.join(ways)}" if rng.random() < 0.3 else "text"
    return DefaultStep[object](
        id=f"s{number}",
        messages=MessageBundle.of(goal=f"Goal of s{number}, {wish}"),
        available_tools=rng.sample(list(EFFECTS), k=rng.randrange(3)),
        completion_criteria=CompletionCriteria(mode="text"),
        decision_tool=request,
        is_optional=rng.random() < 0.6,
        tool_failure="report",
    )


@frozen
class RandomCode(PythonStep[JsonValue]):
    """Asks and calls, at once and one after the other."""

    id: str
    seed: float
    is_optional: bool
    decision_tool: ToolCallRequest | None

    async def run(self, scope: StepScope) -> JsonValue:
        rng = random.Random(self.seed)
        works = [(rng.choice(_WORKS), _number(rng)) for _ in range(rng.randint(1, 4))]
        found = await asyncio.gather(*[self._work(scope, what, n) for what, n in works])
        if rng.random() < 0.4:
            found.append(await self._work(scope, f"Sum up {dumps(found)[:40]}", 0))
        if rng.random() < 0.1:
            raise ValueError("it comes to nothing")
        return [dumps(each)[:20] for each in found]

    async def _work(self, scope: StepScope, what: str, n: int) -> JsonValue:
        try:
            if what in EFFECTS:
                return await scope.call_tool(what, {"n": n})
            if what == "judge":
                judged = OutputInstructions[JsonValue](schema=_GOOD, name="judged")
                return await scope.ask_model(f"Judge {n % 3}.", judged)
            return await scope.call_model(f"{what} {n % 3}.")
        except StepFailedError:
            return "failed"


_WORKS: Final = (*EFFECTS, "judge", "Ask", "Ask")


def _code(
    rng: random.Random, number: int, *, decision_tool: ToolCallRequest | None = None
) -> Step[object]:
    return RandomCode(f"s{number}", rng.random(), rng.random() < 0.5, decision_tool)
