"""Facts as the text of journal rows: what is read, and what is told of the rest."""

from __future__ import annotations

import pytest

from builders import entry_of
from minions.adapters.stores.stored_rows import read_fact
from minions.contracts.journal.facts import UnreadableFact
from minions.contracts.journal.journal import body_text
from minions.data.errors import JournalError


@pytest.mark.parametrize("opening", ["[", '{"a":'], ids=["lists", "objects"])
@pytest.mark.parametrize("closed", [True, False], ids=["closed", "cut off"])
def test_a_body_that_is_nested_without_end_is_no_json(opening: str, *, closed: bool) -> None:
    """A-123: whatever the database, it is damage of that entry alone."""
    ends = ("]" if opening == "[" else "}") * 20_000 if closed else ""
    fact = read_fact("session", "opened", f"{opening * 20_000}1{ends}".encode())
    assert isinstance(fact, UnreadableFact)
    assert (fact.kind, fact.state, fact.body) == ("session", "opened", None)
    assert fact.problem.startswith("its body is not JSON")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[]", "its body is no JSON object"),
        ("null", "its body is no JSON object"),
        ("", "its body is not JSON (JSONDecodeError)"),
        (b"\xff", "its body is not JSON (UnicodeDecodeError)"),
        ('{"sequence": "1"}', "Expected `int`, got `str` - at `$.sequence`"),
        ("{}", "Object missing required field `sequence`"),
        (
            '{"sequence": 1, "\\ud800": 1}',
            "a name in its body holds half a character (a lone surrogate)",
        ),
    ],
)
def test_what_is_no_fact_says_what_was_expected(text: str | bytes, problem: str) -> None:
    """A-123."""
    fact = read_fact("session", "cut", text)
    assert isinstance(fact, UnreadableFact)
    assert fact.problem == problem


def test_what_nobody_could_read_is_not_written_again() -> None:
    """A-123: it would look like a row that holds nothing."""
    lost = entry_of("step", "finished", {}, damage="its body is not JSON")
    with pytest.raises(JournalError, match="its body is not JSON") as caught:
        body_text(lost)
    assert caught.value.error_code == "corrupt-entry"


def test_a_kind_that_is_not_known_keeps_what_stands_there() -> None:
    """A-123."""
    fact = read_fact("dream", "begun", '{"of": "sheep"}')
    assert isinstance(fact, UnreadableFact)
    assert fact.body == {"of": "sheep"}
    assert fact.problem.startswith("the kind 'dream' is not known")
