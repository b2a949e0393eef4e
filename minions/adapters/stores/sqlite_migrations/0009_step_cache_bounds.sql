-- The cache of outputs is bounded: the least recently used entries are evicted.
ALTER TABLE step_cache ADD COLUMN used_at INTEGER NOT NULL DEFAULT 0;  -- as created_at; an hour's accuracy
ALTER TABLE step_cache ADD COLUMN size INTEGER NOT NULL DEFAULT 0;     -- of the output, in bytes

UPDATE step_cache SET used_at = created_at, size = length(output);

CREATE INDEX step_cache_by_use ON step_cache (used_at, size);
