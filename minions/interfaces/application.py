"""`Minions`: one object for an application that runs recipes more than once."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, Self, TypeAlias, TypeVar, cast, overload

from attrs import evolve

from minions.adapters.stores.postgres_url import is_postgres_url
from minions.adapters.stores.state_store import MemoryState, StateStore
from minions.contracts import decision_words
from minions.contracts.calls import ChatModel
from minions.contracts.decisions import Verdict
from minions.contracts.errors import LeaseHeldError, UsageError, near_names
from minions.contracts.executions import AgentResult
from minions.contracts.journal import Journal
from minions.contracts.json_values import JsonValue, dumps
from minions.contracts.runtime import Clock
from minions.contracts.secrets import InputValue
from minions.contracts.tools import Tool
from minions.engine.calls.pending_decisions import (
    PendingDecision,
    pending_decisions,
)
from minions.engine.compile.extensions import Extensions
from minions.engine.compile.preparation import Preparation
from minions.engine.history.events import Listener
from minions.engine.history.replay import Replay
from minions.engine.run.agent_executor import AgentExecutor
from minions.engine.run.agent_run import AgentRun
from minions.engine.run.recorded_run import RecordedRun, load_recorded_run
from minions.engine.services.memory_journal import MemoryJournal
from minions.engine.services.services import Services
from minions.interfaces.compiled_recipes import CompiledRecipes
from minions.interfaces.deciders import Policy
from minions.interfaces.run_stream import RunStream
from minions.interfaces.settings import Settings
from minions.interfaces.wiring import (
    Models,
    built_in_extensions,
    environment,
    extended,
    make_prices,
)
from minions.recipe.model import AgentRecipe

__all__ = ["Approve", "Minions", "RecipeLike"]

T = TypeVar("T")

RecipeLike: TypeAlias = AgentRecipe | str | Path
"""A recipe, its path, its id under ./recipes, or its YAML text."""

Approve: TypeAlias = Literal["wait", "deny", "all"]
"""What becomes of a tool call that needs approval."""

_VERDICTS: Final[Mapping[str, Verdict]] = {
    "wait": Verdict.LATER,
    "deny": Verdict.REJECTED,
    "all": Verdict.APPROVED,
}
_WORDS: Final[Mapping[str, str]] = {
    Verdict.APPROVED: decision_words.word_of(decision_words.Approve()),
    Verdict.REJECTED: decision_words.word_of(decision_words.Reject()),
}
_REASONS: Final = "decision_reasons"
_MOST_OF_CODE: Final = 64
"""Recipes of Step objects that are remembered for runs that go on."""
_MOST_MODELS: Final = 8
"""Model objects whose executors are kept; further ones cost what an executor costs to make."""


class Minions:
    """Runs recipes, and keeps what makes the next run cheap: connections and compiled recipes.

    Use it with `async with`, or call `aclose` at the end. It belongs to one event loop at a time.
    """

    def __init__(
        self,
        *,
        model: ChatModel | str | None = None,
        journal: Journal | str | PathLike[str] | None = None,
        tools: Iterable[Tool] = (),
        extensions: Extensions | None = None,
        services: Services | None = None,
        approve: Approve | None = None,
        listeners: Iterable[Listener] = (),
        state: StateStore | None = None,
    ) -> None:
        """Open nothing yet.

        Args:
            model: Answers whatever recipes name; a name is `provider/model`. None: each recipe's
                own, or the one that a key in the environment stands for.
            journal: A journal, the path of an SQLite file, or a `postgresql://` URL; None: that of
                `services`, which by default is in memory. One that was opened here is closed here.
            tools: Your own, beside the recipes' toolsets.
            extensions: Named things that recipes may use.
            services: Clock, secrets, decider and the like; None: the real ones.
            approve: What becomes of calls that need approval; None: they wait for `decide`, unless
                `services` has a decider.
            listeners: Called with every event of every run. While there are any, models stream.
            state: Where `saveState` keeps its values; None: beside the journal.
        Raises:
            UsageError: `approve` is no policy.
        """
        self._model = model
        self._owned: list[Journal] = []
        self.services = self._services(services, journal, approve)
        self._state = state or _state_beside(self.services.journal)
        self.extensions = _with_tools(extensions, tools, self._state)
        self._preparation = Preparation(self.extensions)
        self._recipes = CompiledRecipes(self.extensions.catalog())
        self._listeners = list(listeners)
        self._named: dict[str | None, _NamedModels] = {}
        self._replaced: list[_NamedModels] = []
        """Those that were made with other keys than the environment holds now."""
        self._executors: dict[int, AgentExecutor] = {}
        self._of_code: dict[str, AgentRecipe] = {}
        """Recipes of Step objects by id: they cannot travel with a run."""
        self._active: set[str] = set()
        self._is_closed = False

    def _services(
        self,
        given: Services | None,
        journal: Journal | str | PathLike[str] | None,
        approve: Approve | None,
    ) -> Services:
        services = given
        if services is None:
            from minions.adapters.models.structured_output import InstructorParser

            services = Services(parser=InstructorParser(), prices=make_prices(Settings()))
            approve = approve or "wait"
        if journal is not None:
            services = evolve(services, journal=self._journal(journal, services.clock))
        if approve is not None:
            services = evolve(services, decider=Policy(_verdict(approve)))
        return services

    def _journal(self, journal: Journal | str | PathLike[str], clock: Clock) -> Journal:
        if isinstance(journal, Journal):
            return journal
        opened = _opened_journal(journal, clock)
        self._owned.append(opened)
        return opened

    # --- recipes ----------------------------------------------------------------------------------

    def load(self, recipe: RecipeLike) -> AgentRecipe:
        """The checked recipe of that path, id or YAML text.

        A file is read once, and again when it or a recipe that it runs has changed.

        Raises:
            RecipeError: With every fault found.
            NotFoundError: No such file and no such id.
            UsageError: It cannot be read.
        """
        return recipe if isinstance(recipe, AgentRecipe) else self._recipes.get(recipe)

    # --- new runs ---------------------------------------------------------------------------------

    @overload
    async def arun(
        self,
        recipe: RecipeLike,
        inputs: Mapping[str, InputValue] | None = None,
        *,
        output_class: type[T],
        model: ChatModel | str | None = None,
        session: str | None = None,
    ) -> AgentResult[T]: ...

    @overload
    async def arun(
        self,
        recipe: RecipeLike,
        inputs: Mapping[str, InputValue] | None = None,
        *,
        output_class: None = None,
        model: ChatModel | str | None = None,
        session: str | None = None,
    ) -> AgentResult[JsonValue]: ...

    async def arun(
        self,
        recipe: RecipeLike,
        inputs: Mapping[str, InputValue] | None = None,
        *,
        output_class: type[Any] | None = None,  # Any: the overloads above carry the type
        model: ChatModel | str | None = None,
        session: str | None = None,
    ) -> AgentResult[Any]:
        """Run to the end; once begun, every end is a result.

        Args:
            inputs: By name; of a secret its `SecretRef`, or that as text (`env:NAME`).
            output_class: What `result.output` shall be; one that does not fit fails the run.
            model: For this run; None: the application's.
            session: Whose conversation it takes up; None: a new one.
        Raises:
            RecipeError, NotFoundError: As `load`.
            UsageError: Inputs or limits are wrong; nothing was started.
            EnvironmentRefusedError: No model, no secret, or the journal refuses.
        """
        run = self.prepare(recipe, inputs, output_class=output_class, model=model, session=session)
        return await self.execute(run)

    @overload
    def astream(
        self,
        recipe: RecipeLike,
        inputs: Mapping[str, InputValue] | None = None,
        *,
        output_class: type[T],
        model: ChatModel | str | None = None,
        session: str | None = None,
    ) -> RunStream[T]: ...

    @overload
    def astream(
        self,
        recipe: RecipeLike,
        inputs: Mapping[str, InputValue] | None = None,
        *,
        output_class: None = None,
        model: ChatModel | str | None = None,
        session: str | None = None,
    ) -> RunStream[JsonValue]: ...

    def astream(
        self,
        recipe: RecipeLike,
        inputs: Mapping[str, InputValue] | None = None,
        *,
        output_class: type[Any] | None = None,  # Any: the overloads above carry the type
        model: ChatModel | str | None = None,
        session: str | None = None,
    ) -> RunStream[Any]:
        """The events of a run as they happen, whose end gives the result.

        Args:
            output_class, model, session: As of `arun`.
        Raises:
            As `arun`, when the first event is asked for.
        """

        async def begin() -> AgentRun[Any]:  # Any: as above
            return self.prepare(
                recipe, inputs, output_class=output_class, model=model, session=session
            )

        return RunStream(begin, self.execute)

    # --- recorded runs ----------------------------------------------------------------------------

    @overload
    def decide(
        self,
        run: str,
        key: str,
        verdict: Verdict | str,
        *,
        output_class: type[T],
        reason: str | None = None,
        recipe: RecipeLike | None = None,
    ) -> RunStream[T]: ...

    @overload
    def decide(
        self,
        run: str,
        key: str,
        verdict: Verdict | str,
        *,
        output_class: None = None,
        reason: str | None = None,
        recipe: RecipeLike | None = None,
    ) -> RunStream[JsonValue]: ...

    def decide(
        self,
        run: str,
        key: str,
        verdict: Verdict | str,
        *,
        output_class: type[Any] | None = None,  # Any: the overloads above carry the type
        reason: str | None = None,
        recipe: RecipeLike | None = None,
    ) -> RunStream[Any]:
        """Decide what a run waits for, and go on: await it, or iterate over what follows.

        Args:
            run: Its id, or a unique start of it, or its session's.
            key: Of the decision, as the `waiting` event and `waiting` give it; also its tool or
                step, where only one decision of that name waits.
            verdict: `Verdict.APPROVED` or `Verdict.REJECTED`; of a call in doubt `"redo"`,
                `"done"`, `"done:JSON"` or `"fail"`. For questions see `answer`.
            reason: Why, for whoever reads the journal; stored with the run as it goes on.
            recipe: As of `resume`.
        Raises:
            As `resume`; UsageError also where nothing waits under that key.
        """
        reasons = {key: reason} if reason is not None else {}
        return self._resumed(run, recipe, {key: _word(verdict)}, output_class, reasons)

    @overload
    def answer(
        self, run: str, key: str, value: JsonValue, *, output_class: type[T]
    ) -> RunStream[T]: ...

    @overload
    def answer(
        self, run: str, key: str, value: JsonValue, *, output_class: None = None
    ) -> RunStream[JsonValue]: ...

    def answer(
        self,
        run: str,
        key: str,
        value: JsonValue,
        *,
        output_class: type[Any] | None = None,  # Any: the overloads above carry the type
    ) -> RunStream[Any]:
        """Answer the question of an `ask` step, and go on, as `decide`.

        Raises:
            As `decide`; UsageError also where the value does not fit the question's form.
        """
        text = value if isinstance(value, str) else dumps(value)
        return self._resumed(run, None, {key: f"answer:{text}"}, output_class, {})

    @overload
    def resume(
        self,
        run: str,
        *,
        output_class: type[T],
        recipe: RecipeLike | None = None,
        decisions: Mapping[str, str] | None = None,
    ) -> RunStream[T]: ...

    @overload
    def resume(
        self,
        run: str,
        *,
        output_class: None = None,
        recipe: RecipeLike | None = None,
        decisions: Mapping[str, str] | None = None,
    ) -> RunStream[JsonValue]: ...

    def resume(
        self,
        run: str,
        *,
        output_class: type[Any] | None = None,  # Any: the overloads above carry the type
        recipe: RecipeLike | None = None,
        decisions: Mapping[str, str] | None = None,
    ) -> RunStream[Any]:
        """Go on with a run that was killed, cancelled, stopped by a limit, or waits.

        Await it, or iterate over its events. What is recorded is not done again.

        Args:
            run: Its id, or a unique start of it, or its session's.
            recipe: Needed for a recipe of Step objects that this object has not run before.
            decisions: Several at once, as `AgentExecutor.resume` takes them.
        Raises:
            NotFoundError: No such run.
            UsageError: It failed (`retry` it), the code differs, or a decision means nothing.
            EnvironmentRefusedError: No model, or another worker has the run.
        """
        return self._resumed(run, recipe, decisions or {}, output_class, {})

    @overload
    def retry(
        self,
        run: str,
        *,
        output_class: type[T],
        recipe: RecipeLike | None = None,
        from_step: str | None = None,
    ) -> RunStream[T]: ...

    @overload
    def retry(
        self,
        run: str,
        *,
        output_class: None = None,
        recipe: RecipeLike | None = None,
        from_step: str | None = None,
    ) -> RunStream[JsonValue]: ...

    def retry(
        self,
        run: str,
        *,
        output_class: type[Any] | None = None,  # Any: the overloads above carry the type
        recipe: RecipeLike | None = None,
        from_step: str | None = None,
    ) -> RunStream[Any]:
        """Run failed steps again, and those that changed or read what changed.

        Await it, or iterate over its events.

        Args:
            run: As of `resume`.
            recipe: An edited one; None: the run's own.
            from_step: This step runs again, too, with all that come after it.
        Raises:
            As `resume`.
        """

        async def begin() -> AgentRun[Any]:  # Any: as above
            recorded = await self._recorded(run)
            found = self._recipe_of(recorded, recipe)
            return self._executor(found, self._model_of(recorded)).prepare_retry(
                recorded,
                recipe=found,
                is_edited=recipe is not None,
                from_step=from_step,
                output_class=output_class,
            )

        return RunStream(begin, self.execute)

    async def waiting(self, run: str) -> tuple[PendingDecision, ...]:
        """The decisions that a run waits for.

        Raises:
            NotFoundError, UsageError: No such run, or several.
        """
        recorded = await load_recorded_run(self.services.journal, run)
        replay = Replay(recorded.entries, recorded.generation + 1)
        return () if recorded.is_over else pending_decisions(replay)

    # --- listening and closing --------------------------------------------------------------------

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` with every event of the runs that begin from now on; it returns at once.

        Returns:
            What ends it, for runs that begin after that.
        """
        self._listeners.append(listener)

        def end() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)

        return end

    async def aclose(self) -> None:
        """Close what was opened here: connections, and the journal that was named by its place."""
        self._is_closed = True
        async with contextlib.AsyncExitStack() as stack:
            for journal in self._owned:
                stack.push_async_callback(journal.aclose)
            stack.push_async_callback(self._state.aclose)
            for named in (*self._named.values(), *self._replaced):
                stack.push_async_callback(named.models.aclose)
        self._named.clear()
        self._replaced.clear()
        self._executors.clear()

    async def __aenter__(self) -> Self:
        """Itself; nothing is opened before it is needed."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """As `aclose`."""
        await self.aclose()

    # --- in two steps -----------------------------------------------------------------------------

    @overload
    def prepare(
        self,
        recipe: RecipeLike,
        inputs: Mapping[str, InputValue] | None = None,
        *,
        output_class: type[T],
        model: ChatModel | str | None = None,
        session: str | None = None,
    ) -> AgentRun[T]: ...

    @overload
    def prepare(
        self,
        recipe: RecipeLike,
        inputs: Mapping[str, InputValue] | None = None,
        *,
        output_class: None = None,
        model: ChatModel | str | None = None,
        session: str | None = None,
    ) -> AgentRun[JsonValue]: ...

    def prepare(
        self,
        recipe: RecipeLike,
        inputs: Mapping[str, InputValue] | None = None,
        *,
        output_class: type[Any] | None = None,  # Any: the overloads above carry the type
        model: ChatModel | str | None = None,
        session: str | None = None,
    ) -> AgentRun[Any]:
        """Everything that can be refused is refused here; the run has its id, and has not begun.

        Raises:
            As `arun`.
        """
        found, answers = self.load(recipe), self._model if model is None else model
        if found.document is None:
            self._remember(found)
        return self._executor(found, answers).prepare(
            found,
            inputs,
            session_id=session,
            output_class=output_class,
            note={"model": answers} if isinstance(answers, str) else None,
        )

    async def execute(self, run: AgentRun[T]) -> AgentResult[T]:
        """Carry out a run that was prepared here.

        Raises:
            LeaseHeldError, JournalError: The journal refused before anything was done.
        """
        self._refuse_active(run.run_id)
        for listener in self._listeners:
            run.listen(listener)
        self._active.add(run.run_id)
        try:
            return await run.execute()
        finally:
            self._active.discard(run.run_id)

    # --- how it is done ---------------------------------------------------------------------------

    def _resumed(
        self,
        run: str,
        recipe: RecipeLike | None,
        decisions: Mapping[str, str],
        output_class: type[Any] | None,  # Any: as above
        reasons: Mapping[str, str],
    ) -> RunStream[Any]:
        async def begin() -> AgentRun[Any]:  # Any: as above
            recorded = await self._recorded(run)
            found = self._recipe_of(recorded, recipe)
            return self._executor(found, self._model_of(recorded)).prepare_resume(
                recorded,
                recipe=found,
                decisions=decisions,
                output_class=output_class,
                note=_with_reasons(recorded.note, reasons),
            )

        return RunStream(begin, self.execute)

    async def _recorded(self, run: str) -> RecordedRun:
        recorded = await load_recorded_run(self.services.journal, run)
        self._refuse_active(recorded.run_id)
        return recorded

    def _refuse_active(self, run_id: str) -> None:
        # The journal lets one worker take up its own run again; two tasks here are one worker.
        if run_id in self._active:
            raise LeaseHeldError(
                f"Run '{run_id}' is being executed by this application.",
                worker_id=self.services.worker_id,
                run_id=run_id,
            )

    def _recipe_of(self, recorded: RecordedRun, given: RecipeLike | None) -> AgentRecipe:
        if given is not None:
            return self.load(given)
        name = recorded.summary.recipe
        if recorded.document is None:
            known = self._of_code.get(name) or self.extensions.recipes.get(name)
            if known is not None:
                return known
        return recorded.recipe(self.extensions.catalog())

    def _model_of(self, recorded: RecordedRun) -> ChatModel | str | None:
        """The application's; else that with which the run began."""
        noted = recorded.note.get("model")
        return self._model or (noted if isinstance(noted, str) else None)

    def _remember(self, recipe: AgentRecipe) -> None:
        """The newest ones: an application that makes one for each run fills no memory."""
        self._of_code.pop(recipe.id, None)
        if len(self._of_code) >= _MOST_OF_CODE:
            del self._of_code[next(iter(self._of_code))]
        self._of_code[recipe.id] = recipe

    def _executor(self, recipe: AgentRecipe, model: ChatModel | str | None) -> AgentExecutor:
        if self._is_closed:
            raise UsageError("This Minions object is closed.", code="closed")
        if isinstance(model, ChatModel):
            return self._executor_of(model)
        named = self._named.get(model)
        if named is None or not named.is_current():
            if named is not None and named.models.has_made:
                self._replaced.append(named)  # runs may still use them
            named = self._named[model] = _NamedModels(self.extensions, model)
        return AgentExecutor(
            named.models.source(recipe, lambda _: Path.cwd()),
            extensions=self.extensions,
            services=self.services,
            preparation=self._preparation,
        )

    def _executor_of(self, model: ChatModel) -> AgentExecutor:
        executor = self._executors.get(id(model))
        if executor is None:
            if len(self._executors) >= _MOST_MODELS:
                del self._executors[next(iter(self._executors))]
            executor = self._executors[id(model)] = AgentExecutor(
                model,
                extensions=self.extensions,
                services=self.services,
                preparation=self._preparation,
            )
        return executor


