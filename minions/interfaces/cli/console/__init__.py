"""The output of commands: text, JSON, progress and reports."""
