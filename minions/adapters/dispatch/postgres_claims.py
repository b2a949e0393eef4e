"""Which waiting jobs of a queue a worker takes next, in PostgreSQL: the statements alone.

They replace the claim of DBOS, which counts a job from when it was claimed and not from when it
began, and lets two workers that take unlike jobs spend one limit twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

from attrs import frozen

SCHEMA: Final = "minions_dispatch"
"""The schema of DBOS's tables and of our own."""
RUN_ID: Final = "split_part(workflow_uuid, '@', 1)"
NEEDS: Final = "split_part(split_part(split_part(workflow_uuid, '@', 2), '.', 1), '-', 2)"
"""The key of what a job needs, in the name of its row."""
Query: TypeAlias = Callable[[str, Mapping[str, object]], Sequence[Sequence[object]]]
"""The rows of a statement, with values by name; all within one transaction at READ COMMITTED."""

_NOW_MS: Final = "coalesce(%(now_ms)s, extract(epoch FROM clock_timestamp()) * 1000)::float8"
_LOCK: Final = "SELECT pg_try_advisory_xact_lock(hashtextextended('minions:' || %(queue)s, 0))"
"""Limits over all workers are counted by one claim of a queue at a time. It is another statement,
for the next one is to see what the claim before has stored."""
_BEGUN: Final = f"""
    SELECT count(*) FROM (
        (SELECT FROM {SCHEMA}.workflow_status
        WHERE queue_name = %(queue)s AND rate_limited = TRUE
            AND started_at_epoch_ms > floor({_NOW_MS}) - %(period_ms)s LIMIT %(starts)s)
        UNION ALL
        SELECT FROM {SCHEMA}.workflow_status
        WHERE queue_name = %(queue)s AND status = 'PENDING' AND started_at_epoch_ms IS NULL
    ) AS begun
"""  # noqa: S608  # the schema is a constant
"""Jobs that began within the period, and those that were claimed and may begin at any moment."""
_ROOM: Final = f"""
    SELECT greatest(0, least(
        %(most)s,
        %(concurrency)s::bigint - (
            SELECT count(*) FROM {SCHEMA}.workflow_status
            WHERE queue_name = %(queue)s AND status = 'PENDING' AND %(concurrency)s IS NOT NULL),
        CASE WHEN %(starts)s::bigint IS NOT NULL THEN %(starts)s - ({_BEGUN}) END
    ))
"""  # noqa: S608
_CLAIM: Final = f"""
WITH picked AS MATERIALIZED (
    SELECT workflow_uuid FROM {SCHEMA}.workflow_status
    WHERE queue_name = %(queue)s AND status = 'ENQUEUED'
        AND (application_name = %(application)s OR application_name IS NULL)
        AND application_version = %(version)s
        AND {NEEDS} <> ALL (%(needs)s::text[]) AND {RUN_ID} <> ALL (%(runs)s::text[])
    ORDER BY priority, created_at
    LIMIT ({_ROOM})
    FOR UPDATE SKIP LOCKED
)
UPDATE {SCHEMA}.workflow_status AS job SET
    status = 'PENDING',
    owner_xid = %(owner)s,
    executor_id = %(worker)s,
    application_name = %(application)s,
    started_at_epoch_ms = CASE WHEN %(starts)s::bigint IS NULL THEN ceil({_NOW_MS})::bigint END,
    rate_limited = %(starts)s::bigint IS NOT NULL,
    recovery_attempts = recovery_attempts + 1,
    updated_at = {_NOW_MS}::bigint
FROM picked WHERE job.workflow_uuid = picked.workflow_uuid AND job.status = 'ENQUEUED'
RETURNING job.workflow_uuid, job.priority, job.created_at
"""  # noqa: S608
NOTE_BEGIN: Final = f"""
UPDATE {SCHEMA}.workflow_status SET started_at_epoch_ms = ceil({_NOW_MS})::bigint
WHERE workflow_uuid = ANY (%(jobs)s) AND started_at_epoch_ms IS NULL
"""  # noqa: S608
"""Counts jobs from now on: they have begun."""
COUNT_STARTS: Final = f"""
UPDATE {SCHEMA}.workflow_status SET rate_limited = TRUE
WHERE queue_name = %(queue)s AND rate_limited = FALSE
    AND started_at_epoch_ms > floor({_NOW_MS}) - %(period_ms)s
"""  # noqa: S608
"""Lets a new limit count what began before it was set."""


@frozen(kw_only=True)
class Claim:
    """What a worker may take of one queue now."""

    queue: str
    worker: str
    owner: str
    """The mark by which DBOS knows who executes a job."""
    application: str
    version: str
    most: int
    """For how many jobs it has room."""
    concurrency: int | None = None
    starts: int | None = None
    """The most jobs that begin within `period_s`, over all workers; None: unlimited."""
    period_s: float = 0.0
    needs: Sequence[str] = ()
    """Keys of needs whose jobs it leaves to others."""
    runs: Sequence[str] = ()
    """Ids of runs that it leaves to others."""

    def take(self, query: Query, now_ms: float | None = None) -> list[str]:
        """Take the jobs that may begin now; returns their names, the first one first.

        One statement, and one before it where a limit holds over all workers. Nothing is taken
        while another worker counts by the same limits: the next look is soon.

        Args:
            now_ms: Milliseconds since 1970; None: the clock of the server.
        """
        values: dict[str, object] = {
            "queue": self.queue,
            "worker": self.worker,
            "owner": self.owner,
            "application": self.application,
            "version": self.version,
            "most": self.most,
            "concurrency": self.concurrency,
            "starts": self.starts,
            "period_ms": self.period_s * 1000,
            "needs": list(self.needs),
            "runs": list(self.runs),
            "now_ms": now_ms,
        }
        if (self.concurrency, self.starts) != (None, None):
            ((is_locked,),) = query(_LOCK, values)
            if not is_locked:
                return []
        found = query(_CLAIM, values)
        # RETURNING has no order.
        return [str(row[0]) for row in sorted(found, key=lambda row: tuple(row[1:3]))]
