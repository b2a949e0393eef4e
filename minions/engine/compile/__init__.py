"""Compiles recipes to graphs of steps, and plans them without a run."""
