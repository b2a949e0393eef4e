"""Programs that call tools from a sandbox: how one is run, and how a model is told to write one."""

from __future__ import annotations

import asyncio
import json
import keyword
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final

from attrs import frozen

from minions.contracts.context import RunContext
from minions.contracts.messages import (
    Message,
    MessageRole,
    border_in,
    border_words,
    message_to_json,
    system,
    user,
)
from minions.contracts.sandbox import (
    NO_SANDBOX,
    CodeSandbox,
    ProgramTools,
    SandboxCode,
    SandboxLimits,
    SandboxResult,
    unavailable,
)
from minions.contracts.steps import PythonStep, StepScope
from minions.contracts.tools import Toolbox, ToolSpec
from minions.data.errors import EnvironmentRefusedError, FailureInfo, did_you_mean
from minions.data.json_values import JsonValue, json_type
from minions.data.patterns import match_beside_loop
from minions.data.schema import JsonSchema, SchemaValidator
from minions.data.schema_words import schema_words
from minions.engine.compile.borders import as_text_data, border_of, within
from minions.engine.compile.engine_scope import EngineScope, ProgramCalls
from minions.engine.compile.recipe_step import CacheableStep, Fingerprint, WrittenStep
from minions.recipe.expressions.template import Template
from minions.recipe.kinds.code_kind import CodeSpec, function_name, functions_read
from minions.recipe.kinds.goal_kind import ProgramSpec

_ENDED_BY_ITSELF: Final = (SandboxCode.CODE, SandboxCode.RESULT)


async def run_program(
    calls: ProgramCalls,
    sandbox: CodeSandbox,
    code: str,
    inputs: Mapping[str, JsonValue],
    limits: SandboxLimits,
) -> SandboxResult:
    """Run a program that may call tools.

    Raises:
        StepFailedError: A call waits for a decision; `code-diverged`: the program does not do what
            it did when it was interrupted; `too-many-tool-calls`.
    """
    tools = ProgramTools(names=calls.names, call=calls.call, now=calls.begun_at, seed=calls.seed)
    return await sandbox.execute_with_tools(code, inputs, limits, tools)


def check_end(calls: ProgramCalls, result: SandboxResult) -> None:
    """Return if the last program of a step made all calls that it made before it was interrupted;
    one that was stopped at a limit may have made fewer.

    Raises:
        StepFailedError: `code-diverged`.
    """
    if result.failure is None or result.failure.code in _ENDED_BY_ITSELF:
        calls.check_end()


def sandbox_refusal(
    spec: CodeSpec | ProgramSpec, sandbox: CodeSandbox | None
) -> EnvironmentRefusedError | None:
    """Why the code of that step cannot run here; None: it can."""
    if sandbox is None:
        return not_registered(spec)
    if spec.tools and not sandbox.has_tools:
        return EnvironmentRefusedError(
            f"The code of step '{spec.id}' calls tools, and the sandbox '{sandbox.name}' that is "
            "registered here hands no calls on (`has_tools`). Name another one under `sandbox`.",
            code=NO_SANDBOX,
            where=str(spec.where),
        )
    if all(probe.ok for probe in sandbox.probe()):
        return None
    return unavailable([sandbox], what=f"Step '{spec.id}' is Python code", where=str(spec.where))


def not_registered(spec: CodeSpec | ProgramSpec) -> EnvironmentRefusedError:
    """The error of a step whose sandbox nobody registered."""
    return EnvironmentRefusedError(
        f"Step '{spec.id}' is Python code, which runs only in a sandbox, and '{spec.sandbox}' is "
        "not registered here. Pass it to Extensions(sandboxes=…).",
        code=NO_SANDBOX,
        where=str(spec.where),
    )


# --- the functions of the module `tools`, for who writes a program -------------------------------

_MOST_WORDS: Final = 300
_TYPES: Final = {
    "string": "str",
    "integer": "int",
    "number": "float",
    "boolean": "bool",
    "null": "None",
    "array": "list",
    "object": "dict",
}
_MOST_DEPTH: Final = 3
_MOST_PARTS: Final = 100
"""Of the schema of one parameter, how many of the schemas within it are written as types."""
_MOST_VALUES: Final = 50


