"""Sessions: conversations made of runs; exported, forked, cancelled and deleted."""
