"""The commands: one module each, named like the command."""
