"""Every error that a person meets, and its form as a value in results.

MinionsError
├── UsageError              the request cannot be carried out as given (exit 2)
│   ├── RecipeError         the recipe has faults; carries all of them
│   ├── NotFoundError       nothing has that name
│   ├── MetadataError       limits or metadata of a wrong name or type
│   ├── GraphError          steps and edges that form no valid graph
│   └── SchemaError         a JSON Schema that is invalid or unsafe
├── EnvironmentRefusedError a key, model or database is missing or refuses (exit 4)
│   └── JournalError        the journal cannot be read or written
│       ├── FencedError     another worker took over this run
│       └── LeaseHeldError  another run of this session is active
├── AgentExecutionError     raised by `AgentResult.unwrap()` only
├── StaleSnapshotError      a memory snapshot that is no longer valid
├── StepFailedError         inside a step: a call failed, the step ends FAILED
├── ToolServerError         a server of tools failed; a later call may succeed
└── ToolError               the model can correct it: its text is sent to the model
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar, Final

from attrs import field, frozen

from minions.data.failure_categories import FailureCategory, category_of
from minions.data.field_repr import FieldsRepr

UNREACHABLE: Final = "model-unreachable"
"""Code of a model call whose server gave no answer at all, after the last attempt."""
CIRCUIT_OPEN: Final = "circuit-open"
"""Code of a model call that was not sent, because its server failed too often in a row."""
UNFIT_RESULT: Final = "bad-result"
"""The code of a tool result that does not fit its declared type."""
CONTEXT_EXCEEDED: Final = "context-exceeded"
"""Code of a model call whose prompt is longer than the model takes, or than its recipe allows."""
OUTPUT_TRUNCATED: Final = "output-truncated"
"""Code of an answer that was cut off at its token limit: a failure; in a conversation a warning."""
LIMIT_REACHED: Final = "limit-reached"
"""Code of work that a limit of the run kept from starting."""
MAX_MODEL_CALLS: Final = "max-model-calls"
"""Code of a step that used up its model calls without being complete."""
NEEDS_DECISION: Final = "needs-decision"
"""Code of a run or step that waits for a person; it can be resumed."""


_TWO_PERIODS: Final = re.compile(r"(?<=[^\W_])([)\]'\"’]?)\.\.(?=\s|\Z)")


def _with_one_period(message: str) -> str:
    """The message without the second period where a sentence was put before the end of another."""
    if ".." not in message:
        return message
    return _TWO_PERIODS.sub(r"\1.", message)


@frozen(kw_only=True)
class FailureInfo(FieldsRepr):
    """A failure as data, as results, rows and `run --json` carry it."""

    code: str
    """Stable, lower case with hyphens: `max-model-calls`, `tool-failed`."""
    message: str = field(converter=_with_one_period)
    """For a person: what was read, where, what was expected, what to try."""
    where: str | None = None
    """`file:line:column`, a step id, or None where no place applies."""
    suggestions: tuple[str, ...] = ()
    """Similar names or commands to try, best first."""
    _category: FailureCategory | None = field(default=None)
    """Where the code does not say it: it is an application's own."""

    @property
    def category(self) -> FailureCategory:
        """What kind of failure it is; of a code that is not listed what its value says."""
        return self._category or category_of(self.code)

    def to_json(self) -> dict[str, str | None]:
        """The failure as rows hold it: `code`, `message` and `where`.

        `category` is there where the code does not say it.
        """
        body: dict[str, str | None] = {
            "code": self.code,
            "message": self.message,
            "where": self.where,
        }
        if self._category is not None:
            body["category"] = self._category.value
        return body

    def to_document(self) -> dict[str, str | None]:
        """The failure as programs read it; these keys are stable."""
        return {**self.to_json(), "category": self.category.value}


class MinionsError(Exception):
    """Base class of all errors that Minions raises on purpose and that a person has to fix."""

    code: ClassVar[str] = "minions-error"

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        where: str | None = None,
        suggestions: Iterable[str] = (),
    ) -> None:
        self.message = _with_one_period(message)
        super().__init__(self.message)
        self.error_code = code or self.code
        """This error's code: the class's own unless a more specific one was given."""
        self.where = where
        self.suggestions = tuple(suggestions)

    def info(self) -> FailureInfo:
        """The error as a value."""
        return FailureInfo(
            code=self.error_code,
            message=self.message,
            where=self.where,
            suggestions=self.suggestions,
        )


class UsageError(MinionsError):
    """A request that cannot be carried out as given; nothing was started."""

    code = "usage"


class NotFoundError(UsageError):
    """Nothing has this name; `suggestions` holds similar ones."""

    code = "not-found"


class MetadataError(UsageError):
    """A limit or metadata key of a wrong name or type."""

    code = "bad-metadata"


class GraphError(UsageError):
    """Steps and edges that form no valid graph; the message names the faulty one."""

    code = "bad-graph"


class SchemaError(UsageError):
    """A JSON Schema that is invalid, refers outside itself, or can
    take a validator unbounded time.
    """

    code = "bad-schema"


@frozen(kw_only=True)
class Fault(FieldsRepr):
    """One fault of a recipe, at one place."""

    code: str
    message: str
    file: str = "<recipe>"
    line: int = 1
    """Line number, from 1."""
    column: int = 1
    """Column number in characters, from 1."""
    length: int = 1
    """Number of characters to underline."""
    source_line: str | None = None
    """The line of the recipe's text, to show the place; None: there is no text."""
    label: str | None = None
    """Short text beside the underlined place, such as "did you mean 'summarize'?"."""
    help: str | None = None
    """What would be valid: allowed values, similar names."""
    is_warning: bool = False

    @property
    def where(self) -> str:
        """The place as `file:line:column`."""
        return f"{self.file}:{self.line}:{self.column}"


