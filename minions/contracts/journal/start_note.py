"""What whoever began a run noted with its start or resume, beside its recipe and inputs.

A note is a JSON object: an application may add keys of its own, which are kept. This module is the
only place that knows the keys of ours; what is not of the form that they have counts as not noted.
Parts of a note have types of their own: `QueuePlace`, where a run waits for a worker, `Offer`,
what its caller lets it open, and `CallerTool`, what its caller carries out itself.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Final, Self

import msgspec
from attrs import field, frozen
from attrs.validators import ge, le, matches_re
from msgspec import Struct
from msgspec import field as struct_field

from minions.contracts.journal.child_run_links import ChildLink, ChildWait
from minions.data.field_repr import FieldsRepr
from minions.data.json_values import JsonValue
from minions.data.schema import JsonSchema

DEFAULT_QUEUE: Final = "default"
"""The queue of jobs for which none is named."""
LOWEST_PRIORITY: Final = 1_000
"""The greatest number that a priority may be."""
QUEUE_NAME: Final = r"[a-z0-9][a-z0-9_.-]{0,62}\Z"
"""The pattern of a queue's name."""
LABEL_NAME: Final = r"[a-z][a-z0-9_-]{0,31}\Z"
"""The pattern of the name of a job's label."""


@frozen(kw_only=True)
class QueuePlace(FieldsRepr):
    """Where a run is queued; stored with its start, so that it can be submitted again."""

    name: str = field(default=DEFAULT_QUEUE, validator=matches_re(QUEUE_NAME))
    priority: int = field(default=0, validator=[ge(0), le(LOWEST_PRIORITY)])
    not_before: datetime | None = None
    """Before this time no worker begins with it; None: it may begin at once."""

    pauses: int = field(default=0, validator=ge(0))
    """How often in a row the run paused for a server, with no call answered in between."""

    needs: tuple[str, ...] = ()
    """What its worker has to have, as `KIND:NAME` or `KIND:NAME@VERSION`; empty: it was not said.
    """
    labels: Mapping[str, str] = field(factory=dict, hash=False)
    """Values by which its queue may share its workers, such as `user`."""

    def to_note(self) -> dict[str, JsonValue]:
        """The form in which it is stored."""
        note: dict[str, JsonValue] = {"name": self.name, "priority": self.priority}
        if self.not_before is not None:
            note["not_before"] = self.not_before.isoformat()
        if self.pauses:
            note["pauses"] = self.pauses
        if self.needs:
            note["needs"] = list(self.needs)
        if self.labels:
            note["labels"] = dict(self.labels)
        return note

    @classmethod
    def of_note(cls, note: object) -> QueuePlace | None:
        """The place that was stored; None: the note is of another form."""
        if not isinstance(note, Mapping):
            return None
        try:
            until, labels = note.get("not_before"), note.get("labels")
            return cls(
                name=note.get("name", ""),
                priority=note.get("priority", 0),
                not_before=None if until is None else datetime.fromisoformat(until),
                pauses=note.get("pauses", 0),
                needs=_texts(note.get("needs")),
                labels={
                    name: value
                    for name, value in (labels if isinstance(labels, Mapping) else {}).items()
                    if isinstance(value, str)
                },
            )
        except (TypeError, ValueError):
            return None


_BATCH_WAVES: Final = "batch_waves"
"""The key of a note that says for the answers of which waves of model calls a queued run waits."""
_OFFER: Final = "offer"
"""The key of the note."""


class Offer(Struct, frozen=True, kw_only=True):
    """What the operator offers a caller who begins a run, beside what the recipe itself says."""

    way: str
    """How the caller came in: `http` or `mcp`; for messages."""
    folders: tuple[str, ...] = msgspec.field(default=())
    """Folders beneath which values of the caller may choose one: absolute, without links. Relative
    paths start at the first one."""
    brings_recipe: bool = False
    """Whether the caller sent the recipe with the request: then it is a stranger's text, too."""

    @classmethod
    def beneath(cls, folders: Iterable[str | Path], *, way: str) -> Self:
        """The offer of these folders; the first one is where relative paths start."""
        return cls(way=way, folders=tuple(map(os.path.realpath, folders)))

    def place_of(self, path: object) -> str | None:
        """The folder that is meant, absolute and without links; None: it is not offered.

        Whether a folder exists is not told: a missing one beneath an offered one is offered.
        """
        if not isinstance(path, str) or "\0" in path:
            return None
        start = self.folders[0] if self.folders else os.sep
        found = os.path.realpath(Path(start) / os.path.expanduser(path))  # noqa: PTH111  # never fails
        is_offered = any(os.path.commonpath([found, each]) == each for each in self.folders)
        return found if is_offered else None

    def to_note(self) -> dict[str, JsonValue]:
        """The entry of the note."""
        own: dict[str, JsonValue] = {"way": self.way, "folders": list(self.folders)}
        if self.brings_recipe:
            own["brings_recipe"] = True
        return {_OFFER: own}

    @classmethod
    def of_note(cls, note: Mapping[str, JsonValue]) -> Self | None:
        """What was stored; None: there is no such entry. One of another form offers nothing."""
        if _OFFER not in note:
            return None
        own = note[_OFFER]
        known = own if isinstance(own, Mapping) else {}
        way, folders = known.get("way"), known.get("folders")
        listed = folders if isinstance(folders, list | tuple) else ()
        return cls(
            way=way if isinstance(way, str) else "http",
            folders=tuple(each for each in listed if isinstance(each, str) and os.path.isabs(each)),  # noqa: PTH117
            brings_recipe=known.get("brings_recipe", False) is not False,
        )


