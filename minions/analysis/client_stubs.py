"""The typed client of a recipe as Python text: its inputs, its output, its steps, its events."""

from __future__ import annotations

import hashlib
import itertools
import keyword
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

from attrs import field, frozen

from minions.data.json_values import JsonValue
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


# --- python types for the values of JSON Schemas -------------------------------------------------


ANY_JSON: Final = "JsonValue"
"""The hint for a value of which nothing is known."""
_LEAVES: Final[Mapping[str, str]] = {
    "string": "str",
    "integer": "int",
    "number": "float",
    "boolean": "bool",
    "null": "None",
}
_MOST_LEVELS: Final = 40
"""Levels of a schema; deeper values are any JSON."""
_MOST_CLASSES: Final = 1_000
_MOST_PARTS: Final = 20_000
"""Parts of all schemas together: what recipes within recipes give may repeat one many times over.
"""
_LONGEST_UNION: Final = 200
"""Members of a union or of an enumeration."""


@frozen(kw_only=True)
class TypeField:
    """A member of an object."""

    name: str
    hint: str
    is_required: bool
    doc: str = ""
    """One line on its meaning; empty: none."""


@frozen(kw_only=True)
class TypedClass:
    """A class of `TypedDict`."""

    name: str
    fields: tuple[TypeField, ...]
    doc: str = ""

    def lines(self) -> Iterator[str]:
        """The class as Python text."""
        if all(is_field_name(each.name) for each in self.fields):
            yield f"class {self.name}(TypedDict):"
            yield f'    """{self.doc or "A JSON object."}"""'
            yield ""
            for each in self.fields:
                yield f"    {each.name}: {_of_field(each)}"
                if each.doc:
                    yield f'    """{each.doc}"""'
            return
        yield f"{self.name} = TypedDict("
        yield f'    "{self.name}",'
        yield "    {"
        for each in self.fields:
            yield f"        {each.name!r}: {_of_field(each)!r},"
        yield "    },"
        yield ")"
        yield f'"""{self.doc or "A JSON object, some of whose keys are no names in Python."}"""'


def _of_field(each: TypeField) -> str:
    return each.hint if each.is_required else f"NotRequired[{each.hint}]"


@frozen
class SchemaTypes:
    """Collects the classes that hints need. Names are unique, and the same for the same schemas."""

    classes: dict[str, TypedClass] = field(factory=dict)
    """By name, in the order in which they were needed first."""
    _taken: set[str] = field(factory=set)
    referred: dict[tuple[int, str], tuple[str, ...]] = field(factory=dict)
    """What references lead to, by their whole schema: it may contain itself."""
    _numbers: Iterator[int] = field(factory=itertools.count)
    """Numbers the parts that are read."""

    def reserve(self, *names: str) -> None:
        """Keep names from being given to classes."""
        self._taken.update(names)

    def hint(self, schema: JsonSchema, name: str, *, is_input: bool = False) -> str:
        """The hint for values of the schema.

        Args:
            name: What they are, for names of classes.
            is_input: Whether callers give them: lists may then be any sequence.
        """
        return _join(_Reader(self, schema, is_input=is_input).parts(schema, name, 0))

    def add(self, name: str, fields: Sequence[TypeField], doc: str = "") -> None:
        """Add a class under a name that was reserved or made for it."""
        self.classes[name] = TypedClass(name=name, fields=tuple(fields), doc=doc)

    def is_full(self) -> bool:
        """Whether so many parts were read that the others are any JSON; counts one more."""
        return next(self._numbers) >= _MOST_PARTS

    def new_name(self, words: str) -> str:
        """A name that no other class has."""
        name = unique(class_name(words), self._taken)
        self._taken.add(name)
        return name


