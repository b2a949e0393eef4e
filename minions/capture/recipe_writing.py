"""Writes a program as a recipe, with a test for each trace."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Final

from attrs import field, frozen

from minions.capture.captured_program import OUTPUT, JudgedNode, Program, ToolNode
from minions.capture.known_values import STATES
from minions.capture.seen_types import covers, schema_of, seen_schema
from minions.capture.task_inputs import templated_task
from minions.capture.traces import Trace, is_effect
from minions.contracts.tools import ToolSpec
from minions.data.json_values import JsonValue, dumps
from minions.data.schema import JsonSchema

_MOST_INLINE: Final = 64 * 1024
"""Characters of recorded calls that stand in the recipe itself."""
_MOST_READ: Final = 40_000
"""Characters of a result that a model step reads, as the agent did (`max_tool_result_characters`).
"""
_MOST_SHOWN: Final = 4_000
"""Characters of an output that `depends_on` shows."""
_OF_AGENT: Final = (
    *("tools", "model", "output", "completion", "limits", "tool_failure", "at_limit", "retry"),
    *("timeout_s", "idle_timeout_s"),
)
"""Keys of the agent's step that hold for it in the captured recipe, too."""


CAPTURED: Final = "captured"
"""Name of the `metadata` of a captured recipe: its task, as a template over `inputs`."""


class Surprise(StrEnum):
    """What becomes of a run in which something is as it was never seen."""

    AGENT = "agent"
    """The agent of the recorded runs does what is left."""
    ASK = "ask"
    """A person says what the result is."""
    FAIL = "fail"
    """The run fails."""


@frozen(kw_only=True)
class RecipeSource:
    """What the captured recipe takes over from that of the agent."""

    id: str
    document: Mapping[str, JsonValue]
    """The agent's recipe."""
    specs: Mapping[str, ToolSpec]
    toolsets: Mapping[str, str] = field(factory=dict)
    """By full name of a tool, the name of the toolset that has it."""
    on_surprise: Surprise = Surprise.FAIL
    described: Collection[str] = ()
    """Tools whose descriptions the operator wrote: those of others are a stranger's words."""

    def spec_of(self, tool: str) -> ToolSpec | None:
        """The declaration of that tool; None: it is not known."""
        return self.specs.get(tool)

    def said(self, key: str) -> JsonValue:
        """What the recorded recipe has under that key; None: nothing."""
        return self.document.get(key)


@frozen(kw_only=True)
class WrittenRecipe:
    """A recipe as JSON, in the order of keys in which people read it."""

    document: Mapping[str, JsonValue]
    calls: tuple[tuple[Mapping[str, JsonValue], ...], ...]
    """The recorded calls of each of its tests."""
    files: Mapping[str, str]
    """Files that belong beside it, by name: calls that are too long for the recipe itself."""


def write_recipe_document(
    program: Program, traces: Sequence[Trace], source: RecipeSource
) -> WrittenRecipe:
    """The recipe that carries the program out."""
    writer = _Writer(program, traces, source)
    calls = tuple(writer.calls(trace) for trace in traces)
    is_long = sum(len(dumps(each)) for listed in calls for each in listed) > _MOST_INLINE
    files = {
        f"{source.id}.calls-{number}.jsonl": "".join(f"{dumps(each)}\n" for each in listed)
        for number, listed in enumerate(calls, start=1)
        if is_long
    }
    shown: Sequence[JsonValue] = list(files) if is_long else [list(each) for each in calls]
    return WrittenRecipe(document=writer.write(shown), calls=calls, files=files)


