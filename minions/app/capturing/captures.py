"""Captures recorded runs: from their traces to a recipe that is checked and proved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from attrs import evolve, frozen

from minions.app.capturing.proofs import Proof, prove_recipe
from minions.app.capturing.recorded_traces import RecordedTrace, read_trace, traces_of_tests
from minions.app.evaluating.recipe_tests import recorded_call
from minions.app.wiring.configured_runtime import Runtime
from minions.capture.captured_program import Evidence, JudgedNode, Program, Question
from minions.capture.program_building import build_program
from minions.capture.recipe_writing import (
    RecipeSource,
    Surprise,
    WrittenRecipe,
    templates_of,
    write_recipe_document,
)
from minions.capture.template_writing import step_name
from minions.capture.traces import Trace
from minions.contracts.messages import TokenUsage
from minions.contracts.tools import ToolSpec
from minions.data.errors import Fault, UsageError
from minions.data.json_values import JsonValue
from minions.recipe.checks.flows import toolset_of
from minions.recipe.model import AgentRecipe
from minions.recipe.permissions import tool_specs
from minions.recipe.reading.load import LoadedRecipe, check_recipe_text
from minions.recipe.text.yaml_reader import yaml_text

MOST_TRACES: Final = 50
"""Runs and sessions of one capture."""


@frozen(kw_only=True)
class Capture:
    """A recipe that was captured from recorded runs."""

    text: str
    """The recipe, as YAML."""
    files: Mapping[str, str]
    """Files that belong beside it, by name."""
    recipe: AgentRecipe | None
    """The recipe; None: it has faults."""
    faults: tuple[Fault, ...]
    """Faults and warnings of its static check, unknown types among them."""
    program: Program
    traces: tuple[Trace, ...]
    proof: Proof
    agent: RecordedTrace | None = None
    """The first run with the recipe of its agent; None: a captured recipe was extended."""

    @property
    def questions(self) -> tuple[Question, ...]:
        """What a person has to choose before the recipe can be written."""
        return self.program.questions

    @property
    def evidence(self) -> tuple[Evidence, ...]:
        """Where each value comes from."""
        return self.program.evidence

    @property
    def problems(self) -> tuple[str, ...]:
        """Why it may only be written as a draft; empty: it is proved."""
        faults = [f"{each.code}: {each.message}" for each in self.faults if not each.is_warning]
        asked = [f"{each.place} may come from several places" for each in self.questions]
        return (*faults, *asked, *self.program.problems, *self.proof.differences)

    @property
    def is_proved(self) -> bool:
        """Whether it passes its checks, asks nothing and does again what the runs did."""
        return not self.problems

    @property
    def usage_before(self) -> TokenUsage:
        """What the runs used, on average."""
        return _mean([each.usage for each in self.traces])

    @property
    def judgements(self) -> int:
        """Steps that ask a model."""
        return sum(isinstance(each, JudgedNode) for each in self.program.steps)

    def to_json(self) -> dict[str, JsonValue]:
        """The capture as `--json` prints it."""
        return {
            "recipe": self.text,
            "runs": [run for each in self.traces for run in each.runs],
            "evidence": [
                {"place": x.place, "how": x.how, "source": x.source, "because": x.because}
                for x in self.evidence
            ],
            "questions": [
                {"place": x.place, "value": x.value, "choices": list(x.choices)}
                for x in self.questions
            ],
            "left_out": [
                {
                    "tool": x.call.tool,
                    "arguments": dict(x.call.arguments),
                    "place": x.call.place,
                    "reason": x.reason,
                }
                for x in self.program.left_out
            ],
            "proof": self.proof.to_json(),
            "problems": list(self.problems),
            "model_calls": {
                "agent": max(each.model_calls for each in self.traces),
                "recipe": self.judgements,
            },
        }


async def capture_runs(
    names: Sequence[str],
    runtime: Runtime,
    *,
    recipe_id: str | None = None,
    answers: Mapping[str, str] | None = None,
    accepts: bool = False,
    on_surprise: Surprise = Surprise.FAIL,
) -> Capture:
    """Capture recorded runs, or sessions, of the same kind of task as one recipe.

    Args:
        names: Ids of runs or sessions, or unique starts of them.
        recipe_id: The id of the recipe; None: made of the agent's.
        answers: By place, what a person chose where a value may come from several places.
        accepts: Whether the proposed choice counts where nobody chose.
        on_surprise: What becomes of a run in which something is as it was never seen.
    Raises:
        NotFoundError, UsageError: There is no such run, it did not come to an end, was imported, or
            its recipe was made by code.
        RecipeError: What its recipe names is not registered any more.
        JournalError: The journal cannot be read.
    """
    if not 0 < len(names) <= MOST_TRACES:
        raise UsageError(
            f"{len(names)} runs were named; from 1 to {MOST_TRACES} can be captured together.",
            code="usage",
        )
    journal = runtime.services.journal
    catalog = runtime.catalog
    traces = [await read_trace(journal, name, catalog) for name in dict.fromkeys(names)]
    specs: dict[str, ToolSpec] = {}
    for each in traces:
        specs.update(each.specs)
    source = RecipeSource(
        id=recipe_id or f"{step_name(traces[0].recipe.id).replace('_', '-')}-captured",
        document=traces[0].recorded.document or {},
        specs=specs,
        toolsets={name: toolset_of(spec) for name, spec in specs.items()},
        on_surprise=on_surprise,
        described=frozenset(catalog.tools),
    )
    captured = await _captured(
        [each.trace for each in traces], source, runtime, answers or {}, accepts=accepts
    )
    return evolve(captured, agent=traces[0])


async def extend_recipe(
    recipe: AgentRecipe,
    names: Sequence[str],
    runtime: Runtime,
    *,
    answers: Mapping[str, str] | None = None,
    accepts: bool = False,
) -> Capture:
    """A captured recipe with the ways of further runs: of its own, in which something was a
    surprise, or of the agent. It is proved on all of them.

    Raises:
        UsageError: It was not captured, or a run had another task; else as `capture_runs`.
    """
    catalog = runtime.catalog
    traces = list(traces_of_tests(recipe))
    specs = dict(tool_specs(recipe, catalog))
    for name in dict.fromkeys(names):
        found = await read_trace(runtime.services.journal, name, catalog, recipe)
        traces.append(found.trace)
        specs.update(found.specs)
    step = recipe.on_surprise
    source = RecipeSource(
        id=recipe.id,
        document=recipe.document or {},
        specs=specs,
        toolsets={name: toolset_of(spec) for name, spec in specs.items()},
        on_surprise=Surprise(step) if step in tuple(Surprise) else Surprise.FAIL,
        described=frozenset(catalog.tools),
    )
    before = templates_of(recipe.document or {})
    return await _captured(traces, source, runtime, answers or {}, accepts=accepts, before=before)


async def _captured(
    traces: Sequence[Trace],
    source: RecipeSource,
    runtime: Runtime,
    answers: Mapping[str, str],
    *,
    accepts: bool,
    before: Mapping[str, str] | None = None,
) -> Capture:
    def write() -> tuple[Program, WrittenRecipe, str, LoadedRecipe]:
        program = build_program(
            traces,
            source.specs,
            answers=answers,
            accepts=accepts,
            before=before,
            described=source.described,
        )
        written = write_recipe_document(program, traces, source)
        text = yaml_text(dict(written.document), has_blocks=True)
        loaded = check_recipe_text(text, f"{source.id}.yaml", runtime.catalog)
        return program, written, text, loaded

    program, written, text, loaded = await runtime.services.beside.run(write)
    proof = Proof(tests=())
    if loaded.recipe is not None:
        proof = await prove_recipe(_with_calls(loaded.recipe, written), runtime)
    return Capture(
        text=text,
        files=written.files,
        recipe=loaded.recipe,
        faults=(*loaded.faults, *loaded.unchecked),
        program=program,
        traces=tuple(traces),
        proof=proof,
    )


def _with_calls(recipe: AgentRecipe, written: WrittenRecipe) -> AgentRecipe:
    """The recipe with the calls of its tests, whose files are not written yet."""
    tests = [
        evolve(test, calls_file=None, calls=tuple(map(recorded_call, calls)))
        for test, calls in zip(recipe.tests, written.calls, strict=True)
    ]
    return evolve(recipe, tests=tuple(tests))


def _mean(usages: Sequence[TokenUsage]) -> TokenUsage:
    total = sum(usages, TokenUsage())
    count = len(usages)
    cost = total.cost_usd
    return TokenUsage(
        input_tokens=round(total.input_tokens / count),
        output_tokens=round(total.output_tokens / count),
        cached_tokens=round(total.cached_tokens / count),
        cost_usd=None if cost is None else cost / count,
    )
