"""Fills the tables of `recipes.md` from the code that the loader and the command line use.

`python docs/generate_recipes.py` rewrites the page; what stands between the marks is replaced.
"""

from __future__ import annotations

import functools
import re
import typing
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final, cast

import attrs

from minions.adapters.tools.function_tool import FunctionTool
from minions.app.settings.setting_sources import setting_types
from minions.app.settings.settings import Settings
from minions.app.wiring.built_in_extensions import built_in_extensions
from minions.contracts.context import Limits
from minions.contracts.retry_config import RetryConfig
from minions.contracts.tools import Tool, Toolset
from minions.data.hint_schemas import schema_of
from minions.data.json_values import JsonValue, dumps
from minions.data.schema import JsonSchema
from minions.recipe.expressions.filters import FILTERS, TESTS
from minions.recipe.kinds.goal_kind import COMPLETION
from minions.recipe.kinds.kind_registry import STEP_KINDS
from minions.recipe.language import recipe_keys as keys
from minions.recipe.language import step_keys
from minions.recipe.language import step_keys as model_keys
from minions.recipe.language import step_keys as recipe_test_keys
from minions.recipe.text.key_types import Key, Table

PAGE: Final = Path(__file__).with_name("recipes.md")
_MARK: Final = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
_WORDS: Final = {
    "string": "text",
    "boolean": "true or false",
    "number": "number",
    "integer": "whole number",
    "object": "mapping",
    "array": "list",
}


def page(text: str) -> str:
    """The page with every generated part made anew."""
    return _MARK.sub(lambda found: f"{found[1]}\n{_PARTS[found[2]]()}\n\n{found[3]}", text)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


# --- keys --------------------------------------------------------------------------------------


def _keys(table: Table, defaults: Mapping[str, object] | None = None) -> str:
    served = [key for key in table.keys if key.is_served]
    rows = [(_name(key), _takes(key), _meaning(key, defaults or {})) for key in served]
    text = _table(("key", "takes", "meaning"), rows)
    later = [f"`{key.name}`" for key in table.keys if not key.is_served]
    return f"{text}\n\nNot served yet, and refused by name: {', '.join(later)}." if later else text


def _name(key: Key) -> str:
    aliases = "".join(f" or `{alias}`" for alias in key.aliases)
    return f"`{key.name}`{aliases}{' (required)' if key.is_required else ''}"


def _takes(key: Key) -> str:
    if key.choices:
        return ", ".join(f"`{choice}`" for choice in key.choices)
    text = " or ".join(_WORDS[kind] for kind in key.types) or "anything"
    if key.minimum is not None:
        text += f" from {key.minimum:g}"
    return f"{text} above {key.above:g}" if key.above is not None else text


def _meaning(key: Key, defaults: Mapping[str, object]) -> str:
    if key.name not in defaults:
        return key.description
    default = defaults[key.name]
    said = "no limit" if default is None else dumps(cast("JsonValue", default))
    return f"{key.description} Default: {said}."


def _recipe() -> str:
    return _keys(keys.RECIPE, {"version": "1", "execution_mode": "sequential", "max_parallel": 16,
                               "on_failure": "stop"})  # fmt: skip


def _limits() -> str:
    return _keys(keys.LIMITS, attrs.asdict(Limits()))


def _retry() -> str:
    return _keys(keys.RETRY, attrs.asdict(RetryConfig()))


# --- tools -------------------------------------------------------------------------------------


def _tools(toolset: Toolset) -> str:
    options = cast("Mapping[str, JsonSchema]", toolset.options["properties"])
    rows = [
        (
            f"`{name}`",
            f"`{dumps(schema['default'])}`",
            str(schema.get("description", "")),
        )
        for name, schema in options.items()
    ]
    opened = toolset.open({}, toolset.name)
    tools = _table(("tool", "effect", "parameters", "gives"), [_tool(tool) for tool in opened])
    if not rows:
        return tools
    return f"{_table(('option', 'default', 'meaning'), rows)}\n\n{tools}"


