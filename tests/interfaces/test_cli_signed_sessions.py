"""`minions sessions export --sign` and `import --public-key`: who vouches for a session file."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from command_line import Cli, Write
from older_archives import without_chain

RECIPE = """
id: greet
steps:
  - {id: say, set: {text: Hello}}
"""
DB = ("--db", "j.db")
SIGNED = ("sessions", "export", "ada", "-o", "s.jsonl", "--sign", "own.pem", *DB)
IMPORT = ("sessions", "import", "s.jsonl", "--db", "elsewhere.db")
DER = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
PEM = (Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def key_at(here: Path, name: str) -> str:
    """Both files of a new key; gives its fingerprint."""
    key = Ed25519PrivateKey.generate()
    private = here / f"{name}.pem"
    private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    private.chmod(0o600)
    (here / f"{name}.pub").write_bytes(key.public_key().public_bytes(*PEM))
    return hashlib.sha256(key.public_key().public_bytes(*DER)).hexdigest()


@pytest.fixture
def fingerprint(cli: Cli, write: Write, here: Path) -> str:
    write("greet.yaml", RECIPE)
    assert cli("run", "greet.yaml", "--session", "ada", *DB).code == 0
    key_at(here, "other")
    return key_at(here, "own")


def test_an_import_tells_whose_key_signed_the_file(cli: Cli, fingerprint: str) -> None:
    """A-171."""
    signed = cli(*SIGNED)
    assert (signed.code, f"Signed by the key {fingerprint}." in signed.err) == (0, True)
    taken = cli(*IMPORT)
    assert (taken.code, f"Signed by the key {fingerprint}; " in taken.err) == (0, True)


def test_the_key_that_is_demanded_must_have_signed_the_file(cli: Cli, fingerprint: str) -> None:
    assert cli(*SIGNED).code == 0
    refused = cli(*IMPORT, "--public-key", "other.pub")
    assert (refused.code, "error[bad-signature]" in refused.err) == (2, True)
    assert f"another key has signed it: {fingerprint}" in refused.err
    taken = cli(*IMPORT, "--public-key", "own.pub")
    assert (taken.code, f"{fingerprint} as you demanded" in taken.err) == (0, True)


def test_a_file_without_the_demanded_signature_is_refused(cli: Cli, fingerprint: str) -> None:
    cli("sessions", "export", "ada", "-o", "s.jsonl", *DB)
    refused = cli(*IMPORT, "--public-key", "own.pub")
    assert (refused.code, "it is not signed" in refused.err) == (2, True)
    assert fingerprint not in refused.err


@pytest.mark.parametrize("change", ["signature", "head", "chain"])
def test_a_wrong_signature_is_refused(
    cli: Cli, write: Write, fingerprint: str, change: str
) -> None:
    """A-171: also of somebody who computes a whole chain for other rows."""
    assert len(fingerprint) == 64
    assert cli(*SIGNED).code == 0
    signed = Path("s.jsonl").read_text()
    if change == "chain":
        assert cli("run", "greet.yaml", "--session", "bob", *DB).code == 0
        other = cli("sessions", "export", "bob", *DB).out
        first, rest = other.split("\n", 1)
        head = json.loads(first) | {"signature": json.loads(signed.split("\n")[0])["signature"]}
        write("s.jsonl", f"{json.dumps(head)}\n{rest}\n")
    elif change == "head":
        lines = without_chain(signed.splitlines())
        write("s.jsonl", b"".join(lines).decode())
    else:
        first, rest = signed.split("\n", 1)
        head = json.loads(first)
        head["signature"]["signature"] = "00" * 64
        write("s.jsonl", f"{json.dumps(head)}\n{rest}")
    refused = cli(*IMPORT)
    assert (refused.code, "Nothing was stored" in refused.err or "nothing that" in refused.err) == (
        2,
        True,
    )
    assert not Path("elsewhere.db").exists()


def test_what_is_no_key_is_refused_without_a_word_of_it(
    cli: Cli, here: Path, fingerprint: str
) -> None:
    assert len(fingerprint) == 64
    (here / "own.pem").chmod(0o644)
    refused = cli(*SIGNED)
    assert (refused.code, "error[open-key-file]" in refused.err) == (4, True), refused.err
    other = generate_private_key(SECP256R1())
    text = other.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    for wrong in (text, b"secret words", (here / "own.pub").read_bytes()):
        (here / "own.pem").write_bytes(wrong)
        (here / "own.pem").chmod(0o600)
        refused = cli(*SIGNED)
        assert (refused.code, "error[bad-key-file]" in refused.err) == (2, True), refused.err
        assert "secret words" not in refused.err
    assert not (here / "s.jsonl").exists()
    cli("sessions", "export", "ada", "-o", "s.jsonl", *DB)
    for name in ("own.pem", "other.pem", "missing.pub"):
        assert cli(*IMPORT, "--public-key", name).code == 2
    html = ("sessions", "export", "ada", "--html", "x.html", "--sign", "other.pem", *DB)
    assert "--sign and --html exclude each other" in cli(*html).err
