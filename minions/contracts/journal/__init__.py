"""What the journal holds: facts, entries, leases, and rows of runs and sessions."""
