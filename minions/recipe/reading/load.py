"""Loads a recipe from text or plain data: reports every fault with its place."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from attrs import field, frozen
from msgspec import structs

from minions.data.errors import Fault, RecipeError, UsageError, near_names
from minions.data.field_repr import FieldsRepr
from minions.data.json_values import JsonValue
from minions.data.schema import JsonSchema
from minions.data.texts import seconds_of
from minions.recipe.catalog import Catalog, FoundRecipe
from minions.recipe.checks.flows import check_untrusted_flows
from minions.recipe.checks.references import AllReadings, check_references, link_steps
from minions.recipe.checks.skips import check_skips
from minions.recipe.checks.sources import Sources
from minions.recipe.checks.step_rules import (
    check_caching,
    check_choices_without_graph,
    check_distribution,
    check_foreign_templates,
    check_names,
    check_returns,
    check_surprise,
    check_unused_names,
    link_surprise,
    surprise_step,
)
from minions.recipe.checks.tool_checks import check_tools
from minions.recipe.drafts import RecipeDraft
from minions.recipe.kinds.recipe_kind import RecipeSpec
from minions.recipe.language import recipe_keys as keys
from minions.recipe.model import (
    MESSAGE_INPUT,
    AgentRecipe,
    InputSpec,
    OnFailure,
    Permissions,
    ScheduleSpec,
    StepSpec,
    WatchSpec,
)
from minions.recipe.reading.recipe_settings import read_permissions, read_settings
from minions.recipe.reading.step_reading import build_steps, read_step, set_output
from minions.recipe.reading.sub_recipes import SubRecipes, check_rights
from minions.recipe.recipe_files import slug_of
from minions.recipe.text.nodes import (
    MAX_FAULTS,
    Entry,
    MappingNode,
    Node,
    ScalarNode,
    SequenceNode,
    node_of,
    to_plain,
)
from minions.recipe.text.sections import Report, Section, read_section, suggestion, type_of
from minions.recipe.text.yaml_reader import read_document, read_source


@frozen(kw_only=True)
class LoadedRecipe(FieldsRepr):
    """The result of checking a recipe."""

    recipe: AgentRecipe | None = None
    """The recipe; None if there is a fault that is more than a warning."""
    faults: tuple[Fault, ...] = ()
    """Faults and warnings, in the order of the file."""
    unchecked: tuple[Fault, ...] = ()
    """The values of unknown types of which a field is read, each once, in the order of the file."""
    output: JsonSchema = field(factory=dict)
    """What is known of the run's output, as JSON Schema; {}: nothing."""
    step_outputs: Mapping[str, JsonSchema] = field(factory=dict)
    """What is known of each step's output, by its id, in the order of the recipe."""
    draft: RecipeDraft | None = field(default=None, repr=False, eq=False)
    """What was read of the text, with places, for editors; None: nothing could be, or there were
    too many faults.
    """

    @property
    def errors(self) -> tuple[Fault, ...]:
        """The faults that are more than warnings."""
        return tuple(fault for fault in self.faults if not fault.is_warning)

    def unwrap(self) -> AgentRecipe:
        """The recipe.

        Raises:
            RecipeError: There are faults other than warnings.
        """
        if self.recipe is None:
            raise RecipeError(self.errors)
        return self.recipe


def load_recipe(source: Path | str, catalog: Catalog) -> AgentRecipe:
    """Load the recipe in the file `source`.

    Raises:
        RecipeError: It has faults; the error holds all of them.
        NotFoundError: There is no such file.
        UsageError: The file cannot be read.
    """
    return check_recipe(source, catalog).unwrap()


def load_checks() -> None:
    """Import what checks only some recipes, so that no event loop waits for it."""
    import minions.recipe.checks.term_checks
    import minions.recipe.checks.transitions  # noqa: F401  # for those who come later


def load_recipe_text(text: str | bytes, file: str, catalog: Catalog) -> AgentRecipe:
    """Load the recipe in `text`.

    Args:
        file: Name of the file for messages; relative paths start from its folder.
    Raises:
        RecipeError: It has faults; the error holds all of them.
    """
    return check_recipe_text(text, file, catalog).unwrap()


