"""Reports on faults of recipes for programs: JSON, workflow annotations, SARIF 2.1.0."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from minions import __version__
from minions.data.errors import Fault
from minions.data.json_values import JsonValue
from minions.interfaces.cli.console.render import fault_to_json


def json_report(by_recipe: Mapping[str, Sequence[Fault]]) -> dict[str, JsonValue]:
    """The faults of each recipe, which is named as the caller named it."""
    return {
        "recipes": [
            {
                "recipe": name,
                "ok": all(fault.is_warning for fault in faults),
                "faults": [fault_to_json(fault) for fault in faults],
            }
            for name, faults in by_recipe.items()
        ]
    }


def annotation(fault: Fault) -> str:
    """A line that a workflow runner shows beside the changed line."""
    level = "warning" if fault.is_warning else "error"
    end = fault.column + fault.length - 1
    properties = {
        "file": fault.file,
        "line": str(fault.line),
        "col": str(fault.column),
        "endColumn": str(end),
        "title": fault.code,
    }
    return workflow_command(level, properties, _words(fault))


def workflow_command(level: str, properties: Mapping[str, str], message: str) -> str:
    """A line with which a workflow runner shows a message at a place.

    Source: the workflow command `::error file=…,line=…,col=…,title=…::message`; `%`, line ends and,
    in properties, `:` and `,` are percent-encoded.
    """
    shown = ",".join(f"{name}={_encode(value, ':,')}" for name, value in properties.items())
    return f"::{level} {shown}::{_encode(message)}"


def _encode(text: str, more: str = "") -> str:
    for sign in ("%", "\r", "\n", *more):
        text = text.replace(sign, f"%{ord(sign):02X}")
    return text


def _words(fault: Fault) -> str:
    parts = [fault.message, fault.label, f"help: {fault.help}" if fault.help else None]
    return "; ".join(part for part in parts if part)


def sarif_report(faults: Sequence[Fault]) -> dict[str, JsonValue]:
    """A SARIF log with one run, and a rule for each code that occurs."""
    codes = list(dict.fromkeys(fault.code for fault in faults))
    return {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "minions",
                        "version": __version__,
                        "rules": [{"id": code} for code in codes],
                    }
                },
                "columnKind": "unicodeCodePoints",
                "results": [_result(fault, codes.index(fault.code)) for fault in faults],
            }
        ],
    }


def _result(fault: Fault, rule: int) -> dict[str, JsonValue]:
    region: dict[str, JsonValue] = {
        "startLine": fault.line,
        "startColumn": fault.column,
        "endColumn": fault.column + fault.length,
    }
    location: dict[str, JsonValue] = {
        "physicalLocation": {"artifactLocation": {"uri": fault.file}, "region": region}
    }
    return {
        "ruleId": fault.code,
        "ruleIndex": rule,
        "level": "warning" if fault.is_warning else "error",
        "message": {"text": _words(fault)},
        "locations": [location],
    }
