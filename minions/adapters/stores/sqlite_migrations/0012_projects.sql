-- In which project runs and sessions were made; lists are asked for by project.
ALTER TABLE runs ADD COLUMN project TEXT;
ALTER TABLE sessions ADD COLUMN project TEXT;

CREATE INDEX runs_of_project ON runs (project, started_at DESC, run_id)
WHERE project IS NOT NULL;
CREATE INDEX sessions_of_project ON sessions (project, updated_at DESC, session_id)
WHERE project IS NOT NULL;