def recipe_from_document(
    document: Mapping[str, JsonValue],
    catalog: Catalog,
    file: str = "<recipe>",
    directory: str | None = None,
) -> AgentRecipe:
    """Load a recipe from plain data, such as that of a stored run; faults have no lines.

    Raises:
        RecipeError: It has faults; the error holds all of them.
    """
    return _check(node_of(document, file), catalog, file, directory).unwrap()


def check_recipe(source: Path | str, catalog: Catalog) -> LoadedRecipe:
    """Check the recipe in the file `source`; faults and warnings are returned.

    Raises:
        NotFoundError: There is no such file.
        UsageError: The file cannot be read.
    """
    path = Path(source)
    return check_recipe_text(read_source(path), str(source), catalog)


def check_recipe_text(text: str | bytes, file: str, catalog: Catalog) -> LoadedRecipe:
    """Check the recipe in `text`; faults and warnings are returned."""
    try:
        node = read_document(text, file)
    except RecipeError as error:
        return LoadedRecipe(faults=error.faults)
    return _check(node, catalog, file, str(Path(file).absolute().parent))


def find_faults(source: Path | str, catalog: Catalog) -> tuple[Fault, ...]:
    """All faults and warnings of a recipe file.

    Raises:
        NotFoundError: There is no such file.
        UsageError: The file cannot be read.
    """
    return check_recipe(source, catalog).faults


def _sub_recipes(catalog: Catalog, file: str, directory: str | None) -> SubRecipes:
    """The look-up of nested recipes for an outermost recipe."""

    def check(
        found: FoundRecipe, recipes: SubRecipes
    ) -> tuple[AgentRecipe | None, tuple[Fault, ...]]:
        try:
            if found.document is not None:
                node = node_of(found.document, found.file)
            else:
                node = read_document(found.text or b"", found.file)
        except RecipeError as error:
            return None, error.faults
        loaded = _check(node, catalog, found.file, found.directory, recipes)
        return loaded.recipe, loaded.faults

    return SubRecipes(catalog, directory, check, trail=(str(Path(file).resolve()),))


def _check(
    node: Node,
    catalog: Catalog,
    file: str,
    directory: str | None,
    recipes: SubRecipes | None = None,
) -> LoadedRecipe:
    errors: list[Fault] = []
    warnings: list[Fault] = []

    def report(fault: Fault) -> None:
        kept = warnings if fault.is_warning else errors
        if fault in kept:  # in what several steps read
            return
        if len(kept) < MAX_FAULTS:
            kept.append(fault)
        if len(errors) == MAX_FAULTS:
            raise _EnoughError

    recipes = recipes or _sub_recipes(catalog, file, directory)
    recipe = draft = None
    unchecked: tuple[Fault, ...] = ()
    output: JsonSchema = {}
    step_outputs: Mapping[str, JsonSchema] = {}
    with contextlib.suppress(_EnoughError):
        home = Path(directory) if directory is not None else Path.cwd()
        if _names_files(node):
            from minions.recipe.reading.file_contents import with_file_contents

            node = with_file_contents(node, home, catalog.recipe_folders, report)
        draft = _checked_draft(node, catalog, recipes, report)
        if not errors:
            recipe = _build(draft, node, file, directory)
            check_untrusted_flows(draft, recipe, catalog, report)
            if draft.is_text and _is_long(node):
                from minions.recipe.checks.prefixes import check_prompt_prefixes

                check_prompt_prefixes(draft, recipe, report)
        unchecked = tuple(draft.unchecked.values())
        output = draft.output
        step_outputs = {step.id: step.output for step in draft.steps if step.is_named}
    ordered = sorted((*errors, *warnings), key=lambda fault: (fault.line, fault.column))
    return LoadedRecipe(
        recipe=recipe if not errors else None,
        faults=tuple(ordered),
        unchecked=tuple(sorted(unchecked, key=lambda fault: (fault.line, fault.column))),
        output=output,
        step_outputs=step_outputs,
        draft=draft,
    )


class _EnoughError(Exception):
    """Ends checking: more faults were found than are shown."""


_LONG: Final = 4_096
"""Characters of a recipe whose prompts may begin with what a server keeps."""


def _is_long(recipe: Node) -> bool:
    """Whether prompts of the recipe may be worth keeping for a server."""
    return sum(map(len, recipe.source.lines)) >= _LONG or _names_files(recipe)


