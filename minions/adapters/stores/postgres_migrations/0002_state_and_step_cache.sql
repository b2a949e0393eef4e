-- What recipes keep from one run to the next, whatever session they belong to.
CREATE TABLE minions.state (
    key bytea PRIMARY KEY,           -- UTF-8; bytes, because text holds no NUL
    value bytea NOT NULL             -- JSON, in ASCII
);

-- What steps gave, under the SHA-256 of all that it rests on. Losing it loses only time.
CREATE TABLE minions.step_cache (
    key text COLLATE "C" PRIMARY KEY,
    output bytea NOT NULL,           -- JSON, in ASCII
    run_id text COLLATE "C" NOT NULL,  -- which did the work; its rows may be gone
    created_at timestamptz NOT NULL
);
