-- A hash chain over the entries of each session: SHA-256 of the value before it and of the row.
ALTER TABLE minions.entries ADD COLUMN chain bytea;   -- NULL: written before there were chains
ALTER TABLE minions.leases ADD COLUMN chain bytea;    -- that of the entry at last_position

-- As before, with the end of the chain, which the writer continues.
DROP FUNCTION minions.acquire_leases(
    text[], text[], text[], text[], boolean[], timestamptz[], float8[]
);

CREATE FUNCTION minions.acquire_leases(
    session_ids text[], run_ids text[], worker_ids text[],
    victims text[],                  -- workers whose lease may be taken over at once, or NULL
    are_next boolean[],              -- whether the next generation of the run begins
    times timestamptz[],             -- NULL: by this server's clock
    seconds float8[]                 -- until the lease expires
) RETURNS TABLE (
    number integer, epoch bigint, generation bigint, last_position bigint, chain bytea
)
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
BEGIN
    FOR number IN 1 .. cardinality(session_ids) LOOP
        INSERT INTO minions.leases AS held
            (session_id, run_id, worker_id, epoch, generation, deadline, last_position)
        VALUES (session_ids[number], run_ids[number], worker_ids[number], 1, 1,
            coalesce(times[number], clock_timestamp()) + make_interval(secs => seconds[number]), 0)
        ON CONFLICT (session_id) DO UPDATE SET
            run_id = excluded.run_id, worker_id = excluded.worker_id, epoch = held.epoch + 1,
            deadline = excluded.deadline
        WHERE held.deadline IS NULL
            OR held.deadline <= coalesce(times[number], clock_timestamp())
            OR held.worker_id = victims[number]
            OR (held.run_id = excluded.run_id AND held.worker_id = excluded.worker_id);
        CONTINUE WHEN NOT FOUND;
        RETURN QUERY
            UPDATE minions.leases AS held SET generation = (
                SELECT CASE WHEN are_next[number] THEN coalesce(max(e.generation), 0) + 1
                    ELSE coalesce(max(e.generation), 1) END
                FROM minions.entries AS e WHERE e.run_id = run_ids[number]
            )
            WHERE held.session_id = session_ids[number]
            RETURNING number, held.epoch, held.generation, held.last_position, held.chain;
    END LOOP;
END $$;
