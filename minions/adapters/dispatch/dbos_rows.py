"""Jobs as rows of DBOS: one workflow each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, cast

from attrs import asdict

from minions.adapters.dispatch.dbos_server import APPLICATION, VERSION, WORKFLOW
from minions.adapters.dispatch.postgres_workers import SCHEMA
from minions.contracts.dispatch import Job, JobState, JobView, QueueLimits, RateLimit

if TYPE_CHECKING:
    from dbos import DBOSClient, EnqueueOptions, WorkflowStatus
    from dbos import Queue as DbosQueue


STATES: Final = {
    "DELAYED": JobState.DELAYED,
    "ENQUEUED": JobState.WAITING,
    "PENDING": JobState.TAKEN,
}
_CLEANED: Final = 1_000
"""Jobs that are removed at once."""
_PAGE: Final = 100
"""Runs whose jobs are looked up in one query."""


def client_at(url: str) -> DBOSClient:
    """A client; the tables are made, or brought to the newest form.

    Raises:
        SQLAlchemyError: The server cannot be reached, or refuses.
    """
    from dbos import DBOS, DBOSClient, DBOSPortableJSONSerializer

    DBOS.migrate(url, schema=SCHEMA)
    return DBOSClient(
        system_database_url=url,
        dbos_system_schema=SCHEMA,
        serializer=DBOSPortableJSONSerializer(),
        application_name=APPLICATION,
        retry_connection_errors=False,
    )


def enqueue(client: DBOSClient, job: Job, delay_s: float | None) -> bool:
    """Store a job; whether there was none of its name.

    Args:
        delay_s: Seconds from now by the clock of this process, also negative ones, after which it
            may begin; None: now.
    """
    from dbos import error

    options: EnqueueOptions = {
        "workflow_name": WORKFLOW,
        "queue_name": job.queue,
        "workflow_id": job.key,
        "workflow_id_reuse_policy": "reject",
        "app_version": VERSION,
        # What was put back was begun, or was there before; the least that DBOS takes is 1.
        "priority": 2 * job.priority + (1 if job.number else 2),
        "queue_partition_key": job.session_id,
        "application_name": APPLICATION,
    }
    if delay_s is not None:
        options["delay_seconds"] = delay_s
    try:
        client.enqueue(options, asdict(job))
    except error.DBOSWorkflowIDInUseError:
        return False
    return True


def unended_jobs(client: DBOSClient, run_ids: list[str]) -> list[WorkflowStatus]:
    """The jobs of these runs that have not ended."""
    found: list[WorkflowStatus] = []
    for at in range(0, len(run_ids), _PAGE):
        part = run_ids[at : at + _PAGE]
        found += client.list_workflows(
            workflow_id_prefix=[f"{run_id}@" for run_id in part],
            status=list(STATES),
            name=WORKFLOW,
            load_output=False,
        )
    return found


def taken_jobs(client: DBOSClient) -> list[WorkflowStatus]:
    """The jobs that workers have."""
    return client.list_workflows(status="PENDING", name=WORKFLOW, load_output=False)


def delete_ended(client: DBOSClient, before: datetime) -> None:
    """Remove some of the jobs that ended before a time."""
    ended = client.list_workflows(
        status=["SUCCESS", "CANCELLED", "ERROR"],
        name=WORKFLOW,
        completed_before=before.isoformat(),
        limit=_CLEANED,
        load_input=False,
        load_output=False,
    )
    if ended:
        client.delete_workflows([each.workflow_id for each in ended])


def job_views(found: Iterable[WorkflowStatus]) -> list[JobView]:
    """Those that can be read: anybody with the database's password can write rows."""
    return [
        JobView(job=job, state=state, worker=each.executor_id if state is JobState.TAKEN else None)
        for each in found
        if (job := job_of(each)) is not None
        for state in (STATES[each.status],)
    ]


def job_of(status: WorkflowStatus) -> Job | None:
    """The job of a row; None: it is none."""
    stored: object = status.input
    try:
        (fields,) = cast("Mapping[str, Sequence[Mapping[str, Any]]]", stored)[
            "args"
        ]  # Any: checked by attrs
        return Job(**fields)
    except (TypeError, ValueError, LookupError):
        return None


def queue_limits(queue: DbosQueue) -> QueueLimits:
    """The limits of a queue, from its row."""
    rate = queue.limiter
    return QueueLimits(
        name=queue.name,
        concurrency=queue.global_concurrency,
        per_worker=queue.worker_concurrency or 1,
        rate=RateLimit(starts=rate["limit"], period_s=rate["period"]) if rate else None,
    )