def _names_files(recipe: Node) -> bool:
    """Whether the recipe, a step or a template of steps says `examples` or a `context`."""
    if not isinstance(recipe, MappingNode):
        return False
    steps: list[Node] = [recipe]
    for entry in recipe.entries:
        if entry.key == "steps" and isinstance(entry.value, SequenceNode):
            steps += entry.value.items
        elif entry.key == "templates" and isinstance(entry.value, MappingNode):
            steps += [each.value for each in entry.value.entries]
    mappings = [each for each in steps if isinstance(each, MappingNode)]
    return any(each.find("examples") or each.find("context") for each in mappings)


def _checked_draft(
    node: Node, catalog: Catalog, recipes: SubRecipes, report: Report
) -> RecipeDraft:
    draft = read_settings(read_section(node, keys.RECIPE, report), catalog, report)
    _read_steps(draft, catalog, report)
    recipes.link(draft, report)
    for step in draft.steps:
        if step.recipe is not None:
            set_output(step, step.recipe.known_output)
        elif step.kind == "tool" and draft.is_text:
            # Plain data may be the recipe of a stored run, which has to load as it did.
            tool = draft.find_tool(step.section.text("tool") or "")
            if tool is not None and "returns" not in {*step.section.entries, *step.section.refused}:
                set_output(step, tool.returns or {})
        elif step.kind == "uses" and draft.is_text:
            set_output(step, catalog.step_outputs.get(step.section.text("uses") or "", {}))
    draft.permissions = _permissions(draft, catalog, recipes, report)
    check_rights(draft, report)
    _run_checks(draft, catalog, report)
    if draft.section.node("tests") is not None:
        from minions.recipe.reading.test_reading import read_tests

        draft.tests = read_tests(draft, catalog, report)
    draft.schedules = read_schedules(draft, report)
    draft.watch = read_watch(draft, catalog, report)
    if any(step.goal.examples_from is not None for step in draft.steps):
        from minions.recipe.reading.tested_examples import link_tested_examples

        link_tested_examples(draft, report)
    check_caching(draft, catalog, report)
    check_distribution(draft, report)
    return draft


def _permissions(
    draft: RecipeDraft, catalog: Catalog, recipes: SubRecipes, report: Report
) -> Permissions:
    def note(fault: Fault) -> None:
        draft.has_faulty_permissions |= not fault.is_warning
        report(fault)

    return read_permissions(draft, catalog, note, recipes.find)


def _read_steps(draft: RecipeDraft, catalog: Catalog, report: Report) -> None:
    node = draft.section.node("steps")
    if not isinstance(node, SequenceNode):
        return
    if not node.items:
        report(node.place.fault("missing-key", "a recipe needs at least one step"))
    templates = read_step_templates(draft.section.node("templates"), report)
    shared = draft.section.node("context")
    draft.steps = tuple(
        read_step(
            _with_context(extended(item, templates, report), shared), index, catalog, draft, report
        )
        for index, item in enumerate(node.items)
    )


def _with_context(node: Node, shared: Node | None) -> Node:
    """The goal step with the context of the recipe before its own."""
    if not isinstance(shared, SequenceNode) or not isinstance(node, MappingNode):
        return node
    entry = node.find("context")
    if node.find("goal") is None:
        return node
    if entry is None:
        own = Entry(shared.source, shared.span, "context", shared)
        return structs.replace(node, entries=(*node.entries, own))
    if not isinstance(entry.value, SequenceNode):
        return node  # the check of the key reports it
    context = structs.replace(entry.value, items=(*shared.items, *entry.value.items))
    return structs.replace(
        node,
        entries=tuple(
            structs.replace(each, value=context) if each is entry else each for each in node.entries
        ),
    )


def _run_checks(draft: RecipeDraft, catalog: Catalog, report: Report) -> None:
    check_names(draft, report)
    check_tools(draft, catalog, report)
    sources = Sources(draft)
    readings = check_references(draft, sources, report)
    declared: frozenset[str] = frozenset()
    if draft.has_graph:
        from minions.recipe.checks.transitions import check_transitions

        check_transitions(draft, sources, report)
    else:
        check_choices_without_graph(draft, report)
        declared = link_steps(draft, readings.steps, report)
        link_surprise(draft)
        check_skips(draft, sources, readings, report)
    uses = [use for step in draft.steps for use in step.all_templates] + [*draft.output_templates]
    if uses:
        _check_uses(draft, sources, readings, report)
    check_returns(draft, report)
    check_surprise(draft, report)
    read = {
        str(part) for use in uses for reference in use.references for part in reference.path[:1]
    }
    check_unused_names(draft, declared | read, report)
    check_foreign_templates(draft, report)
    draft.output = sources.known_output()


