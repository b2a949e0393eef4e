"""The typed client of a recipe as Python text: its inputs, its output, its steps, its events."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from typing import Final

from attrs import frozen

from minions.analysis.stubs.names import class_name, doc_text, field_name, is_field_name, unique
from minions.analysis.stubs.schema_types import ANY_JSON, SchemaTypes, TypedClass, TypeField
from minions.data.schema import JsonSchema
from minions.recipe.model import AgentRecipe, InputSpec

MARK: Final = "# Made by `minions stubs`"
"""Begins the first line of a client."""
_OWN: Final = ("Inputs", "Output", "StepId", "StepOutputs", "Event")
"""Names that every client defines."""
_IMPORTED: Final = frozenset(
    {
        *("AgentResult", "ChatModel", "JsonValue", "Literal", "Mapping", "Minions", "NotRequired"),
        *("Path", "RunEvent", "RunStream", "SecretRef", "Sequence", "TypeAlias", "TypedDict"),
        *("Unpack", "Final", "InputValue"),
    }
)
"""Names that clients may import, or that stand for something else."""


@frozen(kw_only=True)
class _Parts:
    """What the text is made of."""

    recipe: AgentRecipe
    client: str
    """Name of the class."""
    types: SchemaTypes
    renamed: Mapping[str, str]
    """Inputs whose names are none in Python: argument to input."""
    output: str
    """The hint of the output."""
    steps: tuple[str, ...]
    """Ids of the steps, in the order of the recipe."""


def client_text(
    recipe: AgentRecipe,
    *,
    output: JsonSchema,
    step_outputs: Mapping[str, JsonSchema],
    file: str,
) -> str:
    """The module of the client; the same for the same recipe.

    Args:
        output: What is known of the run's output.
        step_outputs: What is known of the outputs of its steps, by id, in the recipe's order.
        file: The path of the recipe from the folder of the module, with `/`.
    """
    types = SchemaTypes()
    client = unique(class_name(recipe.name or recipe.id), (*_OWN, *_IMPORTED))
    types.reserve(*_OWN, *_IMPORTED, client)
    renamed = _inputs(recipe, types)
    hint = types.hint(output, "Result")
    _steps(step_outputs, types)
    parts = _Parts(
        recipe=recipe,
        client=client,
        types=types,
        renamed=renamed,
        output=hint,
        steps=tuple(step_outputs),
    )
    body = [*_definitions(parts, file), *_client(parts)]
    digest = hashlib.sha256("\n".join(body).encode("utf-8", "replace")).hexdigest()[:16]
    head = [f"{MARK} of the recipe {doc_text(recipe.id)}, interface {digest}: do not edit."]
    head += ["# ruff: noqa", "# fmt: off"]
    return "\n".join([*head, *_imports("\n".join(body)), "", *body]) + "\n"


# --- classes ------------------------------------------------------------------------------------


def _inputs(recipe: AgentRecipe, types: SchemaTypes) -> dict[str, str]:
    """Add the class of the inputs; the arguments that are called otherwise than their inputs."""
    fields: list[TypeField] = []
    renamed: dict[str, str] = {}
    taken = {name for name in recipe.inputs if is_field_name(name)} | {"self"}
    for name, spec in recipe.inputs.items():
        argument = name
        if not is_field_name(name) or name == "self":
            argument = unique(field_name(name), taken)
            taken.add(argument)
            renamed[argument] = name
        fields.append(_input(argument, name, spec, types))
    types.add("Inputs", fields, "What a run is given.")
    return renamed


def _input(argument: str, name: str, spec: InputSpec, types: SchemaTypes) -> TypeField:
    hint = "SecretRef | str" if spec.is_secret else types.hint(spec.schema, name, is_input=True)
    doc = spec.description or str(spec.schema.get("description") or "")
    if argument != name:
        doc = f"The input {name}. {doc}".strip()
    return TypeField(name=argument, hint=hint, is_required=not spec.has_default, doc=doc_text(doc))


def _steps(outputs: Mapping[str, JsonSchema], types: SchemaTypes) -> None:
    """Add the class of the steps' outputs."""
    fields = [
        TypeField(name=step, hint=f"{types.hint(schema, step)} | None", is_required=False)
        for step, schema in outputs.items()
    ]
    types.add("StepOutputs", fields, "By step id, what the steps that ran gave.")


# --- text ---------------------------------------------------------------------------------------


