"""`Minions`: one object for an application that runs recipes more than once."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, Self, TypeAlias

from attrs import evolve

from minions.adapters.stores.memory_stores import StateStore
from minions.app.capturing.application_captures import ApplicationCaptures
from minions.app.evaluating.application_tuning import ApplicationEvaluations, ApplicationTuning
from minions.app.runs.batch_runs import BatchRuns
from minions.app.runs.deciders import named_policy
from minions.app.runs.new_runs import NewRuns
from minions.app.runs.recorded_runs import RecordedRuns
from minions.app.settings.setting_sources import environment
from minions.app.settings.settings import McpSettings, Settings
from minions.app.wiring.built_in_extensions import built_in_extensions, extended
from minions.app.wiring.configured_models import ModelChoice, Models
from minions.app.wiring.configured_prices import make_prices
from minions.app.wiring.configured_runtime import Closer, Runtime
from minions.app.wiring.configured_servers import make_program_toolsets
from minions.app.wiring.databases import journal_at, state_beside
from minions.contracts.budgets import Budgets
from minions.contracts.calls import ChatModel
from minions.contracts.decision_types import Verdict
from minions.contracts.journal.journal import Journal
from minions.contracts.tools import Tool, Toolset
from minions.contracts.waiting import OnWaiting
from minions.data.errors import UsageError
from minions.engine.compile.extensions import Extensions, ModelSource, checked_tools
from minions.engine.history.event_stream import Listener
from minions.engine.services.run_services import Services
from minions.engine.services.shared_budgets import SharedBudgets
from minions.engine.step.next_step import NextStepChain
from minions.recipe.model import AgentRecipe
from minions.recipe.recipe_files import project_of

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
