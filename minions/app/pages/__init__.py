"""Pages in one file: of a run, and of an evaluation."""