def _check_uses(
    draft: RecipeDraft, sources: Sources, readings: AllReadings, report: Report
) -> None:
    """Of recipes that have templates."""
    from minions.recipe.checks.narrowing import Narrowings
    from minions.recipe.checks.tool_checks import check_fitting

    narrowings = Narrowings(draft, readings)
    check_fitting(draft, sources, narrowings, report)
    if draft.is_text:  # plain data may be the recipe of a stored run, which has to load as it did
        from minions.recipe.checks.term_checks import check_terms

        check_terms(draft, sources, narrowings, report)


def _build(draft: RecipeDraft, node: Node, file: str, directory: str | None) -> AgentRecipe:
    section = draft.section
    plain = to_plain(node)
    document = dict(plain) if isinstance(plain, Mapping) else {}
    recipe_id = section.text("id") or slug_of(section.text("name") or "") or _id_of(file)
    if section.node("id") is None:
        document = {"id": recipe_id, **document}  # a stored run has no file to be named after
    steps = build_steps(draft)
    within = (step.recipe.retain_s for step in steps if isinstance(step, RecipeSpec))
    nested = [kind for step in steps if isinstance(step, RecipeSpec) for kind in step.recipe.redact]
    ages = [each for each in (draft.retain_s, *within) if each is not None]
    return AgentRecipe(
        id=recipe_id,
        version=str(section.plain("version", "1")),
        name=section.text("name") or "",
        description=section.text("description") or "",
        inputs=_with_message(draft.inputs, steps),
        system_prompt=section.text("system_prompt") or section.text("context"),
        goal=section.text("goal"),
        model=draft.model,
        tools=draft.uses,
        permissions=draft.permissions,
        limits=draft.limits,
        retain_s=min(ages, default=None),
        redact=tuple(dict.fromkeys((*draft.redact, *nested))),
        restore=section.plain("restore") is True,
        retry=draft.retry,
        templates=draft.templates,
        execution_mode=draft.mode,
        max_parallel=_max_parallel(section),
        strict=section.plain("strict") is True,
        on_surprise=surprise_step(draft),
        on_failure=OnFailure(section.text("on_failure") or OnFailure.STOP),
        steps=steps,
        graph=_graph_of(draft),
        output=section.plain("output"),
        known_output=draft.output,
        tests=draft.tests,
        enabled=section.plain("enabled", True) is not False,
        schedule=section.plain("schedule"),
        schedules=draft.schedules,
        watch=draft.watch,
        metadata=_metadata(section),
        document=document,
        directory=directory,
    )


def _graph_of(draft: RecipeDraft) -> Mapping[str, Sequence[str]] | None:
    """The transitions in the engine's form; None where the recipe has none."""
    if draft.paths is None:
        return None
    ids = [step.id for step in draft.steps]
    following = draft.paths.following
    return {
        step_id: tuple(ids[other] for other in following[place])
        for place, step_id in enumerate(ids)
    }


def _with_message(
    inputs: Mapping[str, InputSpec], steps: Sequence[StepSpec]
) -> Mapping[str, InputSpec]:
    """The declared inputs; a recipe whose only step holds the conversation takes `message`, too."""
    if len(steps) != 1 or not steps[0].shares_conversation or MESSAGE_INPUT in inputs:
        return inputs
    return {**inputs, MESSAGE_INPUT: _MESSAGE}


_MESSAGE: Final = InputSpec(
    schema={"type": ["string", "null"]},
    has_default=True,
    description="The user's message; without it the step continues the conversation as it is.",
)


def _max_parallel(section: Section) -> int:
    value = section.plain("max_parallel", 16)
    return value if isinstance(value, int) else 16


def _metadata(section: Section) -> Mapping[str, JsonValue]:
    value = section.plain("metadata", {})
    return value if isinstance(value, Mapping) else {}


