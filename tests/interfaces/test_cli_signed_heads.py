"""`[journal] signing_key_file`: the head of a session is signed when a run ends, and anchored."""

from __future__ import annotations

import base64
import json
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from msgspec.structs import replace

from builders import draft_of
from command_line import Cli, Write
from minions.adapters.head_signing import fingerprint_of, is_signed, public_key_of
from minions.adapters.stores.memory_stores import MemoryState
from minions.app.wiring.signed_heads import SignedHeads
from minions.contracts.journal.chain import SignedHead
from minions.contracts.journal.journal import Journal
from minions.data.codec import decode
from minions.data.errors import JournalError
from minions.engine.services.memory_journal import MemoryJournal
from minions.engine.services.run_services import NullLog
from minions.testing.virtual_time import FakeClock

GREET = "id: greet\nsteps:\n  - {id: say, set: {text: Hello}}\n"
RUN = ("run", "greet.yaml", "--session", "ada")
VERIFY = ("sessions", "verify", "ada")


def key_at(here: Path, name: str) -> str:
    """Both files of a new key; gives its fingerprint."""
    key, file = Ed25519PrivateKey.generate(), here / f"{name}.pem"
    file.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    file.chmod(0o600)
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    (here / f"{name}.pub").write_bytes(public)
    return fingerprint_of(public_key_of(file))


@pytest.fixture
def fingerprint(write: Write, here: Path) -> str:
    write("greet.yaml", GREET)
    key_at(here, "other")
    whose = key_at(here, "own")
    configure(here, here / "own.pem")
    return whose


def configure(here: Path, key: Path | None, more: str = "") -> None:
    line = f'signing_key_file = "{key}"\n' if key is not None else ""
    (here / "minions.toml").write_text(f'db = "j.db"\n[journal]\n{line}{more}', "utf-8")


def change(here: Path, *statements: str) -> None:
    with closing(sqlite3.connect(here / "j.db")) as db, db:
        for sql in statements:
            db.execute(sql)


def test_the_head_is_signed_when_a_run_ends_and_verified_with_the_session(
    cli: Cli, fingerprint: str
) -> None:
    """A-171: also after a further run, and by whoever has the public key alone."""
    for _ in range(2):
        assert cli(*RUN).code == 0
        told = cli(*VERIFY, "--public-key", "own.pub")
        assert (told.code, told.err) == (0, "")
        assert told.out.splitlines()[1] == f"  signed by the key {fingerprint}"
    (report,) = json.loads(cli(*VERIFY, "--json").out)["sessions"]
    assert (report["fault"], report["signed_by"]) == (None, fingerprint)


def test_a_session_that_was_written_again_is_not_what_was_signed(
    cli: Cli, fingerprint: str, here: Path
) -> None:
    """A-171: whoever can write the database chains it again, but has not the key."""
    for _ in range(2):
        assert cli(*RUN).code == 0
    with closing(sqlite3.connect(here / "j.db")) as db:
        stored = db.execute(
            "SELECT key, value FROM state WHERE key LIKE 'minions:head:%'"
        ).fetchall()
    ((key, text),) = stored
    assert (json.loads(text)["session_id"], key.endswith(":ada")) == ("", False)
    (here / "j.db").unlink()
    configure(here, None)
    assert cli(*RUN).code == 0  # an honest chain, of another time
    told = cli(*VERIFY, "--public-key", "own.pub")
    assert (told.code, "ada: signature · " in told.out) == (1, True)
    assert "no head of it is signed" in told.out
    with closing(sqlite3.connect(here / "j.db")) as db, db:
        db.execute("INSERT INTO state (key, value) VALUES (?, ?)", (key, text))
    for _ in range(2):  # shorter than what was signed, then as long
        told = cli(*VERIFY)
        assert (told.code, "entries were removed or written again" in told.out) == (1, True)
        assert cli(*RUN).code == 0
    found = json.loads(text)
    forged = {**found, "head": "0" * 64}
    for wrong, words in (
        (json.dumps(forged), "is not one of that head"),
        ('{"head": 5}', "what is stored as its signature is none"),
    ):
        with closing(sqlite3.connect(here / "j.db")) as db, db:
            db.execute("UPDATE state SET value = ? WHERE key = ?", (wrong, key))
        told = cli(*VERIFY)
        assert (told.code, words in told.out) == (1, True)


def test_a_changed_row_is_named_before_what_was_signed(
    cli: Cli, fingerprint: str, here: Path
) -> None:
    assert cli(*RUN).code == 0
    change(here, "UPDATE entries SET at = at + 1 WHERE position = 2")
    told = cli(*VERIFY, "--public-key", "other.pub")
    assert (told.code, told.out.startswith("ada: changed · row 2: ")) == (1, True)


def test_the_key_that_is_demanded_must_have_signed_it(
    cli: Cli, fingerprint: str, here: Path
) -> None:
    """A-171: by the option, or by the setting of whoever verifies."""
    assert cli(*RUN).code == 0
    told = cli(*VERIFY, "--public-key", "other.pub")
    assert (told.code, f"another key has signed its head: {fingerprint}" in told.out) == (1, True)
    configure(here, here / "other.pem")
    assert f"another key has signed its head: {fingerprint}" in cli(*VERIFY).out
    configure(here, None)
    assert cli(*VERIFY).out.splitlines()[1] == f"  signed by the key {fingerprint}"