@frozen(kw_only=True)
class CallerTool(FieldsRepr):
    """A tool that the caller who began a run brought, and carries out itself."""

    name: str
    description: str = ""
    parameters: JsonSchema = field(factory=dict)
    """JSON Schema of the arguments, of type object."""

    def to_note(self) -> dict[str, JsonValue]:
        """The form in which it is stored."""
        return {
            "name": self.name,
            "description": self.description,
            "parameters": dict(self.parameters),
        }

    @classmethod
    def of_note(cls, note: JsonValue) -> Iterator[CallerTool]:
        """Those that were stored; what is of another form is none."""
        for each in note if isinstance(note, list | tuple) else ():
            match each:
                case {
                    "name": str(name),
                    "description": str(words),
                    "parameters": Mapping() as form,
                }:
                    yield cls(name=name, description=words, parameters=form)


@frozen(kw_only=True)
class CallerChoice(FieldsRepr):
    """What the caller who began a run wants of calls of the tools that it brought."""

    must_call: tuple[str, ...] = ()
    """The tools one of which the first answer of a step that offers them calls; empty: the model
    decides."""
    is_single: bool = False
    """Whether an answer has one call at most."""

    def to_note(self) -> dict[str, JsonValue]:
        """The form in which it is stored."""
        return {"must_call": list(self.must_call), "single": self.is_single}

    @classmethod
    def of_note(cls, note: JsonValue) -> Self:
        """What was stored; of another form it wants nothing."""
        known = note if isinstance(note, Mapping) else {}
        return cls(must_call=_texts(known.get("must_call")), is_single=known.get("single") is True)


NO_CHOICE: Final = CallerChoice()
"""It leaves all to the model."""
SCHEDULE: Final = "schedule"
"""The key of a note that says which schedule started the run, and for which time."""
TOKEN: Final = "token"  # noqa: S105  # a name of one
"""The key of a note that says with which token of the server the run was started, by its name."""
_STARTERS: Final = "started_by"
_CALLER_TOOLS: Final = "caller_tools"
_CALLER_CHOICE: Final = "caller_choice"
_IMPORTED: Final = "imported"
SERVER: Final = "server"
_QUEUE: Final = "queue"
MARKS: Final = (_QUEUE, SERVER, _IMPORTED)
"""Keys that say who executes a run next: the row of the run bears the first one that is set."""


