"""Makes what follows the pieces of answers at workers, by the database of the journal."""

from __future__ import annotations

from typing import Final

from minions.app.runs.remote_deltas import RemoteDeltas
from minions.app.settings.settings import Settings
from minions.app.wiring.databases import postgres_of
from minions.contracts.journal.journal import Journal
from minions.contracts.runtime import Log
from minions.contracts.secrets import SecretRef, SecretSource
from minions.data.errors import UsageError

_DEAD_AFTER_S: Final = 20.0


def remote_deltas(
    settings: Settings, journal: Journal, log: Log, secrets: SecretSource
) -> RemoteDeltas | None:
    """What follows pieces of answers at workers; None: `worker_token` is not set, or the journal is
    in a file, where workers are not listed. Opens nothing yet.

    Raises:
        UsageError: The setting is no reference to a secret.
        EnvironmentRefusedError: The secret cannot be read.
    """
    if settings.no_store or settings.worker_token is None or (url := postgres_of(settings)) is None:
        return None
    try:
        reference = SecretRef.parse(settings.worker_token)
    except UsageError as error:
        raise UsageError(f"worker_token: {error.message}", code="bad-configuration") from error
    from minions.adapters.dispatch.postgres_workers import PostgresWorkers

    workers = PostgresWorkers(url, dead_after_s=_DEAD_AFTER_S)
    return RemoteDeltas(journal, workers.stream_url, workers.aclose, secrets(reference), log)
