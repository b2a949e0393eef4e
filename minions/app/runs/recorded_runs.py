"""Recorded runs of an application: pending decisions, resume, retry, rollback."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from minions.app.runs.application_runs import ApplicationRuns, RecipeLike
from minions.app.runs.run_policy import RunPolicy
from minions.app.runs.run_stream import RunStream
from minions.contracts.approvals import DecisionMaker
from minions.contracts.calls import ChatModel
from minions.contracts.decision_types import ApprovalClass, Approve, Reject, Verdict, word_of
from minions.contracts.executions import OutputT
from minions.contracts.file_changes import RollbackReport
from minions.contracts.journal.start_note import StartNote
from minions.contracts.secrets import GivenInputs, plain_inputs
from minions.data.errors import UsageError
from minions.data.json_values import JsonValue, dumps
from minions.engine.calls.inbox import InboxItem, list_inbox
from minions.engine.calls.pending_decisions import PendingDecision, pending_decisions
from minions.engine.history.replay import Replay
from minions.engine.run.agent_run import AgentRun
from minions.engine.run.recorded_run import RecordedRun, load_recorded_run
from minions.engine.sessions.rollback import roll_back_run
from minions.engine.views.lookup import find_run
from minions.recipe.model import AgentRecipe

_WORDS: Final[Mapping[str, str]] = {
    Verdict.APPROVED: word_of(Approve()),
    Verdict.REJECTED: word_of(Reject()),
}
_REASONS: Final = "decision_reasons"


class RecordedRuns(ApplicationRuns):
    """The part of `Minions` that continues recorded runs: decisions, resume, retry and
    rollback.
    """

    def decide(
        self,
        run: str,
        key: str,
        verdict: Verdict | str,
        *,
        output_class: type[OutputT] | None = None,
        arguments: Mapping[str, JsonValue] | None = None,
        reason: str | None = None,
        recipe: RecipeLike | None = None,
        by: str | None = None,
        roles: Iterable[str] = (),
        all_like: ApprovalClass | None = None,
    ) -> RunStream[OutputT]:
        """Make a decision that a run waits for, and resume it: await it, or iterate over its
        events.

        Args:
            run: Its id, or a unique prefix of it, or the id of its session.
            key: The key of the decision, from the `waiting` event or from `waiting`; also the name
                of its tool or step, if only one decision with that name waits.
            verdict: `Verdict.APPROVED` or `Verdict.REJECTED`; of a call in doubt `"redo"`,
                `"done"`, `"done:JSON"` or `"fail"`. For questions see `answer`.
            arguments: Of an approval: the tool is called with exactly these instead of those shown.
            reason: Why. That of a rejection is part of the decision: the failure says it, and the
                model reads it under `tool_failure: report`. Any other is stored with the resumed
                run, for readers of the journal.
            recipe: As for `resume`.
            by: Who decides; None: it is not told, so that the decision counts nowhere where the
                recipe says who may decide. The program vouches for the name and the roles.
            roles: What they are: `finance`.
            all_like: Of an approval: which later calls of the run it covers, too; None: none.
        Raises:
            As `resume`; UsageError also if no decision with that key waits, or if they may not make
            it (`not-a-decider`).
        """
        word = _word(verdict)
        if arguments is not None:
            word = _with_arguments(word, arguments)
        if all_like is not None:
            word = _with_class(word, arguments, all_like)
        if reason and word == _WORDS[Verdict.REJECTED]:
            word, reason = word_of(Reject(reason=reason)), None
        reasons = {key: reason} if reason is not None else {}
        maker = None
        if by is not None:
            maker = DecisionMaker(name=by, roles=tuple(roles), way="library")
        return self._resume_stream(run, recipe, {key: word}, output_class, reasons, maker)

    def answer(
        self,
        run: str,
        key: str,
        value: JsonValue,
        *,
        output_class: type[OutputT] | None = None,
    ) -> RunStream[OutputT]:
        """Answer the question of an `ask` step, and resume the run, as `decide` does.

        Raises:
            As `decide`; UsageError also if the value does not fit the question's form.
        """
        text = value if isinstance(value, str) else dumps(value)
        return self._resume_stream(run, None, {key: f"answer:{text}"}, output_class, {})

    def resume(
        self,
        run: str,
        *,
        output_class: type[OutputT] | None = None,
        recipe: RecipeLike | None = None,
        decisions: Mapping[str, str] | None = None,
    ) -> RunStream[OutputT]:
        """Resume a run that was killed, cancelled, stopped by a limit, or waits for a decision.

        Await it, or iterate over its events. Recorded work is replayed, not done again.

        Args:
            run: Its id, or a unique prefix of it, or the id of its session.
            recipe: Needed for a recipe of Step objects that this object has not run before.
            decisions: Several decisions at once, as `AgentExecutor.resume` takes them.
        Raises:
            NotFoundError: There is no such run.
            UsageError: It failed (`retry` it), the code differs, or a decision is not valid.
            EnvironmentRefusedError: There is no model, or another worker executes the run.
        """
        return self._resume_stream(run, recipe, decisions or {}, output_class, {})

    def retry(
        self,
        run: str,
        *,
        output_class: type[OutputT] | None = None,
        recipe: RecipeLike | None = None,
        from_step: str | None = None,
        inputs: GivenInputs | None = None,
    ) -> RunStream[OutputT]:
        """Run failed steps again, and those that changed or read an output that changed.

        Await it, or iterate over its events.

        Args:
            run: As for `resume`.
            recipe: An edited recipe; None: the run's own.
            from_step: This step and all that follow it run again, too.
            inputs: Inputs that replace those of the run: steps that read them run again.
        Raises:
            As `resume`.
        """

        async def begin() -> AgentRun[OutputT]:
            recorded = await self._load_run(run)
            found = self._recipe_of(recorded, recipe)
            return self._executor(found, self._model_of(recorded)).prepare_retry(
                recorded,
                recipe=found,
                is_edited=recipe is not None,
                from_step=from_step,
                inputs=plain_inputs(inputs) if inputs is not None else None,
                output_class=output_class,
            )

        return RunStream(begin, self.execute)

    async def rollback(self, run: str, *, dry_run: bool = False) -> RollbackReport:
        """Restore the files that a run changed, where its toolset `files` has `undo: true`.

        A file that somebody else changed since is left as it is; the report says so of each path.
        Calls with other effects are listed there and not undone. It can be repeated.

        Args:
            run: As for `resume`.
            dry_run: Only report what would be done.
        Raises:
            NotFoundError: There is no such run.
            UsageError: `nothing-recorded`; the run recorded no changes of files.
            LeaseHeldError: The run is being executed.
        """
        found = await find_run(self.services.journal, run)
        self._refuse_active(found.run_id)
        return await roll_back_run(self.services, found.run_id, dry_run=dry_run)

    async def waiting(self, run: str) -> tuple[PendingDecision, ...]:
        """The decisions that a run waits for.

        Raises:
            NotFoundError, UsageError: There is no such run, or several.
        """
        recorded = await load_recorded_run(self.services.journal, run)
        replay = Replay(recorded.entries, recorded.generation + 1)
        return () if recorded.is_over else pending_decisions(replay)

    async def inbox(
        self, *, user: str | None = None, project: str | None = None
    ) -> list[InboxItem]:
        """Everything in the journal that waits for a person: approvals, questions, plans, budgets
        that ask, and calls in doubt.

        The oldest first, by the hour in which it was asked; of the same hour that of the dearest
        run. Runs that have ended cost nothing here.

        Args:
            user: Of the runs of that user alone; None: of all.
            project: Of the runs of the project with that folder; None: of all.
        """
        return await list_inbox(self.services.journal, user=user, project=project)

    def _resume_stream(
        self,
        run: str,
        recipe: RecipeLike | None,
        decisions: Mapping[str, str],
        output_class: type[OutputT] | None,
        reasons: Mapping[str, str],
        maker: DecisionMaker | None = None,
    ) -> RunStream[OutputT]:
        async def begin() -> AgentRun[OutputT]:
            recorded = await self._load_run(run)
            found = self._recipe_of(recorded, recipe)
            return self._executor(found, self._model_of(recorded)).prepare_resume(
                recorded,
                recipe=found,
                decisions=decisions,
                output_class=output_class,
                note=_with_reasons(recorded.note, reasons),
                decided_by=maker,
            )

        return RunStream(begin, self.execute)

    async def _load_run(self, run: str) -> RecordedRun:
        recorded = await load_recorded_run(self.services.journal, run)
        self._refuse_active(recorded.run_id)
        return recorded

    def _recipe_of(self, recorded: RecordedRun, given: RecipeLike | None) -> AgentRecipe:
        if given is not None:
            return self.load(given)
        name = recorded.summary.recipe
        if recorded.document is None:
            known = self._of_code.get(name) or self.extensions.find_recipe(name)
            if known is not None:
                return known
        return recorded.recipe(self.extensions.catalog())

    def _model_of(self, recorded: RecordedRun) -> ChatModel | str | None:
        """The application's model, else the one of the run's start; None: the recipe's own."""
        return self._model or RunPolicy.recorded(recorded.note).model


