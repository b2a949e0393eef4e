-- What runs spent, for budgets of sessions, users and days.
ALTER TABLE runs ADD COLUMN user_name TEXT;
ALTER TABLE runs ADD COLUMN day INTEGER NOT NULL DEFAULT 0;  -- days since the year 1, in UTC
ALTER TABLE runs ADD COLUMN tokens INTEGER NOT NULL DEFAULT 0;
ALTER TABLE runs ADD COLUMN cost_usd REAL NOT NULL DEFAULT 0.0;
ALTER TABLE runs ADD COLUMN day_tokens INTEGER NOT NULL DEFAULT 0;  -- of the last day
ALTER TABLE runs ADD COLUMN day_cost_usd REAL NOT NULL DEFAULT 0.0;

CREATE INDEX runs_by_day ON runs (day, day_tokens, day_cost_usd)
WHERE day_tokens > 0 OR day_cost_usd > 0;
CREATE INDEX runs_by_user ON runs (user_name, day, day_tokens, day_cost_usd)
WHERE user_name IS NOT NULL AND (day_tokens > 0 OR day_cost_usd > 0);

INSERT OR IGNORE INTO changed_sessions (session_id)
SELECT DISTINCT session_id FROM entries WHERE kind IN ('run', 'session');
