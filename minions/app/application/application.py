"""`Minions`: one object for an application that runs recipes more than once."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Literal, Self, TypeAlias, Unpack

from attrs import evolve

from minions.adapters.stores.memory_stores import StateStore
from minions.app.evaluating.application_tuning import ApplicationEvaluations, ApplicationTuning
from minions.app.runs.application_runs import (
    ApplicationRuns,
    RecipeLike,
    SessionRunOptions,
    shows_options,
)
from minions.app.runs.batch_items import (
    ChosenItems,
    FieldChoice,
    ItemsFile,
    ListedItems,
    count_lines,
    lines_of,
)
from minions.app.runs.batch_records import BatchRecord, batch_id, record_batch
from minions.app.runs.deciders import named_policy
from minions.app.runs.recorded_runs import RecordedRuns
from minions.app.runs.run_stream import RunStream
from minions.app.settings.setting_sources import environment
from minions.app.settings.settings import McpSettings, Settings, bounded
from minions.app.wiring.built_in_extensions import built_in_extensions, extended
from minions.app.wiring.configured_models import ModelChoice, Models
from minions.app.wiring.configured_prices import make_prices
from minions.app.wiring.configured_runtime import Closer, Runtime
from minions.app.wiring.configured_servers import make_program_toolsets
from minions.app.wiring.databases import journal_at, state_beside
from minions.contracts.budgets import Budgets, checked_user
from minions.contracts.calls import ChatModel
from minions.contracts.decision_types import Verdict
from minions.contracts.executions import AgentResult, OutputT
from minions.contracts.journal.journal import Journal
from minions.contracts.secrets import GivenInputs, InputValue, plain_inputs
from minions.contracts.tools import Tool, Toolset
from minions.contracts.waiting import OnWaiting
from minions.data.errors import UsageError
from minions.data.json_values import JsonValue
from minions.data.patterns import match_beside_loop
from minions.engine.batches.batch import Batch, BatchPlan
from minions.engine.compile.extensions import Extensions, ModelSource, checked_tools
from minions.engine.history.event_stream import Listener
from minions.engine.run.agent_run import AgentRun
from minions.engine.services.run_services import Services
from minions.engine.services.shared_budgets import SharedBudgets
from minions.engine.step.next_step import NextStepChain
from minions.recipe.model import AgentRecipe
from minions.recipe.recipe_files import project_of

if TYPE_CHECKING:
    from minions.app.capturing.captures import Capture


# --- new runs ------------------------------------------------------------------------------------


class NewRuns(ApplicationRuns):
    """The part of `Minions` that begins runs."""

    @shows_options(SessionRunOptions)
    async def arun(
        self,
        recipe: RecipeLike,
        inputs: GivenInputs | None = None,
        *,
        output_class: type[OutputT] | None = None,
        **options: Unpack[SessionRunOptions],
    ) -> AgentResult[OutputT]:
        """Run a recipe to its end. Once begun, every end is a result, never an exception.

        Args:
            inputs: Values by name; for a secret its `SecretRef`, or that as text (`env:NAME`).
            output_class: The class of `result.output`; an output that does not fit fails the run.
            model: The model for this run; None: the application's.
            session: The id of the session whose conversation it continues; None: a new session.
            user: The label of the user for whom it runs, whose daily budget it spends from; None:
                none.
        Raises:
            RecipeError, NotFoundError: As `load`.
            UsageError: Inputs or limits are wrong; nothing was started.
            EnvironmentRefusedError: There is no model, a secret is missing, or the journal refuses.
        """
        run = await match_beside_loop(
            lambda: self.prepare(recipe, inputs, output_class=output_class, **options)
        )
        return await self.execute(run)

    @shows_options(SessionRunOptions)
    def astream(
        self,
        recipe: RecipeLike,
        inputs: GivenInputs | None = None,
        *,
        output_class: type[OutputT] | None = None,
        **options: Unpack[SessionRunOptions],
    ) -> RunStream[OutputT]:
        """Run a recipe, and yield its events as they happen; at the end there is `stream.result`.

        Args:
            output_class, model, session, user: As for `arun`.
        Raises:
            As `arun`, at once: what is refused is refused before the first event is asked for.
        """
        return self.stream(self.prepare(recipe, inputs, output_class=output_class, **options))

    def stream(self, run: AgentRun[OutputT]) -> RunStream[OutputT]:
        """The events of a run that `prepare` made; it begins when the first one is asked for."""

        async def begin() -> AgentRun[OutputT]:
            return run

        return RunStream(begin, self.execute)

    def prepare(
        self,
        recipe: RecipeLike,
        inputs: GivenInputs | None = None,
        *,
        output_class: type[OutputT] | None = None,
        model: ChatModel | str | None = None,
        session: str | None = None,
        user: str | None = None,
        note: Mapping[str, JsonValue] | None = None,
    ) -> AgentRun[OutputT]:
        """Check everything that can be refused; the run has its id, and has not begun.

        Args:
            output_class, model, session, user: As for `arun`.
            note: Recorded with the start of the run, for the application to read.
        Raises:
            As `arun`.
        """
        found, answers = self.load(recipe), self._model if model is None else model
        if found.document is None:
            self._remember(found)
        return self._executor(found, answers).prepare(
            found,
            plain_inputs(inputs),
            session_id=session,
            output_class=output_class,
            user=user,
            note={**(note or {}), **({"model": answers} if isinstance(answers, str) else {})},
        )


# --- batches -------------------------------------------------------------------------------------


ItemsLike: TypeAlias = Sequence[Mapping[str, InputValue]] | str | PathLike[str]
"""The inputs of each run, or the path of a JSON Lines or CSV file that has them."""


_JOBS: Final = 8
_PATIENT_JOBS: Final = 1_000
"""Runs at a time, where their model calls wait for batches."""


class BatchRuns(ApplicationRuns):
    """The part of `Minions` that executes batches."""

    def batch(
        self,
        recipe: RecipeLike,
        items: ItemsLike,
        *,
        name: str | None = None,
        concurrency: int | None = None,
        max_cost_usd: float | None = None,
        retry_failed: bool = False,
        model: ChatModel | str | None = None,
        user: str | None = None,
        by: datetime | None = None,
        map: Mapping[str, str] | None = None,  # noqa: A002  # as the command's option
        keep: Sequence[str] = (),
        ignore_extra: bool = False,
    ) -> Batch:
        """Run a recipe once for each item; `async for` gives the results in the order of the items.

        Every item is checked here. Nothing begins before the first result is asked for.

        Args:
            items: Inputs by name for each run, or the path of a file with them.
            name: Batches of one name, recipe and journal are one batch: an item that an earlier
                execution ran, in this process or another, is not run again. None: a new batch.
            concurrency: Runs at a time; None: 8, and 1,000 where calls may wait.
            max_cost_usd: US dollars of the whole batch, earlier executions included: a run starts
                only if as much is left as the dearest one so far cost; the others have the status
                `not_started`. None: unlimited.
            retry_failed: Retry the items that failed, wholly or in part; only they are run.
            model: The model of all runs; None: the application's.
            user: The label of the user for whom they run; None: none.
            by: When all is to be done, with its zone: until then model calls go through the batches
                of their providers, at a lower price. None: they are made at once.
            map: By input: where its value stands in an item, as `.title` or `.user.names[0]`.
            keep: Fields of an item that stand beside its result, as `kept`; no inputs, unless
                they are some.
            ignore_extra: Whether other fields, which are no inputs, are left out; else they are
                faults.
        Raises:
            RecipeError, NotFoundError: As `load`.
            UsageError: `bad-items`; with the place of each item that does not fit the recipe. Or
                `bad-deadline`; `by` has no zone. Or `map` or `keep` is malformed, or `map` names
                no input.
            EnvironmentRefusedError: There is no model.
        """
        if by is not None and by.tzinfo is None:
            raise UsageError(f"by={by!r}: a time with its zone is expected.", code="bad-deadline")
        found = self.load(recipe)
        if max_cost_usd is not None:
            found = bounded(found, Settings(max_cost_usd=max_cost_usd))
        rows = ItemsFile(Path(items)) if isinstance(items, str | PathLike) else ListedItems(items)
        choice = FieldChoice(paths=map or {}, kept=tuple(keep), ignores_others=ignore_extra)
        choice.check(found.inputs)
        chosen = ChosenItems(rows, choice, tuple(found.inputs))
        lines = count_lines(found, chosen, {}, Path.cwd())
        identity = f"{found.id} {name or self.services.ids('batch')}"
        record = BatchRecord(
            id=batch_id(identity),
            title=name
            or (str(rows.path.name) if isinstance(rows, ItemsFile) else "a list of items"),
            recipe=found.id,
            lines=lines,
            began_at=self._clock.now(),
            project=self.services.project,
        )
        answers = self._model if model is None else model
        return Batch(
            self._background_executor(found, answers, by),
            found,
            lines_of(found, chosen, {}, Path.cwd()),
            BatchPlan(
                name=identity,
                concurrency=concurrency or (_JOBS if by is None else _PATIENT_JOBS),
                max_cost_usd=max_cost_usd,
                retry_failed=retry_failed,
                note={"model": answers} if isinstance(answers, str) else {},
                user=checked_user(user) if user is not None else None,
            ),
            execute=self.execute,
            on_begin=partial(record_batch, self.services.journal, record),
        )


# --- captures ------------------------------------------------------------------------------------


class ApplicationCaptures(ApplicationRuns):
    """Captures runs of this application's journal."""

    async def capture(
        self,
        *runs: str,
        recipe_id: str | None = None,
        answers: Mapping[str, str] | None = None,
        accepts: bool = False,
        on_surprise: str = "fail",
    ) -> Capture:
        """The recipe that does again what these runs did, with its proof; nothing is written.

        Args:
            runs: Ids of runs or sessions of the same kind of task, or unique starts of them.
            recipe_id: The id of the recipe; None: made of the agent's.
            answers: By place of `Capture.questions`, the chosen template.
            accepts: Whether the first choice counts where nobody chose.
            on_surprise: What becomes of a run in which something is as it was never seen: `agent`,
                `ask` or `fail`.
        Raises:
            NotFoundError, UsageError: There is no such run, it did not come to an end, was
                imported, or its recipe was made by code.
            RecipeError: What its recipe names is not registered any more.
        """
        from minions.app.capturing.captures import capture_runs
        from minions.capture.recipe_writing import Surprise

        return await capture_runs(
            runs,
            self._runtime,
            recipe_id=recipe_id,
            answers=answers,
            accepts=accepts,
            on_surprise=Surprise(on_surprise),
        )

    async def extend(
        self,
        recipe: AgentRecipe,
        *runs: str,
        answers: Mapping[str, str] | None = None,
        accepts: bool = False,
    ) -> Capture:
        """A captured recipe with the ways of further runs, proved on all; nothing is written.

        Args:
            runs: Runs of it in which something was a surprise, or runs of the agent.
            answers: As for `capture`.
            accepts: As for `capture`.
        Raises:
            UsageError: `not-captured`, or `other-task`; else as `capture`.
        """
        from minions.app.capturing.captures import extend_recipe

        return await extend_recipe(recipe, runs, self._runtime, answers=answers, accepts=accepts)