@frozen
class _Reader:
    """Reads one whole schema, into which its references point. Hints are the members of a union."""

    types: SchemaTypes
    root: JsonSchema
    is_input: bool = field(kw_only=True)

    def parts(self, node: JsonValue, name: str, level: int) -> tuple[str, ...]:
        """The hint for a part of the schema."""
        if not isinstance(node, Mapping) or level > _MOST_LEVELS or self.types.is_full():
            return (ANY_JSON,)
        if "$ref" in node:
            return self._refer(node["$ref"], name, level)
        if "const" in node:
            return _literals([node["const"]])
        if isinstance(choices := node.get("enum"), list | tuple):
            return _literals(choices)
        for key in ("anyOf", "oneOf"):
            if isinstance(sides := node.get(key), list | tuple):
                return self._any_of(sides, name, level)
        return self._of_kinds(node, name, level)

    def _any_of(self, sides: Sequence[JsonValue], name: str, level: int) -> tuple[str, ...]:
        if len(sides) > _LONGEST_UNION:
            return (ANY_JSON,)
        return tuple(part for side in sides for part in self.parts(side, name, level + 1))

    def _of_kinds(self, node: Mapping[str, JsonValue], name: str, level: int) -> tuple[str, ...]:
        kind = node.get("type")
        if kind is None and "properties" in node:
            kind = "object"
        kinds = [kind] if isinstance(kind, str) else kind
        if not isinstance(kinds, list | tuple):
            return (ANY_JSON,)
        return tuple(self._of_kind(str(each), node, name, level) for each in kinds)

    def _of_kind(self, kind: str, node: Mapping[str, JsonValue], name: str, level: int) -> str:
        if kind == "array":
            return self._list(node, name, level)
        if kind == "object":
            return self._object(node, name, level)
        return _LEAVES.get(kind, ANY_JSON)

    def _list(self, node: Mapping[str, JsonValue], name: str, level: int) -> str:
        first = node.get("prefixItems")
        sides = list(first) if isinstance(first, list | tuple) else []
        rest = node.get("items", {})
        sides += [rest] if rest is not False else []
        item = _join(self._any_of(sides, f"{name} item", level))
        return f"Sequence[{item}]" if self.is_input else f"list[{item}]"

    def _object(self, node: Mapping[str, JsonValue], name: str, level: int) -> str:
        properties = node.get("properties")
        if isinstance(properties, Mapping) and properties:
            if len(self.types.classes) < _MOST_CLASSES:
                return self._class(node, properties, self.types.new_name(name), level)
            node = {}
        others = node.get("additionalProperties", {})
        value = _join(self.parts(others, f"{name} value", level + 1))
        return f"Mapping[str, {value}]" if self.is_input else f"dict[str, {value}]"

    def _class(
        self,
        node: Mapping[str, JsonValue],
        properties: Mapping[str, JsonValue],
        name: str,
        level: int,
    ) -> str:
        required = node.get("required")
        sure = required if isinstance(required, list | tuple) else ()
        fields = [
            TypeField(
                name=key,
                hint=_join(self.parts(value, f"{name} {key}", level + 1)),
                is_required=key in sure,
                doc=_doc(value),
            )
            for key, value in properties.items()
        ]
        self.types.add(name, fields, _doc(node))
        return name

    def _refer(self, reference: JsonValue, name: str, level: int) -> tuple[str, ...]:
        """The hint of what a local reference leads to; a class that contains itself by its name."""
        known, key = self.types.referred, (id(self.root), str(reference))
        if key in known:
            return known[key]
        target = _target(reference, self.root)
        properties = target.get("properties") if isinstance(target, Mapping) else None
        if isinstance(target, Mapping) and isinstance(properties, Mapping) and properties:
            made = self.types.new_name(str(reference).rpartition("/")[2] or name)
            known[key] = (made,)
            self._class(target, properties, made, level)
            return known[key]
        known[key] = (ANY_JSON,)  # while it is read: what contains itself without a class
        known[key] = self.parts(target, name, level + 1)
        return known[key]


def _target(reference: JsonValue, root: JsonSchema) -> JsonValue:
    """What a reference within the schema leads to; None: nothing."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    node: JsonValue = root
    for part in reference.removeprefix("#").strip("/").split("/"):
        name = part.replace("~1", "/").replace("~0", "~")
        if name:
            node = node.get(name) if isinstance(node, Mapping) else None
    return node


def _literals(values: Sequence[JsonValue]) -> tuple[str, ...]:
    """The values that a hint can say; for any other the type."""
    if len(values) > _LONGEST_UNION or any(isinstance(each, Mapping | list) for each in values):
        return (ANY_JSON,)
    plain = [repr(each) for each in values if isinstance(each, str | int)]
    return (
        *([f"Literal[{', '.join(dict.fromkeys(plain))}]"] if plain else []),
        *(["float"] if any(isinstance(each, float) for each in values) else []),
        *(["None"] if None in values else []),
    )


def _join(parts: Sequence[str]) -> str:
    """The members as one hint, each once; any JSON takes all others in."""
    found = dict.fromkeys(parts)
    if not found or ANY_JSON in found:
        return ANY_JSON
    others = [part for part in found if part != "None"]
    return " | ".join([*others, *(["None"] if "None" in found else [])])


def _doc(node: JsonValue) -> str:
    text = node.get("description") if isinstance(node, Mapping) else None
    return doc_text(text) if isinstance(text, str) else ""


# --- python names and texts made of words that anybody may have written --------------------------


_LONGEST: Final = 60
"""Characters of a name that is made."""
_LONGEST_DOC: Final = 300
_WORD: Final = re.compile(r"[A-Za-z0-9]+")


def class_name(words: str) -> str:
    """The words as the name of a class: `order-lines` is `OrderLines`."""
    parts = [each[:1].upper() + each[1:] for each in _WORD.findall(words)]
    name = "".join(parts)[:_LONGEST]
    return name if name[:1].isalpha() and not keyword.iskeyword(name) else f"Item{name}"


def field_name(words: str) -> str:
    """The words as the name of an argument: `order-lines` is `order_lines`, `class` is `class_`."""
    name = "_".join(_WORD.findall(words))[:_LONGEST]
    name = name if name[:1].isalpha() else f"item_{name}"
    return f"{name}_" if keyword.iskeyword(name) else name


def is_field_name(name: str) -> bool:
    """Whether a class may have a field of that name, which Python leaves as it is."""
    is_plain = name.isascii() and name.isidentifier() and not keyword.iskeyword(name)
    return is_plain and not name.startswith("_")


def unique(name: str, taken: Collection[str]) -> str:
    """The name, with a number where it is taken."""
    number, made = 2, name
    while made in taken:
        number, made = number + 1, f"{name}{number}"
    return made


def doc_text(text: str) -> str:
    """The text on one line, for the inside of a docstring: it cannot end it or escape anything."""
    line = " ".join(text.split())
    line = line if len(line) <= _LONGEST_DOC else f"{line[: _LONGEST_DOC - 1]}…"
    shown = "".join(each if each.isprintable() else "�" for each in line)
    return shown.replace("\\", "\\\\").replace('"', "'")
