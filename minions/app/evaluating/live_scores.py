"""Judges what runs: scores a sample of a recipe's recorded runs, and says whether they got worse.

It reads and adds rows of runs that have ended, so nothing of it stands on the path of a run. Each
score is a fact beside the run; what is scored is not scored again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from attrs import field, frozen

from minions.app.evaluating.evaluation_runs import ScorerFailedError, score_output
from minions.app.settings.settings import Settings, bounded
from minions.app.wiring.configured_models import ModelChoice
from minions.app.wiring.configured_runtime import Runtime
from minions.contracts.executions import RunState
from minions.contracts.journal.facts import ScoreFact, ScoreRecorded, given
from minions.contracts.journal.journal import Journal, JournalEntry
from minions.contracts.journal.run_rows import RunFilter, RunRow
from minions.contracts.journal.start_note import StartNote
from minions.contracts.messages import TokenUsage
from minions.data.codec import encode
from minions.data.errors import Fault, MinionsError, UsageError
from minions.data.json_values import JsonValue, dumps
from minions.engine.batches.batch import Batch, BatchPlan
from minions.engine.batches.lines import BatchLine
from minions.engine.history.event_stream import EventStream
from minions.engine.history.recorded_calls import recorded_end
from minions.engine.history.recorder import Recorder
from minions.engine.run.recorded_run import load_recorded_run
from minions.engine.services.event_loop import breathe
from minions.evaluation.cases import Case
from minions.evaluation.scorer_checks import (
    grade_of,
    grader_inputs,
    grader_recipe,
    read_live_scorers,
)
from minions.evaluation.scorers import AnyScorer, GradedBy, Score, Scorer, ToolScorer
from minions.evaluation.statistics import Interval, difference_of_groups, rate_interval
from minions.recipe.catalog import Catalog
from minions.recipe.language.recipe_keys import WATCH
from minions.recipe.model import AgentRecipe, WatchSpec
from minions.recipe.text.sections import read_section
from minions.recipe.text.yaml_reader import read_document

MOST_RUNS: Final = 2_000
"""Runs of the recipe that are looked at, the newest: those of the sample among them."""
_PAGE: Final = 200
_FEWEST: Final = 10
"""Scored runs before which there is no alarm."""
_LONGEST_REASON: Final = 300


@frozen(kw_only=True)
class WatchedScorer:
    """What one scorer said of the sampled runs."""

    scorer: str
    scored: int
    """Runs of the sample that it gave a score."""
    failed: int
    """Runs to which it gave none."""
    compared: int = 0
    """The newest of these runs, which `recent` is of."""
    recent: Interval | None = None
    """The share that passed among the newest; None: none is scored."""
    before: Interval | None = None
    """That of the first scored runs; None: there are too few, or a share is wanted."""
    change: Interval | None = None
    """The newest against the first ones."""
    is_alarm: bool = False
    """Whether the newest are worse than wanted or than the first, by the whole interval."""
    worse_run: str | None = None
    """The newest run that did not pass; None: all did."""
    worse_session: str | None = None
    """Its session."""

    def to_json(self) -> dict[str, JsonValue]:
        """The scorer as `--json` prints it."""
        named = {"recent": self.recent, "before": self.before, "change": self.change}
        return {
            "scorer": self.scorer,
            "scored": self.scored,
            "failed": self.failed,
            "compared": self.compared,
            "alarm": self.is_alarm,
            "run": self.worse_run,
            **{
                name: None if each is None else [each.value, each.low, each.high]
                for name, each in named.items()
            },
        }


@frozen(kw_only=True)
class WatchReport:
    """The state of a recipe's watch."""

    recipe: str
    sampled: int
    """Runs of the sample among those that were looked at."""
    scorers: tuple[WatchedScorer, ...]
    new: int = 0
    """Scores that were given now."""
    usage: TokenUsage = field(factory=TokenUsage)
    """What models that graded now have used."""
    left: str | None = None
    """Why not all of the sample is scored; None: it is."""
    has_more: bool = False
    """Whether more could be scored at once: the look was bounded."""

    @property
    def is_alarm(self) -> bool:
        """Whether any scorer says that runs got worse."""
        return any(each.is_alarm for each in self.scorers)

    def to_json(self) -> dict[str, JsonValue]:
        """The report as `--json` prints it."""
        return {
            "recipe": self.recipe,
            "alarm": self.is_alarm,
            "sampled": self.sampled,
            "new": self.new,
            "usage": self.usage.to_json(),
            "left": self.left,
            "scorers": [each.to_json() for each in self.scorers],
        }


