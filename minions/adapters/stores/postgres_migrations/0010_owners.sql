-- To whom sessions belong; lists of runs and of sessions are asked for by user, too.
ALTER TABLE minions.sessions ADD COLUMN user_name text COLLATE "C";

CREATE INDEX sessions_of_user ON minions.sessions (user_name, updated_at DESC, session_id)
WHERE user_name IS NOT NULL;
CREATE INDEX runs_of_user ON minions.runs (user_name, started_at DESC, run_id)
WHERE user_name IS NOT NULL;

INSERT INTO minions.changed_sessions (session_id)
SELECT DISTINCT session_id FROM minions.runs WHERE user_name IS NOT NULL
ON CONFLICT DO NOTHING;
