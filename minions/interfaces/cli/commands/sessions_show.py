"""How `minions sessions show` shows a session with messages: conversation and branches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from attrs import frozen

from minions.contracts.journal import Journal
from minions.contracts.json_values import JsonValue
from minions.contracts.sessions import Session, SessionStep
from minions.engine.services.services import Services
from minions.engine.sessions.store import StepRepository
from minions.interfaces.cli.console.console import hanging
from minions.interfaces.cli.session_choice import (
    find_session,
    is_session_named,
    message_text,
    what_it_cost,
)

__all__ = ["SessionDetail", "find_session_detail"]


@frozen(kw_only=True)
class SessionDetail:
    """A session with its messages, and the other sessions of its fork tree."""

    session: Session
    steps: Sequence[SessionStep]
    tree: Sequence[Session]
    """All sessions of the fork tree, parents first."""

    def to_json(self) -> dict[str, JsonValue]:
        """The session as `--json` prints it."""
        return {
            "session": self.session.to_json(),
            "steps": [step.to_json() for step in self.steps],
            "tree": [each.to_json() for each in self.tree],
        }

    def lines(self) -> Iterator[str]:
        """The session as lines of text."""
        session = self.session
        name = f" ({session.name})" if session.name and session.name != session.id else ""
        yield f"session {session.id}{name} · recipe {session.recipe or 'none'}"
        if session.last_run_id is not None:
            yield f"last run {session.last_run_id} · {session.status}"
        yield f"{len(self.steps)} messages · {what_it_cost(self.steps)}"
        for step in self.steps:
            yield hanging(f"{step.sequence:>4}  {_line(step)}")
        if len(self.tree) > 1:
            yield "branches:"
            yield from self._branches()

    def _branches(self) -> Iterator[str]:
        depth = {self.tree[0].id: 0}
        for each in self.tree:
            parent = each.parent_session_id or ""
            depth[each.id] = depth.get(parent, -1) + 1
        for each in _by_branch(self.tree):
            at = f" at {each.forked_at_sequence}" if each.parent_session_id in depth else ""
            mark = "  ← this one" if each.id == self.session.id else ""
            yield f"  {'  ' * depth[each.id]}{each.id}{at}{mark}"


def _by_branch(tree: Sequence[Session]) -> Iterator[Session]:
    """The sessions of a tree, each directly below its parent."""
    forks: dict[str | None, list[Session]] = {}
    for each in tree[1:]:
        forks.setdefault(each.parent_session_id, []).append(each)
    pending = [tree[0]]
    while pending:
        each = pending.pop()
        yield each
        pending += reversed(forks.get(each.id, []))


def _line(step: SessionStep) -> str:
    who = f"{step.role} {step.name}" if step.is_tool_step() and step.name else str(step.role)
    return f"{who}: {message_text(step)}"


async def find_session_detail(journal: Journal, name: str) -> SessionDetail | None:
    """The session with that name or id, if it has messages; None: it has none, or the id is a
    run's.

    Raises:
        UsageError: Several sessions have it.
    """
    if not await is_session_named(journal, name):
        return None
    session = await find_session(journal, name)
    repository = StepRepository(Services(journal=journal))
    steps = await repository.get_steps(session.id)
    if not steps:
        return None
    return SessionDetail(
        session=session, steps=steps, tree=await repository.list_fork_tree(session.id)
    )