def _definitions(parts: _Parts, file: str) -> Iterator[str]:
    yield f"RECIPE: Final = Path(__file__).parent / {file!r}"
    yield '"""The recipe that is run."""'
    for each in parts.types.classes.values():
        yield from ("", "")
        yield from _lines_of(each)
    yield from ("", "")
    yield f"Output: TypeAlias = {parts.output!r}"
    ids = ", ".join(map(repr, parts.steps))
    yield f"StepId: TypeAlias = {f'Literal[{ids}]' if ids else 'str'}"
    yield "Event: TypeAlias = RunEvent"


def _lines_of(each: TypedClass) -> Iterator[str]:
    if not each.fields:
        yield f"class {each.name}(TypedDict):"
        yield f'    """{each.doc}"""'
        return
    yield from each.lines()


def _client(parts: _Parts) -> Iterator[str]:
    about = doc_text(parts.recipe.description) or f"Runs the recipe {doc_text(parts.recipe.id)}."
    given = "_named(inputs)" if parts.renamed else 'cast("Mapping[str, InputValue]", inputs)'
    words = {"CLIENT": parts.client, "ABOUT": about, "GIVEN": given}
    text = re.sub("CLIENT|ABOUT|GIVEN", lambda found: words[found[0]], _CLIENT)
    lines = text.rstrip("\n").split("\n")
    yield from map(_without_cast, lines) if parts.output == ANY_JSON else lines
    if parts.renamed:
        yield from ("", "")
        yield f"_NAMES: Final[Mapping[str, str]] = {dict(parts.renamed)!r}"
        yield from _NAMED.rstrip("\n").split("\n")


def _without_cast(line: str) -> str:
    """The line where nothing is known of the output: type checkers call its cast redundant."""
    for kind in ("AgentResult", "RunStream"):
        before, cast, value = line.partition(f'cast("{kind}[Output]", ')
        if cast:
            return before + value.removesuffix(")")
    return line


_CLIENT: Final = '''

@frozen(kw_only=True)
class CLIENT:
    """ABOUT"""

    recipe: str | Path = RECIPE
    model: ChatModel | str | None = None
    """Answers instead of the models that the recipe names; None: those."""
    application: Minions | None = None
    """Runs the recipe; None: an application of the library's own."""

    def run(self, **inputs: Unpack[Inputs]) -> AgentResult[Output]:
        """Run the recipe, and wait for it; not within the loop of `application`."""
        if self.application is not None:
            work = self.application.arun(self.recipe, GIVEN, model=self.model)
            return cast("AgentResult[Output]", minions.run(work))
        done = minions.run(self.recipe, GIVEN, model=self.model)
        return cast("AgentResult[Output]", done)

    async def arun(self, **inputs: Unpack[Inputs]) -> AgentResult[Output]:
        """Run the recipe."""
        run = self.application.arun if self.application is not None else minions.arun
        done = await run(self.recipe, GIVEN, model=self.model)
        return cast("AgentResult[Output]", done)

    def stream(self, **inputs: Unpack[Inputs]) -> RunStream[Output]:
        """Run the recipe, and yield its events; `await` it for the result alone."""
        run = self.application.astream if self.application is not None else minions.astream
        return cast("RunStream[Output]", run(self.recipe, GIVEN, model=self.model))


def step_outputs(result: AgentResult[Output]) -> StepOutputs:
    """What each step gave that ran; None: it failed or was skipped."""
    return cast("StepOutputs", {name: result.step(name).output for name in result.step_ids})
'''
_NAMED: Final = '''"""Arguments whose inputs have names that Python has not."""


def _named(inputs: Inputs) -> Mapping[str, InputValue]:
    given = cast("Mapping[str, InputValue]", inputs)
    return {_NAMES.get(name, name): value for name, value in given.items()}
'''

_TOP: Final = ("AgentResult", "ChatModel", "Minions", "RunEvent", "SecretRef")
_TYPING: Final = ("Final", "Literal", "NotRequired", "TypeAlias", "TypedDict", "Unpack", "cast")


def _imports(body: str) -> Iterator[str]:
    """The imports of what the text names, in the order of linters."""
    words = set(re.findall(r"\w+", body))

    def used(*names: str) -> str:
        return ", ".join(name for name in names if name in words)

    yield from ("", "from __future__ import annotations", "")
    if names := used("Mapping", "Sequence"):
        yield f"from collections.abc import {names}"
    yield "from pathlib import Path"
    yield f"from typing import {used(*_TYPING)}"
    yield ""
    yield "from attrs import frozen"
    yield ""
    yield "import minions"
    yield f"from minions import {used(*_TOP)}"
    yield "from minions.events import RunStream"
    yield f"from minions.recipes import {used('InputValue', 'JsonValue')}"