class StartNote(Struct, frozen=True, kw_only=True):
    """The keys of a note that the engine and its commands read; None and False: not noted."""

    is_imported: bool = False
    """The run came from a file, and nobody here resumed it since: its note decides nothing."""
    is_strangers: bool = False
    """Its recipe came from a file, so that each call that reaches out needs approval."""
    is_of_server: bool = False
    """A server began it, so that any server may resume it."""
    queue: QueuePlace | None = None
    """The queue whose workers execute it."""
    child: ChildLink | None = None
    """Whose child run it is."""
    waits: Sequence[ChildWait] = ()
    """The child runs that it waits for."""
    batch_waves: tuple[str, ...] = ()
    """The waves of model calls, one of whose answers it waits for."""
    offer: Offer | None = None
    """What the caller who began it was offered; None: the operator began it."""
    caller_tools: tuple[CallerTool, ...] = ()
    """The tools that the caller who began it brought."""
    caller_choice: CallerChoice = NO_CHOICE
    """What that caller wants of calls of them."""
    evaluation: str | None = None
    """The evaluation that it is a case of."""
    command: str | None = None
    """The command that made it, where no other one may resume it."""
    batch: JsonValue = None
    """The digest of the recipe of the batch that it is a line of."""
    asked: JsonValue = None
    """The digest of the request that began it, to know the same one again."""
    cwd: str | None = None
    """The folder where it began: relative paths of its tools start there."""
    extensions: tuple[str, ...] = ()
    """The extensions that it was begun with."""
    model: str | None = None
    """The argument of `-m`, or the model that a caller chose among the operator's."""
    folder: str | None = None
    """Where a relative path in `model` starts."""
    starters: tuple[str, ...] = ()
    """Names of whoever began it, where a rule of its approvals reads them."""
    approve: str | None = None
    """Who consents to calls that need approval, as it was given by flag."""
    max_cost_usd: float | None = None
    """The most that it may cost, as it was given by flag."""
    no_cache: bool = False
    by: datetime | None = None
    """When it is to be done: until then its model calls may wait for batches of their providers."""
    reasons: Mapping[str, JsonValue] = struct_field(default_factory=dict)
    """Why decisions were taken, by the key of each."""

    @classmethod
    def of(cls, note: Mapping[str, JsonValue] | None) -> StartNote:
        """What that note says; None: there is none."""
        if not note:
            return _NOTHING_NOTED
        cost, named, choice = (
            note.get("max_cost_usd"),
            note.get("extensions"),
            note.get(_CALLER_CHOICE),
        )
        reasons = note.get("decision_reasons")
        return cls(
            is_imported=bool(note.get(_IMPORTED)),
            is_strangers=bool(note.get("strangers_recipe")),
            is_of_server=bool(note.get(SERVER)),
            queue=QueuePlace.of_note(note.get(_QUEUE)),
            child=ChildLink.of_note(note),
            waits=ChildWait.of_note(note),
            batch_waves=_texts(note.get(_BATCH_WAVES)),
            offer=Offer.of_note(note),
            caller_tools=tuple(CallerTool.of_note(note.get(_CALLER_TOOLS))),
            caller_choice=NO_CHOICE if choice is None else CallerChoice.of_note(choice),
            evaluation=_text(note, "eval"),
            command=_text(note, "command"),
            batch=note.get("batch"),
            asked=note.get("asked"),
            cwd=_text(note, "cwd"),
            extensions=_texts(named),
            model=_text(note, "model"),
            folder=_text(note, "folder"),
            starters=_texts(note.get(_STARTERS)),
            approve=_text(note, "approve"),
            max_cost_usd=cost if isinstance(cost, int | float) and cost is not True else None,
            no_cache=note.get("no_cache") is True,
            by=_time(note, "by"),
            reasons=reasons if isinstance(reasons, Mapping) else {},
        )

    def to_json(self) -> dict[str, JsonValue]:
        """The entries of the note; an application's own keys go beside them."""
        entries: dict[str, JsonValue] = {
            "eval": self.evaluation,
            "command": self.command,
            "batch": self.batch,
            "asked": self.asked,
            "cwd": self.cwd,
            "extensions": list(self.extensions) or None,
            "model": self.model,
            "folder": self.folder,
            _STARTERS: list(self.starters) or None,
            "approve": self.approve,
            "max_cost_usd": self.max_cost_usd,
            "no_cache": self.no_cache or None,
            "by": None if self.by is None else self.by.isoformat(),
            "decision_reasons": dict(self.reasons) or None,
            _IMPORTED: self.is_imported or None,
            "strangers_recipe": self.is_strangers or None,
            SERVER: self.is_of_server or None,
            _QUEUE: None if self.queue is None else self.queue.to_note(),
            _BATCH_WAVES: list(self.batch_waves) or None,
            _CALLER_TOOLS: [each.to_note() for each in self.caller_tools] or None,
            _CALLER_CHOICE: (
                None if self.caller_choice == NO_CHOICE else self.caller_choice.to_note()
            ),
        }
        return {
            **{name: value for name, value in entries.items() if value is not None},
            **({} if self.child is None else self.child.to_note()),
            **({} if self.offer is None else self.offer.to_note()),
            **(ChildWait.to_note(self.waits) if self.waits else {}),
        }


_NOTHING_NOTED: Final = StartNote()


def without_waits(note: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """The note without what a queued run waits for."""
    return {name: value for name, value in ChildWait.without(note).items() if name != _BATCH_WAVES}


def starters_of(user: str | None, note: Mapping[str, JsonValue]) -> tuple[str, ...]:
    """Names of whoever began a run: the user for whom it runs, the token with which it was begun,
    its schedule, and those that the note names.

    Args:
        note: Of its first start.
    """
    schedule = name_noted(note, SCHEDULE)
    started = f"schedule:{schedule}" if schedule is not None else None
    named = (user, name_noted(note, TOKEN), started, *_texts(note.get(_STARTERS)))
    return tuple(dict.fromkeys(each for each in named if each))


def name_noted(note: Mapping[str, object], key: str) -> str | None:
    """The name under a key such as `SCHEDULE`: a text, or an object with a name; None: none."""
    said = note.get(key)
    name = said.get("name") if isinstance(said, Mapping) else said
    return name if isinstance(name, str) and name else None


def _text(note: Mapping[str, JsonValue], key: str) -> str | None:
    value = note.get(key)
    return value if isinstance(value, str) else None


def _time(note: Mapping[str, JsonValue], key: str) -> datetime | None:
    """A date and time with its zone; None: there is none."""
    try:
        at = datetime.fromisoformat(_text(note, key) or "")
    except ValueError:
        return None
    return at if at.tzinfo is not None else None


def _texts(value: JsonValue) -> tuple[str, ...]:
    if not isinstance(value, list | tuple):
        return ()
    return tuple(each for each in value if isinstance(each, str))
