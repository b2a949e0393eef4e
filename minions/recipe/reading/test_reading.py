"""The `tests` of a recipe: read and checked with the rest, executed by `minions test`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from msgspec import Struct

from minions.contracts.executions import RunStatus
from minions.data.errors import Fault, is_one_edit
from minions.data.json_values import JsonValue
from minions.data.schema import SchemaValidator
from minions.recipe.catalog import Catalog
from minions.recipe.checks.shapes import Shape
from minions.recipe.drafts import RecipeDraft, StepDraft, read_condition
from minions.recipe.expressions.template import Templates
from minions.recipe.kinds.kind_registry import KINDS
from minions.recipe.language import step_keys as recipe_test_keys
from minions.recipe.model import AgentRecipe, RecipeTest, RecordedCall, StepSpec, Where
from minions.recipe.nested_recipes import steps_within
from minions.recipe.reading.recipe_settings import tools_within
from minions.recipe.text.nodes import Entry, MappingNode, Node, ScalarNode, SequenceNode, to_plain
from minions.recipe.text.sections import Report, Section, read_section, suggestion, type_of

OFFLINE: Final = ("scripted/", "replay/")
"""Prefixes of models whose answers are read from a file."""


def read_tests(draft: RecipeDraft, catalog: Catalog, report: Report) -> tuple[RecipeTest, ...]:
    """The tests in the order of the file; names of inputs, tools,
    steps and models are checked, too.
    """
    nodes = draft.section.items("tests")
    return tuple(
        _test(draft, node, number, catalog, report) for number, node in enumerate(nodes, start=1)
    )


def _test(
    draft: RecipeDraft, node: Node, number: int, catalog: Catalog, report: Report
) -> RecipeTest:
    section = read_section(node, recipe_test_keys.TEST, report)
    expect = section.node("expect")
    wanted = read_section(expect, recipe_test_keys.EXPECT, report) if expect is not None else None
    if section.node("answers") is not None and section.node("model") is not None:
        message = "the model is stated twice, by 'answers' and by 'model'"
        report(section.place_of("model").fault("kind-conflict", message))
    _check_model(section.scalar("model"), catalog, report)
    _check_names(section.mapping("inputs"), tuple(draft.inputs), "input", report)
    _check_names(section.mapping("tools"), tools_within(draft, catalog), "tool", report)
    _check_results(draft, section.mapping("tools"), report)
    check_decisions(draft, section.mapping("decisions"), report)
    _check_answers(draft, section.items("answers"), catalog, report)
    answers = section.plain("answers", ())
    place = section.place
    return RecipeTest(
        name=section.text("name") or f"test {number}",
        inputs=_mapping(section, "inputs"),
        answers=tuple(answers) if isinstance(answers, list | tuple) else (),
        model=section.text("model"),
        tools=_mapping(section, "tools"),
        calls=_recorded_calls(draft, section, catalog, report),
        calls_file=section.text("calls") if section.scalar("calls") is not None else None,
        decisions={name: str(word) for name, word in _mapping(section, "decisions").items()},
        status=RunStatus((wanted.text("status") if wanted else None) or RunStatus.COMPLETED),
        output=wanted.plain("output") if wanted else None,
        has_output=wanted is not None and wanted.node("output") is not None,
        fields=_mapping(wanted, "fields") if wanted else {},
        error=wanted.text("error") if wanted else None,
        holds=_conditions(wanted, report, draft.templates) if wanted else (),
        prompt_tokens_max=_most_tokens(draft, wanted, report) if wanted else {},
        prompt_contains=_texts_by_step(draft, wanted, "prompt_contains", report) if wanted else {},
        prompt_excludes=_texts_by_step(draft, wanted, "prompt_excludes", report) if wanted else {},
        where=Where(place.source.file, place.line, place.column),
    )


_ANSWER_KEYS: Final = (
    *("text", "json", "tool_calls", "fail", "message", "retryable", "retry_after_s", "match"),
    "usage",
)
_CALL_KEYS: Final = ("name", "arguments", "id")


def _check_answers(
    draft: RecipeDraft, answers: Sequence[Node], catalog: Catalog, report: Report
) -> None:
    """Report names in a model's answers that are nearly those of the recipe.

    A test may let the model say something wrong: what is like nothing in the recipe is meant so.
    """
    if not draft.is_text:
        return
    tools = tools_within(draft, catalog)
    members: set[str] = set()
    for step in draft.steps:
        _collect_members(step.output, members)
    for answer in answers:
        if not isinstance(answer, MappingNode):
            continue
        _report_near(answer, _ANSWER_KEYS, "key of an answer", report)
        if (said := answer.find("json")) is not None:
            _check_members(said.value, tuple(sorted(members)), report)
        calls = answer.find("tool_calls")
        for call in calls.value.items if calls and isinstance(calls.value, SequenceNode) else ():
            if isinstance(call, MappingNode):
                _report_near(call, _CALL_KEYS, "key of a call", report)
                _check_call(draft, call, tools, report)


def _recorded_calls(
    draft: RecipeDraft, section: Section, catalog: Catalog, report: Report
) -> tuple[RecordedCall, ...]:
    known = tools_within(draft, catalog)
    calls: list[RecordedCall] = []
    listed = section.node("calls")
    for node in listed.items if isinstance(listed, SequenceNode) else ():
        call = read_section(node, recipe_test_keys.RECORDED_CALL, report)
        if (name := call.scalar("tool")) is not None and str(name.value) not in known:
            report(_unknown(name, known, "tool"))
        if call.node("result") is not None and call.node("error") is not None:
            message = "the call has a `result` and an `error`"
            report(call.place_of("error").fault("kind-conflict", message))
        calls.append(
            RecordedCall(
                tool=call.text("tool") or "",
                arguments=_mapping(call, "arguments"),
                result=call.plain("result"),
                error=call.text("error"),
            )
        )
    return tuple(calls)


def _check_results(draft: RecipeDraft, results: MappingNode | None, report: Report) -> None:
    """Report results that the test gives for a tool which returns something else."""
    for entry in results.entries if results is not None and draft.is_text else ():
        spec = draft.find_tool(entry.key)
        if spec is None or spec.returns is None:
            continue
        for error in SchemaValidator(spec.returns).errors(to_plain(entry.value)):
            report(
                entry.value.place.fault(
                    "wrong-type",
                    f"'{entry.key}' never returns that: {error}",
                    help=f"it returns {Shape.of(spec.returns).in_words()}",
                )
            )


def _check_call(
    draft: RecipeDraft, call: MappingNode, tools: tuple[str, ...], report: Report
) -> None:
    name, arguments = call.find("name"), call.find("arguments")
    node = name.value if name is not None else None
    if not isinstance(node, ScalarNode) or not isinstance(node.value, str):
        return
    spec = draft.find_tool(node.value)
    if spec is None:
        if node.value not in tools and suggestion(node.value, tools) is not None:
            report(_unknown(node, tools, "tool"))
        return
    properties = spec.parameters.get("properties")
    if arguments is not None and isinstance(properties, Mapping):
        _report_near(arguments.value, tuple(properties), f"parameter of '{spec.name}'", report)


def _collect_members(schema: JsonValue, found: set[str], depth: int = 0) -> None:
    """Add the names of all properties in the schema."""
    if depth > _DEEPEST:
        return
    if isinstance(schema, Mapping):
        properties = schema.get("properties")
        found.update(properties if isinstance(properties, Mapping) else ())
    parts = schema.values() if isinstance(schema, Mapping) else schema
    for part in parts if not isinstance(schema, str) and isinstance(parts, Iterable) else ():
        _collect_members(part, found, depth + 1)


_DEEPEST: Final = 20


def _check_members(node: Node, known: tuple[str, ...], report: Report) -> None:
    _report_near(node, known, "member of an output", report)
    if isinstance(node, MappingNode):
        for entry in node.entries:
            _check_members(entry.value, known, report)
    elif isinstance(node, SequenceNode):
        for item in node.items:
            _check_members(item, known, report)


def _report_near(node: Node, known: tuple[str, ...], what: str, report: Report) -> None:
    given = {entry.key for entry in node.entries} if isinstance(node, MappingNode) else set()
    for entry in node.entries if isinstance(node, MappingNode) else ():
        near = next((each for each in known if is_one_edit(entry.key, each)), None)
        if entry.key not in known and near is not None and near not in given:
            report(
                entry.key_node.place.fault(
                    "unknown-key",
                    f"'{entry.key:.60}' is no {what}",
                    label=f"did you mean '{near}'?",
                    help=f"there are: {', '.join(known)}",
                )
            )


def _most_tokens(draft: RecipeDraft, section: Section, report: Report) -> Mapping[str, int]:
    """By step; an integer holds for every prompt, whose name is empty."""
    value = section.plain("prompt_tokens_max")
    if isinstance(value, int):
        return {"": value}
    _check_steps(draft, section.node("prompt_tokens_max"), report)
    by_step = value if isinstance(value, Mapping) else {}
    for step_id, most in by_step.items():
        if not isinstance(most, int) or most < 1:
            place = section.place_of("prompt_tokens_max")
            report(
                place.fault("wrong-type", f"the tokens of '{step_id}' are a whole number from 1")
            )
    return {step_id: most for step_id, most in by_step.items() if isinstance(most, int)}


def _texts_by_step(
    draft: RecipeDraft, section: Section, name: str, report: Report
) -> Mapping[str, tuple[str, ...]]:
    _check_steps(draft, section.node(name), report)
    return {
        step_id: tuple(map(str, texts)) if isinstance(texts, list) else (str(texts),)
        for step_id, texts in _mapping(section, name).items()
    }


def _check_steps(draft: RecipeDraft, node: Node | None, report: Report) -> None:
    """Report names that are no steps; what stands behind a slash is a nested recipe's."""
    known = tuple(step.id for step in draft.steps if step.is_named)
    for entry in node.entries if isinstance(node, MappingNode) else ():
        if entry.key.partition("/")[0] not in known:
            report(_unknown(entry.key_node, known, "step"))


