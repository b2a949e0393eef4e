"""What every `Redactor` does. Import the tests, and give two fixtures: `redactor`, and `samples`,
texts with the parts of them that it has to find.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from minions.contracts.redaction import Redactor

Samples: TypeAlias = Mapping[str, Sequence[str]]


def test_what_is_of_its_kind_is_found(redactor: Redactor, samples: Samples) -> None:
    for text, parts in samples.items():
        assert [text[start:end] for start, end in redactor.find(text)] == [*parts], text


def test_findings_are_in_order_do_not_overlap_and_are_not_empty(
    redactor: Redactor, samples: Samples
) -> None:
    for text in ("\n".join(samples), "".join(samples)):
        behind = 0
        for start, end in redactor.find(text):
            assert behind <= start < end <= len(text)
            behind = end


def test_the_same_text_gives_the_same(redactor: Redactor, samples: Samples) -> None:
    for text in samples:
        assert list(redactor.find(text)) == list(redactor.find(text))


def test_a_text_of_any_characters_is_taken(redactor: Redactor) -> None:
    for text in ("", "\0", "half \ud83d", "ä" * 1_000, "@" * 1_000, "1 " * 1_000, "\n"):
        assert all(0 <= start < end <= len(text) for start, end in redactor.find(text))


def test_what_was_replaced_is_not_found_again(redactor: Redactor, samples: Samples) -> None:
    for text in samples:
        parts, behind = list[str](), 0
        for start, end in redactor.find(text):
            parts += (text[behind:start], "<kind-0a1b2c3d>")
            behind = end
        assert not redactor.find("".join((*parts, text[behind:])))
