-- Runs of a user, a project or a recipe that are in one state: without these, a list of few of them
-- reads all runs of that user, project or recipe. Lists of no state are ordered by the plain column,
-- by which the server would read all runs of lists of a state, too.
CREATE INDEX runs_of_user_by_status
ON minions.runs (user_name, status, (started_at AT TIME ZONE 'UTC') DESC, run_id)
WHERE user_name IS NOT NULL;
CREATE INDEX runs_of_project_by_status
ON minions.runs (project, status, (started_at AT TIME ZONE 'UTC') DESC, run_id)
WHERE project IS NOT NULL;
CREATE INDEX runs_of_recipe_by_status
ON minions.runs (recipe, status, (started_at AT TIME ZONE 'UTC') DESC, run_id);
