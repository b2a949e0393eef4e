-- Rows are counted when somebody asks how many there are: triggers that counted each took as long as
-- the row and its indexes. For builds that do not know it, `row_counts` is a view that counts.
DROP TRIGGER run_added;
DROP TRIGGER run_removed;
DROP TRIGGER session_added;
DROP TRIGGER session_removed;
DROP TRIGGER last_entry_removed;

CREATE TABLE row_marks (
    seen INTEGER NOT NULL          -- entries up to this id were looked at for rows to be made
);

INSERT INTO row_marks (seen) SELECT seen FROM row_counts;

DROP TABLE row_counts;

CREATE VIEW row_counts AS
SELECT (SELECT count(*) FROM runs) AS runs, (SELECT count(*) FROM sessions) AS sessions, seen
FROM row_marks;

CREATE TRIGGER row_counts_seen INSTEAD OF UPDATE OF seen ON row_counts
BEGIN
    UPDATE row_marks SET seen = new.seen;
END;

-- The ids of removed entries may be given again.
CREATE TRIGGER last_entry_removed AFTER DELETE ON entries
WHEN old.id > (SELECT ifnull(max(id), 0) FROM entries)
BEGIN
    UPDATE row_marks SET seen = min(seen, (SELECT ifnull(max(id), 0) FROM entries));
END;
