"""Sandboxes for code and commands: Monty, a confined process, and workspaces."""
