"""Signs the head of a session's hash chain at the end of each run, keeps the signature beside the
journal, and tells an address of it.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from msgspec.structs import replace

from minions.adapters.head_signing import fingerprint_of, is_signed, public_key_of, sign
from minions.adapters.stores.memory_stores import StateStore, head_key
from minions.app.settings.settings import Settings
from minions.app.wiring.webhook import Webhook, proxy_to, secret_of
from minions.contracts.journal.chain import ChainFault, ChainReport, HeadKeeper, SignedHead
from minions.contracts.journal.journal import Journal
from minions.contracts.model_endpoints import check_base_url
from minions.contracts.runtime import Clock, Log, Sleep
from minions.contracts.secrets import SecretSource
from minions.data.codec import decode, encode
from minions.data.errors import MinionsError, UsageError, words_of
from minions.data.json_values import dumps, parse_json


class SignedHeads(HeadKeeper):
    """Signs with a key of the operator. What goes wrong is logged: the run has ended already."""

    def __init__(
        self,
        journal: Journal,
        state: StateStore,
        key_file: Path,
        *,
        clock: Clock,
        log: Log,
        webhook: Webhook | None = None,
    ) -> None:
        """Check that the key can be used.

        Args:
            key_file: A private key of Ed25519 in PEM, which nobody else may read.
            webhook: Is told of each signed head, once; None: nothing is.
        Raises:
            UsageError, EnvironmentRefusedError: It is no such key, or `cryptography` is missing.
        """
        public_key_of(key_file)
        self._journal = journal
        self._state = state
        self._key_file = key_file
        self._clock = clock
        self._log = log
        self._webhook = webhook

    async def run_ended(self, session_id: str, run_id: str) -> None:
        """Sign the last entry of the session, which covers all before it."""
        try:
            end = await self._journal.chain_end(session_id)
            if end is None or not end.value:
                return
            head = SignedHead(
                session_id=session_id,
                entries=end.position,
                head=end.value.hex(),
                at=self._clock.now(),
            )
            public_key, signature = await asyncio.to_thread(sign, head.to_bytes(), self._key_file)
            head = replace(head, public_key=public_key, signature=signature)
            stored = replace(head, session_id="")
            await self._state.put(head_key(session_id), dumps(encode(stored)))
        except (MinionsError, OSError) as error:
            self._log.warning("head_not_signed", run_id=run_id, reason=words_of(error))
            return
        if self._webhook is not None:
            message_id = f"head_{head.head[:24]}"
            problem = await self._webhook.post_once(message_id, head.to_document())
            if problem is not None:  # the head of the next run covers this one
                self._log.warning("head_not_anchored", run_id=run_id, problem=problem)


def make_heads(
    settings: Settings,
    journal: Journal,
    state: StateStore,
    *,
    clock: Clock,
    sleep: Sleep,
    log: Log,
    secrets: SecretSource,
) -> SignedHeads | None:
    """What signs heads, as it is configured; None: nothing does.

    Raises:
        UsageError, EnvironmentRefusedError: The key, the address or its secret cannot be used.
    """
    own = settings.journal
    if own.signing_key_file is None:
        if own.anchor_url is not None:
            raise UsageError(
                "journal.anchor_url is told of signed heads: set journal.signing_key_file, too.",
                code="bad-configuration",
            )
        return None
    if settings.no_store:
        return None
    webhook: Webhook | None = None
    if own.anchor_url is not None:
        url = check_base_url(own.anchor_url, "the setting journal.anchor_url")
        secret = secret_of("journal.anchor_secret", own.anchor_secret, secrets)
        proxy = proxy_to(url)
        webhook = Webhook(url=url, secret=secret, clock=clock, sleep=sleep, log=log, proxy=proxy)
    file = signing_key_file(own.signing_key_file)
    return SignedHeads(journal, state, file, clock=clock, log=log, webhook=webhook)


def signing_key_file(name: str) -> Path:
    """The file of the setting.

    Raises:
        UsageError: It is no absolute path.
    """
    file = Path(name).expanduser()
    if not file.is_absolute():
        raise UsageError(
            f"journal.signing_key_file={name!r}: expected an absolute path, or one from ~/.",
            code="bad-configuration",
        )
    return file


# --- verification --------------------------------------------------------------------------------


def with_signature(
    report: ChainReport, stored: str | None, public_key: str | None
) -> tuple[ChainReport, str | None]:
    """The report with what the signature says, and whose it is as a person compares keys; None:
    nobody's.

    Args:
        stored: The head that was signed last, under `head_key`; None: none is.
        public_key: The key that must have signed it; None: any key.
    """
    if report.fault is not None:
        return report, None
    if stored is None:
        return _faulty(report, report.entries, "no head of it is signed"), None
    try:
        signed = decode(parse_json(stored), SignedHead)
    except ValueError:
        return _faulty(report, report.entries, "what is stored as its signature is none"), None
    at, when = signed.entries, f"{signed.at:%Y-%m-%d %H:%M:%S} UTC"
    data = replace(signed, session_id=report.session_id).to_bytes()
    if not is_signed(data, signed.public_key, signed.signature):
        return _faulty(report, at, "the signature of its head is not one of that head"), None
    whose = fingerprint_of(signed.public_key)
    if public_key not in (None, signed.public_key):
        return _faulty(report, at, f"another key has signed its head: {whose}"), None
    if list(report.values[at - 1 : at]) != [signed.head]:
        words = f"it is not what was signed at {when}: entries were removed or written again"
        return _faulty(report, at, words), None
    return report, whose


def _faulty(report: ChainReport, position: int, words: str) -> ChainReport:
    return replace(report, fault=ChainFault(position=position, what="signature", words=words))
