"""Which run it is, and where a recipe stands in it: nothing here changes during the run.

Also the examples of recorded runs, which stay the same to the end of the run.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from attrs import evolve, frozen

from minions.contracts.executions import RunWarning
from minions.contracts.journal.facts import ExamplesPinned, PinnedExample, WarningRecorded
from minions.contracts.journal.journal import JournalEntry
from minions.contracts.journal.run_rows import RunRow
from minions.contracts.journal.start_note import NO_CHOICE, CallerChoice, Offer
from minions.contracts.retry_config import RetryConfig
from minions.contracts.runtime import Log
from minions.contracts.secrets import Secrets
from minions.contracts.tools import Tool
from minions.data.json_values import JsonValue, dumps
from minions.engine.compile.opening_rights import MadeOf, OpeningRights
from minions.engine.history.event_stream import EventStream
from minions.engine.history.recorder import Recorder
from minions.engine.services.run_services import ChosenExamples, NullLog, Services
from minions.engine.services.secret_sources import NO_SECRETS, declared_secrets
from minions.recipe.examples import (
    ExampleChoice,
    ExampleSource,
    ExampleStepSpec,
    choose_examples,
    newest_examples,
)
from minions.recipe.model import AgentRecipe, StepSpec
from minions.recipe.model_config import ModelConfig
from minions.recipe.permissions import Rights

if TYPE_CHECKING:
    from minions.engine.history.replay import Replay
    from minions.engine.services.prompt_redaction import RunRedaction


@frozen(kw_only=True, eq=False, repr=False)
class RunScope:
    """The identity of a run, its services and rights, and the place of one recipe within it.

    A recipe that is a step of the run has a scope of its own, made by `within`: same ids, services,
    recorder and secrets, longer keys, no more rights.
    """

    run_id: str
    session_id: str
    services: Services
    events: EventStream
    recorder: Recorder
    """The only writer of the run's facts."""
    replay: Replay | None
    """What earlier executions of the run recorded; None: the run is new."""
    secrets: Secrets
    """Secrets that the run's inputs refer to, resolved."""
    rights: Rights
    """What the recipe's permissions allow, and those of each recipe around it."""
    base_model: ModelConfig
    """The recipe's model settings, over those of the recipes around it."""
    retry: RetryConfig
    """How calls of its steps are tried again, where a step states nothing of its own: as the recipe
    says, over the step that runs it and the recipes around that."""
    opening: OpeningRights | None = None
    """What the recipe may open: the run was begun by a caller. None: the operator began it."""
    examples: PinnedExamples
    """What recorded runs give as examples for its steps."""
    recipes: tuple[AgentRecipe, ...]
    """The recipe of the run first, then each that is a step of the one before; this one last."""
    caller_tools: tuple[Tool, ...] = ()
    """The tools that the caller of the run brought, for the steps that offer them."""
    caller_choice: CallerChoice = NO_CHOICE
    """What that caller wants of calls of them."""
    user: str | None = None
    """The label of the user for whom it runs; None: it has none."""
    starters: tuple[str, ...] = ()
    """Names of whoever started the run, as far as they are known."""
    redaction: RunRedaction | None = None
    """What replaces personal data in its prompts; None: nothing does."""
    keys: str = ""
    """Prefix of the journal keys of the recipe's steps: `outer~1~0~`; empty for the run itself."""
    path: str = ""
    """Prefix of the names of the recipe's steps: `outer/`; empty for the run itself."""

    @classmethod
    def of_run(
        cls,
        recipe: AgentRecipe,
        services: Services | None = None,
        *,
        inputs: Mapping[str, JsonValue] | None = None,
        run_id: str | None = None,
        session_id: str | None = None,
        replay: Replay | None = None,
        offer: Offer | None = None,
        caller_tools: tuple[Tool, ...] = (),
        caller_choice: CallerChoice = NO_CHOICE,
        user: str | None = None,
        starters: tuple[str, ...] = (),
    ) -> RunScope:
        """The scope of a whole run.

        Args:
            services: None: the defaults, with a journal in memory.
            inputs: Checked; the secrets that they refer to are resolved now.
            run_id: None: a new id.
            session_id: None: a new id.
            replay: What the run recorded before; None: the run is new.
            offer: What the caller who began it was offered; None: the operator began it.
            caller_tools: The tools that the caller brought.
            caller_choice: What the caller wants of calls of them.
            user: The label of the user for whom it runs; None: it has none.
            starters: Names of whoever started the run, as far as they are known.
        Raises:
            EnvironmentRefusedError: A secret is not there.
        """
        services = services or Services()
        run_id = run_id or services.ids("run")
        session_id = session_id or services.ids("ses")
        opening = OpeningRights.of_run(offer, recipe, inputs or {}) if offer is not None else None
        events = EventStream()
        recorder = Recorder(services, events, session_id=session_id, run_id=run_id, replay=replay)
        return cls(
            run_id=run_id,
            session_id=session_id,
            services=services,
            events=events,
            recorder=recorder,
            examples=PinnedExamples(services, recorder, user=user),
            replay=replay,
            secrets=(
                declared_secrets(recipe, inputs or {}, services.secrets)
                if recipe.inputs
                else NO_SECRETS
            ),
            rights=Rights.of(recipe, inputs, services.operator),
            opening=opening,
            base_model=recipe.model,
            retry=recipe.retry,
            recipes=(recipe,),
            caller_tools=caller_tools,
            caller_choice=caller_choice,
            user=user,
            starters=starters,
        )

    def within(
        self,
        recipe: AgentRecipe,
        *,
        keys: str,
        path: str,
        retry: RetryConfig | None = None,
        inputs: Mapping[str, JsonValue] | None = None,
        made_of: MadeOf | None = None,
    ) -> RunScope:
        """The scope of a recipe that is a step of this one's recipe.

        Args:
            retry: How calls of that step are tried again; None: as in this scope.
            inputs: Its inputs, checked.
            made_of: See `OpeningRights.within`; None: nothing is known of where they come from.
        """
        opening = self.opening
        return evolve(
            self,
            rights=self.rights.within(recipe, inputs),
            opening=opening and opening.within(recipe, inputs or {}, made_of or {}),
            base_model=self.base_model.overlaid(recipe.model),
            retry=recipe.retry.over(self.retry if retry is None else retry),
            recipes=(*self.recipes, recipe),
            keys=keys,
            path=path,
        )

    @property
    def log(self) -> Log:
        """The log of the services, with the run bound to each line."""
        from minions.engine.services.run_log import RunLog

        log = self.services.log
        if isinstance(log, NullLog):
            return log
        ids = {"run_id": self.run_id, "session_id": self.session_id}
        return RunLog(log, ids, self.secrets)

    def log_info(self, event: str, /, **facts: object) -> None:
        """Log a line, with the run bound to it."""
        self.log.info(event, **facts)

    def log_of(self, step_id: str, address: str) -> Log:
        """The log of the services, with the run and a step bound to each line.

        Args:
            address: Of the execution: that of the step, or of one item of its loop.
        """
        from minions.engine.services.run_log import RunLog

        log = self.services.log
        if isinstance(log, NullLog):
            return log
        ids = {"run_id": self.run_id, "session_id": self.session_id, "step_id": step_id}
        if address != step_id:
            ids["address"] = address
        return RunLog(log, ids, self.secrets)

    async def record_warning(self, warning: RunWarning, number: int) -> None:
        """Record and log something odd that does not stop the run.

        Args:
            number: Its place among the warnings of the whole run, from 1.
        """
        code, message = warning.code, warning.message
        self.log.warning(code.replace("-", "_"), message=message)
        fact = WarningRecorded(code=code, message=message)
        await self.recorder.record(f"warning/{number}", fact)

    @property
    def is_whole_run(self) -> bool:
        """Whether the recipe is that of the run itself, not of one of its steps."""
        return len(self.recipes) == 1

    @property
    def ids(self) -> dict[str, JsonValue]:
        """What templates read as `run`."""
        return {"id": self.run_id, "session_id": self.session_id}

    def base_key(self, step_id: str, visit: int, iteration: int = 0) -> str:
        """`step/visit/iteration`, behind the prefix of the recipe."""
        return f"{self.keys}{step_id}/{visit}/{iteration}"

    def execution_key(self, step_id: str, visit: int, iteration: int = 0) -> str:
        """As `base_key`, with `@generation` where a resume or retry begins that execution again."""
        base = self.base_key(step_id, visit, iteration)
        return base if self.replay is None else self.replay.key_of(base)

    def path_of(self, step_id: str) -> str:
        """The step's name in the whole run: `step`, or `outer/step` in a recipe within it."""
        return f"{self.path}{step_id}"

    def recorded(self, kind: str, key: str) -> JournalEntry | None:
        """The recorded end of a call; None: no earlier execution of the run recorded one."""
        return None if self.replay is None else self.replay.find(kind, key)


class PinnedExamples:
    """The examples of one run, by recipe and step."""

    def __init__(self, services: Services, recorder: Recorder, *, user: str | None = None) -> None:
        """Nothing is read before `pin`; what earlier executions recorded is found in the replay.

        Args:
            user: The user for whom the run is: no other user's run gives it an example.
        """
        self._user = user
        self._services = services
        self._chosen = services.chosen_examples
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
        known = self._chosen.get(place)
        if known is not None and known.fits(recipe, (judged.entries, ends)):
            examples = known.examples  # as a batch asks it for each of its lines
        else:
            examples = await self._choose_examples(recipe, step, source, runs)
            self._chosen.keep(place, ChosenExamples(recipe, (judged.entries, ends), examples))
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
        if step.nearest is not None:  # chosen among these for each question
            chosen = newest_examples(free, step.output)
        else:
            most, max_tokens = source.most, source.max_tokens
            chosen = choose_examples(free, step.output, most=most, max_tokens=max_tokens)
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
        **({"choose": ExampleChoice.NEAREST.value} if step.nearest is not None else {}),
    }
    return hashlib.sha256(dumps(decisive).encode("utf-8", "surrogatepass")).hexdigest()[:16]
