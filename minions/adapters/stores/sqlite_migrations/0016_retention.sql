-- When the time of sessions is over of which a run says how long they may stay.
ALTER TABLE sessions ADD COLUMN expires_at INTEGER;  -- microseconds since 1970-01-01T00:00Z

CREATE INDEX sessions_by_expiry ON sessions (expires_at) WHERE expires_at IS NOT NULL;

-- What runs of removed sessions spent, without their words: budgets of days, weeks and months count it.
CREATE TABLE removed_spending (
    day INTEGER NOT NULL,          -- days since the year 1, in UTC
    user_name TEXT,
    recipe TEXT NOT NULL,
    project TEXT,
    started_by TEXT,
    tokens INTEGER NOT NULL,
    cost_usd REAL NOT NULL
);

CREATE INDEX removed_spending_by_day ON removed_spending (day);

-- Whether a large body is that of another entry, too: those of removed entries go with them.
CREATE INDEX entries_by_body_digest ON entries (body_digest) WHERE body_digest IS NOT NULL;
