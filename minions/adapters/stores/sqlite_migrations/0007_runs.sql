-- What lists need of each run and each session. Derived of the entries, in the same transaction.
CREATE TABLE runs (
    run_id TEXT NOT NULL PRIMARY KEY,
    session_id TEXT NOT NULL,
    position INTEGER NOT NULL,     -- of the entry with which it began
    recipe TEXT NOT NULL,
    status TEXT NOT NULL,
    started_at INTEGER NOT NULL,   -- microseconds since 1970-01-01T00:00Z
    rest TEXT NOT NULL             -- JSON, in ASCII
) WITHOUT ROWID;

CREATE INDEX runs_of_sessions ON runs (session_id);
CREATE INDEX runs_by_start ON runs (started_at DESC, run_id);
CREATE INDEX runs_by_status ON runs (status, started_at DESC, run_id);
CREATE INDEX runs_by_recipe ON runs (recipe, started_at DESC, run_id);

CREATE TABLE sessions (
    session_id TEXT NOT NULL PRIMARY KEY,
    name TEXT,
    parent TEXT,                   -- from which it was forked
    updated_at INTEGER NOT NULL,   -- microseconds since 1970-01-01T00:00Z
    last_position INTEGER NOT NULL,  -- of the entry that it was made of last
    rest TEXT NOT NULL             -- JSON, in ASCII
) WITHOUT ROWID;

CREATE INDEX sessions_by_update ON sessions (updated_at DESC, session_id);
CREATE INDEX sessions_by_name ON sessions (name) WHERE name IS NOT NULL;
CREATE INDEX sessions_by_parent ON sessions (parent) WHERE parent IS NOT NULL;

-- How many rows there are: to count them would read all pages of an index.
CREATE TABLE row_counts (
    runs INTEGER NOT NULL,
    sessions INTEGER NOT NULL
);

INSERT INTO row_counts (runs, sessions) VALUES (0, 0);

CREATE TRIGGER run_added AFTER INSERT ON runs
BEGIN
    UPDATE row_counts SET runs = runs + 1;
END;

CREATE TRIGGER run_removed AFTER DELETE ON runs
BEGIN
    UPDATE row_counts SET runs = runs - 1;
END;

CREATE TRIGGER session_added AFTER INSERT ON sessions
BEGIN
    UPDATE row_counts SET sessions = sessions + 1;
END;

CREATE TRIGGER session_removed AFTER DELETE ON sessions
BEGIN
    UPDATE row_counts SET sessions = sessions - 1;
END;

-- Sessions whose rows have to be made anew of their entries, before anybody reads them.
CREATE TABLE changed_sessions (
    id INTEGER PRIMARY KEY,
    session_id TEXT NOT NULL UNIQUE
);

INSERT INTO changed_sessions (session_id)
SELECT DISTINCT session_id FROM entries WHERE kind IN ('run', 'session');

-- Whoever adds, changes or takes away entries without these rows, such as an older program that
-- still has the file open, or a person with a tool.
CREATE TRIGGER entry_added AFTER INSERT ON entries
WHEN new.kind IN ('run', 'session') AND NOT EXISTS (
    SELECT 1 FROM sessions WHERE session_id = new.session_id AND last_position = new.position
)
BEGIN
    INSERT OR IGNORE INTO changed_sessions (session_id) VALUES (new.session_id);
END;

CREATE TRIGGER entry_changed AFTER UPDATE ON entries
WHEN old.kind IN ('run', 'session') OR new.kind IN ('run', 'session')
BEGIN
    INSERT OR IGNORE INTO changed_sessions (session_id) VALUES (old.session_id);
    INSERT OR IGNORE INTO changed_sessions (session_id) VALUES (new.session_id);
END;

CREATE TRIGGER entry_removed AFTER DELETE ON entries WHEN old.kind IN ('run', 'session')
BEGIN
    INSERT OR IGNORE INTO changed_sessions (session_id) VALUES (old.session_id);
END;