Approve: TypeAlias = Literal["wait", "deny", "all"]
"""What happens with a tool call that needs approval: the run waits, it is denied, or approved."""

_VERDICTS: Final[Mapping[str, Verdict]] = {
    "wait": Verdict.LATER,
    "deny": Verdict.REJECTED,
    "all": Verdict.APPROVED,
}


class Minions(
    NewRuns,
    RecordedRuns,
    BatchRuns,
    ApplicationEvaluations,
    ApplicationTuning,
    ApplicationCaptures,
):
    """Runs recipes, and keeps connections and compiled recipes for the next run.

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
        on_waiting: OnWaiting | None = None,
        budgets: Budgets | None = None,
        mcp_servers: Mapping[str, McpSettings] | None = None,
        mcp_lock: str | PathLike[str] | None = None,
        next_step_chain: NextStepChain | None = None,
    ) -> None:
        """Nothing is opened yet.

        Args:
            model: Answers instead of the models that recipes name; a name is `provider/model`.
                None: each recipe's own, or the one that a key in the environment stands for.
            journal: A journal, the path of an SQLite file, or a `postgresql://` URL; None: that of
                `services`, which by default is in memory. A path or URL is opened and closed here.
            tools: Your own tools, beside the toolsets of recipes.
            extensions: Named tools, models, recipes and steps that recipes may use.
            services: Clock, secrets, decider and others; None: the real ones.
            approve: What happens with calls that need approval; None: they wait for `decide`,
                unless `services` has a decider.
            listeners: Called with every event of every run. While there are any, models stream.
            on_waiting: Called once with each run that begins to wait for a person, after its
                execution has ended; a coroutine that it returns runs beside the application.
            budgets: What the runs of a session, of a user on a day, and of a day may spend
                together; None: as in `services`, which by default have none.
            state: The store of `saveState`; None: in the journal's database.
            mcp_servers: MCP servers whose tools recipes may name, by name; they are started by the
                first call, and end with `aclose`. None: there are none.
            mcp_lock: The file with their tools as they were looked at (`minions.mcp.lock_servers`);
                no other tool is called. None: nothing is locked.
            next_step_chain: Chooses among several next steps (`minions.guide.NextStepChain`), where
                a recipe has no `route`; None: the usual rules do.
        Raises:
            UsageError: `approve` is no policy, `budgets` is no `Budgets`, or a server or the lock
                is wrong.
        """
        _check_kinds(model=model, extensions=extensions, services=services, listeners=listeners)
        servers = make_program_toolsets(mcp_servers, mcp_lock)
        chosen = _services(services, approve)
        own_budgets = None if budgets is None else _checked_budgets(budgets)
        owned: tuple[Closer, ...] = ()
        if isinstance(journal, Journal):
            chosen = evolve(chosen, journal=journal)
        elif journal is not None:
            opened = journal_at(journal, chosen.clock)
            chosen, owned = evolve(chosen, journal=opened), (opened.aclose,)
        if journal is not None and chosen.project is None:
            chosen = evolve(chosen, project=project_of(Path.cwd()))
        beside = state_beside(chosen.journal)
        if own_budgets is not None:
            shared = SharedBudgets(
                own_budgets, beside, sleep=chosen.sleep, is_worker_gone=chosen.is_worker_gone
            )
            chosen = evolve(chosen, budgets=shared)
        state = state or beside
        known = _with_tools(extensions, tools, state, servers)
        models = EnvironmentModels(known)
        closers: tuple[Closer, ...] = () if servers is None else (servers.aclose,)
        runtime = Runtime(
            models=models.source,
            extensions=known,
            services=chosen,
            next_step_chain=next_step_chain,
            closers=(*closers, models.aclose, state.aclose, beside.aclose, *owned),
        )
        super().__init__(runtime, model, listeners, on_waiting)

    async def __aenter__(self) -> Self:
        """Return the object; nothing is opened before it is needed."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Call `aclose`."""
        await self.aclose()


