-- The facts of all sessions. An entry never changes once it is here.
CREATE TABLE entries (
    id INTEGER PRIMARY KEY,
    session_id TEXT NOT NULL,
    position INTEGER NOT NULL,     -- gapless from 1 in its session
    run_id TEXT NOT NULL,
    generation INTEGER NOT NULL,
    key TEXT NOT NULL,
    kind TEXT NOT NULL,
    state TEXT NOT NULL,
    body TEXT,                     -- JSON; bytes where the text is not valid Unicode; NULL: see body_digest
    body_digest TEXT,              -- a large body, in blobs
    epoch INTEGER NOT NULL,
    at INTEGER NOT NULL            -- microseconds since 1970-01-01T00:00Z
);

CREATE UNIQUE INDEX entries_by_position ON entries (session_id, position);

CREATE UNIQUE INDEX entries_by_name ON entries (run_id, generation, key, kind, state);

-- Lists such as "all runs" must not read every entry.
CREATE INDEX entries_by_kind ON entries (kind, session_id, position);

-- Who may write which session. The row stays when a lease is given back: epochs only grow.
CREATE TABLE leases (
    session_id TEXT PRIMARY KEY,
    run_id TEXT NOT NULL,
    worker_id TEXT NOT NULL,
    epoch INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    deadline INTEGER               -- microseconds since 1970-01-01T00:00Z; NULL: given back
) WITHOUT ROWID;

-- Bytes under their SHA-256 (of the bytes before compression).
CREATE TABLE blobs (
    digest TEXT PRIMARY KEY,
    data BLOB NOT NULL             -- zlib
);
