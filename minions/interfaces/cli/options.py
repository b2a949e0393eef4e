"""Options that are settings, and the parts of a process that commands make of them."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
from attrs import evolve, field, frozen

from minions.contracts.budgets import checked_user
from minions.interfaces.cli.standard_input import StandardInput
from minions.interfaces.folder_trust import TRUST_VARIABLE, FolderTrust
from minions.interfaces.setting_sources import (
    Origin,
    environment,
    load_settings,
    user_settings_file,
)
from minions.interfaces.settings import LogFormat, Settings

if TYPE_CHECKING:
    from minions.adapters.tools.mcp.toolsets import McpToolsets
    from minions.contracts.journal import Journal
    from minions.contracts.step_cache import StepCache
    from minions.engine.compile.extensions import Extensions
    from minions.interfaces.wiring.runtime import Runtime
    from minions.recipe.catalog import Catalog

__all__ = [
    "CommandContext",
    "all_projects_option",
    "cache_option",
    "cassette_options",
    "command_context",
    "common_options",
    "extension_options",
    "output_options",
    "run_limit_options",
    "store_options",
    "user_option",
]

_POLICIES: Final = ("wait", "deny", "all")

F = TypeVar("F", bound=Callable[..., Any])  # Any: click passes options as it finds them


@frozen(kw_only=True)
class CommandContext:
    """The settings and the environment of one command."""

    origin: Origin
    environ: Mapping[str, str]
    flags: Mapping[str, object]
    """The flags that were given."""
    stdin: StandardInput = field(factory=StandardInput)
    """Standard input, for the argument that names it."""

    @property
    def settings(self) -> Settings:
        """The merged settings."""
        return self.origin.settings

    def folder_of(self, key: str) -> Path:
        """The folder where a relative path under that key starts."""
        return self.origin.folder_of(key)

    @property
    def project(self) -> str:
        """The folder of the project in which the command was given."""
        from minions.recipe.project_folders import project_of

        return project_of(self.origin.folder)

    def given(self, key: str) -> tuple[str, ...]:
        """The texts of a repeatable flag of this command; empty: not given."""
        value = self.flags.get(key)
        return value if isinstance(value, tuple) else ()

    @property
    def flags_again(self) -> tuple[str, str]:
        """`--db` and `--extensions` as they were given, for a command to paste: " --db PATH".

        Values from the configuration need no flag; a password is not repeated.
        """
        from minions.adapters.stores.postgres_url import without_password

        given = self.settings.db if "db" in self.flags else None
        database = f" --db {shlex.quote(without_password(given))}" if given else ""
        names = self.given("extensions")
        return database, "".join(f" --extensions {shlex.quote(name)}" for name in names)

    def extensions(self) -> Extensions:
        """The built-in tools and the operator's own code; `saveState` stores values in memory."""
        from minions.interfaces.wiring.extensions import built_in_extensions, extended

        return extended(built_in_extensions(servers=self.mcp_toolsets()), self.own_extensions())

    def mcp_toolsets(self) -> McpToolsets:
        """The toolsets of MCP servers; starts none.

        Raises:
            UsageError: An address or the lock cannot be read.
        """
        from minions.interfaces.wiring.mcp import make_mcp_toolsets

        return make_mcp_toolsets(self.settings, self.folder_of, self.environ)

    def own_extensions(self) -> Extensions:
        """The operator's own code.

        Raises:
            UsageError: It cannot be loaded.
        """
        from minions.engine.compile.extensions import Extensions
        from minions.interfaces.extension_files import load_extensions

        is_of_environment = self.origin.origins["extensions"] == "environment"
        folder = None if is_of_environment else self.folder_of("extensions")
        return load_extensions(self.settings.extensions, folder, Extensions())

    def catalog(self) -> Catalog:
        """Everything that recipes may name. Loads the engine only for code of the operator."""
        from minions.interfaces.wiring.extensions import (
            built_in_recipes,
            built_in_tools,
            built_in_toolsets,
            joined_toolsets,
        )
        from minions.recipe.catalog import Catalog

        if self.settings.extensions:
            return evolve(self.extensions().catalog(), strict=self.settings.strict)
        tools = {tool.spec.name: tool.spec for tool in built_in_tools()}
        return Catalog(
            toolsets=joined_toolsets(self.mcp_toolsets(), built_in_toolsets()),
            tools=tools,
            recipes=built_in_recipes(),
            strict=self.settings.strict,
        )

    def journal(self) -> Journal:
        """The configured journal; opens nothing yet."""
        from minions.interfaces.wiring.databases import make_journal

        return make_journal(self.settings, self.folder_of("db"))

    def known_journal(self) -> Journal:
        """The same for a command about what it holds: an SQLite file that is missing stays so."""
        from minions.interfaces.wiring.databases import make_journal

        return make_journal(self.known_stores(), self.folder_of("db"))

    def known_stores(self) -> Settings:
        """The settings, with stores in memory where the SQLite file does not exist."""
        from minions.interfaces.wiring.databases import has_database

        is_there = has_database(self.settings, self.folder_of("db"))
        return self.settings if is_there else evolve(self.settings, no_store=True)

    def cache(self) -> StepCache:
        """The configured cache of step outputs; opens nothing yet."""
        from minions.interfaces.wiring.databases import make_cache

        return make_cache(self.settings, self.folder_of("db"))

    def runtime(self, *, is_stored: bool = True, recipe_folders: tuple[Path, ...] = ()) -> Runtime:
        """The parts that the command's runs share; the caller closes them.

        Args:
            is_stored: Whether anything is stored; False: all is in memory, whatever is configured.
            recipe_folders: The folders of recipes that callers may run; empty: a person named one.
        Raises:
            UsageError: A setting is wrong, or the operator's code cannot be loaded.
        """
        from minions.interfaces.cli.console.console import log_line, tell
        from minions.interfaces.wiring.logs import make_log
        from minions.interfaces.wiring.runtime import make_runtime

        return make_runtime(
            self.settings if is_stored else evolve(self.settings, no_store=True),
            self.own_extensions(),
            environ=self.environ,
            folder_of=self.folder_of,
            log=make_log(self.settings, log_line),
            recipe_folders=recipe_folders,
            warn=tell,
            project=self.project,
        )


