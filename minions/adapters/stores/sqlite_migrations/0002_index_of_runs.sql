-- Only runs are listed over all sessions: an index of every kind cost each entry a page to write.
DROP INDEX entries_by_kind;

CREATE INDEX entries_of_runs ON entries (session_id, position) WHERE kind = 'run';
