-- Which schedule or token started a run, for budgets of these; and the runs that spent something
-- before their last day, for budgets of weeks and months.
ALTER TABLE runs ADD COLUMN started_by TEXT;

CREATE INDEX runs_of_days ON runs (day) WHERE tokens > day_tokens OR cost_usd > day_cost_usd;
