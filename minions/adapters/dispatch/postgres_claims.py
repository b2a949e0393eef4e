"""Which waiting jobs of a queue a worker takes next, in PostgreSQL: the statements alone.

They replace the claim of DBOS, which counts a job from when it was claimed and not from when it
began, and lets two workers that take unlike jobs spend one limit twice.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from decimal import Decimal
from typing import Final, TypeAlias

from attrs import frozen

SCHEMA: Final = "minions_dispatch"
"""The schema of DBOS's tables and of our own."""
RUN_ID: Final = "split_part(workflow_uuid, '@', 1)"
NEEDS: Final = "split_part(split_part(split_part(workflow_uuid, '@', 2), '.', 1), '-', 2)"
"""The key of what a job needs, in the name of its row."""
WORKFLOW: Final = "minions.execute"
"""The name under which jobs stand in DBOS's tables."""

NO_KEY: Final = "-"
"""The key of jobs that lack the label by which their queue shares."""
_NOW_MS: Final = "coalesce(%(now_ms)s, extract(epoch FROM clock_timestamp()) * 1000)::float8"
_BEGIN: Final = f"""
SELECT own.share_by IS NOT NULL OR own.age_s IS NOT NULL, own.per_key, own.key_starts,
    own.key_period_s, own.age_s,
    CASE WHEN coalesce(%(concurrency)s::bigint, %(starts)s::bigint) IS NULL
            AND own.share_by IS NULL AND own.age_s IS NULL
        THEN TRUE ELSE pg_try_advisory_xact_lock(hashtextextended('minions:' || %(queue)s, 0)) END
FROM (SELECT) AS one LEFT JOIN {SCHEMA}.minions_queues AS own ON own.name = %(queue)s
"""  # noqa: S608  # the schema is a constant
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
_IS_OPEN: Final = f"""
    queue_name = %(queue)s AND status = 'ENQUEUED'
    AND (application_name = %(application)s OR application_name IS NULL)
    AND application_version = %(version)s
    AND {NEEDS} <> ALL (%(needs)s::text[]) AND {RUN_ID} <> ALL (%(runs)s::text[])
"""
_TAKE: Final = f"""
UPDATE {SCHEMA}.workflow_status AS job SET
    status = 'PENDING',
    owner_xid = %(owner)s,
    executor_id = %(worker)s,
    application_name = %(application)s,
    started_at_epoch_ms = CASE WHEN NOT %(is_counted)s THEN ceil({_NOW_MS})::bigint END,
    rate_limited = %(is_counted)s,
    recovery_attempts = recovery_attempts + 1,
    updated_at = {_NOW_MS}::bigint
WHERE job.workflow_uuid = ANY (ARRAY(SELECT workflow_uuid FROM picked)) AND job.status = 'ENQUEUED'
RETURNING job.workflow_uuid,
    (SELECT place FROM picked WHERE picked.workflow_uuid = job.workflow_uuid),
    CASE WHEN job.serialization = 'portable_json' THEN (
        SELECT stored.inputs FROM {SCHEMA}.workflow_input AS stored
        WHERE stored.workflow_uuid = job.workflow_uuid
    ) END
"""  # noqa: S608
"""By the list of names and not by a join: how few there are is not known to the planner, which
would read the table for it."""
_CLAIM: Final = f"""
WITH picked AS MATERIALIZED (
    SELECT workflow_uuid, priority * 1e14 + created_at AS place FROM {SCHEMA}.workflow_status
    WHERE {_IS_OPEN}
    ORDER BY priority, created_at
    LIMIT ({_ROOM})
    FOR UPDATE SKIP LOCKED
)
{_TAKE}"""  # noqa: S608
_NEXT_KEY: Final = f"""
    SELECT queue_partition_key AS key, priority FROM {SCHEMA}.workflow_status
    WHERE queue_name = %(queue)s AND status = 'ENQUEUED' AND queue_partition_key IS NOT NULL
"""  # noqa: S608
_CLAIM_SHARED: Final = f"""
WITH RECURSIVE heads AS (
    ({_NEXT_KEY} ORDER BY queue_partition_key, priority LIMIT 1)
    UNION ALL
    SELECT next.key, next.priority FROM heads, LATERAL (
        {_NEXT_KEY} AND (queue_partition_key, priority) > (heads.key, heads.priority)
        ORDER BY queue_partition_key, priority LIMIT 1
    ) AS next
), taken AS (
    SELECT queue_partition_key AS key, count(*) AS number,
        count(*) FILTER (WHERE started_at_epoch_ms IS NULL) AS may_begin
    FROM {SCHEMA}.workflow_status
    WHERE queue_name = %(queue)s AND status = 'PENDING' GROUP BY queue_partition_key
), begun AS (
    SELECT queue_partition_key AS key, count(*) AS number FROM {SCHEMA}.workflow_status
    WHERE queue_name = %(queue)s AND rate_limited = TRUE AND %(key_starts)s::bigint IS NOT NULL
        AND started_at_epoch_ms > floor({_NOW_MS}) - %(key_period_ms)s
    GROUP BY queue_partition_key
), open_keys AS (
    SELECT heads.key, heads.priority, last.at_ms, greatest(0, least(
        %(most)s,
        %(per_key)s::bigint - coalesce(taken.number, 0),
        %(key_starts)s::bigint - coalesce(begun.number, 0) - coalesce(taken.may_begin, 0)
    )) AS room
    FROM heads LEFT JOIN taken ON taken.key = heads.key LEFT JOIN begun ON begun.key = heads.key
        LEFT JOIN {SCHEMA}.minions_last_claims AS last
            ON last.queue = %(queue)s AND last.key = heads.key
), jobs AS (
    SELECT open_keys.*, job.workflow_uuid, job.created_at, greatest(0, (open_keys.priority - 1) / 2
        - coalesce(floor(({_NOW_MS} - job.created_at) / %(age_ms)s::float8), 0)) AS level
    FROM open_keys, LATERAL (
        SELECT workflow_uuid, created_at FROM {SCHEMA}.workflow_status
        WHERE {_IS_OPEN} AND queue_partition_key = open_keys.key
            AND priority = open_keys.priority
        ORDER BY created_at LIMIT open_keys.room
    ) AS job
), ranked AS (
    SELECT *, row_number() OVER (PARTITION BY key ORDER BY level, priority, created_at) AS of_key,
        row_number() OVER (PARTITION BY key, level ORDER BY priority, created_at) AS round
    FROM jobs
), picked AS MATERIALIZED (
    SELECT key, workflow_uuid, row_number() OVER (
        ORDER BY level, round, greatest(coalesce(at_ms, 0), created_at), priority, workflow_uuid
    ) AS place
    FROM ranked WHERE of_key <= room
    ORDER BY place LIMIT ({_ROOM})
), noted AS (
    INSERT INTO {SCHEMA}.minions_last_claims (queue, key, at_ms)
    SELECT %(queue)s, key, {_NOW_MS} + max(place) * 0.001 FROM picked GROUP BY key
    ON CONFLICT (queue, key) DO UPDATE SET at_ms = excluded.at_ms
)
{_TAKE}"""  # noqa: S608
"""Of each key and priority that waits its oldest jobs, of these the ones whose turn it is: what is
read depends on the number of keys, and not on that of jobs."""
TABLES: Final = f"""
CREATE TABLE IF NOT EXISTS {SCHEMA}.minions_queues (
    name text PRIMARY KEY,
    share_by text,
    per_key bigint,
    key_starts bigint,
    key_period_s float8,
    age_s float8
);
CREATE TABLE IF NOT EXISTS {SCHEMA}.minions_last_claims (
    queue text NOT NULL,
    key text NOT NULL,
    at_ms float8 NOT NULL,
    PRIMARY KEY (queue, key)
)
"""
"""What queues say beyond DBOS's own limits, and when a job of each of their keys was claimed."""
SET_SHARES: Final = f"""
WITH known AS (SELECT share_by FROM {SCHEMA}.minions_queues WHERE name = %(queue)s), stored AS (
    INSERT INTO {SCHEMA}.minions_queues
        (name, share_by, per_key, key_starts, key_period_s, age_s)
    VALUES (%(queue)s, %(by)s, %(per_key)s, %(key_starts)s, %(key_period_s)s, %(age_s)s)
    ON CONFLICT (name) DO UPDATE SET share_by = excluded.share_by, per_key = excluded.per_key,
        key_starts = excluded.key_starts, key_period_s = excluded.key_period_s,
        age_s = excluded.age_s
)
UPDATE {SCHEMA}.workflow_status SET queue_partition_key = '{NO_KEY}'
WHERE queue_name = %(queue)s AND status IN ('ENQUEUED', 'DELAYED')
    AND coalesce(%(by)s, %(age_s)s::text) IS NOT NULL
    AND %(by)s IS DISTINCT FROM (SELECT share_by FROM known)
"""  # noqa: S608
"""What waited before has one key together: other keys are not known of it."""
SHARES: Final = f"""
SELECT name, share_by, per_key, key_starts, key_period_s, age_s FROM {SCHEMA}.minions_queues
"""  # noqa: S608
FORGET_LAST_CLAIMS: Final = f"""
DELETE FROM {SCHEMA}.minions_last_claims
WHERE at_ms < (extract(epoch FROM clock_timestamp()) - 86400) * 1000
"""  # noqa: S608
"""A key of which nothing was claimed for a day is as one that is new."""
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