class RecipeError(UsageError):
    """A recipe that cannot run; `faults` holds every fault, in the order of the file."""

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
    """Something that the process needs is missing or refuses: a key,
    a model, a database, a sandbox.
    """

    code = "environment"


class BudgetSpentError(EnvironmentRefusedError):
    """A run was not started: the budget of its session, its user or its day is spent."""

    code = "budget-spent"

    def __init__(self, message: str, *, limit: str, retry_after_s: int | None) -> None:
        super().__init__(message)
        self.limit = limit
        """The name of the limit, as it is set: such as `usd_per_day`."""
        self.retry_after_s = retry_after_s
        """Seconds until there is a new budget; None: a session has only one."""


class JournalError(EnvironmentRefusedError):
    """The journal cannot be opened, read or written."""

    code = "journal"

    @property
    def is_about_one_fact(self) -> bool:
        """Whether the journal works and refuses only this fact.

        False: the journal itself failed and may work again later, so the run has not ended: it can
        be resumed.
        """
        return self.error_code in _ABOUT_ONE_FACT


_ABOUT_ONE_FACT: Final = frozenset(
    {"bad-text", "body-not-json", "duplicate-entry", "key-too-long", "run-ended"}
)


class FencedError(JournalError):
    """This worker's lease is no longer valid: another worker took
    over the run and may be writing.
    """

    code = "fenced"


class LeaseHeldError(JournalError):
    """Another run of this session is active."""

    code = "lease-held"

    def __init__(self, message: str, *, worker_id: str, run_id: str = "") -> None:
        super().__init__(message)
        self.worker_id = worker_id
        """The worker that executes the active run."""
        self.run_id = run_id
        """The active run; empty where it is not known."""


class StaleSnapshotError(MinionsError):
    """A snapshot that is invalid because an older one was restored since."""

    code = "stale-snapshot"


class StepFailedError(MinionsError):
    """Ends the step as FAILED with `failure`; raised by the methods of `StepScope`."""

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
    """Raised by a tool for an error that the model can correct; its text is sent to the model."""

    code = "tool-error"


class ToolServerError(MinionsError):
    """A server of tools failed: it is gone, does not speak the protocol, or is another one now."""

    code = "tool-server"

    def __init__(
        self, message: str, *, code: str | None = None, is_transient: bool = False
    ) -> None:
        super().__init__(message, code=code)
        self.is_transient = is_transient
        """Whether the same call may succeed later."""


def words_of(error: BaseException) -> str:
    """`Class: text` of any error, also of one whose `__str__` raises."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001  # a stranger's __str__ may raise anything
        text = "(its text cannot be shown)"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def near_names(name: str, options: Iterable[str], *, limit: int = 3) -> tuple[str, ...]:
    """The options that look like `name`, best first; empty when none is similar."""
    import difflib

    by_folded = {option.casefold(): option for option in _comparable(name, options)}
    wanted = name.casefold()
    close = difflib.get_close_matches(wanted, by_folded, n=limit + _MORE, cutoff=0.6)
    edits = [option for option in by_folded if is_one_edit(wanted, option)]
    letters = sorted(wanted)
    first = sorted(edits, key=lambda option: sorted(option) != letters)  # swapped letters
    ranked = dict.fromkeys((*(each for each in first if each in close), *first, *close))
    return tuple(by_folded[match] for match in tuple(ranked)[:limit])


_MORE: Final = 3
"""Similar names beyond those that are wanted, of which one edit apart come first."""


def is_one_edit(one: str, other: str) -> bool:
    """Whether a letter was dropped, added, replaced or swapped with its neighbour."""
    if abs(len(one) - len(other)) > 1 or min(len(one), len(other)) < 1 or one == other:
        return False
    start = 0
    while start < min(len(one), len(other)) and one[start] == other[start]:
        start += 1
    left, right = one[start:], other[start:]
    if len(left) == len(right):
        is_swapped = left[:2] == right[:2][::-1] and left[2:] == right[2:]
        return len(one) > 1 and ((left[1:] == right[1:] and len(one) > 1) or is_swapped)
    return len(one) + len(other) > 3 and (left[1:] == right or left == right[1:])


_LONGEST_NAME: Final = 100
_MOST_COMPARED: Final = 500_000
"""Pairs of characters that are compared: some 20 ms."""


def _comparable(name: str, options: Iterable[str]) -> Iterator[str]:
    """The first options that can be similar to `name`, as many as can be compared at once.

    The time to compare two names grows with the product of their lengths, and strangers choose
    both.
    """
    left = _MOST_COMPARED
    if len(name) > _LONGEST_NAME:
        return
    for option in options:
        if max(len(option), len(name)) > 3 * min(len(option), len(name)):
            left -= 1
        else:
            left -= len(name) * len(option) + _LONGEST_NAME
            yield option
        if left < 0:
            return


def near_hint(near: Sequence[str]) -> str:
    """` Did you mean 'x'?` to append to a message; empty without similar names.

    Args:
        near: As `near_names` returns them.
    """
    return f" Did you mean '{near[0]}'?" if near else ""


def did_you_mean(name: str, options: Iterable[str]) -> str:
    """` Did you mean 'x'?` for the options similar to `name`; empty when there are none."""
    return near_hint(near_names(name, options, limit=1))
