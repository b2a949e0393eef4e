"""What PostgreSQL tells of jobs while they are submitted, delayed and taken: a trigger, a channel.

Any writer is heard so, also DBOS itself and processes of earlier versions. What is told is a hint:
whoever hears it looks, and looks at times without it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from attrs import frozen

from minions.adapters.dispatch.postgres_claims import SCHEMA, WORKFLOW
from minions.contracts.runtime import Log, Sleep

if TYPE_CHECKING:
    import psycopg
    from psycopg.rows import TupleRow

_CHANNEL: Final = "minions_jobs"
_AGAIN_S: Final = 1.0
"""Seconds until it is tried again to listen."""
_CONNECT_S: Final = 4
_IS_TOLD: Final = f"NEW.name = '{WORKFLOW}' AND NEW.queue_name IS NOT NULL"
HAS_TRIGGERS: Final = f"""
SELECT count(*) = 2 FROM pg_trigger
WHERE tgrelid = '{SCHEMA}.workflow_status'::regclass
    AND tgname IN ('minions_job_stored', 'minions_job_changed')
"""  # noqa: S608  # the schema is a constant
MAKE_TRIGGERS: Final = f"""
CREATE OR REPLACE FUNCTION {SCHEMA}.minions_tell_job() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('{_CHANNEL}', concat_ws(' ', NEW.status, NEW.queue_name,
        CASE NEW.status WHEN 'DELAYED' THEN greatest(0,
            NEW.delay_until_epoch_ms / 1000.0 - extract(epoch FROM clock_timestamp())) ELSE 0 END,
        NEW.workflow_uuid));
    RETURN NULL;
END $$;
CREATE OR REPLACE TRIGGER minions_job_stored AFTER INSERT ON {SCHEMA}.workflow_status
FOR EACH ROW WHEN ({_IS_TOLD} AND NEW.status IN ('ENQUEUED', 'DELAYED'))
EXECUTE FUNCTION {SCHEMA}.minions_tell_job();
CREATE OR REPLACE TRIGGER minions_job_changed
AFTER UPDATE OF status, delay_until_epoch_ms ON {SCHEMA}.workflow_status
FOR EACH ROW WHEN ({_IS_TOLD} AND NEW.status IN ('ENQUEUED', 'DELAYED', 'PENDING')
    AND (NEW.status, NEW.delay_until_epoch_ms)
        IS DISTINCT FROM (OLD.status, OLD.delay_until_epoch_ms))
EXECUTE FUNCTION {SCHEMA}.minions_tell_job();
"""
"""The end of a job is not told: only who waits for its place would want it, and looks anyway."""


@frozen(kw_only=True)
class JobNews:
    """What became of one job just now."""

    key: str
    queue: str
    is_taken: bool
    """Whether a worker has it; else it waits."""
    due_s: float = 0.0
    """Seconds until it may begin."""

    @classmethod
    def of_text(cls, text: str) -> JobNews | None:
        """What was told; None: it is of another form, for anybody may tell anything."""
        state, _, rest = text.partition(" ")
        queue, _, rest = rest.partition(" ")
        due, _, key = rest.partition(" ")
        try:
            return cls(key=key, queue=queue, is_taken=state == "PENDING", due_s=float(due))
        except ValueError:
            return None


class PostgresNews:
    """Listens over a connection of its own, which costs nothing while nothing is told."""

    def __init__(self, url: str, log: Log, *, sleep: Sleep = asyncio.sleep) -> None:
        """No I/O here."""
        self._url = url
        self._log = log
        self._sleep = sleep

    async def listen(
        self, tell: Callable[[JobNews], None], set_heard: Callable[[bool], None]
    ) -> None:
        """Until cancelled. A connection that is lost is opened again.

        Args:
            tell: Called with what is told; returns at once.
            set_heard: Called with whether it is heard from now on.
        """
        import psycopg

        is_told = False
        while True:
            try:
                connection = await psycopg.AsyncConnection.connect(
                    self._url, autocommit=True, connect_timeout=_CONNECT_S
                )
                async with connection:
                    await connection.execute(f"LISTEN {_CHANNEL}".encode())
                    set_heard(True)
                    is_told = False
                    await self._until_lost(connection, tell)
            except (psycopg.Error, OSError) as error:
                if not is_told:  # once, until it is heard again
                    is_told = True
                    reason = str(error).strip().partition("\n")[0]
                    self._log.warning("job_news_lost", reason=reason)
            finally:
                set_heard(False)
            await self._sleep(_AGAIN_S)

    async def _until_lost(
        self, connection: psycopg.AsyncConnection[TupleRow], tell: Callable[[JobNews], None]
    ) -> None:
        """By the socket: psycopg's own way to wait for what is told wakes ten times a second.

        Raises:
            psycopg.Error: The connection was lost.
        """
        loop, server = asyncio.get_running_loop(), connection.pgconn
        lost: asyncio.Future[None] = loop.create_future()

        def read() -> None:
            try:
                server.consume_input()
                while (told := server.notifies()) is not None:
                    news = JobNews.of_text(told.extra.decode(errors="replace"))
                    if news is not None:
                        tell(news)
            except Exception as error:  # noqa: BLE001  # whoever waits is to have it
                if not lost.done():
                    lost.set_exception(error)

        loop.add_reader(server.socket, read)
        try:
            read()  # what came with the answer to LISTEN
            await lost
        finally:
            with contextlib.suppress(Exception):  # the socket of a lost connection may be gone
                loop.remove_reader(server.socket)
