"""Typed clients of recipes, as Python text."""
