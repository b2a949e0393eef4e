"""What a journal says of runs and sessions: replay, conversations, lists, events."""
