-- What runs spent, for budgets of sessions, users and days.
ALTER TABLE minions.runs
    ADD COLUMN user_name text COLLATE "C",
    ADD COLUMN day bigint NOT NULL DEFAULT 0,          -- days since the year 1, in UTC
    ADD COLUMN tokens bigint NOT NULL DEFAULT 0,
    ADD COLUMN cost_usd float8 NOT NULL DEFAULT 0,
    ADD COLUMN day_tokens bigint NOT NULL DEFAULT 0,   -- of the last day
    ADD COLUMN day_cost_usd float8 NOT NULL DEFAULT 0;

CREATE INDEX runs_by_day ON minions.runs (day, day_tokens, day_cost_usd)
WHERE day_tokens > 0 OR day_cost_usd > 0;
CREATE INDEX runs_by_user ON minions.runs (user_name, day, day_tokens, day_cost_usd)
WHERE user_name IS NOT NULL AND (day_tokens > 0 OR day_cost_usd > 0);

INSERT INTO minions.changed_sessions (session_id)
SELECT DISTINCT session_id FROM minions.entries WHERE kind IN ('run', 'session')
ON CONFLICT DO NOTHING;
