"""What of a database's URL may be shown."""

from __future__ import annotations

import pytest

from minions.adapters.stores.postgres_url import (
    hidden_in,
    is_ambiguous,
    is_postgres_url,
    without_password,
)

SHOWN = {
    "postgresql://h/db": "postgresql://h/db",
    "postgresql://me@h:5432/db": "postgresql://me@h:5432/db",
    "postgresql://me:pw@h:5432/db": "postgresql://me:***@h:5432/db",
    "postgresql://:pw@/db": "postgresql://:***@/db",
    "postgres://me:a:b@h,i:1/db": "postgres://me:***@h,i:1/db",
    "postgresql://me@h/db?sslmode=require&password=pw": (
        "postgresql://me@h/db?sslmode=require&password=***"
    ),
    "postgresql://h/db?PASSWORD=pw&a=b": "postgresql://h/db?PASSWORD=***&a=b",
    "postgresql://me@h/db?sslpassword=pw": "postgresql://me@h/db?sslpassword=***",
    "postgresql://me:p@w@h/db": "postgresql://me:***@h/db",
    "postgresql://me:p/w@h/db": "postgresql://me:***@h/db",
    "postgresql://me:p?w@h/db": "postgresql://me:***@h/db",
    "postgresql://me:p#w@h/db": "postgresql://me:***@h/db",
    "postgresql://h:1/db?application_name=me@work": "postgresql://h:***@work",
    "mysql://me:pw@h/db": "mysql://me:***@h/db",
    "runs.sqlite": "runs.sqlite",
    "odd:name@home.sqlite": "odd:name@home.sqlite",
}


@pytest.mark.parametrize("url", SHOWN)
def test_a_url_is_shown_without_its_passwords(url: str) -> None:
    """Where it is not clear what the password is, too much is hidden."""
    assert without_password(url) == SHOWN[url]


def test_passwords_are_known_as_written_and_as_meant() -> None:
    url = "postgresql://me:a%2Fb@h/db?password=c"
    assert hidden_in(url) == {"a%2Fb", "a/b", "c"}
    assert hidden_in("postgresql://me@h/db") == set()


@pytest.mark.parametrize(
    ("url", "is_so"),
    [
        ("postgresql://me:pw@h/db", False),
        ("postgresql://me@h/db", False),
        ("postgresql://me:p%2Fw@h/db", False),
        ("postgresql://me:p/w@h/db", True),
        ("postgresql://me:p@w@h/db", True),
        ("postgresql://me:p?w@h/db", True),
    ],
)
def test_a_password_that_is_not_encoded_is_noticed(url: str, is_so: bool) -> None:
    assert is_ambiguous(url) is is_so


def test_only_urls_of_postgres_are_such() -> None:
    found = [is_postgres_url(text) for text in ("postgres://h", "PostgreSQL://h", "pg.sqlite")]
    assert found == [True, True, False]