def _id_of(file: str) -> str:
    """The file's stem, with `-` in place of characters that are not allowed in an id."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", Path(file).stem).strip("-") or "recipe"


# --- `templates` and `extends` -------------------------------------------------------------------


_EXTENDS: Final = "extends"


def read_step_templates(node: Node | None, report: Report) -> Mapping[str, MappingNode]:
    """The templates by name; a fault in one is reported at the steps that use it."""
    if not isinstance(node, MappingNode):
        return {}
    found: dict[str, MappingNode] = {}
    for entry in node.entries:
        if not isinstance(entry.value, MappingNode):
            report(
                entry.value.place.fault(
                    "wrong-type",
                    f"a template is a mapping of step keys, but this is {type_of(entry.value)}",
                )
            )
        elif entry.value.find("id") is not None:
            place = entry.value.find("id")
            assert place is not None  # noqa: S101  # just found
            report(
                place.key_node.place.fault(
                    "bad-value",
                    "a template has no id: each step that extends it has its own",
                )
            )
        else:
            found[entry.key] = entry.value
    return found


def extended(node: Node, templates: Mapping[str, MappingNode], report: Report) -> Node:
    """The step with the keys that only its template states; each key keeps its place in the
    text.

    Mappings such as `params` are not merged: the step's own replaces that of the template.
    """
    seen: list[str] = []
    while isinstance(node, MappingNode) and (entry := node.find(_EXTENDS)) is not None:
        template = _named_template(entry, templates, seen, report)
        if (
            template is None
        ):  # `extends` stays: keys that the template would have added are not reported
            return node
        own = [each for each in node.entries if each is not entry]
        keys = {each.key for each in own}
        more = [each for each in template.entries if each.key not in keys]
        node = structs.replace(node, entries=(*own, *more))
    return node


def _named_template(
    entry: Entry, templates: Mapping[str, MappingNode], seen: list[str], report: Report
) -> MappingNode | None:
    value = entry.value
    names = tuple(templates)
    if not isinstance(value, ScalarNode) or not isinstance(value.value, str):
        return None  # the check of the key reports it
    if value.value not in templates:
        shown = value.value
        report(
            value.place.fault(
                "unknown-template",
                f"unknown template '{shown:.60}'" if names else "there are no templates to extend",
                label=suggestion(shown, names),
                help=f"templates are: {', '.join(names)}"
                if names
                else "write them as 'templates: {name: {…}}' beside 'steps'",
            )
        )
        return None
    name = value.value
    if name in seen:
        report(value.place.fault("cycle", f"the template '{name}' extends itself"))
        return None
    seen.append(name)
    return templates[name]


# --- the `watch` of a recipe ---------------------------------------------------------------------

_MOST_SCORERS: Final = 20


def read_watch(draft: RecipeDraft, catalog: Catalog, report: Report) -> WatchSpec | None:
    """How the recipe's runs are judged after their end; None: they are not."""
    node = draft.section.node("watch")
    if not isinstance(node, MappingNode):
        return None  # another type was told already
    section = read_section(node, keys.WATCH, report)
    sample = _share_of(section.plain("sample"))
    if sample is None and section.node("sample") is not None:
        message = "a sample is a share of the runs: `5%`, or a number above 0, at most 1"
        report(section.place_of("sample").fault("bad-value", message))
    scorers = section.plain("scorers")
    if isinstance(scorers, list) and not 1 <= len(scorers) <= _MOST_SCORERS:
        message = f"a watch has 1 to {_MOST_SCORERS} scorers"
        report(section.place_of("scorers").fault("bad-value", message))
    elif catalog.check_watch is not None and draft.is_text:  # a stored run's has to load as it did
        catalog.check_watch(section, draft.output, draft.inputs, catalog, report)
    if sample is None or not isinstance(scorers, list):
        return None
    least, window = section.plain("at_least"), section.plain("window", 50)
    tokens, cost = section.plain("max_tokens_per_day"), section.plain("max_cost_usd_per_day")
    return WatchSpec(
        sample=sample,
        scorers=tuple(scorers),
        at_least=float(least) if isinstance(least, int | float) else None,
        window=window if isinstance(window, int) else 50,
        max_tokens_per_day=tokens if isinstance(tokens, int) else 200_000,
        max_cost_usd_per_day=float(cost) if isinstance(cost, int | float) else None,
    )