def _mapping(section: Section, name: str) -> Mapping[str, JsonValue]:
    value = section.plain(name)
    return value if isinstance(value, Mapping) else {}


def _check_model(node: ScalarNode | None, catalog: Catalog, report: Report) -> None:
    """Report a model that would cost money: tests never call a server."""
    if node is None or str(node.value).startswith(OFFLINE) or node.value in catalog.models:
        return
    known = tuple(sorted(catalog.models))
    report(
        node.place.fault(
            "real-model",
            f"a test calls no real model, but this is '{node.value!s:.60}'",
            label=suggestion(str(node.value), known),
            help="write what it answers under 'answers', or name scripted/FILE.yaml, replay/FILE"
            + (f" or one of: {', '.join(known)}" if known else ""),
        )
    )


def _check_names(
    node: MappingNode | None, known: tuple[str, ...], what: str, report: Report
) -> None:
    for entry in node.entries if node is not None else ():
        if entry.key not in known:
            report(_unknown(entry.key_node, known, what))


def _unknown(node: ScalarNode, known: tuple[str, ...], what: str) -> Fault:
    return node.place.fault(
        f"unknown-{what}",
        f"unknown {what} '{node.value!s:.60}' in a test",
        label=suggestion(str(node.value), known),
        help=f"there are: {', '.join(known) or 'none'}",
    )


