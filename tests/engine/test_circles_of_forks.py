"""Sessions that are forks of each other in a circle: refused, and no loop goes round in them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from builders import draft_of
from minions.contracts.journal.journal import JournalEntry
from minions.data.errors import JournalError, UsageError
from minions.data.json_values import JsonValue
from minions.engine.history.conversation import read_conversation
from minions.engine.services.run_services import Services
from minions.engine.sessions.archive import archive_lines, load_archive, read_archive
from minions.engine.sessions.store import StepRepository


class _CircleError(AssertionError):
    """A loop reads one session after the other without end."""


async def _forked(services: Services, session: str, parent: str) -> JournalEntry:
    lease = await services.journal.acquire(session, f"edit_{session}", "w", 60)
    body: dict[str, JsonValue] = {"parent": parent, "sequence": 1, "position": 1}
    draft = draft_of("session", "forked", body, key="session")
    entry = await services.journal.append(lease, draft)
    await services.journal.release(lease)
    return entry


@pytest.fixture(params=[["a"], ["a", "b"], ["a", "b", "c"]], ids=len)
async def services(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Services:
    """Each session is a fork of the next one, the last one of the first."""
    services = Services()
    names: list[str] = request.param
    for name, parent in zip(names, [*names[1:], names[0]], strict=True):
        await _forked(services, name, parent)
    entries, count = services.journal.entries, 0

    async def counted(*args: object, **more: object) -> object:
        nonlocal count
        count += 1
        if count > 50:
            raise _CircleError
        return await entries(*args, **more)  # type: ignore[arg-type]  # as they were given

    monkeypatch.setattr(services.journal, "entries", counted)
    return services


READERS: dict[str, Callable[[Services], Awaitable[object]]] = {
    "conversation": lambda services: read_conversation(services.journal, "a"),
    "inputs": lambda services: StepRepository(services).inputs_of("a"),
    "export": lambda services: load_archive(services.journal, "a"),
}


@pytest.mark.parametrize("name", READERS)
async def test_a_circle_of_forks_is_a_damaged_entry(services: Services, name: str) -> None:
    """A-123."""
    with pytest.raises(JournalError, match="its own parent") as caught:
        await READERS[name](services)
    assert caught.value.error_code == "corrupt-entry"


async def test_a_circle_of_forks_is_listed_once(services: Services) -> None:
    """A-123."""
    repository = StepRepository(services)
    listed = {session.id for session in await repository.list_sessions()}
    tree = [session.id for session in await repository.list_fork_tree("a")]
    assert sorted(tree) == sorted(listed)


# --- session files ---------------------------------------------------------------------------


async def _file() -> list[bytes]:
    """`c` is a fork of `b`, which is one of `a`."""
    services = Services()
    await StepRepository(services).create_session(session_id="a")
    await _forked(services, "b", "a")
    await _forked(services, "c", "b")
    archive = await load_archive(services.journal, "c")
    return [f"{line}\n".encode() for line in archive_lines(archive)]


FORKED = b'"state": "forked", "body": {"parent": "a", "sequence": 1, "position": 1}'


@pytest.mark.parametrize(
    ("line", "old", "new", "words"),
    [
        (2, b'"opened", "body": {', b'"forked", "body": {"parent": "a", ', "no fork"),
        (3, b'"parent": "a"', b'"parent": "b"', "a fork of 'a'"),
        (3, b'"parent": "a"', b'"parent": "c"', "a fork of 'a'"),
        (4, b'"parent": "b"', b'"parent": "a"', "a fork of 'b'"),
        (3, FORKED, b'"state": "opened", "body": {}', "a fork of 'a'"),
        (
            1,
            b'[{"id": "a", "rows": 1',
            b'[{"id": "c", "rows": 1',
            "twice",
        ),
    ],
)
async def test_a_file_whose_forks_are_not_in_order_is_refused(
    line: int, old: bytes, new: bytes, words: str
) -> None:
    """A-123: a fork comes right behind its parent."""
    lines = await _file()
    read_archive(lines)
    assert old in lines[line - 1]
    if words == "no fork":
        new += b'"sequence": 1, "position": 1, '
    lines[line - 1] = lines[line - 1].replace(old, new)
    with pytest.raises(UsageError, match=words) as caught:
        read_archive(lines, name="s.jsonl")
    assert (caught.value.error_code, caught.value.where) == ("bad-archive", f"s.jsonl:{line}")


async def test_a_file_with_a_fork_behind_other_rows_is_refused() -> None:
    """A-123: the conversation begins with a session's first row."""
    first, row, *_ = (await _file())[0:2]
    first = first.replace(b'"session": "c"', b'"session": "a"')
    first = (
        first[: first.index(b'"sessions"')] + b'"sessions": [{"id": "a", "rows": 2}], "blobs": 0}\n'
    )
    fork = row.replace(b'"position": 1, "run_id"', b'"position": 2, "run_id"').replace(
        b'"opened", "body": {', b'"forked", "body": {"parent": "a", "sequence": 1, "position": 1, '
    )
    with pytest.raises(UsageError, match="first row") as caught:
        read_archive([first, row, fork], name="s.jsonl")
    assert caught.value.where == "s.jsonl:3"
