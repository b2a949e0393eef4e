"""What a version promises: its public names, keys of recipes, HTTP, rows of the journal, codes of
errors and commands, as release/surface.yaml holds them from the last release on.

`python -m release.surface` records those of this version, as a release begins; it refuses to forget
what was promised before. tests/test_compatibility.py compares the code with what is recorded.
docs/compatibility.md says what is kept, and how something goes.
"""

from __future__ import annotations

import importlib
import inspect
import runpy
import sys
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import click
import msgspec
import yaml

import minions
from minions.contracts.journal.facts import FACTS
from minions.interfaces.cli.main import command as commands
from minions.interfaces.server.app import api_document
from minions.recipe.editor_schema import recipe_schema
from release.changelog import unannounced

ROOT: Final = Path(__file__).parents[1]
RECORD: Final = Path(__file__).with_name("surface.yaml")
CHANGELOG: Final = ROOT / "CHANGELOG.md"

Members: TypeAlias = dict[str, str]
"""What an object offers, by name, in order; each with the JSON types that it may have, or `*` where
it is a parameter that is given by name alone, and `!` at the end where it has to be given."""
Part: TypeAlias = dict[str, Members]
"""Objects of one kind, by name."""
Surface: TypeAlias = dict[str, Part]
"""Parts by name."""
Schema: TypeAlias = Mapping[str, Any]  # Any: JSON schema

GIVEN: Final = "http answers"
"""The part that is read by others: its types may become fewer, those of all others more."""
_ATTRIBUTES: Final = " attributes"
_SUBCLASS: Final = " subclass"
"""How names of objects end that hold the attributes of a class, and what a subclass has to have."""
_REQUIRED: Final = "!"
_BY_NAME: Final = "*"
_MARKS: Final = _REQUIRED + _BY_NAME


def surface() -> Surface:
    """That of the code as it is."""
    document = api_document()
    taken, given = _http_objects(document)
    codes = runpy.run_path(str(ROOT / "docs" / "generate_errors.py"))["words"]()
    return {
        "python": dict(_python_objects()),
        "recipe": dict(_recipe_objects()),
        "http requests": taken,
        GIVEN: given,
        "journal": dict(_fact_objects()),
        "errors": {"codes": {code: "" for group in codes.values() for code in sorted(group)}},
        "commands": dict(_command_objects(commands, "minions")),
    }


def broken(before: Surface, now: Surface) -> Iterator[str]:
    """The promises that do not hold any more, each as `part object member`."""
    for part, objects in before.items():
        for name, members in objects.items():
            known = now.get(part, {}).get(name)
            if known is None:
                yield f"{part} {name}"
                continue
            for member, types in members.items():
                if member not in known:
                    is_broken = not name.endswith(_SUBCLASS)  # one thing less to write
                else:
                    is_broken = not _holds(types, known[member], part == GIVEN)
                if is_broken:
                    yield f"{part} {name} {member}"
            if part == GIVEN:
                continue
            for member, types in known.items():
                if member not in members and types.endswith(_REQUIRED):
                    yield f"{part} {name} {member}"
            if part == "python" and not name.endswith((_ATTRIBUTES, _SUBCLASS)):
                pairs = zip(_in_order(members), _in_order(known), strict=False)
                yield from (f"{part} {name} {one}" for one, other in pairs if one != other)


def _holds(before: str, now: str, is_given: bool) -> bool:
    """Whether who relies on the one can do with the other."""
    if now.endswith(_REQUIRED) and not before.endswith(_REQUIRED) and not is_given:
        return False
    had, has = (set(each.removesuffix(_REQUIRED).split()) for each in (before, now))
    if is_given:
        return has <= had
    return has <= had if _BY_NAME in had | has else had <= has


def _in_order(members: Members) -> list[str]:
    """The parameters that may be given without their names."""
    return [name for name, mark in members.items() if not mark.startswith(_BY_NAME)]