def _conditions(section: Section, report: Report, compiled: Templates) -> tuple[str, ...]:
    """The conditions, parsed only: names in them exist only after the run."""
    node = section.node("holds")
    nodes = node.items if isinstance(node, SequenceNode) else [node] if node is not None else []
    for item in nodes:
        if isinstance(item, ScalarNode):
            read_condition(item, report, compiled)
    return tuple(str(to_plain(item)) for item in nodes)


# --- checks of the `decisions` in a recipe's tests -----------------------------------------------


_CONSENT: Final = ("approve", "reject")


def check_decisions(draft: RecipeDraft, node: MappingNode | None, report: Report) -> None:
    """Check keys (`STEP` or `STEP/STEP…`) and values (`approve`, `reject` or `answer:VALUE`)."""
    if node is None:
        return
    known = {named.path: named for named in _steps_of(draft)}
    for entry in node.entries:
        fault = _fault(entry, known.get(entry.key), tuple(known))
        if fault is not None and not _is_beyond(draft, entry.key):
            report(fault)


class _DecidableStep(Struct, frozen=True):
    """A step with the decisions that it may need."""

    path: str
    asks: bool
    calls: bool


def _steps_of(draft: RecipeDraft) -> Iterator[_DecidableStep]:
    for step in draft.steps:
        if not step.is_named:
            continue
        spec = KINDS[step.kind].spec if step.kind is not None else StepSpec
        calls = spec.calls_tools or "decision_tool" in step.section.entries
        yield _DecidableStep(step.id, spec.asks_person, calls)
        if step.recipe is not None:
            yield from _inner_steps(f"{step.id}/", step.recipe)