@frozen
class _Writer:
    program: Program
    traces: Sequence[Trace]
    source: RecipeSource

    def write(self, calls: Sequence[JsonValue]) -> dict[str, JsonValue]:
        """The whole recipe.

        Args:
            calls: By trace what stands under `calls` of its test.
        """
        document: dict[str, JsonValue] = {"id": self.source.id}
        runs = ", ".join(run for each in self.traces for run in each.runs)
        document["description"] = f"Captured from {runs:.200}."
        task = self.traces[0].goal or self._task()
        captured: dict[str, JsonValue] = {"task": task}
        if self.traces[0].system:
            captured["system"] = self.traces[0].system
        document["metadata"] = {CAPTURED: captured}
        agent, used = self.source.document, self._used_tools()
        parts: dict[str, JsonValue] = {
            "inputs": self._inputs(),
            "model": agent.get("model"),
            "tools": choose_toolsets(agent.get("tools"), used, self.source.toolsets),
            "permissions": choose_permissions(
                agent.get("permissions"), used, self.source.specs, self.source.toolsets
            ),
            "limits": choose_limits(
                agent.get("limits"),
                [each for each in self.program.steps if isinstance(each, JudgedNode)],
                self.traces,
                has_agent=self.source.on_surprise is Surprise.AGENT,
            ),
            "retry": agent.get("retry"),
            "redact": agent.get("redact"),
            "context": self._context(),
            "on_surprise": self._surprise.get("id"),
            "steps": [
                *(self._step(each) for each in self.program.steps),
                *([self._surprise] if self._surprise else []),
            ],
            "output": self.program.output,
            "tests": [
                self._test(trace, number, calls[number]) for number, trace in enumerate(self.traces)
            ],
        }
        document.update({key: value for key, value in parts.items() if value not in (None, {}, [])})
        return document

    # --- head ------------------------------------------------------------------------------------

    def _inputs(self) -> dict[str, JsonValue]:
        declared = self.source.said("inputs")
        kept: dict[str, JsonValue] = {
            name: declared[name]
            for name in self.traces[0].inputs
            if isinstance(declared, Mapping) and name in declared
        }
        for each in self.program.inputs:
            schema: dict[str, JsonValue] = dict(each.schema)
            if each.description:
                schema["description"] = each.description
            kept[each.name] = schema if schema != {"type": "string"} else "string"
        return kept

    def _context(self) -> JsonValue:
        """What the agent read beside its task, if a model is asked at all; None: nothing."""
        said = self.source.said("context")
        asks = any(isinstance(each, JudgedNode) for each in self.program.steps)
        is_list = isinstance(said, list | tuple)  # a text is the system prompt
        return said if is_list and (asks or self._surprise) else None

    def _used_tools(self) -> list[str]:
        own = [each.tool for each in self.program.steps if isinstance(each, ToolNode)]
        if self.source.on_surprise is Surprise.AGENT:
            words, source = self._agent_tools(), self.source
            own += [
                name for name in source.specs if name in words or source.toolsets.get(name) in words
            ]
        return list(dict.fromkeys(own))

    def _agent_tools(self) -> Collection[JsonValue]:
        """The tools and toolsets that the agent's step names."""
        said = self._agent.get("tools")
        named: JsonValue = said
        if isinstance(said, Mapping):
            named, always = said.get("names"), said.get("always")
            toolsets = self.source.toolsets
            named = [*toolsets.values()] if named is None else named
            named = [each for part in (named, always) if isinstance(part, list) for each in part]
        return [each for each in (named if isinstance(named, list) else ()) if each]

    @property
    def _surprise(self) -> dict[str, JsonValue]:
        """The step for what was never seen; {}: there is none."""
        match self.source.on_surprise:
            case Surprise.FAIL:
                return {}
            case Surprise.ASK:
                return {
                    "id": self._free("ask"),
                    "ask": f"{self._left()}\n\nWhat is the result?",
                    "form": schema_of([each.output for each in self.traces]),
                }
            case Surprise.AGENT:
                step: dict[str, JsonValue] = {"id": self._free("agent")}
                if self.traces[0].system:
                    step["system_prompt"] = self.traces[0].system
                step["goal"] = self._left()
                step.update({name: self._agent[name] for name in _OF_AGENT if name in self._agent})
                return step

    @property
    def _agent(self) -> Mapping[str, JsonValue]:
        """The step of the recorded recipe in which a model works with tools."""
        steps = self.source.said("steps")
        goals = [
            each
            for each in (steps if isinstance(steps, list | tuple) else ())
            if isinstance(each, Mapping) and "goal" in each
        ]
        return next((each for each in goals if "tools" in each), goals[0] if goals else {})

    def _left(self) -> str:
        """What was done until the surprise, and what the task is."""
        done = "\n".join(
            f"- {each.id} ({each.tool}): {{{{ {each.id} | default('not done') | tojson }}}}"
            for each in self.program.steps
            if isinstance(each, ToolNode)
        )
        return (
            f"{self.traces[0].goal or self._task()}\n\nA part of it is done, until this came up: "
            f"{{{{ feedback.message }}}}\nDo what is left, and nothing twice.\n{done}"
        )

    def _free(self, name: str) -> str:
        taken = {each.id for each in self.program.steps}
        number, found = 2, name
        while found in taken:
            found, number = f"{name}_{number}", number + 1
        return found

    # --- steps -----------------------------------------------------------------------------------

    def _step(self, step: ToolNode | JudgedNode) -> dict[str, JsonValue]:
        written: dict[str, JsonValue] = {"id": step.id}
        if step.when is not None:
            written["when"] = step.when
        if step.loop is not None:
            written["loop"] = step.loop.source
            written["aggregate"] = True
            if isinstance(step, ToolNode) and not step.loop.by_effect:
                written["max_parallel"] = 8
        written.update(
            self._tool_step(step) if isinstance(step, ToolNode) else self._judged_step(step)
        )
        return written

    def _tool_step(self, step: ToolNode) -> Iterator[tuple[str, JsonValue]]:
        yield "tool", step.tool
        if step.params:
            yield "params", dict(step.params)
        spec = self.source.spec_of(step.tool)
        seen = self._seen(step, spec)
        if seen and not covers(spec.returns if spec is not None else None, seen):
            yield "returns", seen
        if step.until is not None:
            yield "while", step.until
            yield "max_iterations", max(10, 3 * step.polls)
            if step.is_paged:
                yield "aggregate", True
            else:
                yield "allow_repeats", True
        if step.attempts > 1:
            yield "limits", {"max_tool_call_retries": max(2, step.attempts)}

    def _seen(self, step: ToolNode, spec: ToolSpec | None) -> JsonSchema:
        """The type of the results as they were seen, as far as the recipe names their fields; what
        a tool that changes nothing never gave is a surprise: an empty list, another state.
        """
        states = frozenset() if is_effect(spec) else STATES | self.program.decisive
        return seen_schema(step.results, self._words, states, step.id) if step.results else {}

    @property
    def _words(self) -> frozenset[str]:
        texts = [dumps(self.program.output)]
        for each in self.program.steps:
            if isinstance(each, ToolNode):
                texts.append(dumps(dict(each.params)))
                texts.append(each.until or "")
            texts.append(each.when or "")
            texts.append(each.loop.source if each.loop else "")
        found = re.finditer(r"([\w-]+)(?:\[0\])?", " ".join(texts))
        return frozenset(word for each in found for word in (each.group(), each.group(1)))

    def _judged_step(self, step: JudgedNode) -> Iterator[tuple[str, JsonValue]]:
        system = self.traces[0].system
        if system:
            yield "system_prompt", system
        yield "goal", "\n\n".join(part for part in self._goal_parts(step) if part)
        reads = self._shown(step)
        if reads:
            yield "depends_on", reads
        if not step.is_text:
            yield "output", {each.name: dict(each.schema) for each in step.fields}

    def _shown(self, step: JudgedNode) -> list[JsonValue]:
        return (
            [] if step.loop is not None else [each for each in step.reads if self._is_short(each)]
        )

    def _is_short(self, name: str) -> bool:
        results = [
            each.results
            for each in self.program.steps
            if isinstance(each, ToolNode) and each.id == name
        ]
        return not results or max((len(dumps(r)) for r in results[0]), default=0) <= _MOST_SHOWN

    def _goal_parts(self, step: JudgedNode) -> Iterator[str]:
        yield self.traces[0].goal or self._task()
        yield from (
            f"{each.name}: {{{{ inputs.{each.name} }}}}"
            for each in self.program.inputs
            if each.is_answer
        )
        if step.loop is not None:
            yield "{{ loop.item | tojson }}"
            yield from (
                f"{{{{ {each}[loop.index] | tojson }}}}" for each in step.reads if each != "item"
            )
        else:
            yield from (
                f"{{{{ {each} | tojson | truncate({_MOST_READ}) }}}}"
                for each in step.reads
                if not self._is_short(each)
            )
        if step.what_for == OUTPUT:
            yield "Everything is done; give the answer."
            return
        if step.is_way:
            yield f"Is `{step.what_for}` to be called now?"
            return
        names = ", ".join(f"`{each.name}`" for each in step.fields)
        described = "; ".join(self._descriptions(step))
        yield f"Give only {names} for `{step.what_for}`{': ' if described else ''}{described}."

    def _descriptions(self, step: JudgedNode) -> Iterator[str]:
        if step.what_for not in self.source.described:
            return
        spec = self.source.spec_of(step.what_for)
        properties = spec.parameters.get("properties") if spec is not None else None
        for each in step.fields:
            found = properties.get(each.name) if isinstance(properties, Mapping) else None
            words = found.get("description") if isinstance(found, Mapping) else None
            if isinstance(words, str) and words:
                yield f"{each.name} is {words.rstrip('.')}"

    def _task(self) -> str:
        """The words of the task, with inputs in place of what varies."""
        trace = self.traces[0]
        text = "\n".join(each.text for each in trace.task)
        return templated_task(text, [(each.name, each.values[0]) for each in self.program.inputs])

    # --- tests -----------------------------------------------------------------------------------

    def calls(self, trace: Trace) -> tuple[dict[str, JsonValue], ...]:
        """The recorded calls that the recipe makes again."""
        left = [each.call for each in self.program.left_out]
        return tuple(
            {"tool": call.tool, "arguments": dict(call.arguments), "result": call.result}
            for call in trace.calls
            if not any(call is each for each in left)
        )

    def _test(self, trace: Trace, number: int, calls: JsonValue) -> dict[str, JsonValue]:
        given: dict[str, JsonValue] = dict(trace.inputs)
        given.update({each.name: each.values[number] for each in self.program.inputs})
        answers: list[JsonValue] = []
        decisions: dict[str, JsonValue] = {}
        for step in self.program.steps:
            if isinstance(step, JudgedNode):
                answers += [
                    each if step.is_text and isinstance(each, str) else {"json": each}
                    for each in step.answers[number]
                ]
            elif is_effect(self.source.spec_of(step.tool)):
                decisions[step.id] = "approve"
        test: dict[str, JsonValue] = {"name": f"as in {trace.name}"}
        if given:
            test["inputs"] = given
        if answers:
            test["answers"] = answers
        test["calls"] = calls
        if decisions:
            test["decisions"] = decisions
        test["expect"] = {"output": trace.output}
        return test


