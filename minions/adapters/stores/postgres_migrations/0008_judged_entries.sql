-- What people said of the work of runs is looked up over all sessions; few entries are of these kinds.
CREATE INDEX entries_of_judgements ON minions.entries (session_id, position)
    WHERE kind IN ('mark', 'decision');
