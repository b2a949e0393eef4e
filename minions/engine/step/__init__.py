"""One step is executed, and the next one is chosen."""
