"""Each redactor of ours does what every redactor does."""

from __future__ import annotations

import pytest

from minions.adapters.redactors import (
    CardRedactor,
    IbanRedactor,
    MailRedactor,
    PatternRedactor,
)
from minions.contracts.redaction import Redactor
from minions.data.errors import UsageError
from minions.testing.redactor_suite import *  # noqa: F403  # the tests are its names
from minions.testing.redactor_suite import Samples

CASES: dict[str, tuple[Redactor, Samples]] = {
    "mail": (
        MailRedactor(),
        {
            "Write to ann.b+x@mail.example.org, please.": ["ann.b+x@mail.example.org"],
            "<ann@a.example>;bob@b.example": ["ann@a.example", "bob@b.example"],
            "jörg@müller.example": ["jörg@müller.example"],
            "@ann, a@b, x@1.2, ann@, ann@host": [],
            '{"to":"ann@a.example"}': ["ann@a.example"],
        },
    ),
    "card": (
        CardRedactor(),
        {
            "4111 1111 1111 1111": ["4111 1111 1111 1111"],
            "pay by 5555-5555-5555-4444 or 378282246310005.": [
                "5555-5555-5555-4444",
                "378282246310005",
            ],
            "4111 1111 1111 1112": [],
            "0000 0000 0000 0000": [],
            "on 2026-01-31 12:30:00, call 0123456": [],
        },
    ),
    "iban": (
        IbanRedactor(),
        {
            "DE89 3704 0044 0532 0130 00": ["DE89 3704 0044 0532 0130 00"],
            "to GB82WEST12345698765432 and thanks": ["GB82WEST12345698765432"],
            "ch9300762011623852957": ["ch9300762011623852957"],
            "DE89 3704 0044 0532 0130 01": [],
            "AB12 is a room, as is CD34 of the house next door": [],
            "no NO93 8601 1117 947 yes": ["NO93 8601 1117 947"],
        },
    ),
    "pattern": (
        PatternRedactor(r"\bK-\d{6}\b"),
        {"of K-123456 and K-1234567, K-000000": ["K-123456", "K-000000"], "K-12": []},
    ),
}


@pytest.fixture(params=CASES)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def redactor(kind: str) -> Redactor:
    return CASES[kind][0]


@pytest.fixture
def samples(kind: str) -> Samples:
    return CASES[kind][1]


@pytest.mark.parametrize("pattern", ["(", "a*", ""])
def test_a_pattern_that_is_none_or_matches_nothing_is_refused(pattern: str) -> None:
    with pytest.raises(UsageError) as caught:
        PatternRedactor(pattern)
    assert caught.value.error_code == "bad-configuration"
