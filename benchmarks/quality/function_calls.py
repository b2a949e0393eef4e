"""Function calls of the Berkeley leaderboard (BFCL, version 4): its questions, and its scoring.

The data is read where the package `bfcl-eval` (Apache-2.0) lies; nothing of it is imported, since
it needs sixty others. The rules of its AST check are written here again; `disagreements` compares
them with the package's own.
"""

from __future__ import annotations

import copy
import json
import re
import sys
import types
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from attrs import frozen

from minions.data.json_values import JsonValue
from minions.data.schema import JsonSchema

SETS: Final = ("simple_python", "multiple", "parallel", "irrelevance")
"""In `irrelevance` the right answer is no call."""


@frozen
class Call:
    """A call of a function."""

    name: str
    arguments: Mapping[str, JsonValue]


@frozen(kw_only=True)
class CallQuestion:
    """A question with functions, and the calls that are right."""

    id: str
    group: str
    text: str
    functions: Sequence[Mapping[str, Any]]
    """As in the data, with their own names of types."""
    truth: Sequence[Mapping[str, Mapping[str, Sequence[Any]]]]
    """For each call its name, and the values that each argument may have; "": it may be missing."""

    def tools(self) -> list[tuple[str, str, dict[str, JsonValue]]]:
        """Name, description and JSON Schema of each function, as servers take them."""
        return [
            (plain_name(each["name"]), each["description"], _json_schema(each["parameters"]))
            for each in self.functions
        ]

    def is_right(self, calls: Sequence[Call]) -> bool:
        """Whether these are the calls, in any order."""
        left = list(calls)
        if len(left) != len(self.truth):
            return False
        for truth in self.truth:
            ((name, values),) = truth.items()
            function = next(each for each in self.functions if each["name"] == name)
            fit = next((at for at, each in enumerate(left) if _fits(each, function, values)), None)
            if fit is None:
                return False
            del left[fit]  # by its place: equal calls may stand twice
        return True


def plain_name(name: str) -> str:
    """The name as servers take it, which have no dots in names."""
    return name.replace(".", "_")


def call_questions(data: Path) -> list[CallQuestion]:
    """The four sets.

    Args:
        data: The folder `bfcl_eval/data`.
    Raises:
        FileNotFoundError: It is not there.
    """
    found = []
    for group in SETS:
        answers = {}
        if group != "irrelevance":
            lines = (data / "possible_answer" / f"BFCL_v4_{group}.json").read_text("utf-8")
            answers = {
                each["id"]: each["ground_truth"] for each in map(json.loads, lines.splitlines())
            }
        for line in (data / f"BFCL_v4_{group}.json").read_text("utf-8").splitlines():
            task = json.loads(line)
            found.append(
                CallQuestion(
                    id=task["id"],
                    group=group,
                    text=task["question"][0][-1]["content"],
                    functions=task["function"],
                    truth=answers.get(task["id"], ()),
                )
            )
    return found


_JSON_TYPES: Final = {"dict": "object", "float": "number", "tuple": "array", "any": "string"}


def _json_schema(said: Mapping[str, Any]) -> dict[str, JsonValue]:
    schema: dict[str, JsonValue] = {}
    for key, value in said.items():
        match key:
            case "type":
                schema[key] = _JSON_TYPES.get(value, value)
            case "properties":
                schema[key] = {name: _json_schema(each) for name, each in value.items()}
            case "items":
                schema[key] = _json_schema(value)
            case "description" | "enum" | "required":
                schema[key] = value
            case _:
                pass  # `default`, `optional`: no server reads them
    return schema


# --- scoring ------------------------------------------------------------------------------------

_TYPES: Final[Mapping[str, type]] = {
    "string": str,
    "integer": int,
    "float": float,
    "boolean": bool,
    "array": list,
    "tuple": list,
    "dict": dict,
    "any": str,
}


