"""Options of commands as typed values, and the parts of a process that commands make of them.

A field of a class of options is the option: its flags, its type and its help stand there alone.
Where it has the name of a setting, it is that setting.
"""

from __future__ import annotations

import contextlib
import functools
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Concatenate, Final, ParamSpec, TextIO, TypeVar

import attrs
import click
import msgspec
from attrs import evolve, field, frozen
from msgspec import Struct
from msgspec.structs import replace

from minions.app.settings.setting_sources import (
    Origin,
    bad_configuration,
    bad_values,
    environment,
    load_settings,
    user_settings_file,
)
from minions.app.settings.settings import LogFormat, Settings
from minions.app.settings.user_folders import TRUST_VARIABLE, FolderTrust
from minions.contracts.budgets import checked_user
from minions.contracts.runtime import SystemClock
from minions.data.errors import UsageError
from minions.data.texts import seconds_of
from minions.interfaces.cli.console.console import WHOLE_HELP, tell

if TYPE_CHECKING:
    from datetime import datetime

    from minions.adapters.tools.mcp.mcp_toolsets import McpToolsets
    from minions.app.wiring.configured_runtime import Runtime
    from minions.contracts.journal.journal import Journal
    from minions.contracts.steps import StepCache
    from minions.engine.compile.extensions import Extensions
    from minions.recipe.catalog import Catalog

MOST_INPUT_BYTES: Final = 16 * 1_048_576
"""Bytes of a text, of inputs or of a recipe that a command reads."""


class StandardInput:
    """Gives standard input to the one argument that names it with `-`."""

    def __init__(self) -> None:
        self._reader: str | None = None

    def read(self, argument: str) -> bytes:
        """Everything until its end.

        Args:
            argument: The argument that asks for it, for messages: `--params -`.
        Raises:
            UsageError: `bad-input`; another argument has read it, there is none, or it is too long.
        """
        stream = self.stream(argument)
        try:
            content = stream.read(MOST_INPUT_BYTES + 1)
        except OSError as error:
            raise UsageError(f"{argument}: {error.strerror}.", code="bad-input") from error
        if len(content) > MOST_INPUT_BYTES:
            raise UsageError(
                f"{argument}: standard input has more than {MOST_INPUT_BYTES // 1_048_576} MiB. "
                "Put what is large into a file that a step reads.",
                code="bad-input",
            )
        return content

    def stream(self, argument: str) -> BinaryIO:
        """The stream itself, for who reads it piece by piece.

        Args:
            argument: As above.
        Raises:
            UsageError: `bad-input`; another argument has read it, or there is none.
        """
        if self._reader is not None:
            raise UsageError(
                f"Standard input can be read once: by {self._reader} or by {argument}. Put one of "
                "them into a file.",
                code="bad-input",
            )
        self._reader = argument
        if sys.stdin is None:
            raise UsageError(f"{argument}: there is no standard input.", code="bad-input")
        if sys.stdin.isatty():
            tell(f"{argument}: reading standard input until Ctrl-D …")
        return sys.stdin.buffer


_POLICIES: Final = ("wait", "deny", "all")
_OPTION: Final = "option"
FILE: Final = click.Path(path_type=Path)
"""The type of an option that names a file."""

K = TypeVar("K")
P = ParamSpec("P")


# --- options as values ---------------------------------------------------------------------------


def option(*flags: str, **described: Any) -> Any:  # Any: as `attrs.field`, for a field of any type
    """A field that is an option of the command line; it is called as `click.option`.

    Args:
        flags: As for click, without the name of the value, which is the field's.
    """
    if "default" in described:
        default = described["default"]
    elif described.get("multiple"):
        default = ()
    else:
        default = False if described.get("is_flag") else None
    return field(default=default, metadata={_OPTION: (flags, described)})


def output_file(
    _context: click.Context, _parameter: click.Parameter, name: str | None
) -> str | None:
    """The value of `-o` for a command that prints without it: `-` is standard output, too."""
    return None if name == "-" else name