def templates_of(document: Mapping[str, JsonValue]) -> dict[str, str]:
    """The templates of a captured recipe, by place: `pay.amount`, `pay.when`, `output`."""
    found = dict(_templates_at(OUTPUT, document.get("output")))
    steps = document.get("steps")
    for step in steps if isinstance(steps, list | tuple) else ():
        if isinstance(step, Mapping):
            name = f"{step.get('id')}"
            found.update(_templates_at(name, step.get("params")))
            found.update(_templates_at(f"{name}.when", step.get("when")))
    return found


def _templates_at(place: str, value: JsonValue) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield place, value
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield from _templates_at(f"{place}.{key}", part)
    elif isinstance(value, list | tuple):
        for at, part in enumerate(value):
            yield from _templates_at(f"{place}.{at}", part)


# --- tools, permissions and limits of a captured recipe: no more than the recorded runs used -----


_LONGER: Final = 10
"""A list for whose items a model is asked may be so many times as long as the longest one seen."""
_LEAST_ITEMS: Final = 50


def choose_toolsets(
    declared: JsonValue, used: Sequence[str], toolsets: Mapping[str, str]
) -> list[JsonValue]:
    """Those of the agent's recipe that have a tool that is used.

    Args:
        declared: Its `tools`.
        used: Full names of tools.
        toolsets: By full name of a tool, the name of its toolset.
    """
    names = _names_of(used, toolsets)
    kept: list[JsonValue] = []
    for each in declared if isinstance(declared, list | tuple) else ():
        if isinstance(each, str) and each in names:
            kept.append(each)
        elif isinstance(each, Mapping) and any(
            name in names
            or (name == "mcp" and _may_be_of(options, used))
            or (isinstance(options, Mapping) and options.get("as") in names)
            for name, options in each.items()
        ):
            kept.append(dict(each))
    return kept


