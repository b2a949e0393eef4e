-- To whom sessions belong; lists of runs and of sessions are asked for by user, too.
ALTER TABLE sessions ADD COLUMN user_name TEXT;

CREATE INDEX sessions_of_user ON sessions (user_name, updated_at DESC, session_id)
WHERE user_name IS NOT NULL;
CREATE INDEX runs_of_user ON runs (user_name, started_at DESC, run_id)
WHERE user_name IS NOT NULL;

INSERT OR IGNORE INTO changed_sessions (session_id)
SELECT DISTINCT session_id FROM runs WHERE user_name IS NOT NULL;