def required_text(flag: str, text: str) -> str:
    """The text of an option, which says something.

    Raises:
        UsageError: It is blank.
    """
    if not text.strip():
        raise UsageError(f"{flag} {text!r}: expected a text that is not empty.")
    return text


def option_seconds(flag: str, text: str) -> float:
    """The duration that an option says, in seconds.

    Raises:
        UsageError: It is none; the option is named.
    """
    try:
        return seconds_of(text)
    except UsageError as error:
        raise UsageError(f"{flag}: {error.message}") from error


class _CommonOption(click.Option):
    """One of those that most commands have: the help of each command names them in one line."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        if ctx.find_root().meta.get(WHOLE_HELP):
            return super().get_help_record(ctx)
        common = [each for each in ctx.command.params if isinstance(each, _CommonOption)]
        if self is not common[0]:
            return None
        return ", ".join(each.opts[0] for each in common), "As of most: `minions help options`."


def common_option(*flags: str, **described: Any) -> Any:  # Any: as `option`
    """As `option`, for one that most commands have."""
    return option(*flags, cls=_CommonOption, **described)


def takes_options(
    kind: type[K],
) -> Callable[[Callable[Concatenate[K, P], int]], Callable[P, int]]:
    """Give a command the options of that class, as one value before its other arguments.

    Options are listed as the class has them: its own first, then those of its bases in their order.
    A field that is no option has a default, which the command replaces where it knows better.
    """
    own = _options_of(kind)

    def decorate(command: Callable[Concatenate[K, P], int]) -> Callable[P, int]:
        @functools.wraps(command)
        def call(*args: P.args, **given: P.kwargs) -> int:
            options = kind(**{each.name: given.pop(each.name) for each in own})
            return command(options, *args, **given)

        decorated: Callable[P, int] = call
        for each in reversed(own):
            flags, described = each.metadata[_OPTION]
            decorated = click.option(*flags, each.name, **described)(decorated)
        return decorated

    return decorate


def given_words(options: object, kind: type, *, but: type | None = None) -> list[tuple[str, ...]]:
    """The options of that class that were given, each as the words of a command.

    Args:
        but: Options of this class are left out; None: none is.
    """
    left_out = {} if but is None else attrs.fields_dict(but)
    words: list[tuple[str, ...]] = []
    for each in _options_of(kind):
        value = getattr(options, each.name)
        if value == each.default or each.name in left_out:
            continue
        flag, _, opposite = str(each.metadata[_OPTION][0][0]).partition("/")
        if isinstance(value, tuple):
            words += [(flag, str(part)) for part in value]
        elif isinstance(value, bool):
            words.append((flag if value else opposite,))
        else:
            words.append((flag, str(value)))
    return words


def _options_of(kind: type) -> list[attrs.Attribute[object]]:
    """The fields of a class of options: its own, then those of its bases in their order."""
    parts = [attrs.fields(part) for part in kind.__mro__ if attrs.has(part)]
    own = [each for fields in parts for each in fields if not each.inherited]
    return [each for each in own if _OPTION in each.metadata]


@frozen(kw_only=True, slots=False, eq=False, repr=False)
class OutputOptions:
    """What a command prints, and whether it reads the folder's configuration."""

    json: bool = common_option("--json", is_flag=True, help="Print one JSON object at the end.")
    debug: bool = common_option("--debug", is_flag=True, help="Show logs and tracebacks.")
    log_format: LogFormat | None = common_option(
        "--log-format",
        type=click.Choice([each.value for each in LogFormat]),
        callback=lambda _context, _option, said: None if said is None else LogFormat(said),
        help="Write the log to standard error: for people, or one JSON object per line.",
    )
    trust: bool = common_option(
        "--trust", is_flag=True, help="Read all of this folder's configuration in this command."
    )


@frozen(kw_only=True, slots=False, eq=False, repr=False)
class DatabaseOption(OutputOptions):
    """Where the journal is, for a command about what it holds."""

    db: str | None = common_option("--db", metavar="PATH|URL", help="Where the journal is.")


