"""Evaluations, tests of recipes, tuning and learned examples."""