def _share_of(value: JsonValue) -> float | None:
    """A share above 0, at most 1; None: it is none."""
    if isinstance(value, str) and value.endswith("%"):
        try:
            value = float(value.removesuffix("%")) / 100
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 < value <= 1 else None


# --- the `schedule` of a recipe ------------------------------------------------------------------


_MOST: Final = 20
"""Schedules of one recipe."""


def read_schedules(draft: RecipeDraft, report: Report) -> tuple[ScheduleSpec, ...]:
    """The schedules in the order of the file; empty: the recipe has none."""
    node = draft.section.node("schedule")
    if node is None:
        return ()
    if not isinstance(node, SequenceNode):
        read = _schedule(draft, node, report)
        return (read,) if read is not None else ()
    if not 1 <= len(node.items) <= _MOST:
        report(node.place.fault("bad-value", f"a list of schedules has 1 to {_MOST} of them"))
        return ()
    each = [_schedule(draft, item, report) for item in node.items]
    return tuple(spec for spec in each if spec is not None)


def _schedule(draft: RecipeDraft, node: Node, report: Report) -> ScheduleSpec | None:
    from minions.recipe.schedules import cron_problem, timezone_problem

    if isinstance(node, ScalarNode):
        if _is_in_words(node):
            report(_words_fault(node))
            return None
        cron = _check_scalar(node, "cron expression", cron_problem, report)
        return None if cron is None else ScheduleSpec(cron=cron)
    if not isinstance(node, MappingNode):
        message = f"a schedule is a cron expression or a mapping, but this is {type_of(node)}"
        report(node.place.fault("wrong-type", message))
        return None
    section = read_section(node, keys.SCHEDULE, report)
    cron = _check_scalar(section.scalar("cron"), "cron expression", cron_problem, report)
    zone = _check_scalar(section.scalar("timezone"), "time zone", timezone_problem, report)
    inputs = section.mapping("inputs")
    _check_inputs(draft, inputs, report)
    if cron is None:
        return None
    plain = to_plain(inputs) if inputs is not None else {}
    return ScheduleSpec(
        cron=cron,
        timezone=zone or "UTC",
        missed=section.text("missed") or "once",
        overlap=section.text("overlap") or "skip",
        patience=_check_scalar(section.scalar("patience"), "duration", _duration_problem, report),
        inputs=plain if isinstance(plain, Mapping) else {},
    )


def _duration_problem(text: str) -> str | None:
    """Why that is no duration; None: it is one."""
    try:
        seconds_of(text)
    except UsageError as error:
        return error.message
    return None


def _is_in_words(node: ScalarNode) -> bool:
    """Whether it is a text for people, as the older format of recipes had it."""
    from minions.recipe.schedules import MOST_CHARACTERS

    if not isinstance(node.value, str):
        return False
    text = node.value.strip()
    fields = text.split()
    is_of_five = len(fields) > 4 and text[0].isdigit()
    looks_like_cron = text.startswith("@") or "*" in text or is_of_five
    return 0 < len(text) <= MOST_CHARACTERS and not looks_like_cron


def _words_fault(node: ScalarNode) -> Fault:
    return node.place.fault(
        "bad-schedule",
        f"'{node.value!s:.60}' is no cron expression: no worker starts runs by it",
        help='write it as `schedule: "0 8 * * *"`: minute, hour, day of the month, month, weekday',
        is_warning=True,
    )


def _check_scalar(
    node: ScalarNode | None, what: str, problem: Callable[[str], str | None], report: Report
) -> str | None:
    """The text of the scalar; None: it is missing, or refused."""
    if node is None:
        return None
    text = node.value.strip() if isinstance(node.value, str) else ""
    why = problem(text)
    if why is None:
        return text
    report(node.place.fault("bad-schedule", f"'{node.value!s:.60}' is no {what}: {why}"))
    return None


def _check_inputs(draft: RecipeDraft, inputs: MappingNode | None, report: Report) -> None:
    known = tuple(draft.inputs)
    for entry in inputs.entries if inputs is not None else ():
        if entry.key not in known:
            near = near_names(entry.key, known, limit=1)
            report(
                entry.key_node.place.fault(
                    "bad-schedule",
                    f"the recipe has no input '{entry.key:.60}'",
                    label=f"did you mean '{near[0]}'?" if near else None,
                )
            )
