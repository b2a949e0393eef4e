-- A hash chain over the entries of each session: SHA-256 of the value before it and of the row.
ALTER TABLE entries ADD COLUMN chain BLOB;        -- NULL: written before there were chains

-- Where the chain ended when the lease was last given back.
ALTER TABLE leases ADD COLUMN last_position INTEGER;
ALTER TABLE leases ADD COLUMN chain BLOB;
