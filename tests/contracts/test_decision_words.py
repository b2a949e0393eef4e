"""What a person decides, as words and back."""

from __future__ import annotations

from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minions.contracts.decision_types import (
    Answer,
    Approve,
    Decision,
    Done,
    Fail,
    Redo,
    Reject,
    name_of,
    parse_decision,
    said_decision,
    word_of,
)

_TEXTS: Final = st.text(max_size=8)
_DIGESTS: Final = st.text("0123456789abcdef", min_size=1, max_size=16)
DECISIONS: Final[st.SearchStrategy[Decision]] = st.one_of(
    st.builds(Approve, st.none() | _DIGESTS, st.none() | st.just('{"a":1}')),
    st.builds(Reject, st.none() | _DIGESTS, st.none() | st.text(min_size=1, max_size=8)),
    st.builds(Answer, _TEXTS),
    st.builds(Done, st.none() | _TEXTS),
    st.just(Redo()),
    st.just(Fail()),
)


@given(decision=DECISIONS)
def test_a_word_says_the_decision_it_was_made_of(decision: Decision) -> None:
    word = word_of(decision)
    assert parse_decision(word) == decision
    assert word.partition(":")[0] == name_of(decision)


@pytest.mark.parametrize(
    ("word", "decision"),
    [
        ("approve", Approve()),
        ("approve:3f2a", Approve("3f2a")),
        ("reject:3f2a", Reject("3f2a")),
        ('approve:3f2a:{"a":1}', Approve("3f2a", '{"a":1}')),
        ('approve::{"a":1}', Approve.with_arguments({"a": 1})),
        ("reject:3f2a:not: now", Reject("3f2a", "not: now")),
        ("reject::not now", Reject(None, "not now")),
        ('answer:"a:b"', Answer('"a:b"')),
        ("redo", Redo()),
        ("done", Done()),
        ('done:{"a":1}', Done('{"a":1}')),
        ("fail", Fail()),
    ],
)
def test_the_words_of_rows_are_known(word: str, decision: Decision) -> None:
    assert parse_decision(word) == decision
    assert word_of(decision) == word


@pytest.mark.parametrize(
    "word", ["", "answer", "redo:", "fail:1", "approved", "Approve", ":", "a:b"]
)
def test_another_word_is_none_and_the_words_are_named(word: str) -> None:
    with pytest.raises(ValueError, match="expected: approve, reject, answer, redo, done, fail"):
        parse_decision(word)
    assert said_decision(word) is None


def test_an_answer_and_a_result_are_values() -> None:
    assert Answer.of({"a": 1}) == Answer('{"a":1}')
    assert Answer.of({"a": 1}).value == {"a": 1}
    assert (Done.of(None).value, Done().value, Done.of(1).value) == (None, None, 1)
    with pytest.raises(ValueError, match="Expecting value"):
        _ = Answer("a bare text").value