def _services(given: Services | None, approve: Approve | None) -> Services:
    """The given services, else real ones, with the approval policy and a restorer of files."""
    from minions.adapters.tools.file_restorer import LocalFileRestorer

    if given is None:
        from minions.adapters.models.structured_output import InstructorParser

        given = Services(parser=InstructorParser(), prices=make_prices(Settings()))
        approve = approve or "wait"
    if given.file_restorer is None:
        given = evolve(given, file_restorer=LocalFileRestorer())
    if approve is None:
        return given
    return evolve(given, decider=named_policy(approve, _VERDICTS))


def _check_kinds(*, model: object, extensions: object, services: object, listeners: object) -> None:
    """Refuse what is passed in place of something else.

    Raises:
        UsageError: The first that is of the wrong kind, with what is expected.
    """
    if callable(listeners) or not isinstance(listeners, Iterable) or isinstance(listeners, str):
        raise UsageError(_words("listeners", listeners, "a list of functions: listeners=[print]"))
    for each in listeners if isinstance(listeners, list | tuple) else ():
        if not callable(each):
            raise UsageError(_words("listeners", each, "functions that take an event"))
    expected: tuple[tuple[str, object, tuple[type, ...], str], ...] = (
        ("model", model, (str, ChatModel), "a name such as 'ollama/llama3.2', or a ChatModel"),
        ("extensions", extensions, (Extensions,), "an Extensions: extensions=m.Extensions(…)"),
        ("services", services, (Services,), "a Services: services=m.Services(…)"),
    )
    for name, value, kinds, words in expected:
        if value is not None and not isinstance(value, kinds):
            raise UsageError(_words(name, value, words))