def is_sampled(run_id: str, share: float) -> bool:
    """Whether a run belongs to the sample: the same each time, whoever asks.

    Args:
        share: Of all runs, from 0 to 1.
    """
    digest = hashlib.sha256(run_id.encode()).digest()
    return int.from_bytes(digest[:8]) < share * 2**64


def watch_of(recipe: AgentRecipe, catalog: Catalog) -> tuple[WatchSpec, tuple[AnyScorer, ...]]:
    """The recipe's watch and its scorers.

    Args:
        catalog: The tools and models that scorers may name. The check of a recipe's text has
            reported the same, but not that of a recipe made by code or read from a run.
    Raises:
        UsageError: `no-watch`: it has none. `bad-watch`: a scorer is none, compares with a known
            answer, reads what the output never has, or names a tool that is not registered or may
            change something.
    """
    watch = recipe.watch
    if watch is None:
        raise UsageError(
            f"The recipe '{recipe.id}' has no `watch`. Add one: "
            'watch: {sample: 5%, scorers: [{holds: "output is not none"}]}.',
            code="no-watch",
        )
    faults: list[Fault] = []
    text = dumps({"sample": watch.sample, "scorers": list(watch.scorers)})
    section = read_section(read_document(text, "watch"), WATCH, faults.append)
    scorers = read_live_scorers(section, recipe.known_output, recipe.inputs, catalog, faults.append)
    if errors := [each.message for each in faults if not each.is_warning]:
        problems = "; ".join(dict.fromkeys(errors))
        raise UsageError(f"The recipe '{recipe.id}', watch.scorers: {problems}.", code="bad-watch")
    return watch, scorers


