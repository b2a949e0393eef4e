"""The command line: one module for each command, and the parts that commands share."""
