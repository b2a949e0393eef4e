"""People and programs: the command line, settings, and the wiring that knows everything."""