@contextlib.contextmanager
def naming_the_journal(context: CommandContext) -> Iterator[None]:
    """Add the place of the journal to the error of a run that is not found."""
    from minions.contracts.errors import NotFoundError
    from minions.interfaces.wiring.databases import has_database, place_of_journal

    try:
        yield
    except NotFoundError as error:
        if error.error_code != "unknown-session":
            raise
        folder = context.folder_of("db")
        is_there = has_database(context.settings, folder)
        raise NotFoundError(
            f"{error.message} The journal is {place_of_journal(context.settings, folder)}"
            f"{'' if is_there else ', which does not exist'}.",
            code=error.error_code,
            suggestions=error.suggestions,
        ) from error


def command_context(flags: Mapping[str, object]) -> CommandContext:
    """Settings from every source, with the flags that were given.

    Raises:
        UsageError: The configuration is wrong.
    """
    given = {
        key: value
        for key, value in flags.items()
        if value is not None and value is not False and value != ()  # a 0 was given
    }
    environ = environment()
    if given.pop("trust", False) is True:
        environ = {**environ, TRUST_VARIABLE: "1"}
    trust = FolderTrust.of(environ)
    origin = load_settings(
        given, environ, folder=Path.cwd(), user_file=user_settings_file(), trust=trust
    )
    if origin.settings.log_format is not None:
        from minions.interfaces.cli.console.console import keep_to_lines

        keep_to_lines(is_on=True)
    if origin.unread is not None:
        from minions.interfaces.cli.console.console import tell

        tell(f"note: {origin.unread.words}")
    return CommandContext(origin=origin, environ=environ, flags=given)


def output_options(function: F) -> F:
    """Add `--json`, `--debug`, `--log-format` and `--trust`."""
    text = "Read all of this folder's configuration in this command."
    function = click.option("--trust", is_flag=True, help=text)(function)
    function = click.option(
        "--log-format",
        type=click.Choice([each.value for each in LogFormat]),
        callback=lambda _context, _option, said: None if said is None else LogFormat(said),
        help="Write the log to standard error: for people, or one JSON object per line.",
    )(function)
    function = click.option("--debug", is_flag=True, help="Show logs and tracebacks.")(function)
    text = "Print one JSON object at the end."
    return click.option("--json", "json", is_flag=True, help=text)(function)


def store_options(function: F) -> F:
    """Add `--db` and `--no-store`."""
    text = "Keep the journal in memory; nothing is stored."
    function = click.option("--no-store", is_flag=True, help=text)(function)
    text = "SQLite file of the journal, or postgresql://USER@HOST/DATABASE."
    return click.option("--db", metavar="PATH|URL", help=text)(function)


def cache_option(function: F) -> F:
    """Add `--no-cache`."""
    text = "Run every step, also those with `cache: true`; cache no output."
    return click.option("--no-cache", is_flag=True, help=text)(function)


def run_limit_options(function: F) -> F:
    """Add `--approve`, `--max-cost` and `--timeout`: of each run, where a process executes many."""
    text = "Who approves calls that need approval; else the run waits for a decision."
    policy = click.Choice(_POLICIES)
    function = click.option("--approve", type=policy, help=text)(function)
    text = "Most a run may cost."
    function = click.option("--max-cost", "max_cost_usd", type=float, metavar="USD", help=text)(
        function
    )
    text = "Most time for a run: 90, 90s, 10m."
    return click.option("--timeout", metavar="TIME", help=text)(function)


def cassette_options(function: F) -> F:
    """Add `--record` and `--replay`."""
    text = "Answer from FILE instead of models; a request that is not in it fails with a diff."
    function = click.option("--replay", metavar="FILE", help=text)(function)
    text = "Add each call of a model, with its answer, to FILE."
    return click.option("--record", metavar="FILE", help=text)(function)


def all_projects_option(function: F) -> F:
    """The flag of commands that show or continue what was made in this project."""
    return click.option(
        "--all", "of_all", is_flag=True, help="Of all projects, not of this one alone."
    )(function)


def user_option(function: F) -> F:
    """Add `--user`."""
    text = "For whom it runs: a label, whose daily budget it spends from (see [budgets])."
    return click.option("--user", metavar="LABEL", callback=_checked_label, help=text)(function)


def _checked_label(
    _context: click.Context, _option: click.Parameter, said: str | None
) -> str | None:
    return None if said is None else checked_user(said)


def strict_option(function: F) -> F:
    """Add `--strict`."""
    text = "Refuse where untrusted text can reach a tool with an effect, without approval."
    return click.option("--strict", is_flag=True, help=text)(function)


def extension_options(function: F) -> F:
    """Add `--extensions`."""
    return click.option(
        "--extensions",
        multiple=True,
        metavar="PATH.py|MODULE",
        help="Your tools, links and models. Repeatable.",
    )(function)


def common_options(function: F) -> F:
    """Add the options for extensions, the journal and output."""
    return extension_options(store_options(output_options(function)))
