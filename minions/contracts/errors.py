"""Every error a person meets, and the value form that travels in results.

MinionsError
├── UsageError              the caller asked for something that cannot be (exit 2)
│   ├── RecipeError         a recipe is wrong; carries every fault at once
│   ├── NotFoundError       a name that nothing answers to
│   ├── MetadataError       limits or metadata of a wrong name or type
│   ├── GraphError          steps and edges that make no graph
│   └── SchemaError         a JSON Schema that is broken or unsafe
├── EnvironmentRefusedError the surroundings say no: key, model, database (exit 4)
│   └── JournalError        the store of facts cannot be read or written
│       ├── FencedError     another worker owns this run now
│       └── LeaseHeldError  another run of this session is active
├── AgentExecutionError     raised by `AgentResult.unwrap()` only
├── StaleSnapshotError      a memory mark that an older restore made void
├── StepFailedError         inside a step: a call failed, the step ends FAILED
└── ToolError               the model can mend it: its text is what the model reads
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar, Final

from attrs import frozen

__all__ = [
    "NEEDS_DECISION",
    "EnvironmentRefusedError",
    "FailureInfo",
    "Fault",
    "FencedError",
    "GraphError",
    "JournalError",
    "LeaseHeldError",
    "MetadataError",
    "MinionsError",
    "NotFoundError",
    "RecipeError",
    "SchemaError",
    "StaleSnapshotError",
    "StepFailedError",
    "ToolError",
    "UsageError",
    "did_you_mean",
    "near_hint",
    "near_names",
    "words_of",
]


NEEDS_DECISION: Final = "needs-decision"
"""Code of what waits for a person: not an end."""


@frozen(kw_only=True)
class FailureInfo:
    """A failure as data: what results, rows and `run --json` carry."""

    code: str
    """Stable, lower case with hyphens: `max-model-calls`, `tool-failed`."""
    message: str
    """What was read, where, what was expected, what to try; for a person."""
    where: str | None = None
    """`file:line:column`, a step id, or None where no place applies."""
    suggestions: tuple[str, ...] = ()
    """Near names or commands to try, best first."""

    def to_json(self) -> dict[str, str | None]:
        """The three fields that `run --json` keeps stable."""
        return {"code": self.code, "message": self.message, "where": self.where}


class MinionsError(Exception):
    """Base of all errors raised on purpose. A person must mend it."""

    code: ClassVar[str] = "minions-error"

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        where: str | None = None,
        suggestions: Iterable[str] = (),
    ) -> None:
        super().__init__(message)
        self.message = message
        self.error_code = code or self.code
        """This error's code: the class's own unless a finer one was given."""
        self.where = where
        self.suggestions = tuple(suggestions)

    def info(self) -> FailureInfo:
        """The same error as a value."""
        return FailureInfo(
            code=self.error_code,
            message=self.message,
            where=self.where,
            suggestions=self.suggestions,
        )


class UsageError(MinionsError):
    """The caller's words are off; nothing was started."""

    code = "usage"


class NotFoundError(UsageError):
    """Nothing answers to this name; `suggestions` hold the near ones."""

    code = "not-found"


class MetadataError(UsageError):
    """A limit or metadata key of a wrong name or type."""

    code = "bad-metadata"


class GraphError(UsageError):
    """Steps and edges that make no graph; the message names the offender."""

    code = "bad-graph"


class SchemaError(UsageError):
    """A JSON Schema that is broken, points outside itself, or can hang a validator."""

    code = "bad-schema"


@frozen(kw_only=True)
class Fault:
    """One thing wrong with a recipe, at one place."""

    code: str
    message: str
    file: str = "<recipe>"
    line: int = 1
    """From 1."""
    column: int = 1
    """From 1."""
    length: int = 1
    """How many characters the caret underlines."""
    source_line: str | None = None
    """The line as written, for the caret; None where there is no text."""
    label: str | None = None
    """Short text beside the caret, such as "did you mean 'summarize'?"."""
    help: str | None = None
    """What would be right: allowed values, near names."""
    is_warning: bool = False

    @property
    def where(self) -> str:
        """`file:line:column`."""
        return f"{self.file}:{self.line}:{self.column}"


class RecipeError(UsageError):
    """A recipe that cannot run; `faults` holds every one, in file order."""

    code = "invalid-recipe"

    def __init__(self, faults: Iterable[Fault]) -> None:
        self.faults = tuple(faults)
        first = self.faults[0]
        more = f" (and {len(self.faults) - 1} more)" if len(self.faults) > 1 else ""
        super().__init__(f"{first.message}{more}", where=first.where)

    def __str__(self) -> str:
        return "\n".join(
            f"{f.where}: {f.message}{f' ({f.label})' if f.label else ''}" for f in self.faults
        )


class EnvironmentRefusedError(MinionsError):
    """The surroundings say no: a key, a model, a database, a sandbox is missing."""

    code = "environment"


class JournalError(EnvironmentRefusedError):
    """The journal cannot be opened, read or written."""

    code = "journal"

    @property
    def is_about_one_fact(self) -> bool:
        """Whether the store works and refuses this fact for ever; else it may work again later,
        and a run that met this error has not ended: it is resumed.
        """
        return self.error_code in _ABOUT_ONE_FACT


_ABOUT_ONE_FACT: Final = frozenset(
    {"bad-text", "body-not-json", "duplicate-entry", "key-too-long", "run-ended"}
)


class FencedError(JournalError):
    """This worker's epoch is stale: another one owns the run and may be writing."""

    code = "fenced"


class LeaseHeldError(JournalError):
    """Another run of this session is active."""

    code = "lease-held"

    def __init__(self, message: str, *, worker_id: str, run_id: str = "") -> None:
        super().__init__(message)
        self.worker_id = worker_id
        """Who is active."""
        self.run_id = run_id
        """In which run; empty where that is not known."""


class StaleSnapshotError(MinionsError):
    """An older memory mark was restored since this one was taken."""

    code = "stale-snapshot"


class StepFailedError(MinionsError):
    """Ends the step FAILED with `failure`; raised by what a step calls in its scope."""

    code = "step-failed"

    def __init__(self, failure: FailureInfo) -> None:
        super().__init__(
            failure.message,
            code=failure.code,
            where=failure.where,
            suggestions=failure.suggestions,
        )
        self.failure = failure


class ToolError(MinionsError):
    """Raised by a tool for what the model can mend; its text goes to the model."""

    code = "tool-error"


def words_of(error: BaseException) -> str:
    """`Class: text` of any error, also of one whose text cannot be had."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001  # a stranger's __str__ may raise anything
        text = "(its text cannot be shown)"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def near_names(name: str, options: Iterable[str], *, limit: int = 3) -> tuple[str, ...]:
    """The options that look like `name`, best first; empty when none comes near."""
    import difflib

    by_folded = {option.casefold(): option for option in options}
    close = difflib.get_close_matches(name.casefold(), by_folded, n=limit, cutoff=0.6)
    return tuple(by_folded[match] for match in close)


def near_hint(near: Sequence[str]) -> str:
    """` Did you mean 'x'?` for within a message, or nothing; takes what `near_names` gives."""
    return f" Did you mean '{near[0]}'?" if near else ""


def did_you_mean(name: str, options: Iterable[str]) -> str:
    """`near_hint` of the names that are like it."""
    return near_hint(near_names(name, options, limit=1))