def signatures(tools: Iterable[ToolSpec]) -> str:
    """The functions as Python writes them: names, types made of the schemas, and what they do."""
    return "\n\n".join("\n".join(_signature(tool)) for tool in tools)


def _signature(tool: ToolSpec) -> Iterator[str]:
    properties, required = tool.parameters.get("properties"), tool.parameters.get("required")
    members = properties if isinstance(properties, Mapping) else {}
    needed = set(map(str, required)) if isinstance(required, list | tuple) else set[str]()
    # Required ones first: that is how a call is read.
    names = sorted(members, key=lambda name: name not in needed)
    named = [name for name in names if name.isidentifier() and not keyword.iskeyword(name)]
    others = [name for name in names if name not in named]
    parts = {
        name: f"{_Type().write(members[name])}{'' if name in needed else ' = …'}" for name in names
    }
    listed = [f"{name}: {parts[name]}" for name in named]
    if listed:
        listed.insert(0, "*")
    if others:  # which no call can name but in this way
        listed.append(f"**{{{', '.join(f'{_quote(name)}: {parts[name]}' for name in others)}}}")
    returns = _Type().write(tool.returns) if tool.returns is not None else "object"
    yield f"def {function_name(tool.name)}({', '.join(listed)}) -> {returns}: ..."
    described = {name: text for name in names if (text := _description(members[name]))}
    told = (f"{name if name in named else _quote(name)}: {described[name]}" for name in described)
    for line in (_in_line(tool.description), *told):
        if line:
            yield f"    # {line[:_MOST_WORDS]}"


def _description(schema: JsonValue) -> str:
    text = schema.get("description") if isinstance(schema, Mapping) else None
    return _in_line(str(text)) if text else ""


def _in_line(text: str) -> str:
    return "".join(each for each in " ".join(text.split()) if each.isprintable())


def _quote(name: str) -> str:
    """A name of a stranger's schema as Python writes a text: in one line, with nothing unseen."""
    return json.dumps(name, ensure_ascii=not name.isprintable())


def _type_of(value: JsonValue) -> str:
    return "int" if type(value) is int else _TYPES[json_type(value)]


class _Type:
    """Writes the type of one parameter; of a large schema no more than its beginning."""

    def __init__(self) -> None:
        self._left = _MOST_PARTS

    def write(self, schema: JsonValue, depth: int = 0) -> str:
        self._left -= 1
        if self._left < 0 or not isinstance(schema, Mapping):
            return "object"
        for key in ("anyOf", "oneOf"):
            options = schema.get(key)
            if isinstance(options, list | tuple):
                return self._any_of(self.write(each, depth) for each in options)
        listed = schema.get("enum")
        if isinstance(listed, list | tuple):
            values = [repr(each)[:_MOST_WORDS] for each in listed[:_MOST_VALUES]]
            return f"Literal[{', '.join([*values, *(['…'] if len(listed) > len(values) else [])])}]"
        kinds = schema.get("type")
        names = kinds if isinstance(kinds, list | tuple) else (kinds,)
        return self._any_of(self._of_kind(str(kind), schema, depth) for kind in names)

    def _any_of(self, types: Iterable[str]) -> str:
        return " | ".join(dict.fromkeys(types)) or "object"

    def _of_kind(self, kind: str, schema: JsonSchema, depth: int) -> str:
        if kind == "array" and isinstance(schema.get("items"), Mapping):
            return f"list[{self.write(schema['items'], depth + 1)}]"
        members = schema.get("properties")
        if kind == "object" and isinstance(members, Mapping) and members and depth < _MOST_DEPTH:
            fields = (
                f"{_quote(name)}: {self.write(each, depth + 1)}" for name, each in members.items()
            )
            return f"{{{', '.join(fields)}}}"
        return _TYPES.get(kind, "object")


