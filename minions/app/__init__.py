"""Use cases on one runtime, for commands, server, workers and programs: no terminal, no HTTP."""