# --- Python ---------------------------------------------------------------------------------------


def _python_objects() -> Iterator[tuple[str, Members]]:
    public = runpy.run_path(str(ROOT / "docs" / "generate_api.py"))["MODULES"]
    for module in public:
        for name in importlib.import_module(module).__all__:
            value = getattr(importlib.import_module(module), name)
            yield from _of_value(f"{module}.{name}", value)


def _of_value(name: str, value: object) -> Iterator[tuple[str, Members]]:
    if not inspect.isclass(value):
        yield name, _parameters(value) if callable(value) else {}
        return
    own = {
        member: held
        for each in reversed(value.__mro__)
        if each.__module__.partition(".")[0] == "minions"
        for member, held in vars(each).items()
        if not member.startswith("_")
    }
    is_made = not inspect.isabstract(value) and not issubclass(value, BaseException | Enum)
    parameters = _parameters(value) if is_made else Members()
    yield name, parameters
    abstract = getattr(value, "__abstractmethods__", ())
    if abstract:  # whoever subclasses it has to have them
        yield f"{name}{_SUBCLASS}", dict.fromkeys(sorted(abstract), _REQUIRED)
    attributes = Members()
    for member, held in sorted(own.items()):
        function = getattr(held, "__func__", held)
        if inspect.isfunction(function):
            yield f"{name}.{member}", _parameters(function)
        elif member not in parameters:
            attributes[member] = ""
    if attributes:
        yield f"{name}{_ATTRIBUTES}", attributes


def _parameters(value: Callable[..., object]) -> Members:
    try:
        parameters = inspect.signature(value).parameters.values()
    except (TypeError, ValueError):
        return {}
    found = Members()
    for each in parameters:
        if each.name in ("self", "cls") or each.name.startswith("_"):
            continue
        many = each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
        mark = _BY_NAME if many or each.kind is each.KEYWORD_ONLY else ""
        found[each.name] = mark + (_REQUIRED if each.default is each.empty and not many else "")
    return found


# --- JSON schemas ---------------------------------------------------------------------------------


def _recipe_objects() -> Iterator[tuple[str, Members]]:
    schema: Schema = recipe_schema()
    yield from _schema_objects("recipe", schema, schema)
    for name, each in schema["$defs"].items():
        yield from _schema_objects(name, each, schema)


def _http_objects(document: Schema) -> tuple[Part, Part]:
    taken, given = Part(), Part()
    requests, answers = set[str](), set[str]()
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            name = f"{method.upper()} {path}"
            taken[name] = {
                f"{each['in']} {each['name']}": _types(each["schema"], document)
                + (_REQUIRED if each.get("required") else "")
                for each in operation.get("parameters", ())
            }
            given[name] = dict.fromkeys(sorted(operation["responses"]), "")
            requests |= _references(operation.get("requestBody", {}))
            answers |= _references(operation["responses"])
    schemas = document["components"]["schemas"]
    for names, part in ((requests, taken), (answers, given)):
        rest = sorted(names)
        for name in rest:  # which grows
            part.update(_schema_objects(name, schemas[name], document))
            more = _references(schemas[name]).difference(rest)
            rest += sorted(more)
    return taken, given


def _schema_objects(name: str, schema: Schema, root: Schema) -> Iterator[tuple[str, Members]]:
    """The objects that a schema describes, without those that it refers to."""
    if "enum" in schema:
        yield f"{name} values", {str(each): "" for each in schema["enum"]}
    if "properties" in schema:
        required = schema.get("required", ())
        yield (
            name,
            {
                member: _types(each, root) + (_REQUIRED if member in required else "")
                for member, each in schema["properties"].items()
            },
        )
        for member, each in schema["properties"].items():
            yield from _schema_objects(f"{name}.{member}", each, root)
    for at, each in enumerate((*schema.get("oneOf", ()), *schema.get("anyOf", ()))):
        kinds = [key for key in each.get("required", ()) if key != "id"]
        yield from _schema_objects(f"{name} {' '.join(kinds) or at}", each, root)
    for word, mark in (("items", "[]"), ("additionalProperties", ".*")):
        if isinstance(inner := schema.get(word), dict):
            yield from _schema_objects(f"{name}{mark}", inner, root)