@frozen(kw_only=True, slots=False, eq=False, repr=False)
class StoreOptions(OutputOptions):
    """Where runs are stored."""

    db: str | None = common_option(
        "--db",
        metavar="PATH|URL",
        help="SQLite file of the journal, or postgresql://USER@HOST/DATABASE.",
    )
    no_store: bool = common_option(
        "--no-store", is_flag=True, help="Keep the journal in memory; nothing is stored."
    )


@frozen(kw_only=True, slots=False, eq=False, repr=False)
class ExtensionOptions(OutputOptions):
    """The operator's own code."""

    extensions: tuple[str, ...] = common_option(
        "--extensions",
        multiple=True,
        metavar="PATH.py|MODULE",
        help="Your tools, links and models. Repeatable.",
    )


@frozen(kw_only=True, slots=False, eq=False, repr=False)
class CommonOptions(ExtensionOptions, StoreOptions):
    """The options for extensions, the journal and output."""


@frozen(kw_only=True, slots=False, eq=False, repr=False)
class EventsOption:
    """Whether events are printed."""

    events: bool = option("--events", is_flag=True, help="Print one JSON event per line.")


@frozen(kw_only=True, slots=False, eq=False, repr=False)
class AnnotationOption:
    """Whether failures are printed as annotations."""

    annotations: bool | None = option(
        "--annotations/--no-annotations",
        default=None,
        help="Print failures as annotations of a GitHub workflow. "
        "In one of them it is done anyway.",
    )

    def annotation_stream(self, context: CommandContext, out: TextIO) -> TextIO | None:
        """Where annotations are printed: on `out`, or beside it where that is for programs.

        None: they are not wanted.
        """
        wanted = self.annotations
        if wanted is None:
            wanted = context.environ.get("GITHUB_ACTIONS") == "true"
        settings = context.settings
        stream = sys.stderr if settings.json or settings.events else out
        return stream if wanted else None


@frozen(kw_only=True, slots=False, eq=False, repr=False)
class ReportOptions(AnnotationOption):
    """Where the end of a run is reported, beside the console."""

    junit: str | None = option(
        "--junit", metavar="FILE", help="Write the steps as JUnit XML, however it ends."
    )


@frozen(kw_only=True, slots=False, eq=False, repr=False)
class CacheOption:
    """Whether outputs are taken from the cache."""

    no_cache: bool = option(
        "--no-cache",
        is_flag=True,
        help="Run every step, also those with `cache: true`; cache no output.",
    )


@frozen(kw_only=True, slots=False, eq=False, repr=False)
class RunLimitOptions:
    """Limits of each run, where a process executes many."""

    timeout: str | None = option(
        "--timeout", metavar="TIME", help="Most time for a run: 90, 90s, 10m."
    )
    max_cost_usd: float | None = option(
        "--max-cost", type=float, metavar="USD", help="Most a run may cost."
    )
    approve: str | None = option(
        "--approve",
        type=click.Choice(_POLICIES),
        help="Who approves calls that need approval; else the run waits for a decision.",
    )


@frozen(kw_only=True, slots=False, eq=False, repr=False)
class CassetteOptions:
    """Recorded answers of models."""

    record: str | None = option(
        "--record", metavar="FILE", help="Add each call of a model, with its answer, to FILE."
    )
    replay: str | None = option(
        "--replay",
        metavar="FILE",
        help="Answer from FILE instead of models; a request that is not in it fails with a diff.",
    )


@frozen(kw_only=True, slots=False, eq=False, repr=False)
class AllProjectsOption:
    """The flag of commands that show or continue what was made in this project."""

    of_all: bool = option("--all", is_flag=True, help="Of all projects, not of this one alone.")


@frozen(kw_only=True, slots=False, eq=False, repr=False)
class UserOption:
    """For whom a run is."""

    user: str | None = option(
        "--user",
        metavar="LABEL",
        callback=lambda _context, _option, said: None if said is None else checked_user(said),
        help="For whom it runs: a label, whose daily budget it spends from (see [budgets]).",
    )


