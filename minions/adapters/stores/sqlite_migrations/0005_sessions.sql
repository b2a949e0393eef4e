-- A run puts a blob before the fact that names it: what was put lately is not collected.
ALTER TABLE blobs ADD COLUMN put_at INTEGER NOT NULL DEFAULT 0;  -- last; microseconds since 1970-01-01T00:00Z

-- Runs and sessions are listed over all sessions, nothing else is.
DROP INDEX entries_of_runs;

CREATE INDEX entries_to_list ON entries (session_id, position) WHERE kind IN ('run', 'session');
