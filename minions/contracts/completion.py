"""The completion chain of a step: links that give verdicts; the first decisive verdict wins."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, TypeAlias

from attrs import field, frozen

from minions.contracts.executions import Completion, CompletionMode, Verdict
from minions.data.errors import UsageError, near_names
from minions.data.field_repr import FieldsRepr

if TYPE_CHECKING:
    from minions.contracts.executions import StepExecution


class CompletionLink(ABC):
    """One completion rule. Synchronous and pure: it inspects the
    execution and gives one verdict.
    """

    @property
    def name(self) -> str:
        """The link's name in the chain and in error messages."""
        return type(self).__name__

    @abstractmethod
    def check(self, execution: StepExecution[object]) -> Completion:
        """COMPLETE, FAILED, or UNDECIDED to let the next link judge."""


StepCompletionLink: TypeAlias = CompletionLink


def _check_link(link: CompletionLink, answer: object) -> Completion:
    """The verdict of `link`; None counts as UNDECIDED.

    Raises:
        UsageError: The link returned neither a `Completion` nor None.
    """
    if answer is None:
        return Completion.UNDECIDED
    if inspect.iscoroutine(answer):
        answer.close()
    raise UsageError(
        f"The completion link {link.name} returned {type(answer).__name__}; `check` is synchronous "
        "and returns Completion.complete(…), Completion.failed(…) or Completion.UNDECIDED.",
        code="bad-link",
    )


def _as_texts(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(texts)


def _as_links(links: Iterable[CompletionLink]) -> tuple[CompletionLink, ...]:
    return tuple(links)


@frozen(kw_only=True)
class CompletionCriteria(FieldsRepr):
    """When a step is complete, as data."""

    mode: CompletionMode = field(default=CompletionMode.SIGNAL, converter=CompletionMode)
    patterns: tuple[str, ...] = field(default=(), converter=_as_texts)
    """Regular expressions; a match of any in the model's text completes the step."""


UNDECLARED: Final = CompletionCriteria(mode=CompletionMode.SIGNAL)
"""The criteria of a step that declares neither these nor an output. Compared by identity."""


@frozen
class StepCompletionChain(FieldsRepr):
    """Completion links in order. Immutable: each change returns a new chain.

    Positions are named by a link's class or its `name`.
    """

    links: tuple[CompletionLink, ...] = field(default=(), converter=_as_links)

    def check(self, execution: StepExecution[object]) -> Completion:
        """The first decisive verdict; UNDECIDED when no link decides."""
        for link in self.links:
            answer: object = link.check(execution)
            if answer is Completion.UNDECIDED:  # as usual
                continue
            completion = answer if isinstance(answer, Completion) else _check_link(link, answer)
            if completion.verdict is not Verdict.UNDECIDED:
                return Completion(
                    completion.verdict,
                    completion.reason,
                    completion.evidence,
                    completion.code,
                    completion.next_step_id,
                    link.name,
                )
        return Completion.UNDECIDED

    def prepend(self, *links: CompletionLink) -> StepCompletionChain:
        """A chain with `links` in front."""
        return StepCompletionChain((*links, *self.links))

    def append(self, *links: CompletionLink) -> StepCompletionChain:
        """A chain with `links` at the end."""
        return StepCompletionChain((*self.links, *links))

    def insert_before(
        self, target: type[CompletionLink] | str, *links: CompletionLink
    ) -> StepCompletionChain:
        """A chain with `links` just before `target`.

        Raises:
            UsageError: The chain has no such link.
        """
        at = self._index(target)
        return StepCompletionChain((*self.links[:at], *links, *self.links[at:]))

    def insert_after(
        self, target: type[CompletionLink] | str, *links: CompletionLink
    ) -> StepCompletionChain:
        """A chain with `links` just after `target`.

        Raises:
            UsageError: The chain has no such link.
        """
        at = self._index(target) + 1
        return StepCompletionChain((*self.links[:at], *links, *self.links[at:]))

    def replace(
        self, target: type[CompletionLink] | str, *links: CompletionLink
    ) -> StepCompletionChain:
        """A chain with `links` in place of `target`; no links: `target` is removed.

        Raises:
            UsageError: The chain has no such link.
        """
        at = self._index(target)
        return StepCompletionChain((*self.links[:at], *links, *self.links[at + 1 :]))

    def _index(self, target: type[CompletionLink] | str) -> int:
        for index, link in enumerate(self.links):
            if link.name == target or (isinstance(target, type) and isinstance(link, target)):
                return index
        name = target if isinstance(target, str) else target.__name__
        names = [link.name for link in self.links]
        raise UsageError(
            f"This chain has no link '{name}'. Links are: {', '.join(names) or 'none'}.",
            code="unknown-link",
            suggestions=near_names(name, names),
        )
