"""A recipe becomes a graph of steps: templates and schemas are compiled once."""