def _fits(call: Call, function: Mapping[str, Any], values: Mapping[str, Sequence[Any]]) -> bool:
    parameters = function["parameters"]
    if call.name != plain_name(function["name"]):
        return False
    if not set(parameters["required"]) <= set(call.arguments):
        return False
    for name, given in call.arguments.items():
        if name not in parameters["properties"] or name not in values:
            return False
        if not _is_value(given, parameters["properties"][name], values[name]):
            return False
    return all("" in allowed for name, allowed in values.items() if name not in call.arguments)


def _is_value(given: Any, said: Mapping[str, Any], allowed: Sequence[Any]) -> bool:
    expected = _TYPES[said["type"]]
    inner = _TYPES[said["items"]["type"]] if said["type"] in ("array", "tuple") else None
    if said["type"] == "float" and type(given) is int:
        given = float(given)
    if not (variable := _kind_of_value(given, expected, inner, allowed)):
        return False
    if variable == "literal":
        if expected is dict:
            return _is_object(given, allowed)
        if inner is dict:
            return any(
                isinstance(each, list)
                and len(each) == len(given)
                and all(_is_object(one, [other]) for one, other in zip(given, each, strict=True))
                for each in allowed
            )
        if expected is str:
            return _plain(given) in [_plain(each) for each in allowed if isinstance(each, str)]
        if expected is list:
            return [_plain(each) for each in given] in [[*map(_plain, each)] for each in allowed]
    return given in allowed


def _kind_of_value(
    given: Any, expected: type, inner: type | None, allowed: Sequence[Any]
) -> str | None:
    """`literal`, or `variable` where the right answers have another type than is declared; None:
    the type is wrong.
    """
    answers = next((type(each) for each in allowed if each != ""), None)
    is_other = answers is not None and answers is not expected
    items: Sequence[Any] = given if isinstance(given, list) else ()
    if type(given) is expected and (
        inner is None
        or any(
            not isinstance(each, list)
            or all(_kind_of_value(one, inner, None, each) for one in items)
            for each in allowed
        )
    ):
        return "variable" if is_other else "literal"
    # As the package has it: also a list with wrong items, where the right answers are lists.
    return "variable" if answers is not None and type(given) is answers else None


def _is_object(given: Any, allowed: Sequence[Any]) -> bool:
    for right in allowed:
        if right == "" or not isinstance(given, dict):
            continue
        if all(
            name in right and _plain(value) in [*map(_plain, right[name])]
            for name, value in given.items()
        ) and all(name in given or "" in values for name, values in right.items()):
            return True
    return False