LOOK: Final = f"""
SELECT wanted.name, known.concurrency, known.worker_concurrency, known.rate_limit_max,
    known.rate_limit_period_sec,
    EXISTS (
        SELECT FROM {SCHEMA}.workflow_status
        WHERE queue_name = wanted.name AND status = 'ENQUEUED'
            AND {NEEDS} <> ALL (%(needs)s::text[]) AND {RUN_ID} <> ALL (%(runs)s::text[])
    ),
    next.workflow_uuid,
    (next.delay_until_epoch_ms / 1000.0 - extract(epoch FROM clock_timestamp()))::float8
FROM unnest(%(queues)s::text[]) AS wanted (name)
    LEFT JOIN {SCHEMA}.queues AS known ON known.name = wanted.name
    LEFT JOIN (
        SELECT workflow_uuid, delay_until_epoch_ms FROM {SCHEMA}.workflow_status
        WHERE status = 'DELAYED' AND name = '{WORKFLOW}' AND queue_name = ANY (%(queues)s::text[])
        ORDER BY delay_until_epoch_ms LIMIT 1
    ) AS next ON TRUE
"""  # noqa: S608
"""The limits of queues, whether something waits in each, and which job begins next by its time."""
BEGIN_DUE: Final = f"""
UPDATE {SCHEMA}.workflow_status SET status = 'ENQUEUED'
WHERE status = 'DELAYED' AND workflow_uuid = ANY (ARRAY(
    SELECT workflow_uuid FROM {SCHEMA}.workflow_status
    WHERE status = 'DELAYED' AND name = '{WORKFLOW}'
        AND delay_until_epoch_ms <= (extract(epoch FROM clock_timestamp()) * 1000)::bigint
    FOR UPDATE SKIP LOCKED
))
"""  # noqa: S608
END: Final = f"""
WITH ended AS (
    UPDATE {SCHEMA}.workflow_status SET status = 'SUCCESS', owner_xid = NULL,
        deduplication_id = NULL, updated_at = {{now}}, completed_at = {{now}}
    WHERE workflow_uuid = ANY (%(names)s) AND status = 'PENDING' AND executor_id = %(worker)s
    RETURNING workflow_uuid
)
INSERT INTO {SCHEMA}.workflow_output (workflow_uuid, output)
SELECT given.name, given.word
FROM unnest(%(names)s::text[], %(words)s::text[]) AS given (name, word)
WHERE given.name IN (SELECT workflow_uuid FROM ended)
ON CONFLICT (workflow_uuid) DO UPDATE SET output = excluded.output
""".format(now="(extract(epoch FROM clock_timestamp()) * 1000)::bigint")  # noqa: S608
"""As DBOS records the outcome of a workflow; of a job that was put back meanwhile it records
nothing."""


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

    def statements(self, now_ms: float | None = None) -> ClaimStatements:
        """What takes the jobs that may begin now: statements with values by name, all within one
        transaction at READ COMMITTED. Each is to be answered by its rows.

        Two of them, whatever waits. Nothing is taken while another worker counts by the same
        limits: the next look is soon.

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
        ((is_shared, per_key, key_starts, key_period_s, age_s, is_locked),) = yield _BEGIN, values
        if not is_locked:
            return ClaimedJobs()
        is_counted = self.starts is not None or key_starts is not None
        values |= {"is_counted": is_counted, "per_key": per_key, "key_starts": key_starts}
        values["key_period_ms"] = _milliseconds(key_period_s)
        values["age_ms"] = _milliseconds(age_s)
        found = yield (_CLAIM_SHARED if is_shared else _CLAIM), values
        in_order = sorted(found, key=lambda row: Decimal(str(row[1])))  # RETURNING has no order
        return ClaimedJobs(
            names=[str(row[0]) for row in in_order],
            inputs=[None if row[2] is None else str(row[2]) for row in in_order],
            is_counted=is_counted,
        )


@frozen(kw_only=True)
class ClaimedJobs:
    """What a worker took, the first one first."""

    names: Sequence[str] = ()
    inputs: Sequence[str | None] = ()
    """What was stored of each, as JSON; None: it is of another form, which is not read."""
    is_counted: bool = False
    """Whether a limit counts them from when they begin: that is to be noted."""


ClaimStatements: TypeAlias = Generator[
    tuple[str, Mapping[str, object]], Sequence[Sequence[object]], ClaimedJobs
]


def _milliseconds(seconds: object) -> float | None:
    return None if seconds is None else float(str(seconds)) * 1000
