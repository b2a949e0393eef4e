-- Which entries were looked at already for rows that are to be made: those up to this id. A trigger
-- on each entry did that before, and cost as much as the entry.
ALTER TABLE row_counts ADD COLUMN seen INTEGER NOT NULL DEFAULT 0;

INSERT OR IGNORE INTO changed_sessions (session_id)
SELECT DISTINCT session_id FROM entries AS e WHERE kind IN ('run', 'session') AND NOT EXISTS (
    SELECT 1 FROM sessions AS s WHERE s.session_id = e.session_id AND s.last_position >= e.position
);

UPDATE row_counts SET seen = (SELECT ifnull(max(id), 0) FROM entries);

DROP TRIGGER entry_added;

-- The ids of removed entries may be given again.
CREATE TRIGGER last_entry_removed AFTER DELETE ON entries
WHEN old.id > (SELECT ifnull(max(id), 0) FROM entries)
BEGIN
    UPDATE row_counts SET seen = min(seen, (SELECT ifnull(max(id), 0) FROM entries));
END;
