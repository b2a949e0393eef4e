"""References, markers, and what is found again in what strangers say."""

from __future__ import annotations

import json
from collections.abc import Mapping
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minions.contracts.secrets import SecretRef, Secrets
from minions.data.errors import EnvironmentRefusedError, UsageError
from minions.data.json_values import JsonValue, dumps

REF = SecretRef("env:API_TOKEN")
MARKER = "${secret:env:API_TOKEN}"
OTHER = SecretRef("file:/run/secrets/other")


# --- references --------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["env:API_TOKEN", MARKER])
def test_a_reference_is_written_as_its_source_or_as_its_marker(text: str) -> None:
    ref = SecretRef.parse(text)
    assert ref == REF
    assert (ref.kind, ref.name, ref.marker, str(ref)) == ("env", "API_TOKEN", MARKER, MARKER)


def test_a_file_is_named_by_its_absolute_path() -> None:
    ref = SecretRef.parse("file:/a dir/x}y:z")
    assert (ref.kind, ref.name) == ("file", "/a dir/x}y:z")
    assert SecretRef.parse(ref.marker) == ref


@pytest.mark.parametrize(
    "text",
    [
        "",
        "sk-12345678",
        "env:",
        "env:1A",
        "env:A B",
        "env:A-B",
        "env:A\n",
        "ENV:A",
        "file:",
        "file:relative/path",
        "file:~/token",
        "file:/a\nb",
        "vault:a",
        "${secret:sk-12345678}",
        "${secret:env:A",
        " env:A",
        "{{ inputs.a }}",
    ],
)
def test_what_is_no_reference_is_refused_without_being_shown(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        SecretRef.parse(text)
    assert caught.value.error_code == "bad-secret-ref"
    assert caught.value.message == (
        "That is not a reference to a secret. Write env:NAME for an environment variable, or "
        "file:/absolute/path for a file."
    )


def test_a_value_of_another_type_is_no_source() -> None:
    with pytest.raises(UsageError):
        SecretRef(12345678)  # type: ignore[arg-type]  # what is refused


# --- values ------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["", "12345", "  a   ", "secret", "API_TOKEN", "env:API"])
def test_a_value_that_cannot_be_told_from_other_text_is_refused(value: str) -> None:
    with pytest.raises(EnvironmentRefusedError, match="env:API_TOKEN is too short") as caught:
        Secrets({REF: value})
    assert (caught.value.error_code, caught.value.where) == ("short-secret", "env:API_TOKEN")


def test_each_reference_is_resolved_once() -> None:
    asked: list[SecretRef] = []

    def source(ref: SecretRef) -> str:
        asked.append(ref)
        return "value of " + ref.kind

    secrets = Secrets.resolve([REF, OTHER, REF], source)
    assert asked == [REF, OTHER]
    assert secrets.reveal([MARKER, OTHER.marker]) == ["value of env", "value of file"]
    assert "value of" not in repr(secrets)


def test_no_secrets_change_nothing() -> None:
    value: JsonValue = {"a": [MARKER, 1]}
    secrets = Secrets()
    assert not secrets
    assert secrets.reveal(value) is value
    assert secrets.clean(value) is value
    assert secrets.disarm(value) is value
    assert secrets.clean_text(MARKER) == MARKER


def test_markers_in_values_are_revealed_and_keys_are_kept() -> None:
    secrets = Secrets({REF: "s3cr3t-1"})
    value: JsonValue = {MARKER: [f"Bearer {MARKER}{MARKER}", 1, None, True, {"a": MARKER}]}
    assert secrets.reveal(value) == {
        MARKER: ["Bearer s3cr3t-1s3cr3t-1", 1, None, True, {"a": "s3cr3t-1"}]
    }


def test_a_revealed_secret_that_spells_a_marker_is_not_revealed_again() -> None:
    secrets = Secrets({REF: f"s3cr3t {OTHER.marker}", OTHER: "hidden-1"})
    assert secrets.reveal(MARKER) == f"s3cr3t {OTHER.marker}"


def test_a_strangers_marker_is_made_powerless() -> None:
    secrets = Secrets({REF: "s3cr3t-1"})
    dead = "$(secret:env:API_TOKEN)"
    assert secrets.clean({MARKER: f"{MARKER} s3cr3t-1"}) == {dead: f"{dead} {MARKER}"}
    assert secrets.disarm({MARKER: "s3cr3t-1"}) == {dead: "s3cr3t-1"}
    assert secrets.reveal(dead) == dead
    assert secrets.are_named_in([{"a": f"x{MARKER}"}])
    assert secrets.are_named_in({MARKER: "x"})
    assert not secrets.are_named_in([{"a": dead, "b": OTHER.marker}])


@pytest.mark.parametrize(
    "value", ["x 12345678", {"a": [{"12345678": 1}]}, ["", 12345678], 1234567890]
)
def test_a_secret_is_shown_wherever_it_stands_in_a_value(value: JsonValue) -> None:
    assert Secrets({REF: "12345678"}).are_shown_in(value)


def test_a_marker_shows_no_secret() -> None:
    value: JsonValue = [MARKER, {MARKER: None}, True, 1234567, "1234 5678"]
    assert not Secrets({REF: "12345678"}).are_shown_in(value)
    assert not Secrets().are_shown_in("12345678")


AWKWARD = "a\"b\\c'd é/+ &%\n.*(x"


@pytest.mark.parametrize(
    "written",
    [
        AWKWARD,
        json.dumps(AWKWARD),
        json.dumps(AWKWARD, ensure_ascii=False),
        json.dumps(json.dumps(AWKWARD)),
        json.dumps(json.dumps(AWKWARD, ensure_ascii=False)),
        json.dumps(json.dumps(AWKWARD), ensure_ascii=False),
        repr(AWKWARD),
        repr({"a": [AWKWARD]}),
        ascii(AWKWARD),
        quote(AWKWARD),
        quote(AWKWARD, safe=""),
        quote_plus(AWKWARD),
    ],
)
def test_a_secret_is_found_as_libraries_write_it(written: str) -> None:
    cleaned = Secrets({REF: AWKWARD}).clean_text(f"<{written}>")
    assert MARKER in cleaned
    assert "b" not in cleaned.replace(MARKER, "").replace("{'a'", "")


def test_numbers_of_a_secret_become_text() -> None:
    secrets = Secrets({REF: "123456"})
    assert secrets.clean([123456, 1234567, 123456.5, 12345, True, None]) == [
        MARKER,
        f"{MARKER}7",
        f"{MARKER}.5",
        12345,
        True,
        None,
    ]


values = st.text(min_size=6, max_size=12).filter(lambda text: len(text.strip()) >= 6)


@settings(deadline=10_000)
@given(
    first=values,
    second=values,
    data=st.recursive(
        st.none()
        | st.integers()
        | st.text(max_size=8)
        | st.sampled_from(["<1>", "x<2>", "<1><2>"]),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
        max_leaves=8,
    ),
)
def test_what_was_revealed_is_clean_again(first: str, second: str, data: JsonValue) -> None:
    secrets = Secrets({REF: first, OTHER: second + first})
    written = _with_markers(data)
    cleaned = dumps(secrets.clean(secrets.reveal(written)))
    for value in (first, second + first):
        assert json.dumps(value, ensure_ascii=False)[1:-1] not in cleaned.replace(MARKER, "\0")


def _with_markers(data: JsonValue) -> JsonValue:
    if isinstance(data, str):
        return data.replace("<1>", MARKER).replace("<2>", OTHER.marker)
    if isinstance(data, Mapping):
        return {key: _with_markers(item) for key, item in data.items()}
    return [_with_markers(item) for item in data] if isinstance(data, list) else data