def _words(name: str, value: object, expected: str) -> str:
    return f"Minions({name}=…) takes {expected}. This is of type {type(value).__name__}."


def _checked_budgets(budgets: object) -> Budgets:
    if isinstance(budgets, Budgets):
        return budgets
    raise UsageError(
        f"Minions(budgets=…) takes a Budgets, and this is of type {type(budgets).__name__}. "
        "Write budgets=Budgets(usd_per_day=5), with Budgets from minions.services."
    )


def _with_tools(
    extensions: Extensions | None,
    tools: Iterable[Tool],
    state: StateStore,
    servers: Mapping[str, Toolset] | None,
) -> Extensions:
    own = extensions or Extensions()
    own = evolve(own, tools=own.tools.plus(checked_tools(tools, "Minions")))
    return extended(built_in_extensions(state, servers), own)


# --- models of an application, made with the keys that the environment has now -------------------


class EnvironmentModels:
    """Makes new models when the environment, and with it a key, has changed."""

    def __init__(self, extensions: Extensions) -> None:
        """No model is made yet."""
        self._extensions = extensions
        self._environ: Mapping[str, str] = {}
        self._models: Models | None = None
        self._replaced: list[Models] = []
        """Models with former keys, which active runs may still use."""

    def source(self, recipe: AgentRecipe, choice: ModelChoice) -> ModelSource:
        """See `Models.source`; scripts are looked up in the folder that is current then."""
        return self._current().source(recipe, choice)

    def _current(self) -> Models:
        environ = environment()
        if self._models is not None and environ == self._environ:
            return self._models
        if self._models is not None and self._models.has_made:
            self._replaced.append(self._models)
        self._environ = environ
        self._models = Models(
            Settings(), self._extensions, environ=environ, folder_of=lambda _: Path.cwd()
        )
        return self._models

    async def aclose(self) -> None:
        """Close every model that was made here."""
        current = [self._models] if self._models is not None else []
        async with contextlib.AsyncExitStack() as stack:
            for models in (*current, *self._replaced):
                stack.push_async_callback(models.aclose)
        self._models = None
        self._replaced.clear()
