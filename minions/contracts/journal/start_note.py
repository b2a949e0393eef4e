"""What whoever began a run noted with its start or resume, beside its recipe and inputs.

A note is a JSON object: an application may add keys of its own, which are kept. This module is the
only place that knows the keys of ours; what is not of the form that they have counts as not noted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from attrs import field, frozen

from minions.contracts.journal.child_runs import ChildLink, ChildWait
from minions.contracts.offers import Offer
from minions.contracts.queue_places import QueuePlace
from minions.data.json_values import JsonValue

_IMPORTED: Final = "imported"
_SERVER: Final = "server"
_QUEUE: Final = "queue"
MARKS: Final = (_QUEUE, _SERVER, _IMPORTED)
"""Keys that say who executes a run next: the row of the run bears the first one that is set."""


@frozen(kw_only=True)
class StartNote:
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
    offer: Offer | None = None
    """What the caller who began it was offered; None: the operator began it."""
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
    approve: str | None = None
    """Who consents to calls that need approval, as it was given by flag."""
    max_cost_usd: float | None = None
    """The most that it may cost, as it was given by flag."""
    no_cache: bool = False
    reasons: Mapping[str, JsonValue] = field(factory=dict)
    """Why decisions were taken, by the key of each."""

    @classmethod
    def of(cls, note: Mapping[str, JsonValue] | None) -> StartNote:
        """What that note says; None: there is none."""
        if not note:
            return _NOTHING_NOTED
        cost, named, reasons = (
            note.get(name) for name in ("max_cost_usd", "extensions", "decision_reasons")
        )
        return cls(
            is_imported=bool(note.get(_IMPORTED)),
            is_strangers=bool(note.get("strangers_recipe")),
            is_of_server=bool(note.get(_SERVER)),
            queue=QueuePlace.of_note(note.get(_QUEUE)),
            child=ChildLink.of_note(note),
            waits=ChildWait.of_note(note),
            offer=Offer.of_note(note),
            evaluation=_text(note, "eval"),
            command=_text(note, "command"),
            batch=note.get("batch"),
            asked=note.get("asked"),
            cwd=_text(note, "cwd"),
            extensions=_texts(named),
            model=_text(note, "model"),
            folder=_text(note, "folder"),
            approve=_text(note, "approve"),
            max_cost_usd=cost if isinstance(cost, int | float) and cost is not True else None,
            no_cache=note.get("no_cache") is True,
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
            "approve": self.approve,
            "max_cost_usd": self.max_cost_usd,
            "no_cache": self.no_cache or None,
            "decision_reasons": dict(self.reasons) or None,
            _IMPORTED: self.is_imported or None,
            "strangers_recipe": self.is_strangers or None,
            _SERVER: self.is_of_server or None,
            _QUEUE: None if self.queue is None else self.queue.to_note(),
        }
        return {
            **{name: value for name, value in entries.items() if value is not None},
            **({} if self.child is None else self.child.to_note()),
            **({} if self.offer is None else self.offer.to_note()),
            **(ChildWait.to_note(self.waits) if self.waits else {}),
        }


_NOTHING_NOTED: Final = StartNote()


def _text(note: Mapping[str, JsonValue], key: str) -> str | None:
    value = note.get(key)
    return value if isinstance(value, str) else None


def _texts(value: JsonValue) -> tuple[str, ...]:
    if not isinstance(value, list | tuple):
        return ()
    return tuple(each for each in value if isinstance(each, str))