class Watch:
    """Scores the runs of one recipe, and compares the newest with the first ones."""

    def __init__(
        self, runtime: Runtime, recipe: AgentRecipe, *, project: str | None = None
    ) -> None:
        """Check the watch; nothing is read yet.

        Args:
            project: The folder of the project whose runs are looked at; None: all.
        Raises:
            UsageError: As `watch_of`.
        """
        self._watch, self._scorers = watch_of(recipe, runtime.catalog)
        self._runtime = runtime
        self._services = runtime.services
        self._recipe = recipe
        self._project = project
        self._new = 0
        self._usage = TokenUsage()
        self._left: str | None = None
        self._complete: dict[str, Sequence[JournalEntry]] = {}
        """The scores of runs that have all of them, by run: they are read once."""
        self._passed_over: set[str] = set()
        """Runs of the sample that get no score: those that are foreign, or damaged."""

    async def report(
        self, *, scores_new: bool = True, most: int | None = None, until: datetime | None = None
    ) -> WatchReport:
        """The state of the watch. Called again, it reads what is new.

        Args:
            scores_new: Whether runs of the sample that have no score get one before.
            most: How many runs get one at most; None: all.
            until: The time after which none is begun with; None: no time.
        Raises:
            JournalError: The journal cannot be read.
            EnvironmentRefusedError: There is no model that could grade.
        """
        self._new, self._usage, self._left = 0, TokenUsage(), None
        runs = await self._read_sample()
        said: list[Sequence[JournalEntry]] = []
        spent = TokenUsage()
        clock, journal = self._services.clock, self._services.journal
        day = clock.now() - timedelta(days=1)
        names = {each.name for each in self._scorers}
        for run in runs:
            rows = self._complete.get(run.run_id) or await _scores_of(journal, run)
            spent = sum((_usage_in(row) for row in rows if row.at >= day), spent)
            said.append(rows)
        begun, has_more = 0, False
        for at, run in enumerate(runs if scores_new else ()):
            if run.run_id in self._passed_over:
                continue
            known = {_score_in(row).scorer for row in said[at]}
            missing = [each for each in self._scorers if each.name not in known]
            if (why := self._used_up(spent)) is not None:
                waiting = [each for each in missing if isinstance(each, GradedBy)]
                self._left = why if waiting else self._left
                missing = [each for each in missing if each not in waiting]
            if not missing:
                continue
            if begun == most or (until is not None and clock.now() >= until):
                has_more = True
                break
            begun += 1
            spent += await self._score(run, missing, spent)
            said[at] = await _scores_of(journal, run)
            await breathe()
        self._complete = {
            run.run_id: rows
            for run, rows in zip(runs, said, strict=True)
            if names <= {_score_in(row).scorer for row in rows}
        }
        self._passed_over.intersection_update(run.run_id for run in runs)
        return WatchReport(
            recipe=self._recipe.id,
            sampled=len(runs),
            scorers=tuple(self._scorer(each.name, said) for each in self._scorers),
            new=self._new,
            usage=self._usage,
            left=self._left,
            has_more=has_more,
        )

    async def _read_sample(self) -> list[RunRow]:
        """The completed runs of the sample, the oldest first."""
        wanted = RunFilter(
            recipe=self._recipe.id, statuses=(RunState.COMPLETED,), project=self._project
        )
        found: list[RunRow] = []
        after: RunRow | None = None
        for _ in range(MOST_RUNS // _PAGE):
            journal = self._services.journal
            page = await journal.runs(wanted, limit=_PAGE, after=after)
            found += (row for row in page if is_sampled(row.run_id, self._watch.sample))
            if len(page) < _PAGE:
                break
            after = page[-1]
        return found[::-1]

    async def _score(
        self, run: RunRow, scorers: Sequence[AnyScorer], spent: TokenUsage
    ) -> TokenUsage:
        """Score one run by these; what it used. A run that cannot be read has no score."""
        services = self._services
        try:
            recorded = await load_recorded_run(services.journal, run.run_id)
            if is_foreign(recorded.noted):
                self._passed_over.add(run.run_id)
                return TokenUsage()
            end = await recorded_end(services.journal, run)
        except MinionsError as error:  # a damaged run harms only itself
            self._left = f"{run.run_id} cannot be read: {error.message}"
            if error.error_code == "corrupt-entry":
                self._passed_over.add(run.run_id)
            return TokenUsage()
        output = None if end is None else given(end.output)
        inputs = {key: each for key, each in recorded.inputs.items() if key in self._recipe.inputs}
        case = Case(index=0, name=run.run_id, inputs=inputs)
        used = TokenUsage()
        for scorer in scorers:
            if isinstance(scorer, GradedBy):
                self._left = self._used_up(spent + used) or self._left
                if self._used_up(spent + used) is not None:
                    continue
                fact = await self._grade(scorer, case, output, spent + used)
            else:
                fact = await self._plain_score(scorer, case, output)
            used += _usage_of(fact)
            # Its own key: whoever else scores the run at this moment is refused by the journal.
            digest = hashlib.sha256(scorer.name.encode("utf-8", "surrogatepass")).hexdigest()
            await self._record(run, f"score/{digest[:16]}", fact)
        return used

    def _used_up(self, spent: TokenUsage) -> str | None:
        """Why models grade nothing more today; None: they do."""
        watch, cost = self._watch, spent.cost_usd or 0.0
        if spent.total_tokens >= watch.max_tokens_per_day:
            return f"models that grade may use {watch.max_tokens_per_day:,} tokens a day"
        if watch.max_cost_usd_per_day is not None and cost >= watch.max_cost_usd_per_day:
            return f"models that grade may cost ${watch.max_cost_usd_per_day:g} a day"
        return None

    async def _plain_score(
        self, scorer: Scorer | ToolScorer, case: Case, output: JsonValue
    ) -> ScoreRecorded:
        try:
            score = await score_output(self._runtime, scorer, case, output)
        except ScorerFailedError as error:  # it says nothing of the run
            return _no_score(scorer.name, str(error))
        return _fact_of(score, TokenUsage())

    async def _grade(
        self, grader: GradedBy, case: Case, output: JsonValue, spent: TokenUsage
    ) -> ScoreRecorded:
        """Ask a model. Killed before the score was recorded, the recorded answer is taken again."""
        most_usd = self._watch.max_cost_usd_per_day
        if most_usd is not None:
            most_usd -= spent.cost_usd or 0.0
        recipe = bounded(grader_recipe(), Settings(max_cost_usd=most_usd))
        executor = self._runtime.executor(
            recipe, ModelChoice(override=grader.model, asked_as=self._recipe.id, command="watch")
        )
        line = BatchLine(index=0, inputs=grader_inputs(grader, case, output), place=case.name)
        plan = BatchPlan(
            name=dumps(["watch", case.name, grader.rubric, grader.model]),
            concurrency=1,
            max_cost_usd=most_usd,
            retry_outages=True,
            note=StartNote(evaluation=f"watch of {self._recipe.id}").to_json(),
        )
        batch = Batch(executor, recipe, iter([line]), plan)
        fact = _no_score(grader.name, "the model was not asked")
        async for result in batch:
            score = grade_of(grader, encode(result.output))
            if score is not None:
                fact = _fact_of(score, result.usage)
            else:
                why = result.error.message if result.error is not None else str(result.status)
                fact = _no_score(grader.name, why, result.usage)
            self._usage += result.usage
        return fact

    async def _record(self, run: RunRow, key: str, fact: ScoreRecorded) -> None:
        services = self._services
        recorder = Recorder(services, EventStream(), session_id=run.session_id, run_id=run.run_id)
        try:
            await recorder.record(key, fact)
        except MinionsError as error:  # its session is being executed, for one: the next pass may
            self._left = f"{run.run_id} takes no score now: {error.message}"
        else:
            self._new += 1
        finally:
            await recorder.close()

    def _scorer(self, name: str, said: Sequence[Sequence[JournalEntry]]) -> WatchedScorer:
        given_rows = [row for rows in said for row in rows if _score_in(row).scorer == name]
        facts = [_score_in(row) for row in given_rows]
        passed = [each.is_passed for each in facts if each.value is not None]
        window = self._watch.window
        recent = passed[-window:]
        now = rate_interval([*map(float, recent)])
        before = change = None
        if self._watch.at_least is not None:
            worse = now is not None and now.high < self._watch.at_least
        else:
            first = passed[: min(window, len(passed) - len(recent))]
            before, change = rate_interval([*map(float, first)]), None
            if len(first) >= _FEWEST:
                change = difference_of_groups(first, recent)
            worse = change is not None and change.high < 0
        failing = (row for row in reversed(given_rows) if _has_failed(_score_in(row)))
        worst = next(failing, None)
        return WatchedScorer(
            scorer=name,
            scored=len(passed),
            failed=len(facts) - len(passed),
            compared=len(recent),
            recent=now,
            before=before,
            change=change,
            is_alarm=worse and len(recent) >= _FEWEST,
            worse_run=None if worst is None else worst.run_id,
            worse_session=None if worst is None else worst.session_id,
        )


def is_foreign(note: StartNote) -> bool:
    """Whether runs with that note are not judged: of evaluations, or with a stranger's recipe."""
    is_brought = note.offer is not None and note.offer.brings_recipe
    return note.evaluation is not None or note.is_strangers or is_brought


def _has_failed(score: ScoreRecorded) -> bool:
    return score.value is not None and not score.is_passed


async def _scores_of(journal: Journal, run: RunRow) -> Sequence[JournalEntry]:
    """The scores that were given here, the oldest first."""
    rows = await journal.entries(run.session_id, run_id=run.run_id, kinds={ScoreFact.kind})
    return [row for row in rows if isinstance(row.fact, ScoreRecorded)]


def _score_in(row: JournalEntry) -> ScoreRecorded:
    assert isinstance(row.fact, ScoreRecorded)  # noqa: S101  # `_scores_of` gives no other
    return row.fact


def _usage_in(row: JournalEntry) -> TokenUsage:
    return _usage_of(_score_in(row))


def _usage_of(fact: ScoreRecorded) -> TokenUsage:
    return TokenUsage(
        input_tokens=fact.input_tokens, output_tokens=fact.output_tokens, cost_usd=fact.cost_usd
    )


def _fact_of(score: Score, usage: TokenUsage) -> ScoreRecorded:
    return ScoreRecorded(
        scorer=score.scorer,
        value=score.value,
        is_passed=score.is_passed,
        reason=None if score.reason is None else score.reason[:_LONGEST_REASON],
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cost_usd=usage.cost_usd,
    )


def _no_score(scorer: str, why: str, usage: TokenUsage | None = None) -> ScoreRecorded:
    usage = usage or TokenUsage()
    return ScoreRecorded(
        scorer=scorer,
        reason=why[:_LONGEST_REASON],
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cost_usd=usage.cost_usd,
    )
