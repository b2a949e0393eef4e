"""The examples from recorded runs that a run shows its models: chosen once, and recorded with it.

Runs that come in meanwhile change nothing, and a resumed run shows what it showed before.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterator, Mapping, Sequence

from minions.contracts.journal.facts import ExamplesPinned, PinnedExample
from minions.contracts.journal.run_rows import RunRow
from minions.data.json_values import JsonValue, dumps
from minions.engine.history.recorder import Recorder
from minions.engine.services.services import ChosenExamples, Services
from minions.recipe.examples import ExampleSource, ExampleStepSpec, choose_examples
from minions.recipe.model import AgentRecipe, StepSpec


class PinnedExamples:
    """The examples of one run, by recipe and step."""

    def __init__(self, services: Services, recorder: Recorder, *, user: str | None = None) -> None:
        """Nothing is read before `pin`; what earlier executions recorded is found in the replay.

        Args:
            user: The user for whom the run is: no other user's run gives it an example.
        """
        self._user = user
        self._services = services
        self._recorder = recorder
        self._pinned: dict[tuple[str, str], ExamplesPinned] = {}
        self._choosing = asyncio.Lock()  # parallel steps may run the same recipe

    def of(self, recipe_id: str, step_id: str) -> Sequence[tuple[str, JsonValue]]:
        """Questions and answers for a step, in the order in which they are shown."""
        pinned = self._pinned.get((recipe_id, step_id))
        examples = pinned.examples if pinned is not None else ()
        return [(each.question, each.answer) for each in examples]

    async def pin(self, recipe: AgentRecipe) -> None:
        """Choose and record the examples of a recipe and of those that its steps run, where that
        was not done before.

        Raises:
            JournalError: The journal cannot be read, or refuses the fact.
        """
        for owner, step in _steps_of(recipe):
            async with self._choosing:
                key, fingerprint = (owner.id, step.id), _fingerprint(step)
                known = self._pinned.get(key) or self._recorded_pin(key)
                if known is None or known.fingerprint != fingerprint:
                    known = await self._choose(owner, step, fingerprint)
                self._pinned[key] = known

    def _recorded_pin(self, key: tuple[str, str]) -> ExamplesPinned | None:
        replay = self._recorder.replay
        return replay.examples.get(key) if replay is not None else None

    async def _choose(
        self, recipe: AgentRecipe, step: ExampleStepSpec, fingerprint: str
    ) -> ExamplesPinned:
        from minions.engine.views.recorded_examples import MOST_RUNS, judged_runs

        source, journal = step.recorded_examples, self._services.journal
        assert source is not None  # noqa: S101  # selected by it
        judged = await judged_runs(
            journal, recipe.id, limit=MOST_RUNS, project=self._services.project
        )
        runs = [run for run in judged.runs if self._may_learn_from(run)]
        ends = tuple((run.run_id, run.ended_at) for run in runs)
        place = (recipe.id, step.id, f"{fingerprint} {self._user}")
        known = self._services.chosen_examples.get(place)
        if known is not None and known.fits(recipe, (judged.entries, ends)):
            examples = known.examples  # as a batch asks it for each of its lines
        else:
            examples = await self._choose_examples(recipe, step, source, runs)
            self._services.chosen_examples.keep(
                place, ChosenExamples(recipe, (judged.entries, ends), examples)
            )
        fact = ExamplesPinned(
            recipe=recipe.id, step=step.id, fingerprint=fingerprint, examples=examples
        )
        await self._recorder.record(f"examples/{recipe.id}:{step.id}", fact)
        return fact

    def _may_learn_from(self, run: RunRow) -> bool:
        """Not from itself. What other users were told is shown to nobody, and what they call good
        counts for nobody else; what has no user is the operator's.
        """
        is_own = self._user is None or run.user in (None, self._user)
        return is_own and run.run_id != self._recorder.run_id

    async def _choose_examples(
        self,
        recipe: AgentRecipe,
        step: ExampleStepSpec,
        source: ExampleSource,
        runs: Sequence[RunRow],
    ) -> tuple[PinnedExample, ...]:
        from minions.engine.views.judgements import ExampleReason
        from minions.engine.views.recorded_examples import examples_of_runs

        found = await examples_of_runs(
            self._services.journal,
            runs,
            recipe,
            step,
            reasons={ExampleReason.APPROVED},
            held_out=source.held_out,
        )
        free = [each for each in found.candidates if each.example.question not in source.asked]
        chosen = choose_examples(free, step.output, most=source.most, max_tokens=source.max_tokens)
        return tuple(
            PinnedExample(
                question=each.example.question,
                answer=each.example.answer,
                run=each.origin.partition(" ")[0],
                address=each.origin.partition(" ")[2],
            )
            for each in chosen
        )


def _steps_of(recipe: AgentRecipe) -> Iterator[tuple[AgentRecipe, ExampleStepSpec]]:
    """The steps that take examples from recorded runs, each with its recipe."""
    for step in recipe.steps:
        if isinstance(step, ExampleStepSpec) and step.recorded_examples is not None:
            yield recipe, step
        elif isinstance(step, StepSpec) and step.inner is not None:
            yield from _steps_of(step.inner)


def _fingerprint(step: ExampleStepSpec) -> str:
    source = step.recorded_examples
    assert source is not None  # noqa: S101  # selected by it
    decisive: Mapping[str, JsonValue] = {
        "goal": step.example_question,
        "output": step.output,
        "most": source.most,
        "max_tokens": source.max_tokens,
        "held_out": list(source.held_out),
        "asked": list(source.asked),
    }
    return hashlib.sha256(dumps(decisive).encode("utf-8", "surrogatepass")).hexdigest()[:16]
