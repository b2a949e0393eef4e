-- When the time of sessions is over of which a run says how long they may stay.
ALTER TABLE minions.sessions ADD COLUMN expires_at timestamptz;

CREATE INDEX sessions_by_expiry ON minions.sessions (expires_at) WHERE expires_at IS NOT NULL;

-- What runs of removed sessions spent, without their words: budgets of days, weeks and months count it.
CREATE TABLE minions.removed_spending (
    day bigint NOT NULL,           -- days since the year 1, in UTC
    user_name text COLLATE "C",
    recipe text COLLATE "C" NOT NULL,
    project text COLLATE "C",
    started_by text COLLATE "C",
    tokens bigint NOT NULL,
    cost_usd float8 NOT NULL
);

CREATE INDEX removed_spending_by_day ON minions.removed_spending (day);
