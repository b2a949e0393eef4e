-- What lists need of each run and each session. Derived of the entries, in the same transaction.
CREATE TABLE minions.runs (
    run_id text COLLATE "C" PRIMARY KEY,
    session_id text COLLATE "C" NOT NULL,
    position bigint NOT NULL,        -- of the entry with which it began
    recipe text COLLATE "C" NOT NULL,
    status text COLLATE "C" NOT NULL,
    started_at timestamptz NOT NULL,
    rest text COLLATE "C" NOT NULL   -- JSON, in ASCII
);

CREATE INDEX runs_of_sessions ON minions.runs (session_id);
CREATE INDEX runs_by_start ON minions.runs (started_at DESC, run_id);
CREATE INDEX runs_by_status ON minions.runs (status, started_at DESC, run_id);
CREATE INDEX runs_by_recipe ON minions.runs (recipe, started_at DESC, run_id);

CREATE TABLE minions.sessions (
    session_id text COLLATE "C" PRIMARY KEY,
    name text COLLATE "C",
    parent text COLLATE "C",         -- from which it was forked
    updated_at timestamptz NOT NULL,
    last_position bigint NOT NULL,   -- of the entry that it was made of last
    rest text COLLATE "C" NOT NULL   -- JSON, in ASCII
);

CREATE INDEX sessions_by_update ON minions.sessions (updated_at DESC, session_id);
CREATE INDEX sessions_by_name ON minions.sessions (name) WHERE name IS NOT NULL;
CREATE INDEX sessions_by_parent ON minions.sessions (parent) WHERE parent IS NOT NULL;

-- Sessions whose rows have to be made anew of their entries, before anybody reads them.
CREATE TABLE minions.changed_sessions (
    session_id text COLLATE "C" PRIMARY KEY
);

INSERT INTO minions.changed_sessions (session_id)
SELECT DISTINCT session_id FROM minions.entries WHERE kind IN ('run', 'session');

-- Whoever adds, changes or takes away entries without these rows, such as an older program that
-- is still connected, or a person with a tool.
CREATE FUNCTION minions.entry_added() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (
        SELECT 1 FROM minions.sessions
        WHERE session_id = new.session_id AND last_position = new.position
    ) THEN
        INSERT INTO minions.changed_sessions VALUES (new.session_id) ON CONFLICT DO NOTHING;
    END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION minions.entry_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO minions.changed_sessions VALUES (old.session_id) ON CONFLICT DO NOTHING;
    IF tg_op = 'UPDATE' THEN
        INSERT INTO minions.changed_sessions VALUES (new.session_id) ON CONFLICT DO NOTHING;
    END IF;
    RETURN NULL;
END $$;

CREATE TRIGGER entry_added AFTER INSERT ON minions.entries FOR EACH ROW
WHEN (new.kind IN ('run', 'session')) EXECUTE FUNCTION minions.entry_added();

CREATE TRIGGER entry_changed AFTER UPDATE ON minions.entries FOR EACH ROW
WHEN (old.kind IN ('run', 'session') OR new.kind IN ('run', 'session'))
EXECUTE FUNCTION minions.entry_changed();

CREATE TRIGGER entry_removed AFTER DELETE ON minions.entries FOR EACH ROW
WHEN (old.kind IN ('run', 'session')) EXECUTE FUNCTION minions.entry_changed();