def _inner_steps(prefix: str, recipe: AgentRecipe) -> Iterator[_DecidableStep]:
    for path, _, step in steps_within(recipe, prefix):
        if isinstance(step, StepSpec):
            calls = step.calls_tools or step.decision_tool is not None
            yield _DecidableStep(path, step.asks_person, calls)
        else:
            yield _DecidableStep(path, asks=False, calls=True)  # code may call any tool


def _is_beyond(draft: RecipeDraft, path: str) -> bool:
    """Whether the path leads into a recipe that could not be loaded: that was reported already."""
    first, slash, _ = path.partition("/")
    return any(step.id == first and slash and _is_lost(step) for step in draft.steps)


def _is_lost(step: StepDraft) -> bool:
    return step.kind == "recipe" and step.recipe is None


def _fault(entry: Entry, step: _DecidableStep | None, known: Sequence[str]) -> Fault | None:
    if step is None:
        return entry.key_node.place.fault(
            "unknown-step",
            f"unknown step '{entry.key:.60}' in a test",
            label=suggestion(entry.key, tuple(known)),
            help=f"there are: {', '.join(known) or 'none'}",
        )
    node = entry.value
    if not isinstance(node, ScalarNode) or not isinstance(node.value, str):
        message = f"a decision is a word, but this is {type_of(node)}"
        return node.place.fault("bad-decision", message, help=_words(step))
    mismatch = _mismatch(node.value, step)
    if mismatch is None:
        return None
    near = suggestion(node.value, _CONSENT) if node.value not in _CONSENT else None
    return node.place.fault("bad-decision", mismatch, label=near, help=_words(step))


def _mismatch(word: str, step: _DecidableStep) -> str | None:
    # Imported here: few recipes have tests with decisions, and `validate` has to start fast.
    from minions.contracts.decision_types import Answer, Approve, Reject, said_decision

    match said_decision(word):
        case Approve(None) | Reject(None) if step.asks and not step.calls:
            return f"step '{step.path}' asks a question; '{word}' is not an answer"
        case Approve(None) | Reject(None) if not step.calls:
            return f"step '{step.path}' calls no tool that needs approval"
        case Answer() if not step.asks:
            return f"step '{step.path}' asks no question"
        case Approve(None) | Reject(None) | Answer():
            return None
        case _:
            return f"'{word:.60}' is not a decision"


def _words(step: _DecidableStep) -> str:
    if step.asks:
        return "write answer:VALUE"
    if step.calls:
        return "write approve or reject"
    return "remove it: nothing waits for a decision here"