def _names_of(used: Sequence[str], toolsets: Mapping[str, str]) -> list[str]:
    """The tools, and the toolsets that have them."""
    return [*used, *(toolsets[each] for each in used if each in toolsets)]


def _may_be_of(server: JsonValue, tools: Sequence[str]) -> bool:
    """Whether a tool may be of an MCP server as `tools:` names it."""
    given = server if isinstance(server, Mapping) else {"server": server}
    prefix = given.get("as") or given.get("server")
    return prefix is None or any(each.startswith(f"{prefix}__") for each in tools)


def choose_permissions(
    declared: JsonValue,
    used: Sequence[str],
    specs: Mapping[str, ToolSpec],
    toolsets: Mapping[str, str],
) -> dict[str, JsonValue]:
    """The rights that are used, with what the agent's recipe has of approvals and policies.

    Args:
        declared: Its `permissions`.
        used: Full names of tools.
        specs: Tools by full name.
        toolsets: By full name of a tool, the name of its toolset.
    """
    given = declared if isinstance(declared, Mapping) else {}
    names = _names_of(used, toolsets)
    kept: dict[str, JsonValue] = {
        f"allow_{each}": True
        for each in used
        if (spec := specs.get(each)) is not None and spec.is_write
    }
    approvals = given.get("requires_approval")
    rules: list[JsonValue] = []
    for rule in approvals if isinstance(approvals, list | tuple) else ():
        named = rule.get("tool") if isinstance(rule, Mapping) else rule
        several = named if isinstance(named, list | tuple) else [named]
        if any(each in names for each in several):
            rules.append(rule)
    if rules:
        kept["requires_approval"] = rules
    policies = given.get("policies")
    if isinstance(policies, Mapping):
        own = {name: rule for name, rule in policies.items() if name in used}
        if own:
            kept["policies"] = own
    wanted = ("untrusted", "approval_timeout_s", "remind_every") if rules else ("untrusted",)
    kept.update({key: given[key] for key in wanted if key in given})
    return kept


def choose_limits(
    declared: JsonValue,
    judged: Sequence[JudgedNode],
    traces: Sequence[Trace],
    *,
    has_agent: bool,
) -> dict[str, JsonValue]:
    """The limits of the agent's recipe that still mean the same, and bounds of what was used.

    Args:
        declared: Its `limits`.
        judged: The model steps.
        traces: The recorded runs.
        has_agent: Whether the agent does what is left after a surprise.
    """
    given = declared if isinstance(declared, Mapping) else {}
    kept = {
        key: value
        for key, value in given.items()
        if key in ("max_cost_usd", "timeout_s", "tool_timeout_s", "max_tool_result_bytes")
    }
    if not (judged or has_agent):
        return kept
    tokens = max(each.usage.total_tokens for each in traces)
    calls = 3 * sum(each.loop is None for each in judged)
    for each in judged:
        if each.loop is not None:  # lists may be longer than those that were seen
            calls += max(_LEAST_ITEMS, _LONGER * max(map(len, each.answers)))
            tokens *= _LONGER
    if has_agent:
        calls += max(10, 2 * max(each.model_calls for each in traces))
        tokens *= 2
    kept["max_model_calls"] = calls
    if tokens:
        kept["max_tokens"] = max(2_000, tokens)
    return kept
