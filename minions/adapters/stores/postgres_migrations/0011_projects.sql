-- In which project runs and sessions were made; lists are asked for by project.
ALTER TABLE minions.runs ADD COLUMN project text COLLATE "C";
ALTER TABLE minions.sessions ADD COLUMN project text COLLATE "C";

CREATE INDEX runs_of_project ON minions.runs (project, started_at DESC, run_id)
WHERE project IS NOT NULL;
CREATE INDEX sessions_of_project ON minions.sessions (project, updated_at DESC, session_id)
WHERE project IS NOT NULL;
