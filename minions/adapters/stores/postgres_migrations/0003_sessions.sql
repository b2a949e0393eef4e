-- A run puts a blob before the fact that names it: what was put lately is not collected.
ALTER TABLE minions.blobs ADD COLUMN put_at timestamptz NOT NULL DEFAULT '1970-01-01T00:00Z';

-- Runs and sessions are listed over all sessions, nothing else is.
DROP INDEX minions.entries_of_runs;

CREATE INDEX entries_to_list ON minions.entries (session_id, position)
    WHERE kind IN ('run', 'session');