_SANDBOX_WORDS: Final = {
    "monty": "It runs in a small Python: no classes with bases; of the standard library base64, "
    "collections, copy, csv, datetime, decimal, functools, hashlib, itertools, json, math, random "
    "and re.",
    "process": "It runs in Python with its standard library.",
}


def program_words(
    sandbox: str,
    tools: Sequence[ToolSpec],
    output: JsonSchema | None,
    variables: Mapping[str, str],
) -> str:
    """What a model is told that writes a program.

    Args:
        variables: The types of the variables that the program has, by name.
    """
    where = _SANDBOX_WORDS.get(sandbox, "It runs in a sandbox.")
    said = [
        "Reach the goal with one Python program. Answer with the program alone, in one block that "
        "begins with ```python and ends with ```. The value of its last expression is the answer"
        + ("." if output is None else f"; it has this form:\n{schema_words(output)}"),
        f"{where} It has no files, network or threads, and its clock stands still.",
    ]
    if variables:
        listed = ", ".join(f"{name}: {kind}" for name, kind in variables.items())
        said.append(f"It has these variables: {listed}.")
    if tools:
        said.append(
            "After `import tools` it may call these functions as `tools.NAME(…)`, with arguments "
            "by name. Each gives its result as plain Python values. A call that fails raises "
            "RuntimeError, whose text is `CODE: message`. All of them are really carried out:\n\n"
            f"{signatures(tools)}"
        )
    return "\n\n".join(said)


_LONG_ANSWER: Final = 20_000
"""Characters; to parse more than these takes longer than the event loop may stand still."""
_OPENING: Final = re.compile(r"```([^`\n]*)\n")
_CLOSING: Final = re.compile(r"^[ ]*```", re.MULTILINE)


def program_in(text: str, functions: Sequence[str]) -> str | FailureInfo:
    """The program in an answer: its first block of Python, else its first block, or all of it.

    A failure where there is none, where its block has no end, because the rest may be missing, and
    where it reads functions of the module `tools` that are none: nothing was called then.

    Args:
        functions: Those of the module `tools`.
    """
    blocks: list[tuple[str, str]] = []
    at = 0
    while (opening := _OPENING.search(text, at)) is not None:
        closing = _CLOSING.search(text, opening.end())
        end = closing.start() if closing is not None else text.find("```", opening.end())
        if end < 0:
            break
        blocks.append((opening[1].strip().lower(), text[opening.end() : end]))
        at = text.index("```", end) + 3
    own = [program for language, program in blocks if language in ("python", "py", "python3")]
    if opening is not None and not own:
        return FailureInfo(code="invalid-output", message=_NO_END)
    program = own[0] if own else blocks[0][1] if blocks else text
    if not program.strip():
        return FailureInfo(code="invalid-output", message=_NO_PROGRAM)
    program = program.strip("\r\n")
    for name in functions_read(program):
        if name not in functions:
            near = did_you_mean(name, functions) or f" There are: {', '.join(functions) or 'none'}."
            message = f"The program reads 'tools.{name:.60}', which is no function.{near}"
            return FailureInfo(code="unknown-tool", message=f"{message} It was not run.")
    return program


_NO_PROGRAM: Final = "The answer holds no program in a block of ```python."
_NO_END: Final = (
    "The block of the program is not closed by ```, so that its end may be missing. It was not run."
)


# --- a goal for which a model writes a program ---------------------------------------------------