def _plain(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    return re.sub(r"[ \,\.\/\-\_\*\^]", "", value).lower().replace("'", '"')


# --- cross-check --------------------------------------------------------------------------------


def right_calls(question: CallQuestion) -> list[Call]:
    """The first of the right answers."""
    calls = []
    for truth in question.truth:
        ((name, values),) = truth.items()
        arguments = {
            each: _first(allowed[0]) for each, allowed in values.items() if allowed[0] != ""
        }
        calls.append(Call(plain_name(name), arguments))
    return calls


def _first(value: Any) -> Any:
    # In objects each key has a list of its values, in lists of objects too.
    if isinstance(value, dict):
        return {key: _first(each[0]) for key, each in value.items() if each and each[0] != ""}
    if isinstance(value, list):
        return [_first(each) for each in value]
    return value


def changed_calls(question: CallQuestion) -> Iterator[list[Call]]:
    """Answers that are right, nearly right, and wrong, by small changes of right ones."""
    calls = right_calls(question)
    yield calls
    yield calls[1:]
    yield [*calls, *calls[:1]]
    yield calls[::-1]
    for at, call in enumerate(calls):
        yield [*calls[:at], Call(call.name + "x", call.arguments), *calls[at + 1 :]]
        yield [*calls[:at], Call(call.name, {**call.arguments, "more": 1}), *calls[at + 1 :]]
        changing: Mapping[str, Any] = call.arguments
        for name, value in changing.items():
            others: list[Any] = [None, "", str(value), [value], "none of these", 0, 1.5, {}]
            if isinstance(value, str):
                others += [value.upper(), value.replace(" ", "-"), value + "."]
            if isinstance(value, int | float) and not isinstance(value, bool):
                others += [value + 1, float(value), int(value)]
            if isinstance(value, list):
                others += [value[::-1], value[1:], [*map(str, value)]]
            if isinstance(value, dict):
                others += [{**value, "more": 1}, dict([*value.items()][1:])]
            for other in others:
                changed = {**call.arguments, name: other}
                yield [*calls[:at], Call(call.name, changed), *calls[at + 1 :]]
            missing = {key: each for key, each in call.arguments.items() if key != name}
            yield [*calls[:at], Call(call.name, missing), *calls[at + 1 :]]


@frozen(kw_only=True)
class CrossCheck:
    """How often the two scorings agree."""

    compared: int
    differ: Sequence[str]
    """Question and calls where they do not."""
    failed: int
    """Answers at which the package's own scoring breaks off with an error: not compared."""


def cross_check(
    questions: Sequence[CallQuestion], data: Path, given: Sequence[tuple[str, Sequence[Call]]] = ()
) -> CrossCheck:
    """Score changed right answers, and what models answered, by both.

    Args:
        data: The folder `bfcl_eval/data`, beside which the package's own scoring lies.
        given: Ids of questions, with calls.
    """
    theirs = _their_scoring(data.parent / "eval_checker" / "ast_eval" / "ast_checker.py")
    by_id = {each.id: each for each in questions}
    pairs: list[tuple[CallQuestion, Sequence[Call]]] = [
        (each, calls) for each in questions if each.truth for calls in changed_calls(each)
    ]
    pairs += [(by_id[each], calls) for each, calls in given if by_id[each].truth]
    differ, failed = [], 0
    for question, calls in pairs:
        output = [{each.name: copy.deepcopy(dict(each.arguments))} for each in calls]
        group = question.group
        try:
            found = theirs(question.functions, output, question.truth, "python", group, "m")
        except Exception:  # noqa: BLE001  # it takes some types for granted
            failed += 1
            continue
        if found["valid"] != question.is_right(calls):
            differ.append(f"{question.id}: {output}")
    return CrossCheck(compared=len(pairs) - failed, differ=differ, failed=failed)


def _their_scoring(path: Path) -> Any:
    """The package's `ast_checker`, with names in the place of the modules that need others."""
    any_model = types.SimpleNamespace(underscore_to_dot=True)
    stubs: dict[str, dict[str, Any]] = {
        "bfcl_eval.constants.enums": {
            "Language": types.SimpleNamespace(PYTHON="python", JAVA="java", JAVASCRIPT="js")
        },
        "bfcl_eval.constants.model_config": {"MODEL_CONFIG_MAPPING": {"m": any_model}},
        "bfcl_eval.constants.type_mappings": {"JAVA_TYPE_CONVERSION": {}, "JS_TYPE_CONVERSION": {}},
    }
    for language in ("java", "js"):
        name = f"bfcl_eval.eval_checker.ast_eval.type_convertor.{language}_type_converter"
        stubs[name] = {f"{language}_type_converter": None}
    kept = {name: sys.modules.get(name) for name in stubs}
    try:
        for name, members in stubs.items():
            module = types.ModuleType(name)
            module.__dict__.update(members)
            sys.modules[name] = module
        scope: dict[str, Any] = {"__name__": "ast_checker"}
        exec(compile(path.read_text("utf-8"), str(path), "exec"), scope)  # the installed package
    finally:
        for name, module_before in kept.items():
            if module_before is None:
                sys.modules.pop(name, None)
            else:
                sys.modules[name] = module_before
    return scope["ast_checker"]


def schema_of_calls(question: CallQuestion) -> JsonSchema:
    """The schema of an answer that is a list of calls; an empty one calls nothing."""
    calls: list[JsonValue] = [
        {
            "type": "object",
            "properties": {"name": {"const": name}, "arguments": schema},
            "required": ["name", "arguments"],
        }
        for name, _, schema in question.tools()
    ]
    return {
        "type": "object",
        "properties": {"calls": {"type": "array", "items": {"anyOf": calls}, "maxItems": 8}},
        "required": ["calls"],
    }
