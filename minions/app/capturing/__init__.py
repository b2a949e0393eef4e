"""Captures recorded runs as recipes, and proves them against the runs."""
