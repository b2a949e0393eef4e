"""Sessions: conversations that are made of runs."""
