"""The page of the built-in tools names each of them as it is."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import cast

from minions.app.wiring.built_in_extensions import built_in_tools, built_in_toolsets
from minions.contracts.protected_files import CONFIGURES, HARMLESS, SECRETS
from minions.contracts.tools import ToolSpec
from minions.data.json_values import JsonValue, dumps
from minions.data.schema import JsonSchema

PAGE = Path(__file__).parents[2] / "docs" / "tools.md"


def row(spec: ToolSpec, prefix: str = "") -> str:
    properties = cast("Mapping[str, JsonSchema]", spec.parameters["properties"])
    parameters = ", ".join(
        f"{name} = {dumps(schema['default'])}" if "default" in schema else name
        for name, schema in properties.items()
    )
    return f"| `{prefix}{spec.name}({parameters})` | {spec.effect}"


def test_every_tool_stands_there_with_its_parameters_and_effect() -> None:
    text = PAGE.read_text("utf-8")
    rows = [row(tool.spec) for tool in built_in_tools()]
    toolsets = built_in_toolsets()
    for name in ("documents", "http", "data", "shell", "git"):
        rows += [row(spec, f"{name}__") for spec in toolsets[name].specs]
    assert [line for line in rows if line not in text] == []


def test_every_option_stands_there_with_its_default() -> None:
    text = PAGE.read_text("utf-8")
    rows = [
        f"| `{name}` | `{dumps(schema['default'])}` |"
        for toolset in ("documents", "http", "shell", "git")
        for name, schema in cast(
            "Mapping[str, Mapping[str, JsonValue]]",
            built_in_toolsets()[toolset].options["properties"],
        ).items()
        if "default" in schema
    ]
    assert len(rows) == 8 + 5 + 9 + 9
    assert [line for line in rows if line not in text] == []


def test_what_configures_and_what_is_secret_stands_there_as_the_tools_know_it() -> None:
    text = PAGE.read_text("utf-8")
    for name, patterns in (*CONFIGURES.items(), *SECRETS.items()):
        shown = " ".join(f"`{each}`" for each in patterns.split())
        assert f"| {name} | {shown} |" in text
    assert all(f"`{each}`" in text for each in HARMLESS.split())
