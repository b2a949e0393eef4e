"""`minions explain`, `graph`, `stubs` and `schema`: what is said of recipes; nothing is run."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import click
from attrs import frozen

from minions.analysis.bounds import Bound, Spending, StepBound, UpperBound
from minions.analysis.client_stubs import MARK, client_text
from minions.analysis.explanation import (
    ClassUse,
    Explanation,
    InputUse,
    ModelUse,
    OperatorUse,
    Question,
    RightsUse,
    ToolUse,
    explain,
)
from minions.analysis.pictures.picture import Picture, picture_of, with_statuses
from minions.app.pages.prompt_starts import (
    CacheForecast,
    SharedStart,
    forecast_caches,
    shared_starts,
)
from minions.app.wiring.configured_prices import knowledge_of_models
from minions.data.bounded_files import read_regular
from minions.data.codec import encode
from minions.data.errors import MinionsError, UsageError
from minions.data.json_values import JsonValue, dumps
from minions.data.texts import spoken
from minions.engine.compile.dry_run import planned_prompts
from minions.engine.compile.extensions import Extensions
from minions.engine.compile.planned_step import PlannedStep
from minions.engine.compile.prompt_sections import REASONS, PromptSection, section_words
from minions.interfaces.cli.console.console import hanging, json_text, say, tell
from minions.interfaces.cli.console.dry_run_table import hidden_tool_words
from minions.interfaces.cli.console.render import dollars
from minions.interfaces.cli.options import (
    CommandContext,
    ExtensionOptions,
    command_context,
    naming_the_journal,
    option,
    output_file,
    takes_options,
)
from minions.interfaces.cli.recipe_argument import (
    checked_recipe,
    recipe_path,
    refuse_target,
    write_recipe,
)
from minions.recipe.checks.flows import Flow
from minions.recipe.editor_schema import recipe_schema
from minions.recipe.model import AgentRecipe, UntrustedRule
from minions.recipe.permissions import tool_specs


@click.command("explain")
@click.argument("recipe")
@click.option(
    "--prompts",
    "only_prompts",
    is_flag=True,
    help="Show only the prompts: with what they begin alike, and what a cache saves.",
)
@takes_options(ExtensionOptions)
def explain_command(options: ExtensionOptions, recipe: str, *, only_prompts: bool) -> int:
    """Show what RECIPE needs, what it may do, and what it uses at most: calls, tokens, dollars.

    It uses no model, no tool and no network.
    """
    context = command_context(options)
    extensions = context.extensions() if context.settings.extensions else None
    catalog = context.catalog() if extensions is None else extensions.catalog()
    loaded = checked_recipe(recipe, context, catalog).unwrap()
    know = knowledge_of_models(context.settings, context.environ)
    found, batched = (
        explain(
            loaded,
            tool_specs(loaded, catalog),
            knowledge_of_models(context.settings, context.environ, in_batches=in_batches),
            tools_within=lambda inner: tool_specs(inner, catalog),
            kinds=extensions.steps if extensions is not None else {},
            operator=context.settings.operator_rules(context.environ),
        )
        for in_batches in (False, True)
    )
    live, cost = found.spending.cost_usd, batched.spending.cost_usd
    is_cheaper = cost.at_most != live.at_most and live.limit is None
    prompts = _prompts(loaded, extensions or context.extensions())
    forecasts = forecast_caches(prompts, know)
    if context.settings.json:
        shown = {} if only_prompts else _to_json(found)
        if is_cheaper and not only_prompts:
            shown["cost_in_batches_usd"] = cost.to_json()
        more = {"prompt_starts": encode(shared_starts(prompts)), "caches": encode(forecasts)}
        say(json_text({**shown, "prompts": _prompts_to_json(prompts), **more}))
        return 0
    if only_prompts:
        lines = [*_prompt_lines(prompts), *_start_lines(prompts), *_forecast_lines(forecasts)]
    else:
        lines = [*_lines(found, prompts, forecasts)]
    for line in lines:
        say(hanging(line))
    if is_cheaper and cost.at_most is not None and not only_prompts:
        say(f"  in batches (--by, --patience), where nothing is late: {dollars(cost.at_most)}")
    return 0


def _prompts(recipe: AgentRecipe, extensions: Extensions) -> tuple[PlannedStep, ...]:
    """The prompts of the steps; none where the recipe names what is not there."""
    try:
        return planned_prompts(recipe, extensions)
    except MinionsError:
        return ()


def _sections(step: PlannedStep) -> Mapping[str, int]:
    return step.prompt.sections if step.prompt is not None else {}


def _prompt_lines(prompts: Sequence[PlannedStep]) -> Iterator[str]:
    if not prompts:
        return
    yield "first prompts, without what only a run knows:"
    for each in prompts:
        yield f"  {each.step_id}: {section_words(_sections(each))}{hidden_tool_words(each)}"
    sections = {name for each in prompts for name in _sections(each)}
    reasons = [f"{each.value}: {REASONS[each]}" for each in PromptSection if each.value in sections]
    yield f"    ({'; '.join(reasons)})"


def _start_lines(prompts: Sequence[PlannedStep]) -> Iterator[str]:
    """The prompts as a tree: what several begin with stands once, with whose it is."""
    if not prompts:
        return
    yield "what they begin with, in tokens:"
    loops = {each.step_id: each for each in prompts if each.loop is not None}
    for start in shared_starts(prompts):
        yield from _tree_lines(start, "  ", loops)


def _tree_lines(start: SharedStart, indent: str, loops: Mapping[str, PlannedStep]) -> Iterator[str]:
    sections = ", ".join(f"{name} {count:,}" for name, count in start.sections.items())
    if len(start.steps) == 1:
        (step_id,) = start.steps
        loop = f" (for {loops[step_id].loop})" if step_id in loops else ""
        yield f"{indent}{step_id}{loop}: {sections}"
        return
    yield f"{indent}{sections}: {', '.join(start.steps)}"
    for each in start.then:
        yield from _tree_lines(each, f"{indent}  ", loops)


def _forecast_lines(forecasts: Sequence[CacheForecast]) -> Iterator[str]:
    """What a run pays for its first prompts, with and without the cache of each server."""
    for each in forecasts:
        name = each.model or "the configured model"
        if each.cache is None:
            yield f"  first prompts of {name}: {each.input_tokens:,} tokens, no cache is known"
            continue
        words = f"  first prompts of {name}: {each.input_tokens:,} tokens"
        if each.cached_tokens:
            words += f", {each.cached_tokens:,} of them from the cache"
        else:
            least = each.cache.minimum_tokens
            words += f", none from the cache: none begin alike for {least:,} tokens"
        if each.cost_usd is not None and each.cached_cost_usd is not None:
            words += f": {dollars(each.cached_cost_usd)} instead of {dollars(each.cost_usd)}"
        yield words


def _prompts_to_json(prompts: Sequence[PlannedStep]) -> list[JsonValue]:
    return [
        {
            "step": each.step_id,
            "tokens": sum(_sections(each).values()),
            **({} if each.hidden_tools is None else {"hidden_tools": encode(each.hidden_tools)}),
            "sections": [
                {"section": name, "tokens": count, "reason": REASONS[PromptSection(name)]}
                for name, count in _sections(each).items()
            ],
        }
        for each in prompts
    ]


# --- words ------------------------------------------------------------------------------------


def _lines(
    found: Explanation, prompts: Sequence[PlannedStep], forecasts: Sequence[CacheForecast]
) -> Iterator[str]:
    shows_name = found.name not in ("", found.recipe)
    called = f"{found.recipe} ({found.name})" if shows_name else found.recipe
    yield f"{called}: {found.description}" if found.description else called
    yield from _section("inputs", [_input_words(one) for one in found.inputs])
    yield from _section("tools", [_tool_words(one) for one in found.tools])
    yield from _if_any("tools of the caller (may be called in)", found.caller_tools)
    yield f"permissions: {_permission_words(found.rights)}"
    yield from _if_any("recipes", [_recipe_words(one) for one in found.recipes])
    yield from _if_any("registered steps", [_class_words(one) for one in found.classes])
    yield from _if_any("code (runs in a sandbox)", found.code)
    yield from _section("models", [_model_words(one) for one in found.models])
    yield from _if_any("questions to a person", [_question_words(one) for one in found.questions])
    if found.operator is not None:
        yield f"operator: {_operator_words(found.operator)}"
    yield from _if_any("untrusted text", [_flow_words(one) for one in found.flows])
    yield from _if_any("endorsed", list(found.endorsed))
    limits = [f"{name}: {dumps(value)}" for name, value in found.limits.items()]
    yield from _section("limits of the run", limits)
    yield from _prompt_lines(prompts)
    yield from _forecast_lines([each for each in forecasts if each.cached_tokens])
    yield "at most:"
    yield f"  model calls: {_bound_words(found.model_calls)}"
    if found.models:
        yield f"    (each sent up to {_times(found.attempts_per_model_call)} when it fails)"
    yield f"  tool calls, with retries: {_bound_words(found.tool_calls)}"
    yield from _spending_lines(found.spending)


def _section(name: str, lines: list[str]) -> Iterator[str]:
    yield f"{name}:" if lines else f"{name}: none"
    for line in lines:
        yield f"  {line}"


def _if_any(name: str, lines: Sequence[str]) -> Iterator[str]:
    return _section(name, list(lines)) if lines else iter(())


def _input_words(one: InputUse) -> str:
    secret = "secret " if one.is_secret else ""
    need = "required" if one.is_required else f"default {dumps(one.default)}"
    about = f": {one.description}" if one.description else ""
    return f"{one.name} ({secret}{one.type}, {need}){about}"


def _tool_words(one: ToolUse) -> str:
    writes = ", writes" if one.writes else ""
    users = [f"used by {', '.join(one.steps)}"] if one.steps else []
    if one.after_surprise:
        users.append(f"after a surprise by {', '.join(one.after_surprise)}")
    return f"{one.name} ({one.effect}{writes}), {'; '.join(users)}"


def _model_words(one: ModelUse) -> str:
    uses = [f"asked by {', '.join(one.steps)}"] if one.steps else []
    if one.fills_in:
        uses += [
            f"fills in {', '.join(names)} of {step}"
            if names
            else f"may fill in arguments of {step}"
            for step, names in one.fills_in.items()
        ]
    return f"{one.name or 'the configured one'}: {'; '.join(uses)}"


def _permission_words(rights: RightsUse) -> str:
    allowed = f", except {', '.join(rights.allowed)}" if rights.allowed else ""
    words = [f"{'may' if rights.may_write else 'may not'} write{allowed}"]
    for word, names in (
        ("refused", rights.refused),
        ("needs approval", rights.needs_approval),
        ("needs approval of", rights.approval_when),
        ("decided by", rights.approval_rules),
        ("strangers' words may be in", rights.policies),
        ("private data may reach models", rights.private_models),
        ("may write what configures tools", rights.opens_config),
        ("may use secrets", rights.opens_secrets),
    ):
        if names:
            words.append(f"{word}: {', '.join(names)}")
    return "; ".join(words)


def _operator_words(said: OperatorUse) -> str:
    rule = said.untrusted.value if said.untrusted is not None else "as recipes say"
    words = [f"calls with strangers' words in them: {rule}"]
    if said.policies:
        words.append(f"made without asking, if the recipe agrees: {', '.join(said.policies)}")
    return "; ".join(words)


def _recipe_words(one: RightsUse) -> str:
    return f"{one.path}: {one.recipe}; {_permission_words(one)}"


def _class_words(one: ClassUse) -> str:
    what = "its code decides what it calls" if one.is_code else "asks a model"
    return f"{one.name} ({what}), used by {', '.join(one.steps)}"


def _flow_words(flow: Flow) -> str:
    private = f"; could send what {', '.join(flow.private)} holds" if flow.private else ""
    return f"reaches {flow.tool}{_BEFORE[flow.rule]}: {flow.words}{private}"


_BEFORE: Final = {
    UntrustedRule.ALLOW: " without an approval",
    UntrustedRule.ASK: ", where each such call waits for an approval",
    UntrustedRule.REFUSE: ", where each such call is refused",
}


def _question_words(one: Question) -> str:
    answer = f"; an answer that fits {dumps(one.form)}" if one.form is not None else ""
    waits = "as long as it takes"
    if one.timeout_s is not None:
        after = f"then {dumps(one.default)}" if one.has_default else "then the step fails"
        waits = f"{spoken(one.timeout_s * 1000)}, {after}"
    return f"{one.step}: {' '.join(one.text.split())}{answer}; waits {waits}"


def _bound_words(bound: Bound) -> str:
    if not bound.unbounded:
        return str(bound.known)
    return f"unbounded because {'; '.join(bound.unbounded)}"


def _spending_lines(spent: Spending) -> Iterator[str]:
    tokens, cost, in_flight = spent.tokens, spent.cost_usd, spent.calls_in_flight
    yield f"  tokens: {_most_words(tokens, in_flight, lambda count: f'{count:.0f}')}"
    yield from _reason_lines(tokens, ())
    words = _most_words(cost, in_flight, dollars)
    unpriced = [reason for reason in cost.unbounded if reason not in tokens.unbounded]
    if words == _UNBOUNDED and not unpriced:
        yield "  cost: unbounded, as the tokens are"
        return
    yield f"  cost: {'unknown because' if words == _UNBOUNDED else words}"
    yield from _reason_lines(cost, tokens.unbounded)


_UNBOUNDED: Final = "unbounded because"


def _most_words(most: UpperBound, in_flight: int | None, shown: Callable[[float], str]) -> str:
    calls = "1 call" if in_flight == 1 else "calls" if in_flight is None else f"{in_flight} calls"
    if most.at_most is not None:
        note = f" (limit {shown(most.limit)})" if most.limit is not None else ""
        return f"{shown(most.at_most)}{note}"
    if most.limit is not None:
        return f"{shown(most.limit)}, and what {calls} under way then may use"
    return _UNBOUNDED


def _reason_lines(most: UpperBound, shown: Sequence[str]) -> Iterator[str]:
    """The reasons, without those that were shown just before."""
    if most.limit is None:
        for reason in most.unbounded:
            if reason not in shown:
                yield f"    {reason}"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


# --- JSON -------------------------------------------------------------------------------------


def _to_json(found: Explanation) -> dict[str, JsonValue]:
    return {
        "recipe": found.recipe,
        "name": found.name,
        "description": found.description,
        "inputs": [_input_to_json(one) for one in found.inputs],
        "tools": [
            {
                "name": one.name,
                "effect": one.effect,
                "writes": one.writes,
                "steps": list(one.steps),
                "denied_in": list(one.denied_in),
                "needs_approval_in": list(one.needs_approval_in),
            }
            for one in found.tools
        ],
        "permissions": {"allow_write": found.allow_write, **_rights_to_json(found.rights)},
        "recipes": [
            {
                "step": one.path,
                "recipe": one.recipe,
                "allow_write": one.may_write,
                **_rights_to_json(one),
            }
            for one in found.recipes
        ],
        "registered_steps": [
            {"name": one.name, "is_code": one.is_code, "steps": list(one.steps)}
            for one in found.classes
        ],
        "untrusted_flows": [
            {
                "tool": flow.tool,
                "path": [{"step": node.step, "what": node.what} for node in flow.path],
                "private": list(flow.private),
                "rule": flow.rule.value,
            }
            for flow in found.flows
        ],
        **_operator_to_json(found.operator),
        "endorsed": list(found.endorsed),
        "code": list(found.code),
        "caller_tools": list(found.caller_tools),
        "models": [
            {"name": one.name, "steps": list(one.steps), "fills_in": one.fills_in}
            for one in found.models
        ],
        "questions": [_question_to_json(one) for one in found.questions],
        "limits": dict(found.limits),
        "attempts_per_model_call": found.attempts_per_model_call,
        "model_calls": found.model_calls.to_json(),
        "tool_calls": found.tool_calls.to_json(),
        "tokens": found.spending.tokens.to_json(),
        "cost_usd": found.spending.cost_usd.to_json(),
        "calls_in_flight": found.spending.calls_in_flight,
        "steps": [_step_to_json(step) for step in found.steps],
    }


def _operator_to_json(said: OperatorUse | None) -> dict[str, JsonValue]:
    if said is None:
        return {}
    rule = said.untrusted.value if said.untrusted is not None else None
    return {"operator": {"untrusted": rule, "policies": list(said.policies)}}


def _rights_to_json(rights: RightsUse) -> dict[str, JsonValue]:
    opened = {
        "approval_when": rights.approval_when,
        "approval_rules": rights.approval_rules,
        "policies": rights.policies,
        "private_models": rights.private_models,
        "opens_config": rights.opens_config,
        "opens_secrets": rights.opens_secrets,
    }
    return {
        "allowed": list(rights.allowed),
        "refused": list(rights.refused),
        "needs_approval": list(rights.needs_approval),
        **{name: list(names) for name, names in opened.items() if names},
    }


def _question_to_json(one: Question) -> dict[str, JsonValue]:
    shown: dict[str, JsonValue] = {
        "step": one.step,
        "text": one.text,
        "form": dict(one.form) if one.form is not None else None,
        "timeout_s": one.timeout_s,
    }
    return {**shown, "default": one.default} if one.has_default else shown


def _step_to_json(step: StepBound) -> dict[str, JsonValue]:
    shown: dict[str, JsonValue] = {
        "id": step.id,
        "model_calls": step.model_calls.to_json(),
        "tool_calls": step.tool_calls.to_json(),
        "visits": step.visits,
        "turns": step.iterations.to_json(),
    }
    if step.inner is not None:  # steps of the inner recipe, run once
        shown["steps"] = [_step_to_json(each) for each in step.inner.steps]
    return shown


def _input_to_json(one: InputUse) -> dict[str, JsonValue]:
    shown: dict[str, JsonValue] = {
        "name": one.name,
        "type": one.type,
        "required": one.is_required,
        "secret": one.is_secret,
        "description": one.description,
    }
    return shown if one.is_required else {**shown, "default": one.default}


# --- `minions graph` -----------------------------------------------------------------------------


_FORMS = ("mermaid", "svg", "ascii", "json")
_FORM_OF_SUFFIX = {".svg": "svg", ".json": "json", ".mmd": "mermaid", ".mermaid": "mermaid"}


@frozen(kw_only=True, slots=False, eq=False, repr=False)
class _GraphOptions(ExtensionOptions):
    """The journal of the run that is shown."""

    db: str | None = option("--db", metavar="PATH", help="SQLite file of the journal.")


@click.command("graph")
@click.argument("recipe")
@click.option(
    "-f",
    "--format",
    "form",
    type=click.Choice(_FORMS),
    help="ascii unless FILE's name says otherwise (.svg, .mmd, .json).",
)
@click.option("-o", "--output", "file", metavar="FILE", callback=output_file, help="Write there.")
@click.option("--run", metavar="ID", help="Show how each step of that run of RECIPE ended.")
@takes_options(_GraphOptions)
def graph_command(
    options: _GraphOptions, recipe: str, form: str | None, file: str | None, run: str | None
) -> int:
    """Draw the steps of RECIPE and what waits for what: no model, no tool, no network."""
    context = command_context(options)
    catalog = context.catalog()
    loaded = checked_recipe(recipe, context, catalog).unwrap()
    picture = picture_of(loaded, tool_specs(loaded, catalog))
    if run is not None:
        picture = with_statuses(picture, _statuses(context, loaded, run))
    suffix = Path(file).suffix.lower() if file is not None else ""
    usual = "json" if context.settings.json else _FORM_OF_SUFFIX.get(suffix, "ascii")
    text = _draw(picture, form or usual)
    if file is None:
        say(text.rstrip("\n"))
    else:
        _write(Path(file), text)
        count = len(picture.nodes)
        tell(f"{file}: {count} step{'s' * (count != 1)}")
    return 0


def _statuses(context: CommandContext, recipe: AgentRecipe, name: str) -> dict[str, str]:
    """By step id, the status of the newest execution.

    Raises:
        NotFoundError, UsageError: There is no such run, or it is one of another recipe.
    """
    import asyncio

    from minions.engine.views.lookup import find_run
    from minions.engine.views.run_detail import RunDetail, show_run

    async def look() -> RunDetail:
        journal = context.known_journal()
        try:
            with naming_the_journal(context):
                run = await find_run(journal, name)
            return await show_run(journal, run)
        finally:
            await journal.aclose()

    detail = asyncio.run(look())
    found = detail.summary
    if found.recipe != recipe.id:
        raise UsageError(
            f"Run {found.run_id} is one of '{found.recipe}', not of '{recipe.id}'.",
            code="other-recipe",
        )
    return {
        step.step_id: "waits" if step.is_waiting else step.kept_as or step.status
        for step in detail.steps
    }


def _draw(picture: Picture, form: str) -> str:
    if form == "svg":
        from minions.analysis.pictures.svg import svg

        return svg(picture)
    if form == "mermaid":
        from minions.analysis.pictures.text_pictures import mermaid

        return mermaid(picture)
    if form == "json":
        from minions.analysis.pictures.text_pictures import picture_to_json

        return json_text(picture_to_json(picture)) + "\n"
    from minions.analysis.pictures.text_pictures import outline

    return outline(picture)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, "utf-8", errors="backslashreplace")
    except OSError as error:
        raise UsageError(
            f"The picture cannot be written to {path}: {error.strerror or error}.",
            code="unwritable-file",
        ) from error


# --- `minions stubs` -----------------------------------------------------------------------------


_MOST_BYTES: Final = 16_777_216


@click.command("stubs")
@click.argument("recipe")
@click.option(
    "-o", "--output", "file", metavar="FILE.py", callback=output_file, help="Write there."
)
@click.option("--check", is_flag=True, help="Only say whether FILE.py is what would be written.")
@click.option("--force", is_flag=True, help="Overwrite a file that `minions stubs` did not make.")
@takes_options(ExtensionOptions)
def stubs_command(
    options: ExtensionOptions, recipe: str, file: str | None, *, check: bool, force: bool
) -> int:
    """Write a typed client of RECIPE: a class whose `run` takes its inputs and gives its output.

    Type checkers then know the names and types of inputs, outputs and steps. With --check the exit
    code is 1 if FILE.py has to be written again.
    """
    context = command_context(options)
    target = Path(file) if file is not None else None
    if check and target is None:
        raise UsageError("--check needs the file to check: -o FILE.py.")
    loaded = checked_recipe(recipe, context, context.catalog())
    text = client_text(
        loaded.unwrap(),
        output=loaded.output,
        step_outputs=loaded.step_outputs,
        file=_path_between(recipe_path(recipe), target),
    )
    if target is None:
        say(text.rstrip("\n"))
        return 0
    before = _present(target)
    if check:
        return _check(target, before, text, recipe)
    is_ours = before is not None and before.startswith(MARK)
    refuse_target(target, force=force or is_ours)
    write_recipe(target, text, force=force or is_ours)
    tell(f"{target}: {'unchanged' if before == text else 'written'}")
    return 0


def _path_between(recipe: Path | None, target: Path | None) -> str:
    """The path of the recipe from the folder of the client; without a file they are neighbours.

    Raises:
        UsageError: The recipe has no file.
    """
    if recipe is None:
        raise UsageError("A client names the file of its recipe; - has none.")
    if target is None:
        return recipe.name
    between = os.path.relpath(recipe.absolute(), target.absolute().parent)
    return Path(between).as_posix()


def _present(target: Path) -> str | None:
    """The content of the file; None: there is none that could be a client."""
    try:
        return read_regular(target, _MOST_BYTES).decode()
    except (OSError, UnicodeDecodeError):
        return None


def _check(target: Path, before: str | None, text: str, recipe: str) -> int:
    if before == text:
        tell(f"{target}: up to date")
        return 0
    state = "does not fit the recipe any more" if before is not None else "is not there"
    tell(f"{target} {state}. Write it: minions stubs {recipe} -o {target}")
    return 1


# --- `minions schema` ----------------------------------------------------------------------------


@click.command("schema")
@click.argument("what", type=click.Choice(["recipe", "events", "api"]), default="recipe")
def schema_command(what: str) -> int:
    """Print the JSON Schema of WHAT: recipe, events, or the HTTP API (OpenAPI 3.1).

    In a recipe's first line, for editors with a YAML language server:
    # yaml-language-server: $schema=recipe.schema.json
    """
    schemas = {"recipe": recipe_schema, "events": _events, "api": _api}
    say(json_text(schemas[what](), indent=2))
    return 0


def _events() -> Mapping[str, JsonValue]:
    from minions.app.runs.event_schema import events_schema

    return events_schema()


def _api() -> Mapping[str, JsonValue]:
    from minions.interfaces.server.app import api_document

    return api_document()