def _types(schema: Schema, root: Schema) -> str:
    """The JSON types that a value may have, in order."""
    return " ".join(sorted(_type_names(schema, root)))


def _type_names(schema: Schema, root: Schema) -> set[str]:
    if (reference := schema.get("$ref")) is not None:
        at: Schema = root
        for key in reference.removeprefix("#/").split("/"):
            at = at[key]
        return _type_names(at, root)
    if (variants := schema.get("oneOf") or schema.get("anyOf")) and "type" not in schema:
        return set[str]().union(*(_type_names(each, root) for each in variants))
    named = schema.get("type", ())
    return {named} if isinstance(named, str) else set(named)


def _references(part: object) -> set[str]:
    if isinstance(part, dict):
        found = set[str]().union(*map(_references, part.values()))
        reference = part.get("$ref")
        return found | {reference.rpartition("/")[2]} if isinstance(reference, str) else found
    if isinstance(part, list):
        return set[str]().union(*map(_references, part))
    return set()


# --- journal and commands -------------------------------------------------------------------------


def _fact_objects() -> Iterator[tuple[str, Members]]:
    """A field that has to be there could not be read from rows that were stored without it."""
    for fact in FACTS:
        fields = msgspec.structs.fields(fact)
        yield (
            f"{fact.kind} {fact.state}",
            {each.name: _REQUIRED if each.required else "" for each in fields},
        )


def _command_objects(command: click.Command, name: str) -> Iterator[tuple[str, Members]]:
    yield (
        name,
        {
            word: _REQUIRED if each.required else ""
            for each in command.params
            for word in (
                (each.human_readable_name,)
                if isinstance(each, click.Argument)
                else (*each.opts, *each.secondary_opts)
            )
        },
    )
    if isinstance(command, click.Group):
        context = click.Context(command)
        for each in command.list_commands(context):
            found = command.get_command(context, each)
            assert found is not None, each
            yield from _command_objects(found, f"{name} {each}")


# --- the record -----------------------------------------------------------------------------------


class Record(NamedTuple):
    """What a version promised."""

    version: str
    surface: Surface


def recorded() -> Record:
    """That of the last release."""
    read = yaml.safe_load(RECORD.read_text("utf-8"))
    surface = {
        part: {
            name: members if isinstance(members, dict) else dict(map(_member, members))
            for name, members in objects.items()
        }
        for part, objects in read["surface"].items()
    }
    return Record(read["version"], surface)


def _member(text: str) -> tuple[str, str]:
    name = text.rstrip(_MARKS)
    return name, text[len(name) :]


def _written(members: Members) -> Members | list[str]:
    """Names alone where no types are known."""
    if any(types.strip(_MARKS) for types in members.values()):
        return members
    return [f"{name}{mark}" for name, mark in members.items()]


def record() -> None:
    """Write what this version promises.

    Raises:
        SystemExit: It does not keep what was promised before.
    """
    now = surface()
    if RECORD.exists():
        changelog = CHANGELOG.read_text("utf-8")
        lost = unannounced(broken(recorded().surface, now), changelog, minions.__version__)
        if lost:
            sys.exit("Promised, and not kept (docs/compatibility.md):\n" + "\n".join(lost))
    written = {
        part: {name: _written(members) for name, members in objects.items()}
        for part, objects in now.items()
    }
    text = yaml.dump(
        {"version": minions.__version__, "surface": written},
        default_flow_style=None,
        sort_keys=False,
        width=100,
    )
    RECORD.write_text(text, "utf-8")


if __name__ == "__main__":
    record()