@frozen(kw_only=True, slots=False, eq=False, repr=False)
class PatienceOptions:
    """Whether model calls may wait for batches of their providers, at their lower price."""

    by: str | None = option(
        "--by",
        metavar="TIME",
        help="Ask models through their providers' batches, at half the price; be done by then: "
        "06:00, 2026-12-24T06:00.",
    )
    patience: str | None = option(
        "--patience", metavar="TIME", help="The same, so long from now on: 8h, 24h."
    )

    def deadline(self, settings: Settings) -> datetime | None:
        """When all has to be done, in UTC; None: calls do not wait.

        Raises:
            UsageError: It is no such time, or nothing would know of what was sent and paid.
        """
        if self.by is None and self.patience is None:
            return None
        flag = "--by" if self.by is not None else "--patience"
        if settings.no_store:
            raise UsageError(
                f"{flag} needs a journal, which says what was sent and is paid for, whenever this "
                "process ends: leave out --no-store.",
                code="no-store",
            )
        if settings.record is not None or settings.replay is not None:
            raise UsageError(
                f"{flag} does not go with --record and --replay: a cassette holds calls that are "
                "made one by one.",
                code="bad-deadline",
            )
        from minions.app.wiring.patient_runtime import deadline_of

        return deadline_of(self.by, self.patience, SystemClock().now().astimezone())


_JOBS: Final = 8
_PATIENT_JOBS: Final = 1_000


@frozen(kw_only=True, slots=False, eq=False, repr=False)
class ManyRunsOptions(PatienceOptions):
    """How many runs there are at a time, and whether their model calls may wait."""

    given_jobs: int | None = option(
        "-j",
        "--jobs",
        type=click.IntRange(min=1),
        help=f"Runs at a time; default: {_JOBS}, with --by or --patience {_PATIENT_JOBS}.",
    )

    @property
    def jobs(self) -> int:
        """Runs at a time: those whose calls wait for batches cost little meanwhile."""
        is_patient = self.by is not None or self.patience is not None
        return self.given_jobs or (_PATIENT_JOBS if is_patient else _JOBS)


@frozen(kw_only=True, slots=False, eq=False, repr=False)
class StrictOption:
    """Whether a recipe's own words make untrusted text harmless."""

    strict: bool = option(
        "--strict",
        is_flag=True,
        help="Refuse where untrusted text can reach a tool with an effect, without approval.",
    )


# --- the parts of a process ----------------------------------------------------------------------


