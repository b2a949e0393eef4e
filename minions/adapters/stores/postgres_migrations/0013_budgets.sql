-- Which schedule or token started a run, for budgets of these; and the runs that spent something
-- before their last day, for budgets of weeks and months.
ALTER TABLE minions.runs ADD COLUMN started_by text COLLATE "C";

CREATE INDEX runs_of_days ON minions.runs (day)
WHERE tokens > day_tokens OR cost_usd > day_cost_usd;
