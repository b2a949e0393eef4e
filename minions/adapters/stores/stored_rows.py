"""Rows of runs and sessions as databases hold them: columns to search by, the rest as JSON.

The rest is ASCII: half characters and NULs, which no database takes in a text, are escaped in it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Final, TypeVar, cast

from msgspec import MsgspecError, Raw, Struct
from msgspec.json import Decoder
from msgspec.structs import replace

from minions.adapters.stores.body_cipher import BodyCipher, SealedText, is_sealed, key_missing
from minions.contracts.journal.facts import (
    Fact,
    RunFinished,
    RunRejected,
    UnreadableFact,
    class_of,
    fact_of,
)
from minions.contracts.journal.journal import EntryDraft, Lease
from minions.contracts.journal.run_rows import (
    MOST_DAYS,
    Number,
    RunRow,
    RunUse,
    SessionRow,
    Spender,
    Spent,
    UsageBound,
    UseGroup,
    micros,
    time_at,
    use_in,
    whole_tokens,
)
from minions.data.errors import JournalError
from minions.data.json_parts import LONG_TEXT
from minions.data.json_values import encoder_of, parse_json

_LONGEST_KEY: Final = 200
"""Characters; an index has no room for more in every database."""

_USAGE: Final = ("input_tokens", "output_tokens", "cached_tokens", "total_tokens", "cost_usd")
"""What usage nearly always is: stored without these names."""


_RUN_VALUES: Final = 14
"""What the rest of a run holds."""


# --- runs ------------------------------------------------------------------------------------


def rest_of_run(row: RunRow, cipher: BodyCipher | None = None) -> str:
    """What no column holds; words are encrypted where there is a cipher."""
    usage: object = dict(row.usage)
    if tuple(row.usage) == _USAGE:
        usage = list(row.usage.values())
    recipe = None if search_key(row.recipe) == row.recipe else row.recipe
    ended = None if row.ended_at is None else micros(row.ended_at)
    words = row.error_message, row.problem, row.input_words
    if cipher is not None or SealedText in map(type, words):
        message, problem, inputs = (
            _sealed(cipher, text, row.run_id, name)
            for text, name in zip(words, _RUN_WORDS, strict=True)
        )
    else:
        message, problem, inputs = words
    return _shorten(
        row.model, ended, usage or None, row.mark, row.error_code, message, problem, recipe,
        inputs, list(row.foreign) if any(row.foreign) else None, _whole_project(row),
        row.earlier or None, row.version, row.digest,
    )  # fmt: skip


_RUN_WORDS: Final = ("error", "problem", "inputs")


def _sealed(cipher: BodyCipher | None, text: str | None, *names: str) -> str | None | Sequence[str]:
    """Words as a row holds them: encrypted ones are a list of one text."""
    if type(text) is SealedText:
        return [text.stored]
    return text if text is None or cipher is None else [cipher.seal(text, "row", *names)]


def opened_run(row: RunRow, cipher: BodyCipher | None) -> RunRow:
    """The row with its words, as far as the keys are there."""
    if cipher is None:
        return row
    words = (row.error_message, row.problem, row.input_words)
    message, problem, inputs = (
        _opened(cipher, text, row.run_id, name)
        for text, name in zip(words, _RUN_WORDS, strict=True)
    )
    return replace(row, error_message=message, problem=problem, input_words=inputs)


def opened_session(row: SessionRow, cipher: BodyCipher | None) -> SessionRow:
    """The row with its name, as far as the key is there."""
    if cipher is None or type(row.name) is not SealedText:
        return row
    return replace(row, name=_opened(cipher, row.name, row.session_id, "name"))


def _opened(cipher: BodyCipher, text: str | None, *names: str) -> str | None:
    """A list shows the other rows, too: what cannot be decrypted stays as it is."""
    if type(text) is not SealedText:
        return text
    with contextlib.suppress(JournalError):
        return cipher.open(text.stored.encode(), "row", *names).decode("utf-8", "surrogatepass")
    return text


def _words(stored: object) -> str | None:
    """Words of a row; encrypted ones stay so until they are shown."""
    if stored is None or type(stored) is str:
        return stored
    (sealed,) = _check(stored, list)
    return SealedText(_check(sealed, str))


def name_key(row: SessionRow, cipher: BodyCipher | None = None) -> str | None:
    """What the column holds by which a session is found by its name."""
    name = row.name
    if type(name) is SealedText:
        return name.column
    if name is None or cipher is None:
        return None if name is None else search_key(name)
    return _hidden(cipher.name_of(name))


def name_keys(name: str, cipher: BodyCipher | None) -> Sequence[str]:
    """What that column may hold for a name."""
    hidden = () if cipher is None else cipher.names_of(name)
    return [search_key(name), *map(_hidden, hidden)]


def _hidden(name: str) -> str:
    return f"~{name}"


def started_by(row: RunRow | Spender) -> str | None:
    """What the column holds for the schedule or token that started the run."""
    if row.schedule is not None:
        return f"{_SCHEDULE}{row.schedule}"
    return None if row.token is None else f"{_TOKEN}{row.token}"


_SCHEDULE: Final = "schedule "
_TOKEN: Final = "token "  # noqa: S105  # whose runs


def started_key(row: RunRow) -> str | None:
    """The same as a key of at most some hundred characters."""
    found = started_by(row)
    return None if found is None else search_key(found)


def _starter(stored: str | None, kind: str) -> str | None:
    is_it = stored is not None and stored.startswith(kind)
    return stored.removeprefix(kind) if stored is not None and is_it else None


def user_key(row: RunRow | SessionRow) -> str | None:
    """What the column holds for the label of the user."""
    return None if row.user is None else search_key(row.user)


def project_key(row: RunRow | SessionRow) -> str | None:
    """What the column holds for the folder of the project."""
    return None if row.project is None else search_key(row.project)


def _whole_project(row: RunRow | SessionRow) -> str | None:
    """The folder, where its column holds a key that is another text."""
    return None if project_key(row) == row.project else row.project


def run_of(
    run_id: str,
    session_id: str,
    position: int,
    recipe: str,
    status: str,
    started_at: datetime,
    rest: str,
    user: str | None,
    project: str | None,
    day: int,
    *spent: object,
) -> RunRow:
    """The row of these columns.

    Args:
        spent: Tokens and US dollars in all, and those of the day; and what started it.
    Raises:
        ValueError, TypeError, OverflowError: They hold what was never written to them.
    """
    (
        model, ended, usage, mark, code, message, problem, whole, words, foreign, folder, earlier,
        version, digest,
    ) = _lengthened(rest, _RUN_VALUES)  # fmt: skip
    tokens, cost_usd, day_tokens, day_usd, starter = spent
    return RunRow(
        run_id=_check(run_id, str),
        session_id=_check(session_id, str),
        position=_check(position, int),
        recipe=_check(recipe if whole is None else whole, str),
        status=_check(status, str),
        model=_text(model),
        started_at=started_at,
        ended_at=None if ended is None else time_of(ended),
        usage=_usage(usage),
        error_code=_text(code),
        error_message=_words(message),
        mark=_text(mark),
        problem=_words(problem),
        input_words=_words(words),
        user=_text(user),
        project=_text(project if folder is None else folder),
        day=_check(day, int),
        spent=_spent(tokens, cost_usd),
        day_spent=_spent(day_tokens, day_usd),
        foreign=Spent() if foreign is None else _spent(*_check(foreign, list)),
        earlier=() if earlier is None else _earlier(_check(earlier, list)),
        schedule=None if starter is None else _starter(_text(starter), _SCHEDULE),
        token=None if starter is None else _starter(_text(starter), _TOKEN),
        version=_text(version),
        digest=_text(digest),
    )


_ANY_JSON: Final = Decoder()


class _UseOfRest(Struct, array_like=True, gc=False):
    """What sums need of the rest of a run; what else stands there is skipped, not decoded."""

    model: str | None = None
    ended_us: int | None = None
    usage: tuple[Number, Number, Number, Number, Number] | dict[str, Number] | None = None
    mark: Raw = Raw()
    error_code: Raw = Raw()
    error_message: Raw = Raw()
    problem: Raw = Raw()
    recipe: str | None = None
    input_words: Raw = Raw()
    foreign: Raw = Raw()
    project: str | None = None


_decode_use: Final = Decoder(_UseOfRest).decode


def stored_use(by: UseGroup, group: str | None, status: str, started_us: int, rest: str) -> RunUse:
    """What the run of these columns used.

    Args:
        group: The column of what is asked for; of the model none.
        started_us: As `micros` gave it.
    Raises:
        ValueError, TypeError, OverflowError: They hold what was never written to them.
    """
    try:
        found = _decode_use(rest)
    except MsgspecError:  # it may hold what only the other decoder takes, such as no number
        values = _lengthened(rest, _RUN_VALUES)
        found = _UseOfRest(
            model=_text(values[0]),
            ended_us=None if values[1] is None else _check(values[1], int),
            usage=dict(_usage(values[2])),
            recipe=_text(values[7]),
            project=_text(values[10]),
        )
    if by == "recipe":
        group = group if found.recipe is None else found.recipe
    elif by == "project":
        group = group if found.project is None else found.project
    elif by == "model":
        group = found.model
    ended, usage = found.ended_us, found.usage
    if isinstance(usage, tuple):
        _, _, _, tokens, cost_usd = usage
    else:
        tokens, cost_usd = use_in(usage or {})
    return RunUse(
        _text(group),
        _check(status, str),
        _check(started_us, int),
        None if ended is None else ended - started_us,
        tokens if type(tokens) is int else whole_tokens(tokens),
        cost_usd,
    )


def _usage(stored: object) -> Mapping[str, Number]:
    if type(stored) is list:
        return dict(zip(_USAGE, stored, strict=True))
    return cast("Mapping[str, Number]", _check(stored or {}, dict))


def has_usage(rest: str, bounds: Collection[UsageBound]) -> bool:
    """Whether the usage of a run is within these bounds; True where it cannot be read."""
    try:
        usage = _decode_use(rest).usage
    except MsgspecError:
        return True
    if isinstance(usage, tuple):
        _, _, _, tokens, cost_usd = usage
        usage = {"total_tokens": tokens, "cost_usd": cost_usd}
    return all(bound.is_kept(usage or {}) for bound in bounds)


def _earlier(stored: Sequence[object]) -> tuple[tuple[int, Spent], ...]:
    found = []
    for each in stored:
        day, amount = _check(each, list)
        found.append((_check(day, int), _spent(*_check(amount, list))))
    return tuple(found)


def _spent(tokens: object, cost_usd: object) -> Spent:
    return Spent(_check(tokens, int), float(_check(cost_usd, float)))


# --- sessions --------------------------------------------------------------------------------


def rest_of_session(row: SessionRow, cipher: BodyCipher | None = None) -> str:
    """What no column holds; the name is encrypted where there is a cipher."""
    name: object = row.name
    if cipher is not None or type(name) is SealedText:
        name = _sealed(cipher, row.name, row.session_id, "name")
    elif row.name is not None and search_key(row.name) == row.name:
        name = None
    parent = None if row.parent is None or search_key(row.parent) == row.parent else row.parent
    return _shorten(
        micros(row.created_at), micros(row.last_at), row.status, row.last_run_id, row.ran_recipe,
        row.own_recipe, row.is_mixed, row.has_inputs, row.forked_at, name, parent,
        _whole_project(row), row.retain_s,
    )  # fmt: skip


def session_of(
    session_id: str,
    name: str | None,
    parent: str | None,
    updated_at: datetime,
    last_position: int,
    user: str | None,
    project: str | None,
    _expires_at: object,
    rest: str,
) -> SessionRow:
    """The row of these columns.

    Args:
        _expires_at: For those who look for it; the row computes it.
    Raises:
        ValueError, TypeError, OverflowError: They hold what was never written to them.
    """
    (
        created, last, status, last_run, ran, own, is_mixed, has_inputs, forked_at,
        whole_name, whole_parent, folder, retain_s,
    ) = _lengthened(rest, 13)  # fmt: skip
    return SessionRow(
        session_id=_check(session_id, str),
        created_at=time_of(created),
        updated_at=updated_at,
        last_at=time_of(last),
        last_position=_check(last_position, int),
        name=_name(name, whole_name),
        parent=_text(parent if whole_parent is None else whole_parent),
        forked_at=None if forked_at is None else _check(forked_at, int),
        has_inputs=bool(has_inputs),
        own_recipe=_text(own),
        ran_recipe=_text(ran),
        is_mixed=bool(is_mixed),
        last_run_id=_text(last_run),
        status=_text(status),
        user=_text(user),
        project=_text(project if folder is None else folder),
        retain_s=None if retain_s is None else _check(retain_s, float),
    )


def removed_spending(rows: Iterable[RunRow], today: int) -> Iterator[tuple[object, ...]]:
    """What stays of the rows of removed runs for budgets: figures of each day that may count."""
    for row in rows:
        names = (user_key(row), search_key(row.recipe), project_key(row), started_key(row))
        for day, spent in (*row.earlier, (row.day, row.day_spent)):
            if any(spent) and day > today - MOST_DAYS:
                yield (day, *names, *spent)


def _name(column: str | None, whole: object) -> str | None:
    if type(whole) is list:
        (sealed,) = whole
        return SealedText(_check(sealed, str), column)
    return _text(column if whole is None else whole)


# --- texts and times -------------------------------------------------------------------------


def search_key(text: str) -> str:
    """What a column holds for a text of any kind: itself, or a hash of what does not fit."""
    if len(text) <= _LONGEST_KEY and "\0" not in text and _is_unicode(text):
        return text
    return f"#{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()}"


def _is_unicode(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _shorten(*values: object) -> str:
    """As a list, without what is missing at its end."""
    last = len(values)
    while last and (values[last - 1] is None or values[last - 1] is False):
        last -= 1
    return _encode(values[:last])


_encode: Final = encoder_of(json.JSONEncoder(separators=(",", ":")))


def _lengthened(rest: str, count: int) -> list[object]:
    try:
        try:
            values = _ANY_JSON.decode(rest)
        except MsgspecError:  # half a character, and what is no number, Python alone takes
            values = json.loads(rest)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    if type(values) is not list or len(values) > count:
        raise ValueError("it is no list of what a row has")
    return [*values, *[None] * (count - len(values))]


K = TypeVar("K")


def _check(value: object, kind: type[K]) -> K:
    if type(value) is not kind:
        raise TypeError(f"{value!r:.40} is no {kind.__name__}")
    return value


def _text(value: object) -> str | None:
    return None if value is None else _check(value, str)


def time_of(stored: object) -> datetime:
    """The time that `micros` gave.

    Raises:
        TypeError, OverflowError: It is none.
    """
    return time_at(_check(stored, int))


# --- when the rows of new sessions are made ------------------------------------------------------


_SOME: Final = 64
"""Runs that end before the rows of new sessions are made: some 5 ms of work."""


def folds_later(lease: Lease) -> bool:
    """Whether an entry under that lease leaves the rows of its session to a later fold.

    In the first execution of a session there is little to fold; in one that goes on, a fold of
    all its entries would cost more with each run.
    """
    return lease.epoch == 1


class PendingRows:
    """Counts the runs that ended in new sessions, for one journal object."""

    def __init__(self) -> None:
        self._ended = _SOME - 1  # the first one of a process also folds what others left

    def is_due(self, lease: Lease, draft: EntryDraft) -> bool:
        """Whether rows are to be made now; asked once for each entry that was stored."""
        if not (folds_later(lease) and isinstance(draft.fact, RunFinished | RunRejected)):
            return False
        self._ended = (self._ended + 1) % _SOME
        return self._ended == 0


# --- facts as the JSON text of journal rows and back; the same for every database ----------------


_DECODERS: Final[dict[tuple[str, str], Decoder[Fact]]] = {}
"""By kind and state, made when the first row of it is read."""


def read_fact(
    kind: str, state: str, stored: str | bytes, *, in_parts: bool = False
) -> Fact | UnreadableFact:
    """The fact that the text of a row tells.

    Args:
        in_parts: In a thread beside an event loop, which goes on.
    Raises:
        JournalError: `journal-key-missing`; it is encrypted.
    """
    if in_parts and len(stored) >= LONG_TEXT:
        return _read_slowly(kind, state, stored)
    decoder = _DECODERS.get((kind, state)) or _new_decoder(kind, state)
    if decoder is not None:
        try:
            return decoder.decode(stored)
        except (MsgspecError, ValueError, RecursionError):
            pass  # it may hold what only the other decoder takes, such as half a character
    return _read_slowly(kind, state, stored)


def _new_decoder(kind: str, state: str) -> Decoder[Fact] | None:
    found = class_of(kind, state)
    if found is None:
        return None
    decoder = _DECODERS[kind, state] = Decoder[Fact](found)
    return decoder


def _read_slowly(kind: str, state: str, stored: str | bytes) -> Fact | UnreadableFact:
    """As above, or what was expected."""
    try:
        text = stored.decode("utf-8", "surrogatepass") if isinstance(stored, bytes) else stored
        body = parse_json(text, in_parts=True)
    except (ValueError, RecursionError) as error:
        problem = f"its body is not JSON ({type(error).__name__})"
        return UnreadableFact(kind=kind, state=state, problem=problem)
    if isinstance(body, dict):
        return fact_of(kind, state, body)
    if isinstance(body, str) and is_sealed(stored):
        raise key_missing(stored)
    return UnreadableFact(kind=kind, state=state, problem="its body is no JSON object")