def _tool(tool: Tool) -> tuple[str, ...]:
    spec = tool.spec
    properties = cast("Mapping[str, JsonSchema]", spec.parameters["properties"])
    parameters = ", ".join(f"`{_parameter(name, schema)}`" for name, schema in properties.items())
    return f"`{spec.name}`", spec.effect.value, parameters, f"`{_gives(tool)}`"


def _parameter(name: str, schema: JsonSchema) -> str:
    return f"{name} = {dumps(schema['default'])}" if "default" in schema else name


def _gives(tool: Tool) -> str:
    assert isinstance(tool, FunctionTool)  # noqa: S101  # the built-in tools are
    schema = schema_of(typing.get_type_hints(tool.__wrapped__)["return"])
    return _shape(schema, cast("Mapping[str, JsonSchema]", schema.get("$defs", {})))


def _shape(schema: JsonSchema, definitions: Mapping[str, JsonSchema]) -> str:
    """`{path, entries: [{name}]}`; what is plain is only named."""
    reference = schema.get("$ref")
    if isinstance(reference, str):
        schema = definitions[reference.rpartition("/")[2]]
    if "items" in schema:
        return f"[{_shape(cast('JsonSchema', schema['items']), definitions)}]".replace("[]", "[…]")
    if "properties" not in schema:
        return ""
    properties = cast("Mapping[str, JsonSchema]", schema["properties"])
    parts = []
    for name, inner in properties.items():
        shape = _shape(inner, definitions)
        parts.append(f"{name}: {shape}" if shape else name)
    return f"{{{', '.join(parts)}}}"


def _toolset(name: str) -> Callable[[], str]:
    return lambda: _tools(built_in_extensions().toolsets[name])


# --- the rest ----------------------------------------------------------------------------------


def _settings() -> str:
    rows = [
        (f"`{field.name}`", _variable(field.name), str(field.metadata["description"]))
        for field in attrs.fields(Settings)
    ]
    return _table(("key", "environment", "meaning"), rows)


def _variable(name: str) -> str:
    return "" if setting_types()[name].is_table else f"`MINIONS_{name.upper()}`"


def _functions() -> str:
    filters = ", ".join(f"`{name}`" for name in sorted((*FILTERS, "default")))
    tests = ", ".join(f"`{name}`" for name in sorted((*TESTS, "defined", "undefined")))
    return f"Filters: {filters}.\n\nTests: {tests}."


_DEFAULTS: Final[Mapping[str, Mapping[str, object]]] = {"goal": {"tool_failure": "fail"}}
"""Of keys whose default is not in their description, by kind."""


def _kinds() -> str:
    return f"Kinds are: {', '.join(f'`{kind.name}`' for kind in STEP_KINDS)}."


_PARTS: Final[Mapping[str, Callable[[], str]]] = {
    "recipe": _recipe,
    "secret": lambda: _keys(keys.SECRET_INPUT),
    "kinds": _kinds,
    "step": lambda: _keys(step_keys.STEP),
    **{
        f"kind_{kind.name}": functools.partial(_keys, kind.table, _DEFAULTS.get(kind.name))
        for kind in STEP_KINDS
    },
    "test": lambda: _keys(recipe_test_keys.TEST),
    "expect": lambda: _keys(recipe_test_keys.EXPECT),
    "recorded_call": lambda: _keys(recipe_test_keys.RECORDED_CALL),
    "model": lambda: _keys(model_keys.MODEL),
    "permissions": lambda: _keys(keys.PERMISSIONS),
    "limits": _limits,
    "retry": _retry,
    "completion": lambda: _keys(COMPLETION),
    "files": _toolset("files"),
    "time": _toolset("time"),
    "settings": _settings,
    "functions": _functions,
}


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text("utf-8")), "utf-8")
