-- The facts of all sessions. An entry never changes once it is here.
CREATE TABLE minions.entries (
    session_id text COLLATE "C" NOT NULL,
    position bigint NOT NULL,        -- gapless from 1 in its session
    run_id text COLLATE "C" NOT NULL,
    generation bigint NOT NULL,
    key text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL,
    state text COLLATE "C" NOT NULL,
    body bytea NOT NULL,             -- JSON in UTF-8; bytes, because text holds no half characters
    epoch bigint NOT NULL,
    at timestamptz NOT NULL,
    PRIMARY KEY (session_id, position)
);

CREATE UNIQUE INDEX entries_by_name ON minions.entries (run_id, generation, key, kind, state);

-- Lists such as "all runs" must not read every entry.
CREATE INDEX entries_of_runs ON minions.entries (session_id, position) WHERE kind = 'run';

-- Who may write which session. The row stays when a lease is given back: epochs only grow.
-- Each append counts in it, so that appends and the change of owner come one after the other.
CREATE TABLE minions.leases (
    session_id text COLLATE "C" PRIMARY KEY,
    run_id text COLLATE "C" NOT NULL,
    worker_id text COLLATE "C" NOT NULL,
    epoch bigint NOT NULL,
    generation bigint NOT NULL,
    deadline timestamptz,            -- by this server's clock; NULL: given back
    last_position bigint NOT NULL
) WITH (fillfactor = 50);            -- room on the page: a counted append touches no index

-- Bytes under their SHA-256 (of the bytes before compression).
CREATE TABLE minions.blobs (
    digest text COLLATE "C" PRIMARY KEY,
    data bytea NOT NULL              -- zlib
);

ALTER TABLE minions.blobs ALTER COLUMN data SET STORAGE EXTERNAL;
