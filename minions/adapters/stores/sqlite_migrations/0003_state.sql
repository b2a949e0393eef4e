-- What recipes keep from one run to the next, whatever session they belong to.
CREATE TABLE state (
    key TEXT PRIMARY KEY NOT NULL,
    value TEXT NOT NULL            -- JSON, in ASCII
);
