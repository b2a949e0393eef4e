"""Where the default source finds secrets, and what it says when it does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from minions.contracts.secrets import SecretRef
from minions.data.errors import EnvironmentRefusedError
from minions.engine.services.secret_sources import environment_and_files

REF = SecretRef("env:MINIONS_TEST_TOKEN")


def refusal(ref: SecretRef) -> str:
    with pytest.raises(EnvironmentRefusedError) as caught:
        environment_and_files(ref)
    assert (caught.value.error_code, caught.value.where) == ("missing-secret", ref.source)
    return caught.value.message


def file_with(tmp_path: Path, data: bytes) -> SecretRef:
    path = tmp_path / "token"
    path.write_bytes(data)
    return SecretRef(f"file:{path}")


def test_a_variable_is_taken_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(REF.name, " s3cr3t-1\n")
    assert environment_and_files(REF) == " s3cr3t-1\n"


@pytest.mark.parametrize(("value", "state"), [(None, "not set"), ("", "empty")])
def test_a_variable_that_is_not_there_is_named(
    monkeypatch: pytest.MonkeyPatch, value: str | None, state: str
) -> None:
    monkeypatch.delenv(REF.name, raising=False)
    if value is not None:
        monkeypatch.setenv(REF.name, value)
    assert refusal(REF) == (
        f"The environment variable MINIONS_TEST_TOKEN is {state}; a secret input of this run "
        "refers to it. Set it, or refer to another place with env:NAME or file:/absolute/path."
    )


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n"])
def test_one_newline_at_the_end_of_a_file_does_not_count(tmp_path: Path, end: bytes) -> None:
    ref = file_with(tmp_path, " s3cr3t-é\n".encode() + end)
    assert environment_and_files(ref) == " s3cr3t-é" + ("\n" if end else "")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "is empty"),
        (b"\n", "is empty"),
        (b"\xff\xfesecret", "is no UTF-8 text"),
        (b"x" * 100_000, "is longer than 65,536 bytes"),
    ],
)
def test_a_file_without_a_usable_secret_is_named_and_not_shown(
    tmp_path: Path, data: bytes, words: str
) -> None:
    ref = file_with(tmp_path, data)
    assert f"{ref.name} {words}" in refusal(ref)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    ref = SecretRef(f"file:{tmp_path}/none")
    assert f"{tmp_path}/none cannot be read (No such file or directory)" in refusal(ref)


@pytest.mark.parametrize("path", ["/dev/zero", "/dev", "/dev/stdin/x"])
def test_what_is_no_file_is_not_read(path: str) -> None:
    assert path in refusal(SecretRef(f"file:{path}"))