def test_an_encrypted_journal_is_verified_with_its_signature_without_the_key(
    cli: Cli, fingerprint: str, here: Path
) -> None:
    (here / "keys").write_text(f"first {base64.b64encode(bytes(32)).decode()}\n", "utf-8")
    (here / "keys").chmod(0o600)
    configure(here, here / "own.pem", f'encryption_key_file = "{here / "keys"}"\n')
    assert cli(*RUN).code == 0
    assert cli("sessions", "rekey").code == 0
    configure(here, here / "own.pem")
    told = cli(*VERIFY, "--public-key", "own.pub")
    assert (told.code, f"signed by the key {fingerprint}" in told.out) == (0, True)


@contextmanager
def receiver(status: int = 204) -> Iterator[tuple[str, list[tuple[dict[str, str], bytes]]]]:
    """An address that takes posts, and these."""
    posts: list[tuple[dict[str, str], bytes]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            posts.append(({k.lower(): v for k, v in self.headers.items()}, body))
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_args: object) -> None:
            """Print nothing."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/heads", posts
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_an_address_is_told_of_each_signed_head(
    cli: Cli, fingerprint: str, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A-171: what is kept there shows later what was written again, with the key or without."""
    monkeypatch.setenv("ANCHOR", "secret")
    with receiver() as (url, posts):
        more = f'anchor_url = "{url}"\nanchor_secret = "env:ANCHOR"\n'
        configure(here, here / "own.pem", more)
        assert cli(*RUN).code == 0
        assert cli(*RUN).code == 0
        assert cli(*RUN, "--no-store").code == 0  # there is nothing to compare it with
    documents = [json.loads(body) for _, body in posts]
    assert [each["type"] for each in documents] == ["session.head", "session.head"]
    assert all(headers["webhook-signature"].startswith("v1,") for headers, _ in posts)
    first, second = (each["data"] for each in documents)
    assert second["entries"] > first["entries"]
    told = [decode({"at": each["timestamp"], **each["data"]}, SignedHead) for each in documents]
    assert all(is_signed(each.to_bytes(), each.public_key, each.signature) for each in told)
    assert not is_signed(
        replace(told[0], entries=1).to_bytes(), told[0].public_key, told[0].signature
    )
    assert cli(*VERIFY, "--head", first["head"]).code == 0


def test_a_run_does_not_fail_of_an_address_that_takes_nothing(
    cli: Cli, fingerprint: str, here: Path
) -> None:
    with receiver(500) as (url, posts):
        configure(here, here / "own.pem", f'anchor_url = "{url}"\n')
        done = cli(*RUN, "--log-format", "text")
    assert (done.code, len(posts)) == (0, 1)
    assert "head_not_anchored" in done.err
    assert f"signed by the key {fingerprint}" in cli(*VERIFY).out


def test_what_cannot_be_signed_with_is_told_before_a_run(
    cli: Cli, fingerprint: str, here: Path
) -> None:
    for key, more, words in (
        (Path("own.pem"), "", "expected an absolute path"),
        (here / "none.pem", "", "cannot be read"),
        (here / "own.pub", "", "is no private key in PEM"),
        (None, 'anchor_url = "https://h.example"\n', "set journal.signing_key_file, too"),
        (here / "own.pem", 'anchor_url = "ftp://h"\n', "is not a base URL"),
        (here / "own.pem", 'anchor_url = "http://h"\nanchor_secret = "x"\n', "anchor_secret"),
    ):
        (here / "own.pub").chmod(0o600)
        configure(here, key, more)
        done = cli(*RUN)
        assert (done.code, words in done.err) == (2, True), done.err
    assert not (here / "j.db").exists()


class Lines(NullLog):
    """A log that keeps its warnings."""

    def __init__(self) -> None:
        self.events: list[tuple[str, object]] = []

    def warning(self, event: str, /, **facts: object) -> None:
        self.events.append((event, facts["reason"]))


class Away(MemoryState):
    """A store whose database cannot be reached."""

    async def put(self, key: str, text: str) -> None:
        raise JournalError(f"nobody keeps {len(key)} and {len(text)} characters")


async def test_what_cannot_be_signed_or_kept_at_the_end_of_a_run_is_logged(here: Path) -> None:
    """The run has ended by then. Of a session without a chain there is nothing to sign."""
    key_at(here, "own")
    clock, log = FakeClock(), Lines()
    journal: Journal = MemoryJournal(clock)
    for state in (MemoryState(), Away()):
        heads = SignedHeads(journal, state, here / "own.pem", clock=clock, log=log)
        await heads.run_ended("ses_1", "run_1")
    assert log.events == []
    lease = await journal.acquire("ses_1", "run_1", "w", 60)
    await journal.append(lease, draft_of("run", "started", {"recipe": "r"}, key="run"))
    await heads.run_ended("ses_1", "run_1")
    (here / "own.pem").unlink()
    await heads.run_ended("ses_1", "run_1")
    assert [event for event, _ in log.events] == ["head_not_signed", "head_not_signed"]
    assert "nobody keeps" in str(log.events[0][1])
    assert "cannot be read" in str(log.events[1][1])