class CommandContext(Struct, frozen=True, kw_only=True, eq=False):
    """The settings and the environment of one command."""

    origin: Origin
    environ: Mapping[str, str]
    flags: Mapping[str, object]
    """The settings that options of the command gave."""
    stdin: StandardInput = msgspec.field(default_factory=StandardInput)
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
        from minions.recipe.recipe_files import project_of

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
        from minions.app.wiring.built_in_extensions import built_in_extensions, extended

        return extended(built_in_extensions(servers=self.mcp_toolsets()), self.own_extensions())

    def mcp_toolsets(self) -> McpToolsets:
        """The toolsets of MCP servers; starts none.

        Raises:
            UsageError: An address or the lock cannot be read.
        """
        from minions.app.wiring.configured_servers import make_mcp_toolsets

        return make_mcp_toolsets(self.settings, self.folder_of, self.environ)

    def own_extensions(self) -> Extensions:
        """The operator's own code.

        Raises:
            UsageError: It cannot be loaded.
        """
        from minions.engine.compile.extensions import Extensions

        if not self.settings.extensions:
            return Extensions()
        from minions.app.wiring.extension_files import load_extensions

        is_of_environment = self.origin.origins["extensions"] == "environment"
        folder = None if is_of_environment else self.folder_of("extensions")
        return load_extensions(self.settings.extensions, folder, Extensions())

    def catalog(self) -> Catalog:
        """Everything that recipes may name. Loads the engine only for code of the operator."""
        from minions.app.wiring.built_in_extensions import (
            built_in_recipes,
            built_in_redactors,
            built_in_tools,
            built_in_toolsets,
            check_watch,
            joined_toolsets,
        )
        from minions.recipe.catalog import Catalog

        redaction = self.settings.redaction
        kinds = (*built_in_redactors(), *redaction.patterns)
        if self.settings.extensions:
            catalog = self.extensions().catalog()
            redactors = frozenset((*(catalog.redactors or ()), *kinds))
            return replace(
                catalog,
                strict=self.settings.strict,
                check_watch=check_watch,
                redactors=redactors,
                operator=self.settings.operator_rules(self.environ),
                roles=frozenset(self.settings.approval_roles),
            )
        tools = {tool.spec.name: tool.spec for tool in built_in_tools()}
        return Catalog(
            toolsets=joined_toolsets(self.mcp_toolsets(), built_in_toolsets()),
            tools=tools,
            recipes=built_in_recipes(),
            redactors=frozenset(kinds),
            strict=self.settings.strict,
            check_watch=check_watch,
            operator=self.settings.operator_rules(self.environ),
            roles=frozenset(self.settings.approval_roles),
        )

    def journal(self) -> Journal:
        """The configured journal; opens nothing yet."""
        from minions.app.wiring.databases import make_journal

        return make_journal(self.settings, self.folder_of("db"))

    def known_journal(self) -> Journal:
        """The same for a command about what it holds: an SQLite file that is missing stays so."""
        from minions.app.wiring.databases import make_journal

        return make_journal(self.known_stores(), self.folder_of("db"))

    def known_stores(self) -> Settings:
        """The settings, with stores in memory where the SQLite file does not exist."""
        from minions.app.wiring.databases import has_database

        is_there = has_database(self.settings, self.folder_of("db"))
        return self.settings if is_there else evolve(self.settings, no_store=True)

    def cache(self) -> StepCache:
        """The configured cache of step outputs; opens nothing yet."""
        from minions.app.wiring.databases import make_cache

        return make_cache(self.settings, self.folder_of("db"))

    def runtime(self, *, is_stored: bool = True, recipe_folders: tuple[Path, ...] = ()) -> Runtime:
        """The parts that the command's runs share; the caller closes them.

        Args:
            is_stored: Whether anything is stored; False: all is in memory, whatever is configured.
            recipe_folders: The folders of recipes that callers may run; empty: a person named one.
        Raises:
            UsageError: A setting is wrong, or the operator's code cannot be loaded.
        """
        from minions.app.wiring.configured_runtime import make_runtime
        from minions.app.wiring.logs import make_log
        from minions.interfaces.cli.console.console import log_line, tell

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
    from minions.app.wiring.databases import has_database, place_of_journal
    from minions.data.errors import NotFoundError

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


def command_context(options: OutputOptions) -> CommandContext:
    """Settings from every source, with those that were given as options.

    Raises:
        UsageError: The configuration is wrong.
    """
    settings = attrs.fields_dict(Settings)
    given = {
        name: value
        for name, value in attrs.asdict(options, recurse=False).items()
        if name in settings and value is not None and value is not False and value != ()
    }  # a 0 was given
    environ = environment()
    if options.trust:
        environ = {**environ, TRUST_VARIABLE: "1"}
    trust = FolderTrust.of(environ)
    _check_flags(type(options), given)
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


def _check_flags(kind: type[OutputOptions], given: Mapping[str, object]) -> None:
    """Refuse values of options that no source of settings may have, by the option's name.

    Raises:
        UsageError: A value is blank, or breaks the constraint of its key.
    """
    fields = attrs.fields_dict(kind)
    for name, value in given.items():
        if (made := fields[name].metadata.get(_OPTION)) is None:
            continue
        flag = next((str(each) for each in made[0] if each.startswith("--")), str(made[0][0]))
        for text in value if isinstance(value, tuple) else (value,):
            if isinstance(text, str):
                required_text(flag, text)
        if faults := list(bad_values({name: value})):
            raise bad_configuration(flag, faults)