def _word(verdict: str) -> str:
    """The engine's word for that verdict.

    Raises:
        UsageError: `Verdict.LATER` is no decision.
    """
    if verdict == Verdict.LATER:
        raise UsageError(
            "Verdict.LATER is no decision: use Verdict.APPROVED or Verdict.REJECTED.",
            code="bad-decision",
        )
    return _WORDS.get(verdict, str(verdict))


def _with_arguments(word: str, arguments: Mapping[str, JsonValue]) -> str:
    """The approval with edited arguments.

    Raises:
        UsageError: The decision is not an approval.
    """
    if word != _WORDS[Verdict.APPROVED]:
        raise UsageError(
            f"Edited arguments belong to Verdict.APPROVED, not to '{word:.40}'.",
            code="bad-decision",
        )
    return word_of(Approve.with_arguments(dict(arguments)))


def _with_class(word: str, arguments: Mapping[str, JsonValue] | None, like: ApprovalClass) -> str:
    """The approval of all calls like the one that is shown.

    Raises:
        UsageError: The decision is not an approval, or of one call with edited arguments.
    """
    if word != _WORDS[Verdict.APPROVED] or arguments is not None:
        message = "Calls are approved together by Verdict.APPROVED, without edited arguments."
        raise UsageError(message, code="bad-class")
    return word_of(Approve(like=like))


def _with_reasons(
    note: Mapping[str, JsonValue], reasons: Mapping[str, str]
) -> Mapping[str, JsonValue]:
    if not reasons:
        return note
    told = StartNote(reasons={**StartNote.of(note).reasons, **reasons})
    return {**note, **told.to_json()}