@frozen(kw_only=True)
class ProgramStep(WrittenStep[object], PythonStep[object], CacheableStep):
    """A `goal:` step with `code: true`: a model writes a program, whose value is the output."""

    id: str
    spec: ProgramSpec
    asking: WrittenStep[object]
    """The messages of the step."""
    given: Mapping[str, Template]
    """The variables of the program."""
    sandbox: CodeSandbox | None
    """None: the sandbox that the recipe names is not registered; such a step never runs."""
    validator: SchemaValidator | None
    """Of the declared output; None: none is declared."""
    available_tools: frozenset[str]

    @property
    def templates(self) -> Sequence[Template]:
        """The templates of all messages, and of the variables."""
        return [*self.asking.templates, *self.given.values()]

    @property
    def sandbox_name(self) -> str | None:
        return self.sandbox.name if self.sandbox is not None else None

    async def run(self, scope: StepScope) -> object:
        """Ask for a program, run it, and let the model mend one that fails.

        Raises:
            MissingValueError: A template reads a value that does not exist.
            StepFailedError: The last program failed, or its value is not the declared output.
            EnvironmentRefusedError: There is no such sandbox.
        """
        assert isinstance(scope, EngineScope)  # noqa: S101  # the engine runs these steps
        if self.sandbox is None:
            raise not_registered(self.spec)
        given, messages = await scope.beside(self.references, lambda: self._render(scope.context))
        calls = scope.program_calls(self._find_named(scope.context.tools), by_model=True)
        for attempt in range(self.spec.max_repairs + 1):
            answer = await scope.call_model(messages)
            read = partial(program_in, answer, calls.names)
            program = await asyncio.to_thread(read) if len(answer) > _LONG_ANSWER else read()
            if isinstance(program, FailureInfo):
                result = SandboxResult(failure=program)
            else:
                limits = self.spec.sandbox_limits
                result = await run_program(calls, self.sandbox, program, given, limits)
                result = await self._check_value(result)
            if result.failure is None or attempt == self.spec.max_repairs:
                check_end(calls, result)
                return result.unwrap()
            told = self._write_failure(scope.context, result.failure, calls, messages)
            said = Message(role=MessageRole.ASSISTANT, content=answer)
            messages = [*messages, said, *told]
        raise AssertionError("unreachable: the last attempt returns or raises")

    def _find_named(self, tools: Toolbox) -> tuple[str, ...]:
        return tuple(each.spec.name for each in tools if each.spec.name in self.available_tools)

    def _render(self, view: RunContext) -> tuple[dict[str, JsonValue], list[Message]]:
        """The values of the variables, and the messages."""
        given = {name: template.render(view.values) for name, template in self.given.items()}
        kinds = {name: _type_of(value) for name, value in given.items()}
        tools = [view.tools.get(name).spec for name in self._find_named(view.tools)]
        words = program_words(self.spec.sandbox, tools, self.spec.output, kinds)
        return given, [system(words), *self.asking.messages(view)]

    async def _check_value(self, result: SandboxResult) -> SandboxResult:
        """The result; one whose value does not fit the declared output has failed."""
        declared = self.validator
        if result.failure is not None or declared is None:
            return result
        errors = await match_beside_loop(lambda: declared.errors(result.value))
        if not errors:
            return result
        message = f"The value of the program does not fit the output: {'; '.join(errors)}."
        return SandboxResult(failure=FailureInfo(code="invalid-output", message=message))

    def _write_failure(
        self,
        view: RunContext,
        failure: FailureInfo,
        calls: ProgramCalls,
        messages: Sequence[Message],
    ) -> list[Message]:
        """The failure and the calls so far: both may hold what strangers wrote."""
        made = [f"{n}. {name}({arguments})" for n, (name, arguments) in enumerate(calls.made, 1)]
        data = as_text_data("\n".join([failure.message, *(["", *made] if made else [])]))
        known = border_in(messages)
        texts = [*(each.content or "" for each in messages), data]
        border = known or border_of(view.border_seed, texts)
        also = (
            ", and the calls that were made: they are done, and are not taken back" if made else ""
        )
        told = user(
            f"The program failed. Its error{also}:\n{within(border, data)}\n"
            "Write the whole program again, without the fault"
            f"{', and without the calls that are done' if made else ''}."
        )
        return [*([] if known else [border_words(border)]), told]

    def fingerprint(self, view: RunContext) -> Fingerprint:
        """The messages, and where the program runs."""
        given, messages = self._render(view)
        asked: dict[str, JsonValue] = {
            "messages": [message_to_json(each) for each in messages],
            "inputs": given,
            "sandbox": self.spec.sandbox,
            "max_repairs": self.spec.max_repairs,
            "output": self.spec.output,
        }
        return Fingerprint(asked=asked, tools=sorted(self.available_tools))
