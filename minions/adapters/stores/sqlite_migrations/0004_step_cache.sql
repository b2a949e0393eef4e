-- What steps gave, under the SHA-256 of all that it rests on. Losing it loses only time.
CREATE TABLE step_cache (
    key TEXT PRIMARY KEY NOT NULL,
    output TEXT NOT NULL,          -- JSON, in ASCII
    run_id TEXT NOT NULL,          -- which did the work; its rows may be gone
    created_at INTEGER NOT NULL    -- microseconds since 1970-01-01T00:00Z
);