class _NamedModels:
    """Models by their names, with the keys that the environment held."""

    def __init__(self, extensions: Extensions, override: str | None) -> None:
        self._environ = environment()
        self.models = Models(Settings(), extensions, environ=self._environ, override=override)

    def is_current(self) -> bool:
        """Whether the environment, where keys are, is what it was."""
        return environment() == self._environ


def _verdict(approve: str) -> Verdict:
    verdict = _VERDICTS.get(approve)
    if verdict is None:
        raise UsageError(
            f"approve={approve!r} is no policy. Policies are: {', '.join(_VERDICTS)}.",
            code="bad-configuration",
            suggestions=near_names(approve, _VERDICTS),
        )
    return verdict


def _word(verdict: str) -> str:
    """The engine's word for it.

    Raises:
        UsageError: It decides nothing.
    """
    if verdict == Verdict.LATER:
        raise UsageError(
            "Verdict.LATER decides nothing: say Verdict.APPROVED or Verdict.REJECTED.",
            code="bad-decision",
        )
    return _WORDS.get(verdict, str(verdict))


def _with_reasons(
    note: Mapping[str, JsonValue], reasons: Mapping[str, str]
) -> Mapping[str, JsonValue]:
    if not reasons:
        return note
    before = cast("Mapping[str, JsonValue]", note.get(_REASONS) or {})
    return {**note, _REASONS: {**before, **reasons}}


def _opened_journal(place: str | PathLike[str], clock: Clock) -> Journal:
    if isinstance(place, str) and is_postgres_url(place):
        from minions.adapters.stores.postgres_journal import PostgresJournal

        return PostgresJournal(place, clock)
    from minions.adapters.stores.sqlite_journal import SqliteJournal

    return SqliteJournal(place, clock)


def _state_beside(journal: Journal) -> StateStore:
    """Where `saveState` keeps its values: in the journal's database."""
    if isinstance(journal, MemoryJournal):
        return MemoryState()
    from minions.adapters.stores.postgres_journal import PostgresJournal
    from minions.adapters.stores.postgres_state import PostgresState
    from minions.adapters.stores.sqlite_journal import SqliteJournal
    from minions.adapters.stores.sqlite_state import SqliteState

    if isinstance(journal, PostgresJournal):
        return PostgresState(journal.url)
    return SqliteState(journal.path) if isinstance(journal, SqliteJournal) else MemoryState()


def _with_tools(
    extensions: Extensions | None, tools: Iterable[Tool], state: StateStore
) -> Extensions:
    own = extensions or Extensions()
    own = evolve(own, tools=own.tools.plus(tools))
    return extended(built_in_extensions(state), own)
