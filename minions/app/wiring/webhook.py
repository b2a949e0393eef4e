"""Posts of a JSON document to an address of the operator, signed as Standard Webhooks says.

Source: https://www.standardwebhooks.com, version 1.0.0.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
from collections.abc import Mapping
from typing import Final

from attrs import frozen

from minions.adapters.http.http_pool import (
    HttpPool,
    NoAnswerError,
    needs_certificates,
    proxy_for,
    trusted_certificates,
)
from minions.adapters.http.http_response import BrokenBodyError
from minions.app.settings.settings import Settings
from minions.contracts.model_endpoints import check_base_url, is_loopback_url
from minions.contracts.runtime import Clock, Log, Sleep
from minions.contracts.secrets import SecretRef, SecretSource
from minions.contracts.waiting import RunWait
from minions.data.errors import UsageError
from minions.data.json_values import JsonValue, dumps

_PAUSES_S: Final = (1.0, 5.0, 30.0, 120.0)
"""Seconds before each further attempt; after the last the document is given up."""
_ATTEMPT_S: Final = 10.0
"""The most seconds of one attempt."""
_GONE: Final = 410
_PREFIX: Final = "whsec_"


@frozen(kw_only=True)
class Webhook:
    """An address that is told of waiting runs. It follows no redirect."""

    url: str
    secret: str | None
    """The secret of the signature, as its receiver has it; None: posts are not signed."""
    clock: Clock
    sleep: Sleep
    log: Log
    proxy: str | None = None

    async def __call__(self, wait: RunWait) -> None:
        """Post the document until it is taken or given up, which is logged; raises nothing."""
        body = dumps(wait.to_json()).encode("utf-8", "backslashreplace")
        for pause_s in (*_PAUSES_S, None):
            problem = await self._problem(wait.id, body)
            if problem is None:
                self.log.info("webhook_delivered", run_id=wait.run_id, id=wait.id)
                return
            is_last = pause_s is None or problem == f"HTTP {_GONE}"
            event = "webhook_given_up" if is_last else "webhook_failed"
            self.log.warning(event, run_id=wait.run_id, id=wait.id, problem=problem)
            if pause_s is None or is_last:
                return
            await self.sleep(pause_s)

    async def post_once(self, message_id: str, document: Mapping[str, JsonValue]) -> str | None:
        """Why the document was not taken, in one attempt; None: it was."""
        return await self._problem(message_id, dumps(document).encode("utf-8", "backslashreplace"))

    async def _problem(self, message_id: str, body: bytes) -> str | None:
        """Why one attempt failed; None: the document was taken."""
        try:
            async with asyncio.timeout(_ATTEMPT_S):
                status = await self._post(message_id, body)
        except TimeoutError:
            return f"no answer within {_ATTEMPT_S:g} s"
        except (NoAnswerError, BrokenBodyError) as error:
            return str(error)
        return None if 200 <= status < 300 else f"HTTP {status}"

    async def _post(self, message_id: str, body: bytes) -> int:
        pool = HttpPool(
            self.url,
            self._headers(message_id, body),
            connect_s=_ATTEMPT_S,
            certificates=trusted_certificates() if self._is_encrypted else None,
            proxy=self.proxy,
            max_requests=1,
        )
        try:
            response = await pool.post(body)
            response.close()
            return response.status
        finally:
            await pool.close()

    @property
    def _is_encrypted(self) -> bool:
        return needs_certificates(self.url, self.proxy)

    def _headers(self, message_id: str, body: bytes) -> Mapping[str, str]:
        moment = str(int(self.clock.now().timestamp()))
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "minions",
            "webhook-id": message_id,
            "webhook-timestamp": moment,
        }
        if self.secret is not None:
            headers["webhook-signature"] = signature(self.secret, message_id, moment, body)
        return headers


def signature(secret: str, message_id: str, moment: str, body: bytes) -> str:
    """The value of the header `webhook-signature`: HMAC-SHA256 over id, time and body.

    Args:
        secret: `whsec_` and base64; any other text is taken as it is.
        moment: Seconds since 1970, as in the header `webhook-timestamp`.
    """
    signed = f"{message_id}.{moment}.".encode() + body
    digest = hmac.digest(_key(secret), signed, "sha256")
    return f"v1,{base64.b64encode(digest).decode()}"


def _key(secret: str) -> bytes:
    if secret.startswith(_PREFIX):
        try:
            return base64.b64decode(secret.removeprefix(_PREFIX), validate=True)
        except binascii.Error:
            pass
    return secret.encode()


def waiting_webhook(
    settings: Settings, *, clock: Clock, sleep: Sleep, log: Log, secrets: SecretSource
) -> Webhook | None:
    """The webhook of the setting `on_waiting_url`; None: there is none.

    The address is the operator's own, as that of a model's server is: it may be in a private
    network.

    Raises:
        UsageError: The address or the reference to the secret is not valid.
        EnvironmentRefusedError: The secret cannot be read.
    """
    if settings.on_waiting_url is None:
        return None
    url = check_base_url(settings.on_waiting_url, "the setting on_waiting_url")
    secret = secret_of("on_waiting_secret", settings.on_waiting_secret, secrets)
    return Webhook(url=url, secret=secret, clock=clock, sleep=sleep, log=log, proxy=proxy_to(url))


def proxy_to(url: str) -> str | None:
    """The proxy of posts to that address; None: there is none."""
    if is_loopback_url(url):  # a proxy cannot reach this machine's own servers
        return None
    from urllib.request import getproxies

    return proxy_for(url, getproxies())


def secret_of(key: str, said: str | None, secrets: SecretSource) -> str | None:
    """The secret that a setting refers to; None: it says none.

    Args:
        key: The setting, for the message of an error.
    Raises:
        UsageError: It is no reference.
        EnvironmentRefusedError: The secret cannot be read.
    """
    if said is None:
        return None
    try:
        reference = SecretRef.parse(said)
    except UsageError as error:
        raise UsageError(f"{key}: {error.message}", code="bad-configuration") from error
    return secrets(reference)
