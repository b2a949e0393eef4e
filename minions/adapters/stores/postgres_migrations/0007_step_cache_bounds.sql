-- The cache of outputs is bounded: the least recently used entries are evicted.
ALTER TABLE minions.step_cache
    ADD COLUMN used_at timestamptz NOT NULL DEFAULT '1970-01-01T00:00Z',  -- an hour's accuracy
    ADD COLUMN size bigint NOT NULL DEFAULT 0;                            -- of the output, in bytes

UPDATE minions.step_cache SET used_at = created_at, size = octet_length(output);

CREATE INDEX step_cache_by_use ON minions.step_cache (used_at, size);
